"""What a pass runs on: where weights lie, the buffers that all passes share, recurrent states, and one pass's rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Place:
    """Where weights lie, in which type, and how many multiprocessors split a context."""

    device: torch.device
    dtype: torch.dtype = torch.bfloat16

    @property
    def sm_count(self) -> int:
        if self.device.type != "cuda":
            return 8
        return torch.cuda.get_device_properties(self.device).multi_processor_count

    def normal(self, *shape: int, std: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(*shape, dtype=dtype or self.dtype, device=self.device).normal_(0.0, std)

    def ones(self, *shape: int) -> Tensor:
        return torch.ones(*shape, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class Scratch:
    """What passes write besides caches: made at first use, then the same for every pass of that shape."""

    place: Place
    kept: dict[Hashable, Any] = field(default_factory=dict)

    def keep(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """What ``make`` returned when this key was first asked for."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A buffer of that name and shape; layers that run one after the other share it."""
        dtype = dtype or self.place.dtype
        return self.keep((name, shape, dtype), lambda: torch.empty(*shape, dtype=dtype, device=self.place.device))


@dataclass(frozen=True)
class States:
    """Recurrent states of all layers, and what a verify leaves of each row.

    Attributes:
        recurrent: ``[layers, sequences, *state]`` float32.
        conv: ``[layers, sequences, taps - 1, channels]``, the last inputs of the short convolutions.
        snapshots: ``[layers, sequences, rows, *state]``, states after each row.
        columns: ``[layers, sequences, taps - 1 + rows, channels]``, convolution inputs up to each row.
    """

    recurrent: Tensor
    conv: Tensor
    snapshots: Tensor | None = None
    columns: Tensor | None = None

    def of(self, layer: int) -> States:
        """One layer's part."""
        later = (None if view is None else view[layer] for view in (self.snapshots, self.columns))
        return States(self.recurrent[layer], self.conv[layer], *later)


@dataclass(frozen=True)
class Pass:
    """One forward pass of ``rows`` rows per sequence.

    Attributes:
        sequences, rows: query rows are numbered sequence * rows + row.
        positions: of each row, ``[sequences * rows]`` int32.
        slots: cache slot that each row is written to, ``[sequences * rows]`` int32.
        listed: slots that a sequence attends, this pass's own last, ``[sequences, width]`` int32.
        lengths: how many of them, ``[sequences]`` int32.
        cos_sin: rotary tables by width: cosines, then sines, ``[positions, rotary]`` float32.
        scratch: buffers.
        states: recurrent states; with snapshots they are left alone.
    """

    sequences: int
    rows: int
    positions: Tensor
    slots: Tensor
    listed: Tensor
    lengths: Tensor
    cos_sin: dict[int, Tensor]
    scratch: Scratch
    states: States | None = None

    @property
    def tokens(self) -> int:
        return self.sequences * self.rows

    @property
    def longest(self) -> int:
        """Tokens that the longest list may have: what splits are chosen for."""
        return self.listed.shape[1]

    def buffer(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return self.scratch.tensor(name, *shape, dtype=dtype)
