"""Which traps a deployment walks into, seen from its config, its flags and its GPU before anything is started.

Each check has the id of a rule in ``data/preflight/rules.toml``, which holds severity, reason and fix. A check yields
the words of each trap that it sees, or nothing. What an estimate warns of is not checked again: the file's second table
says which of its warnings concern a deployment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wmtp_sim.catalog.systems import windows_drafts
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.memory import Memory
from wmtp_sim.decide.warnings import warnings
from wmtp_sim.spec.acceptance import AcceptLength, ConstantRate
from wmtp_sim.spec.deployment import ServerDeployment
from wmtp_sim.spec.engine import Engine
from wmtp_sim.spec.flags import Grammar, stated
from wmtp_sim.spec.gpu import Gpu
from wmtp_sim.spec.model import Attention, Model, has_sinks
from wmtp_sim.spec.precision import FORMATS
from wmtp_sim.spec.rules import Limits, RuleBook, Severity
from wmtp_sim.units import about_tokens, gigabytes
from wmtp_sim.work.resident import drafter_weight_bytes

Words = dict[str, Any]
_ORDER: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Trap:
    """``id`` is stable for programs; the rest is for people."""

    id: str
    severity: Severity
    reason: str
    fix: str


@dataclass(frozen=True)
class Case:
    """All that the checks look at.

    Attributes:
        deployment, model, gpu, engine, grammar: what is to run where, and the engine's command line.
        estimate: its cost and memory at the context asked about; without a drafter where none can be priced.
        limits: the file's numbers.
        flags: every flag of the command as read, by its own name; empty where options were given instead.
        said: what rules look for and the flags say, by the rule's id, in the command's words.
        aside: words around the command, environment variables among them.
        unknown: words that no flag explains, each with a hint.
        refused: what the engine refuses, in words.
        unpriced: fields of the deployment that hold a word of the engine which is not priced here, and that word.
        checkpoint: tensors in the checkpoint's index, and how many of them are a draft head's; None where not known.
        unpriced_drafter: why the drafter is not priced; empty where it is.
        unpriced_backends: stated attention backends that the engine's definition does not know.
        kv_pool_tokens: what the engine logged as its KV pool.
        random_data: whether the acceptance was measured on random tokens.
    """

    deployment: ServerDeployment
    model: Model
    gpu: Gpu
    engine: Engine
    grammar: Grammar
    estimate: Estimate
    limits: Limits
    flags: dict[str, Any] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    aside: tuple[str, ...] = ()
    unknown: tuple[tuple[str, str], ...] = ()
    refused: tuple[str, ...] = ()
    unpriced: dict[str, str] = field(default_factory=dict)
    checkpoint: tuple[int, int] | None = None
    unpriced_drafter: str = ""
    unpriced_backends: tuple[str, ...] = ()
    kv_pool_tokens: int | None = None
    random_data: bool = False

    @property
    def release(self) -> str:
        return f"{self.engine.name} {self.engine.version}"

    @property
    def context(self) -> int:
        return int(self.estimate.work.context)

    @property
    def long(self) -> bool:
        return self.context >= self.limits.long_context

    @property
    def drafting(self) -> bool:
        """Whether a chain is drafted, of which alone depth and draft passes can be spoken."""
        return self.deployment.depth > 0 and self.deployment.chain

    @property
    def speculating(self) -> bool:
        """Whether anything is drafted, in whichever way."""
        return self.deployment.depth > 0 or not self.deployment.chain

    @property
    def windowed(self) -> bool:
        """Whether a window is stated for drafts that this release can window."""
        stated = self.drafting and self.deployment.window is not None
        return stated and windows_drafts(self.engine)

    @property
    def default_backend(self) -> str:
        """The attention backend that the release picks: for trees, NVIDIA's GPUs have no kernel of their own."""
        tree = self.deployment.topk > 1 and self.gpu.vendor == "nvidia"
        architecture = "" if tree else self.gpu.architecture
        return self.engine.attention_on(architecture, self.estimate.work.kv_bytes, has_sinks(self.model.blocks)).base

    @property
    def draft_backend(self) -> str:
        return self.deployment.draft_backend or self.default_backend

    @property
    def verify_backend(self) -> str:
        return self.deployment.verify_backend or self.default_backend

    @property
    def memory(self) -> Memory:
        """With the drafter's full KV where something is drafted."""
        systems = self.estimate.systems
        return self.estimate.memory[systems[0].name if systems else "base"]

    def flag(self, field_name: str) -> str:
        """The flag that states a field."""
        return self.grammar.fields[field_name][0]


