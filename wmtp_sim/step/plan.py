"""A step as a plan: the passes that a system runs, over how many rows, what they read, and how often a round.

Nothing here is priced, and no system is known by name: `spec.system` says what differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import numpy as np

from wmtp_sim.spec.drafter import Drafter
from wmtp_sim.spec.engine import Phase
from wmtp_sim.spec.system import Cache, Generation, Proposal, Speculation, System, Upkeep
from wmtp_sim.spec.workload import Workload
from wmtp_sim.work.operation import Array

Term = Literal["draft", "verify", "extend", "sample", "host"]
TERMS: tuple[Term, ...] = ("draft", "verify", "extend", "sample", "host")
#: What a pass runs of a network: all of it, what fills its cache from the target's states, or its micro-network.
Runs = Literal["layers", "cache", "micro"]


@dataclass(frozen=True)
class PlannedPass:
    """One pass, as often as a round runs it. Arrays broadcast with the workload.

    Attributes:
        term: of the step.
        phase: whose attention kernel, slot lists and graph serve it.
        drafter: whose layers it runs; None is the target.
        rows: query rows of a sequence.
        committed: cached tokens that it attends.
        times: passes a round; fractions are of rounds.
        drafted: tokens of the round that it attends beside, in the mean.
        logit_rows: rows of a sequence that choose a token; a target's pass has logits for every row.
        kv_bytes: of a cached element.
        runs: what of the network.
        wide: whether it also joins the target's states of the rows just verified.
        written: whether its rows' keys and values are kept: passes that read another's cache in place keep none.
        keeps_states: whether every row leaves a snapshot of the recurrent states.
        kept: share of the target's layers.
        windowed: whether its attention leaves a part of the context out.
        lists: slot lists that are built before it, side by side.
        overlap: as the workload's, where it is another.
        most_experts: that a layer touches at most.
        unpack_flops: per cached element read.
    """

    term: Term
    phase: Phase
    drafter: Drafter | None
    rows: Array
    committed: Array
    times: Array = 1.0
    drafted: Array = 0.0
    logit_rows: Array = 1.0
    kv_bytes: float = 2.0
    runs: Runs = "layers"
    wide: bool = False
    written: bool = True
    keeps_states: bool = False
    kept: float = 1.0
    windowed: bool = False
    lists: Array = 1.0
    overlap: float | None = None
    most_experts: float = np.inf
    unpack_flops: float = 0.0

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for passes that cost the same, so that systems share them."""
        return tuple(_hashable(value) for value in self.__dict__.values())


def _hashable(value: object) -> object:
    if isinstance(value, float | np.ndarray):
        array = np.asarray(value)
        return array.shape, array.tobytes()
    return id(value) if isinstance(value, Drafter) else value


@dataclass(frozen=True)
class Plan:
    """A step's passes and what stands beside them.

    Attributes:
        judged, judgings: rows of a sequence that are sampled or judged, and how often.
        commits: whether accepted recurrent states are committed.
        later: draft passes of a round after its first.
        upkeep: work beside the passes, in the term in which the drafter's caches are kept up.
        most: tokens that a round commits at most.
    """

    passes: tuple[PlannedPass, ...]
    judged: Array
    judgings: Array = 1.0
    commits: bool = False
    later: Array = 0.0
    upkeep: tuple[Upkeep, ...] = ()
    most: Array = 1.0


def base_plan(work: Workload, generation: Generation) -> Plan:
    """A step without speculation: the target over one row, or the passes for one of its tokens."""
    rows = float(generation.rows)
    times = generation.passes / generation.tokens
    passed = _target(work, generation, "base", rows=rows, times=times)
    return Plan((passed,), judged=rows, judgings=times)


def idle_plan(work: Workload, speculation: Speculation, keeps_up: bool) -> Plan:
    """A step that drafts nothing while the engine speculates: a base step, and the wide pass where it still runs."""
    system, drafter = speculation.system, speculation.drafter
    alone = base_plan(work, system.generation)
    if not keeps_up or drafter is None or system.proposal.kind == "block" or system.proposal.first != "wide":
        return alone
    return replace(alone, passes=(*alone.passes, _wide(work, drafter, system, 1.0)))


def plan(speculation: Speculation, work: Workload) -> Plan:
    """The passes of one round of a system, at a workload's depth of at least 1."""
    system, levels, rows = speculation.system, speculation.levels(work.depth), speculation.verify_rows(work.depth)
    drafts = tuple(_drafts(speculation, work))
    verify = tuple(_verify(system, work, rows))
    extends = (*_extends(speculation, work, levels), *_upkeep(speculation, work, levels + 1.0))
    return Plan(
        drafts + verify + extends,
        judged=rows,
        commits=True,
        later=_later(system.proposal, drafts, levels),
        upkeep=system.upkeep,
        most=levels + 1.0,
    )


