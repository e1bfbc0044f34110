"""What a person must know before trusting or using an estimate: each with a stable id and a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmtp_sim.decide.attention import unserved, unsplit, uses
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.evidence import asked_kernels, assumed_kernels
from wmtp_sim.decide.memory import Memory
from wmtp_sim.spec.model import CompressedAttention, LatentAttention, Moe, has_attention
from wmtp_sim.spec.system import Speculation
from wmtp_sim.units import about_tokens

#: How a number of a sentence is written: 141.2 (of bytes), 318K, 3.
Unit = Literal["GB", "tokens", "count"]
_WORDS: dict[Unit, Callable[[float], str]] = {
    "GB": lambda count: f"{count / 1e9:.1f}",
    "tokens": about_tokens,
    "count": lambda count: f"{count:.0f}",
}
#: What is said of acceptance, by id: which of them hold depends on what was stated, not on the point alone.
ACCEPTANCE = {
    "no-acceptance": (
        "no acceptance given: step costs and break-even only; state --accept-length, --alpha or --survival"
    ),
    "same-acceptance": (
        "windowed drafts are given the acceptance of native ones; measured at 1M it moved by -15 to +6 %: "
        "state --windowed-accept-length"
    ),
    "acceptance-assumed": "the acceptance is a guess: measure it on your own traffic, it multiplies everything",
    "accept-length-near-1": (
        "an accept length near 1.0 is what a broken drafter shows (missing mtp.* tensors, YaRN not inherited)"
    ),
}
#: Accept lengths that count as near 1.
NEAR_ONE = 1.05


@dataclass(frozen=True)
class Warning:
    """``id`` is stable for programs; ``text`` is for people."""

    id: str
    text: str


@dataclass(frozen=True)
class Number:
    """A number of a sentence at each point, and which of them stands for a range."""

    values: NDArray[np.float64]
    unit: Unit
    worst: Callable[[Any], Any] = np.max

    @property
    def words(self) -> str:
        return _WORDS[self.unit](float(self.worst(self.values)))


@dataclass(frozen=True)
class Finding:
    """What may have to be said of each point of an estimate.

    Attributes:
        id, text: as a `Warning`'s; ``text`` has a ``{}`` for each of ``numbers``, which a sentence without any has not.
        where: at which points it holds; broadcasts with the workload.
        numbers: what the sentence names.
        everywhere: whether a range is told only where it holds at every point.
        among: the points that count, for instance those that draft.
    """

    id: str
    text: str
    where: ArrayLike = True
    numbers: tuple[Number, ...] = ()
    everywhere: bool = False
    among: ArrayLike = True

    @property
    def points(self) -> NDArray[np.bool_]:
        """Points at which it is said."""
        return np.logical_and(self.where, self.among)

    @property
    def holds(self) -> bool:
        """Whether it is said of the whole."""
        where, among = np.broadcast_arrays(np.asarray(self.where), np.asarray(self.among))
        chosen = where[among]
        return bool(chosen.size and (np.all(chosen) if self.everywhere else np.any(chosen)))

    @property
    def warning(self) -> Warning:
        """The sentence, with the worst of the numbers where there is a range."""
        return Warning(self.id, self.text.format(*(n.words for n in self.numbers)) if self.numbers else self.text)


def warnings(estimate: Estimate) -> list[Warning]:
    """All warnings of an estimate, most consequential first."""
    return [finding.warning for finding in findings(estimate) if finding.holds]


def findings(estimate: Estimate) -> Iterator[Finding]:
    """What `warnings` says of a range, point by point and in its order; some may hold at no point."""
    yield from _fit(estimate)
    yield from _profile(estimate)
    yield from _context(estimate)
    drafting = estimate.work.depth > 0
    if estimate.systems and np.any(drafting):
        for told in (_acceptance, _release, _window, _notes, _drafters, _systems):
            yield from (replace(finding, among=drafting) for finding in told(estimate))
    yield from _layout(estimate)
    yield from _backends(estimate)
    yield from _pricing(estimate)


def _fit(estimate: Estimate) -> Iterator[Finding]:
    seen: list[Memory] = []
    for name, memory in estimate.memory.items():
        if any(memory is each for each in seen):  # this system holds what a plainer one does
            continue
        seen.append(memory)
        what = (
            ("the target alone", "target and drafter")[len(seen) - 1]
            if len(seen) < 3
            else (f"even with {estimate.system(name).system.look.phrase}, this")
        )
        usable = f"{memory.budget_bytes / 1e9:.1f} GB usable"
        text = f"{what} needs {{}} GB per GPU of {usable}; largest context that fits: {{}}"
        used, longest = np.asarray(memory.total_bytes), np.asarray(memory.max_context)
        numbers = (Number(used, "GB"), Number(longest, "tokens", np.min))
        among = True if name == "base" else estimate.work.depth > 0
        yield Finding(f"does-not-fit-{name}", text, ~memory.fits, numbers, among=among)


def _profile(estimate: Estimate) -> Iterator[Finding]:
    profile, gpu = estimate.machine.profile, estimate.machine.gpu
    if profile.status == "ideal":
        yield Finding(
            "ideal", "ideal engine: datasheet peaks, no latency; a bound that no engine reaches, not a prediction"
        )
        return
    if profile.status == "uncalibrated":
        text = f"uncalibrated: no measured profile for {gpu.name}; first H200 figures over its datasheet, ranges judged"
        yield Finding("uncalibrated", text)
        return
    if assumed := assumed_kernels(estimate):
        yield Finding("assumed-kernels", f"never measured, documented constants instead: {', '.join(assumed)}")
    if profile.status != "measured":
        return
    models = [(kernel, profile.kernel(kernel, variant)) for kernel, variant in asked_kernels(estimate)]
    carried = {(kernel, model.carried_from) for kernel, model in models if model.points}
    for origin in sorted({origin for _, origin in carried if origin}):
        kernels = ", ".join(sorted(kernel for kernel, where in carried if where == origin))
        yield Finding("transferred-kernels", f"not measured on {gpu.name}, carried over from {origin}: {kernels}")


def _context(estimate: Estimate) -> Iterator[Finding]:
    limit, context = estimate.model.max_context, estimate.work.context
    if not estimate.model.rope:
        text = f"the config's limit is {limit:,} tokens; the model encodes no positions, so it runs beyond untested"
        yield Finding("beyond-config-limit", text, context > limit)
        return
    text = (
        f"the model's limit is {limit:,} tokens: {{}} needs YaRN x{{}} in "
        "config.json itself (a command-line override does not reach the draft head, whose acceptance falls to 0)"
    )
    numbers = (Number(context, "tokens"), Number(np.ceil(context / limit), "count"))
    yield Finding("beyond-model-limit", text, context > limit, numbers)


def _acceptance(estimate: Estimate) -> Iterator[Finding]:
    length = estimate.accept_length
    if length is None:
        yield _of_acceptance("no-acceptance")
        return
    bounded = [each for each in estimate.systems if each.windowed and each.system.drafters[0] != "self"]
    windowable = estimate.drafter is not None and estimate.drafter.windowable
    if estimate.windowed_acceptance is None and windowable and bounded and len(estimate.systems) > len(bounded):
        yield _of_acceptance("same-acceptance")
    if estimate.acceptance is not None and estimate.acceptance.source == "assumed":
        yield _of_acceptance("acceptance-assumed")
    yield _of_acceptance("accept-length-near-1", length <= NEAR_ONE)


def _of_acceptance(name: str, where: ArrayLike = True) -> Finding:
    return Finding(name, ACCEPTANCE[name], where)


def _window(estimate: Estimate) -> Iterator[Finding]:
    work, drafter, engine = estimate.work, estimate.drafter, estimate.engine
    if drafter is None:
        return
    windowed = [each for each in estimate.systems if each.system.window_matters]
    if not drafter.windowable:
        text = f"{drafter.name} attends a window of its own already: {_listed(windowed)} change nothing"
        if windowed:
            yield Finding("draft-already-windowed", text)
        return
    if windowed and any(isinstance(mixer, LatentAttention | CompressedAttention) for mixer in drafter.mixers):
        text = "the draft head uses latent attention, which the merged window flag does not cover: what-if"
        yield Finding("mla-draft-not-covered", text)
    narrow = [each for each in windowed if not each.system.cache.bounded_everywhere and not each.system.proposal.widths]
    if narrow:
        text = f"at depth 1 there is no draft-decode pass, so {_listed(narrow, phrase=True)} changes nothing"
        yield Finding("flag-inert-at-depth-1", text, work.depth == 1)
    if not windowed:
        return
    text = f"the window holds the whole context: {_listed(windowed)} change nothing"
    holds = work.window + work.sink >= work.context
    yield Finding("window-holds-context", text, holds, everywhere=True)
    text = "the window is smaller than the depth + 1 draft tokens of a step, which SGLang refuses"
    yield Finding("window-below-depth", text, work.window < work.depth + 1)
    choice = engine.attention_on(estimate.machine.gpu.architecture, work.draft_kv_bytes)
    if not engine.windows(choice):
        text = f"drafts on {choice.draft} ignore the window: it takes {' or '.join(engine.window_backends)}"
        yield Finding("window-inert-backend", text)


def _release(estimate: Estimate) -> Iterator[Finding]:
    """What the release lacks of what is priced."""
    inert = estimate.drafter is not None and not estimate.drafter.windowable
    matter = [each.name for each in estimate.systems if not (inert and each.windowed)]
    missing = [name for name in matter if not estimate.engine.has(name)]
    if missing:
        yield Finding("policy-not-in-engine", f"{estimate.release} has no {' or '.join(missing)}: priced as what-if")


def _notes(estimate: Estimate) -> Iterator[Finding]:
    """What a person must know of the release on this GPU; of windows, where some system has one that matters."""
    engine, drafter = estimate.engine, estimate.drafter
    choice = engine.attention_on(estimate.machine.gpu.architecture, estimate.work.draft_kv_bytes)
    windowed = any(each.system.window_matters for each in estimate.systems)
    windowed = windowed and "draft" not in choice.by_hand and drafter is not None and drafter.windowable
    for note in engine.notes:
        if note.concerns(estimate.machine.gpu.architecture) and (windowed or not note.window):
            yield Finding("engine-note", note.text)


def _listed(systems: Sequence[Speculation], phrase: bool = False) -> str:
    return " and ".join(each.system.look.phrase if phrase else each.name for each in systems)


def _systems(estimate: Estimate) -> Iterator[Finding]:
    """What a system's file assumed, and whether its output is the target's own."""
    for each in estimate.systems:
        if each.system.network.of != "own":  # else the drafter's note says it, or its config states it
            for line in each.system.assumed:
                yield Finding("system-assumed", f"{each.name}: {line}")
    lossy = [each for each in estimate.systems if not each.system.lossless]
    if lossy:
        text = f"{_listed(lossy)}: the output is not the target's own, and is not ranked with systems that keep it"
        yield Finding("not-lossless", text)


def _drafters(estimate: Estimate) -> Iterator[Finding]:
    depth = estimate.work.depth
    for drafter in {id(d): d for each in estimate.systems for d in each.drafters}.values():
        if drafter.note:
            yield Finding("drafter-assumed", drafter.note)
        if limit := drafter.max_positions:
            text = f"{drafter.name} was built for {limit:,} tokens: beyond them drafts are seldom accepted"
            yield Finding("beyond-drafter-limit", text, estimate.work.context > limit)
        if drafter.vocab < estimate.model.vocab and not drafter.note:
            words = f"{drafter.vocab:,} of the target's {estimate.model.vocab:,} tokens"
            yield Finding("draft-vocabulary", f"{drafter.name} proposes {words}, and never the others")
        copies = drafter.resident_copies
        if copies > 1 and drafter.kind != "heads":
            one_each = f"the checkpoint has {copies} separate heads, one per drafted token"
            priced = "each is priced as a pass over all verified rows (assumed)"
            yield Finding("separate-heads", f"{one_each} and reused beyond; {priced}", depth > copies)
            yield Finding("separate-heads", f"{one_each}; {priced}", depth <= copies, everywhere=True)


def _backends(estimate: Estimate) -> Iterator[Finding]:
    engine, gpu = estimate.engine, estimate.machine.gpu
    for use in unserved(estimate)[:1]:
        priced = f"priced with {use.backend}, which {use.why(gpu)}"
        yield Finding("backend-not-on-gpu", f"{estimate.release} is not known to run on {gpu.name}: {priced}")
    choice = engine.attention_on(gpu.architecture, estimate.work.kv_bytes)
    if choice.by_hand and not has_attention(estimate.model.blocks):
        text = f"{estimate.model.name} has no grouped-query attention: what its layers run on is not chosen so"
        yield Finding("backend-not-for-latent", text)
    for kernel, where in unsplit(estimate).items():
        verify = next(use for use in uses(estimate) if use.phase == "verify")
        others = [n for n in engine.backends_on(gpu, verify.kv_bytes, verify.sinks) if n != verify.backend]
        instead = f"; others: --attention-backend {' or '.join(others)}" if others else ""
        text = f"verify walks the whole context in one thread block ({kernel} of {verify.backend}: no splits){instead}"
        yield Finding("verify-unsplit", text, np.logical_and(where, estimate.work.depth > 0))


def _layout(estimate: Estimate) -> Iterator[Finding]:
    engine, layout, drafter = estimate.engine, estimate.work.layout, estimate.drafter
    if drafter is not None and layout.draft_tp not in (None, layout.tp) and drafter.kind not in engine.draft_tp:
        text = f"{estimate.release} gives such a drafter the target's ranks: --draft-tp is what-if"
        yield Finding("draft-tp-not-in-engine", text, among=estimate.work.depth > 0)
    if estimate.spans_hosts:
        gpus, hosts = layout.ranks * layout.pp, layout.hosts_of_a_step(estimate.machine.gpu.gpus_per_host)
        unpriced = "whose links are not priced: figures are as within one host"
        yield Finding("hosts-not-priced", f"{gpus} GPUs work on a step in {hosts} hosts, {unpriced}")
    text = f"fewer sequences than the {layout.dp} groups of --dp: some have none"
    yield Finding("idle-groups", text, estimate.work.batch < layout.dp)


def _pricing(estimate: Estimate) -> Iterator[Finding]:
    model, gpu = estimate.model, estimate.machine.gpu
    if model.precision.note:
        yield Finding("precision-note", model.precision.note)
    formats = {getattr(model.precision.target, group) for group in type(model.precision.target).model_fields}
    if "nvfp4" in formats and gpu.peak_dense_flops.fp4 is None:
        text = f"{gpu.name} has no FP4 arithmetic: NVFP4 weights save bytes and are multiplied in bf16"
        yield Finding("no-fp4-hardware", text)
    routed = any(isinstance(c, Moe) for block in model.blocks for c in block.channels)
    if routed and estimate.work.overlap == 0:
        text = "experts of verified rows are taken as independent, the upper estimate; measured --overlap: 0.2 to 0.5"
        yield Finding("expert-union-upper", text, estimate.work.depth > 0)
