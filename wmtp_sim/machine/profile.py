"""A machine profile: per kernel class, the few numbers that turn bytes and FLOPs into seconds, and their source."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from wmtp_sim.spec.base import Spec

Status = Literal["measured", "transferred", "uncalibrated", "ideal"]
Efficiency = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


class GeometryFactors(Spec):
    """How measured geometries deviate from their class's form, carried smoothly to similar ones.

    A geometry is a tuple of sizes (see `Operation.geometry`). The factor at a new one is the mean of its neighbours' in
    log space, weighted by distance in octaves; far from all of them it is 1.

    Attributes:
        geometries: measured sizes, all of one length.
        log_factors: log(measured / form) of each.
        reach_octaves: distance at which a neighbour's weight falls to exp(-1/2).
        doubt: weight of "no deviation" against the neighbours'.
    """

    geometries: tuple[tuple[Positive, ...], ...]
    log_factors: tuple[Annotated[float, Field(ge=-3, le=3)], ...]
    reach_octaves: float = Field(default=0.5, gt=0, le=8)
    doubt: float = Field(default=0.05, gt=0, le=10)

    @model_validator(mode="after")
    def _one_factor_each(self) -> GeometryFactors:
        if len(self.geometries) != len(self.log_factors):
            raise ValueError(f"{len(self.geometries)} geometries with {len(self.log_factors)} factors")
        if len({len(geometry) for geometry in self.geometries}) > 1:
            raise ValueError("geometries of different lengths")
        return self

    def at(self, geometry: tuple[float, ...]) -> float:
        """The factor on seconds for one geometry."""
        weights, total = self.doubt, 0.0
        for known, log_factor in zip(self.geometries, self.log_factors, strict=True):
            if len(known) != len(geometry):
                return 1.0
            octaves = sum(math.log2(a / b) ** 2 for a, b in zip(known, geometry, strict=True))
            weight = math.exp(-octaves / (2 * self.reach_octaves**2))
            weights, total = weights + weight, total + weight * log_factor
        return math.exp(total / weights)


class KernelModel(Spec):
    """Seconds of one kernel class: launches x floor + the longest of its legs (bytes, FLOPs, one block, turns).

    Attributes:
        floor_s: latency of one launch inside a CUDA graph with nothing to move.
        bandwidth: attainable share of the datasheet's memory bandwidth.
        compute: attainable share of the datasheet's dense FLOP peak.
        cta_bytes_per_s: what one thread block can stream; few blocks cannot fill the memory system (Little's law).
        geometry: factors on top for measured shapes and their neighbours.
        spread: factor between the model and the truth that 90 % of cases stay within, either way.
        measured_bytes: smallest and largest bytes of one execution that were measured; outside is extrapolation.
        points, median_error, p90_error: measurements behind the fit, and |predicted / measured - 1| on held-out shapes.
        source: where the numbers come from.
    """

    floor_s: float = Field(ge=0, le=1)
    bandwidth: Efficiency
    compute: Efficiency
    cta_bytes_per_s: float | None = Field(default=None, gt=0)
    geometry: GeometryFactors | None = None
    spread: float = Field(ge=1, le=10)
    measured_bytes: tuple[float, float] | None = None
    points: int = Field(default=0, ge=0)
    median_error: float | None = Field(default=None, ge=0)
    p90_error: float | None = Field(default=None, ge=0)
    source: str

    def octaves_outside(self, moved: float) -> float:
        """How many octaves beyond the measured range an execution of that many bytes lies; 0 inside or unmeasured."""
        if self.measured_bytes is None or moved <= 0:
            return 0.0
        low, high = self.measured_bytes
        return max(0.0, math.log2(low / moved), math.log2(moved / high))


class Profile(Spec):
    """Kernel models of one machine.

    ``kernels`` is keyed by kernel class, or by ``class.variant`` where implementations differ (``attention.fa3``); a
    variant that is not there falls back to its class. ``turn_s`` is one dependent loop turn of an index builder,
    ``host_spread`` the uncertainty factor of host time. ``gpu`` is the name that the driver gives the measured GPU,
    ``provenance`` says when and with what it was measured, ``measurements`` are the points themselves.
    """

    name: str
    status: Status
    gpu: str | None = None
    kernels: dict[str, KernelModel]
    turn_s: float = Field(ge=0, le=1e-3)
    host_spread: float = Field(ge=1, le=10)
    provenance: dict[str, Any] = Field(default_factory=dict)
    measurements: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    def widened(self, factor: float) -> Profile:
        """This profile with every spread ``factor`` times as wide, at most 10."""
        kernels = {
            name: model.model_copy(update={"spread": min(model.spread * factor, 10.0)})
            for name, model in self.kernels.items()
        }
        return self.model_copy(update={"kernels": kernels, "host_spread": min(self.host_spread * factor, 10.0)})

    def kernel(self, name: str, variant: str) -> KernelModel:
        """The model of a kernel class, in the implementation asked for where the profile knows it."""
        return self.kernels.get(f"{name}.{variant}") or self.kernels[name]
