"""From a deployment to an answer: step cost of each system, what acceptance makes of it, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wmtp_sim.decide.acceptance import accept_length, accepted, at_depth
from wmtp_sim.decide.memory import Memory, memory
from wmtp_sim.machine.machine import Machine
from wmtp_sim.spec.acceptance import Acceptance, AcceptLength
from wmtp_sim.spec.drafter import Drafter
from wmtp_sim.spec.engine import Engine
from wmtp_sim.spec.model import Model
from wmtp_sim.spec.system import Generation, Speculation
from wmtp_sim.spec.workload import FloatArray, Workload
from wmtp_sim.step.compose import Composer, Step
from wmtp_sim.step.plan import TERMS, Term

#: Depths that are searched for the one at which drafting turns into a loss.
DEEPEST_SEARCHED = 16


@dataclass(frozen=True)
class StepCost:
    """Seconds of one step: expected, 90 % interval, speed-of-light bound, and the five terms. Arrays broadcast."""

    step_s: FloatArray
    low_s: FloatArray
    high_s: FloatArray
    bound_s: FloatArray
    terms: dict[Term, FloatArray]

    @classmethod
    def of(cls, step: Step) -> StepCost:
        total = step.total
        seconds, low, high, bound = map(np.asarray, (total.seconds, total.low, total.high, total.bound))
        return cls(seconds, low, high, bound, {name: np.asarray(step.term(name)) for name in TERMS})

    def where_drafting(self, depth: FloatArray, base: StepCost) -> StepCost:
        """This cost where tokens are drafted, the base step's where depth is 0."""
        if np.all(depth > 0):
            return self
        names = ("step_s", "low_s", "high_s", "bound_s")
        chosen = {name: np.where(depth > 0, getattr(self, name), getattr(base, name)) for name in names}
        terms = {name: np.where(depth > 0, self.terms[name], base.terms[name]) for name in TERMS}
        return StepCost(**chosen, terms=terms)


@dataclass(frozen=True)
class PolicyResult:
    """One system against the base step and against the plainest system of the answer.

    ``depth`` is how many drafted tokens can be accepted, ``most`` the tokens that a round commits at most.
    ``accept_length``, ``speedup`` and ``tokens_per_s`` are None when no acceptance was stated.
    """

    cost: StepCost
    base: StepCost
    plainest: StepCost
    depth: FloatArray
    most: FloatArray
    batch: FloatArray
    accept_length: FloatArray | None

    @property
    def margin(self) -> FloatArray:
        """The plainest step over this step, less 1: what the system saves, whatever the acceptance."""
        return self.plainest.step_s / self.cost.step_s - 1.0

    @property
    def break_even_accept_length(self) -> FloatArray:
        """The accept length at which speculation costs what it gains."""
        return self.cost.step_s / self.base.step_s

    @property
    def max_speedup(self) -> FloatArray:
        """Speedup if every drafted token were accepted."""
        return self.most / self.break_even_accept_length

    @property
    def unwinnable(self) -> np.ndarray:
        """Whether no acceptance can pay for the step."""
        return np.asarray(self.break_even_accept_length > self.most)

    @property
    def speedup(self) -> FloatArray | None:
        """Per-token rate with speculation over without."""
        return None if self.accept_length is None else self.accept_length / self.break_even_accept_length

    @property
    def tokens_per_s(self) -> FloatArray | None:
        """Tokens per second of one request."""
        return None if self.accept_length is None else self.accept_length / self.cost.step_s

    @property
    def tokens_per_s_total(self) -> FloatArray | None:
        """Tokens per second of the whole batch."""
        return None if self.tokens_per_s is None else self.tokens_per_s * self.batch


#: At which acceptance depths were compared: as stated at each, carried over from one depth (assumed), or full.
Basis = Literal["stated", "assumed", "full"]


@dataclass(frozen=True)
class LosingDepth:
    """``depth``: first of the depths at which, and at all deeper ones up to ``searched``, drafting loses; 0 is none."""

    depth: NDArray[np.int64]
    searched: int
    basis: Basis


