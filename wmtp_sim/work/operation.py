"""One kernel's worth of work: FLOPs and bytes by kind, and how much of it can run side by side. No seconds here."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wmtp_sim.spec.precision import MathDtype

#: A number, or an array of any shape that broadcasts with the other inputs of one estimate.
Array = float | NDArray[np.float64]

#: What kind of kernel runs an operation; machines are fitted per class.
KernelClass = Literal[
    "gemm",
    "moe",
    "attention",
    "mla",
    "index_scan",
    "recurrent",
    "elementwise",
    "sample",
    "copy",
    "index_build",
    "collective",
]

BYTE_KINDS = ("weights", "kv", "state", "activations", "metadata")


@dataclass(frozen=True, slots=True)
class Operation:
    """``repeats`` executions of one kernel (or one fixed group of kernels).

    FLOPs, bytes and launches are per execution. All numeric fields broadcast with one another.

    Attributes:
        name: what an engineer would call it in a trace, ``attention.full`` or ``moe.experts``.
        kernel: kernel class.
        variant: the kernel's implementation, which the engine chooses (``fa3``); empty when it does not matter.
        math: input type of the matrix product, which picks the FLOP peak.
        flops, weights, kv, state, activations, metadata: FLOPs, and bytes by kind, that one execution moves.
        repeats: executions per step.
        launches: kernels started per execution.
        streams: independent streams over the KV cache (batch x KV heads); 0 when the kernel is not an attention.
        query_rows: query rows that one stream serves (rows x query heads of the stream); pads to tensor-core tiles.
        query_heads: query heads that share one stream.
        positions: cached tokens that one stream walks.
        row_tile: rows that a tile of the kernel holds; ``tile_rows`` of this operation share one.
        padding: FLOPs that the kernel runs over those that count (query rows padded to its tile).
        rereads: times that the kernel reads the KV bytes over once.
        rows_per_read: query rows of a sequence that one read serves; 0 where it serves all.
        serial_bytes: bytes that the busiest thread block streams by itself; 0 when blocks always share evenly.
        serial_flops: FLOPs that this block runs by itself, its tile's padding included.
        blocks: thread blocks that each run so long; 0 where a launch has as many as the GPU holds.
        turns: dependent loop turns that no bandwidth shortens (index builders).
        weight_format: how the weights of a product are stored (a name of `spec.precision.FORMATS`).
        slowdown: seconds of this engine's kernel over what a profile says of the class.
        rows: query rows of one sequence (attention, recurrence), or of all (matrix products).
        geometry: sizes that efficiency depends on beyond bytes and FLOPs, fixed for one layer of one model: inputs and
            outputs of a product, head size and query heads per stream of an attention. Empty where nothing is known.
    """

    name: str
    kernel: KernelClass
    variant: str = ""
    math: MathDtype = "bf16"
    flops: Array = 0.0
    weights: Array = 0.0
    kv: Array = 0.0
    state: Array = 0.0
    activations: Array = 0.0
    metadata: Array = 0.0
    repeats: Array = 1.0
    launches: float = 1.0
    streams: Array = 0.0
    query_rows: Array = 0.0
    query_heads: float = 1.0
    positions: Array = 0.0
    row_tile: float = 1.0
    tile_rows: Array = 1.0
    padding: Array = 1.0
    rereads: Array = 1.0
    rows_per_read: float = 0.0
    serial_bytes: Array = 0.0
    serial_flops: Array = 0.0
    blocks: Array = 0.0
    turns: Array = 0.0
    weight_format: str = ""
    slowdown: Array = 1.0
    rows: Array = 1.0
    geometry: tuple[float, ...] = ()

    @property
    def bytes(self) -> Array:
        """Bytes of every kind that one execution moves."""
        return self.weights + self.kv + self.state + self.activations + self.metadata

    def changed(self, **changes: Any) -> Operation:
        """The same with some fields changed, as `dataclasses.replace` does in twice the time: most of an estimate."""
        made = object.__new__(Operation)
        for name in _FIELDS:
            object.__setattr__(made, name, changes[name] if name in changes else getattr(self, name))
        return made

    def at_rows(self, rows: Array) -> Operation:
        """The same operation over so many rows: FLOPs in proportion, padded to the kernel's tile. Bytes stay."""
        share = rows / self.rows
        padding, rereads = self.padding, self.rereads
        if self.row_tile > 1.0:
            padding = pad_rows(self.tile_rows * share, self.row_tile)
        if self.rows_per_read:
            rereads = np.ceil(rows / self.rows_per_read)
        return self.changed(flops=self.flops * share, rows=rows, padding=padding, rereads=rereads)

    def times(self, repeats: Array) -> Operation:
        """The same operation, executed ``repeats`` times as often."""
        if isinstance(repeats, float) and repeats == 1.0:
            return self
        return self.changed(repeats=self.repeats * repeats)


_FIELDS = tuple(field.name for field in fields(Operation))


def pad_rows(rows: Array, tile: float) -> Array:
    """FLOPs of ``rows`` padded to a multiple of ``tile`` over those that count."""
    return np.ceil(rows / tile - 1e-9) * tile / rows
