"""How the GPUs of a deployment share a model: ranks of a group, groups with sequences of their own, whole experts.

Who shares what, of ``dp`` groups of ``tp`` ranks (SGLang counts all ranks as ``--tp`` under attention data parallelism,
vLLM the ranks of a group):

* a group's ranks share attention, its caches, and whatever groups have each for themselves;
* without ``dp_attention`` the groups are replicas, which share nothing;
* with it the ranks of all groups share the weights named in ``joint``, each group's rows with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from wmtp_sim.errors import InputError
from wmtp_sim.spec.model import (
    Attention,
    Block,
    Channel,
    CompressedAttention,
    GatedDeltaNet,
    Mamba1,
    Mixer,
    Mlp,
    Moe,
)
from wmtp_sim.spec.precision import WeightGroup

MAX_RANKS = 1024


#: GPUs that one host holds at most; a scale-up link that reaches more joins hosts.
GPUS_OF_A_HOST = 16


@dataclass(frozen=True)
class Layout:
    """Ranks, their groups, and what each shares with which.

    Attributes:
        tp: ranks of a group: tensor parallel.
        dp: groups, each with sequences of its own: data parallel.
        dp_attention: whether all groups share the weights in ``joint``; else they are replicas.
        joint: kinds of weights that the ranks of all groups share under ``dp_attention``, as the engine has it.
        expert_groups: parts of the ranks that share experts, to which whole experts are dealt; the ranks of a part
            share each of theirs. All of them is expert parallel, 1 a part of every expert on every rank.
        all_to_all: whether rows are sent to the ranks of their experts and back (DeepEP); else every rank of those that
            share experts sees all rows, and what it adds to them is reduced.
        by_reduction: whether groups gather rows by an all-reduce over all ranks of rows that are zero where a group has
            none, and return them by another, which complete what ranks made of attention and of experts, too.
        draft_tp: ranks that share the drafter, where it is not all of a group; each part of a group runs it whole.
        pp: pipeline stages. They are not priced, and stand beside the ranks.
        hosts: hosts that all GPUs stand in, as far as that is stated. Links between them are not priced.

    Raises:
        InputError: naming the flag of a number that is out of range or does not divide.
    """

    tp: int = 1
    dp: int = 1
    dp_attention: bool = False
    joint: tuple[WeightGroup, ...] = ("expert",)
    expert_groups: int = 1
    all_to_all: bool = False
    by_reduction: bool = False
    draft_tp: int | None = None
    pp: int = 1
    hosts: int = 1

    def __post_init__(self) -> None:
        for flag, ranks in (("--tp", self.tp), ("--dp", self.dp), ("--tp times --dp", self.tp * self.dp)):
            if not 1 <= ranks <= MAX_RANKS:
                what = "groups" if flag == "--dp" else "ranks"
                raise InputError(flag, f"{ranks} {what}", f"a whole number from 1 to {MAX_RANKS}")
        for name, number, what in (("pp", self.pp, "pipeline stages"), ("hosts", self.hosts, "hosts")):
            if not 1 <= number <= MAX_RANKS:
                raise InputError(name, f"{number} {what}", f"a whole number from 1 to {MAX_RANKS}")
        if not 1 <= self.expert_groups <= self.ranks or self.ranks % self.expert_groups:
            problem = f"{self.expert_groups} groups cannot share {self.ranks} ranks"
            hint = "a number that divides --tp" + (" times --dp" if self.joined > 1 else "")
            raise InputError("--expert-parallel", problem, hint)
        if self.all_to_all and self.ranks == 1:
            raise InputError("--all-to-all", "sends rows to other ranks, and there are none", "--tp, or --dp-attention")
        if self.all_to_all and self.expert_groups < self.ranks:
            hint = "--expert-parallel, which gives every rank its own"
            raise InputError("--all-to-all", "sends rows to ranks that hold whole experts, and these hold parts", hint)
        if self.draft_tp is not None and (self.draft_tp < 1 or self.tp % self.draft_tp):
            raise InputError("--draft-tp", f"{self.draft_tp} ranks of {self.tp}", "a number that divides --tp")

    @property
    def gpus(self) -> int:
        """All GPUs of the deployment."""
        return self.tp * self.dp

    @property
    def joined(self) -> int:
        """Groups that share experts: 1 where groups are replicas."""
        return self.dp if self.dp_attention else 1

    @property
    def ranks(self) -> int:
        """Ranks that work on one step together, and share its experts."""
        return self.tp * self.joined

    def hosts_of_a_step(self, gpus_per_host: int) -> int:
        """Hosts, at least, whose GPUs work on one step together: replicas are dealt to the hosts evenly.

        Hosts behind one scale-up link, as those of a rack of 72, are one as long as its GPUs suffice.
        """
        needed = -(-self.ranks * self.pp // gpus_per_host)
        if gpus_per_host > GPUS_OF_A_HOST:
            return needed
        return max(-(-self.hosts * self.ranks // self.gpus), needed)

    def groups_of(self, group: WeightGroup) -> int:
        """Groups that share matrices of a kind, and run them for the rows of all."""
        return self.joined if group in self.joint else 1

    def ranks_of(self, group: WeightGroup) -> int:
        """Ranks that share matrices of a kind. Where rows travel to experts, whoever has the rows has the rest."""
        if self.all_to_all and group == "shared_expert":
            return 1
        return self.tp * self.groups_of(group)

    def for_draft(self, kind: str) -> Layout:
        """How a drafter lies: a target's own head as the target, any other within a group's ranks, or in fewer.

        SGLang 0.5.23 gives heads of other checkpoints the attention ranks alone (``DraftParallelLayout``).
        """
        if self.draft_tp not in (None, self.tp):
            return Layout(tp=self.draft_tp)
        return replace(self, draft_tp=None) if kind in ("mtp", "self") else Layout(tp=self.tp)


#: One GPU.
ALONE = Layout()


def can_join(blocks: Iterable[Block], joint: Iterable[WeightGroup]) -> bool:
    """Whether a model has anything that groups share: without it they are replicas, whatever they are called."""
    blocks = tuple(blocks)
    dense = any(isinstance(part, Mlp) for part in _parts(blocks))
    held = {"lm_head"} | ({"expert"} if has_experts(blocks) else set()) | ({"mlp"} if dense else set())
    return bool(held & set(joint))


def has_experts(blocks: Iterable[Block]) -> bool:
    """Whether any layer routes."""
    return any(isinstance(part, Moe) for part in _parts(tuple(blocks)))


def check_ranks(layout: Layout, name: str, blocks: tuple[Block, ...]) -> None:
    """Refuse numbers of ranks that engines refuse: heads and inner sizes, or whole experts, must split evenly.

    Args:
        layout: what ``--tp``, ``--dp`` and their like say.
        name: whose the blocks are.
        blocks: the layers that ranks share.

    Raises:
        InputError: naming ``--tp``, the first size that does not split, and the numbers that do.
    """
    parts = [(name, part) for part in _parts(blocks)]
    problem = next(_misfits(parts, layout), None)
    if problem is None:
        return
    others = (_with_tp(layout, tp) for tp in range(1, MAX_RANKS // layout.dp + 1))
    fitting = [other.tp for other in others if other is not None and not any(_misfits(parts, other))]
    hint = f"one of {', '.join(map(str, fitting))}" if fitting else "another --dp"
    raise InputError("--tp", problem, hint)


def _with_tp(layout: Layout, tp: int) -> Layout | None:
    """The same with another number of ranks, all of them dealt whole experts if all were; None where that is none."""
    groups = tp * layout.joined if layout.expert_groups == layout.ranks > 1 else layout.expert_groups
    if (tp * layout.joined) % groups:
        return None
    return replace(layout, tp=tp, expert_groups=groups, draft_tp=None)


def _misfits(parts: list[tuple[str, Mixer | Channel]], layout: Layout) -> Iterator[str]:
    """What ranks laid out so cannot share."""
    for name, part in parts:
        for what, size, sharing in _even(part, layout):
            if size % sharing:
                yield f"{sharing} ranks cannot share the {size} {what} of {name}"
        if isinstance(part, Attention) and not _shares_kv_heads(part, layout.tp):
            yield f"{layout.tp} ranks can neither share nor replicate the {part.kv_heads} KV heads of {name}"


def _parts(blocks: tuple[Block, ...]) -> Iterator[Mixer | Channel]:
    for block in blocks:
        yield from (*block.mixers, *block.channels)


def _even(part: Mixer | Channel, layout: Layout) -> list[tuple[str, int, int]]:
    """Sizes that ranks must get equal parts of, and how many share each.

    (Mamba-2's B and C groups are replicated where they are few.)
    """
    ranks, groups = layout.tp, layout.expert_groups
    if isinstance(part, Attention):
        return [("query heads", part.q_heads, ranks)]
    if isinstance(part, CompressedAttention):
        return [("heads", part.heads, ranks), ("output groups", part.o_groups, ranks)]
    if isinstance(part, GatedDeltaNet):
        return [("value heads", part.v_heads, ranks), ("key heads", part.k_heads, ranks)]
    if isinstance(part, Mamba1):
        return [("channels", part.inner, ranks)]
    if isinstance(part, Mlp):
        return [("inner channels of an MLP", part.inner, layout.ranks_of("mlp"))]
    if isinstance(part, Moe):
        routed = [
            ("experts", part.experts, groups),
            ("inner channels of an expert", part.inner, layout.ranks // groups),
        ]
        shared = ("inner channels of the shared expert", part.shared_inner, layout.ranks_of("shared_expert"))
        return [*routed, shared] if part.shared_inner else routed
    return [("heads", part.heads, ranks)]


def _shares_kv_heads(part: Attention, ranks: int) -> bool:
    """KV heads are split evenly, or each is held by equally many ranks."""
    return part.kv_heads % ranks == 0 or ranks % part.kv_heads == 0
