"""Preflight's rules: each on a deployment that walks into its trap, and on a near one that does not."""

from __future__ import annotations

import json
import re
import string
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from wmtp_sim.catalog.commands import read_command
from wmtp_sim.catalog.flags import grammar_names, load_grammar, vocabulary
from wmtp_sim.catalog.models import catalog_folder
from wmtp_sim.catalog.rules import load_rules
from wmtp_sim.decide.preflight import CHECKS
from wmtp_sim.errors import InputError
from wmtp_sim.preflight import Preflight, preflight
from wmtp_sim.spec.deployment import CHAINS, ServerDeployment
from wmtp_sim.spec.engine import GRADES

BOOK = load_rules()
SGLANG = "python -m sglang.launch_server --trust-remote-code --model-path "
NEXTN = " --speculative-algorithm NEXTN --speculative-num-steps {d} --speculative-eagle-topk 1"
WINDOW = " --speculative-draft-window-size 4032 --speculative-draft-sink-size 64"
FLASHINFER = " --speculative-draft-attention-backend flashinfer"
MTP = """ --speculative-config '{"method": "mtp", "num_speculative_tokens": %d}'"""
SPLIT = MTP.replace("%d", "3").replace("}", ', "draft_tensor_parallel_size": %d}')
QWEN, NEMOTRON, DEEPSEEK, MIMO = "qwen3.5-35b-a3b", "nemotron-3-super-120b-a12b", "deepseek-v3.2", "mimo-7b"


def nextn(depth: int = 6, more: str = "", rows: int | None = None) -> str:
    return NEXTN.format(d=depth) + f" --speculative-num-draft-tokens {rows or depth + 1}" + more


@dataclass(frozen=True)
class Deployed:
    """A command on a GPU, and what is said beside it."""

    command: str
    gpu: str = "h200"
    context: int = 131_072
    asked: dict[str, Any] = field(default_factory=dict)


def sglang(more: str = "", model: str = QWEN, gpu: str = "h200", context: int = 131_072, **asked: Any) -> Deployed:
    return Deployed(SGLANG + model + more, gpu, context, asked)


def vllm(more: str = "", model: str = QWEN, gpu: str = "h200", context: int = 131_072, **asked: Any) -> Deployed:
    return Deployed(f"vllm serve {model}{more}", gpu, context, asked)


def looked_at(case: Deployed) -> Preflight:
    engine = case.asked.get("asked_of")
    asked = {name: value for name, value in case.asked.items() if name != "asked_of"}
    return preflight(read_command(case.command, engine), case.gpu, context=case.context, **asked)


def ids(case: Deployed) -> list[str]:
    return [trap.id for trap in looked_at(case).traps]


