"""What was measured of a kernel class, geometry by geometry, and how a prediction uses it.

A class's form is smooth; real kernels are not (tile shapes, split rules, library heuristics). At a geometry that was
measured, log(measured) is interpolated in log(size): the form's seconds, and a little of every leg that hides behind
the longest, so that sizes which the longest alone cannot tell apart keep their order. Beyond the points the efficiency
holds: time goes as the form. Both rise with what is moved, and measured times are kept in order, so no prediction falls
below that of a smaller size.

Where one size belongs to each number of rows (a matrix and its batch), the efficiency is interpolated in log rows: the
form knows where FLOPs begin to bind. Where several do (attention over contexts, recurrences over batches), each
measured number of rows has a curve of its own, and between rows the time itself is interpolated: a mean of two times
that rise with bytes rises, whatever the form does in between. There the time holds with fewer rows than measured, and
grows as the form does with more, which rises with bytes where FLOPs grow along (a longer context).

A geometry that was not measured gets the form times the mean factor of its nearest neighbours, weighted by their
distance in octaves; where all are far, the form alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from wmtp_sim.spec.base import Spec

Positive = Annotated[float, Field(gt=0, le=1e18)]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Pace:
    """One execution by a class's form: ``form_s``, its seconds, and ``size_s``, by which measured sizes are ordered."""

    form_s: FloatArray
    size_s: FloatArray


#: The pace at other rows than an operation's, all else as it is.
Form = Callable[[ArrayLike], Pace]

#: Geometries this close (in octaves) are the same.
SAME = 1e-6
#: How many measured geometries speak for one that was not.
NEIGHBOURS = 4
#: |log(measured / form)| beyond which a point is no measurement of that form.
FARTHEST = 5.0


class Curve(Spec):
    """Points of one number of rows: ``size_s`` ascending, ``form_s`` and the measured ``seconds`` never falling."""

    rows: Positive
    size_s: tuple[Positive, ...]
    form_s: tuple[Positive, ...]
    seconds: tuple[Positive, ...]

    @model_validator(mode="after")
    def _rises(self) -> Curve:
        if not self.size_s or not len(self.size_s) == len(self.form_s) == len(self.seconds):
            raise ValueError(f"{len(self.size_s)} sizes, {len(self.form_s)} form times, {len(self.seconds)} times")
        if any(a >= b for a, b in pairwise(self.size_s)):
            raise ValueError("sizes do not ascend")
        for times in (self.form_s, self.seconds):
            if any(a > b for a, b in pairwise(times)):
                raise ValueError("times fall")
        if any(abs(math.log(b / a)) > FARTHEST for a, b in zip(self.form_s, self.seconds, strict=True)):
            raise ValueError("times are far from the form")
        return self

    @cached_property
    def log_ratios(self) -> FloatArray:
        return np.log(self.seconds) - np.log(self.form_s)

    def seconds_at(self, pace: Pace) -> FloatArray:
        """Seconds at a size, at these rows."""
        between = np.exp(np.interp(np.log(pace.size_s), np.log(self.size_s), np.log(self.seconds)))
        before = pace.form_s * np.exp(self.log_ratios[0])
        beyond = pace.form_s * np.exp(self.log_ratios[-1])
        inside = np.where(pace.size_s > self.size_s[-1], np.maximum(beyond, self.seconds[-1]), between)
        return np.asarray(np.where(pace.size_s < self.size_s[0], np.minimum(before, self.seconds[0]), inside))