@dataclass(frozen=True)
class Estimate:
    """Everything one estimate says. Arrays have shapes that broadcast to ``work.shape`` and the acceptance's."""

    model: Model
    engine: Engine
    machine: Machine
    work: Workload
    systems: tuple[Speculation, ...]
    acceptance: Acceptance | None
    windowed_acceptance: Acceptance | None = None
    own_acceptance: Mapping[str, Acceptance] = field(default_factory=dict)
    stated_for: frozenset[str] = frozenset()  # systems whose own accept length was stated, which nothing changes

    @property
    def drafter(self) -> Drafter | None:
        """Who drafts in the plainest system; None where nobody's matrices do."""
        return self.systems[0].drafter if self.systems else None

    @property
    def release(self) -> str:
        """The engine and its version, in words."""
        return f"{self.engine.name} {self.engine.version}"

    @property
    def title(self) -> str:
        """What runs where, in words."""
        return f"{self.model.name} on {self.machine.gpu.name}, {self.release}"

    def system(self, name: str) -> Speculation:
        """A system of the answer by its name."""
        return next(each for each in self.systems if each.name == name)

    @cached_property
    def _composer(self) -> Composer:
        generation = self.systems[0].system.generation if self.systems else Generation()
        return Composer(self.model, self.engine, self.machine, self.work, generation)

    @cached_property
    def base_step(self) -> Step:
        """The base step with all its operations."""
        return self._composer.base_step()

    @cached_property
    def steps(self) -> dict[str, Step]:
        """Each system's step with all its operations, the plainest first; empty where nothing is drafted."""
        return {each.name: self._composer.speculative_step(each) for each in self.systems}

    @property
    def spans_hosts(self) -> bool:
        """Whether one step's GPUs stand in several hosts, whose links are not priced."""
        return self.work.layout.hosts_of_a_step(self.machine.gpu.gpus_per_host) > 1

    @property
    def all_steps(self) -> dict[str, Step]:
        """``base`` and every system's step."""
        return {"base": self.base_step, **self.steps}

    @cached_property
    def base(self) -> StepCost:
        """Cost of one iteration without speculation."""
        return StepCost.of(self.base_step)

    @cached_property
    def idle(self) -> StepCost | None:
        """Cost of an iteration while an adaptive depth is 0, where that is more than a base step; else None."""
        if self.drafter is None or not self.engine.idle_wide_pass:
            return None
        return StepCost.of(self._composer.idle_step(self.systems[0]))

    @cached_property
    def policies(self) -> dict[str, PolicyResult]:
        """Each system's cost and gain, the plainest first; empty where nothing is drafted."""
        costs = {p: StepCost.of(step).where_drafting(self.work.depth, self.base) for p, step in self.steps.items()}
        return {
            each.name: PolicyResult(
                cost=costs[each.name],
                base=self.base,
                plainest=costs[self.systems[0].name],
                depth=np.asarray(each.levels(self.work.depth)),
                most=np.asarray(each.most(self.work.depth)),
                batch=self.work.batch,
                accept_length=self._length(each),
            )
            for each in self.systems
        }

    @property
    def costs(self) -> dict[str, StepCost]:
        """Cost of ``base`` and of every system's step; a base step's where depth is 0."""
        return {"base": self.base, **{name: result.cost for name, result in self.policies.items()}}

    def stated(self, speculation: Speculation) -> Acceptance | None:
        """The acceptance of a system: its own, or that of windowed drafts, where one was stated."""
        windowed = self.windowed_acceptance if speculation.windowed else None
        return self.own_acceptance.get(speculation.name) or windowed or self.acceptance

    @cached_property
    def accept_length(self) -> FloatArray | None:
        """Mean tokens per step of the plainest system's drafts; None when no acceptance was stated."""
        if self.systems:
            return self._length(self.systems[0])
        return None if self.acceptance is None else accept_length(self.acceptance, self.work.depth.astype(np.int64))

    def _length(self, speculation: Speculation) -> FloatArray | None:
        if speculation.system.verify.rule == "none":  # what is not verified is kept
            return np.asarray(speculation.verify_rows(self.work.depth))
        acceptance = self.stated(speculation)
        if acceptance is not None and speculation.name in self.stated_for:
            return accept_length(acceptance, np.asarray(speculation.levels(self.work.depth)).astype(np.int64))
        return None if acceptance is None else accepted(acceptance, speculation, self.work.depth, self.work.context)

    @property
    def base_tokens_per_s(self) -> FloatArray:
        return 1.0 / self.base.step_s

    @cached_property
    def memory(self) -> dict[str, Memory]:
        """Memory per GPU: ``base`` alone, and with each system's drafter and cache."""
        gpu, engine, work = self.machine.gpu, self.engine, self.work
        generation = self._composer.generation
        found = {"base": memory(self.model, gpu, engine, work, generation=generation)}
        alike: dict[object, Memory] = {}  # systems that differ in what they read may hold the same
        for each in self.systems:
            if each.held not in alike:
                alike[each.held] = memory(self.model, gpu, engine, work, each, generation)
            found[each.name] = alike[each.held]
        return found

    def losing_depth(self, speculation: Speculation | None = None) -> LosingDepth:
        """From which depth a system (the plainest) loses to no speculation, at every deeper one that is searched.

        Judged at the stated acceptance; an accept length is carried to other depths as
        `decide.acceptance.at_depth` does, and without any the question is asked of full acceptance. For one stated
        depth and acceptance; context, window and batch may be arrays.
        """
        speculation = speculation or self.systems[0]
        acceptance = self.stated(speculation)
        if speculation.fixed:  # there is no other depth to look at
            return LosingDepth(np.zeros(self.work.shape, dtype=np.int64), 0, "full" if acceptance is None else "stated")
        rates = getattr(acceptance, "rates", None)
        most = DEEPEST_SEARCHED if rates is None else min(DEEPEST_SEARCHED, rates.shape[-1])
        depths = np.arange(1, most + 1).reshape(-1, *(1 for _ in self.work.shape))
        free = replace(speculation, depth=None)
        composer = replace(self._composer, work=replace(self.work, depth=depths.astype(float)), _priced={})
        cost = composer.speculative_step(free).seconds / self.base.step_s
        length = depths + 1.0
        if acceptance is not None:
            length = accepted(at_depth(acceptance, depths), free, depths, self.work.context)
        deepest_win = np.max(np.where(length >= cost, depths, 0), axis=0)
        assumed = isinstance(acceptance, AcceptLength)
        basis: Basis = "full" if acceptance is None else "assumed" if assumed else "stated"
        return LosingDepth(np.where(deepest_win < most, deepest_win + 1, 0), most, basis)
