"""The option that gives most over a mix of contexts and batches, by how much, and what would change the choice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from wmtp_sim.decide.acceptance import scaled
from wmtp_sim.decide.choice import INDIFFERENT, plainest
from wmtp_sim.decide.depth_table import DepthTable, depth_table
from wmtp_sim.decide.difference import Difference, difference
from wmtp_sim.decide.options import Option, OptionSpace, Priced
from wmtp_sim.decide.thresholds import Axis, IntArray, Reason, Side, Standing, Threshold, Walk, between
from wmtp_sim.spec.acceptance import Acceptance, AcceptLength, ConstantRate
from wmtp_sim.spec.mix import Mix
from wmtp_sim.spec.workload import FloatArray

#: Contexts (tokens) and batches among which the choice is followed; what fits in memory ends them sooner.
CONTEXTS, BATCHES = (128, 2**24), (1, 1024)
#: The rates' factor as a whole number: it is found to the 2**-40th.
UNIT = 2**40
#: Factors that are looked at on either side, and contexts or batches at most, before a change is narrowed down. There
#: are as many batches: all are looked at, unless `PRICED` ends the search sooner. Contexts are 1 % apart at most.
FACTORS, SAMPLES = 401, 1200
#: Options times cells that are priced along one side of an axis at most, and at once: what keeps a search in time and
#: in memory.
PRICED, POINTS = 150_000, 400_000
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
        lengths: the accept lengths; [..., O].
    """

    rate: FloatArray
    latency_s: FloatArray
    slow_latency_s: FloatArray
    judged_s: FloatArray
    meets: NDArray[np.bool_]
    fits: NDArray[np.bool_]
    possible: NDArray[np.bool_]
    chosen: NDArray[np.int64]
    lengths: FloatArray

    @property
    def place(self) -> int | None:
        """What is chosen of options that are judged once."""
        return None if self.chosen < 0 else int(self.chosen)


