"""What an engine's definition adds to kernels, one mechanism at a time, against the same engine without it."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

import wmtp_sim
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.decide.estimate import Estimate

MODEL, GPU = "qwen3.5-35b-a3b", "h200"


def estimate(*changes: str, engine: str = "vllm", model: str = MODEL, gpu: str = GPU, **sizes) -> Estimate:
    asked = {"context": 4096, "depth": 3} | sizes
    return wmtp_sim.estimate(model, gpu, engine=load_engine(engine, changes), **asked)


def native(found: Estimate) -> float:
    return float(found.steps["native"].seconds)


def launches(found: Estimate, term: str) -> float:
    step = found.steps["native"]
    return float(sum(part.launches for part in step.parts if part.term == term))


def test_host_work_beside_the_gpu_counts_where_it_is_longer():
    """30 ms of host work hide a 7 ms GPU step; 1 us of it hides behind one."""
    plain = native(estimate())
    assert native(estimate("host.step_work_s=0.03")) == pytest.approx(0.03)
    assert native(estimate("host.step_work_s=0.000001")) == pytest.approx(plain)
    assert float(estimate("host.base_work_s=0.03").base_step.seconds) == pytest.approx(0.03)
    assert native(estimate("host.step_work_s=0.03", "host.per_draft_work_s=0.01")) == pytest.approx(0.05)
    assert native(estimate("host.base_work_s=0.03")) == pytest.approx(plain)


def test_a_phase_outside_a_graph_takes_at_least_its_launches():
    plain = estimate()
    verify = float(plain.steps["native"].term("verify"))
    eager = estimate("host.eager=['verify']", "host.eager_launch_s=0.00001")
    stall = launches(plain, "verify") * 1e-5 - verify
    assert stall > 0
    assert native(eager) == pytest.approx(native(plain) + stall)
    assert native(estimate("host.eager=['verify']", "host.eager_launch_s=0.0000001")) == pytest.approx(native(plain))
    assert float(eager.base_step.seconds) == pytest.approx(float(plain.base_step.seconds))
    assert float(estimate("host.eager=['base']", "host.eager_launch_s=0.00001").base_step.seconds) > 1.5 * float(
        plain.base_step.seconds
    )


def test_an_adaptive_depth_of_0_still_pays_for_the_wide_pass():
    """SGLang runs the draft head over the row just decoded; vLLM does not."""
    sglang = estimate(engine="sglang", context=131_072)
    wide = estimate("idle_wide_pass=false", engine="sglang", context=131_072)
    assert wide.idle is None
    assert estimate(engine="vllm").idle is None
    base, idle = float(sglang.base.step_s), float(sglang.idle.step_s)
    assert 0 < idle - base < float(sglang.steps["native"].term("extend")) + 1e-9
    assert float(sglang.idle.terms["extend"]) == pytest.approx(idle - base)


def test_products_run_for_all_sequences_of_a_graph():
    """Nine sequences in a graph of 16: experts and matrices as for 16, attention as for nine."""
    nine, sixteen = (estimate(batch=b, depth=0).base_step for b in (9, 16))
    exact = estimate("graph_batches=[]", batch=9, depth=0).base_step

    def moved(step, kind: str) -> float:
        return float(sum(getattr(e.operation, kind) * e.operation.repeats for e in step.entries))

    assert moved(nine, "weights") == pytest.approx(moved(sixteen, "weights"))
    assert moved(exact, "weights") < 0.95 * moved(nine, "weights")
    assert moved(nine, "kv") == pytest.approx(moved(exact, "kv"), rel=1e-3)
    assert exact.seconds < nine.seconds


def test_inputs_of_narrow_products_are_quantised_first():
    model = "qwen3.6-35b-a3b-nvfp4"
    plain = estimate("quantize_launches={}", "expert_quantize_launches={}", model=model, gpu="b200")
    counted = estimate(model=model, gpu="b200")
    quantised = [e for e in counted.steps["native"].entries if e.operation.name == "elementwise.quantize"]
    assert not any(e.operation.name == "elementwise.quantize" for e in plain.steps["native"].entries)
    narrow = [
        e.operation
        for e in plain.steps["native"].entries
        if e.operation.math != "bf16" and e.operation.kernel in ("gemm", "moe")
    ]
    each = {("gemm", "fp4"): 1, ("gemm", "fp8"): 1, ("moe", "fp4"): 6, ("moe", "fp8"): 2}
    expected = sum(float(o.repeats) * each[o.kernel, o.math] for o in narrow)
    assert sum(float(e.operation.launches * e.operation.repeats) for e in quantised) == expected > 40
    assert native(counted) > native(plain)
    # An H200 has no fp4: it unpacks such weights, and quantises only what it multiplies in fp8.
    on_hopper = list(estimate(model=model, gpu="h200").steps["native"].entries)
    after = [b.operation.math for a, b in pairwise(on_hopper) if "quantize" in a.operation.name]
    assert "fp4" in {e.operation.math for e in on_hopper}
    assert set(after) == {"fp8"}
    assert not any(e.operation.name == "elementwise.quantize" for e in estimate().steps["native"].entries)


def test_a_format_may_be_slower_than_the_profile_has_it():
    plain = estimate("weight_slowdown={}", model="qwen3.5-27b", weights="int4")
    slow = estimate("weight_slowdown={int4=2.0}", model="qwen3.5-27b", weights="int4")
    twice = {"int4"}
    for one, other in zip(plain.base_step.entries, slow.base_step.entries, strict=True):
        factor = 2.0 if one.operation.weight_format in twice else 1.0
        assert float(other.timing.seconds) == pytest.approx(factor * float(one.timing.seconds))


def test_further_rows_of_packed_weights():
    """Depth 3 verifies four rows: each of the three further ones costs its share of the first."""
    found = {
        share: estimate(f"row_cost={{default={share}}}", engine="llama.cpp", model="qwen3.5-27b", weights="q4_k")
        for share in (0.0, 0.5)
    }
    for one, other in zip(*(found[share].steps["native"].entries for share in (0.0, 0.5)), strict=True):
        packed = one.operation.weight_format == "q4_k"
        factor = 1 + 0.5 * (float(one.operation.rows) - 1) if packed else 1.0
        assert float(other.timing.seconds) == pytest.approx(factor * float(one.timing.seconds), rel=1e-9)
    assert float(found[0.5].base_step.seconds) == pytest.approx(float(found[0.0].base_step.seconds))


@pytest.mark.parametrize(("context", "depth", "batch"), [(2**13, 3, 1), (2**13, 3, 64)])
def test_an_expert_multiplies_its_own_rows_only_and_never_more_than_eight_one_by_one(context, depth, batch):
    words = {"engine": "llama.cpp", "model": "qwen3.6-35b-a3b", "weights": "q4_k", "context": context, "depth": depth}
    plain, shared = (estimate(f"row_cost={{default={x}}}", batch=batch, **words) for x in (0.0, 0.5))
    for one, other in zip(*(e.steps["native"].entries for e in (plain, shared)), strict=True):
        rows = float(one.operation.rows)
        if one.operation.weight_format != "q4_k":
            factor = 1.0
        elif one.operation.kernel == "moe":
            touched = 256 * (1 - (1 - 8 / 256) ** rows)  # uniform routing
            factor = 1 + 0.5 * (min(8 * rows / touched, 8.0) - 1)
        else:
            factor = 1 + 0.5 * (min(rows, 8.0) - 1)
        assert float(other.timing.seconds) == pytest.approx(factor * float(one.timing.seconds), rel=1e-6)


@pytest.mark.parametrize(("batch", "blocks"), [(1, 128), (4, 128), (8, 64), (64, 8), (1024, 1)])
def test_lists_of_all_sequences_share_the_blocks(batch, blocks):
    """1M tokens make 128 blocks of 8,192; at most 512 blocks run for all sequences together."""
    step = estimate(engine="sglang", context=2**20, depth=3, batch=batch).steps["native"]
    turns = next(
        float(e.operation.turns) for e in step.entries if e.term == "verify" and e.operation.kernel == "index_build"
    )
    assert turns == pytest.approx(math.ceil(2**20 / 512 / blocks), rel=0.03)


def test_lists_side_by_side_slow_one_another():
    one, six = (
        estimate(engine="sglang@pre-tiling", context=1_048_576, depth=depth).steps["native"] for depth in (2, 7)
    )
    turns = [
        float(
            next(e for e in step.entries if e.term == "draft" and e.operation.kernel == "index_build").operation.turns
        )
        for step in (one, six)
    ]
    assert turns[1] / turns[0] == pytest.approx(1.67 / 0.97)


@pytest.mark.parametrize("name", ["vllm@0.26", "sglang", "sglang@26.06", "trtllm", "llama.cpp", "vllm@pre-split"])
def test_more_of_anything_never_takes_less(name: str):
    engine = load_engine(name)
    for sizes in (
        {"context": [4096, 32768, 262144, 1048576]},
        {"depth": [1, 2, 3, 5, 8, 12]},
        {"batch": [1, 2, 3, 5, 8, 9, 17, 33, 64, 129, 200]},
    ):
        asked = {"context": 32768, "depth": 3, "batch": 1} | {k: np.array(v) for k, v in sizes.items()}
        found = wmtp_sim.estimate(MODEL, GPU, engine=engine, **asked)
        for step in (found.base_step, *found.steps.values()):
            seconds = np.broadcast_to(step.seconds, (len(next(iter(sizes.values()))),))
            assert (np.diff(seconds) >= -1e-4 * seconds[:-1]).all(), (name, sizes)
