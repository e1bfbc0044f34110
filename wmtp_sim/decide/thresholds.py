"""Where a choice flips, found on the model itself: a range is looked at on a grid, and each change is narrowed down."""

from __future__ import annotations

import itertools
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
#: Of whole numbers [S], in which of several states each is; [S, K].
States = Callable[[IntArray], NDArray[np.bool_]]
#: Parts that a gap of the grid is cut into while the change in it is narrowed down.
PARTS = 16


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


@dataclass(frozen=True)
class Standing:
    """Where along an axis the choice is the present one, or where nothing is possible, if nothing is at present.

    Attributes:
        axis: as of a `Threshold`.
        intervals: closed, ascending; factors on the rates, longest contexts or largest batches of the mix.
        lowest, highest: the values between which it was looked for.
        gap: the largest distance between two values that were looked at, as a share of the larger one, and of the
            stated rates where acceptance is moved; 0 where all were. What changes and changes back within it may be
            missed.
        accept_lengths: of ``option`` at the ends of the intervals (of acceptance only).
    """

    axis: Axis
    intervals: tuple[tuple[float, float], ...]
    lowest: float
    highest: float
    gap: float
    option: Option | None = None
    accept_lengths: tuple[tuple[float, float], ...] = ()


def between(start: int, end: int, count: int) -> IntArray:
    """Whole numbers from ``start`` to ``end`` in equal ratios, at most ``count`` of them, each once; all if there are
    no more."""
    if abs(end - start) < count:
        return np.arange(start, end + (1 if end >= start else -1), 1 if end >= start else -1)
    whole: IntArray = np.rint(np.geomspace(start, end, count)).astype(np.int64)
    apart: IntArray = whole[np.concatenate([[True], whole[1:] != whole[:-1]])]
    return apart


def held_intervals(first: bool, ends: list[int]) -> list[tuple[int, int]]:
    """Closed intervals in which something holds that changes behind each of ``ends``: in the first of them, or not."""
    runs = itertools.pairwise(ends)
    return [(before + 1, end) for place, (before, end) in enumerate(runs) if first == (place % 2 == 0)]


def narrowed(states: States, near: IntArray, far: IntArray, which: IntArray) -> IntArray:
    """For pairs of numbers [E] of different states, the first number from ``near`` on that is not in near's state.

    All pairs are narrowed side by side. What changes and changes back between two cuts is not seen.

    Args:
        states: of numbers [S], whether each is in each state; [S, K].
        near, far, which: the ends of each pair, and which of the states they differ in; [E].
    """
    near, far, each = near.copy(), far.copy(), np.arange(near.size)
    while (np.abs(far - near) > 1).any():
        cuts = _cuts(near, far)
        found = states(cuts.ravel()).reshape(*cuts.shape, -1)[each, :, which]
        first = (found != found[:, :1]).argmax(axis=1)
        near, far = cuts[each, first - 1], cuts[each, first]
    return far


def _cuts(near: IntArray, far: IntArray) -> IntArray:
    """Whole numbers from ``near`` to ``far``, both among them; [E, PARTS + 1]. Exact where floats would not be."""
    part, rest = np.divmod(np.abs(far - near), PARTS)
    places = np.arange(PARTS + 1)
    steps = part[:, np.newaxis] * places + rest[:, np.newaxis] * places // PARTS
    cuts: IntArray = near[:, np.newaxis] + np.sign(far - near)[:, np.newaxis] * steps
    return cuts


@dataclass(frozen=True)
class Walk:
    """What is chosen along an axis, as an option's place.

    Attributes:
        grid, chosen: whole numbers that were looked at, ascending, and the choice at each; [G].
        now: the choice at what is stated.
        flips: the number behind each change of whether the choice is ``now``, seen from what is stated; ascending.
        off: the nearest numbers below and above at which nothing is drafted, where something is ``now``.
    """

    grid: IntArray
    chosen: IntArray
    now: int
    start: int
    flips: list[int]
    off: dict[Side, int]

    @classmethod
    def along(cls, chosen_at: Callable[[IntArray], IntArray], grid: IntArray, start: int) -> Walk:
        """Look at a grid that holds ``start``, and narrow down what changes."""
        chosen = chosen_at(grid)
        place = int(np.searchsorted(grid, start))
        now = int(chosen[place])
        held = chosen == now
        changes = np.flatnonzero(held[1:] != held[:-1])
        inner = np.where(changes < place, changes + 1, changes)
        outer = np.where(changes < place, changes, changes + 1)
        offs = {side: _first_off(chosen, place, step) for side, step in _STEPS.items()} if now > 0 else {}
        found = {side: at for side, at in offs.items() if at is not None}
        near = np.concatenate([inner, [at - _STEPS[side] for side, at in found.items()]]).astype(np.int64)
        far = np.concatenate([outer, list(found.values())]).astype(np.int64)
        which = np.repeat([0, 1], [changes.size, len(found)])

        def states(at: IntArray) -> NDArray[np.bool_]:
            there = chosen_at(at)
            return np.stack([there == now, there == 0], axis=-1)

        ends = narrowed(states, grid[near], grid[far], which).tolist()
        off = dict(zip(found, ends[changes.size :], strict=True))
        return cls(grid, chosen, now, start, ends[: changes.size], off)

    def nearest(self, side: Side) -> int | None:
        """The first number on one side at which the choice is another."""
        if side == "below":
            return max((at for at in self.flips if at < self.start), default=None)
        return min((at for at in self.flips if at > self.start), default=None)

    @property
    def standing(self) -> list[tuple[int, int]]:
        """Closed intervals in which the choice is ``now``."""
        last = [at if at < self.start else at - 1 for at in self.flips]  # the last number before each change
        ends = [int(self.grid[0]) - 1, *last, int(self.grid[-1])]
        return held_intervals(bool(self.chosen[0] == self.now), ends)


_STEPS: dict[Side, int] = {"below": -1, "above": 1}


def _first_off(chosen: IntArray, place: int, step: int) -> int | None:
    """The first place from one on in a direction at which nothing is drafted."""
    off = np.flatnonzero(chosen[place::step] == 0)
    return place + step * int(off[0]) if off.size else None