def traps(case: Case, book: RuleBook) -> list[Trap]:
    """All traps: errors first, then in the rules' order."""
    found = [trap for name, check in CHECKS.items() for trap in _told(case, book, name, check)]
    found += _estimated(case, book, {trap.id for trap in found})
    order = [*book.rules, *book.estimate]
    return sorted(found, key=lambda trap: (_ORDER.index(trap.severity), order.index(trap.id)))


def _told(case: Case, book: RuleBook, name: str, check: Check) -> Iterator[Trap]:
    rule = book.rules[name]
    if rule.engines and case.engine.name not in rule.engines:
        return
    for words in check(case):
        yield Trap(name, rule.severity, rule.reason.format(**words), rule.fix.format(**words))


def _estimated(case: Case, book: RuleBook, said: set[str]) -> Iterator[Trap]:
    """What the estimate warns of and concerns the deployment."""
    holding = warnings(case.estimate)
    said = said | {warning.id for warning in holding}
    systems = case.estimate.systems
    drafter = {f"does-not-fit-{systems[0].name}": "does-not-fit-drafter"} if systems else {}
    for warning in holding:
        name = drafter.get(warning.id, warning.id)
        rule = book.estimate.get(name)
        if rule is None or said & set(rule.unless) or (rule.window and not case.windowed):
            continue
        yield Trap(name, rule.severity, warning.text, rule.fix)


# --- the command line ----------------------------------------------------------------------------------------------


def _unknown_flag(case: Case) -> Iterator[Words]:
    for words, hint in case.unknown:
        yield {"words": repr(words[:80]), "engine": case.release, "hint": hint}


def _flag_refused(case: Case) -> Iterator[Words]:
    for problem in case.refused:
        yield {"problem": problem, "engine": case.release}


def _cache_not_priced(case: Case) -> Iterator[Words]:
    for name in ("kv", "draft_kv"):
        if name in case.unpriced:
            yield {"problem": case.unpriced[name]}


def _exchange_not_priced(case: Case) -> Iterator[Words]:
    served, rules = case.deployment, case.grammar.parallel
    whole = served.ep >= served.ranks and served.dp_attention  # else vLLM sends no rows
    if "all_to_all" in case.unpriced and (whole or not rules.shares_experts):
        instead = "all-gathers and reduce-scatters" if served.dp_attention else "all-reduces"
        yield {"problem": case.unpriced["all_to_all"], "instead": instead}


def _layout_not_priced(case: Case) -> Iterator[Words]:
    for flag in case.grammar.parallel.otherwise(case.flags, case.deployment.ranks):
        yield {"option": flag}


def _speculation_unused(case: Case) -> Iterator[Words]:
    flags = [name for name in case.flags if name.startswith("--speculative-")]
    if flags and case.flag("method") not in case.flags:
        yield {"flags": ", ".join(flags[:3])}


def _draft_shape_incomplete(case: Case) -> Iterator[Words]:
    stated = [case.flag(name) for name in ("topk", "verify_rows") if case.flag(name) in case.flags]
    if stated and case.drafting and case.flag("depth") not in case.flags:
        yield {"depth": case.deployment.depth, "rows": case.deployment.depth + 1}


def _depth_not_stated(case: Case) -> Iterator[Words]:
    asked = [name for field in ("method", "draft_model") for name in case.grammar.fields[field]]
    said = next((name for name in asked if stated(case.flags, name) is not None), None)
    if said is not None and case.deployment.chain and case.deployment.depth == 0:
        yield {"option": said, "depth": case.flag("depth"), "engine": case.release}


