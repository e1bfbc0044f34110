"""What was measured of a kernel class, geometry by geometry, and how a prediction uses it.

A class's form is smooth; real kernels are not (tile shapes, split rules, library heuristics). At a geometry that was
measured, log(measured / form) is interpolated between its own points in log bytes, which interpolates the efficiency
and not the time, and holds beyond them; no prediction falls below that of a smaller measured size. A form that is
convex in log size times a straight line then never falls. Between measured rows the time itself is interpolated: a mean
of two times that rise with bytes rises, whatever the form does in between. With fewer rows than measured the time
holds; with more it grows as the form does, which rises with bytes where FLOPs grow along (a longer context). A geometry
that was not measured gets the form times the mean factor of its nearest neighbours, weighted by their distance in
octaves; where all are far, the form alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from wmtp_sim.spec.base import Spec

Positive = Annotated[float, Field(gt=0, le=1e18)]
FloatArray = NDArray[np.float64]

#: Seconds of a class's form at other rows than an operation's, all else as it is.
Form = Callable[[ArrayLike], FloatArray]

#: Geometries this close (in octaves) are the same.
SAME = 1e-6
#: How many measured geometries speak for one that was not.
NEIGHBOURS = 4


class Curve(Spec):
    """Points at ascending ``bytes`` for one number of rows: ``seconds``, which never fall, and log(seconds / form)."""

    rows: Positive
    bytes: tuple[Positive, ...]
    seconds: tuple[Positive, ...]
    log_ratios: tuple[Annotated[float, Field(ge=-5, le=5)], ...]

    @model_validator(mode="after")
    def _rises(self) -> Curve:
        if not self.bytes or not len(self.bytes) == len(self.seconds) == len(self.log_ratios):
            raise ValueError(f"{len(self.bytes)} sizes, {len(self.seconds)} times, {len(self.log_ratios)} ratios")
        if any(a >= b for a, b in zip(self.bytes, self.bytes[1:], strict=False)):
            raise ValueError("sizes do not ascend")
        if any(a > b for a, b in zip(self.seconds, self.seconds[1:], strict=False)):
            raise ValueError("times fall")
        return self

    def seconds_at(self, moved: FloatArray, form: FloatArray) -> FloatArray:
        """Seconds at some bytes, where the form at these rows takes ``form`` seconds."""
        ratio = np.interp(np.log(np.maximum(moved, 1.0)), np.log(self.bytes), self.log_ratios)
        smaller = np.searchsorted(self.bytes, moved, side="right")
        return np.asarray(np.maximum(form * np.exp(ratio), np.array([0.0, *self.seconds])[smaller]))


class MeasuredGeometry(Spec):
    """One geometry: its mean log(measured / form), and its curves by ascending rows (none: the factor is all)."""

    geometry: tuple[Positive, ...]
    log_factor: float = Field(ge=-5, le=5)
    curves: tuple[Curve, ...] = ()

    @model_validator(mode="after")
    def _rows_ascend(self) -> MeasuredGeometry:
        rows = [curve.rows for curve in self.curves]
        if sorted(set(rows)) != rows:
            raise ValueError("rows do not ascend")
        return self

    def seconds(self, rows: FloatArray, moved: FloatArray, form: Form) -> FloatArray:
        """Seconds at a number of rows and some bytes; ``form(rows)`` is the class's form at other rows."""
        if not self.curves:
            return np.asarray(form(rows) * math.exp(self.log_factor))
        steps = [curve.rows for curve in self.curves]
        forms = [form(np.float64(step)) for step in steps]
        times = [curve.seconds_at(moved, at) for curve, at in zip(self.curves, forms, strict=True)]
        times = [np.maximum.reduce(times[: i + 1]) for i in range(len(times))]
        found = times[0]
        for i in range(1, len(steps)):
            part = np.clip((rows - steps[i - 1]) / (steps[i] - steps[i - 1]), 0.0, 1.0)
            found = found + part * (times[i] - times[i - 1])
        return np.asarray(found * np.maximum(form(rows) / forms[-1], 1.0))


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
