"""Which numbers of ranks a model can be split over, its experts in parts or whole."""

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


def check_ranks(ranks: int, layers: Iterable[tuple[str, tuple[Block, ...]]], whole_experts: bool = False) -> None:
    """Refuse a number of ranks that engines refuse: heads and inner sizes, or whole experts, must split evenly.

    Args:
        ranks: what ``--tp`` says.
        layers: the blocks that ranks share, by the name of whose they are.
        whole_experts: whether a rank holds whole experts instead of a part of each.

    Raises:
        InputError: naming ``--tp``, the first size that does not split, and the numbers that do; or
            ``--expert-parallel`` where nobody has experts.
    """
    parts = [(name, part) for name, blocks in layers for part in _parts(blocks)]
    if whole_experts and not any(isinstance(part, Moe) for _, part in parts):
        raise InputError("--expert-parallel", f"{parts[0][0]} has no experts", "drop the flag")
    for name, part in parts:
        for what, size in _even(part, whole_experts):
            if size % ranks:
                problem = f"{ranks} ranks cannot share the {size} {what} of {name}"
                raise InputError("--tp", problem, _hint(parts, whole_experts))
        if isinstance(part, Attention) and not _shares_kv_heads(part, ranks):
            problem = f"{ranks} ranks can neither share nor replicate the {part.kv_heads} KV heads of {name}"
            raise InputError("--tp", problem, _hint(parts, whole_experts))


def _hint(parts: list[tuple[str, Mixer | Channel]], whole_experts: bool) -> str:
    sizes = [size for _, part in parts for _, size in _even(part, whole_experts)]
    fitting = [
        str(ranks)
        for ranks in range(1, min(sizes) + 1)
        if all(_shares_kv_heads(part, ranks) for _, part in parts) and not any(size % ranks for size in sizes)
    ]
    return f"one of {', '.join(fitting)}"


def _parts(blocks: tuple[Block, ...]) -> Iterator[Mixer | Channel]:
    for block in blocks:
        yield from (*block.mixers, *block.channels)


def _even(part: Mixer | Channel, whole_experts: bool) -> list[tuple[str, int]]:
    """Sizes that every rank must get an equal part of. (Mamba-2's B and C groups are replicated where they are few.)"""
    if isinstance(part, Attention):
        return [("query heads", part.q_heads)]
    if isinstance(part, CompressedAttention):
        return [("heads", part.heads), ("output groups", part.o_groups)]
    if isinstance(part, GatedDeltaNet):
        return [("value heads", part.v_heads), ("key heads", part.k_heads)]
    if isinstance(part, Mamba1):
        return [("channels", part.inner)]
    if isinstance(part, Mlp):
        return [("inner channels of an MLP", part.inner)]
    if isinstance(part, Moe):
        shared = [("inner channels of the shared expert", part.shared_inner)] if part.shared_inner else []
        routed = ("experts", part.experts) if whole_experts else ("inner channels of an expert", part.inner)
        return [routed, *shared]
    return [("heads", part.heads)]


def _shares_kv_heads(part: Mixer | Channel, ranks: int) -> bool:
    """KV heads are split evenly, or each is held by equally many ranks."""
    return not isinstance(part, Attention) or part.kv_heads % ranks == 0 or ranks % part.kv_heads == 0
