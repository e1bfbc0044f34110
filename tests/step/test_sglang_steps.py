"""Whole steps of SGLang 0.5.23 on an H200, against engine ``sglang`` and the kernels of the shipped profile.

tests/data/sglang-steps-h200.json holds fifteen steps of Qwen3.5-35B-A3B and a trace of each. The definition took from
the traces of base steps which kernels a layer starts, and that the shared expert has a stream of its own; its host
times are older than these steps. No time of a step is in any fit.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import wmtp_sim
from wmtp_sim.catalog.engines import load_engine

RUN = json.loads((Path(__file__).parents[1] / "data" / "sglang-steps-h200.json").read_text())
STEPS, PROFILES = RUN["steps"], RUN["profiles"]
#: What the engine file calls the draft backends: for narrow passes, for the wide one.
DRAFT = {"fa3": ("fa3", "fa3"), "triton": ("sglang_triton", "sglang_triton_extend")}


def named(row: dict) -> str:
    window = "-window" if "window" in row else ""
    return f"depth{row['depth']}-{row.get('draft', 'base')}{window}-{row['context']}-batch{row['batch']}"


def predicted(row: dict, *changes: str):
    """The step of a row, as SGLang was started for it."""
    backends = DRAFT[row["draft"]] if row["depth"] else None
    if backends:
        changes += (f"attention.Hopper.draft={backends[0]}", f"attention.Hopper.extend={backends[1]}")
    window = {name: row[name] for name in ("window", "sink") if name in row}
    asked = {name: row[name] for name in ("context", "depth", "batch")} | window
    found = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", **asked, engine=load_engine("sglang@0.5.23", changes))
    return found.steps["flag" if window else "native"] if row["depth"] else found.base_step


def error(row: dict, *changes: str) -> float:
    return 1e3 * float(predicted(row, *changes).seconds) / row["median_ms"] - 1


def traced(row: dict, *words: str) -> float:
    """Microseconds per step of the kernels whose names hold one of some words."""
    return sum(us for name, _, us in row["kernel_us"] if any(word in name for word in words))


def launched(row: dict, *words: str) -> float:
    return sum(count for name, count, _ in row["kernel_us"] if any(word in name for word in words))


def of_kernel(step, kernel: str, name: str = "") -> tuple[float, float]:
    """Launches and microseconds of a kernel class in a step."""
    entries = [e for e in step.entries if e.operation.kernel == kernel and name in e.operation.name]
    launches = sum(float(e.operation.repeats) * float(e.operation.launches or 1.0) for e in entries)
    return launches, 1e6 * sum(float(e.timing.seconds) for e in entries)


@pytest.mark.parametrize("row", STEPS, ids=named)
def test_a_measured_step_is_inside_the_range(row):
    total = predicted(row).total
    assert 1e3 * total.low < row["median_ms"] < 1e3 * total.high


def test_how_far_off_steps_are():
    errors = [abs(error(row)) for row in STEPS]
    assert sum(errors) / len(errors) < 0.065
    assert max(errors) < 0.16


@pytest.mark.parametrize("row", [r for r in STEPS if not r["depth"] and r["batch"] == 1], ids=named)
def test_a_single_sequences_base_step(row):
    assert error(row) == pytest.approx(0, abs=0.03)


def test_the_second_stream_and_the_launches_are_what_makes_the_difference():
    """As vLLM's compiled step and one stream would have it, every step comes out too long, by a fifth in the mean."""
    changes = ("concurrent_groups=[]", "elementwise.attention=6", "elementwise.gdn=5", "elementwise.moe=4")
    errors = [error(row, *changes) for row in STEPS]
    assert min(errors) > 0.09
    assert sum(errors) / len(errors) > 0.18


LONG = [p for p in PROFILES if p["context"] > 100_000 and p.get("draft") != "triton"]


@pytest.mark.parametrize("row", LONG, ids=named)
def test_attention_and_lm_head_of_the_traces(row):
    """FlashAttention-3 with its combination and preparation, target and drafts; lm_head in every pass.

    At 4K a combination waits, inside its own time, for the read that it follows: there the trace counts twice.
    """
    step = predicted(row)
    assert of_kernel(step, "attention")[1] == pytest.approx(traced(row, "flash::"), rel=0.1)
    assert of_kernel(step, "gemm", "lm_head")[1] == pytest.approx(traced(row, "512x8_64x3"), rel=0.1)


def test_products_are_the_ones_that_the_trace_starts():
    """270 products, 40 routers among them, and lm_head in the base step; cuBLAS starts its split-k reductions apart."""
    row = next(p for p in PROFILES if not p["depth"] and p["batch"] == 1)
    assert of_kernel(predicted(row), "gemm")[0] == launched(row, "nvjet", "_router") == 271


@pytest.mark.parametrize("row", [p for p in PROFILES if p.get("draft") == "fa3"], ids=named)
def test_the_accepted_state_is_copied_once(row):
    """Recurrent and convolution states of every sequence, from the accepted row's snapshot: read and written."""
    assert of_kernel(predicted(row), "copy")[1] == pytest.approx(traced(row, "_scatter_"), rel=0.1)


@pytest.mark.parametrize("row", [p for p in PROFILES if p["batch"] == 1 and p["depth"]], ids=named)
def test_verified_rows_meet_their_own_experts(row):
    """The router of random weights sends rows to experts as if each chose for itself: the estimate's default."""
    rows = row["depth"] + 1
    assert row["distinct_experts"] == pytest.approx(256 * (1 - (1 - 8 / 256) ** rows), rel=0.05)


def test_a_windowed_draft_under_tritons_backend_is_slower_than_none():
    """The window holds in narrow passes; the draft-extend reads the whole context in one block a head: 12.7 ms."""
    at = {named(row): row for row in STEPS}
    windowed, native = at["depth3-triton-window-131138-batch1"], at["depth3-fa3-131138-batch1"]
    assert windowed["median_ms"] > 2.5 * native["median_ms"]
    assert predicted(windowed).seconds > 2.5 * predicted(native).seconds
    (trace,) = (p for p in PROFILES if "window" in p and p["context"] > 100_000)
    extend = [e for e in predicted(trace).entries if e.term == "extend" and e.operation.kernel == "attention"]
    unsplit = sum(us for name, _, us in trace["kernel_us"] if name == "_fwd_kernel")
    assert 1e6 * sum(float(e.timing.seconds) for e in extend) == pytest.approx(unsplit, rel=0.04)


@pytest.mark.parametrize(
    ("model", "gpu", "measured_ms"),
    [("qwen3.5-397b-a17b", "h200", 12.36), ("glm-5", "h200", 26.24), ("deepseek-v3.2", "b200", 22.36)],
)
def test_a_step_of_eight_gpus_is_inside_its_wider_range(model, gpu, measured_ms):
    """sgl-cookbook's single sequences (sglcb-001, -003, -005), of older releases: no definition was fitted on them."""
    found = wmtp_sim.estimate(model, gpu, context=1500, depth=3, tp=8, engine="sglang@0.5.23").steps["native"]
    assert 1e3 * found.total.low < measured_ms < 1e3 * found.total.high


def test_several_gpus_leave_more_open():
    engine = load_engine("sglang@0.5.23")
    assert engine.spread_over(8) == pytest.approx(engine.spread_over(1) * 1.5) == pytest.approx(1.15 * 1.5)
