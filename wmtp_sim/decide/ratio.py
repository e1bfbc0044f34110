"""The range of a ratio of two times that are off together.

Two ways to run one deployment run the same kernel classes: where a class is slower than its model says, it is slower
in both. So each class stands at one place of its range, slow or fast, for both times; classes err apart from one
another, each in the direction that hurts, which is the cautious reading. What both times share cancels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wmtp_sim.machine.machine import NOTHING, Timing
from wmtp_sim.spec.workload import FloatArray

#: Rounds of the search for an end of a range. Each fixes at least one more class; a handful do in practice.
MOST_ROUNDS = 30


@dataclass(frozen=True)
class Range:
    """Arrays of any shape: expected, and the ends between which the truth is taken to lie."""

    low: FloatArray
    expected: FloatArray
    high: FloatArray

    def times(self, factor: Any) -> Range:
        """The range of a multiple by a number that is known."""
        return Range(self.low * factor, self.expected * factor, self.high * factor)

    def widened(self, factor: float) -> Range:
        """The range where all of it may be off by a factor, either way."""
        return Range(self.low / factor, self.expected, self.high * factor)


def ratio(above: Mapping[str, Timing], below: Mapping[str, Timing]) -> Range:
    """Seconds ``above`` over seconds ``below``, both by kernel class; what they have in common is off in both alike."""
    pairs = [(above.get(name, NOTHING), below.get(name, NOTHING)) for name in dict.fromkeys([*above, *below])]
    expected = np.asarray(sum(a.seconds for a, _ in pairs) / sum(b.seconds for _, b in pairs))
    return Range(_end(pairs, expected, np.less), expected, _end(pairs, expected, np.greater))


def _end(pairs: list[tuple[Timing, Timing]], start: FloatArray, better: np.ufunc) -> FloatArray:
    """The smallest or largest ratio with every class at either end of its range.

    Dinkelbach's method (Management Science 13, 1967): for a guessed ratio r, each class takes the end at which its
    share of above - r x below is best; the ratio at those ends is the next guess, until it stays.
    """
    found = start
    for _ in range(MOST_ROUNDS):
        tops: Any = 0.0
        bottoms: Any = 0.0
        for above, below in pairs:
            slow = better(above.high - found * below.high, above.low - found * below.low)
            tops = tops + np.where(slow, above.high, above.low)
            bottoms = bottoms + np.where(slow, below.high, below.low)
        after = np.asarray(tops / bottoms)
        if not np.any(better(after, found * (1 + 1e-12) if better is np.greater else found * (1 - 1e-12))):
            break
        found = after
    return found
