"""An engine's passes composed into one step, term by term.

A step has five terms, the ones a trace shows: draft (narrow passes), verify (the target over depth + 1 rows), extend
(the draft head over the rows just verified, which yields the next first proposal), sample (judging rows, committing
recurrent states) and host. The base step is the target over one row, and its terms go by the same names.

depth drafted tokens take one wide pass, which proposes the first, and depth - 1 narrow ones. A drafter with several
separate heads (MiMo-V2-Flash, Step-3.5) takes a wide pass per head instead (SGLang's multi-layer worker; assumed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wmtp_sim.machine.machine import NOTHING, Machine, Timing
from wmtp_sim.spec.drafter import Drafter
from wmtp_sim.spec.engine import AttentionKernel, Engine, Host, Phase, ServedBy
from wmtp_sim.spec.model import Model, has_sinks
from wmtp_sim.spec.parallel import Layout
from wmtp_sim.spec.precision import FORMATS
from wmtp_sim.spec.workload import Workload
from wmtp_sim.work.cache import state_bytes_per_sequence
from wmtp_sim.work.layers import Pass
from wmtp_sim.work.operation import Array, Operation, pad_rows
from wmtp_sim.work.passes import draft_forward, sample, state_commit, target_forward

Policy = Literal["native", "flag", "ring"]
Read = Literal["context", "window"]
Term = Literal["draft", "verify", "extend", "sample", "host"]
TERMS: tuple[Term, ...] = ("draft", "verify", "extend", "sample", "host")

#: What narrow and wide draft passes attend under each draft KV policy: the merged flag windows narrow passes only
#: (SGLang PR #32673), the paper's ring windows both.
READS: dict[Policy, tuple[Read, Read]] = {
    "native": ("context", "context"),
    "flag": ("window", "context"),
    "ring": ("window", "window"),
}
POLICIES: tuple[Policy, ...] = tuple(READS)

#: Rows that kernels over packed weights multiply one by one at most; more of them take a matrix kernel, which costs no
#: more (llama.cpp's MMVQ_MAX_BATCH_SIZE; 8 rows are also what the shares were measured with).
ROW_BY_ROW = 8


@dataclass(frozen=True)
class Part:
    """One term of a step: its operations, rebuilt when asked for, and their time by kernel class."""

    term: Term
    operations: Callable[[], Iterator[Operation]]
    classes: dict[str, Timing]

    @cached_property
    def total(self) -> Timing:
        return sum(self.classes.values(), start=NOTHING)

    def entries(self, machine: Machine) -> Iterator[Entry]:
        """Every operation with its time on a machine."""
        for operation in self.operations():
            yield Entry(self.term, operation, machine.time(operation))

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
    """The steps of one workload. Terms that policies share are costed once."""

    model: Model
    engine: Engine
    machine: Machine
    work: Workload
    drafter: Drafter | None = None

    def base_step(self) -> Step:
        """One iteration without speculation."""
        host, parts = self._engine_host, self._base_parts
        return self._step(parts, self._host({"base": parts[0]}, parts, host.base_s, host.base_work_s))

    def idle_step(self) -> Step:
        """One iteration while an adaptive depth is 0: a base step, and the wide pass where it still runs.

        Groups exchange rows as they do while they draft: the server is one that speculates.
        """
        host, forward = self._engine_host, self._part("verify", lambda: self._base_forward(False))
        parts: tuple[Part, ...] = (forward, self._base_parts[1])
        if self.engine.idle_wide_pass:
            parts += (self._part("extend", lambda: self._extend("context", rows=1.0)),)
        return self._step(parts, self._host({"base": forward}, parts, host.base_s, host.base_work_s))

    def speculative_step(self, policy: Policy) -> Step:
        """One iteration with drafts of ``work.depth`` >= 1 tokens under a draft KV policy."""
        narrow, wide = READS[policy]
        parts = (self._drafts[narrow], self._verified, self._extends[wide], self._accepted)
        phases: dict[Phase, Part] = {"draft": parts[0], "verify": parts[1], "extend": parts[2]}
        later, host = np.maximum(self.work.depth - 1.0, 0.0), self._engine_host
        waits, work = host.step_s + host.per_draft_s * later, host.step_work_s + host.per_draft_work_s * later
        return self._step(parts, self._host(phases, parts, waits, work))

    def _step(self, parts: tuple[Part, ...], host: Timing) -> Step:
        return Step(parts, host, self.machine, self.engine.spread_over(self.work.layout.ranks))

    # --- parts ---

    @cached_property
    def _base_parts(self) -> tuple[Part, ...]:
        return (
            self._part("verify", lambda: self._base_forward(self.engine.base_by_reduction)),
            self._part("sample", self._base_sampling),
        )

    @cached_property
    def _drafts(self) -> dict[Read, Part]:
        return {read: self._part("draft", lambda read=read: self._draft(read)) for read in self._reads}  # type: ignore[misc]

    @cached_property
    def _extends(self) -> dict[Read, Part]:
        return {read: self._part("extend", lambda read=read: self._extend(read)) for read in self._reads}  # type: ignore[misc]

    @cached_property
    def _verified(self) -> Part:
        return self._part("verify", self._verify)

    @cached_property
    def _accepted(self) -> Part:
        return self._part("sample", self._accept)

    @property
    def _reads(self) -> dict[Read, Array]:
        """Committed tokens that a draft pass attends."""
        return {"context": self.work.context, "window": self.work.windowed}

    def _part(self, term: Term, operations: Callable[[], Iterator[Operation]]) -> Part:
        return Part(term, operations, self.machine.by_class(operations()))

    # --- operations of each term ---

    def _base_forward(self, by_reduction: bool) -> Iterator[Operation]:
        shape = self._target_pass(rows=1.0, state_writes=1.0)
        layout = shape.layout
        shape = replace(shape, layout=replace(layout, by_reduction=by_reduction and not layout.all_to_all))
        yield from self._served("base", target_forward(self.model, shape), shape)
        yield from self._index("base", self.work.context, lists=1.0)

    def _base_sampling(self) -> Iterator[Operation]:
        yield self._sampling(rows=1.0)

    def _draft(self, read: Read) -> Iterator[Operation]:
        """Narrow passes, one per token that no wide pass proposes. Pass i also attends the tokens drafted before it."""
        work, head, committed = self.work, self._head, self._reads[read]
        passes = np.maximum(work.depth - head.resident_copies, 0.0)
        shape = self._draft_pass(rows=1.0, attended=committed + work.depth / 2.0 - 1.0)
        if self.engine.pad_draft_rows:
            shape = replace(shape, row_multiple=work.depth + 1.0)
        forward = draft_forward(head, shape, work.group_batch)
        for operation in self._served("draft", forward, shape):
            if not (head.shares_index_across_steps and operation.kernel == "index_scan"):
                yield operation.times(passes)
        for operation in self._index("draft", committed, lists=passes):
            yield operation.times(np.minimum(passes, 1.0))

    def _verify(self) -> Iterator[Operation]:
        """The target over depth + 1 rows; every row leaves a snapshot of the recurrent states."""
        rows = self.work.depth + 1.0
        shape = self._target_pass(rows, state_writes=rows * self.engine.state.writes_per_row)
        yield from self._served("verify", target_forward(self.model, shape), shape)
        yield from self._index("verify", self.work.context, lists=1.0)
        kernels = (self.engine.attention_kernels[entry.kernel] for entry in self._kernels("verify", shape))
        if mask_bytes := max(kernel.verify_mask_bytes for kernel in kernels):
            cells = self.work.group_batch * rows * (self.work.context + rows)
            yield Operation(name="mask.build", kernel="copy", metadata=mask_bytes * cells, launches=3.0)

    def _extend(self, read: Read, rows: Array | None = None) -> Iterator[Operation]:
        """The drafter over the rows just verified, rejected ones included (or over so many rows).

        Separate heads each run over those rows, to fill their own caches, and each proposes one token.
        """
        committed = self._reads[read]
        rows = self.work.depth + 1.0 if rows is None else rows
        passes = np.minimum(np.maximum(rows - 1.0, 1.0), float(self._head.resident_copies))
        shape = self._draft_pass(rows=rows, attended=committed)
        forward = draft_forward(self._head, shape, self.work.group_batch, wide=True)
        for operation in self._served("extend", forward, shape):
            yield operation.times(passes)
        yield from self._index("extend", committed, lists=1.0)

    def _accept(self) -> Iterator[Operation]:
        """Judging depth + 1 rows and committing the accepted recurrent state."""
        yield self._sampling(rows=self.work.depth + 1.0)
        state = state_bytes_per_sequence(self.model) / self.work.layout.tp
        if state and self.engine.state.commit_copies:
            yield state_commit(state, self.work.group_batch, self.engine.state.commit_copies)

    # --- pieces ---

    def _kernels(self, phase: Phase, shape: Pass) -> tuple[ServedBy, ...]:
        """The attention kernels of a phase's backend: by GPU, by the cache that the pass reads, by its layers."""
        gpu = self.machine.gpu
        blocks = self._head.blocks if phase in ("draft", "extend") else self.model.blocks
        sinks = has_sinks(blocks)
        choice = self.engine.attention_on(gpu.architecture, shape.kv_bytes, sinks)
        return self.engine.kernels_of(getattr(choice, phase), gpu, shape.kv_bytes, sinks)

    @property
    def _head(self) -> Drafter:
        if self.drafter is None:
            raise ValueError("a speculative step needs a drafter")
        return self.drafter

    @property
    def _engine_host(self) -> Host:
        return self.engine.host_of(self.work.layout)

    def _host(self, phases: dict[Phase, Part], parts: tuple[Part, ...], waits: Array, work: Array) -> Timing:
        """What a step takes beyond its kernels.

        The GPU's waits, and what launches outside a graph take longer than their kernels; at least what the host's own
        work takes longer than all of that. A time that a person stated has no range.
        """
        host, main = self._engine_host, "host.base_s" if "base" in phases else "host.step_s"
        spread = 1.0 if self.engine.stated(main) else self.machine.profile.host_spread
        for phase in host.eager:
            if phase in phases:
                launched = host.eager_launch_s * phases[phase].launches
                waits = waits + np.maximum(launched - phases[phase].total.seconds, 0.0)
        busy = sum((part.total.seconds for part in parts), start=np.float64(0.0))
        seconds = np.maximum(waits, work - busy)
        return Timing(seconds, seconds / spread, seconds * spread, np.float64(0.0))

    def _target_pass(self, rows: Array, state_writes: Array) -> Pass:
        return Pass(
            batch=self.work.group_batch,
            rows=rows,
            attended=self.work.context,
            kv_bytes=self.work.kv_bytes,
            state_bytes=float(self.model.state_dtype_bytes),
            overlap=self.work.overlap,
            skew=self.work.skew,
            state_writes=state_writes,
            layout=self.work.layout,
            slots=self.engine.slots_for(self.work.group_batch),
        )

    def _draft_pass(self, rows: Array, attended: Array) -> Pass:
        return Pass(
            batch=self.work.group_batch,
            rows=rows,
            attended=attended,
            kv_bytes=self.work.draft_kv_bytes,
            state_bytes=float(self._head.state_dtype_bytes),
            overlap=self.work.overlap,
            skew=self.work.skew,
            layout=self.work.layout.for_draft(self._head.kind),
            slots=self.engine.slots_for(self.work.group_batch),
        )

    def _sampling(self, rows: Array) -> Operation:
        launches = self.engine.sample_launches
        return sample(self.work.group_batch * rows, self.model.vocab, "sample.accept", launches=launches)

    def _index(self, phase: Phase, positions: Array, lists: Array) -> Iterator[Operation]:
        """Slot lists of one phase: all ``lists`` are built by one launch, side by side."""
        for build in self.engine.index_on(self.machine.gpu.architecture, phase):
            count = np.maximum(lists, 1.0) if build.per_depth else 1.0
            blocks: Array = 1.0
            if build.tokens_per_block is not None:
                shared = np.maximum(np.floor(build.max_blocks / (count * self.work.group_batch)), 1.0)
                blocks = np.minimum(np.ceil(positions / build.tokens_per_block), shared)
            moved = self.work.group_batch * positions * count * build.bytes_per_position
            slower = np.where(moved > build.crowded_bytes, build.crowded_slowdown, build.turn_slowdown)
            yield Operation(
                name="index.build",
                kernel="index_build",
                metadata=moved,
                turns=np.ceil(positions / build.tokens_per_turn / blocks) * slower,
                launches=build.launches,
            )

    def _served(self, phase: Phase, operations: Iterable[Operation], shape: Pass) -> Iterator[Operation]:
        """Operations as the engine's kernels run them: attention split over thread blocks, small kernels fused."""
        kernels, layout = self._kernels(phase, shape), shape.layout
        for operation in operations:
            if operation.kernel == "attention":
                yield from self._attended(operation, kernels)
            elif operation.kernel == "mla":
                yield replace(operation, variant=kernels[0].kernel)
            elif operation.kernel == "elementwise":
                around = operation.name.removeprefix("elementwise.")
                yield replace(operation, launches=operation.launches * self.engine.elementwise[around])  # type: ignore[index]
            elif operation.weight_format:
                yield from self._dealt(operation, layout)
                yield from self._quantized(operation)
                yield self._product(operation)
            else:
                yield operation

    def _attended(self, operation: Operation, kernels: tuple[ServedBy, ...]) -> Iterator[Operation]:
        """An attention by the first kernel that fits it: over a grid, by each kernel where that is the first."""
        left = np.asarray(True)
        for entry in kernels:
            rule = self.engine.attention_kernels[entry.kernel]
            here = left & fits(entry, operation, rule)
            left = left & ~here
            if np.all(here):
                yield split_attention(replace(operation, variant=entry.kernel), rule)
            elif np.any(here):
                yield split_attention(replace(operation, variant=entry.kernel), rule).times(here.astype(float))

    def _dealt(self, operation: Operation, layout: Layout) -> Iterator[Operation]:
        """The small kernels that keep rows of other ranks' experts out of a rank's products."""
        launches = self.engine.whole_expert_launches
        if operation.kernel == "moe" and layout.expert_groups > 1 and not layout.all_to_all and launches:
            yield Operation("elementwise.dealt", "elementwise", launches=launches, repeats=operation.repeats)

    def _quantized(self, operation: Operation) -> Iterator[Operation]:
        """The small kernels that quantise a product's inputs: a row of 16-bit values read, a narrower one written.

        A GPU that does not multiply in a format unpacks its weights instead, and leaves inputs as they are.
        """
        if not self.machine.multiplies_in(operation.math):
            return
        table = self.engine.expert_quantize_launches if operation.kernel == "moe" else self.engine.quantize_launches
        if launches := table.get(operation.math, 0.0):
            width = operation.geometry[0]
            moved = 3.0 * operation.rows * width
            yield Operation(
                "elementwise.quantize",
                "elementwise",
                activations=moved,
                launches=launches,
                repeats=operation.repeats,
                geometry=(width,),
            )

    def _product(self, operation: Operation) -> Operation:
        """A product as this engine runs it: on a second stream, with its own kernels for a weight format."""
        if operation.kernel == "gemm" and operation.name.split(".")[0] in self.engine.concurrent_groups:
            operation = replace(operation, launches=0.0)
        slowdown: Array = self.engine.weight_slowdown.get(operation.weight_format, 1.0)
        further = self.engine.further_row(self.machine.gpu.architecture, operation.weight_format)
        if further:
            slowdown = slowdown * (1.0 + further * np.clip(_rows_of_a_weight(operation) - 1.0, 0.0, ROW_BY_ROW - 1.0))
        return replace(operation, slowdown=slowdown)


