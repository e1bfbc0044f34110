"""What every importer returns: the layers and limits that a family's config implies."""

from __future__ import annotations

from dataclasses import dataclass

from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Block, MtpHead


@dataclass(frozen=True)
class Architecture:
    """A family importer's answer; fields as in `spec.model.Model`.

    ``hidden``, ``vocab`` and ``tied_embeddings`` are read by the caller from their usual fields unless set here
    (Gemma-3 publishes a config whose vocabulary and tying come from class defaults).
    """

    blocks: tuple[Block, ...]
    max_context: int
    final_norms: int = 1
    extra_params: int = 0
    rope: bool = True
    state_dtype_bytes: int = 4
    mtp: MtpHead | None = None
    mtp_note: str = "the config names no multi-token-prediction head"
    vision_params: int = 0
    vocab: int | None = None
    tied_embeddings: bool | None = None


def merged(blocks: list[Block]) -> tuple[Block, ...]:
    """Equal layers merged into one `Block` with their count, in order of first appearance."""
    counts: dict[Block, int] = {}
    for block in blocks:
        single = block.model_copy(update={"count": 1})
        counts[single] = counts.get(single, 0) + block.count
    return tuple(block.model_copy(update={"count": count}) for block, count in counts.items())


def max_context(config: Fields) -> int:
    """The position limit of the config."""
    return config.size("max_position_embeddings", "model_max_length")
