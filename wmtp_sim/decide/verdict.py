"""Whether speculation pays, how sure that is, and with which system: one verdict, which every face shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wmtp_sim.decide.choice import INDIFFERENT, can_run, plainest
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.evidence import off_by, unmeasured
from wmtp_sim.decide.ratio import Range, ratio
from wmtp_sim.spec.workload import FloatArray

Word = Literal["pays", "probably pays", "even", "probably loses", "loses"]
#: From the best to the worst: the places that `words` gives.
WORDS: tuple[Word, ...] = ("pays", "probably pays", "even", "probably loses", "loses")


def base_over_step(estimate: Estimate, policy: str) -> Range:
    """Base step over a policy's step: a speedup for each token of accept length. 1 where depth is 0.

    Kernel classes that both run are off together; engines beyond that by what their measured steps were off by.
    """
    found = ratio(estimate.base_step.classes, estimate.steps[policy].classes).widened(off_by(estimate))
    drafting = estimate.work.depth > 0
    return Range(*(np.where(drafting, each, 1.0) for each in (found.low, found.expected, found.high)))


def speedup(estimate: Estimate, policy: str) -> Range | None:
    """The speedup with its range; None without an acceptance, which is taken as stated."""
    length = estimate.policies[policy].accept_length
    return None if length is None else base_over_step(estimate, policy).times(length)


def words(gain: Range, sure: bool) -> NDArray[np.int64]:
    """Places in `WORDS` for speedups: the sign of the expected one, and whether its whole range is on that side.

    Differences that are not worth a flag are even. ``sure``: whether anything like it was ever measured.
    """
    wins, loses = (gain.expected > 1 + INDIFFERENT), (gain.expected < 1 - INDIFFERENT)
    surely = np.asarray(sure) & np.where(wins, gain.low > 1, gain.high < 1)
    return np.asarray(np.select([wins & surely, wins, loses & surely, loses], [0, 1, 4, 3], default=2))


@dataclass(frozen=True)
class Verdict:
    """What is to be said of each point of an estimate with an acceptance. Arrays of its shape.

    Attributes:
        word: places in `WORDS`; -1 where nothing is drafted, or no system that the release has fits.
        policy: places in ``names`` of the best that the release has and memory holds; -1 where none does.
        gain: its speedup; NaN where there is none.
        unmeasured: why nothing here is sure, in words; empty where it is.
        names: the systems.
    """

    word: NDArray[np.int64]
    policy: NDArray[np.int64]
    gain: Range
    unmeasured: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def only_word(self) -> Word | None:
        """The word of a single point."""
        return None if self.word < 0 else WORDS[int(self.word)]

    @property
    def only_policy(self) -> str | None:
        """The system of a single point."""
        return None if self.policy < 0 else self.names[int(self.policy)]


def verdict_of(estimate: Estimate) -> Verdict:
    """The verdict on every point; raises ValueError where no acceptance was stated."""
    found = {policy: speedup(estimate, policy) for policy in estimate.policies}
    gains = {policy: gain for policy, gain in found.items() if gain is not None}
    if not gains:
        raise ValueError("no acceptance was stated, or nothing is drafted")
    return judged(estimate, gains)


def judged(estimate: Estimate, gains: Mapping[str, Range]) -> Verdict:
    """The verdict where each policy's speedup is known."""
    shape = np.broadcast_shapes(estimate.work.shape, *(gain.expected.shape for gain in gains.values()))
    possible = np.stack([np.broadcast_to(can_run(estimate, policy), shape) for policy in gains], axis=-1)
    ends = {name: _stacked(list(gains.values()), name, shape) for name in ("low", "expected", "high")}
    policy = plainest(ends["expected"], possible)
    chosen = {name: _taken(each, policy) for name, each in ends.items()}
    gain, never = Range(**chosen), unmeasured(estimate)
    drafted = (policy >= 0) & (estimate.work.depth > 0)
    return Verdict(np.where(drafted, words(gain, not never), -1), policy, gain, never, tuple(gains))


def _stacked(gains: list[Range], end: str, shape: tuple[int, ...]) -> FloatArray:
    return np.stack([np.broadcast_to(getattr(gain, end), shape) for gain in gains], axis=-1)


def _taken(values: FloatArray, places: NDArray[np.int64]) -> FloatArray:
    """The chosen of the last axis; NaN where none was."""
    taken = np.take_along_axis(values, np.maximum(places, 0)[..., np.newaxis], axis=-1)[..., 0]
    return np.where(places >= 0, taken, np.nan)
