"""How sure it is that one option beats another: what they have in common is off by the same factor in both.

A step's range comes from its kernel classes' spreads and from the engine definition's. Two options of one deployment
run the same classes: where a class is slow, it is slow in both. So each class has one factor for both options, only
what an option runs more of counts, and a factor on the whole step (the engine's) changes no sign. Classes are taken to
err apart, each in the direction that hurts, which is the cautious reading.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.options import Option, OptionSpace
from wmtp_sim.machine.machine import Timing
from wmtp_sim.spec.mix import Mix
from wmtp_sim.spec.workload import FloatArray


@dataclass(frozen=True)
class Difference:
    """By how much more tokens/s one option gives than another, as a share: expected, and the range it lies in.

    Ends of the range are the saved time per token over the first option's expected one.
    """

    expected: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the sign holds over the whole range."""
        return self.low > 0 or self.high < 0


def difference(space: OptionSpace, mix: Mix, ours: tuple[Option, float], theirs: tuple[Option, float]) -> Difference:
    """``ours`` over ``theirs`` on a mix: two options with their accept lengths."""
    first, second = (_seconds_per_token(space, mix, option, length) for option, length in (ours, theirs))
    zero = np.zeros(3)
    saved = [second.get(name, zero) - first.get(name, zero) for name in first.keys() | second.keys()]
    low, expected, high = (sum(float(pick(each)) for each in saved) for pick in (np.min, _middle, np.max))
    ours_s = sum(float(_middle(each)) for each in first.values())
    return Difference(expected / ours_s, low / ours_s, high / ours_s)


def _middle(three: FloatArray) -> float:
    return float(three[1])


def _seconds_per_token(space: OptionSpace, mix: Mix, option: Option, length: float) -> dict[str, FloatArray]:
    """Seconds per generated token of each kernel class at its fastest, as expected, and at its slowest; [3]."""
    estimate = space.of(option, mix.contexts, mix.batches)
    tokens = length * mix.batches
    found: dict[str, FloatArray] = {}
    for name, timing in _by_class(estimate, option).items():
        ends = (timing.low, timing.seconds, timing.high)
        found[name] = np.array([float(np.sum(mix.shares * each / tokens)) for each in ends])
    return found


def _by_class(estimate: Estimate, option: Option) -> dict[str, Timing]:
    step = estimate.base_step if option.policy is None else estimate.steps[option.policy]
    found = {"host": step.host}
    for entry in step.entries:
        name = f"{entry.operation.kernel}.{entry.operation.variant}"
        found[name] = found[name] + entry.timing if name in found else entry.timing
    return found