TP8 = " --tp 8"
GROUPS = TP8 + " --dp 8 --enable-dp-attention"
#: By rule: a deployment that walks into it, and one that does not.
CASES: dict[str, tuple[Deployed, Deployed]] = {
    "unknown-flag": (sglang(" --speculative-draft-windw-size 4"), sglang(" --page-size 1")),
    "flag-refused": (sglang(" --kv-cache-dtype int3"), sglang(" --kv-cache-dtype fp8_e4m3")),
    "no-draft-head": (sglang(nextn(), "qwen3-8b", context=32_768), sglang("", "qwen3-8b", context=32_768)),
    "eagle3-on-mtp-head": (
        sglang(" --speculative-algorithm EAGLE3 --speculative-num-steps 3"),
        sglang(" --speculative-algorithm EAGLE --speculative-num-steps 3"),
    ),
    "draft-shape-incomplete": (
        sglang(" --speculative-algorithm NEXTN --speculative-eagle-topk 1"),
        sglang(" --speculative-algorithm NEXTN"),
    ),
    "sink-without-window": (
        sglang(nextn(6, " --speculative-draft-sink-size 64")),
        sglang(nextn(6, WINDOW)),
    ),
    "window-inert-backend": (sglang(nextn(6, WINDOW)), sglang(nextn(6, WINDOW + FLASHINFER))),
    "trtllm-tree": (
        sglang(" --attention-backend trtllm_mha --speculative-algorithm NEXTN --speculative-num-steps 3"
               " --speculative-eagle-topk 4 --speculative-num-draft-tokens 8", gpu="b200"),
        sglang(" --attention-backend trtllm_mha" + nextn(3), gpu="b200"),
    ),
    "rejection-with-token-map": (
        sglang(nextn(3, " --speculative-use-rejection-sampling --speculative-token-map map.pt")),
        sglang(nextn(3, " --speculative-use-rejection-sampling")),
    ),
    "yarn-override": (
        vllm(MTP % 3 + """ --hf-overrides '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}'""", context=2**20),
        vllm(MTP % 3, context=2**20),
    ),
    "context-over-served": (
        vllm(MTP % 3 + " --max-model-len 32768"),
        vllm(MTP % 3 + " --max-model-len 131072"),
    ),
    "draft-length-short": (
        vllm(""" -sc '{"method": "mtp", "num_speculative_tokens": 3, "max_model_len": 32768}'"""),
        vllm(""" -sc '{"method": "mtp", "num_speculative_tokens": 3, "max_model_len": 131072}'"""),
    ),
    "window-triton-extend": (
        sglang(nextn(6, WINDOW + " --speculative-draft-attention-backend triton")),
        sglang(nextn(6, WINDOW + FLASHINFER)),
    ),
    "triton-verify-unsplit": (
        sglang(nextn(3, " --attention-backend triton"), "qwen3.5-27b"),
        sglang(nextn(3, " --attention-backend flashinfer"), "qwen3.5-27b"),
    ),
    "kv-splits-cap": (
        sglang(nextn(3, " --speculative-draft-attention-backend triton")),
        sglang(nextn(3, " --speculative-draft-attention-backend triton --triton-attention-num-kv-splits 64")),
    ),
    "backend-not-priced": (
        vllm(MTP % 3 + " --attention-backend FLEX_ATTENTION"),
        vllm(MTP % 3 + " --attention-backend TRITON_ATTN"),
    ),
    "backend-not-on-gpu": (
        vllm(MTP % 3 + " --attention-backend FLASH_ATTN --kv-cache-dtype fp8", gpu="a100-sxm-80gb"),
        vllm(MTP % 3 + " --attention-backend FLASH_ATTN --kv-cache-dtype fp8", gpu="h200"),
    ),
    "backend-not-for-latent": (
        vllm(TP8 + MTP % 3 + " --attention-backend FLASH_ATTN", DEEPSEEK),
        vllm(TP8 + MTP % 3, DEEPSEEK),
    ),
    "depth-not-stated": (vllm(" --spec-method mtp"), vllm(" --spec-method mtp --spec-tokens 1")),
    "draft-rows-adjusted": (sglang(nextn(6, rows=6)), sglang(nextn(6))),
    "speculation-unused": (sglang(" --speculative-num-steps 3"), sglang(nextn(3))),
    "graphs-off": (vllm(MTP % 2 + " --enforce-eager"), vllm(MTP % 2 + " --no-enforce-eager")),
    "graphs-piecewise": (
        vllm(MTP % 2 + " -cc.cudagraph_mode PIECEWISE"),
        vllm(MTP % 1 + " -cc.cudagraph_mode PIECEWISE"),  # the first draft pass has its graph
    ),
    "context-parallel-draft": (
        sglang(TP8 + " --dcp-size 4" + nextn(3), DEEPSEEK),
        sglang(TP8 + " --dcp-size 1" + nextn(3), DEEPSEEK),
    ),
    "batch-over-running": (
        sglang(nextn(3, " --max-running-requests 4"), batch=8, context=4096),
        sglang(nextn(3, " --max-running-requests 8"), batch=8, context=4096),
    ),
    "kv-pool-differs": (
        sglang(nextn(3), kv_pool_tokens=322_048),
        sglang(nextn(3), kv_pool_tokens=2_400_000),
    ),
    "acceptance-perfect": (sglang(nextn(5), accept_length=6.0), sglang(nextn(5), accept_length=3.61)),
    "random-data": (sglang(nextn(5), random_data=True), sglang(nextn(5))),
    "window-without-drafts": (sglang(WINDOW), sglang(nextn(6, WINDOW + FLASHINFER))),
    "hybrid-memory-ratio": (
        sglang(nextn(3)),
        sglang(nextn(3, " --mamba-full-memory-ratio 0.1")),
    ),
    "window-keeps-memory": (sglang(nextn(6, WINDOW + FLASHINFER), NEMOTRON + TP8), sglang(nextn(6), NEMOTRON + TP8)),
    "head-unquantised": (
        sglang(TP8 + nextn(3), "deepseek-v3.1-nvfp4", "b200"),
        sglang(TP8 + nextn(3), "deepseek-v3.2", "b200"),
    ),
    "running-requests-capped": (sglang(nextn(3)), sglang(nextn(3, " --max-running-requests 16"))),
    "serial-index": (sglang(nextn(3), asked_of="sglang@26.06"), sglang(nextn(3))),
    "adaptive-idle": (
        sglang(nextn(3, " --speculative-adaptive")),
        Deployed("SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND=1 " + sglang(nextn(3, " --speculative-adaptive")).command),
    ),
    "acceptance-forced": (
        vllm(""" -sc '{"method": "mtp", "num_speculative_tokens": 3, "rejection_sample_method": "synthetic"}'"""),
        vllm(""" -sc '{"method": "mtp", "num_speculative_tokens": 3, "rejection_sample_method": "standard"}'"""),
    ),
    "draft-tp-ignored": (
        vllm(SPLIT % 1 + " -tp 4"),
        vllm(SPLIT % 4 + " -tp 4"),
    ),
    "tree-not-priced": (
        sglang(" --speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 4"
               " --speculative-num-draft-tokens 8"),
        sglang(nextn(3)),
    ),
    "drafter-not-priced": (
        sglang(" --speculative-algorithm NGRAM"),
        vllm(" --spec-model llama-3.2-1b --spec-tokens 4", "llama-3.1-8b", context=4096),
    ),
    "layout-not-priced": (
        sglang(GROUPS + " --moe-dense-tp-size 1 --enable-dp-lm-head", DEEPSEEK),
        sglang(GROUPS + " --moe-dense-tp-size 8", DEEPSEEK),
    ),
    "exchange-not-priced": (
        vllm(" -dp 8 --enable-expert-parallel --all2all-backend deepep_high_throughput", batch=8),
        vllm(" -tp 8 --enable-expert-parallel --all2all-backend deepep_high_throughput", batch=8),
    ),
    "cache-not-priced": (sglang(" --kv-cache-dtype nvfp4"), sglang(" --kv-cache-dtype auto")),
    # warnings of the estimate
    "does-not-fit-base": (sglang("", "llama-3.1-70b", context=4096), sglang(" --tp 2", "llama-3.1-70b", context=4096)),
    "does-not-fit-drafter": (
        sglang(nextn(6), context=2_600_000),
        sglang("", context=2_600_000),
    ),
    "window-below-depth": (
        sglang(nextn(6, " --speculative-draft-window-size 4" + FLASHINFER)),
        sglang(nextn(6, WINDOW + FLASHINFER)),
    ),
    "beyond-drafter-limit": (
        vllm(" --spec-model llama-3.2-1b --spec-tokens 4 --spec-method draft_model", "llama-3.1-8b", context=200_000),
        vllm(" --spec-model llama-3.2-1b --spec-tokens 4 --spec-method draft_model", "llama-3.1-8b", context=100_000),
    ),
    "drafter-assumed": (
        vllm(" --spec-method dflash --spec-model m --spec-tokens 15", "qwen3-8b", context=4096),
        vllm(MTP % 3, "mimo-7b", context=4096),
    ),
    "system-assumed": (
        sglang("", "llama-3.1-8b", context=4096, system=["swift"]),
        sglang("", "llama-3.1-8b", context=4096),
    ),
    "not-lossless": (
        sglang("", "llama-3.1-8b", context=4096, system=["clp"]),
        sglang("", "llama-3.1-8b", context=4096, system=["swift"]),
    ),
    "beyond-model-limit": (sglang(nextn(3), MIMO, context=65_536), sglang(nextn(3), MIMO, context=32_768)),
    "hosts-not-priced": (
        sglang(" --tp 16 --nnodes 2 --node-rank 0 --dist-init-addr head:5000" + nextn(3), DEEPSEEK, context=4096),
        sglang(" --tp 8 --nnodes 1 --dist-init-addr head:5000" + nextn(3), DEEPSEEK, "b200", context=4096),
    ),
    "verify-unsplit": (
        vllm(MTP % 3, "qwen3.6-27b", "a100-sxm-80gb", 65_536),
        vllm(" --attention-backend FLASHINFER" + MTP % 3, "qwen3.6-27b", "a100-sxm-80gb", 65_536),
    ),
    "accept-length-near-1": (sglang(nextn(3), accept_length=1.02), sglang(nextn(3), accept_length=2.8)),
    "draft-already-windowed": (
        sglang(TP8 + nextn(3, WINDOW), "mimo-v2-flash"),
        sglang(TP8 + nextn(3), "mimo-v2-flash"),
    ),
    "mla-draft-not-covered": (
        sglang(TP8 + nextn(3, WINDOW), DEEPSEEK),
        sglang(TP8 + nextn(3), DEEPSEEK),
    ),
    "flag-inert-at-depth-1": (
        sglang(nextn(1, WINDOW + FLASHINFER)),
        sglang(nextn(2, WINDOW + FLASHINFER)),
    ),
    "window-holds-context": (
        sglang(nextn(6, WINDOW + FLASHINFER), context=4096),
        sglang(nextn(6, WINDOW + FLASHINFER), context=8192),
    ),
    "no-fp4-hardware": (
        sglang(TP8 + nextn(3), "deepseek-v3.1-nvfp4"),
        sglang(TP8 + nextn(3), "deepseek-v3.1-nvfp4", "b200"),
    ),
    "separate-heads": (sglang(TP8 + nextn(3), "step-3.5-flash"), sglang(TP8 + nextn(3), DEEPSEEK)),
    "beyond-config-limit": (
        sglang(nextn(3), NEMOTRON + TP8, context=2**20),
        sglang(nextn(3), NEMOTRON + TP8, context=2**18),
    ),
    "same-acceptance": (
        sglang(nextn(6, WINDOW + FLASHINFER), accept_length=4.5),
        sglang(nextn(6), accept_length=4.5),
    ),
}  # fmt: skip
#: Rules with a test of their own below.
ELSEWHERE = {"mtp-tensors-missing", "window-not-in-release"}


