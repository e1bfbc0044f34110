"""The cost table of a page: every step over context x depth x window x batch, from one `Estimate`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wmtp_sim.decide.choice import fits, offered
from wmtp_sim.decide.estimate import Estimate, StepCost
from wmtp_sim.decide.ratio import Range
from wmtp_sim.decide.verdict import base_over_step
from wmtp_sim.errors import InputError

FloatArray = NDArray[np.float64]
#: Axes of every array, in this order.
AXES = ("context", "depth", "window", "batch")


@dataclass(frozen=True)
class CostTable:
    """Costs on an open grid: ``estimate.work`` has one axis each for context, depth, window and batch.

    Raises:
        InputError: ``--drafter`` or ``--depth``, where nothing is drafted anywhere.
        ValueError: for a workload of another shape.
    """

    estimate: Estimate

    def __post_init__(self) -> None:
        work = self.estimate.work
        for place, name in enumerate(AXES):
            array = getattr(work, name)
            if array.ndim != len(AXES) or array.size != array.shape[place] or np.any(np.diff(array.ravel()) <= 0):
                raise ValueError(f"{name} needs rising values on axis {place} of {len(AXES)}")
        if not (work.depth > 0).any():
            raise InputError("--depth", "0 drafts nothing, so there is no break-even", "for example --depth 0:12")
        if not self.estimate.systems:
            raise InputError("--drafter", "none drafts nothing", "mtp, eagle or a draft model")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.estimate.work.shape

    @cached_property
    def axes(self) -> dict[str, list[int]]:
        """The values of each axis, rising."""
        return {name: getattr(self.estimate.work, name).astype(np.int64).ravel().tolist() for name in AXES}

    @property
    def costs(self) -> dict[str, StepCost]:
        """Cost of ``base`` and of every policy's step; a base step's where depth is 0."""
        return self.estimate.costs

    @cached_property
    def ratios(self) -> dict[str, Range]:
        """Base step over each policy's step with its range: times an accept length, a speedup."""
        return {policy: base_over_step(self.estimate, policy) for policy in self.estimate.policies}

    @property
    def policies(self) -> tuple[str, ...]:
        """Systems, the plainest first."""
        return tuple(self.estimate.policies)

    def offered(self, policy: str) -> bool:
        """Whether the release has a policy for this drafter."""
        return offered(self.estimate, policy)

    def fits(self, policy: str) -> NDArray[np.bool_]:
        """Where memory holds the target, and the drafter's KV as a policy keeps it."""
        return fits(self.estimate, policy)
