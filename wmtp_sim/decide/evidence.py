"""What an estimate rests on that was measured, and what nobody ever measured: why a verdict is sure, or is not."""

from __future__ import annotations

from wmtp_sim.decide.attention import unserved
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.spec.drafter import Drafter, DrafterKind
from wmtp_sim.spec.engine import MeasuredSteps
from wmtp_sim.spec.precision import KV_BYTES

#: Drafters as a sentence names them.
DRAFTERS: dict[DrafterKind, str] = {
    "mtp": "an MTP head",
    "eagle": "an EAGLE head",
    "model": "a draft model",
    "block": "a block drafter",
    "parallel": "a parallel drafter",
    "heads": "heads side by side",
    "self": "the target as its own drafter",
}


def unmeasured(estimate: Estimate) -> tuple[str, ...]:
    """What was never measured, each as the end of "never measured: ..."; empty where a verdict may be sure."""
    engine, gpu = estimate.engine, estimate.machine.gpu
    found = []
    if engine.ideal:
        found.append("any engine at a datasheet's peaks")
    elif apart := _apart(estimate):
        found.append(f"a step of {estimate.release} {', '.join(apart)}".rstrip())
    if estimate.machine.profile.status != "measured" and not engine.ideal:
        found.append(f"a kernel on {gpu.name}")
    if estimate.spans_hosts:
        found.append("links between hosts, which are not priced either")
    if never := assumed_kernels(estimate):
        found.append(f"kernels of {' and '.join(never)}")
    found += [f"{use.backend} on {gpu.name}" for use in unserved(estimate)[:1]]
    return tuple(found)


def _apart(estimate: Estimate) -> list[str]:
    """In what an estimate differs from every step of its release that was measured; "" where none was."""
    measured, gpu, ranks = estimate.engine.measured, estimate.machine.gpu.name, estimate.work.layout.ranks
    if not measured:
        return [""]
    alike = {
        f"on {gpu}": any(each.gpu == gpu for each in measured),
        f"over {ranks} GPUs": any(ranks in each.ranks for each in measured),
    }
    alike |= {f"with {DRAFTERS[kind]}": any(kind in m.drafters for m in measured) for kind in _kinds(estimate)}
    apart = [words for words, there in alike.items() if not there]
    others = [each.name for each in estimate.systems if not each.system.plain_chain]
    apart += [f"speculating as {' or '.join(others)}"] if others else []
    beside = {
        "with layers of": sorted(_layers(estimate) - {kind for each in measured for kind in each.layers}),
        "with": sorted(_formats(estimate) - {name for each in measured for name in each.formats}),
        "with attention on": _by_hand(estimate),
    }
    apart += [f"{words} {' and '.join(names)}" for words, names in beside.items() if names]
    return apart or ([] if _speaking(estimate) else ["like this one"])


def _drafters(estimate: Estimate) -> list[Drafter]:
    return [drafter for each in estimate.systems for drafter in each.drafters]


def _kinds(estimate: Estimate) -> list[DrafterKind]:
    """Who drafts, each kind once, the plainest first."""
    return list(dict.fromkeys(drafter.kind for drafter in _drafters(estimate)))


def _layers(estimate: Estimate) -> set[str]:
    """Kinds of token mixers and MLPs of target and drafters."""
    blocks = (*estimate.model.blocks, *(block for each in _drafters(estimate) for block in each.blocks))
    return {part.kind for block in blocks for part in (*block.mixers, *block.channels)}


def _formats(estimate: Estimate) -> set[str]:
    """How the target's layers, their caches and the drafter are stored."""
    target, work = estimate.model.precision.target, estimate.work
    groups = [target, *(each.formats for each in _drafters(estimate))]
    stored = {getattr(each, group) for each in groups for group in ("attention", "linear_mixer", "mlp", "expert")}
    narrow = min(work.kv_bytes, work.draft_kv_bytes) <= KV_BYTES["fp8"]
    return stored | ({"an fp8 cache"} if narrow else set())


def _by_hand(estimate: Estimate) -> list[str]:
    """Attention backends that a person chose."""
    choice = estimate.engine.attention_on(estimate.machine.gpu.architecture, estimate.work.kv_bytes)
    return sorted({getattr(choice, phase) for phase in choice.by_hand})


def off_by(estimate: Estimate) -> float:
    """The factor, either way, that base step over speculative step may be off by beyond what kernels leave open.

    The largest error among this release's measured steps; what its definition leaves open where none speaks for the
    estimate.
    """
    found = _speaking(estimate)
    return estimate.engine.spread_over(estimate.work.layout.ranks) if found is None else 1.0 + found.off


def _speaking(estimate: Estimate) -> MeasuredSteps | None:
    """The measured steps that are like the estimate's: on that GPU, over so many ranks, with such a drafter."""
    gpu, ranks = estimate.machine.gpu.name, estimate.work.layout.ranks
    kinds = set(_kinds(estimate))
    alike = (each for each in estimate.engine.measured if each.gpu == gpu and ranks in each.ranks)
    return next((each for each in alike if kinds <= set(each.drafters) and _like(estimate, each)), None)


def _like(estimate: Estimate, measured: MeasuredSteps) -> bool:
    """Whether an estimate's systems are chains with the layers, formats and backends of measured steps."""
    stored = _formats(estimate) <= set(measured.formats)
    chains = all(each.system.plain_chain for each in estimate.systems)
    return stored and chains and _layers(estimate) <= set(measured.layers) and not _by_hand(estimate)


def asked_kernels(estimate: Estimate) -> set[tuple[str, str]]:
    """Kernel classes of an estimate's operations, with their variants."""
    parts = (part for step in estimate.all_steps.values() for part in step.parts)
    return {(operation.kernel, operation.variant) for part in parts for operation in part.operations()}


def assumed_kernels(estimate: Estimate) -> list[str]:
    """Kernel classes of an estimate that no profile ever measured."""
    profile = estimate.machine.profile
    if profile.status in ("ideal", "uncalibrated"):
        return []
    asked = asked_kernels(estimate)
    return sorted({kernel for kernel, variant in asked if profile.kernel(kernel, variant).points == 0})
