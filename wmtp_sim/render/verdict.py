"""The answer in words: does speculation pay here, with which draft KV, and why."""

from __future__ import annotations

from wmtp_sim.decide.estimate import Estimate, PolicyResult
from wmtp_sim.step.compose import POLICIES, Policy, Step
from wmtp_sim.units import about_tokens, gigabytes, milliseconds, times


def verdict(estimate: Estimate) -> list[str]:
    """Two or three sentences for a single point: fit, verdict, reason."""
    lines = []
    alone = estimate.memory["base"]
    if not alone.fits:
        lines.append(f"Does not fit: {_short(estimate, 'base')}.")
    if not estimate.policies:
        return [*lines, f"Base step alone: nothing is drafted{' at depth 0' if not estimate.work.depth else ''}."]
    if alone.fits and not estimate.memory["native"].fits:
        ring = "the ring does" if estimate.memory["ring"].fits else "nor does the ring"
        lines.append(f"The target fits, the drafter's full KV does not; {ring}: {_short(estimate, 'native')}.")
    lines.append(_pays(estimate))
    lines.append(_reason(estimate))
    losing = estimate.losing_depth("native")
    if losing is not None:
        rate = "at this acceptance" if estimate.acceptance else "even at full acceptance"
        lines.append(f"Native drafting loses to no speculation from depth {losing} on, {rate}.")
    return lines


def _short(estimate: Estimate, name: str) -> str:
    memory = estimate.memory[name]
    longest = about_tokens(float(memory.max_context)) if memory.max_context > 0 else "none"
    needed, usable = gigabytes(float(memory.total_bytes)), gigabytes(memory.budget_bytes)
    return f"{needed} needed per GPU, {usable} usable, largest context {longest}"


def _pays(estimate: Estimate) -> str:
    depth = int(estimate.work.depth)
    if estimate.accept_length is None:
        parts = [f"{p} {float(r.break_even_accept_length):.2f}" for p, r in estimate.policies.items()]
        return f"Depth {depth} pays above an accept length of: {', '.join(parts)} (of {depth + 1} at most)."
    best = max(POLICIES, key=lambda p: _gain(estimate.policies[p]))
    if _gain(estimate.policies[best]) - _gain(estimate.policies["native"]) < 0.005:
        best = "native"
    gain = _gain(estimate.policies[best])
    if times(gain) == times(1.0):
        return f"Speculation breaks even at depth {depth}: {times(gain)} with {_named(best)}."
    if gain < 1:
        floor = "no acceptance can pay" if estimate.policies[best].unwinnable else "a higher accept length would"
        return f"Speculation loses at depth {depth}: {times(gain)} at best ({best}); {floor}."
    native = _gain(estimate.policies["native"])
    beside = "" if best == "native" else f", native {times(native)}"
    return f"Speculation pays at depth {depth}: {times(gain)} with {_named(best)}{beside}."


def _named(policy: Policy) -> str:
    return {"native": "native (full) draft KV", "flag": "the window flag", "ring": "the ring"}[policy]


def _gain(result: PolicyResult) -> float:
    assert result.speedup is not None
    return float(result.speedup)


def _reason(estimate: Estimate) -> str:
    """What the draft reads, and what the window takes off it."""
    native, ring = estimate.steps["native"], estimate.steps["ring"]
    before, after = _draft_kv_read(native), _draft_kv_read(ring)
    saved = float(estimate.policies["native"].cost.step_s - estimate.policies["ring"].cost.step_s)
    share = float(native.term("draft") + native.term("extend")) / float(native.seconds)
    first = f"Drafting takes {share:.0%} of a native step and reads {gigabytes(before)} of draft KV in it"
    if saved < 1e-3 * float(native.seconds):
        return f"{first}; a window takes nothing worth having off that."
    return f"{first}; windowed it reads {gigabytes(after)}, which saves {milliseconds(saved)} ms a step."


def _draft_kv_read(step: Step) -> float:
    """Bytes of draft KV that one step's draft and extend passes read."""
    return sum(float(e.operation.kv * e.operation.repeats) for e in step.entries if e.term in ("draft", "extend"))
