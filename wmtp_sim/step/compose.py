"""The price of a plan: every pass as an engine runs it on a machine, term by term.

A step has five terms, the ones a trace shows: draft (passes that propose), verify (the target over the drafted rows),
extend (what keeps the drafter's caches up with the rows just verified, and as a rule proposes the next first token),
sample (judging rows, committing recurrent states) and host. The base step's terms go by the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from wmtp_sim.machine.machine import NOTHING, Machine, Timing
from wmtp_sim.spec.engine import Engine, Host, Phase, ServedBy
from wmtp_sim.spec.model import Model
from wmtp_sim.spec.system import Generation, Offload, Speculation, Upkeep
from wmtp_sim.spec.workload import Workload
from wmtp_sim.step.plan import Plan, PlannedPass, Term, base_plan, idle_plan, plan
from wmtp_sim.step.serving import Serving
from wmtp_sim.work.cache import state_bytes_per_sequence
from wmtp_sim.work.layers import Pass
from wmtp_sim.work.operation import Array, Operation
from wmtp_sim.work.passes import cache_fill, draft_forward, micro_forward, sample, state_commit, target_forward, upkeep


@dataclass(frozen=True)
class Part:
    """One pass of a step: its operations, rebuilt when asked for, and their time by kernel class.

    ``planned`` is None for what is no pass of a network.
    """

    term: Term
    operations: Callable[[], Iterator[Operation]]
    classes: dict[str, Timing]
    planned: PlannedPass | None = None

    @cached_property
    def total(self) -> Timing:
        return sum(self.classes.values(), start=NOTHING)

    def entries(self, machine: Machine) -> Iterator[Entry]:
        """Every operation with its time on a machine."""
        for operation in self.operations():
            yield Entry(self.term, operation, machine.time(operation))

    @property
    def phase(self) -> Phase | None:
        return None if self.planned is None else self.planned.phase

    @property
    def launches(self) -> Array:
        return sum((each.launches * each.repeats for each in self.operations()), start=np.float64(0.0))


@dataclass(frozen=True)
class Entry:
    """One operation of a step with the term it belongs to and its time."""

    term: Term
    operation: Operation
    timing: Timing


@dataclass(frozen=True)
class Step:
    """A step's parts and host time, in seconds."""

    parts: tuple[Part, ...]
    host: Timing
    machine: Machine
    engine_spread: float = 1.0

    @property
    def total(self) -> Timing:
        """Expected seconds, range and speed-of-light bound of the whole step.

        The range is what kernels and host leave open, times what the engine's definition does.
        """
        total = sum((part.total for part in self.parts), start=self.host)
        low = np.maximum(total.low / self.engine_spread, total.bound)
        return Timing(total.seconds, low, total.high * self.engine_spread, total.bound)

    @property
    def seconds(self) -> Array:
        return self.total.seconds

    @property
    def classes(self) -> dict[str, Timing]:
        """Seconds of each kernel class, all terms together, and of the host."""
        found = {"host": self.host}
        for part in self.parts:
            for name, timing in part.classes.items():
                found[name] = found.get(name, NOTHING) + timing
        return found

    def term(self, name: Term) -> Array:
        """Expected seconds of one term."""
        if name == "host":
            return self.host.seconds
        return sum((part.total.seconds for part in self.parts if part.term == name), start=np.float64(0.0))

    def kv_read_bytes(self, *terms: Term) -> Array:
        """Bytes of KV that some terms move, all their passes together."""
        operations = (operation for part in self.parts if part.term in terms for operation in part.operations())
        return sum((operation.kv * operation.repeats for operation in operations), start=np.float64(0.0))

    @property
    def entries(self) -> Iterator[Entry]:
        """Every operation with its time."""
        for part in self.parts:
            yield from part.entries(self.machine)


