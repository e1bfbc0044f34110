"""Does it fit, and how far: weights, caches, states and buffers per GPU, and the largest context and batch.

Feasibility comes before speed. All byte counts are per GPU of a tensor-parallel group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wmtp_sim.spec.drafter import Drafter
from wmtp_sim.spec.engine import Engine
from wmtp_sim.spec.gpu import Gpu
from wmtp_sim.spec.model import Attention, Block, Model
from wmtp_sim.spec.precision import GroupFormats
from wmtp_sim.spec.workload import Workload
from wmtp_sim.work.cache import (
    blocks_kv_token_bytes,
    blocks_state_bytes,
    blocks_window_bytes,
)
from wmtp_sim.work.operation import Array
from wmtp_sim.work.weights import weights_of

LOGIT_BYTES = 4.0


@dataclass(frozen=True)
class Memory:
    """One arrangement's bytes per GPU. Arrays follow the workload's shape.

    ``draft_kv_share`` is the drafter's part of the whole KV cache. ``max_context`` and ``max_batch`` are the largest
    that fit with the other given (0 when nothing does).
    """

    budget_bytes: float
    weights_bytes: float
    kv_bytes: Array
    draft_kv_bytes: Array
    state_bytes: Array
    logits_bytes: Array
    max_context: Array
    max_batch: Array

    @property
    def total_bytes(self) -> Array:
        return self.weights_bytes + self.kv_bytes + self.draft_kv_bytes + self.state_bytes + self.logits_bytes

    @property
    def fits(self) -> NDArray[np.bool_]:
        return np.asarray(self.total_bytes <= self.budget_bytes)

    @property
    def draft_kv_share(self) -> Array:
        whole = self.kv_bytes + self.draft_kv_bytes
        return np.where(whole > 0, self.draft_kv_bytes / np.maximum(whole, 1.0), 0.0)


def memory(
    model: Model, gpu: Gpu, engine: Engine, work: Workload, drafter: Drafter | None = None, ring: bool = False
) -> Memory:
    """Memory of the target alone (``drafter`` None) or with a drafter whose KV is full or a ring.

    A ring holds sink + window + depth + 1 slots per sequence; a merged window flag frees nothing. Speculation also
    keeps a snapshot of every recurrent state per verify row.
    """
    budget = gpu.memory_bytes * engine.memory_fraction
    weights = target_weight_bytes(model, work.tp)
    per_token = blocks_kv_token_bytes(model.blocks, work.kv_bytes) * _kv_shard(model.blocks, work.tp)
    per_sequence: Array = blocks_window_bytes(model.blocks, work.kv_bytes)
    state: Array = blocks_state_bytes(model.blocks, model.state_dtype_bytes) / work.tp
    rows: Array = 1.0
    draft_token = 0.0
    draft_slots: Array = 0.0
    if drafter is not None:
        rows = work.depth + 1.0
        weights += drafter_weight_bytes(drafter, work.tp)
        draft_token = blocks_kv_token_bytes(drafter.blocks, work.draft_kv_bytes) * _kv_shard(drafter.blocks, work.tp)
        per_sequence = per_sequence + blocks_window_bytes(drafter.blocks, work.draft_kv_bytes)
        state = state * (1.0 + np.where(work.depth > 0, rows, 0.0) * engine.state.writes_per_row)
        draft_slots = np.minimum(work.context, work.sink + work.window + rows) if ring else work.context
        per_sequence = per_sequence + (draft_token * (work.sink + work.window + rows) if ring else 0.0)
    logits = work.batch * rows * model.vocab * LOGIT_BYTES / work.tp
    growing = per_token + (0.0 if ring else draft_token)
    fixed = per_sequence + state
    return Memory(
        budget_bytes=budget,
        weights_bytes=weights,
        kv_bytes=work.batch * (work.context * per_token + blocks_window_bytes(model.blocks, work.kv_bytes)),
        draft_kv_bytes=work.batch * draft_slots * draft_token,
        state_bytes=work.batch * state,
        logits_bytes=logits,
        max_context=_largest(budget - weights - work.batch * fixed - logits, work.batch * growing),
        max_batch=_largest(budget - weights, work.context * growing + fixed + logits / work.batch),
    )


def _largest(free: Array, each: Array) -> Array:
    """How many units of ``each`` bytes fit into ``free``; infinite when a unit takes none."""
    each = np.asarray(each, dtype=float)
    units = np.floor(np.maximum(free, 0.0) / np.where(each > 0, each, 1.0))
    return np.where(each > 0, units, np.where(np.asarray(free) >= 0, np.inf, 0.0))


def _kv_shard(blocks: tuple[Block, ...], tp: int) -> float:
    """Share of the growing cache that one rank holds: KV heads are split, and replicated when there are too few."""
    if tp == 1:
        return 1.0
    kinds = [mixer for block in blocks for mixer in block.mixers if mixer.kind in ("attention", "mla", "compressed")]
    shards = [-(-m.kv_heads // tp) / m.kv_heads if isinstance(m, Attention) else 1.0 for m in kinds]
    return max(shards, default=1.0)


def blocks_weight_bytes(blocks: tuple[Block, ...], hidden: int, formats: GroupFormats, tp: int) -> float:
    """Bytes of all layers' weights on one rank, every expert included. What is not a matrix is replicated."""
    total = 0.0
    for block in blocks:
        small = block.norms * hidden + block.extra_params
        for part in (*block.mixers, *block.channels):
            weights = weights_of(part, hidden)
            small += weights.small + weights.tables
            matrices = (*weights.matrices, *weights.experts)
            widths = (m.params * m.rank_share(tp) * formats.of(m.group).bytes_per_weight for m in matrices)
            total += block.count * sum(widths)
        total += block.count * small * formats.of("small").bytes_per_weight
    return total


def target_weight_bytes(model: Model, tp: int = 1) -> float:
    """Bytes per GPU of the text model: embedding, layers, lm_head."""
    formats = model.precision.target
    vocabulary = model.vocab * model.hidden * formats.of("embedding").bytes_per_weight
    if not model.tied_embeddings:
        vocabulary += model.vocab * model.hidden * formats.of("lm_head").bytes_per_weight
    rest = (model.final_norms * model.hidden + model.extra_params) * formats.of("small").bytes_per_weight
    return vocabulary / tp + blocks_weight_bytes(model.blocks, model.hidden, formats, tp) + rest


def drafter_weight_bytes(drafter: Drafter, tp: int = 1) -> float:
    """Bytes per GPU of the drafter. Vocabulary matrices count only when they are its own."""
    formats, hidden = drafter.formats, drafter.hidden
    joined = sum(p.k * p.n for p in drafter.projections)
    small = (joined + drafter.norms * hidden + drafter.extra_params) * formats.of("small").bytes_per_weight
    layers = blocks_weight_bytes(drafter.blocks, hidden, formats, tp)
    vocabulary = 0.0 if drafter.shares_vocabulary else drafter.vocab * hidden * formats.of("lm_head").bytes_per_weight
    if drafter.kind == "model":
        vocabulary += drafter.vocab * hidden * formats.of("embedding").bytes_per_weight
    return drafter.resident_copies * (layers + small + vocabulary / tp)
