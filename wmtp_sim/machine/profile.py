"""A machine profile: per kernel class, the few numbers that turn bytes and FLOPs into seconds, and their source."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from wmtp_sim.spec.base import Spec

Status = Literal["measured", "transferred", "uncalibrated", "ideal"]
Efficiency = Annotated[float, Field(gt=0, le=1)]


class KernelModel(Spec):
    """Seconds of one kernel class: launches x floor + the longest of its legs (bytes, FLOPs, one block, turns).

    Attributes:
        floor_s: latency of one launch inside a CUDA graph with nothing to move.
        bandwidth: attainable share of the datasheet's memory bandwidth.
        compute: attainable share of the datasheet's dense FLOP peak.
        cta_bytes_per_s: what one thread block can stream; few blocks cannot fill the memory system (Little's law).
        spread: factor between the model and the truth that 90 % of cases stay within, either way.
        source: where the numbers come from.
    """

    floor_s: float = Field(ge=0, le=1)
    bandwidth: Efficiency
    compute: Efficiency
    cta_bytes_per_s: float | None = Field(default=None, gt=0)
    spread: float = Field(ge=1, le=10)
    source: str


class Profile(Spec):
    """Kernel models of one machine.

    ``kernels`` is keyed by kernel class, or by ``class.variant`` where implementations differ (``attention.fa3``); a
    variant that is not there falls back to its class. ``turn_s`` is one dependent loop turn of an index builder,
    ``host_spread`` the uncertainty factor of host time.
    """

    name: str
    status: Status
    kernels: dict[str, KernelModel]
    turn_s: float = Field(ge=0, le=1e-3)
    host_spread: float = Field(ge=1, le=10)
    notes: tuple[str, ...] = ()

    def kernel(self, name: str, variant: str) -> KernelModel:
        """The model of a kernel class, in the implementation asked for where the profile knows it."""
        return self.kernels.get(f"{name}.{variant}") or self.kernels[name]
