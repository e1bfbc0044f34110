"""Which matrices a layer holds. One function per mixer; each reads like that family's row of published shapes.

Matrices are listed as engines run them: projections of one input that engines fuse are one matrix here, so that the
number of matrices is also the number of GEMM launches. Everything that is not a matrix (norms, biases, convolutions,
decay parameters) is counted in ``small`` elements. Parameter totals are sums over these lists, so a model whose total
equals its checkpoint's to the last parameter has every matrix right.

Shapes follow transformers 5.24 and sglang 0.5.23 model code; totals are checked against published safetensors totals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from wmtp_sim.spec.drafter import Product
from wmtp_sim.spec.model import (
    Attention,
    Block,
    Channel,
    CompressedAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    Mixer,
    Mlp,
    Model,
    Moe,
    Projection,
    SparseIndexer,
)
from wmtp_sim.spec.precision import WeightGroup


@dataclass(frozen=True)
class Matrix:
    """``copies`` weight matrices of ``k`` inputs and ``n`` outputs, run as one (grouped or batched) product.

    ``bias``: every output has a bias element, read with its copy (gpt-oss experts). Other biases are ``small``.
    ``stiff`` outputs are split over at most ``ways`` tensor-parallel ranks, then replicated: K and V over KV heads,
    latent down-projections not at all (SGLang's ReplicatedLinear).
    """

    name: str
    k: int
    n: int
    group: WeightGroup
    copies: int = 1
    bias: bool = False
    stiff: int = 0
    ways: int = 1

    def rank_share(self, tp: int) -> float:
        """The part of the matrix that one of ``tp`` ranks holds and multiplies."""
        return ((self.n - self.stiff) / tp + self.stiff / min(tp, self.ways)) / self.n

    @property
    def copy_params(self) -> int:
        """Parameters of one copy."""
        return (self.k + int(self.bias)) * self.n

    @property
    def params(self) -> int:
        return self.copy_params * self.copies


@dataclass(frozen=True)
class Weights:
    """The matrices of one mixer or channel mixer, and how many elements it holds besides.

    ``experts`` are the routed experts' matrices (``copies`` = number of experts); a step reads only those it touches.
    ``tables`` are looked up by row, never streamed (hash routing).
    """

    matrices: tuple[Matrix, ...]
    small: int = 0
    experts: tuple[Matrix, ...] = field(default=())
    tables: int = 0

    @property
    def params(self) -> int:
        return sum(m.params for m in (*self.matrices, *self.experts)) + self.small + self.tables

    def active_params(self, top_k: int) -> int:
        """Parameters that one token touches: all but the experts it was not routed to."""
        touched = sum(m.copy_params * top_k for m in self.experts)
        return sum(m.params for m in self.matrices) + self.small + touched


def attention(a: Attention, hidden: int) -> Weights:
    """GQA: q (doubled by an elementwise output gate), k, v fused; o. Biases and q/k norms as the family has them.

    A gate of one value per head (Step-3.5) and block-sparse index projections (MiniMax-M3) are matrices of their own.
    """
    q, kv, v = a.q_heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * a.v_head_dim
    out = a.q_heads * a.v_head_dim
    gate = out if a.output_gate == "elementwise" else 0
    cached = kv + (0 if a.value_from_key else v)
    qkv_width = q + cached
    matrices = [
        Matrix("qkv_proj", hidden, qkv_width + gate, "attention", stiff=cached, ways=a.kv_heads),
        Matrix("o_proj", out, hidden, "attention_out"),
    ]
    if a.output_gate == "per_head":
        matrices.append(Matrix("g_proj", hidden, a.q_heads, "attention"))
    small = qkv_width if a.qkv_bias else 0
    small += hidden if a.o_bias else 0
    small += {"none": 0, "per_head": 2 * a.head_dim, "full_width": q + kv}[a.qk_norm]
    small += a.q_heads if a.sink_logits else 0
    if a.sparse:
        index = (a.sparse.heads + 1) * a.sparse.head_dim
        matrices.append(Matrix("index_proj", hidden, index, "attention", stiff=index))
        small += 2 * a.sparse.head_dim
    return Weights(tuple(matrices), small)


def latent_attention(a: LatentAttention, hidden: int) -> Weights:
    """MLA: low-rank q (or full), latent kv, an output gate where present, a sparse-attention indexer where present.

    At decode kv_b is split and folded into q and o (the absorbed form), but its weights are read all the same.
    """
    qk = a.qk_nope_head_dim + a.qk_rope_head_dim
    down = [
        Matrix("kv_a_proj", hidden, a.latent_dim, "attention", stiff=a.latent_dim),
        Matrix("q_proj", hidden, a.heads * qk, "attention"),
    ]
    small = a.kv_lora_rank
    if a.q_lora_rank:
        latents = a.latent_dim + a.q_lora_rank
        down = [
            Matrix("qkv_a_proj", hidden, latents, "attention", stiff=latents),
            Matrix("q_b_proj", a.q_lora_rank, a.heads * qk, "attention"),
        ]
        small += a.q_lora_rank
    matrices = [
        *down,
        Matrix("k_up", a.qk_nope_head_dim, a.kv_lora_rank, "attention", copies=a.heads),
        Matrix("v_up", a.kv_lora_rank, a.v_head_dim, "attention", copies=a.heads),
        Matrix("o_proj", a.heads * a.v_head_dim, hidden, "attention_out"),
    ]
    if a.output_gate:
        matrices.append(Matrix("g_proj", hidden, a.heads * a.v_head_dim, "attention"))
    index_matrices, index_small = sparse_indexer(a.indexer, hidden, a.q_lora_rank)
    return Weights((*matrices, *index_matrices), small + index_small)


def sparse_indexer(
    indexer: SparseIndexer | None, hidden: int, q_lora_rank: int | None
) -> tuple[tuple[Matrix, ...], int]:
    """DSA indexer: queries from the q latent, one key, per-head weights, a LayerNorm with bias on the key.

    Key and head weights are one matrix that SGLang never quantises, hence not of the attention group.
    """
    if indexer is None or indexer.shared:
        return (), 0
    queries, keys = indexer.heads * indexer.head_dim, indexer.head_dim + indexer.heads
    matrices = (
        Matrix("index_q_proj", q_lora_rank or hidden, queries, "attention", stiff=queries),
        Matrix("index_k_weights_proj", hidden, keys, "small", stiff=keys),
    )
    return matrices, 2 * indexer.head_dim


def compressed_attention(a: CompressedAttention, hidden: int) -> Weights:
    """DeepSeek-V4: low-rank q, one shared K=V head, grouped low-rank output; a compressor and an indexer where present.

    Norms of the q latent and of the key, one sink logit per head.
    """
    width = a.heads * a.head_dim
    matrices = [
        Matrix("qkv_a_proj", hidden, a.q_lora_rank + a.head_dim, "attention", stiff=a.q_lora_rank + a.head_dim),
        Matrix("q_b_proj", a.q_lora_rank, width, "attention"),
        Matrix("o_a_proj", width // a.o_groups, a.o_lora_rank, "attention_out", copies=a.o_groups),
        Matrix("o_b_proj", a.o_groups * a.o_lora_rank, hidden, "attention_out"),
    ]
    small = a.q_lora_rank + a.head_dim + a.heads
    if a.ratio:
        matrix, vectors = _compressor("compressor", a, a.head_dim, hidden)
        matrices.append(matrix)
        small += vectors
    if a.indexer:
        index_width = a.indexer.heads * a.indexer.head_dim
        matrix, vectors = _compressor("index_compressor", a, a.indexer.head_dim, hidden)
        matrices.append(Matrix("index_q_proj", a.q_lora_rank, index_width, "attention"))
        matrices.append(Matrix("index_weights_proj", hidden, a.indexer.heads, "small"))
        matrices.append(matrix)
        small += vectors
    return Weights(tuple(matrices), small)


def _compressor(name: str, a: CompressedAttention, head_dim: int, hidden: int) -> tuple[Matrix, int]:
    """What pools ``ratio`` tokens into one key: values and gates fused, a gate bias per position, a norm.

    Sparse layers (those with an indexer) pool two overlapping windows, so both are twice as wide. Never quantised.
    """
    width = (2 if a.indexer else 1) * head_dim
    return Matrix(f"{name}_kv_gate_proj", hidden, 2 * width, "small"), a.ratio * width + head_dim


def gated_delta_net(a: GatedDeltaNet, hidden: int) -> Weights:
    """GDN: q, k, v, z fused; b, a fused; depthwise conv over q, k, v; gated norm of v_dim."""
    key, value = a.k_heads * a.k_dim, a.v_heads * a.v_dim
    matrices = (
        Matrix("in_proj_qkvz", hidden, 2 * key + 2 * value, "linear_mixer"),
        Matrix("in_proj_ba", hidden, 2 * a.v_heads, "linear_mixer"),
        Matrix("out_proj", value, hidden, "linear_mixer"),
    )
    return Weights(matrices, (2 * key + value) * a.conv_kernel + 2 * a.v_heads + a.v_dim)


def kimi_delta_attention(a: KimiDeltaAttention, hidden: int) -> Weights:
    """KDA: q, k, v, beta, a low-rank decay gate, an output gate (low-rank or full), o; three convolutions.

    Fused as SGLang does: with a full-rank gate it joins q, k, v; otherwise all that reads the hidden state is one
    matrix, and the two second factors are one batched product. Then dt_bias per channel, A_log, the output norm.
    """
    width = a.heads * a.head_dim
    if a.full_rank_gate:
        inputs = [
            Matrix("qkvg_proj", hidden, 4 * width, "linear_mixer"),
            Matrix("f_a_b_proj", hidden, a.head_dim + a.heads, "linear_mixer"),
            Matrix("f_b_proj", a.head_dim, width, "linear_mixer"),
        ]
    else:
        inputs = [
            Matrix("qkvb_fg_a_proj", hidden, 3 * width + a.heads + 2 * a.head_dim, "linear_mixer"),
            Matrix("fg_b_proj", a.head_dim, width, "linear_mixer", copies=2),
        ]
    matrices = (*inputs, Matrix("o_proj", width, hidden, "linear_mixer"))
    return Weights(matrices, 3 * width * a.conv_kernel + width + a.decay_entries + a.head_dim)


def mamba2(a: Mamba2, hidden: int) -> Weights:
    """Mamba-2: one input projection (z, xBC, dt), a convolution over xBC, A, D, dt_bias per head, gated norm."""
    matrices = (
        Matrix("in_proj", hidden, a.inner + a.conv_dim + a.heads, "linear_mixer"),
        Matrix("out_proj", a.inner, hidden, "linear_mixer"),
    )
    conv = a.conv_dim * (a.conv_kernel + (1 if a.conv_bias else 0))
    return Weights(matrices, conv + 3 * a.heads + (a.inner if a.gated_norm else 0))


def mamba1(a: Mamba1, hidden: int) -> Weights:
    """Mamba-1 (Jamba): in_proj, x_proj, dt_proj with bias, A_log, D, norms of dt, B and C."""
    matrices = (
        Matrix("in_proj", hidden, 2 * a.inner, "linear_mixer"),
        Matrix("x_proj", a.inner, a.dt_rank + 2 * a.state_dim, "linear_mixer"),
        Matrix("dt_proj", a.dt_rank, a.inner, "linear_mixer"),
        Matrix("out_proj", a.inner, hidden, "linear_mixer"),
    )
    conv = a.inner * (a.conv_kernel + (1 if a.conv_bias else 0))
    decay = a.inner * a.state_dim + a.inner
    return Weights(matrices, conv + a.inner + decay + a.dt_rank + 2 * a.state_dim)


def lightning_attention(a: LightningAttention, hidden: int) -> Weights:
    """Lightning: q, k, v fused; output gate; dense; q/k norms and a group norm; the decay has no weights."""
    width = a.heads * a.head_dim
    matrices = (
        Matrix("qkv_proj", hidden, 3 * width, "linear_mixer"),
        Matrix("g_proj", hidden, width, "linear_mixer"),
        Matrix("dense", width, hidden, "linear_mixer"),
    )
    return Weights(matrices, 2 * a.head_dim + width)


def mlp(m: Mlp, hidden: int) -> Weights:
    """SwiGLU: gate and up fused, down. Ungated: up, down."""
    return Weights(
        (
            Matrix("gate_up_proj" if m.gated else "up_proj", hidden, (2 if m.gated else 1) * m.inner, "mlp"),
            Matrix("down_proj", m.inner, hidden, "mlp"),
        )
    )


def moe(m: Moe, hidden: int) -> Weights:
    """Router, experts (in a latent space where the family has one), shared expert and its gate."""
    width = m.latent or hidden
    up = (2 if m.gated else 1) * m.inner
    choices = m.experts + m.zero_experts
    matrices = [Matrix("router", hidden, choices, "router", stiff=choices)]
    small = (m.experts + m.zero_experts) * (int(m.correction_bias) + int(m.router_bias))
    if m.latent:
        matrices.append(Matrix("latent_down_proj", hidden, m.latent, "mlp"))
        matrices.append(Matrix("latent_up_proj", m.latent, hidden, "mlp"))
        small += m.latent if m.latent_norm else 0
    if m.shared_inner:
        gated = m.gated if m.shared_gated_mlp is None else m.shared_gated_mlp
        shared_up = (2 if gated else 1) * m.shared_inner
        matrices.append(Matrix("shared_up_proj", hidden, shared_up, "shared_expert"))
        matrices.append(Matrix("shared_down_proj", m.shared_inner, hidden, "shared_expert"))
    if m.shared_gate:
        matrices.append(Matrix("shared_gate", hidden, 1, "shared_expert"))
    experts = (
        Matrix("expert_up_proj", width, up, "expert", copies=m.experts, bias=m.expert_bias),
        Matrix("expert_down_proj", m.inner, width, "expert", copies=m.experts, bias=m.expert_bias),
    )
    return Weights(tuple(matrices), small + m.extra_params, experts, tables=m.hash_vocab * m.top_k)


_MIXERS: dict[type, Callable[..., Weights]] = {
    Attention: attention,
    LatentAttention: latent_attention,
    CompressedAttention: compressed_attention,
    GatedDeltaNet: gated_delta_net,
    KimiDeltaAttention: kimi_delta_attention,
    Mamba2: mamba2,
    Mamba1: mamba1,
    LightningAttention: lightning_attention,
    Mlp: mlp,
    Moe: moe,
}


def weights_of(part: Mixer | Channel, hidden: int) -> Weights:
    """The weights of one token or channel mixer in a model of width ``hidden``."""
    return _MIXERS[type(part)](part, hidden)


def residual_mixing(block: Block, hidden: int) -> Weights:
    """Hyper-connections of one layer of ``block``: per sublayer, one matrix from all residual streams to their mix.

    The mix is a weight per stream going in, one per stream going out, and a streams x streams matrix between; each
    has a bias, and each of the three kinds one scale. Nothing for a plain residual.
    """
    if block.residual_streams == 1:
        return Weights(())
    mix = (2 + block.residual_streams) * block.residual_streams
    sublayers = len(block.mixers) + len(block.channels)
    matrix = Matrix("hyper_connection", block.residual_streams * hidden, mix, "small", stiff=mix)
    return Weights((matrix,) * sublayers, sublayers * (mix + 3))


def product_sizes(product: Product, model: Model) -> tuple[int, int]:
    """Inputs and outputs of a matrix whose sizes may be the target's."""
    named = {"hidden": model.hidden, "vocab": model.vocab}
    k, n = (named[size] if isinstance(size, str) else size for size in (product.k, product.n))
    return k, n


def projection_matrix(projection: Projection) -> Matrix:
    """A draft head's projection: engines build it unquantised, whole on every rank."""
    return Matrix(projection.name, projection.k, projection.n, "small", stiff=projection.n)


# --- totals ----------------------------------------------------------------------------------------------------


def block_params(block: Block, hidden: int) -> int:
    """Parameters of ``block.count`` layers."""
    parts = sum(weights_of(p, hidden).params for p in (*block.mixers, *block.channels))
    parts += residual_mixing(block, hidden).params
    return block.count * (parts + block.norms * hidden + block.extra_params)


def block_active_params(block: Block, hidden: int) -> int:
    """Parameters that one token touches in ``block.count`` layers."""
    total = block.norms * hidden + block.extra_params + residual_mixing(block, hidden).params
    for part in (*block.mixers, *block.channels):
        total += weights_of(part, hidden).active_params(part.top_k if isinstance(part, Moe) else 0)
    return block.count * total


def target_params(model: Model) -> int:
    """Parameters of the text model: embedding, layers, final norms, lm_head (once when tied)."""
    vocabulary = model.vocab * model.hidden * (1 if model.tied_embeddings else 2)
    layers = sum(block_params(block, model.hidden) for block in model.blocks)
    return vocabulary + layers + model.final_norms * model.hidden + model.extra_params


def active_params(model: Model) -> int:
    """Parameters that one token touches in the text model, lm_head included, embedding row not."""
    layers = sum(block_active_params(block, model.hidden) for block in model.blocks)
    return model.vocab * model.hidden + layers + model.final_norms * model.hidden + model.extra_params


def mtp_params(model: Model) -> int:
    """Parameters of one trained head: projection, norms, its layer, without vocabulary matrices. 0 without a head."""
    if model.mtp is None:
        return 0
    head, hidden = model.mtp, model.hidden
    layers = sum(block_params(block, hidden) for block in head.blocks)
    joined = sum(projection.params for projection in head.projections(hidden))
    return joined + layers + head.norms * hidden + head.extra_params


def mtp_active_params(model: Model) -> int:
    """Parameters that one drafted token touches in the head, lm_head not included."""
    if model.mtp is None:
        return 0
    head, hidden = model.mtp, model.hidden
    layers = sum(block_active_params(block, hidden) for block in head.blocks)
    joined = sum(projection.params for projection in head.projections(hidden))
    return joined + layers + head.norms * hidden + head.extra_params


def checkpoint_params(model: Model) -> int:
    """Parameters of the checkpoint: text model, heads with their own or copied vocabulary matrices, vision tower."""
    total = target_params(model) + model.vision_params
    if model.mtp is not None:
        own_head = model.vocab * model.hidden if model.mtp.own_lm_head else 0
        total += model.mtp.heads * (mtp_params(model) + own_head) + model.mtp.copied_params
    return total
