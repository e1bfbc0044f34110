"""By how much one option beats another over a mix, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wmtp_sim.decide.evidence import off_by, unmeasured
from wmtp_sim.decide.options import Option, OptionSpace
from wmtp_sim.decide.ratio import Range, ratio
from wmtp_sim.decide.verdict import WORDS, Word, words
from wmtp_sim.machine.machine import Timing
from wmtp_sim.spec.mix import Mix


@dataclass(frozen=True)
class Difference:
    """By how much more tokens/s one option gives than another, as a share: expected, and the range it lies in.

    ``unmeasured``: what nobody measured of such steps; with any of it nothing is sure.
    """

    expected: float
    low: float
    high: float
    unmeasured: tuple[str, ...] = ()

    @property
    def word(self) -> Word:
        """The verdict on the first option, as `decide.verdict` gives it."""
        gain = Range(*(np.asarray(1.0 + each) for each in (self.low, self.expected, self.high)))
        return WORDS[int(words(gain, not self.unmeasured))]

    @property
    def signed(self) -> bool:
        """Whether the sign holds over the whole range."""
        return self.low > 0 or self.high < 0

    @property
    def sure(self) -> bool:
        """Whether the sign holds over the whole range, and such steps were measured."""
        return self.signed and not self.unmeasured


def difference(space: OptionSpace, mix: Mix, ours: tuple[Option, float], theirs: tuple[Option, float]) -> Difference:
    """``ours`` over ``theirs`` on a mix: two options with their accept lengths.

    What both have in common is off by the same factor in both (see `decide.ratio`); a step that drafts and one that
    does not may be off apart, as measured steps of the release were.
    """
    first, second = (_per_token(space, mix, option, length) for option, length in (ours, theirs))
    found = ratio(second, first)
    if (ours[0].policy is None) != (theirs[0].policy is None):
        found = found.widened(off_by(space.deployment))
    expected, low, high = (float(each) - 1.0 for each in (found.expected, found.low, found.high))
    return Difference(expected, low, high, unmeasured(space.deployment))


def _per_token(space: OptionSpace, mix: Mix, option: Option, length: float) -> dict[str, Timing]:
    """Seconds per generated token of each kernel class, over the mix."""
    estimate = space.of(option, mix.contexts, mix.batches)
    step = estimate.base_step if option.policy is None else estimate.steps[option.policy]
    share = mix.shares / (length * mix.batches)
    return {
        name: Timing(*(np.sum(share * each) for each in (timing.seconds, timing.low, timing.high, timing.bound)))
        for name, timing in step.classes.items()
    }