def test_every_rule_has_its_cases() -> None:
    assert CASES.keys() | ELSEWHERE == BOOK.rules.keys() | BOOK.estimate.keys()


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_its_trap_and_lets_its_neighbour_pass(rule: str) -> None:
    trapped, free = CASES[rule]
    assert rule in ids(trapped)
    assert rule not in ids(free)


def test_checks_and_rules_are_the_same() -> None:
    assert list(CHECKS) == sorted(CHECKS, key=list(BOOK.rules).index)
    assert CHECKS.keys() == BOOK.rules.keys()


@pytest.mark.parametrize("rule", BOOK.rules)
def test_rules_name_their_source_and_say_one_sentence(rule: str) -> None:
    stated = BOOK.rules[rule]
    assert stated.source.split(":")[0] in GRADES
    assert stated.reason
    assert stated.fix
    assert not stated.reason.endswith(".")
    for text in (stated.reason, stated.fix):
        assert all(name is None or name.isidentifier() for _, name, _, _ in string.Formatter().parse(text))


def test_the_document_lists_every_rule() -> None:
    document = (Path(__file__).parents[2] / "docs" / "preflight.md").read_text(encoding="utf-8")
    rows = [line for line in document.splitlines() if line.startswith("| `")]
    rules = [f"| `{name}` | {r.severity} | {', '.join(r.engines) or 'all'} |" for name, r in BOOK.rules.items()]
    assert rows == [*rules, *(f"| `{name}` | {rule.severity} |" for name, rule in BOOK.estimate.items())]


