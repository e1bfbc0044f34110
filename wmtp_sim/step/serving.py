"""What an engine does to a pass: the kernels of its attention, slot lists, masks, and small kernels around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wmtp_sim.machine.machine import Machine
from wmtp_sim.spec.engine import AttentionKernel, Engine, Phase, ServedBy
from wmtp_sim.spec.model import Block, has_sinks
from wmtp_sim.spec.parallel import Layout
from wmtp_sim.spec.precision import FORMATS
from wmtp_sim.work.operation import Array, Operation, pad_rows

#: Rows that kernels over packed weights multiply one by one at most; more of them take a matrix kernel, which costs no
#: more (llama.cpp's MMVQ_MAX_BATCH_SIZE; 8 rows are also what the shares were measured with).
ROW_BY_ROW = 8


@dataclass(frozen=True)
class Serving:
    """An engine on a machine."""

    engine: Engine
    machine: Machine

    def kernels(self, phase: Phase, blocks: tuple[Block, ...], kv_bytes: float, windowed: bool) -> tuple[ServedBy, ...]:
        """The attention kernels of a phase's backend: by GPU, by the cache that the pass reads, by its layers."""
        gpu, sinks = self.machine.gpu, has_sinks(blocks)
        backend = self.engine.attention_on(gpu.architecture, kv_bytes, sinks).of(phase, windowed)
        return self.engine.kernels_of(backend, gpu, kv_bytes, sinks)

    def plan_s(self, kernels: tuple[ServedBy, ...]) -> float:
        """Seconds that the host plans before a pass on these kernels."""
        return max(self.engine.attention_kernels[entry.kernel].plan_s for entry in kernels)

    def index(self, phase: Phase, batch: Array, positions: Array, lists: Array) -> Iterator[Operation]:
        """Slot lists of one phase: all ``lists`` are built by one launch, side by side."""
        for build in self.engine.index_on(self.machine.gpu.architecture, phase):
            count = np.maximum(lists, 1.0) if build.per_depth else 1.0
            blocks: Array = 1.0
            if build.tokens_per_block is not None:
                shared = np.maximum(np.floor(build.max_blocks / (count * batch)), 1.0)
                blocks = np.minimum(np.ceil(positions / build.tokens_per_block), shared)
            moved = batch * positions * count * build.bytes_per_position
            slower = np.where(moved > build.crowded_bytes, build.crowded_slowdown, build.turn_slowdown)
            yield Operation(
                name="index.build",
                kernel="index_build",
                metadata=moved,
                turns=np.ceil(positions / build.tokens_per_turn / blocks) * slower,
                launches=build.launches,
            )

    def mask(self, kernels: tuple[ServedBy, ...], batch: Array, rows: Array, context: Array) -> Iterator[Operation]:
        """The explicit mask of a verify, where one of its kernels takes one."""
        rules = (self.engine.attention_kernels[entry.kernel] for entry in kernels)
        if mask_bytes := max(rule.verify_mask_bytes for rule in rules):
            cells = batch * rows * (context + rows)
            yield Operation(name="mask.build", kernel="copy", metadata=mask_bytes * cells, launches=3.0)

    def served(
        self, operations: Iterable[Operation], kernels: tuple[ServedBy, ...], layout: Layout
    ) -> Iterator[Operation]:
        """Operations as the engine's kernels run them: attention split over thread blocks, small kernels fused."""
        for operation in operations:
            if operation.kernel == "attention":
                yield from self._attended(operation, kernels)
            elif operation.kernel == "mla":
                yield operation.changed(variant=kernels[0].kernel)
            elif operation.kernel == "elementwise":
                around = operation.name.removeprefix("elementwise.")
                yield operation.changed(launches=operation.launches * self.engine.elementwise[around])  # type: ignore[index]
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
                yield split_attention(operation.changed(variant=entry.kernel), rule)
            elif np.any(here):
                yield split_attention(operation.changed(variant=entry.kernel), rule).times(here.astype(float))

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
            operation = operation.changed(launches=0.0)
        slowdown: Array = self.engine.weight_slowdown.get(operation.weight_format, 1.0)
        further = self.engine.further_row(self.machine.gpu.architecture, operation.weight_format)
        if further:
            slowdown = slowdown * (1.0 + further * np.clip(_rows_of_a_weight(operation) - 1.0, 0.0, ROW_BY_ROW - 1.0))
        return operation.changed(slowdown=slowdown)


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
    served = operation.changed(
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
        return served.changed(rereads=operation.query_heads)
    rows_per_read = _rows_per_tile(operation, rule)
    return served.changed(rereads=np.ceil(operation.rows / rows_per_read), rows_per_read=rows_per_read)