@dataclass(frozen=True)
class Composer:
    """The steps of one workload. Passes that systems share are costed once."""

    model: Model
    engine: Engine
    machine: Machine
    work: Workload
    generation: Generation
    _priced: dict[tuple[object, ...], Part] = field(default_factory=dict, repr=False, compare=False)

    def base_step(self) -> Step:
        """One iteration without speculation."""
        return self._step(base_plan(self.work, self.generation), by_reduction=self.engine.base_by_reduction)

    def idle_step(self, speculation: Speculation) -> Step:
        """One iteration while an adaptive depth is 0: a base step, and the wide pass where it still runs.

        Groups exchange rows as they do while they draft: the server is one that speculates.
        """
        return self._step(idle_plan(self.work, speculation, self.engine.idle_wide_pass))

    def speculative_step(self, speculation: Speculation) -> Step:
        """One round of a system at a ``work.depth`` of at least 1."""
        return self._step(plan(speculation, self.work), speculation)

    def _step(self, planned: Plan, speculation: Speculation | None = None, by_reduction: bool = False) -> Step:
        passes = tuple(self._part(each, by_reduction) for each in planned.passes)
        last = self._sampled(planned)
        beside = tuple(self._beside(each, planned.most) for each in planned.upkeep)
        parts = (*passes, last, *beside)
        host = self._host(parts, planned, speculation)
        return Step(parts, host, self.machine, self.engine.spread_over(self.work.layout.ranks))

    # --- parts ---

    def _part(self, planned: PlannedPass, by_reduction: bool) -> Part:
        key = (*planned.key, by_reduction)
        if key not in self._priced:
            self._priced[key] = self._timed(planned.term, lambda: self._operations(planned, by_reduction), planned)
        return self._priced[key]

    def _sampled(self, planned: Plan) -> Part:
        rows = np.asarray(planned.judged)
        key = ("sample", rows.shape, rows.tobytes(), planned.commits, planned.judgings)
        if key not in self._priced:
            self._priced[key] = self._timed("sample", lambda: self._judged(planned))
        return self._priced[key]

    def _beside(self, item: Upkeep, most: Array) -> Part:
        """Work beside the passes, in the term in which the drafter's caches are kept up."""
        times = (1.0 if item.per == "round" else most) / item.every
        return self._timed("extend", lambda: upkeep(item, self.model, self._shape_of_one(), times))

    def _timed(
        self, term: Term, operations: Callable[[], Iterator[Operation]], planned: PlannedPass | None = None
    ) -> Part:
        return Part(term, operations, self.machine.by_class(operations()), planned)

    # --- operations ---

    def _operations(self, planned: PlannedPass, by_reduction: bool) -> Iterator[Operation]:
        """A pass as the engine serves it, with its slot lists and mask."""
        shape, serving, batch = self._shape(planned, by_reduction), self._serving, self.work.group_batch
        kernels = self._kernels(planned)
        narrow = planned.drafter is not None and not planned.wide
        for operation in serving.served(self._forward(planned, shape), kernels, shape.layout):
            if narrow and planned.drafter.shares_index_across_steps and operation.kernel == "index_scan":  # type: ignore[union-attr]
                continue
            yield operation.times(planned.times)
            if planned.unpack_flops and operation.kernel in ("attention", "mla"):
                yield _unpacked(operation, planned).times(planned.times)
        if np.any(planned.lists):
            for operation in serving.index(planned.phase, batch, planned.committed, planned.lists):
                yield operation.times(np.minimum(planned.lists, 1.0))
        if planned.phase == "verify":
            for operation in serving.mask(kernels, batch, planned.rows, planned.committed):
                yield operation.times(planned.times)

    def _forward(self, planned: PlannedPass, shape: Pass) -> Iterator[Operation]:
        if planned.drafter is None:
            return target_forward(self.model, shape, planned.kept)
        if planned.runs == "micro":
            return micro_forward(planned.drafter, shape)
        if planned.runs == "cache":
            return cache_fill(planned.drafter, shape)
        return draft_forward(planned.drafter, shape, self.work.group_batch * planned.logit_rows, planned.wide)

    def _judged(self, planned: Plan) -> Iterator[Operation]:
        """Judging rows, and committing the accepted recurrent state."""
        batch, launches = self.work.group_batch, self.engine.sample_launches
        judged = sample(batch * planned.judged, self.model.vocab, "sample.accept", launches=launches)
        yield judged.times(planned.judgings)
        state = state_bytes_per_sequence(self.model) / self.work.layout.tp
        if planned.commits and state and self.engine.state.commit_copies:
            yield state_commit(state, batch, self.engine.state.commit_copies)

    # --- pieces ---

    @property
    def _serving(self) -> Serving:
        return Serving(self.engine, self.machine)

    def _shape_of_one(self) -> Pass:
        """One row of each sequence, for matrices beside the passes: whole on every rank."""
        return Pass(self.work.group_batch, 1.0, self.work.context, self.work.kv_bytes, 4.0)

    def _kernels(self, planned: PlannedPass) -> tuple[ServedBy, ...]:
        blocks = self.model.blocks if planned.drafter is None else planned.drafter.blocks
        return self._serving.kernels(planned.phase, blocks, planned.kv_bytes, planned.windowed)

    def _shape(self, planned: PlannedPass, by_reduction: bool) -> Pass:
        """A planned pass with the layout, padding and state handling of its engine."""
        work, drafter, layout = self.work, planned.drafter, self.work.layout
        if drafter is not None:
            layout = layout.for_draft(drafter.kind)
        elif by_reduction and not layout.all_to_all:
            layout = replace(layout, by_reduction=True)
        padded = self.engine.pad_draft_rows and planned.term == "draft"
        states = planned.rows * self.engine.state.writes_per_row if planned.keeps_states else 1.0
        return Pass(
            batch=work.group_batch,
            rows=planned.rows,
            attended=planned.committed + planned.drafted,
            kv_bytes=planned.kv_bytes,
            state_bytes=float((self.model if drafter is None else drafter).state_dtype_bytes),
            overlap=work.overlap if planned.overlap is None else planned.overlap,
            skew=work.skew,
            state_writes=states,
            layout=layout,
            row_multiple=work.depth + 1.0 if padded else 1.0,
            slots=self.engine.slots_for(work.group_batch),
            written=planned.written,
            most_experts=planned.most_experts,
        )

    def _host(self, parts: tuple[Part, ...], planned: Plan, speculation: Speculation | None) -> Timing:
        """What a step takes beyond its kernels.

        The GPU's waits, and what launches outside a graph take longer than their kernels; at least what the host's own
        work takes longer than all of that. A time that a person stated has no range.
        """
        drafter = None if speculation is None else speculation.drafter
        host = self.engine.host_of(self.work.layout, None if drafter is None else drafter.kind)
        waits: Array
        work: Array
        if speculation is None:
            main, rounds = "host.base_s", self.generation.passes / self.generation.tokens
            waits, work = host.base_s * rounds, host.base_work_s * rounds
        else:
            main = "host.step_s"
            waits = host.step_s + host.per_draft_s * planned.later
            if host.per_sequence_s:
                waits = waits + host.per_sequence_s * self.work.group_batch
            work = host.step_work_s + host.per_draft_work_s * planned.later
        spread = 1.0 if self.engine.stated(main) else self.machine.profile.host_spread
        for part in parts:
            waits = waits + self._waits(part, host)
        busy = sum((part.total.seconds for part in parts), start=np.float64(0.0))
        seconds = np.maximum(waits, work - busy)
        return Timing(seconds, seconds / spread, seconds * spread, np.float64(0.0))

    def _waits(self, part: Part, host: Host) -> Array:
        """What the GPU waits for one pass: launches outside a graph, a plan on the host, a link to other memory."""
        planned = part.planned
        if planned is None:
            return 0.0
        waits: Array = 0.0
        if planned.phase in host.eager:
            waits = np.maximum(host.eager_launch_s * part.launches - part.total.seconds, 0.0)
        if plan_s := self._serving.plan_s(self._kernels(planned)):
            waits = waits + plan_s * planned.times
        offload = self.generation.offload
        if offload is not None:
            waits = waits + np.maximum(
                _crossing(part, planned, offload) / offload.link_bytes_per_s - part.total.seconds, 0.0
            )
        return waits


def _crossing(part: Part, planned: PlannedPass, offload: Offload) -> Array:
    """Bytes of the target's weights and cache that come over the link for a pass, its repetitions included."""
    drafter = planned.drafter
    weights = offload.weights if drafter is None or drafter.of_target else 0.0
    kv = offload.kv if drafter is None or not planned.written else 0.0
    moved = ((weights * each.weights + kv * each.kv) * each.repeats for each in part.operations())
    return sum(moved, start=np.float64(0.0))


def _unpacked(attention: Operation, planned: PlannedPass) -> Operation:
    """The products that rebuild what an attention reads, once for all its rows and within its launch."""
    flops = planned.unpack_flops * attention.kv / planned.kv_bytes
    return Operation("attention.unpack", "gemm", flops=flops, launches=0.0, repeats=attention.repeats)
