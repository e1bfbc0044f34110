"""The answer in words: does it fit, does speculation pay here, with which draft KV, and why."""

from __future__ import annotations

from wmtp_sim.decide.choice import INDIFFERENT, can_run, offered
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.ratio import Range
from wmtp_sim.decide.verdict import verdict_of
from wmtp_sim.step.compose import POLICIES, Policy
from wmtp_sim.units import about_tokens, gigabytes, milliseconds, times


def verdict(estimate: Estimate) -> list[str]:
    """A few sentences for a single point: fit first, then the verdict on what can run, then the reason."""
    if not estimate.memory["base"].fits:
        return [f"Does not fit: {_short(estimate, 'base')}."]
    if not estimate.policies:
        return [f"Base step alone: nothing is drafted{' at depth 0' if not estimate.work.depth else ''}."]
    lines = []
    if not estimate.memory["native"].fits:
        ring = "a ring would" if estimate.memory["ring"].fits else "nor would a ring"
        lines.append(f"The target fits, the drafter's full KV does not; {ring}: {_short(estimate, 'native')}.")
    lines += [*_pays(estimate), *_what_if(estimate), _reason(estimate)]
    losing = estimate.losing_depth("native")
    if losing.depth:
        basis = {"stated": "at these rates", "assumed": "at this acceptance", "full": "even at full acceptance"}
        lines.append(f"Native drafting loses to no speculation from depth {losing.depth} on, {basis[losing.basis]}.")
    return lines


def _short(estimate: Estimate, name: str) -> str:
    memory = estimate.memory[name]
    longest = about_tokens(float(memory.max_context)) if memory.max_context > 0 else "none"
    needed, usable = gigabytes(float(memory.total_bytes)), gigabytes(memory.budget_bytes)
    return f"{needed} needed per GPU, {usable} usable, largest context {longest}"


def _pays(estimate: Estimate) -> list[str]:
    """Whether the best policy that can run pays, within which range, and what of that nobody measured."""
    depth = int(estimate.work.depth)
    if estimate.accept_length is None:
        parts = [f"{p} {float(r.break_even_accept_length):.2f}" for p, r in estimate.policies.items()]
        return [f"Depth {depth} pays above an accept length of: {', '.join(parts)} (of {depth + 1} at most)."]
    found = verdict_of(estimate)
    policy, word = found.only_policy, found.only_word
    if policy is None or word is None:
        return ["No draft policy of this engine fits."]
    gain = f"{times(float(found.gain.expected))} ({spread(found.gain)})"
    if word == "even":
        said = f"Speculation breaks even at depth {depth}: {gain} with {named(policy)}."
    elif word in ("pays", "probably pays"):
        native = float(estimate.policies["native"].speedup)  # type: ignore[arg-type]
        beside = "" if policy == "native" else f", native {times(native)}"
        said = f"Speculation {word} at depth {depth}: {gain} with {named(policy)}{beside}."
    else:
        floor = "no acceptance can pay" if estimate.policies[policy].unwinnable else "a higher accept length would"
        said = f"Speculation {word} at depth {depth}: {gain} at best ({policy}); {floor}."
    return [said, *not_sure(found.unmeasured)]


def not_sure(unmeasured: tuple[str, ...]) -> list[str]:
    """Why no verdict is sure, where that is so."""
    return [f"Not sure: nobody measured {', or '.join(unmeasured)}."] if unmeasured else []


def spread(gain: Range) -> str:
    """The range of a speedup: 2.22 to 3.02."""
    return f"{float(gain.low):.2f} to {float(gain.high):.2f}"


def _what_if(estimate: Estimate) -> list[str]:
    """What the policies would give that this engine, drafter or GPU memory does not let run."""
    if estimate.accept_length is None:
        return []
    gains = {p: float(result.speedup) for p, result in estimate.policies.items() if result.speedup is not None}
    most = max((gains[policy] for policy in POLICIES if can_run(estimate, policy)), default=0.0)
    better = [p for p in POLICIES if not offered(estimate, p) and gains[p] > most + INDIFFERENT]
    if not better:
        return []
    parts = [f"{named(policy)} would give {times(gains[policy])}" for policy in better]
    return [f"Not in {estimate.engine.name} {estimate.engine.version} for this drafter: {'; '.join(parts)}."]


def named(policy: Policy) -> str:
    """A policy as a sentence names it."""
    return {"native": "native (full) draft KV", "flag": "the window flag", "ring": "the ring"}[policy]


def _reason(estimate: Estimate) -> str:
    """What the draft reads, and what the window takes off it."""
    native, ring = estimate.steps["native"], estimate.steps["ring"]
    before, after = (float(step.kv_read_bytes("draft", "extend")) for step in (native, ring))
    saved = float(estimate.policies["native"].cost.step_s - estimate.policies["ring"].cost.step_s)
    share = float(native.term("draft") + native.term("extend")) / float(native.seconds)
    first = f"Drafting takes {share:.0%} of a native step and moves {gigabytes(before)} of draft KV in it"
    if saved < 1e-3 * float(native.seconds):
        return f"{first}; a window takes nothing worth having off that."
    return f"{first}; fully windowed {gigabytes(after)}, which saves {milliseconds(saved)} ms a step."
