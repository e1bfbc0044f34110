"""A machine profile: per kernel class, the few numbers that turn bytes and FLOPs into seconds, and their source."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from wmtp_sim.machine.curves import Measured
from wmtp_sim.spec.base import Spec

Status = Literal["measured", "transferred", "uncalibrated", "ideal"]
#: Where nothing was measured that could tell how far off a model is: a judgement.
SPREAD_UNSEEN = 1.5
#: Rows up to so many times the largest measured ones are still beside what was measured.
ROWS_REACH = 2.0
Efficiency = Annotated[float, Field(gt=0, le=1)]


class KernelModel(Spec):
    """Seconds of one kernel class: launches x floor + the longest of its legs (bytes, FLOPs, one block, turns).

    Attributes:
        floor_s: latency of one launch inside a CUDA graph with nothing to move.
        bandwidth: attainable share of the datasheet's memory bandwidth.
        compute: attainable share of the datasheet's dense FLOP peak.
        cta_bytes_per_s: what one thread block can stream; few blocks cannot fill the memory system (Little's law).
        cta_compute: attainable share of one multiprocessor's dense FLOP peak for a block that has it to itself.
        cta_overlap: what a multiprocessor does with several blocks, over what it does with one; None where more blocks
            than multiprocessors were not measured, and are taken to share the GPU evenly.
        measured: what was measured of the class, geometry by geometry, over that form.
        spread: factor between model and truth that 90 % of cases stay within, either way, at measured geometries.
        spread_elsewhere: the same at geometries that were not measured; None where the class has one for all.
        measured_bytes: smallest and largest bytes of one execution that were measured; outside is extrapolation.
        points, median_error, p90_error: measurements behind the fit, and |predicted / measured - 1| on held-out points.
        source: where the numbers come from.
        carried_from: the GPU whose profile gave these numbers, with its spread widened, where one of another GPU lacked
            the class.
    """

    floor_s: float = Field(ge=0, le=1)
    bandwidth: Efficiency
    compute: Efficiency
    cta_bytes_per_s: float | None = Field(default=None, gt=0)
    cta_compute: Efficiency | None = None
    cta_overlap: float | None = Field(default=None, ge=1, le=10)
    measured: Measured | None = None
    spread: float = Field(ge=1, le=10)
    spread_elsewhere: float | None = Field(default=None, ge=1, le=10)
    measured_bytes: tuple[float, float] | None = None
    points: int = Field(default=0, ge=0)
    median_error: float | None = Field(default=None, ge=0)
    p90_error: float | None = Field(default=None, ge=0)
    source: str
    carried_from: str | None = None

    def spread_at(self, geometry: tuple[float, ...], rows: ArrayLike) -> NDArray[np.float64]:
        """The spread for one geometry at numbers of rows.

        Beyond the measured rows nothing was held out; where no measured geometry has the same bytes per element (the
        last of several sizes), nothing tells what unpacking costs: at least ``SPREAD_UNSEEN`` both.
        """
        if self.measured is None or self.spread_elsewhere is None:
            return np.asarray(self.spread)
        known = self.measured.find(geometry)
        if known is None:
            same = len(geometry) < 2 or any(e.geometry[-1] == geometry[-1] for e in self.measured.geometries)
            return np.asarray(self.spread_elsewhere if same else max(self.spread_elsewhere, SPREAD_UNSEEN))
        most = max((curve.rows for curve in known.curves), default=math.inf)
        beyond = np.asarray(rows, dtype=float) > most * ROWS_REACH
        return np.where(beyond, max(self.spread_elsewhere, SPREAD_UNSEEN), self.spread)

    def of_another_implementation(self) -> KernelModel:
        """The form alone, with what is not known of the other kernel in its spread."""
        spread = max(self.spread_elsewhere or self.spread, SPREAD_UNSEEN)
        return self.model_copy(update={"measured": None, "spread": spread, "spread_elsewhere": None})

    def transferred(self, factor: float, launch_slowdown: float = 1.0) -> KernelModel:
        """This model on another GPU: the form and the factors, and a spread ``factor`` times as wide.

        A spread is widened once: what a profile had carried over from elsewhere already has that in it.
        """
        wider = 1.0 if self.carried_from else factor
        spread = min((self.spread_elsewhere or self.spread) * wider, 10.0)
        measured = self.measured.without_curves() if self.measured else None
        floor_s = self.floor_s * launch_slowdown
        changes = {"floor_s": floor_s, "spread": spread, "spread_elsewhere": None, "measured": measured}
        return self.model_copy(update=changes)


class Profile(Spec):
    """Kernel models of one machine.

    ``kernels`` is keyed by kernel class, or by ``class.variant`` where implementations differ (``attention.fa3``); a
    variant that is not there falls back to its class, without what was measured of that class's own kernels.
    ``turn_s`` is one dependent loop turn of an index builder, ``host_spread`` the uncertainty factor of host time.
    ``gpu`` is the name that the driver gives the measured GPU, ``provenance`` says when and with what it was measured,
    ``measurements`` are the points themselves. ``by`` names who measured, where that was not `wmtp calibrate`.
    """

    name: str
    status: Status
    by: str | None = Field(default=None, min_length=1, max_length=60)
    gpu: str | None = None
    kernels: dict[str, KernelModel]
    turn_s: float = Field(ge=0, le=1e-3)
    host_spread: float = Field(ge=1, le=10)
    provenance: dict[str, Any] = Field(default_factory=dict)
    measurements: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The status as a person reads it: what others measured never passes for our own."""
        return f"{self.status} ({self.by})" if self.by else self.status

    def transferred(self, factor: float, launch_slowdown: float = 1.0) -> Profile:
        """This profile for another GPU: spreads ``factor`` times as wide (at most 10), geometries as elsewhere.

        What a geometry took on the measured GPU says nothing in seconds about another one: forms and factors remain.
        Fixed costs of kernels are ``launch_slowdown`` times as long.
        """
        kernels = {name: model.transferred(factor, launch_slowdown) for name, model in self.kernels.items()}
        status = "transferred" if self.status == "measured" else self.status
        changes = {"kernels": kernels, "host_spread": min(self.host_spread * factor, 10.0), "status": status}
        return self.model_copy(update=changes)

    def kernel(self, name: str, variant: str) -> KernelModel:
        """The model of a kernel class, in the implementation asked for where the profile knows it.

        Another implementation follows the class's form within ``SPREAD_UNSEEN`` at best.
        """
        found = self.kernels.get(f"{name}.{variant}")
        if found is not None:
            return found
        model = self.kernels[name]
        return model if not variant or model.measured is None else model.of_another_implementation()
