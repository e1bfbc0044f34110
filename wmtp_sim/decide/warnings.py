"""What a person must know before trusting or using an estimate: each with a stable id and a sentence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.spec.model import CompressedAttention, LatentAttention, Moe
from wmtp_sim.units import about_tokens


@dataclass(frozen=True)
class Warning:
    """``id`` is stable for programs; ``text`` is for people."""

    id: str
    text: str


def warnings(estimate: Estimate) -> list[Warning]:
    """All warnings of an estimate, most consequential first."""
    found = [*_fit(estimate), *_profile(estimate), *_context(estimate)]
    if estimate.drafter is not None and np.any(estimate.work.depth > 0):
        found += [*_acceptance(estimate), *_window(estimate), *_drafter(estimate)]
    return [*found, *_pricing(estimate)]


def _fit(estimate: Estimate) -> list[Warning]:
    found = []
    for name, memory in estimate.memory.items():
        if name == "flag" or np.all(memory.fits):
            continue
        what = {"base": "the target alone", "native": "target and drafter", "ring": "even with the ring, this"}[name]
        worst = float(np.max(memory.total_bytes)) / 1e9
        text = (
            f"{what} needs {worst:.1f} GB per GPU of {memory.budget_bytes / 1e9:.1f} GB usable; "
            f"largest context that fits: {about_tokens(float(np.min(memory.max_context)))}"
        )
        found.append(Warning(f"does-not-fit-{name}", text))
    return found


def _profile(estimate: Estimate) -> list[Warning]:
    profile, gpu = estimate.machine.profile, estimate.machine.gpu
    if profile.status == "ideal":
        text = "ideal engine: datasheet peaks, no latency; a bound that no engine reaches, not a prediction"
        return [Warning("ideal", text)]
    if profile.status == "uncalibrated":
        text = f"uncalibrated: no measured profile for {gpu.name}; first H200 figures over its datasheet, ranges judged"
        return [Warning("uncalibrated", text)]
    entries = [entry for step in estimate.all_steps.values() for entry in step.entries]
    asked = {(entry.operation.kernel, entry.operation.variant) for entry in entries}
    models = [(kernel, profile.kernel(kernel, variant)) for kernel, variant in asked]
    assumed = sorted({kernel for kernel, model in models if model.points == 0})
    found = []
    if assumed:
        found.append(Warning("assumed-kernels", f"never measured, documented constants instead: {', '.join(assumed)}"))
    if profile.status != "measured":
        return found
    carried = {(kernel, model.carried_from) for kernel, model in models if model.points}
    for origin in sorted({origin for _, origin in carried if origin}):
        kernels = ", ".join(sorted(kernel for kernel, where in carried if where == origin))
        text = f"not measured on {gpu.name}, carried over from {origin}: {kernels}"
        found.append(Warning("transferred-kernels", text))
    return found


def _context(estimate: Estimate) -> list[Warning]:
    limit, longest = estimate.model.max_context, float(np.max(estimate.work.context))
    if longest <= limit:
        return []
    if not estimate.model.rope:
        text = f"the config's limit is {limit:,} tokens; the model encodes no positions, so it runs beyond untested"
        return [Warning("beyond-config-limit", text)]
    text = (
        f"the model's limit is {limit:,} tokens: {about_tokens(longest)} needs YaRN x{np.ceil(longest / limit):.0f} in "
        "config.json itself (a command-line override does not reach the draft head, whose acceptance falls to 0)"
    )
    return [Warning("beyond-model-limit", text)]


def _acceptance(estimate: Estimate) -> list[Warning]:
    length = estimate.accept_length
    if length is None:
        text = "no acceptance given: step costs and break-even only; state --accept-length, --alpha or --survival"
        return [Warning("no-acceptance", text)]
    found = []
    if estimate.windowed_acceptance is None and estimate.drafter is not None and estimate.drafter.windowable:
        text = (
            "windowed drafts are given the acceptance of native ones; measured at 1M it moved by -15 to +6 %: "
            "state --windowed-accept-length"
        )
        found.append(Warning("same-acceptance", text))
    if estimate.acceptance is not None and estimate.acceptance.source == "assumed":
        text = "the acceptance is a guess: measure it on your own traffic, it multiplies everything"
        found.append(Warning("acceptance-assumed", text))
    drafting = np.broadcast_to(estimate.work.depth > 0, np.broadcast_shapes(length.shape, estimate.work.depth.shape))
    if np.any(drafting & (length <= 1.05)):
        text = "an accept length near 1.0 is what a broken drafter shows (missing mtp.* tensors, YaRN not inherited)"
        found.append(Warning("accept-length-near-1", text))
    return found


def _window(estimate: Estimate) -> list[Warning]:
    work, drafter, engine = estimate.work, estimate.drafter, estimate.engine
    assert drafter is not None
    found = []
    if not drafter.windowable:
        text = f"{drafter.name} attends a window of its own already: flag and ring change nothing"
        return [Warning("draft-already-windowed", text)]
    missing = [policy for policy in ("flag", "ring") if policy not in engine.window_policies]
    if missing:
        text = f"{engine.name} {engine.version} has no {' or '.join(missing)}: priced as what-if"
        found.append(Warning("policy-not-in-engine", text))
    if any(isinstance(mixer, LatentAttention | CompressedAttention) for mixer in drafter.mixers):
        text = "the draft head uses latent attention, which the merged window flag does not cover: what-if"
        found.append(Warning("mla-draft-not-covered", text))
    if np.any(work.depth == 1):
        text = "at depth 1 there is no draft-decode pass, so the window flag changes nothing"
        found.append(Warning("flag-inert-at-depth-1", text))
    if np.all(work.window + work.sink >= work.context):
        text = "the window holds the whole context: flag and ring change nothing"
        found.append(Warning("window-holds-context", text))
    if np.any(work.window < work.depth + 1):
        text = "the window is smaller than the depth + 1 draft tokens of a step, which SGLang refuses"
        found.append(Warning("window-below-depth", text))
    architecture = estimate.machine.gpu.architecture
    return found + [Warning("engine-note", note.text) for note in engine.notes if note.concerns(architecture)]


def _drafter(estimate: Estimate) -> list[Warning]:
    assert estimate.drafter is not None
    found = [Warning("drafter-assumed", estimate.drafter.note)] if estimate.drafter.note else []
    copies = estimate.drafter.resident_copies
    if copies > 1:
        deepest = float(np.max(estimate.work.depth))
        again = " and reused beyond" if deepest > copies else ""
        text = (
            f"the checkpoint has {copies} separate heads, one per drafted token{again}; each is priced as a pass over "
            "all verified rows (assumed)"
        )
        found.append(Warning("separate-heads", text))
    return found


def _pricing(estimate: Estimate) -> list[Warning]:
    found = []
    model, gpu = estimate.model, estimate.machine.gpu
    if model.precision.note:
        found.append(Warning("precision-note", model.precision.note))
    formats = {getattr(model.precision.target, group) for group in type(model.precision.target).model_fields}
    if "nvfp4" in formats and gpu.peak_dense_flops.fp4 is None:
        text = f"{gpu.name} has no FP4 arithmetic: NVFP4 weights save bytes and are multiplied in bf16"
        found.append(Warning("no-fp4-hardware", text))
    routed = any(isinstance(c, Moe) for block in model.blocks for c in block.channels)
    if routed and estimate.work.overlap == 0 and np.any(estimate.work.depth > 0):
        text = "experts of verified rows are taken as independent, the upper estimate; measured --overlap: 0.2 to 0.5"
        found.append(Warning("expert-union-upper", text))
    return found