def test_a_trap_is_told_once() -> None:
    """What one rule says, no warning of the estimate repeats."""
    said = ids(sglang("", "llama-3.1-70b", context=131_072))
    assert "does-not-fit-base" in said
    assert "does-not-fit-drafter" not in said
    both = ids(vllm(MTP % 3 + """ --hf-overrides '{"rope_scaling": {"factor": 4.0}}'""", context=2**20))
    assert "yarn-override" in both
    assert "beyond-model-limit" not in both
    assert "engine-note" not in ids(sglang(nextn(6, WINDOW)))


def test_errors_come_first_and_decide() -> None:
    found = looked_at(sglang(nextn(6, WINDOW)))
    severities = [trap.severity for trap in found.traps]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    assert not found.passed
    assert looked_at(sglang(nextn(6, WINDOW + FLASHINFER))).passed


@pytest.mark.parametrize(
    ("gpu", "backend", "instead"),
    [
        ("h200", "fa3", "flashinfer"),
        ("b200", "trtllm_mha", "flashinfer"),
        ("b300", "trtllm_mha", "flashinfer"),
        ("mi300x", "aiter", "triton"),
    ],
)
def test_the_default_draft_backend_follows_the_gpu(gpu: str, backend: str, instead: str) -> None:
    trap = next(t for t in looked_at(sglang(nextn(6, WINDOW), gpu=gpu)).traps if t.id == "window-inert-backend")
    assert trap.severity == "error"
    assert trap.reason.startswith(f"the draft runs on {backend} (the default on ")
    assert trap.fix == f"--speculative-draft-attention-backend {instead}"