class MeasuredGeometry(Spec):
    """One geometry: its mean log(measured / form), and its curves by ascending rows (none: the factor is all)."""

    geometry: tuple[Positive, ...]
    log_factor: float = Field(ge=-FARTHEST, le=FARTHEST)
    curves: tuple[Curve, ...] = ()

    @model_validator(mode="after")
    def _rows_ascend(self) -> MeasuredGeometry:
        rows = [curve.rows for curve in self.curves]
        if sorted(set(rows)) != rows:
            raise ValueError("rows do not ascend")
        return self

    def seconds(self, rows: FloatArray, form: Form) -> FloatArray:
        """Seconds at a number of rows; ``form(rows)`` is what the form says of the operation at other rows."""
        if not self.curves:
            return np.asarray(form(rows).form_s * math.exp(self.log_factor))
        if all(len(curve.size_s) == 1 for curve in self.curves):
            return self._along_rows(rows, form)
        steps = [curve.rows for curve in self.curves]
        paces = [form(np.float64(step)) for step in steps]
        times = [curve.seconds_at(pace) for curve, pace in zip(self.curves, paces, strict=True)]
        times = [np.maximum.reduce(times[: i + 1]) for i in range(len(times))]
        found = times[0]
        for i in range(1, len(steps)):
            part = np.clip((rows - steps[i - 1]) / (steps[i] - steps[i - 1]), 0.0, 1.0)
            found = found + part * (times[i] - times[i - 1])
        return np.asarray(found * np.maximum(form(rows).form_s / paces[-1].form_s, 1.0))

    def _along_rows(self, rows: FloatArray, form: Form) -> FloatArray:
        """One size per number of rows (a matrix and its batch): the efficiency is interpolated, in log rows.

        Never faster than fewer rows were measured, or would have been with as few bytes. A form that is convex in log
        rows then never falls while an operation moves what was measured, or the same share of it at any rows.
        """
        steps = [curve.rows for curve in self.curves]
        ratios = [float(curve.log_ratios[0]) for curve in self.curves]
        found = form(rows).form_s * np.exp(np.interp(np.log(rows), np.log(steps), ratios))
        for curve, ratio in zip(self.curves, ratios, strict=True):
            fewer = np.minimum(curve.seconds[0], form(np.float64(curve.rows)).form_s * math.exp(ratio))
            found = np.maximum(found, np.where(rows >= curve.rows, fewer, 0.0))
        return np.asarray(found)


class Measured(Spec):
    """All measured geometries of a kernel class.

    ``reach_octaves`` is the distance at which a neighbour's weight falls to exp(-1/2), ``doubt`` the weight of "no
    deviation from the form" against all neighbours.
    """

    geometries: tuple[MeasuredGeometry, ...]
    reach_octaves: float = Field(default=0.5, gt=0, le=8)
    doubt: float = Field(default=0.05, gt=0, le=10)

    @cached_property
    def _exact(self) -> dict[tuple[float, ...], MeasuredGeometry]:
        return {entry.geometry: entry for entry in self.geometries}

    def without_curves(self) -> Measured:
        """The factors alone."""
        entries = tuple(entry.model_copy(update={"curves": ()}) for entry in self.geometries)
        return Measured(geometries=entries, reach_octaves=self.reach_octaves, doubt=self.doubt)

    def find(self, geometry: tuple[float, ...]) -> MeasuredGeometry | None:
        """The entry of this very geometry."""
        if geometry in self._exact:
            return self._exact[geometry]
        return next((e for e in self.geometries if distance(e.geometry, geometry) <= SAME), None)

    def factor(self, geometry: tuple[float, ...]) -> float:
        """The factor on the form for a geometry that was not measured."""
        near = sorted((distance(e.geometry, geometry), e.log_factor) for e in self.geometries)[:NEIGHBOURS]
        total, weights = 0.0, self.doubt
        for octaves, log_factor in near:
            weight = math.exp(-(octaves**2) / (2 * self.reach_octaves**2))
            total, weights = total + weight * log_factor, weights + weight
        return math.exp(total / weights)


def distance(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Octaves between two geometries (Euclidean over their sizes); infinite between kinds, and where a size is none."""
    if len(one) != len(other) or min((*one, *other), default=1.0) <= 0:
        return math.inf
    return math.sqrt(sum(math.log2(a / b) ** 2 for a, b in zip(one, other, strict=True)))