def judged(
    space: OptionSpace, priced: Priced, shares: FloatArray, batches: FloatArray, lengths: FloatArray, target: Target
) -> Judged:
    """What options give: priced [..., O, C, B], shares [C, B], batches [..., B], accept lengths [..., O]."""
    each, slow = (step / priced.lengths(lengths) for step in (priced.seconds, priced.slow_s))
    served = shares > 0
    per_token = (shares * each / batches[..., np.newaxis, np.newaxis, :]).sum(axis=(-2, -1))
    latency, slowest = (np.where(served, time, 0.0).max(axis=(-2, -1)) for time in (each, slow))
    held = slowest if target.certain else latency
    fits = np.broadcast_to((priced.fits | ~served).all(axis=(-2, -1)), latency.shape)
    meets = held <= target.seconds
    possible = space.allowed & fits & meets
    chosen = plainest(1.0 / per_token, possible)
    return Judged(1.0 / per_token, latency, slowest, held, meets, fits, possible, chosen, lengths)


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
    def needed_on_mix(self) -> FloatArray:
        """The accept length that gives ``need`` over the whole mix, [O]; raises ValueError where nothing fits."""
        mix = self._served
        per_token = (mix.shares * self.priced.seconds / mix.batches).sum(axis=(-2, -1))
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
        return None if self.judged is None else self.judged.place

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
        return self._better(fits=True, allowed=False)

    @cached_property
    def too_large(self) -> int | None:
        """The best option that memory rules out, where it would beat the choice."""
        return self._better(fits=False, allowed=True)

    @cached_property
    def certain(self) -> int | None:
        """The choice among what meets the target at the slow end of its range; None where nothing does."""
        judged = self._judged(replace(self.target, certain=True))
        return None if judged is None else judged.place

    @cached_property
    def nearest_to_target(self) -> int | None:
        """Of what the release has and memory holds, the option with the shortest time between tokens."""
        if self.judged is None:
            return None
        return _fastest(-self.judged.judged_s, self.judged.fits & self.space.allowed)

    def _better(self, fits: bool, allowed: bool) -> int | None:
        if self.place is None or self.judged is None:
            return None
        rate, among = self.judged.rate, (self.judged.fits == fits) & (self.space.allowed == allowed)
        place = _fastest(rate, among & self.judged.meets)
        return None if place is None or rate[place] <= rate[self.place] * (1 + INDIFFERENT) else place

    def over(self, other: int) -> Difference:
        """The choice over another option."""
        if self.place is None:
            raise ValueError("nothing was chosen")
        return self._difference(self.place, other)

    @cached_property
    def speculation(self) -> Difference | None:
        """The choice over off; where off is the choice, the best that drafts over it. None where nothing is."""
        drafting = self.place or self.runner_up
        return self._difference(drafting, 0) if drafting else None

    def _difference(self, one: int, other: int) -> Difference:
        lengths = self.space.lengths(*self._accepted)
        ours, theirs = ((self.space.options[at], float(lengths[at])) for at in (one, other))
        return difference(self.space, self._served, ours, theirs)

    # --- what would change it ---

    @cached_property
    def thresholds(self) -> tuple[Threshold, ...]:
        """Where another option is chosen, nearest first on each side; where nothing is possible, where something is."""
        return tuple(found for axis, walk in self._walks.items() for found in self._flips(axis, walk))

    @cached_property
    def standing(self) -> tuple[Standing, ...]:
        """Where the choice is the present one, along each axis: beyond a threshold it may be chosen again."""
        return tuple(self._standing(axis, walk) for axis, walk in self._walks.items())

    def stated(self, axis: Axis) -> float:
        """What the mix states along an axis: the factor 1, its longest context, its largest batch."""
        mix = self._served
        return {"acceptance": 1.0, "context": float(mix.contexts[-1]), "batch": float(mix.batches[-1])}[axis]

    @cached_property
    def _walks(self) -> dict[Axis, Walk]:
        if self.judged is None:
            return {}
        axes: tuple[Axis, ...] = ("acceptance", "context", "batch")
        return {axis: Walk.along(partial(self._chosen, axis), *self._grid(axis)) for axis in axes}

    def judged_at(self, axis: Axis, at: IntArray) -> Judged:
        """The options where one thing is moved, [S, O]: all conditional rates by a factor in `UNIT`-ths, or contexts
        or batches of the mix, alike, up to a longest or largest."""
        mix, priced = self._served, self.priced
        lengths = self.space.lengths(*self._accepted, at / UNIT if axis == "acceptance" else 1.0)
        batches = mix.batches_up_to(at) if axis == "batch" else mix.batches
        if axis != "acceptance":
            contexts = mix.contexts_up_to(at) if axis == "context" else mix.contexts
            priced = self.space.priced(contexts, batches)
        return judged(self.space, priced, mix.shares, batches, lengths, self.target)

    def _chosen(self, axis: Axis, at: IntArray) -> IntArray:
        """The choice where one thing is moved [S], some places at a time."""
        at_once = max(1, POINTS // self._cells)
        parts = np.array_split(at, max(1, -(-at.size // at_once)))
        return np.concatenate([self.judged_at(axis, part).chosen for part in parts])

    def _grid(self, axis: Axis) -> tuple[IntArray, int]:
        """The whole numbers that are looked at, ascending, and what is stated, which is among them."""
        if axis == "acceptance":
            most = max(int(UNIT * _most_factor(self._accepted)), UNIT)
            down, up = np.linspace(0, UNIT, FACTORS), np.linspace(UNIT, most, FACTORS)
            return np.unique(np.concatenate([down, up]).astype(np.int64)), UNIT
        mix = self._served
        stated, ends = (mix.contexts, CONTEXTS) if axis == "context" else (mix.batches, BATCHES)
        start, count = int(stated[-1]), int(np.clip(PRICED // self._cells, 3, SAMPLES))
        sides = (between(start, min(ends[0], start), count), between(start, max(ends[1], start), count))
        return np.unique(np.concatenate(sides)), start

    @property
    def _cells(self) -> int:
        return len(self.space.options) * self._served.shares.size

    def _flips(self, axis: Axis, walk: Walk) -> Iterator[Threshold]:
        """The nearest change on either side, and where speculation stops where that is another."""
        found: list[tuple[Side, int, bool]] = []
        for side in get_args(Side):
            first, off = walk.nearest(side), walk.off.get(side)
            found += [] if first is None else [(side, first, False)]
            found += [] if off in (None, first) else [(side, off, True)]
        there = self.judged_at(axis, np.array([at for _, at, _ in found], dtype=np.int64))
        for row, (side, at, stops) in enumerate(found):
            place, reason = int(there.chosen[row]), self._reason(there, row, walk.now)
            becomes = None if place < 0 else self.space.options[place]
            if axis != "acceptance":
                yield Threshold(axis, side, at, becomes, reason, stops)
                continue
            drafts = walk.now if walk.now > 0 else place
            length = float(self.space.lengths(*self._accepted, at / UNIT)[drafts])
            yield Threshold(axis, side, at / UNIT, becomes, reason, stops, self.space.options[drafts], length)

    def _reason(self, there: Judged, row: int, now: int) -> Reason:
        """Why what is chosen now is given up at one of several places."""
        if now < 0 or there.possible[row, now]:
            return "speed"
        return "target" if there.fits[row, now] else "memory"

    def _standing(self, axis: Axis, walk: Walk) -> Standing:
        grid, intervals = walk.grid, walk.standing
        apart = grid[1:] - grid[:-1]
        lowest, highest = int(grid[0]), int(grid[-1])
        if axis != "acceptance":
            gap = float((apart / grid[1:])[apart > 1].max(initial=0.0))
            return Standing(axis, tuple(intervals), lowest, highest, gap)
        factors = np.array(intervals, dtype=float).reshape(-1, 2) / UNIT
        option = max(walk.now, 1)
        lengths = self.space.lengths(*self._accepted, factors)[..., option]
        stated, accepted = (tuple((float(low), float(high)) for low, high in each) for each in (factors, lengths))
        gap = float(apart.max(initial=0)) / UNIT
        ours = self.space.options[option]
        return Standing(axis, stated, lowest / UNIT, highest / UNIT, gap, ours, accepted)

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