def test_a_backend_for_the_target_is_the_drafts_too() -> None:
    assert "window-inert-backend" not in ids(sglang(nextn(6, WINDOW + " --attention-backend flashinfer")))
    assert "window-inert-backend" in ids(sglang(nextn(6, WINDOW + " --attention-backend fa4"), gpu="l40s"))


@pytest.mark.parametrize("engine", ["vllm", "vllm@0.26", "sglang@26.06"])
def test_releases_without_a_window(engine: str) -> None:
    stated = ServerDeployment(model=QWEN, engine=engine, depth=6, window=4032)
    found = preflight(stated, "h200", context=131_072)
    assert "window-not-in-release" in [trap.id for trap in found.traps]
    assert (found.passed, found.launch) == (False, None)
    plain = preflight(stated.model_copy(update={"window": None}), "h200", context=131_072)
    assert "window-not-in-release" not in [trap.id for trap in plain.traps]
    assert plain.launch is not None


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["model.layers.0.mlp.gate.weight"], True),
        (["model.layers.0.mlp.gate.weight", "mtp.fc.weight"], False),
        (["model.layers.61.eh_proj.weight"], False),
    ],
)
def test_a_repacked_checkpoint(tmp_path: Path, names: list[str], missing: bool) -> None:
    config = (catalog_folder() / "qwen3.5-122b-a10b-nvfp4.json").read_text()
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(names, "model-00001.safetensors")})
    )
    for folder in (tmp_path, tmp_path / "config.json"):
        stated = ServerDeployment(model=str(folder), depth=3)
        found = [trap.id for trap in preflight(stated, "b200", context=131_072).traps]
        assert ("mtp-tensors-missing" in found) is missing


@pytest.mark.parametrize(
    ("engine", "flag"), [(name, flag) for name in grammar_names() for flag in load_grammar(name).parallel.unpriced]
)
def test_a_flag_that_shares_the_model_otherwise_is_said(engine: str, flag: str) -> None:
    """And what it states by default says nothing."""
    known = vocabulary(engine)
    start, tp8 = {"sglang": (sglang, TP8), "vllm": (vllm, " -tp 8")}[engine]
    assert flag in known.flags
    if known.flags[flag].kind == "switch":
        stated, neutral = f" {flag}", "".join(f" {off}" for off in known.flags[flag].off)
    else:
        ranks = known.grammar.parallel.unpriced[flag] == "ranks"
        stated, neutral = (f" {flag} {value}" for value in ((1, 8) if ranks else (2, 1)))
    found = looked_at(start(tp8 + stated, DEEPSEEK, batch=8)).traps
    said = [trap.reason for trap in found if trap.id == "layout-not-priced"]
    assert said == [f"{flag} changes how GPUs share the model: figures are without it"]
    assert "layout-not-priced" not in ids(start(tp8 + neutral, DEEPSEEK, batch=8))


@pytest.mark.parametrize(
    ("served", "instead"),
    [
        (sglang(TP8 + " --moe-a2a-backend mooncake", DEEPSEEK), "all-reduces"),
        (sglang(GROUPS + " --moe-a2a-backend mooncake", DEEPSEEK, batch=8), "all-gathers and reduce-scatters"),
    ],
)
def test_what_figures_have_in_place_of_an_exchange_is_said(served: Deployed, instead: str) -> None:
    said = {trap.id: trap.reason for trap in looked_at(served).traps}
    assert said["exchange-not-priced"].endswith(f": figures are with {instead}")
    assert "cache-not-priced" not in said


