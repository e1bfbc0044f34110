"""A model as the cost model sees it: the mixers and MLPs of its layers, with every size that moves bytes or FLOPs.

A model is a list of *blocks*. A block is one residual layer (or several identical ones: ``count``) made of token
mixers (attention or recurrence) and channel mixers (MLP or MoE). Parallel mixers, as in Falcon-H1, and doubled ones,
as in LongCat, are simply several entries. Order between blocks does not matter to a cost, so equal layers are merged.

Sizes are elements, never bytes. Which bytes an element takes is `spec.precision`'s business, and how many matrices
these sizes make is `work.weights`'s.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from wmtp_sim.spec.base import Count, Size, Spec, Width
from wmtp_sim.spec.precision import Precision

#: Parameters of whole matrices, which a `Count` may be too small for.
ParamCount = Annotated[int, Field(ge=0, le=2**40, strict=True)]

# --- token mixers ----------------------------------------------------------------------------------------------


class BlockSparseIndex(Spec):
    """MiniMax-M3's block selection: index heads score every key block, the best blocks are attended."""

    heads: Size
    head_dim: Size
    top_blocks: Size
    block_tokens: Size


class Attention(Spec):
    """Softmax attention with a K/V cache per KV head (MHA, GQA, MQA), full or sliding.

    ``window`` bounds the attended tokens (the model's own sliding window, not a draft policy). ``value_from_key`` is
    Gemma-4's global layer: no v_proj, yet K and V are both cached.
    """

    kind: Literal["attention"] = "attention"
    q_heads: Size
    kv_heads: Size
    head_dim: Size
    v_head_dim: Size
    window: Size | None = None
    output_gate: Literal["none", "elementwise", "per_head"] = "none"
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: Literal["none", "per_head", "full_width"] = "none"
    sink_logits: bool = False
    value_from_key: bool = False
    sparse: BlockSparseIndex | None = None

    @model_validator(mode="after")
    def _heads_divide(self) -> Attention:
        if self.q_heads % self.kv_heads:
            raise ValueError(f"{self.q_heads} query heads are not a multiple of {self.kv_heads} KV heads")
        return self


class SparseIndexer(Spec):
    """DeepSeek sparse attention's lightning indexer: scores every cached index key, keeps ``top_k`` tokens.

    ``shared`` layers reuse another layer's selection: they hold no indexer weights, no index keys, and scan nothing.
    """

    heads: Size
    head_dim: Size
    top_k: Size
    shared: bool = False