def _draft_rows_adjusted(case: Case) -> Iterator[Words]:
    stated, depth = case.deployment.verify_rows, case.deployment.depth
    if case.drafting and case.deployment.topk == 1 and stated not in (None, depth + 1):
        yield {"stated": stated, "depth": depth, "rows": depth + 1, "meant": max(stated - 1, 1) if stated else 1}


def _rejection_with_token_map(case: Case) -> Iterator[Words]:
    if {"--speculative-use-rejection-sampling", "--speculative-token-map"} <= case.flags.keys():
        yield {}


def _graphs_off(case: Case) -> Iterator[Words]:
    if case.drafting and "graphs-off" in case.said:
        yield {"option": case.said["graphs-off"], "depth": case.deployment.depth}


def _graphs_piecewise(case: Case) -> Iterator[Words]:
    narrow = case.deployment.depth - 1  # the first draft pass has a piecewise graph
    if case.drafting and narrow and "graphs-piecewise" in case.said and "graphs-off" not in case.said:
        yield {"option": case.said["graphs-piecewise"], "narrow": narrow, "depth": case.deployment.depth}


def _context_parallel_draft(case: Case) -> Iterator[Words]:
    if case.drafting and "context-parallel-draft" in case.said:
        yield {"option": case.said["context-parallel-draft"]}


def _adaptive_idle(case: Case) -> Iterator[Words]:
    skipped = any(word.startswith("SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND=") for word in case.aside)
    if case.drafting and case.flags.get("--speculative-adaptive") and not skipped:
        yield {}


def _acceptance_forced(case: Case) -> Iterator[Words]:
    forced = [word.partition("=")[0] for word in case.aside if word.startswith("SGLANG_SIMULATE_ACC_LEN=")]
    forced += [case.said["acceptance-forced"]] if "acceptance-forced" in case.said else []
    if case.speculating and forced:
        yield {"what": forced[0]}


def _yarn_override(case: Case) -> Iterator[Words]:
    if case.drafting and "rope" in (case.deployment.config_overrides or ""):
        yield {}


# --- the drafter ---------------------------------------------------------------------------------------------------


def _no_draft_head(case: Case) -> Iterator[Words]:
    if case.drafting and case.deployment.method == "mtp" and case.model.mtp is None and not case.deployment.draft_model:
        yield {"model": case.model.name, "note": case.model.mtp_note, "depth": case.deployment.depth}


def _mtp_tensors_missing(case: Case) -> Iterator[Words]:
    own_head = case.drafting and case.deployment.method == "mtp" and case.model.mtp is not None
    if own_head and case.checkpoint is not None and case.checkpoint[1] == 0:
        yield {"tensors": f"{case.checkpoint[0]:,}"}


def _eagle3_on_mtp_head(case: Case) -> Iterator[Words]:
    if case.drafting and case.deployment.method == "eagle" and not case.deployment.draft_model:
        yield {}


def _drafter_not_priced(case: Case) -> Iterator[Words]:
    if case.unpriced_drafter:
        yield {"what": case.unpriced_drafter}


def _tree_not_priced(case: Case) -> Iterator[Words]:
    if case.drafting and case.deployment.topk > 1:
        yield {"topk": case.deployment.topk}


def _head_unquantised(case: Case) -> Iterator[Words]:
    drafter, target = case.estimate.drafter, case.model.precision.target
    if drafter is None or drafter.kind != "mtp":
        return
    packed = sorted({getattr(target, group) for group in ("mlp", "expert")} - {"bf16", "fp32"})
    four_bits = [name for name in packed if FORMATS[name].bytes_per_weight < 1]
    head = {getattr(drafter.formats, group) for group in ("attention", "mlp", "expert")}
    if four_bits and head == {"bf16"}:
        held = drafter_weight_bytes(drafter, case.estimate.work.layout.for_draft(drafter.kind))
        yield {"target": ", ".join(four_bits), "bytes": gigabytes(float(held))}


# --- the window ----------------------------------------------------------------------------------------------------


def _window_not_in_release(case: Case) -> Iterator[Words]:
    mtp = case.drafting and case.deployment.method == "mtp"  # Llama EAGLE-3 heads have had a window for longer
    if mtp and case.deployment.window is not None and not case.windowed:
        yield {"engine": case.release}


