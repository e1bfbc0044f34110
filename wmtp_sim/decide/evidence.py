"""What an estimate rests on that was measured, and what nobody ever measured: why a verdict is sure, or is not."""

from __future__ import annotations

from wmtp_sim.decide.attention import unserved
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.spec.engine import MeasuredSteps

#: Drafters as a sentence names them.
DRAFTERS = {"mtp": "an MTP head", "eagle": "an EAGLE head", "model": "a draft model"}


def unmeasured(estimate: Estimate) -> tuple[str, ...]:
    """What was never measured, each as the end of "never measured: ..."; empty where a verdict may be sure."""
    engine, gpu, ranks = estimate.engine, estimate.machine.gpu, estimate.work.layout.ranks
    release = f"{engine.name} {engine.version}"
    found = []
    if engine.ideal:
        found.append("any engine at a datasheet's peaks")
    elif not engine.measured:
        found.append(f"a step of {release}")
    else:
        here = [each for each in engine.measured if each.gpu == gpu.name]
        if not here:
            found.append(f"a step of {release} on {gpu.name}")
        if ranks not in {n for each in engine.measured for n in each.ranks}:
            found.append(f"a step of {release} over {ranks} GPUs")
        kind = estimate.drafter.kind if estimate.drafter else None
        if kind is not None and kind not in {name for each in engine.measured for name in each.drafters}:
            found.append(f"a step of {release} with {DRAFTERS[kind]}")
    if estimate.machine.profile.status != "measured" and not engine.ideal:
        found.append(f"a kernel on {gpu.name}")
    if estimate.spans_hosts:
        found.append("links between hosts, which are not priced either")
    found += [f"{use.backend} on {gpu.name}" for use in unserved(estimate)[:1]]
    return tuple(found)


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
