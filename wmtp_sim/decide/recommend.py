"""The option that gives most over a mix of contexts and batches, by how much, and what would change the choice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wmtp_sim.decide.acceptance import scaled
from wmtp_sim.decide.choice import INDIFFERENT, plainest
from wmtp_sim.decide.depth_table import DepthTable, depth_table
from wmtp_sim.decide.difference import Difference, difference
from wmtp_sim.decide.options import Option, OptionSpace, Priced
from wmtp_sim.decide.thresholds import Axis, IntArray, Reason, Side, Threshold, between, nearest_flip
from wmtp_sim.spec.acceptance import Acceptance, AcceptLength, ConstantRate
from wmtp_sim.spec.mix import Mix
from wmtp_sim.spec.workload import FloatArray

#: Contexts (tokens) and batches among which the choice is followed; what fits in memory ends them sooner.
CONTEXTS, BATCHES = (128, 2**24), (1, 1024)
#: The rates' factor as a whole number: it is found to the 2**-40th.
UNIT = 2**40
#: Factors that are looked at on either side before one is narrowed down, and contexts or batches at most.
FACTORS, SAMPLES = 401, 64
#: Options times cells that are priced at once: what keeps a search in memory.
POINTS = 400_000
#: Rates closer than this are one option under two names, as a window that holds the whole context is.
SAME = 1e-9


@dataclass(frozen=True)
class Target:
    """The longest mean time between two tokens of a request that is allowed, at every cell of a mix.

    ``certain``: whether the slow end of a step's range must meet it too, and not the expected step alone.
    """

    seconds: float = float("inf")
    certain: bool = False


@dataclass(frozen=True)
class Judged:
    """Options over a mix.

    Attributes:
        rate: tokens/s of the deployment, [..., O]; shares are of generated tokens, so times per token average.
        latency_s: the longest mean time between two tokens of a request among the mix's cells, [..., O].
        slow_latency_s: the same at the slow end of every step's range; acceptance is as stated.
        judged_s: of the two, the one that the target is held against.
        meets: within the target for latency; [..., O].
        fits: in memory at every cell; [..., O].
        possible: known to the engine, fits, and meets the target; [..., O].
        chosen: the plainest that is as good as the best; -1 where none is possible; [...].
    """

    rate: FloatArray
    latency_s: FloatArray
    slow_latency_s: FloatArray
    judged_s: FloatArray
    meets: NDArray[np.bool_]
    fits: NDArray[np.bool_]
    possible: NDArray[np.bool_]
    chosen: NDArray[np.int64]


def judged(
    space: OptionSpace, priced: Priced, shares: FloatArray, batches: FloatArray, lengths: FloatArray, target: Target
) -> Judged:
    """What options give: priced [..., O, C, B], shares [C, B], batches [..., B], accept lengths [..., O]."""
    each, slow = (step / lengths[..., np.newaxis, np.newaxis] for step in (priced.seconds, priced.slow_s))
    served = shares > 0
    per_token = (shares * each / batches[..., np.newaxis, np.newaxis, :]).sum(axis=(-2, -1))
    latency, slowest = (np.where(served, time, 0.0).max(axis=(-2, -1)) for time in (each, slow))
    held = slowest if target.certain else latency
    fits = np.broadcast_to((priced.fits | ~served).all(axis=(-2, -1)), latency.shape)
    meets = held <= target.seconds
    possible = space.allowed & fits & meets
    chosen = plainest(1.0 / per_token, possible)
    return Judged(1.0 / per_token, latency, slowest, held, meets, fits, possible, chosen)


@dataclass(frozen=True)
class Recommendation:
    """What to run, and why. Without an acceptance there is no choice, only the acceptance that each option needs.

    Attributes:
        space: the options.
        asked: the mix as stated.
        acceptance, windowed: of native and of windowed drafts; the same where no other was stated.
        target: for the time between tokens.
        need: the speedup that the needed accept lengths are for; 1 is break-even.
    """

    space: OptionSpace
    asked: Mix
    acceptance: Acceptance | None = None
    windowed: Acceptance | None = None
    target: Target = Target()
    need: float = 1.0

    # --- costs and needs, whatever the acceptance ---

    @cached_property
    def asked_priced(self) -> Priced:
        return self.space.priced(self.asked.contexts, self.asked.batches)

    @cached_property
    def mix(self) -> Mix | None:
        """The mix without the cells that do not fit even without speculation; None where none fits."""
        return self.asked.within(self.asked_priced.fits[0])

    @cached_property
    def needed(self) -> FloatArray:
        """The accept length that gives the speedup ``need`` at each cell of ``asked``; [O, C, B]."""
        seconds = self.asked_priced.seconds
        return np.asarray(self.need * seconds / seconds[0])

    @property
    def unwinnable(self) -> NDArray[np.bool_]:
        """Where no acceptance gives ``need``; [O, C, B]."""
        return np.asarray(self.needed > self.space.option_depths[:, np.newaxis, np.newaxis] + 1)

    @cached_property
    def needed_on_mix(self) -> FloatArray | None:
        """The accept length that gives ``need`` over the whole mix; [O]."""
        if self.mix is None:
            return None
        per_token = (self.mix.shares * self.priced.seconds / self.mix.batches).sum(axis=(-2, -1))
        return np.asarray(self.need * per_token / per_token[0])

    @cached_property
    def priced(self) -> Priced:
        """The options over ``mix``."""
        mix = self._served
        return self.space.priced(mix.contexts, mix.batches)

    # --- the choice ---

    @cached_property
    def lengths(self) -> FloatArray | None:
        """Accept lengths; [O]."""
        return None if self.acceptance is None else self.space.lengths(*self._accepted)

    @property
    def assumed(self) -> bool:
        """Whether other depths than the stated one were given one constant conditional rate."""
        return any(isinstance(each, AcceptLength) for each in (self.acceptance, self.windowed))

    @cached_property
    def judged(self) -> Judged | None:
        """The options over ``mix``; None without an acceptance, or where nothing fits."""
        return self._judged(self.target)

    def _judged(self, target: Target) -> Judged | None:
        if self.lengths is None or self.mix is None:
            return None
        return judged(self.space, self.priced, self.mix.shares, self.mix.batches, self.lengths, target)

    @cached_property
    def place(self) -> int | None:
        """The choice among the options; None where none is possible."""
        if self.judged is None or self.judged.chosen < 0:
            return None
        return int(self.judged.chosen)

    @property
    def choice(self) -> Option | None:
        """What to start the engine with; a launch line is made of this."""
        return None if self.place is None else self.space.options[self.place]

    @cached_property
    def runner_up(self) -> int | None:
        """The best of the other possible options that differ in cost."""
        if self.place is None or self.judged is None:
            return None
        rate = self.judged.rate
        apart = np.abs(rate / rate[self.place] - 1) > SAME
        return _fastest(rate, self.judged.possible & apart)

    def best_of(self, policy: str | None) -> int | None:
        """The fastest option of a policy that fits, whether or not the release has it or the target is met."""
        if self.judged is None:
            return None
        ours = np.array([option.policy == policy for option in self.space.options])
        return _fastest(self.judged.rate, ours & self.judged.fits)

    @cached_property
    def what_if(self) -> int | None:
        """The best option that the release lacks, where it would beat the choice."""
        return None if self.judged is None else self._better(self.judged.fits & ~self.space.allowed)

    @cached_property
    def too_large(self) -> int | None:
        """The best option that memory rules out, where it would beat the choice."""
        return None if self.judged is None else self._better(~self.judged.fits & self.space.allowed)

    @cached_property
    def certain(self) -> int | None:
        """The choice among what meets the target at the slow end of its range; None where nothing does."""
        judged = self._judged(replace(self.target, certain=True))
        return None if judged is None or judged.chosen < 0 else int(judged.chosen)

    @cached_property
    def nearest_to_target(self) -> int | None:
        """Of what the release has and memory holds, the option with the shortest time between tokens."""
        if self.judged is None:
            return None
        return _fastest(-self.judged.judged_s, self.judged.fits & self.space.allowed)

    def _better(self, among: NDArray[np.bool_]) -> int | None:
        if self.place is None or self.judged is None:
            return None
        place = _fastest(self.judged.rate, among & self.judged.meets)
        if place is None or self.judged.rate[place] <= self.judged.rate[self.place] * (1 + INDIFFERENT):
            return None
        return place

    def over(self, other: int) -> Difference:
        """The choice over another option."""
        if self.place is None or self.lengths is None:
            raise ValueError("nothing was chosen")
        ours, theirs = ((self.space.options[at], float(self.lengths[at])) for at in (self.place, other))
        return difference(self.space, self._served, ours, theirs)

    # --- what would change it ---

    @cached_property
    def thresholds(self) -> tuple[Threshold, ...]:
        """Where another option is chosen, nearest first on each side; where nothing is possible, where something is."""
        if self.judged is None:
            return ()
        axes: tuple[Axis, ...] = ("acceptance", "context", "batch")
        return tuple(found for axis in axes for found in self._along(axis))

    def judged_at(self, axis: Axis, at: IntArray) -> Judged:
        """The options where one thing is moved, [S, O]: all conditional rates by a factor in `UNIT`-ths, or contexts
        or batches of the mix, alike, up to a longest or largest."""
        mix, lengths, priced = self._served, self.lengths, self.priced
        assert lengths is not None
        batches = mix.batches
        if axis == "acceptance":
            lengths = self.space.lengths(*self._accepted, at / UNIT)
        elif axis == "context":
            priced = self.space.priced(mix.contexts_up_to(at), batches)
        else:
            batches = mix.batches_up_to(at)
            priced = self.space.priced(mix.contexts, batches)
        return judged(self.space, priced, mix.shares, batches, lengths, self.target)

    def _along(self, axis: Axis) -> Iterator[Threshold]:
        for side, samples in self._samples(axis).items():
            if samples.size < 2:
                continue
            first = self._flip(axis, side, samples, stops=False)
            if first is not None:
                yield first
            if first is not None and first.becomes != Option() and self.place:
                last = self._flip(axis, side, samples, stops=True)
                if last is not None:
                    yield last

    def _samples(self, axis: Axis) -> dict[Side, IntArray]:
        """Whole numbers that run away from what was stated, on either side."""
        if axis == "acceptance":
            most = _most_factor(self._accepted)
            down = np.linspace(UNIT, 0, FACTORS).astype(np.int64)
            return {"below": down, "above": between(UNIT, max(int(UNIT * most), UNIT), FACTORS)}
        mix = self._served
        stated, ends = (mix.contexts, CONTEXTS) if axis == "context" else (mix.batches, BATCHES)
        start, count = int(stated[-1]), self._width
        lowest, highest = min(ends[0], start), max(ends[1], start)
        return {"below": between(start, lowest, count), "above": between(start, highest, count)}

    @property
    def _width(self) -> int:
        cells = len(self.space.options) * self._served.shares.size
        return int(np.clip(POINTS // cells, 3, SAMPLES))

    def _flip(self, axis: Axis, side: Side, samples: IntArray, stops: bool) -> Threshold | None:
        now = -1 if self.place is None else self.place

        def flips(at: IntArray) -> NDArray[np.bool_]:
            chosen = self.judged_at(axis, at).chosen
            return np.asarray(chosen == 0 if stops else chosen != now)

        at = nearest_flip(flips, samples, min(self._width, 33))
        if at is None:
            return None
        there = self.judged_at(axis, np.array([at]))
        place = int(there.chosen[0])
        becomes = None if place < 0 else self.space.options[place]
        reason: Reason = "speed"
        if now >= 0 and not there.possible[0, now]:
            reason = "target" if there.fits[0, now] else "memory"
        if axis != "acceptance":
            return Threshold(axis, side, at, becomes, reason, stops)
        drafts = now if now > 0 else place
        length = float(self.space.lengths(*self._accepted, at / UNIT)[drafts])
        return Threshold(axis, side, at / UNIT, becomes, reason, stops, self.space.options[drafts], length)

    # --- depth that changes while the engine runs ---

    @cached_property
    def depth_table(self) -> DepthTable | None:
        """Depths by batch and context; None where no drafter fits, or no acceptance was stated."""
        if self.acceptance is None or self.mix is None:
            return None
        longest = max(int(self.mix.contexts[-1]), self.space.deployment.model.max_context)
        ends = (min(int(self.mix.contexts[0]), 1024), longest)
        return depth_table(self.space, self.mix, *self._accepted, ends)

    @property
    def _served(self) -> Mix:
        if self.mix is None:
            raise ValueError("nothing fits")
        return self.mix

    @property
    def _accepted(self) -> tuple[Acceptance, Acceptance]:
        if self.acceptance is None:
            raise ValueError("no acceptance was stated")
        return self.acceptance, self.windowed or self.acceptance


def _fastest(rate: FloatArray, possible: NDArray[np.bool_]) -> int | None:
    return int(np.where(possible, rate, -np.inf).argmax()) if possible.any() else None


def _most_factor(accepted: tuple[Acceptance, Acceptance]) -> float:
    """The factor that lifts every rate above 0 to 1 (2**20 at most); 1 where no rate is above 0."""
    found = [scaled(each, 1.0) for each in accepted]
    rates = np.concatenate([np.ravel(e.alpha if isinstance(e, ConstantRate) else e.rates) for e in found])
    above = rates[rates > 0]
    return float(min(1.0 / above.min(), 2.0**20)) if above.size else 1.0
