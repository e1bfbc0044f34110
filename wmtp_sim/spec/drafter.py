"""Who drafts: the matrices that a draft pass multiplies and the caches that it keeps, whatever passes a system runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from wmtp_sim.spec.base import Count, Size, Spec
from wmtp_sim.spec.model import Block, Mixer, Model, Projection
from wmtp_sim.spec.precision import GroupFormats

#: What a drafter is, which decides the systems that it can draft in: a head trained with the target, a head on its
#: hidden states, a model, a head that proposes a block beside the context, one whose own rows hold mask tokens, heads
#: side by side, or the target itself.
DrafterKind = Literal["mtp", "eagle", "model", "block", "parallel", "heads", "self"]


class Product(Spec):
    """A matrix of k inputs and n outputs; sizes of the target by their names."""

    k: Size | Literal["hidden", "vocab"]
    n: Size | Literal["hidden", "vocab"]


class Drafter(Spec):
    """A drafter's sizes.

    Attributes:
        kind: what it is.
        vocab: rows of the vocabulary matrix that every draft pass multiplies.
        own_lm_head: whether that matrix is a tensor of its own; else it is the target's, or the drafter's embedding.
        embedding_rows: rows of an embedding of its own; 0 looks tokens up in the target's.
        state_dtype_bytes: width of a draft model's recurrent states.
        resident_copies: separate heads that lie in memory, one per drafted token; 1 is a head reused for all.
        block: tokens of a block as it was trained, the last committed one (its anchor) and all drafted ones; 0 where it
            proposes one token, or its config states no length.
        samples_anchor: whether the anchor's row proposes a token, too, so that a pass has one row less than ``block``.
        micro: matrices multiplied once per token of a block, one token after the other.
        of_target: whether its layers are the target's own, so that they lie in memory once.
        kept: share of its layers that a pass runs.
        max_positions: up to which it was built, as its own config states; 0 where nothing is stated.
        note: what was assumed about it, for people.
    """

    kind: DrafterKind
    name: str
    hidden: Size
    vocab: Size
    blocks: tuple[Block, ...]
    projections: tuple[Projection, ...] = ()
    norms: Count = 1
    extra_params: Count = 0
    formats: GroupFormats = GroupFormats()
    state_dtype_bytes: Literal[2, 4] = 4
    own_lm_head: bool = False
    embedding_rows: Count = 0
    resident_copies: Size = 1
    shares_index_across_steps: bool = False
    block: Count = 0
    samples_anchor: bool = False
    micro: tuple[Projection, ...] = ()
    of_target: bool = False
    kept: float = Field(default=1.0, gt=0, le=1)
    max_positions: Count = 0
    note: str = ""

    @property
    def windowable(self) -> bool:
        """Whether a draft window changes anything: some layer attends the whole context."""
        return any(getattr(m, "window", None) is None and m.kind in ("attention", "mla") for m in self.mixers)

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        return tuple(mixer for block in self.blocks for mixer in block.mixers)


def mtp_drafter(model: Model) -> Drafter | None:
    """The target's own trained head, or None when the checkpoint has none."""
    if model.mtp is None:
        return None
    head, hidden = model.mtp, model.hidden
    return Drafter(
        kind="mtp",
        name=f"{model.name} MTP head",
        hidden=hidden,
        vocab=model.vocab,
        blocks=head.blocks,
        projections=head.projections(hidden),
        norms=head.norms,
        extra_params=head.extra_params,
        formats=model.precision.head,
        own_lm_head=head.own_lm_head,
        resident_copies=head.heads,
        shares_index_across_steps=head.shares_index_across_steps,
    )


def model_drafter(draft: Model) -> Drafter:
    """A small independent model: its own layers, cache and vocabulary matrices."""
    return Drafter(
        kind="model",
        name=draft.name,
        hidden=draft.hidden,
        vocab=draft.vocab,
        blocks=draft.blocks,
        norms=draft.final_norms,
        extra_params=draft.extra_params,
        formats=draft.precision.target,
        state_dtype_bytes=draft.state_dtype_bytes,
        own_lm_head=not draft.tied_embeddings,
        embedding_rows=draft.vocab,
        max_positions=draft.max_context if draft.rope else 0,
    )
