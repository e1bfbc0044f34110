"""What each rule of ``data/preflight/rules.toml`` looks for, in the file's order: one generator for each, of its name.

It yields the words of each trap that it sees, which fill the slots of the rule's reason and fix, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from wmtp_sim.spec.acceptance import AcceptLength, ConstantRate
from wmtp_sim.spec.flags import stated
from wmtp_sim.spec.model import Attention
from wmtp_sim.spec.precision import FORMATS
from wmtp_sim.units import about_tokens, gigabytes
from wmtp_sim.work.resident import drafter_weight_bytes

if TYPE_CHECKING:
    from wmtp_sim.decide.preflight import Case

Words = dict[str, Any]


def unknown_flag(case: Case) -> Iterator[Words]:
    for words, hint in case.unknown:
        yield {"words": repr(words[:80]), "engine": case.release, "hint": hint}


def flag_refused(case: Case) -> Iterator[Words]:
    for problem in case.refused:
        yield {"problem": problem, "engine": case.release}


def no_draft_head(case: Case) -> Iterator[Words]:
    if case.drafting and case.deployment.method == "mtp" and case.model.mtp is None and not case.deployment.draft_model:
        yield {"model": case.model.name, "note": case.model.mtp_note, "depth": case.deployment.depth}


def mtp_tensors_missing(case: Case) -> Iterator[Words]:
    own_head = case.drafting and case.deployment.method == "mtp" and case.model.mtp is not None
    if own_head and case.checkpoint is not None and case.checkpoint[1] == 0:
        yield {"tensors": f"{case.checkpoint[0]:,}"}


def eagle3_on_mtp_head(case: Case) -> Iterator[Words]:
    if case.drafting and case.deployment.method == "eagle" and not case.deployment.draft_model:
        yield {}


def draft_shape_incomplete(case: Case) -> Iterator[Words]:
    stated = [case.flag(name) for name in ("topk", "verify_rows") if case.flag(name) in case.flags]
    if stated and case.drafting and case.flag("depth") not in case.flags:
        yield {"depth": case.deployment.depth, "rows": case.deployment.depth + 1}


def window_not_in_release(case: Case) -> Iterator[Words]:
    mtp = case.drafting and case.deployment.method == "mtp"  # Llama EAGLE-3 heads have had a window for longer
    if mtp and case.deployment.window is not None and not case.windowed:
        yield {"engine": case.release}


def sink_without_window(case: Case) -> Iterator[Words]:
    if case.deployment.sink is not None and case.deployment.window is None:
        yield {}


def window_inert_backend(case: Case) -> Iterator[Words]:
    drafter, honouring = case.estimate.drafter, case.engine.window_backends
    if not case.windowed or drafter is None or not drafter.windowable or case.draft_backend in honouring:
        return
    if drafter.kind != "mtp":  # an EAGLE-3 head makes the window its own, on any backend
        return
    if all(isinstance(mixer, Attention) for mixer in drafter.mixers):
        whence = _whence(case, case.deployment.draft_backend)
        instead = case.grammar.drafting.window_backend_on(case.gpu.vendor)
        yield {"backend": case.draft_backend, "whence": whence, "honouring": instead}


def trtllm_tree(case: Case) -> Iterator[Words]:
    stated = (case.deployment.attention_backend, case.deployment.prefill_backend, case.deployment.decode_backend)
    if case.drafting and case.deployment.topk > 1 and "trtllm_mha" in stated:
        yield {"topk": case.deployment.topk}


def rejection_with_token_map(case: Case) -> Iterator[Words]:
    if {"--speculative-use-rejection-sampling", "--speculative-token-map"} <= case.flags.keys():
        yield {}


def yarn_override(case: Case) -> Iterator[Words]:
    if case.drafting and "rope" in (case.deployment.config_overrides or ""):
        yield {}


def context_over_served(case: Case) -> Iterator[Words]:
    served = case.deployment.context
    if served is not None and case.context > served:
        yield {"context": case.context, "served": f"{served:,}", "option": case.flag("context")}


def draft_length_short(case: Case) -> Iterator[Words]:
    limit = case.deployment.draft_context
    if case.drafting and limit is not None and limit < case.context:
        yield {"limit": f"{limit:,}", "context": case.context}


def window_triton_extend(case: Case) -> Iterator[Words]:
    if case.windowed and case.draft_backend == "triton" and case.long and case.gpu.vendor != "amd":
        yield {}


def triton_verify_unsplit(case: Case) -> Iterator[Words]:
    if case.deployment.rows > 1 and case.verify_backend == "triton" and case.long and case.gpu.vendor != "amd":
        whence = _whence(case, case.deployment.verify_backend)
        yield {"rows": case.deployment.rows, "context": f"{case.context:,}", "whence": whence}


def kv_splits_cap(case: Case) -> Iterator[Words]:
    splits = case.deployment.kv_splits or case.limits.default_splits
    freed = case.flags.keys() & {"--triton-attention-split-tile-size", "--enable-deterministic-inference"}
    serving = case.deployment.decode_backend or case.deployment.attention_backend or case.default_backend
    narrow = {case.draft_backend} if case.drafting and not case.windowed else set()
    if "triton" in narrow | {serving} and case.long and splits <= case.limits.few_splits and not freed:
        yield {"context": f"{case.context:,}", "splits": splits}


def depth_not_stated(case: Case) -> Iterator[Words]:
    asked = [name for field in ("method", "draft_model") for name in case.grammar.fields[field]]
    said = next((name for name in asked if stated(case.flags, name) is not None), None)
    if said is not None and case.deployment.chain and case.deployment.depth == 0:
        yield {"option": said, "depth": case.flag("depth"), "engine": case.release}


def draft_rows_adjusted(case: Case) -> Iterator[Words]:
    stated, depth = case.deployment.verify_rows, case.deployment.depth
    if case.drafting and case.deployment.topk == 1 and stated not in (None, depth + 1):
        yield {"stated": stated, "depth": depth, "rows": depth + 1, "meant": max(stated - 1, 1) if stated else 1}


def speculation_unused(case: Case) -> Iterator[Words]:
    flags = [name for name in case.flags if name.startswith("--speculative-")]
    if flags and case.flag("method") not in case.flags:
        yield {"flags": ", ".join(flags[:3])}


def backend_not_priced(case: Case) -> Iterator[Words]:
    for word in case.unpriced_backends:
        yield {"word": word, "known": ", ".join(case.engine.attention_backends)}


def drafter_not_priced(case: Case) -> Iterator[Words]:
    if case.unpriced_drafter:
        yield {"what": case.unpriced_drafter}


def graphs_off(case: Case) -> Iterator[Words]:
    if case.drafting and "graphs-off" in case.said:
        yield {"option": case.said["graphs-off"], "depth": case.deployment.depth}


def graphs_piecewise(case: Case) -> Iterator[Words]:
    narrow = case.deployment.depth - 1  # the first draft pass has a piecewise graph
    if case.drafting and narrow and "graphs-piecewise" in case.said and "graphs-off" not in case.said:
        yield {"option": case.said["graphs-piecewise"], "narrow": narrow, "depth": case.deployment.depth}


def context_parallel_draft(case: Case) -> Iterator[Words]:
    if case.drafting and "context-parallel-draft" in case.said:
        yield {"option": case.said["context-parallel-draft"]}


def batch_over_running(case: Case) -> Iterator[Words]:
    batch, most = int(case.estimate.work.batch), case.deployment.max_running
    if most is not None and batch > most:
        yield {"batch": batch, "most": most, "option": case.flag("max_running"), "counted": _counted(case)}


def kv_pool_differs(case: Case) -> Iterator[Words]:
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


def acceptance_perfect(case: Case) -> Iterator[Words]:
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


def random_data(case: Case) -> Iterator[Words]:
    if case.random_data:
        yield {}


def acceptance_forced(case: Case) -> Iterator[Words]:
    forced = [word.partition("=")[0] for word in case.aside if word.startswith("SGLANG_SIMULATE_ACC_LEN=")]
    forced += [case.said["acceptance-forced"]] if "acceptance-forced" in case.said else []
    if case.speculating and forced:
        yield {"what": forced[0]}


def window_without_drafts(case: Case) -> Iterator[Words]:
    if not case.speculating and case.deployment.window is not None:
        yield {"window": f"{case.deployment.window:,}"}


def draft_tp_ignored(case: Case) -> Iterator[Words]:
    stated = case.flags.get("--speculative-config")
    ranks = stated.get("draft_tensor_parallel_size") if isinstance(stated, dict) else None
    if case.drafting and case.deployment.method == "mtp" and ranks not in (None, case.deployment.tp):
        yield {"ranks": ranks, "tp": case.deployment.tp}


def hybrid_memory_ratio(case: Case) -> Iterator[Words]:
    stated = "--mamba-full-memory-ratio" in case.flags
    if not stated and case.long and float(case.memory.state_bytes) > 0:
        yield {"context": f"{case.context:,}"}


def window_keeps_memory(case: Case) -> Iterator[Words]:
    if case.windowed and case.draft_backend in case.engine.window_backends:
        yield {"share": f"{float(case.memory.draft_kv_share):.0%}"}


def head_unquantised(case: Case) -> Iterator[Words]:
    drafter, target = case.estimate.drafter, case.model.precision.target
    if drafter is None or drafter.kind != "mtp":
        return
    packed = sorted({getattr(target, group) for group in ("mlp", "expert")} - {"bf16", "fp32"})
    four_bits = [name for name in packed if FORMATS[name].bytes_per_weight < 1]
    head = {getattr(drafter.formats, group) for group in ("attention", "mlp", "expert")}
    if four_bits and head == {"bf16"}:
        held = drafter_weight_bytes(drafter, case.estimate.work.layout.for_draft(drafter.kind))
        yield {"target": ", ".join(four_bits), "bytes": gigabytes(float(held))}


def running_requests_capped(case: Case) -> Iterator[Words]:
    if case.drafting and case.deployment.max_running is None:
        yield {"most": case.limits.running_requests}


def serial_index(case: Case) -> Iterator[Words]:
    builds = case.engine.index_on(case.gpu.architecture, "verify")
    serial = [build.tokens_per_turn for build in builds if build.tokens_per_block is None]
    if serial and case.long:
        turns = case.context / min(serial)
        yield {"engine": case.release, "turns": f"{turns:,.0f}", "context": f"{case.context:,}"}


def adaptive_idle(case: Case) -> Iterator[Words]:
    skipped = any(word.startswith("SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND=") for word in case.aside)
    if case.drafting and case.flags.get("--speculative-adaptive") and not skipped:
        yield {}


def tree_not_priced(case: Case) -> Iterator[Words]:
    if case.drafting and case.deployment.topk > 1:
        yield {"topk": case.deployment.topk}


def layout_not_priced(case: Case) -> Iterator[Words]:
    for flag in case.grammar.parallel.otherwise(case.flags, case.deployment.ranks):
        yield {"option": flag}


def exchange_not_priced(case: Case) -> Iterator[Words]:
    served, rules = case.deployment, case.grammar.parallel
    whole = served.ep >= served.ranks and served.dp_attention  # else vLLM sends no rows
    if "all_to_all" in case.unpriced and (whole or not rules.shares_experts):
        instead = "all-gathers and reduce-scatters" if served.dp_attention else "all-reduces"
        yield {"problem": case.unpriced["all_to_all"], "instead": instead}


def cache_not_priced(case: Case) -> Iterator[Words]:
    for name in ("kv", "draft_kv"):
        if name in case.unpriced:
            yield {"problem": case.unpriced[name]}


def _whence(case: Case, stated: str | None) -> str:
    return "as stated" if stated else f"the default on {case.gpu.architecture or case.gpu.name}"


def _counted(case: Case) -> int:
    """What the flag for running sequences must say to run all that are asked about: of all groups, or of one."""
    fullest, served = int(case.estimate.work.group_batch), case.deployment
    joined = served.dp_attention and case.grammar.parallel.counts_groups
    return fullest * served.dp if joined else fullest
