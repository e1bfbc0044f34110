"""Which numbers of ranks a model can be split over, its experts in parts, whole, or both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
from wmtp_sim.spec.workload import MAX_RANKS


def check_ranks(ranks: int, layers: Iterable[tuple[str, tuple[Block, ...]]], expert_groups: int | None = None) -> None:
    """Refuse a number of ranks that engines refuse: heads and inner sizes, or whole experts, must split evenly.

    Args:
        ranks: what ``--tp`` says.
        layers: the blocks that ranks share, by the name of whose they are.
        expert_groups: groups of ranks, a divisor of them, that whole experts are dealt to; None where
            ``--expert-parallel`` was not asked for.

    Raises:
        InputError: naming ``--tp``, the first size that does not split, and the numbers that do; or
            ``--expert-parallel`` where nobody has experts.
    """
    parts = [(name, part) for name, blocks in layers for part in _parts(blocks)]
    if expert_groups is not None and not any(isinstance(part, Moe) for _, part in parts):
        raise InputError("--expert-parallel", f"{parts[0][0]} has no experts", "drop the flag")
    groups = expert_groups or 1
    problem = next(_misfits(parts, ranks, groups), None)
    if problem is None:
        return
    numbers = range(groups, MAX_RANKS + 1, groups) if groups < ranks else range(1, MAX_RANKS + 1)
    fitting = [n for n in numbers if not any(_misfits(parts, n, groups if groups < ranks else n))]
    raise InputError("--tp", problem, f"one of {', '.join(map(str, fitting))}")


def _misfits(parts: list[tuple[str, Mixer | Channel]], ranks: int, groups: int) -> Iterator[str]:
    """What so many ranks in so many groups cannot share."""
    for name, part in parts:
        for what, size, sharing in _even(part, ranks, groups):
            if size % sharing:
                yield f"{sharing} ranks cannot share the {size} {what} of {name}"
        if isinstance(part, Attention) and not _shares_kv_heads(part, ranks):
            yield f"{ranks} ranks can neither share nor replicate the {part.kv_heads} KV heads of {name}"


def _parts(blocks: tuple[Block, ...]) -> Iterator[Mixer | Channel]:
    for block in blocks:
        yield from (*block.mixers, *block.channels)


def _even(part: Mixer | Channel, ranks: int, groups: int) -> list[tuple[str, int, int]]:
    """Sizes that ranks must get equal parts of, and how many share each.

    (Mamba-2's B and C groups are replicated where they are few.)
    """
    if isinstance(part, Attention):
        return [("query heads", part.q_heads, ranks)]
    if isinstance(part, CompressedAttention):
        return [("heads", part.heads, ranks), ("output groups", part.o_groups, ranks)]
    if isinstance(part, GatedDeltaNet):
        return [("value heads", part.v_heads, ranks), ("key heads", part.k_heads, ranks)]
    if isinstance(part, Mamba1):
        return [("channels", part.inner, ranks)]
    if isinstance(part, Mlp):
        return [("inner channels of an MLP", part.inner, ranks)]
    if isinstance(part, Moe):
        routed = [("experts", part.experts, groups), ("inner channels of an expert", part.inner, ranks // groups)]
        shared = [("inner channels of the shared expert", part.shared_inner, ranks)] if part.shared_inner else []
        return routed + shared
    return [("heads", part.heads, ranks)]


def _shares_kv_heads(part: Attention, ranks: int) -> bool:
    """KV heads are split evenly, or each is held by equally many ranks."""
    return part.kv_heads % ranks == 0 or ranks % part.kv_heads == 0