def _rows_of_a_weight(operation: Operation) -> Array:
    """Rows that meet each weight read: every row of a dense product, an expert's own rows among the experts touched."""
    fmt = FORMATS[operation.weight_format]
    return operation.flops * fmt.bytes_per_weight / (2.0 * operation.weights)


def fits(entry: ServedBy, operation: Operation, rule: AttentionKernel) -> NDArray[np.bool_]:
    """Where a backend runs an attention with one of its kernels: by head, rows, and blocks of an unsplit launch."""
    few_rows = np.asarray(operation.rows) <= (entry.rows or np.inf)
    few_rows = few_rows & (not entry.head_dims or operation.geometry[0] in entry.head_dims)
    return np.asarray(few_rows & (blocks_of(operation, rule) <= (entry.blocks or np.inf)))


def blocks_of(operation: Operation, rule: AttentionKernel) -> Array:
    """Thread blocks before contexts are split: one for each stream and tile of its rows."""
    if rule.streams == "q_head":
        return operation.streams * operation.query_heads * np.ceil(operation.rows / rule.row_tile)
    return operation.streams * np.ceil(operation.rows / _rows_per_tile(operation, rule))


def _rows_per_tile(operation: Operation, rule: AttentionKernel) -> float:
    """Query rows of a sequence in one tile of a KV head's packed rows: tiles hold whole rows of its heads."""
    return max(rule.row_tile // operation.query_heads, 1.0)


def split_attention(operation: Operation, rule: AttentionKernel) -> Operation:
    """An attention as one implementation runs it.

    One stream is cut into at most ``max_splits`` pieces of at least ``tile_tokens`` tokens; the longest piece is one
    thread block's own work. Streams that share a KV head each read its cache. The query rows of a stream are padded to
    the kernel's tile, in arithmetic only. A cap on the splits is part of the geometry (before the bytes of an element):
    the same kernel under another cap is another curve.
    """
    rows = np.maximum(operation.query_rows, 1.0)
    rows_of_one = rows / (operation.query_heads if rule.streams == "q_head" else 1.0)
    piece = np.minimum(operation.positions, float(rule.tile_tokens))
    if rule.max_splits:
        piece = np.maximum(piece, operation.positions / rule.max_splits)
    stream_bytes = operation.kv / operation.streams
    row_flops = operation.flops / operation.streams / rows  # of one packed row over its whole context
    geometry = operation.geometry
    if geometry and rule.max_splits:
        geometry = (*geometry[:-1], float(rule.max_splits), geometry[-1])
    served = replace(
        operation,
        geometry=geometry,
        row_tile=float(rule.row_tile),
        tile_rows=rows_of_one,
        padding=pad_rows(rows_of_one, rule.row_tile),
        serial_bytes=stream_bytes * piece / operation.positions,
        serial_flops=row_flops * rule.row_tile * piece / operation.positions,
        blocks=blocks_of(operation, rule) * rule.max_splits,
    )
    if rule.read_together or rule.streams == "kv_head":
        return served
    if rule.streams == "q_head":
        return replace(served, rereads=operation.query_heads)
    rows_per_read = _rows_per_tile(operation, rule)
    return replace(served, rereads=np.ceil(operation.rows / rows_per_read), rows_per_read=rows_per_read)
