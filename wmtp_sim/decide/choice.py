"""Which systems a deployment can run today, and which choice gains most."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.spec.drafter import Drafter
from wmtp_sim.spec.system import Speculation

#: Gains closer than this share are not worth another flag.
INDIFFERENT = 0.005


def can_run(estimate: Estimate, policy: str) -> NDArray[np.bool_]:
    """Where a system is one that the release has and that reaches the drafter's attention, and its memory fits."""
    return fits(estimate, policy) & (offered(estimate, policy) and ranked(estimate.systems, policy))


def fits(estimate: Estimate, policy: str) -> NDArray[np.bool_]:
    """Where memory holds the target, and the drafter with such a cache."""
    return np.asarray(estimate.memory[policy].fits & estimate.memory["base"].fits)


def offered(estimate: Estimate, policy: str) -> bool:
    """Whether engine, drafter and a stated draft backend know the system.

    Releases window grouped-query heads only (SGLang PR #32673).
    """
    engine, speculation = estimate.engine, estimate.system(policy)
    if not speculation.windowed:
        return engine.has(policy)
    reached = windows_reach(speculation.drafter) or engine.ideal
    choice = engine.attention_on(estimate.machine.gpu.architecture, estimate.work.draft_kv_bytes)
    return engine.has(policy) and reached and engine.windows(choice)


def ranked(systems: tuple[Speculation, ...], name: str) -> bool:
    """Whether a system competes by its speed: one that changes the output does so with its like alone."""
    exact = {each.name for each in systems if each.system.lossless}
    return name in exact or not exact


def windows_reach(drafter: Drafter | None) -> bool:
    """Whether a release's window flag, where it has one, reaches this drafter's attention."""
    return drafter is not None and all(mixer.kind == "attention" for mixer in drafter.mixers)


def plainest(gains: ArrayLike, possible: ArrayLike = True) -> NDArray[np.int64]:
    """Places in ``gains`` [..., options], plainest option first: the first that is as good as the best, save nothing.

    Only those that are ``possible`` count; -1 where none is.
    """
    rates = np.where(possible, gains, -np.inf)
    near = np.asarray(possible) & (rates >= (1 - INDIFFERENT) * rates.max(axis=-1, keepdims=True))
    return np.asarray(np.where(near.any(axis=-1), near.argmax(axis=-1), -1))
