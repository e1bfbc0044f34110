"""Which draft KV policies a deployment can run today, and which of them gains most. Single points."""

from __future__ import annotations

from wmtp_sim.decide.estimate import Estimate, PolicyResult
from wmtp_sim.step.compose import POLICIES, Policy

#: Gains closer than this are not worth another flag.
INDIFFERENT = 0.005


def runnable(estimate: Estimate) -> list[Policy]:
    """Policies that the engine release has, that reach this drafter's attention, and whose memory fits."""
    return [policy for policy in POLICIES if offered(estimate, policy) and bool(estimate.memory[policy].fits)]


def offered(estimate: Estimate, policy: Policy) -> bool:
    """Whether engine and drafter know the policy: releases window grouped-query heads only (SGLang PR #32673)."""
    if policy == "native":
        return True
    grouped = estimate.drafter is not None and all(m.kind == "attention" for m in estimate.drafter.mixers)
    return policy in estimate.engine.window_policies and (grouped or estimate.engine.ideal)


def best(estimate: Estimate, among: list[Policy]) -> Policy:
    """The policy with the highest speedup; the plainer one where the difference is nothing."""
    chosen = among[0]
    for policy in among[1:]:
        if gain(estimate.policies[policy]) > gain(estimate.policies[chosen]) + INDIFFERENT:
            chosen = policy
    return chosen


def gain(result: PolicyResult) -> float:
    """The speedup of a single point with a stated acceptance."""
    if result.speedup is None:
        raise ValueError("no acceptance was stated")
    return float(result.speedup)