def _window_without_drafts(case: Case) -> Iterator[Words]:
    if not case.speculating and case.deployment.window is not None:
        yield {"window": f"{case.deployment.window:,}"}


def _sink_without_window(case: Case) -> Iterator[Words]:
    if case.deployment.sink is not None and case.deployment.window is None:
        yield {}


def _window_inert_backend(case: Case) -> Iterator[Words]:
    drafter, honouring = case.estimate.drafter, case.engine.window_backends
    if not case.windowed or drafter is None or not drafter.windowable or case.draft_backend in honouring:
        return
    if drafter.kind != "mtp":  # an EAGLE-3 head makes the window its own, on any backend
        return
    if all(isinstance(mixer, Attention) for mixer in drafter.mixers):
        whence = _whence(case, case.deployment.draft_backend)
        instead = case.grammar.drafting.window_backend_on(case.gpu.vendor)
        yield {"backend": case.draft_backend, "whence": whence, "honouring": instead}


def _whence(case: Case, stated: str | None) -> str:
    return "as stated" if stated else f"the default on {case.gpu.architecture or case.gpu.name}"


def _window_triton_extend(case: Case) -> Iterator[Words]:
    if case.windowed and case.draft_backend == "triton" and case.long and case.gpu.vendor != "amd":
        yield {}


def _window_keeps_memory(case: Case) -> Iterator[Words]:
    if case.windowed and case.draft_backend in case.engine.window_backends:
        yield {"share": f"{float(case.memory.draft_kv_share):.0%}"}


# --- attention kernels ---------------------------------------------------------------------------------------------


def _triton_verify_unsplit(case: Case) -> Iterator[Words]:
    if case.deployment.rows > 1 and case.verify_backend == "triton" and case.long and case.gpu.vendor != "amd":
        whence = _whence(case, case.deployment.verify_backend)
        yield {"rows": case.deployment.rows, "context": f"{case.context:,}", "whence": whence}


def _kv_splits_cap(case: Case) -> Iterator[Words]:
    splits = case.deployment.kv_splits or case.limits.default_splits
    freed = case.flags.keys() & {"--triton-attention-split-tile-size", "--enable-deterministic-inference"}
    serving = case.deployment.decode_backend or case.deployment.attention_backend or case.default_backend
    narrow = {case.draft_backend} if case.drafting and not case.windowed else set()
    if "triton" in narrow | {serving} and case.long and splits <= case.limits.few_splits and not freed:
        yield {"context": f"{case.context:,}", "splits": splits}


def _backend_not_priced(case: Case) -> Iterator[Words]:
    for word in case.unpriced_backends:
        yield {"word": word, "known": ", ".join(case.engine.attention_backends)}


def _trtllm_tree(case: Case) -> Iterator[Words]:
    stated = (case.deployment.attention_backend, case.deployment.prefill_backend, case.deployment.decode_backend)
    if case.drafting and case.deployment.topk > 1 and "trtllm_mha" in stated:
        yield {"topk": case.deployment.topk}


# --- limits and memory ---------------------------------------------------------------------------------------------


def _context_over_served(case: Case) -> Iterator[Words]:
    served = case.deployment.context
    if served is not None and case.context > served:
        yield {"context": case.context, "served": f"{served:,}", "option": case.flag("context")}


def _draft_length_short(case: Case) -> Iterator[Words]:
    limit = case.deployment.draft_context
    if case.drafting and limit is not None and limit < case.context:
        yield {"limit": f"{limit:,}", "context": case.context}


def _batch_over_running(case: Case) -> Iterator[Words]:
    batch, most = int(case.estimate.work.batch), case.deployment.max_running
    if most is not None and batch > most:
        yield {"batch": batch, "most": most, "option": case.flag("max_running"), "counted": _counted(case)}


def _counted(case: Case) -> int:
    """What the flag for running sequences must say to run all that are asked about: of all groups, or of one."""
    fullest, served = int(case.estimate.work.group_batch), case.deployment
    joined = served.dp_attention and case.grammar.parallel.counts_groups
    return fullest * served.dp if joined else fullest


