"""Operations of one layer: what each mixer and MLP reads and multiplies when a pass of a few rows goes through it.

A pass is described by a `Pass`: how many sequences, how many rows of each, how many cached tokens they attend to.
KV is streamed once per sequence, whatever the number of rows: rows enter FLOPs, expert unions and activations only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

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
    Moe,
)
from wmtp_sim.spec.parallel import ALONE, Layout
from wmtp_sim.spec.precision import GroupFormats, WeightGroup
from wmtp_sim.work.cache import index_key_bytes, latent_token_bytes, recurrent_bytes, state_bytes, written_token_bytes
from wmtp_sim.work.collectives import all_gather, all_reduce, combine, dispatch, reduce_scatter
from wmtp_sim.work.operation import Array, Operation
from wmtp_sim.work.routing import busiest_rank, expert_union, routed_experts
from wmtp_sim.work.weights import Matrix, residual_mixing, weights_of

ACTIVATION_BYTES = 2.0


@dataclass(frozen=True)
class Pass:
    """The shape of one forward pass.

    Attributes:
        batch: sequences.
        rows: query rows per sequence (1 for decode, depth + 1 for verify).
        attended: committed tokens per sequence that full-attention layers read (the context, or sink + window).
        kv_bytes: bytes of one cached K or V element.
        state_bytes: bytes of one recurrent-state element.
        overlap: share of the experts beyond the first row's that further rows of a sequence do not add (0 = rows
            route independently; measured on consecutive tokens: 0.2 to 0.5).
        skew: exponent of experts' popularity (rank to the power of -skew); 0 is uniform.
        state_writes: recurrent states written per sequence in this pass (1 for decode, one per row for verify).
        layout: how ranks share matrices, heads and experts; ``batch`` and ``slots`` are those of one group of ranks.
        row_multiple: the rows of all sequences together are padded to a multiple of this before matrix products.
        slots: sequences that matrix products and experts run for, where a graph holds more than there are.
        written: whether the rows' keys and values are kept.
        most_experts: experts that a layer touches at most.
    """

    batch: Array
    rows: Array
    attended: Array
    kv_bytes: float
    state_bytes: float
    overlap: float = 0.0
    skew: float = 0.0
    state_writes: Array = 1.0
    layout: Layout = ALONE
    row_multiple: Array = 1.0
    slots: Array | None = None
    written: bool = True
    most_experts: float = np.inf

    @property
    def tokens(self) -> Array:
        """Rows of all sequences together, padding included: what a matrix product sees."""
        rows = (self.batch if self.slots is None else self.slots) * self.rows
        padded = np.ceil(rows / self.row_multiple) * self.row_multiple
        return np.where(np.asarray(self.row_multiple) > 1.0, padded, rows)  # a mean number of rows is no whole one

    def tokens_of(self, group: WeightGroup) -> Array:
        """Rows that a rank multiplies with weights of a kind: those of all groups that share them.

        Where rows travel to their experts, a group's ranks part them first, and each routes its own.
        """
        if self.layout.all_to_all and group in ("router", "shared_expert"):
            return np.ceil(self.tokens / self.layout.tp)
        return self.tokens * self.layout.groups_of(group)


# --- matrices --------------------------------------------------------------------------------------------------


def gemm(matrix: Matrix, shape: Pass, formats: GroupFormats, rows: Array | None = None) -> Operation:
    """A dense (or batched) product of every row with one weight, sharded over tensor-parallel ranks."""
    rows = shape.tokens_of(matrix.group) if rows is None else rows
    fmt = formats.of(matrix.group)
    share = matrix.rank_share(shape.layout.ranks_of(matrix.group))
    return Operation(
        name=f"{matrix.group}.{matrix.name}",
        kernel="gemm",
        math=fmt.math,
        weight_format=fmt.name,
        flops=2.0 * rows * matrix.params * share,
        weights=matrix.params * fmt.bytes_per_weight * share,
        activations=ACTIVATION_BYTES * rows * matrix.copies * (matrix.k + matrix.n) * share,
        rows=rows,
        geometry=(matrix.k, matrix.n * share, matrix.copies, fmt.bytes_per_weight),
    )


def experts(moe: Moe, shape: Pass, hidden: int, formats: GroupFormats) -> Operation:
    """Both grouped products over the experts touched.

    Experts are dealt to groups of ranks, the busiest of which is waited for; its ranks split each by its inner size.
    """
    fmt = formats.of("expert")
    matrices = weights_of(moe, hidden).experts
    one_expert = sum(m.copy_params for m in matrices)
    rows, ranks = shape.tokens_of("expert"), shape.layout.ranks
    pairs = rows * routed_experts(moe)
    return Operation(
        name="moe.experts",
        kernel="moe",
        math=fmt.math,
        weight_format=fmt.name,
        flops=2.0 * pairs * one_expert / ranks,
        weights=_expert_share(moe, shape) * one_expert * fmt.bytes_per_weight,
        activations=ACTIVATION_BYTES * pairs * sum(m.k + m.n for m in matrices) / ranks,
        launches=float(len(matrices)),
        rows=rows,
        geometry=_expert_geometry(moe, matrices[0].k, shape, fmt.bytes_per_weight),
    )


def _expert_share(moe: Moe, shape: Pass) -> Array:
    """Experts' worth of weights that one rank reads. Padding is no text: it shares no experts with a sequence."""
    groups, ranks = shape.layout.expert_groups, shape.layout.ranks
    union = expert_union(moe, shape.tokens_of("expert") / shape.rows, shape.rows, shape.overlap, shape.skew)
    union = np.minimum(union, shape.most_experts)
    return busiest_rank(union, moe.experts, groups) * groups / ranks


