"""Does it fit, and how far: weights, caches, states and buffers per GPU, and the largest context and batch.

Feasibility comes before speed. All byte counts are per GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wmtp_sim.spec.engine import Engine
from wmtp_sim.spec.gpu import Gpu
from wmtp_sim.spec.model import Block, Model
from wmtp_sim.spec.system import Cache, Generation, Speculation
from wmtp_sim.spec.workload import Workload
from wmtp_sim.work.cache import blocks_kv_token_bytes, blocks_state_bytes, blocks_window_bytes
from wmtp_sim.work.operation import Array
from wmtp_sim.work.resident import (
    drafter_weight_bytes,
    rank_blocks,
    target_weight_bytes,
    upkeep_weight_bytes,
    vision_weight_bytes,
)

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
    model: Model,
    gpu: Gpu,
    engine: Engine,
    work: Workload,
    speculation: Speculation | None = None,
    generation: Generation | None = None,
) -> Memory:
    """Memory of the target alone, or with a system's drafter and what its cache holds.

    A cache that holds what is attended has a slot for that and for a step's rows, or the context where that is
    shorter; one that reads in place holds nothing. ``generation`` says what of the target lies here. Speculation also
    keeps snapshots of the target's recurrent states, as many as the engine says. Logits are gathered: every rank holds
    them whole, those of all groups that share lm_head. Groups with sequences of their own cache only these.
    """
    budget = gpu.memory_bytes * engine.memory_fraction
    layout, batch = work.layout, work.group_batch
    target = _Target.of(generation or Generation(), speculation)
    weights, vision = target_weight_bytes(model, layout) * target.weights, vision_weight_bytes(model, layout)
    cache = _Cache.of(model.blocks, work.kv_bytes * target.kv, model.state_dtype_bytes, layout.tp)
    draft = _Cache()
    rows: Array = 1.0
    state: Array = cache.state
    if speculation is not None:
        rows = speculation.verify_rows(work.depth)
        snapshots = rows if engine.state.resident_snapshots == "per_row" else speculation.nodes(work.depth)
        draft = _draft_cache(speculation, work)
        weights += sum(drafter_weight_bytes(each, layout.for_draft(each.kind)) for each in speculation.drafters)
        weights += upkeep_weight_bytes(speculation.system.upkeep, model)
        state = cache.state * (1.0 + np.where(work.depth > 0, snapshots, 0.0)) + draft.state
    logits = rows * model.vocab * LOGIT_BYTES * layout.groups_of("lm_head")
    bounded = speculation is not None and speculation.system.cache.held == "attended"
    kept = _held(speculation.system.cache, work, rows) if speculation is not None and bounded else work.context
    kv, draft_kv = work.context * cache.token + cache.windows, kept * draft.token + draft.windows
    if speculation is not None:
        draft_kv = draft_kv + _inner_kv(speculation, work)
    fixed = cache.windows + draft.windows + state + logits
    free = budget - weights - vision
    longest = _largest(free - batch * fixed, batch * (cache.token + draft.token))
    if speculation is not None and bounded:  # beyond its first tokens a bounded cache grows by its share alone
        share, tokens = speculation.system.cache.share, _first_tokens(speculation, work)
        slots = tokens * (1.0 - share) + rows
        beyond = _largest(free - batch * (fixed + slots * draft.token), batch * (cache.token + share * draft.token))
        longest = np.where(beyond >= tokens + rows / max(1.0 - share, 1e-9), beyond, longest)
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
class _Target:
    """Shares of the target's weights and cache bytes that lie on the GPU."""

    weights: float = 1.0
    kv: float = 1.0

    @classmethod
    def of(cls, generation: Generation, speculation: Speculation | None) -> _Target:
        kv = generation.kv_share * (speculation.system.verify.kv_share if speculation is not None else 1.0)
        if generation.offload is None:
            return cls(kv=kv)
        return cls(1.0 - generation.offload.weights, kv * (1.0 - generation.offload.kv))


def _first_tokens(speculation: Speculation, work: Workload) -> Array:
    """Tokens that a bounded cache holds whatever the context."""
    tokens = speculation.system.cache.tokens
    return work.sink_and_window if tokens == "window" else float(tokens)


def _held(cache: Cache, work: Workload, rows: Array) -> Array:
    """Slots per sequence of a cache that holds what is attended, and a step's rows."""
    return np.minimum(work.context, cache.attended(work.context, work.sink_and_window) + rows)


def _inner_kv(speculation: Speculation, work: Workload) -> Array:
    """Bytes per rank of one sequence that the drafter of a drafter caches. The largest context is found without it."""
    inner, drafter = speculation.system.proposal.inner, speculation.inner
    if inner is None or drafter is None or inner.cache.held == "nothing":
        return 0.0
    tp = work.layout.for_draft(drafter.kind).tp
    element = work.draft_kv_bytes if inner.cache.element_bytes is None else inner.cache.element_bytes
    each = _Cache.of(drafter.blocks, element, drafter.state_dtype_bytes, tp)
    bounded = inner.cache.held == "attended"
    return (_held(inner.cache, work, speculation.verify_rows(work.depth)) if bounded else work.context) * each.token


def _draft_cache(speculation: Speculation, work: Workload) -> _Cache:
    """Bytes of a drafter's caches and states per rank; nothing that grows where it reads the target's in place."""
    drafter, cache = speculation.drafter, speculation.system.cache
    if drafter is None:
        return _Cache()
    tp = work.layout.for_draft(drafter.kind).tp
    element = work.draft_kv_bytes if cache.element_bytes is None else cache.element_bytes
    found = _Cache.of(drafter.blocks, element, drafter.state_dtype_bytes, tp, drafter.resident_copies)
    if cache.held == "nothing":
        return _Cache(state=found.state)
    return found if drafter.kept == 1 else _Cache(found.token * drafter.kept, found.windows * drafter.kept, found.state)


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