@pytest.mark.parametrize(
    ("served", "fix"),
    [
        (vllm(" -dp 8 --max-num-seqs 4", batch=64), "--max-num-seqs 8"),
        (vllm(" -dp 8 --max-num-seqs 4", batch=60), "--max-num-seqs 8"),
        (vllm(" -tp 8 --max-num-seqs 4", batch=64), "--max-num-seqs 64"),
        (sglang(" --dp 8 --max-running-requests 4", batch=64), "--max-running-requests 8"),
        (sglang(GROUPS + " --max-running-requests 32", batch=64), "--max-running-requests 64"),
        (sglang(GROUPS + " --max-running-requests 32", batch=60), "--max-running-requests 64"),
    ],
)
def test_running_sequences_are_counted_as_the_flag_counts_them(served: Deployed, fix: str) -> None:
    """vLLM's flag and SGLang's replicas count one engine's sequences; SGLang counts all that share experts."""
    short = replace(served, context=4096)
    trap = next(trap for trap in looked_at(short).traps if trap.id == "batch-over-running")
    assert trap.fix == fix
    flag, stated = fix.split()
    mended = replace(short, command=re.sub(rf"{flag} \d+", f"{flag} {stated}", short.command))
    assert "batch-over-running" not in ids(mended)


@pytest.mark.parametrize("more", [GROUPS, GROUPS + " --ep 8", TP8])
def test_a_pool_is_that_of_one_group(more: str) -> None:
    """Groups of ranks cache their own sequences: an engine logs the pool of one, and bytes per token are one GPU's."""
    served = sglang(more, DEEPSEEK, context=32_768, batch=64)
    found = looked_at(served)
    held, group_batch = found.estimate.memory["base"], found.estimate.work.group_batch
    pool = int(held.max_context * group_batch)
    exact = replace(served, asked={"batch": 64, "kv_pool_tokens": pool})
    assert "kv-pool-differs" not in ids(exact)
    half = looked_at(replace(served, asked={"batch": 64, "kv_pool_tokens": pool // 2}))
    trap = next(trap for trap in half.traps if trap.id == "kv-pool-differs")
    assert "(50% of it)" in trap.reason
    assert f" {float(held.kv_bytes / (32_768 * group_batch)):,.0f} expected per GPU" in trap.fix


def test_an_eagle_head_makes_the_window_its_own() -> None:
    """SGLang's Llama EAGLE-3 took the flag before MTP heads did, and on any backend."""
    more = " --speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-draft-model-path some/head" + WINDOW
    said = ids(sglang(more, "llama-3.1-8b", context=32_768))
    assert not {"window-inert-backend", "window-not-in-release"} & set(said)


def test_a_deployment_of_options_gets_its_launch_line() -> None:
    found = preflight(ServerDeployment(model=QWEN, depth=6, window=4032, sink=64), "h200", context=131_072)
    assert found.launch is not None
    again = preflight(read_command(found.launch.text), "h200", context=131_072)
    assert again.passed


#: Ways to switch CUDA graphs off, by release, each with the words that the trap names.
OFF = [
    ("vllm", "--enforce-eager", "--enforce-eager"),
    ("vllm", "--enforce_eager", "--enforce-eager"),
    ("vllm", """--compilation-config '{"cudagraph_mode":"NONE"}'""", "--compilation-config.cudagraph_mode NONE"),
    ("vllm", """-cc '{"cudagraph_mode": 0}'""", "--compilation-config.cudagraph_mode 0"),
    ("vllm", "-cc.cudagraph_mode=none", "--compilation-config.cudagraph_mode none"),
    ("vllm", "--compilation-config.cudagraph_mode NONE", "--compilation-config.cudagraph_mode NONE"),
    ("vllm", "-O0", "--optimization-level 0"),
    ("vllm", "-O 0", "--optimization-level 0"),
    ("vllm", "--optimization-level=0", "--optimization-level 0"),
    ("vllm", "-cc.mode=STOCK_TORCH_COMPILE", "--compilation-config.mode STOCK_TORCH_COMPILE"),
    ("vllm", "-dp 8 --all2all-backend deepep_high_throughput", "--all2all-backend deepep_high_throughput"),
    ("vllm@0.26", "-cc.mode=0", "--compilation-config.mode 0"),
    ("sglang", "--disable-cuda-graph", "--disable-cuda-graph"),
    ("sglang", "--disable-cuda-graph --cuda-graph-backend-prefill full", "--disable-cuda-graph"),
    ("sglang", "--disable-decode-cuda-graph", "--disable-decode-cuda-graph"),
    ("sglang", "--cuda-graph-backend-decode disabled", "--cuda-graph-backend-decode disabled"),
    ("sglang", """--cuda-graph-config '{"decode": {"backend": "disabled"}}'""",
     "--cuda-graph-config.decode.backend disabled"),
    ("sglang", "--debug-cuda-graph", "--debug-cuda-graph"),
    ("sglang@26.06", "--disable-cuda-graph", "--disable-cuda-graph"),
]  # fmt: skip
#: What looks much like it and leaves graphs on for decoding.
ON = [
    ("vllm", "--no-enforce-eager"),
    ("vllm", "-O2"),
    ("vllm", "-O0 -cc.cudagraph_mode=FULL_DECODE_ONLY"),
    ("vllm", "-cc.mode=0"),  # full graphs need no compilation since 0.33
    ("vllm", "-cc.cudagraph_mode=FULL"),
    ("vllm", "-tp 8 --all2all-backend deepep_high_throughput"),
    ("vllm@0.26", "-cc.mode=3"),
    ("vllm@0.26", "-cc.mode=0 -cc.cudagraph_mode=FULL_DECODE_ONLY"),
    ("sglang", "--disable-prefill-cuda-graph"),
    ("sglang", "--disable-cuda-graph-padding"),
    ("sglang", "--disable-cuda-graph --cuda-graph-backend-decode full"),
    ("sglang", """--cuda-graph-backend-decode disabled --cuda-graph-config '{"decode": {"backend": "full"}}'"""),
]


def graphs(engine: str, more: str) -> list[str]:
    """What is said of the graphs of a command that drafts three tokens a step."""
    case = vllm(f"{MTP % 3} {more}") if engine.startswith("vllm") else sglang(f"{nextn(3)} {more}")
    served = replace(case, context=4096, asked={"asked_of": engine})
    found = looked_at(served)
    assert not [trap for trap in found.traps if trap.id in ("unknown-flag", "flag-refused")]
    return [trap.reason for trap in found.traps if trap.id.startswith("graphs-")]


@pytest.mark.parametrize(("engine", "more", "words"), OFF)
def test_every_way_to_switch_graphs_off(engine: str, more: str, words: str) -> None:
    (reason,) = graphs(engine, more)
    assert reason.startswith(f"{words} starts every kernel of 3 draft passes from the host")


@pytest.mark.parametrize(("engine", "more"), ON)
def test_what_leaves_graphs_on(engine: str, more: str) -> None:
    assert graphs(engine, more) == []


@pytest.mark.parametrize("more", ["-O1", "-cc.cudagraph_mode=piecewise", """-cc '{"cudagraph_mode": "PIECEWISE"}'"""])
@pytest.mark.parametrize("engine", ["vllm@0.26", "vllm@0.33"])
def test_piecewise_graphs_are_not_for_drafts(engine: str, more: str) -> None:
    (reason,) = graphs(engine, more)
    assert "2 of 3 draft passes start every kernel from the host" in reason
    assert len(graphs(engine, f"{more} --enforce-eager")) == 1


def test_graphs_do_not_matter_where_nothing_is_drafted() -> None:
    assert "graphs-off" not in ids(vllm(" --enforce-eager", context=4096))


@pytest.mark.parametrize("engine", grammar_names())
def test_what_flags_say_belongs_to_a_rule(engine: str) -> None:
    """Each way names flags of a release, and the rule that looks for it."""
    known = load_grammar(engine)
    for rule, ways in known.says.items():
        assert not BOOK.rules[rule].engines or engine in BOOK.rules[rule].engines
        for way in ways:
            assert any(set(way.names) & known.taken(known.flags, release).keys() for release in known.releases)


@pytest.mark.parametrize(
    ("gpu", "more", "hosts"),
    [
        ("h100", " --tp 16", 2),
        ("h100", " --tp 4 --nnodes 2", 2),
        ("h100", " --tp 8", 0),
        ("gb200", " --tp 16", 0),  # one NVLink
        ("gb200", " --tp 16 --nnodes 4", 0),  # four trays of it
    ],
)
def test_links_between_hosts_are_said_not_to_be_priced(gpu: str, more: str, hosts: int) -> None:
    found = looked_at(sglang(more, "deepseek-v3", gpu, context=4096))
    reasons = [trap.reason for trap in found.traps if trap.id == "hosts-not-priced"]
    assert found.estimate.spans_hosts == bool(hosts)
    assert [f"in {hosts} hosts, whose links are not priced" in reason for reason in reasons] == [True] * bool(hosts)


BLOCK = " --speculative-algorithm DFLASH --speculative-draft-model-path d"
#: Commands that draft in a way that is not priced, and its name.
UNPRICED = [
    *((sglang(f" --speculative-algorithm {word}"), word) for word in ("NGRAM", "UNO", "FROZEN_KV_MTP")),
    (sglang(" --speculative-algorithm STANDALONE"), "a draft model that is not named"),
    (vllm(" --spec-method suffix"), "suffix"),
    (vllm(" --spec-method ngram --spec-tokens 5"), "ngram"),
    (vllm(" -sc.model amd/PARD-Qwen3-0.6B -sc.num_speculative_tokens 8 -sc.parallel_drafting true"),
     "--speculative-config.parallel_drafting"),
    (vllm(" --spec-method eagle --spec-model yuhuili/EAGLE-LLaMA3.1-Instruct-8B --spec-tokens 3"), "EAGLE-1"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "name"), UNPRICED)
def test_a_way_to_draft_that_is_not_priced_is_named(case: Deployed, name: str) -> None:
    """And nothing is advised that holds for a chain alone."""
    found = looked_at(replace(case, context=4096))
    (told,) = [trap for trap in found.traps if trap.severity in ("error", "warning")]
    assert (told.id, told.severity) == ("drafter-not-priced", "warning")
    assert told.reason == f"the drafter is none that is priced here ({name}): figures are without speculation"
    assert found.estimate.drafter is None


@pytest.mark.parametrize(
    ("case", "name", "drafted"),
    [
        (sglang(f"{BLOCK} --speculative-num-draft-tokens 16"), "dflash", 15),
        (sglang(f"{BLOCK} --speculative-draft-window-size 512"), "dflash-window", 15),
        (sglang(" --speculative-algorithm DSPARK"), "dspark", 7),
        (vllm(" --spec-model z-lab/Qwen3-8B-DFlash-b16 --spec-tokens 15"), "dflash", 15),
        (vllm(" --spec-model z-lab/Qwen3-8B-DFlash-b16 --spec-tokens 7"), "dflash", 7),
        (vllm(" --spec-method medusa --spec-model m --spec-tokens 4", asked_of="vllm@0.26"), "medusa", 4),
    ],
)
def test_a_way_to_draft_that_is_a_system_is_priced_as_that(case: Deployed, name: str, drafted: int) -> None:
    """With the published geometry, of which a note says what is assumed, where the head's config is not at hand."""
    found = looked_at(replace(case, context=4096))
    (speculation,) = found.estimate.systems
    assert (speculation.name, float(speculation.levels(found.estimate.work.depth))) == (name, drafted)
    assert found.passed
    assert "drafter-not-priced" not in [trap.id for trap in found.traps]


def test_every_method_of_vllm_is_priced_or_named() -> None:
    known = load_grammar("vllm")
    for release in known.releases:
        methods = known.taken(known.keys["--speculative-config"], release)["method"].choices
        assert len(methods) > 20
        for word in methods:
            read = read_command(f"vllm serve m --spec-method {word} --spec-tokens 3", f"vllm@{release}").deployment
            assert read.method == known.words["method"].get(word, word)
            assert read.chain == (known.words["method"].get(word) in CHAINS)


def test_no_line_starts_what_is_not_priced() -> None:
    stated = ServerDeployment(model=QWEN, method="NGRAM")
    with pytest.raises(InputError, match="--drafter: 'NGRAM' has no word in sglang; mtp or eagle"):
        preflight(stated, "h200", context=4096)


@pytest.mark.parametrize("flag", ["--no-enable-prefix-caching", "--no-disable-hybrid-kv-cache-manager"])
@pytest.mark.parametrize("engine", ["vllm@0.26", "vllm@0.33"])
def test_switches_that_help_does_not_list(flag: str, engine: str) -> None:
    """Both releases take them: 0.33 keeps them beside the names that its help lists."""
    found = looked_at(vllm(f" {flag}", "Qwen/Qwen3-8B", context=4096, asked_of=engine))
    assert found.passed
    assert found.traps == []