def _later(proposal: Proposal, drafts: tuple[PlannedPass, ...], levels: Array) -> Array:
    """Draft passes after the first: one a token, or all that two drafters run in turn."""
    if proposal.kind == "block":
        return 0.0
    passes = levels if proposal.inner is None else sum((each.times for each in drafts), start=np.float64(0.0))
    return np.maximum(passes - 1.0, 0.0)


# --- the target ----------------------------------------------------------------------------------------------------


def _target(work: Workload, generation: Generation, phase: Phase, **own: object) -> PlannedPass:
    shared = {
        "term": "verify",
        "drafter": None,
        "committed": work.context,
        "kv_bytes": work.kv_bytes * generation.kv_share,
        "unpack_flops": generation.unpack_flops,
    }
    return PlannedPass(phase=phase, **(shared | own))  # type: ignore[arg-type]


def _verify(system: System, work: Workload, rows: Array) -> Iterator[PlannedPass]:
    """The target over the last committed token and what was drafted, once for each verifier."""
    experts, generation = system.experts, system.generation
    for tier in system.verify.tiers:
        yield _target(
            work,
            generation,
            "verify",
            rows=rows,
            times=tier.of_rounds,
            kept=tier.kept,
            keeps_states=True,
            kv_bytes=work.kv_bytes * generation.kv_share * system.verify.kv_share,
            overlap=experts.verify_overlap,
            most_experts=float(experts.budget or np.inf),
        )


# --- drafts --------------------------------------------------------------------------------------------------------


def _drafts(speculation: Speculation, work: Workload) -> Iterator[PlannedPass]:
    """The passes that propose tokens, but for the wide pass that proposes the first."""
    drafter, proposal = speculation.drafter, speculation.system.proposal
    if drafter is None:
        return
    levels = speculation.levels(work.depth)
    if proposal.kind == "block":
        yield from _block(speculation, work, drafter, levels)
    elif proposal.kind == "tree":
        yield from _tree(speculation, work, drafter)
    elif proposal.inner is not None:
        yield from _two_levels(speculation, work, drafter, levels)
    else:
        wide = proposal.first == "wide"
        times = np.maximum(levels - drafter.resident_copies, 0.0) if wide else levels
        ahead = levels / 2.0 - 1.0 if wide else (levels - 1.0) / 2.0
        yield _narrow(speculation, work, drafter, rows=1.0, times=times, drafted=ahead, lists=times)
    if drafter.micro:
        yield _narrow(speculation, work, drafter, rows=1.0, times=levels, runs="micro", lists=0.0)


def _narrow(speculation: Speculation, work: Workload, drafter: Drafter, **own: object) -> PlannedPass:
    """A draft pass over the system's draft cache."""
    system = speculation.system
    cache = system.cache
    shared = {
        "term": "draft",
        "phase": "base" if drafter.of_target else "draft",
        "drafter": drafter,
        "committed": cache.attended(work.context, work.sink_and_window),
        "kv_bytes": _element_bytes(cache, work, system.generation),
        "written": cache.of == "own",
        "windowed": cache.bounded,
        "overlap": system.experts.draft_overlap,
        "unpack_flops": _unpacking(cache, system.generation),
    }
    return PlannedPass(**(shared | own))  # type: ignore[arg-type]


def _unpacking(cache: Cache, generation: Generation) -> float:
    """FLOPs per cached element that drafts read, the target's where they read its cache."""
    return cache.unpack_flops or (generation.unpack_flops if cache.of == "target" else 0.0)


def _element_bytes(cache: Cache, work: Workload, generation: Generation) -> float:
    """Bytes of an element that drafts read: as stated, the target's where they read its cache, else their own."""
    if cache.element_bytes is not None:
        return cache.element_bytes
    return work.kv_bytes * generation.kv_share if cache.of == "target" else work.draft_kv_bytes


def _block(speculation: Speculation, work: Workload, drafter: Drafter, levels: Array) -> Iterator[PlannedPass]:
    """One pass: over the block and its anchor, over the rows just verified and the masks behind them, or of heads."""
    if drafter.kind == "heads":
        one_each = drafter.resident_copies > 1
        times, logits = (levels, 1.0) if one_each else (1.0, levels)
        yield _narrow(speculation, work, drafter, rows=1.0, times=times, logit_rows=logits, lists=0.0)
    elif speculation.system.proposal.first == "wide":
        rows = speculation.verify_rows(work.depth) + levels - 1.0
        yield _narrow(speculation, work, drafter, rows=rows, logit_rows=levels, wide=True)
    else:
        anchor = 0.0 if drafter.samples_anchor else 1.0
        yield _narrow(speculation, work, drafter, rows=levels + anchor, logit_rows=levels)


