"""What one step is asked to do: context, depth, window, batch. Numbers or arrays that broadcast with one another."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmtp_sim.errors import InputError
from wmtp_sim.spec.parallel import ALONE, Layout

FloatArray = NDArray[np.float64]

#: Smallest allowed value of each array field, and whether it counts whole things.
_LIMITS = {"context": 1, "depth": 0, "window": 1, "sink": 0, "batch": 1}
#: Nothing real comes near; it keeps absurd input from overflowing the arithmetic.
MAX_TOKENS = 2**40


@dataclass(frozen=True)
class Workload:
    """One point, or a grid of points.

    Attributes:
        context: committed tokens whose KV is resident when the step starts.
        depth: tokens drafted per step (vLLM ``num_speculative_tokens``; SGLang ``num_steps`` at topk 1); 0 = none.
        window, sink: tokens that a windowed draft attends: the most recent ones, and the first ones.
        batch: sequences decoded together, by all GPUs; groups of ranks with sequences of their own share them evenly.
        kv_bytes, draft_kv_bytes: bytes per cached K or V element of target and drafter.
        overlap: share of the experts beyond a sequence's first row that its further rows do not add, 0 <= overlap < 1.
        skew: exponent of experts' popularity, 0 to 4; 0 routes uniformly.
        layout: how GPUs share the model.

    Raises:
        InputError: naming the flag of a value that is not a whole number in range.
    """

    context: FloatArray
    depth: FloatArray
    window: FloatArray
    sink: FloatArray
    batch: FloatArray
    kv_bytes: float = 2.0
    draft_kv_bytes: float = 2.0
    overlap: float = 0.0
    skew: float = 0.0
    layout: Layout = ALONE

    def __post_init__(self) -> None:
        for name, least in _LIMITS.items():
            object.__setattr__(self, name, _whole_numbers(f"--{name}", getattr(self, name), least))
        try:
            np.broadcast_shapes(*(getattr(self, name).shape for name in _LIMITS))
        except ValueError:
            shapes = ", ".join(f"{name} {getattr(self, name).shape}" for name in _LIMITS)
            hint = "give each range its own axis (wmtp_sim.open_grid does)"
            raise InputError("ranges", f"the shapes {shapes} do not broadcast", hint) from None
        if not 0 <= self.overlap < 1:
            raise InputError("--overlap", f"{self.overlap} is not in [0, 1)", "0 routes every row independently")
        if not 0 <= self.skew <= 4:
            raise InputError("--routing-skew", f"{self.skew} is not in [0, 4]", "0 routes uniformly, 1 is Zipf's law")

    @property
    def shape(self) -> tuple[int, ...]:
        """The common shape of all points."""
        return np.broadcast_shapes(*(getattr(self, f.name).shape for f in fields(self) if f.name in _LIMITS))

    @property
    def group_batch(self) -> FloatArray:
        """Sequences of the fullest group of ranks: ``batch`` where there is one group."""
        return np.ceil(self.batch / self.layout.dp)

    @property
    def sink_and_window(self) -> FloatArray:
        """Tokens that a windowed draft pass attends where the context has as many."""
        return np.asarray(self.window + self.sink)

    @property
    def windowed(self) -> FloatArray:
        """Committed tokens that a windowed draft pass attends: the whole context where the window holds it."""
        return np.minimum(self.context, self.window + self.sink)


def _whole_numbers(flag: str, values: ArrayLike, least: int) -> FloatArray:
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise InputError(flag, f"{str(values)[:40]!r} is not a number", "a whole number, or an array of them") from None
    good = np.isfinite(array) & (array == np.floor(array)) & (array >= least) & (array <= MAX_TOKENS)
    if not good.all():
        bad = array[~good].flat[0]
        if bad > MAX_TOKENS and np.isfinite(bad):
            raise InputError(flag, f"{bad:g} is out of range", f"at most {MAX_TOKENS}")
        raise InputError(
            flag, f"{bad:g} is not a whole number of at least {least}", f"for example {flag} {max(least, 1)}"
        )
    array.setflags(write=False)
    return array


def open_grid(*axes: ArrayLike) -> tuple[NDArray[np.float64], ...]:
    """Each range on an axis of its own, so that they broadcast to the whole grid without being copied.

    ``context, depth = open_grid([4096, 1048576], range(1, 9))`` gives shapes (2, 1) and (1, 8).
    """
    return tuple(np.asarray(axis, dtype=float) for axis in np.ix_(*(np.atleast_1d(axis) for axis in axes)))


def ranged(*axes: list[int]) -> tuple[NDArray[np.float64], ...]:
    """As `open_grid`, but an input with one value takes no axis."""
    count = sum(len(axis) > 1 for axis in axes)
    found, seen = [], 0
    for axis in axes:
        shape = [1] * count
        if len(axis) > 1:
            shape[seen] = len(axis)
            seen += 1
        array = np.asarray(axis, dtype=float)
        found.append(array.reshape(shape) if len(axis) > 1 else array.reshape(()))
    return tuple(found)
