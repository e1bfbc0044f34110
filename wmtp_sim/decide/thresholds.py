"""Where a choice flips: the nearest whole number on either side, found on the model itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wmtp_sim.decide.options import Option

Axis = Literal["acceptance", "context", "batch"]
Side = Literal["below", "above"]
#: Why the choice is given up: another gives more, or it does not fit, or it misses the target for latency.
Reason = Literal["speed", "memory", "target"]
IntArray = NDArray[np.int64]
#: Of whole numbers [S], which flip the choice.
Flips = Callable[[IntArray], NDArray[np.bool_]]


@dataclass(frozen=True)
class Threshold:
    """From where on another option is chosen.

    Attributes:
        axis: what is moved: all conditional rates by one factor, or all contexts (or batches) of the mix by one.
        side: ``below`` or ``above`` what was stated.
        at: the nearest value at which the choice is another: the factor on the rates, the longest context of the mix,
            or its largest batch.
        becomes: what is chosen there; None where nothing is possible (it does not fit, or misses the target).
        reason: why what was chosen is given up.
        stops: whether this is where speculation stops, which may lie beyond the first change.
        option, accept_length: an option that drafts, and what it accepts at ``at`` (of acceptance only).
    """

    axis: Axis
    side: Side
    at: float
    becomes: Option | None
    reason: Reason
    stops: bool = False
    option: Option | None = None
    accept_length: float | None = None


def between(start: int, end: int, count: int) -> IntArray:
    """Whole numbers from ``start`` to ``end`` in equal ratios, about ``count`` of them, each once."""
    return _in_order(np.geomspace(start, end, count))


def nearest_flip(flips: Flips, samples: IntArray, width: int = 33) -> int | None:
    """The flipping number nearest to the first of ``samples``, which does not flip; None where no sample does.

    ``samples`` run away from the first. The number returned flips, its neighbour towards the first does not. What
    flips and flips back between two samples is not seen.
    """
    while True:
        flipped = flips(samples)
        if not flipped.any():
            return None
        place = int(flipped.argmax())
        if place == 0 or abs(int(samples[place]) - int(samples[place - 1])) == 1:
            return int(samples[place])
        samples = _in_order(np.linspace(samples[place - 1], samples[place], width))


def _in_order(values: NDArray[np.float64]) -> IntArray:
    """Rounded, without repetition, in their direction."""
    whole: IntArray = np.rint(values).astype(np.int64)
    apart: IntArray = whole[np.concatenate([[True], whole[1:] != whole[:-1]])]
    return apart