def _expert_geometry(moe: Moe, width: int, shape: Pass, element: float) -> tuple[float, ...]:
    groups = shape.layout.expert_groups
    return (width, moe.inner * groups / shape.layout.ranks, moe.experts / groups, element)


# --- token mixers ----------------------------------------------------------------------------------------------


def attention(a: Attention, shape: Pass) -> list[Operation]:
    """Softmax attention over cached K and V, each KV head's cache read once for all its query rows.

    A model's own sliding window, which counts the row itself, bounds the read. Block-sparse layers score every key
    block first; a row then multiplies its own best blocks only, while the cache is read for the blocks of all rows.
    """
    kv_heads = -(-a.kv_heads // shape.layout.tp)
    group = a.q_heads / shape.layout.tp / kv_heads
    token = kv_heads * (a.head_dim + a.v_head_dim) * shape.kv_bytes
    positions, scan = shape.attended, []
    if a.window is not None:
        positions = np.minimum(positions, a.window - 1.0)
    seen = positions
    if a.sparse is not None:
        index = a.sparse.head_dim * ACTIVATION_BYTES
        scan = [_index_scan(shape, shape.attended, index, a.sparse.heads * a.sparse.head_dim)]
        chosen = float(a.sparse.top_blocks * a.sparse.block_tokens)
        seen, positions = np.minimum(positions, chosen), np.minimum(positions, shape.rows * chosen)
    seen, positions = seen + shape.rows, positions + shape.rows
    per_position = 2.0 * shape.rows * kv_heads * group * (a.head_dim + a.v_head_dim)
    read = Operation(
        name="attention.window" if a.window is not None else "attention.full",
        kernel="attention",
        flops=shape.batch * seen * per_position,
        kv=shape.batch * positions * token,
        activations=ACTIVATION_BYTES * shape.tokens * kv_heads * group * (a.head_dim + a.v_head_dim),
        streams=shape.batch * kv_heads,
        query_rows=shape.rows * group,
        query_heads=group,
        rows=shape.rows,
        geometry=(a.head_dim, group, kv_heads, shape.kv_bytes),
        positions=positions,
    )
    return [*scan, read]


def latent_attention(a: LatentAttention, shape: Pass) -> list[Operation]:
    """Absorbed MLA: one latent per token serves all heads as key and value; every rank holds the whole latent cache.

    A sparse indexer scores all tokens and each row then gathers its own top-k latents.
    """
    positions, scan = shape.attended, []
    if a.indexer is not None:
        if not a.indexer.shared:
            width = a.indexer.heads * a.indexer.head_dim
            scan = [_index_scan(shape, shape.attended, index_key_bytes(a.indexer), width)]
        positions = np.minimum(positions, shape.rows * float(a.indexer.top_k))
    positions = positions + shape.rows
    heads = a.heads / shape.layout.tp
    seen = positions
    if a.indexer is not None:
        seen = np.minimum(shape.attended, float(a.indexer.top_k)) + shape.rows
    read = Operation(
        name="attention.mla",
        kernel="mla",
        flops=2.0 * shape.batch * shape.rows * heads * seen * (2 * a.kv_lora_rank + a.qk_rope_head_dim),
        kv=shape.batch * positions * latent_token_bytes(a, shape.kv_bytes),
        activations=ACTIVATION_BYTES * shape.tokens * heads * (a.latent_dim + a.kv_lora_rank),
        streams=shape.batch,
        query_rows=shape.rows * heads,
        query_heads=heads,
        rows=shape.rows,
        geometry=(heads, shape.kv_bytes),
        positions=positions,
    )
    return [*scan, read]


def compressed_attention(a: CompressedAttention, shape: Pass) -> list[Operation]:
    """DeepSeek-V4: the raw window, plus top-k (CSA) or all (HCA) of the compressed keys. One shared K=V head."""
    positions = np.minimum(shape.attended, a.window - 1.0) + shape.rows
    seen, scan = positions, []
    if a.ratio:
        chosen = compressed = np.floor(shape.attended / a.ratio)
        if a.indexer is not None:
            width, top_k = a.indexer.heads * a.indexer.head_dim, float(a.indexer.top_k)
            scan = [_index_scan(shape, compressed, index_key_bytes(a.indexer), width)]
            chosen, compressed = np.minimum(compressed, top_k), np.minimum(compressed, shape.rows * top_k)
        seen, positions = seen + chosen, positions + compressed
    heads = a.heads / shape.layout.tp
    read = Operation(
        name="attention.compressed",
        kernel="mla",
        flops=4.0 * shape.batch * shape.rows * heads * seen * a.head_dim,
        kv=shape.batch * positions * a.head_dim * shape.kv_bytes,
        activations=2 * ACTIVATION_BYTES * shape.tokens * heads * a.head_dim,
        streams=shape.batch,
        query_rows=shape.rows * heads,
        query_heads=heads,
        rows=shape.rows,
        geometry=(heads, shape.kv_bytes),
        positions=positions,
    )
    return [*scan, read]


def _index_scan(shape: Pass, positions: Array, key_bytes: float, width: int) -> Operation:
    """A sparse attention's scoring of every cached index key by all rows of a sequence."""
    return Operation(
        name="attention.index_scan",
        kernel="index_scan",
        flops=2.0 * shape.batch * shape.rows * positions * width,
        kv=shape.batch * positions * key_bytes,
        activations=4.0 * shape.tokens * positions,
        launches=2.0,
    )


def recurrent(mixer: Mixer, shape: Pass) -> list[Operation]:
    """A recurrent mixer: the state is read once, updated row after row, and written as often as the engine asks.

    FLOPs are about 8 per state element and row (decay, outer product, read-out).
    """
    width = int(shape.state_bytes)
    elements = recurrent_bytes(mixer, width) / width / shape.layout.tp
    state = state_bytes(mixer, width) / shape.layout.tp
    return [
        Operation(
            name=f"recurrent.{mixer.kind}",
            kernel="recurrent",
            variant=mixer.kind,
            flops=8.0 * shape.tokens * elements,
            state=shape.batch * state * (1.0 + shape.state_writes),
            launches=2.0,
            rows=shape.rows,
            geometry=(elements,),
        )
    ]


_MIXERS: dict[type, Callable[..., list[Operation]]] = {
    Attention: attention,
    LatentAttention: latent_attention,
    CompressedAttention: compressed_attention,
    GatedDeltaNet: recurrent,
    KimiDeltaAttention: recurrent,
    Mamba2: recurrent,
    Mamba1: recurrent,
    LightningAttention: recurrent,
}


# --- a layer ---------------------------------------------------------------------------------------------------


def elementwise(
    around: str,
    shape: Pass,
    width: float,
    launches: float = 1.0,
    written: Array = 0.0,
    group: WeightGroup | None = None,
) -> Operation:
    """The small kernels around a mixer, MLP or norm: ``width`` activations per row are read and written, ``written``
    bytes go to KV. Into how many launches they are fused is the engine's business: it multiplies ``launches``.
    ``group`` names the weights whose rows they run over, where these may be more than a group's own.
    """
    rows = shape.tokens if group is None else shape.tokens_of(group)
    return Operation(
        name=f"elementwise.{around}",
        kernel="elementwise",
        variant="norm" if around == "norm" else "",
        geometry=(width / max(launches, 1.0),),
        activations=2.0 * ACTIVATION_BYTES * rows * width,
        kv=written,
        launches=launches,
    )


def part_operations(part: Mixer | Channel, shape: Pass, hidden: int, formats: GroupFormats) -> list[Operation]:
    """All operations of one mixer or MLP: its matrices, its core, and the small kernels around them."""
    operations = [gemm(matrix, shape, formats) for matrix in weights_of(part, hidden).matrices]
    written: Array = 0.0
    if isinstance(part, Moe):
        operations.append(experts(part, shape, hidden, formats))
    elif not isinstance(part, Mlp):
        operations += _MIXERS[type(part)](part, shape)
        written = shape.tokens * written_token_bytes(part, shape.kv_bytes) if shape.written else 0.0
    operations.append(elementwise(part.kind, shape, 4.0 * hidden, written=written, group=_rows_with(part, shape)))
    return operations


def _rows_with(part: Mixer | Channel, shape: Pass) -> WeightGroup | None:
    """The weights whose rows the small kernels around a mixer or MLP run over; None is a group's own rows."""
    if isinstance(part, Moe):
        return "router" if shape.layout.all_to_all else "expert"
    return "mlp" if isinstance(part, Mlp) else None


def block_operations(block: Block, shape: Pass, hidden: int, formats: GroupFormats) -> list[Operation]:
    """Operations of ``block.count`` identical layers, with their norms and what ranks send one another."""
    operations = [gemm(matrix, shape, formats) for matrix in residual_mixing(block, hidden).matrices]
    for part in (*block.mixers, *block.channels):
        operations += part_operations(part, shape, hidden, formats)
    operations.append(elementwise("norm", shape, hidden * block.norms, launches=float(block.norms)))
    exchanging = block.channels if _completes_mixers(block, shape.layout) else (*block.mixers, *block.channels)
    for part in exchanging:
        operations += exchanges(part, shape, hidden)
    return [operation.times(block.count) for operation in operations]


def _completes_mixers(block: Block, layout: Layout) -> bool:
    """Whether the all-reduce that gathers rows before an MLP also adds up what ranks made of attention."""
    joint = [layout.groups_of("expert" if isinstance(channel, Moe) else "mlp") > 1 for channel in block.channels]
    return layout.by_reduction and bool(joint) and all(joint)


def exchanges(part: Mixer | Channel, shape: Pass, hidden: int) -> list[Operation]:
    """What ranks send one another around one mixer or MLP.

    A group's ranks reduce what each made of the group's rows. Groups that share weights gather all rows before them
    and reduce and scatter them after. (Engines that reduce and scatter within a group, then gather over all ranks, as
    SGLang does, send as many bytes in as many calls.) Rows that travel to their experts make either superfluous.
    """
    layout = shape.layout
    if isinstance(part, Moe) and layout.all_to_all:
        rows, copies = shape.tokens_of("router"), routed_experts(part)
        return [dispatch(rows, copies, hidden, layout.ranks), combine(rows, copies, hidden, layout.ranks)]
    rows = shape.tokens * hidden * ACTIVATION_BYTES
    found, shared_with = [], _rows_with(part, shape)
    groups = layout.groups_of(shared_with) if shared_with else 1
    if layout.by_reduction and groups > 1:
        return [all_reduce(rows * groups, layout.ranks)] * 2
    if groups > 1:
        found += [all_gather(rows * groups, groups), reduce_scatter(rows * groups, groups)]
    if layout.tp > 1:
        found.append(all_reduce(rows, layout.tp))
    return found
