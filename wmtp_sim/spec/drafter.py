"""Who drafts: the matrices that a draft pass multiplies and the caches that it keeps, whatever passes a system runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from wmtp_sim.spec.base import Count, Size, Spec
from wmtp_sim.spec.model import Attention, Block, Mixer, Mlp, Model, Projection
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
        block: rows of a pass that proposes a block, as it was trained; 0 where it proposes one token.
        micro: matrices multiplied once per token of a block, one token after the other.
        of_target: whether its layers are the target's own, so that they lie in memory once.
        kept: share of its layers that a pass runs.
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
    micro: tuple[Projection, ...] = ()
    of_target: bool = False
    kept: float = Field(default=1.0, gt=0, le=1)
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
    )


def eagle3_drafter(
    target: Model,
    attention: Attention,
    inner: int,
    draft_vocab: int,
    hidden: int | None = None,
    name: str = "EAGLE-3 head",
    note: str = "",
) -> Drafter:
    """An EAGLE-3 head: three target hidden states are fused per committed token; one layer reads [embedding, hidden].

    The layer's q, k, v take 2h inputs: the second half of each is stated as a projection of its own. The head has its
    own (usually reduced) vocabulary matrix. It shares the target's embedding, unless it is narrower (``hidden``) and
    needs one of its own width. Structure: EAGLE-3, arXiv 2503.01840.
    """
    hidden = hidden or target.hidden
    kv_width = attention.kv_heads * (attention.head_dim + attention.v_head_dim)
    return Drafter(
        kind="eagle",
        name=name,
        hidden=hidden,
        vocab=draft_vocab,
        blocks=(Block(mixers=(attention,), channels=(Mlp(inner=inner),), norms=3),),
        projections=(
            Projection(name="fuse_proj", k=3 * target.hidden, n=hidden, every_step=False),
            Projection(name="qkv_embedding_half", k=hidden, n=attention.q_heads * attention.head_dim + kv_width),
        ),
        norms=1,
        own_lm_head=True,
        embedding_rows=0 if hidden == target.hidden else target.vocab,
        note=note,
    )


def eagle1_drafter(target: Model, attention: Attention, inner: int, bias: bool) -> Drafter:
    """An EAGLE-1 head: every pass fuses [embedding, hidden] to h, runs one layer, and reads the target's lm_head.

    The layer has no norm before its attention, and none follows it. Structure: EAGLE, arXiv 2401.15077.
    """
    return Drafter(
        kind="eagle",
        name=f"EAGLE-1 head of {target.name}",
        hidden=target.hidden,
        vocab=target.vocab,
        blocks=(Block(mixers=(attention,), channels=(Mlp(inner=inner),), norms=1),),
        projections=(Projection(name="fuse_proj", k=2 * target.hidden, n=target.hidden),),
        norms=0,
        extra_params=target.hidden if bias else 0,
        formats=GroupFormats(lm_head=target.precision.target.lm_head),
    )