def _running_requests_capped(case: Case) -> Iterator[Words]:
    if case.drafting and case.deployment.max_running is None:
        yield {"most": case.limits.running_requests}


def _hybrid_memory_ratio(case: Case) -> Iterator[Words]:
    stated = "--mamba-full-memory-ratio" in case.flags
    if not stated and case.long and float(case.memory.state_bytes) > 0:
        yield {"context": f"{case.context:,}"}


def _kv_pool_differs(case: Case) -> Iterator[Words]:
    logged = case.kv_pool_tokens
    batch = float(case.estimate.work.group_batch)  # each group of ranks has a pool of its own, and logs that
    expected = float(case.memory.max_context) * batch
    if logged is None or not np.isfinite(expected) or expected <= 0:
        return
    if abs(logged / expected - 1.0) > case.limits.pool_tolerance:
        cached = float(case.memory.kv_bytes + case.memory.draft_kv_bytes) / (case.context * batch)
        yield {
            "logged": f"{logged:,}",
            "expected": about_tokens(expected),
            "ratio": f"{logged / expected:.0%}",
            "token_bytes": f"{cached:,.0f}",
        }


def _serial_index(case: Case) -> Iterator[Words]:
    builds = case.engine.index_on(case.gpu.architecture, "verify")
    serial = [build.tokens_per_turn for build in builds if build.tokens_per_block is None]
    if serial and case.long:
        turns = case.context / min(serial)
        yield {"engine": case.release, "turns": f"{turns:,.0f}", "context": f"{case.context:,}"}


def _draft_tp_ignored(case: Case) -> Iterator[Words]:
    stated = case.flags.get("--speculative-config")
    ranks = stated.get("draft_tensor_parallel_size") if isinstance(stated, dict) else None
    if case.drafting and case.deployment.method == "mtp" and ranks not in (None, case.deployment.tp):
        yield {"ranks": ranks, "tp": case.deployment.tp}


# --- stated acceptance ---------------------------------------------------------------------------------------------


def _acceptance_perfect(case: Case) -> Iterator[Words]:
    stated, depth = case.estimate.acceptance, case.deployment.depth
    if stated is None or not case.drafting:
        return
    if isinstance(stated, AcceptLength):
        length = case.estimate.accept_length
        highest = (float(np.max(length)) - 1.0) / depth if length is not None else 0.0
    else:
        highest = float(np.max(stated.alpha if isinstance(stated, ConstantRate) else stated.rates))
    if highest >= case.limits.perfect:
        yield {"rate": f"{highest:.3f}"}


def _random_data(case: Case) -> Iterator[Words]:
    if case.random_data:
        yield {}


Check = Callable[[Case], Iterator[Words]]
#: The check of each rule, by its id.
CHECKS: dict[str, Check] = {
    check.__name__.strip("_").replace("_", "-"): check
    for check in (
        _unknown_flag,
        _flag_refused,
        _no_draft_head,
        _mtp_tensors_missing,
        _eagle3_on_mtp_head,
        _draft_shape_incomplete,
        _window_not_in_release,
        _sink_without_window,
        _window_inert_backend,
        _trtllm_tree,
        _rejection_with_token_map,
        _yarn_override,
        _context_over_served,
        _draft_length_short,
        _window_triton_extend,
        _triton_verify_unsplit,
        _kv_splits_cap,
        _depth_not_stated,
        _draft_rows_adjusted,
        _speculation_unused,
        _backend_not_priced,
        _drafter_not_priced,
        _graphs_off,
        _graphs_piecewise,
        _context_parallel_draft,
        _batch_over_running,
        _kv_pool_differs,
        _acceptance_perfect,
        _random_data,
        _acceptance_forced,
        _window_without_drafts,
        _draft_tp_ignored,
        _hybrid_memory_ratio,
        _window_keeps_memory,
        _head_unquantised,
        _running_requests_capped,
        _serial_index,
        _adaptive_idle,
        _tree_not_priced,
        _layout_not_priced,
        _exchange_not_priced,
        _cache_not_priced,
    )
}
