"""From a deployment to an answer: step cost of each draft policy, what acceptance makes of it, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wmtp_sim.decide.acceptance import accept_length, at_depth
from wmtp_sim.decide.memory import Memory, memory
from wmtp_sim.machine.machine import Machine
from wmtp_sim.spec.acceptance import Acceptance, AcceptLength
from wmtp_sim.spec.drafter import Drafter
from wmtp_sim.spec.engine import Engine
from wmtp_sim.spec.model import Model
from wmtp_sim.spec.workload import FloatArray, Workload
from wmtp_sim.step.compose import POLICIES, TERMS, Composer, Policy, Step, Term

#: Depths that are searched for the one at which native drafting turns into a loss.
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
        return cls(
            step_s=np.asarray(total.seconds),
            low_s=np.asarray(total.low),
            high_s=np.asarray(total.high),
            bound_s=np.asarray(total.bound),
            terms={name: np.asarray(step.term(name)) for name in TERMS},
        )

    def where_drafting(self, depth: FloatArray, base: StepCost) -> StepCost:
        """This cost where tokens are drafted, the base step's where depth is 0."""
        if np.all(depth > 0):
            return self

        def chosen(ours: FloatArray, theirs: FloatArray) -> FloatArray:
            return np.where(depth > 0, ours, theirs)

        return StepCost(
            step_s=chosen(self.step_s, base.step_s),
            low_s=chosen(self.low_s, base.low_s),
            high_s=chosen(self.high_s, base.high_s),
            bound_s=chosen(self.bound_s, base.bound_s),
            terms={name: chosen(self.terms[name], base.terms[name]) for name in TERMS},
        )


@dataclass(frozen=True)
class PolicyResult:
    """One draft KV policy against the base step and against native drafting.

    ``accept_length``, ``speedup`` and ``tokens_per_s`` are None when no acceptance was stated.
    """

    cost: StepCost
    base: StepCost
    native: StepCost
    depth: FloatArray
    batch: FloatArray
    accept_length: FloatArray | None

    @property
    def margin(self) -> FloatArray:
        """Native step over this step, less 1: what the policy saves, whatever the acceptance."""
        return self.native.step_s / self.cost.step_s - 1.0

    @property
    def break_even_accept_length(self) -> FloatArray:
        """The accept length at which speculation costs what it gains."""
        return self.cost.step_s / self.base.step_s

    @property
    def max_speedup(self) -> FloatArray:
        """Speedup if every drafted token were accepted."""
        return (self.depth + 1.0) / self.break_even_accept_length

    @property
    def unwinnable(self) -> np.ndarray:
        """Whether no acceptance can pay for the step."""
        return np.asarray(self.break_even_accept_length > self.depth + 1.0)

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
    drafter: Drafter | None
    acceptance: Acceptance | None
    windowed_acceptance: Acceptance | None = None

    @cached_property
    def _composer(self) -> Composer:
        return Composer(self.model, self.engine, self.machine, self.work, self.drafter)

    @cached_property
    def base_step(self) -> Step:
        """The base step with all its operations."""
        return self._composer.base_step()

    @cached_property
    def steps(self) -> dict[Policy, Step]:
        """Each policy's step with all its operations; empty without a drafter."""
        if self.drafter is None:
            return {}
        return {policy: self._composer.speculative_step(policy) for policy in POLICIES}

    @property
    def spans_hosts(self) -> bool:
        """Whether one step's GPUs stand in several hosts, whose links are not priced."""
        return self.work.layout.hosts_of_a_step(self.machine.gpu.gpus_per_host) > 1

    @property
    def all_steps(self) -> dict[str, Step]:
        """``base`` and every policy's step."""
        return {"base": self.base_step, **{str(policy): step for policy, step in self.steps.items()}}

    @cached_property
    def base(self) -> StepCost:
        """Cost of one iteration without speculation."""
        return StepCost.of(self.base_step)

    @cached_property
    def idle(self) -> StepCost | None:
        """Cost of an iteration while an adaptive depth is 0, where that is more than a base step; else None."""
        if self.drafter is None or not self.engine.idle_wide_pass:
            return None
        return StepCost.of(self._composer.idle_step())

    @cached_property
    def policies(self) -> dict[Policy, PolicyResult]:
        """Each draft KV policy's cost and gain; empty without a drafter."""
        costs = {p: StepCost.of(step).where_drafting(self.work.depth, self.base) for p, step in self.steps.items()}
        return {
            policy: PolicyResult(
                cost, self.base, costs["native"], self.work.depth, self.work.batch, self._length(self.stated(policy))
            )
            for policy, cost in costs.items()
        }

    def stated(self, policy: Policy) -> Acceptance | None:
        """The acceptance of a policy: windowed drafts have their own where one was stated."""
        return self.acceptance if policy == "native" else self.windowed_acceptance or self.acceptance

    @cached_property
    def accept_length(self) -> FloatArray | None:
        """Mean tokens per step of native drafts at the workload's depth, or None when no acceptance was stated."""
        return self._length(self.acceptance)

    def _length(self, acceptance: Acceptance | None) -> FloatArray | None:
        return None if acceptance is None else accept_length(acceptance, self.work.depth.astype(np.int64))

    @property
    def base_tokens_per_s(self) -> FloatArray:
        return 1.0 / self.base.step_s

    @cached_property
    def memory(self) -> dict[str, Memory]:
        """Memory per GPU: ``base`` alone, and with the drafter's KV full (``native``, ``flag``) or in a ``ring``."""
        gpu, engine, work = self.machine.gpu, self.engine, self.work
        found = {"base": memory(self.model, gpu, engine, work)}
        if self.drafter is not None:
            full = memory(self.model, gpu, engine, work, self.drafter)
            ring = memory(self.model, gpu, engine, work, self.drafter, ring=True)
            found |= {"native": full, "flag": full, "ring": ring}
        return found

    def losing_depth(self, policy: Policy = "native") -> LosingDepth:
        """From which depth a policy loses to no speculation, at every deeper one that is searched.

        Judged at the stated acceptance; an accept length is carried to other depths as
        `decide.acceptance.at_depth` does, and without any the question is asked of full acceptance. For one stated
        depth and acceptance; context, window and batch may be arrays.
        """
        acceptance = self.stated(policy)
        most = DEEPEST_SEARCHED
        rates = getattr(acceptance, "rates", None)
        if rates is not None:
            most = min(most, rates.shape[-1])
        depths = np.arange(1, most + 1).reshape(-1, *(1 for _ in self.work.shape))
        composer = replace(self._composer, work=replace(self.work, depth=depths.astype(float)))
        cost = composer.speculative_step(policy).seconds / self.base.step_s
        length = depths + 1.0 if acceptance is None else accept_length(at_depth(acceptance, depths), depths)
        deepest_win = np.max(np.where(length >= cost, depths, 0), axis=0)
        basis: Basis = "full" if acceptance is None else "stated"
        if isinstance(acceptance, AcceptLength):
            basis = "assumed"
        return LosingDepth(np.where(deepest_win < most, deepest_win + 1, 0), most, basis)
