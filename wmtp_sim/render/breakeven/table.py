"""The cost table of a page: every step's terms over context x depth x window x batch, from one `Estimate`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.errors import InputError
from wmtp_sim.machine.machine import NOTHING, Timing
from wmtp_sim.step.compose import TERMS, Step, Term

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
        if self.estimate.drafter is None:
            raise InputError("--drafter", "none drafts nothing", "mtp, eagle or a draft model")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.estimate.work.shape

    @cached_property
    def axes(self) -> dict[str, list[int]]:
        """The values of each axis, rising."""
        return {name: getattr(self.estimate.work, name).astype(np.int64).ravel().tolist() for name in AXES}

    @property
    def spread(self) -> float:
        """The factor, either way, that the engine's definition leaves open."""
        return self.estimate.base_step.engine_spread

    @cached_property
    def terms(self) -> dict[str, dict[Term, Timing]]:
        """Seconds of each term of ``base`` and of every policy's step; a base step's where depth is 0."""
        base = _terms(self.estimate.base_step)
        drafting = self.estimate.work.depth > 0
        found = {"base": base}
        for policy, step in self.estimate.steps.items():
            found[policy] = {term: _where(drafting, timing, base[term]) for term, timing in _terms(step).items()}
        return found

    @property
    def policies(self) -> list[str]:
        """Draft KV policies, the plainest first."""
        return [name for name in self.terms if name != "base"]

    def total(self, step: str) -> Timing:
        """A whole step, as `wmtp_sim.step.compose.Step.total` has it."""
        total = sum(self.terms[step].values(), start=NOTHING)
        low = np.maximum(total.low / self.spread, total.bound)
        return Timing(total.seconds, low, total.high * self.spread, total.bound)


def _terms(step: Step) -> dict[Term, Timing]:
    found: dict[Term, Timing] = dict.fromkeys(TERMS, NOTHING)
    for part in step.parts:
        found[part.term] = found[part.term] + part.total
    found["host"] = found["host"] + step.host
    return found


def _where(chosen: NDArray[np.bool_], ours: Timing, theirs: Timing) -> Timing:
    def pick(a: ArrayLike, b: ArrayLike) -> FloatArray:
        return np.where(chosen, a, b)

    return Timing(
        pick(ours.seconds, theirs.seconds),
        pick(ours.low, theirs.low),
        pick(ours.high, theirs.high),
        pick(ours.bound, theirs.bound),
    )
