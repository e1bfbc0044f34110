"""The answer in words: does it fit, does speculation pay here, with which draft KV, and why."""

from __future__ import annotations

from wmtp_sim.decide.choice import INDIFFERENT, can_run, offered
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.ratio import Range
from wmtp_sim.decide.verdict import verdict_of
from wmtp_sim.render.sentences import said
from wmtp_sim.units import about_tokens, gigabytes, milliseconds, times


def verdict(estimate: Estimate) -> list[str]:
    """A few sentences for a single point: fit first, then the verdict on what can run, then the reason."""
    lines = conclusion(estimate)
    if not estimate.memory["base"].fits or not estimate.policies:
        return lines
    lines.append(_reason(estimate))
    losing = estimate.losing_depth()
    if losing.depth:
        basis = {"stated": "at these rates", "assumed": "at this acceptance", "full": "even at full acceptance"}
        name = estimate.systems[0].name.capitalize()
        lines.append(f"{name} drafting loses to no speculation from depth {losing.depth} on, {basis[losing.basis]}.")
    return lines


def conclusion(estimate: Estimate) -> list[str]:
    """Whether it fits, whether it pays and how sure that is: what the explorer's page says of a point too."""
    if not estimate.memory["base"].fits:
        return [said("too_large", short=_short(estimate, "base"))]
    if not estimate.policies:
        return [said("nothing_drafted", at="" if estimate.work.depth else said("at_depth_0"))]
    return [*_draft_fits(estimate), *_pays(estimate), *_what_if(estimate)]


def _draft_fits(estimate: Estimate) -> list[str]:
    """Nothing where the plainest system has room."""
    first, *others = estimate.systems
    if estimate.memory[first.name].fits:
        return []
    room = [each.system.look.phrase for each in others if estimate.memory[each.name].fits]
    found = said("others_fit", systems=" or ".join(room)) if room else said("others_too_large")
    return [said("draft_too_large", others=found, short=_short(estimate, first.name))]


def _short(estimate: Estimate, name: str) -> str:
    memory = estimate.memory[name]
    longest = about_tokens(float(memory.max_context)) if memory.max_context > 0 else "none"
    needed, usable = gigabytes(float(memory.total_bytes)), gigabytes(memory.budget_bytes)
    return said("short", needed=needed, usable=usable, longest=longest)


def _pays(estimate: Estimate) -> list[str]:
    """Whether the best policy that can run pays, within which range, and what of that nobody measured."""
    if estimate.accept_length is None:
        return [_needed(estimate)]
    found = verdict_of(estimate)
    policy, word = found.only_policy, found.only_word
    if policy is None or word is None:
        some = any(offered(estimate, each.name) for each in estimate.systems)
        return [said("nothing_fits") if some else said("nothing_offered", engine=estimate.release)]
    depth = int(estimate.policies[policy].depth)
    gain = said("gain", times=times(float(found.gain.expected)), range=spread(found.gain))
    slots = {"word": word, "depth": depth, "gain": gain, "policy": named(estimate, policy)}
    if word == "even":
        line = said("even", **slots)
    elif word in ("pays", "probably pays"):
        plainest = estimate.systems[0].name
        theirs = times(float(estimate.policies[plainest].speedup))  # type: ignore[arg-type]
        beside = "" if policy == plainest else said("beside_plainest", plainest=plainest, times=theirs)
        line = said("wins", beside=beside, **slots)
    else:
        floor = said("unwinnable" if estimate.policies[policy].unwinnable else "winnable")
        line = said("loses", floor=floor, **slots | {"policy": policy})
    return [line, *not_sure(found.unmeasured)]


def _needed(estimate: Estimate) -> str:
    """The accept length that each system needs, and the largest that it can have."""
    results = estimate.policies.items()
    most = {f"{float(result.most):.3g}" for _, result in results}
    if len(most) == 1:
        parts = [f"{name} {float(result.break_even_accept_length):.2f}" for name, result in results]
        known = ", ".join(parts)
        return f"Depth {int(estimate.work.depth)} pays above an accept length of: {known} (of {most.pop()} at most)."
    parts = [f"{n} {float(r.break_even_accept_length):.2f} (of {float(r.most):.3g} at most)" for n, r in results]
    return f"Speculation pays above an accept length of: {', '.join(parts)}."


def not_sure(unmeasured: tuple[str, ...]) -> list[str]:
    """Why no verdict is sure, where that is so."""
    return [said("not_sure", what=", or ".join(unmeasured))] if unmeasured else []


def spread(gain: Range) -> str:
    """The range of a speedup: 2.22 to 3.02."""
    return said("range", low=f"{float(gain.low):.2f}", high=f"{float(gain.high):.2f}")


def _what_if(estimate: Estimate) -> list[str]:
    """What the policies would give that this engine or drafter does not let run, and memory does."""
    if estimate.accept_length is None:
        return []
    gains = {p: float(result.speedup) for p, result in estimate.policies.items() if result.speedup is not None}
    most = max((gain for name, gain in gains.items() if can_run(estimate, name)), default=0.0)
    lacking = (n for n in gains if not offered(estimate, n) and bool(estimate.memory[n].fits))
    better = [policy for policy in lacking if gains[policy] > most + INDIFFERENT]
    if not better:
        return []
    parts = [said("would_give", policy=named(estimate, policy), times=times(gains[policy])) for policy in better]
    return [said("what_if", engine=estimate.release, parts="; ".join(parts))]


def named(estimate: Estimate, policy: str) -> str:
    """A system as a sentence names it."""
    return estimate.system(policy).system.look.phrase


def _reason(estimate: Estimate) -> str:
    """What the draft reads, and what the system that reads least takes off it."""
    plainest, *_ = estimate.steps
    deep = estimate.policies[plainest].depth  # what drafts fewer tokens saves nothing by that
    alike = {name: step for name, step in estimate.steps.items() if estimate.policies[name].depth == deep}
    moved = {name: float(step.kv_read_bytes("draft", "extend")) for name, step in alike.items()}
    least = min(moved, key=lambda name: moved[name])
    step = estimate.steps[plainest]
    saved = float(estimate.policies[plainest].cost.step_s - estimate.policies[least].cost.step_s)
    share = float(step.term("draft") + step.term("extend")) / float(step.seconds)
    first = f"Drafting takes {share:.0%} of a {plainest} step and moves {gigabytes(moved[plainest])} of draft KV in it"
    if least == plainest:
        return f"{first}."
    if saved < 1e-3 * float(step.seconds):
        return f"{first}; a window takes nothing worth having off that."
    after = gigabytes(moved[least])
    return f"{first}; with {named(estimate, least)} {after}, which saves {milliseconds(saved)} ms a step."
