"""What an estimate rests on that was measured, and what nobody ever measured: why a verdict is sure, or is not."""

from __future__ import annotations

from wmtp_sim.decide.attention import unserved
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.spec.engine import MeasuredSteps

#: Drafters as a sentence names them.
DRAFTERS = {"mtp": "an MTP head", "eagle": "an EAGLE head", "model": "a draft model"}


def unmeasured(estimate: Estimate) -> tuple[str, ...]:
    """What was never measured, each as the end of "never measured: ..."; empty where a verdict may be sure."""
    engine, gpu = estimate.engine, estimate.machine.gpu
    release = f"{engine.name} {engine.version}"
    found = []
    if engine.ideal:
        found.append("any engine at a datasheet's peaks")
    elif apart := _apart(estimate):
        found.append(f"a step of {release} {', '.join(apart)}".rstrip())
    if estimate.machine.profile.status != "measured" and not engine.ideal:
        found.append(f"a kernel on {gpu.name}")
    if estimate.spans_hosts:
        found.append("links between hosts, which are not priced either")
    found += [f"{use.backend} on {gpu.name}" for use in unserved(estimate)[:1]]
    return tuple(found)


def _apart(estimate: Estimate) -> list[str]:
    """In what an estimate differs from every step of its release that was measured; "" where none was."""
    measured, gpu, ranks = estimate.engine.measured, estimate.machine.gpu.name, estimate.work.layout.ranks
    if not measured:
        return [""]
    kind = estimate.drafter.kind if estimate.drafter else measured[0].drafters[0]
    alike = {
        f"on {gpu}": any(each.gpu == gpu for each in measured),
        f"over {ranks} GPUs": any(ranks in each.ranks for each in measured),
        f"with {DRAFTERS[kind]}": any(kind in each.drafters for each in measured),
    }
    apart = [words for words, there in alike.items() if not there]
    return apart or ([] if _speaking(estimate) else ["like this one"])


def off_by(estimate: Estimate) -> float:
    """The factor, either way, that base step over speculative step may be off by beyond what kernels leave open.

    The largest error among this release's measured steps; what its definition leaves open where none speaks for the
    estimate.
    """
    found = _speaking(estimate)
    if found is None:
        return estimate.engine.spread_over(estimate.work.layout.ranks)
    return 1.0 + found.off


def _speaking(estimate: Estimate) -> MeasuredSteps | None:
    """The measured steps that are like the estimate's: on that GPU, with such a drafter, over so many ranks."""
    gpu, ranks = estimate.machine.gpu.name, estimate.work.layout.ranks
    kind = estimate.drafter.kind if estimate.drafter else "mtp"
    return next(
        (
            each
            for each in estimate.engine.measured
            if (each.gpu == gpu and kind in each.drafters and ranks in each.ranks)
        ),
        None,
    )
