"""Does it fit, and how far: weights, caches, states and buffers per GPU, and the largest context and batch.

Feasibility comes before speed. All byte counts are per GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wmtp_sim.spec.drafter import Drafter
from wmtp_sim.spec.engine import Engine
from wmtp_sim.spec.gpu import Gpu
from wmtp_sim.spec.model import Block, Model
from wmtp_sim.spec.workload import Workload
from wmtp_sim.work.cache import (
    blocks_kv_token_bytes,
    blocks_state_bytes,
    blocks_window_bytes,
)
from wmtp_sim.work.operation import Array
from wmtp_sim.work.resident import drafter_weight_bytes, rank_blocks, target_weight_bytes, vision_weight_bytes

LOGIT_BYTES = 4.0


@dataclass(frozen=True)
class Memory:
    """One arrangement's bytes per GPU. Arrays follow the workload's shape.

    ``budget_bytes`` may be filled, ``reserve_bytes`` is the rest of the GPU, which the engine leaves to activations and
    CUDA graphs. ``weights_bytes`` are target and drafter, ``vision_bytes`` the vision tower that engines load with
    them. KV includes full sliding windows; ``draft_kv_share`` is the drafter's part of all KV. ``max_context`` and
    ``max_batch`` are the largest that fit with the other given (0 when nothing does).
    """

    budget_bytes: float
    reserve_bytes: float
    weights_bytes: float
    vision_bytes: float
    kv_bytes: Array
    draft_kv_bytes: Array
    state_bytes: Array
    logits_bytes: Array
    max_context: Array
    max_batch: Array

    @property
    def total_bytes(self) -> Array:
        caches = self.kv_bytes + self.draft_kv_bytes + self.state_bytes
        return self.weights_bytes + self.vision_bytes + caches + self.logits_bytes

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

    A ring holds sink + window + depth + 1 slots per sequence, or the context where that is shorter; a merged window
    flag frees nothing. Speculation also keeps snapshots of the target's recurrent states, as many as the engine says.
    Logits are gathered: every rank holds them whole, those of all groups that share lm_head. Groups with sequences of
    their own cache only these.
    """
    budget = gpu.memory_bytes * engine.memory_fraction
    layout, batch = work.layout, work.group_batch
    weights, vision = target_weight_bytes(model, layout), vision_weight_bytes(model, layout)
    cache = _Cache.of(model.blocks, work.kv_bytes, model.state_dtype_bytes, layout.tp)
    draft = _Cache()
    rows: Array = 1.0
    state: Array = cache.state
    if drafter is not None:
        rows, drafting = work.depth + 1.0, layout.for_draft(drafter.kind)
        weights += drafter_weight_bytes(drafter, drafting)
        copies = drafter.resident_copies
        draft = _Cache.of(drafter.blocks, work.draft_kv_bytes, drafter.state_dtype_bytes, drafting.tp, copies)
        snapshots = rows if engine.state.resident_snapshots == "per_row" else work.depth
        state = cache.state * (1.0 + np.where(work.depth > 0, snapshots, 0.0)) + draft.state
    slots = work.sink + work.window + rows
    logits = rows * model.vocab * LOGIT_BYTES * layout.groups_of("lm_head")
    kept = np.minimum(work.context, slots) if ring else work.context
    kv, draft_kv = work.context * cache.token + cache.windows, kept * draft.token + draft.windows
    fixed = cache.windows + draft.windows + state + logits
    free = budget - weights - vision
    longest = _largest(free - batch * fixed, batch * (cache.token + draft.token))
    if ring:  # once a ring is full, only the target's cache grows
        beyond = _largest(free - batch * (fixed + slots * draft.token), batch * cache.token)
        longest = np.where(beyond >= slots, beyond, longest)
    return Memory(
        budget_bytes=budget,
        reserve_bytes=gpu.memory_bytes - budget,
        weights_bytes=weights,
        vision_bytes=vision,
        kv_bytes=batch * kv,
        draft_kv_bytes=batch * draft_kv,
        state_bytes=batch * state,
        logits_bytes=batch * logits,
        max_context=longest,
        max_batch=_largest(free, kv + draft_kv + state + logits) * layout.dp,
    )


@dataclass(frozen=True)
class _Cache:
    """Bytes per rank of one sequence: per token of context, of full sliding windows, of recurrent states."""

    token: float = 0.0
    windows: float = 0.0
    state: float = 0.0

    @classmethod
    def of(cls, blocks: tuple[Block, ...], kv_bytes: float, state_bytes: int, tp: int, copies: int = 1) -> _Cache:
        """``copies`` separate draft heads have a cache each."""
        held = rank_blocks(blocks, tp)
        return cls(
            token=copies * blocks_kv_token_bytes(held, kv_bytes),
            windows=copies * blocks_window_bytes(held, kv_bytes),
            state=copies * blocks_state_bytes(blocks, state_bytes) / tp,
        )


def _largest(free: Array, each: Array) -> Array:
    """How many units of ``each`` bytes fit into ``free``; infinite when a unit takes none."""
    each = np.asarray(each, dtype=float)
    units = np.floor(np.maximum(free, 0.0) / np.where(each > 0, each, 1.0))
    return np.where(each > 0, units, np.where(np.asarray(free) >= 0, np.inf, 0.0))