class LatentAttention(Spec):
    """Multi-head latent attention (MLA): one compressed latent per token serves all heads, decoded in absorbed form."""

    kind: Literal["mla"] = "mla"
    heads: Size
    q_lora_rank: Size | None
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    output_gate: bool = False
    indexer: SparseIndexer | None = None

    @property
    def latent_dim(self) -> int:
        """Cached elements per token: the latent and the shared rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim


class CompressedAttention(Spec):
    """DeepSeek-V4 attention: a raw sliding window in every layer, plus a compressed copy of the far context.

    ``ratio`` 0 keeps the window only, ``ratio`` with an indexer is sparse over compressed keys (CSA), without one it
    is dense over them (HCA). K and V are one shared head of ``head_dim``.
    """

    kind: Literal["compressed"] = "compressed"
    heads: Size
    head_dim: Size
    rope_dim: Size
    q_lora_rank: Size
    o_groups: Size
    o_lora_rank: Size
    window: Size
    ratio: Count
    indexer: SparseIndexer | None = None


class GatedDeltaNet(Spec):
    """Gated DeltaNet (Qwen3-Next, Qwen3.5/3.6): a recurrent [v_heads, k_dim, v_dim] state per sequence."""

    kind: Literal["gdn"] = "gdn"
    k_heads: Size
    v_heads: Size
    k_dim: Size
    v_dim: Size
    conv_kernel: Size


class KimiDeltaAttention(Spec):
    """Kimi delta attention: [heads, head_dim, head_dim] state, per-channel decay, three short convolutions.

    ``decay_entries`` is how many entries the checkpoint's A_log has: ``heads``, or more where it is padded (K3).
    """

    kind: Literal["kda"] = "kda"
    heads: Size
    head_dim: Size
    conv_kernel: Size
    full_rank_gate: bool = False
    decay_entries: Size


class Mamba2(Spec):
    """Mamba-2 / SSD: [heads, head_dim, state_dim] state and one grouped short convolution."""

    kind: Literal["mamba2"] = "mamba2"
    heads: Size
    head_dim: Size
    groups: Size
    state_dim: Size
    conv_kernel: Size
    conv_bias: bool = True
    gated_norm: bool = True

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        return self.inner + 2 * self.groups * self.state_dim


class Mamba1(Spec):
    """Mamba-1 as in Jamba: [inner, state_dim] state, low-rank time step, three small norms."""

    kind: Literal["mamba1"] = "mamba1"
    inner: Size
    state_dim: Size
    dt_rank: Size
    conv_kernel: Size
    conv_bias: bool = True


class LightningAttention(Spec):
    """Lightning linear attention (Ling/Ring 2.5+): [heads, head_dim, head_dim] state, fixed decay, no convolution."""

    kind: Literal["lightning"] = "lightning"
    heads: Size
    head_dim: Size


Mixer = Annotated[
    Attention
    | LatentAttention
    | CompressedAttention
    | GatedDeltaNet
    | KimiDeltaAttention
    | Mamba2
    | Mamba1
    | LightningAttention,
    Field(discriminator="kind"),
]

# --- channel mixers --------------------------------------------------------------------------------------------


class Mlp(Spec):
    """A dense MLP. ``gated`` has gate, up and down (SwiGLU, GeGLU); otherwise up and down (relu squared)."""

    kind: Literal["mlp"] = "mlp"
    inner: Size
    gated: bool = True


class Moe(Spec):
    """A routed mixture of experts with an optional always-on shared expert.

    ``latent``: experts work in a down-projected space, entered and left once per layer (Nemotron-3 Super, Kimi-K3).
    ``zero_experts`` are identity experts that the router may pick (LongCat): they cost no bytes.
    ``hash_vocab`` is the number of token ids with a fixed token-to-expert table instead of a learned choice.
    """

    kind: Literal["moe"] = "moe"
    experts: Size
    top_k: Size
    inner: Size
    gated: bool = True
    shared_inner: Count = 0
    shared_gate: bool = False
    shared_gated_mlp: bool | None = None
    latent: Size | None = None
    latent_norm: bool = False
    correction_bias: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    zero_experts: Count = 0
    hash_vocab: Count = 0
    extra_params: Count = 0

    @model_validator(mode="after")
    def _top_k_fits(self) -> Moe:
        if self.top_k > self.experts + self.zero_experts:
            raise ValueError(f"top_k {self.top_k} exceeds the {self.experts + self.zero_experts} experts")
        return self


Channel = Annotated[Mlp | Moe, Field(discriminator="kind")]

# --- layers, heads, models -------------------------------------------------------------------------------------


class Block(Spec):
    """``count`` identical residual layers. ``norms`` is how many hidden-wide norm vectors each has.

    ``residual_streams`` above 1 are DeepSeek-V4's hyper-connections: that many hidden-wide streams run through the
    model, and before every mixer and channel mixer one small matrix over all of them says how they are mixed.
    """

    count: Size = 1
    mixers: tuple[Mixer, ...] = ()
    channels: tuple[Channel, ...] = ()
    norms: Count
    residual_streams: Size = 1
    extra_params: Count = 0


class Projection(Spec):
    """A dense matrix that a draft pass runs before its layers. ``every_step`` False: in the wide pass only."""

    name: str
    k: Width
    n: Width
    every_step: bool = True

    @property
    def params(self) -> int:
        return self.k * self.n


class MtpHead(Spec):
    """A trained multi-token-prediction (NEXTN) head that ships with the target.

    ``heads`` separate heads with the same shape each have ``blocks``; one head is reused for every drafted token.
    ``projection`` joins the next token's embedding and the target's hidden state: ``concat`` is one 2h->h matrix,
    ``split`` one h->h matrix each (DeepSeek-V4). ``norms`` counts hidden-wide norm vectors outside the blocks.
    ``own_lm_head`` heads read a vocabulary matrix of their own (Step-3.5). ``copied_params`` are embedding and lm_head
    copies that the checkpoint carries although engines share the target's.
    """

    blocks: tuple[Block, ...]
    heads: Size = 1
    projection: Literal["concat", "split"] = "concat"
    norms: Count = 3
    extra_params: Count = 0
    own_lm_head: bool = False
    copied_params: ParamCount = 0
    shares_index_across_steps: bool = False

    def projections(self, hidden: int) -> tuple[Projection, ...]:
        """The matrices that join the next token's embedding and the target's hidden state, in a model of that width."""
        if self.projection == "split":
            return tuple(Projection(name=name, k=hidden, n=hidden) for name in ("e_proj", "h_proj"))
        return (Projection(name="mtp_proj", k=2 * hidden, n=hidden),)


class Model(Spec):
    """A target (or an independent draft) model.

    ``max_context`` is the config's position limit, ``rope`` says whether positions are encoded at all (NoPE models run
    beyond it), ``mtp`` is None when there is no trained head, and ``mtp_note`` then says why in a sentence.
    ``state_dtype_bytes`` is the width of recurrent states. ``vision_params`` lie in memory beside the text model, but
    no decode step reads them.
    """

    name: str
    family: str
    hidden: Size
    vocab: Size
    blocks: tuple[Block, ...]
    final_norms: Count = 1
    extra_params: Count = 0
    tied_embeddings: bool = False
    max_context: Size
    rope: bool = True
    state_dtype_bytes: Literal[2, 4] = 4
    mtp: MtpHead | None = None
    mtp_note: str = ""
    vision_params: ParamCount = 0
    precision: Precision

    @property
    def layers(self) -> int:
        """Residual layers (each of Nemotron's one-mixer blocks counts as one)."""
        return sum(block.count for block in self.blocks)


def has_sinks(blocks: tuple[Block, ...]) -> bool:
    """Whether any layer's softmax has sink logits, which not every attention kernel knows."""
    return any(isinstance(mixer, Attention) and mixer.sink_logits for block in blocks for mixer in block.mixers)


def has_attention(blocks: tuple[Block, ...]) -> bool:
    """Whether any layer is grouped-query attention, which an engine's attention backends serve."""
    return any(isinstance(mixer, Attention) for block in blocks for mixer in block.mixers)