def _tree(speculation: Speculation, work: Workload, drafter: Drafter) -> Iterator[PlannedPass]:
    """A pass for each level but the last, over the level's nodes; levels of one width are one entry.

    A pass walks every node of the levels before it: tree attention masks what is not on a node's path. Where the wide
    pass does not propose the first level, a pass over one row does.
    """
    proposal = speculation.system.proposal
    widths = ([] if proposal.first == "wide" else [1]) + list(proposal.widths[:-1])
    before = 0
    for width, same in groupby(widths):
        count = len(list(same))
        ahead = before + width * (count - 1) / 2.0
        yield _narrow(
            speculation,
            work,
            drafter,
            rows=float(width),
            times=np.where(work.depth > 0, float(count), 0.0),
            drafted=ahead,
            logit_rows=float(width),
            lists=float(count),
        )
        before += width * count


def _two_levels(speculation: Speculation, work: Workload, drafter: Drafter, levels: Array) -> Iterator[PlannedPass]:
    """A chain whose passes verify what an inner drafter proposes: fewer of them, and the inner's in front of each."""
    inner = speculation.system.proposal.inner
    assert inner is not None
    passes = levels / inner.accept_length
    before = np.maximum(levels - inner.accept_length, 0.0) / 2.0  # tokens of the round before a pass, in the mean
    if speculation.inner is not None:
        committed = inner.cache.attended(work.context, work.sink_and_window)
        yield _narrow(
            speculation,
            work,
            speculation.inner,
            rows=1.0,
            times=passes * inner.depth,
            committed=committed,
            drafted=before + (inner.depth - 1.0) / 2.0,
            kv_bytes=_element_bytes(inner.cache, work, speculation.system.generation),
            unpack_flops=inner.cache.unpack_flops,
            written=inner.cache.of == "own",
            windowed=inner.cache.bounded,
        )
    rows = inner.depth + 1.0
    yield _narrow(speculation, work, drafter, rows=rows, times=passes, drafted=before, logit_rows=rows)


# --- what keeps the drafter's caches up ----------------------------------------------------------------------------


def _extends(speculation: Speculation, work: Workload, levels: Array) -> Iterator[PlannedPass]:
    """The drafter over the rows just verified, rejected ones included, or what fills its cache from their states."""
    drafter, system = speculation.drafter, speculation.system
    if drafter is None:
        return
    if system.proposal.kind == "block":
        if system.proposal.first == "own" and system.cache.of == "own" and drafter.kind not in ("heads", "self"):
            # a block drafter's caches hold what the target's states give; a model runs over the tokens themselves
            runs = "cache" if drafter.kind == "block" else "layers"
            rows = np.minimum(speculation.verify_rows(work.depth), levels + 1.0)
            own = {"term": "extend", "phase": "extend", "rows": rows, "runs": runs, "logit_rows": 0.0}
            yield _narrow(speculation, work, drafter, lists=0.0, **own)
    elif system.proposal.first == "wide":
        yield _wide(work, drafter, system, levels + 1.0)


def _wide(work: Workload, drafter: Drafter, system: System, rows: Array) -> PlannedPass:
    """The wide pass. Separate heads each run over those rows, to fill their own caches, and each proposes one token."""
    copies, cache = float(drafter.resident_copies), system.cache
    return PlannedPass(
        term="extend",
        phase="extend",
        drafter=drafter,
        rows=rows,
        committed=cache.attended_wide(work.context, work.sink_and_window),
        times=np.minimum(np.maximum(rows - 1.0, 1.0), copies),
        kv_bytes=_element_bytes(cache, work, system.generation),
        wide=True,
        written=cache.of == "own",
        windowed=cache.bounded_everywhere,
        overlap=system.experts.draft_overlap,
        unpack_flops=_unpacking(cache, system.generation),
    )


def _upkeep(speculation: Speculation, work: Workload, most: Array) -> Iterator[PlannedPass]:
    """Passes of the drafter for its caches alone, such as the building of a slot; as often as a round may need them."""
    for item in speculation.system.upkeep:
        if item.rows and speculation.drafter is not None:
            times = (1.0 if item.per == "round" else most) / item.every
            own = {"term": "extend", "phase": "extend", "rows": float(item.rows), "times": times, "logit_rows": 0.0}
            yield _narrow(speculation, work, speculation.drafter, lists=0.0, **own)
