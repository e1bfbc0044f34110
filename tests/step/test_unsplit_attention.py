"""Attention that walks the whole context in one thread block: against public tables, and what serves which pass.

Tables: flash-attention issues #176, #190 and #193; vLLM's own code says when it splits.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import wmtp_sim
from wmtp_sim.catalog.engines import engine_names, load_engine
from wmtp_sim.catalog.gpus import gpu_names, load_gpu
from wmtp_sim.catalog.profiles import profile_for
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.warnings import warnings
from wmtp_sim.machine.machine import Machine, Timing
from wmtp_sim.spec.engine import Engine, ServedBy
from wmtp_sim.spec.gpu import Gpu
from wmtp_sim.spec.model import Attention
from wmtp_sim.step.serving import blocks_of, split_attention
from wmtp_sim.work.layers import Pass, attention
from wmtp_sim.work.operation import Operation

#: Qwen3.6-27B's heads on one of two GPUs.
HALF_27B = Attention(q_heads=12, kv_heads=2, head_dim=256, v_head_dim=256)
EIGHT = Attention(q_heads=16, kv_heads=2, head_dim=256, v_head_dim=256)
LLAMA = Attention(q_heads=32, kv_heads=8, head_dim=128, v_head_dim=128)


def read(layer: Attention, kernel: str, *, rows: int, context: int, batch: int = 1) -> Operation:
    """One layer's attention over bf16 caches, as a kernel of vLLM runs it."""
    shape = Pass(batch=batch, rows=float(rows), attended=context - rows, kv_bytes=2.0, state_bytes=4.0)
    (operation,) = attention(layer, shape)
    return split_attention(replace(operation, variant=kernel), load_engine("vllm").attention_kernels[kernel])


def machine(gpu: str) -> Machine:
    device = load_gpu(gpu)
    return Machine(device, profile_for(device))


def seconds(gpu: str, operation: Operation) -> Timing:
    return machine(gpu).time(operation)


@pytest.mark.parametrize(
    ("layer", "context", "measured_us"),
    [
        (HALF_27B, 4_096, 375.0),
        (HALF_27B, 32_768, 2_939.3),
        (HALF_27B, 200_000, 15_788.6),
        (LLAMA, 32_768, 1_336.0),
    ],
)
def test_eight_rows_on_an_rtx_3090(layer: Attention, context: int, measured_us: float) -> None:
    """flash-attention #193: one block per query head walks the context, at one multiprocessor's share of the FLOPs."""
    found = seconds("rtx-3090", read(layer, "fa2_unsplit", rows=8, context=context))
    assert found.low < measured_us * 1e-6 < found.high
    assert found.seconds == pytest.approx(measured_us * 1e-6, rel=0.09)
    assert machine("rtx-3090").binding_roof(read(layer, "fa2_unsplit", rows=8, context=context)) == "few CTAs"


def test_as_long_whatever_rows_and_heads() -> None:
    """flash-attention #190: 2, 4 or 8 rows take the same: rows are padded to 64, and heads run side by side."""
    times = [
        float(seconds("rtx-3090", read(layer, "fa2_unsplit", rows=rows, context=31_744)).seconds)
        for layer in (LLAMA, LLAMA.model_copy(update={"q_heads": 8, "kv_heads": 2}))
        for rows in (2, 4, 8)
    ]
    assert times == pytest.approx([times[0]] * len(times), rel=1e-3)


def test_twelve_blocks_of_128_multiprocessors() -> None:
    """flash-attention #176: 12 of 128 at work, at 3.5 % of the memory's bandwidth."""
    operation = read(HALF_27B, "fa2_unsplit", rows=4, context=100_000)
    rate = float(operation.kv) / float(seconds("rtx-4090", operation).seconds)
    assert rate / load_gpu("rtx-4090").hbm_bandwidth_bytes_per_s == pytest.approx(0.035, rel=0.05)


def test_one_row_of_split_attention_on_an_rtx_3090() -> None:
    """flash-attention #193: from 32,768 to 200,000 tokens one row takes 441.9 us more; floors of eager calls cancel."""
    times = [seconds("rtx-3090", read(HALF_27B, "fa2", rows=1, context=c)).seconds for c in (32_768, 200_000)]
    assert float(times[1] - times[0]) == pytest.approx(441.9e-6, rel=0.02)


# --- our own run of vLLM's kernels on an H200 ---------------------------------------------------------------------


def own_points(variant: str) -> list[dict]:
    document = json.loads((Path(__file__).parents[1] / "data" / "vllm-attention-h200.json").read_text())
    return [point for point in document["points"] if point["variant"] == variant]


def own_read(point: dict) -> Operation:
    sizes = {name: point[name] for name in ("q_heads", "kv_heads", "head_dim")}
    layer = Attention(**sizes, v_head_dim=point["head_dim"])
    return read(layer, point["variant"], **{name: point[name] for name in ("rows", "context", "batch")})


def test_a_block_streams_as_fast_alone_as_beside_131_others() -> None:
    """FlashAttention-2 over 2 to 8 rows, up to a block a multiprocessor: 24 to 29 GB/s each, whatever the shape."""
    points = [p for p in own_points("fa2_unsplit") if p["batch"] * p["q_heads"] <= 132]
    assert len(points) == 72
    rates = [p["context"] * p["head_dim"] * 4 / p["seconds"] for p in points]
    assert 24e9 < min(rates) < max(rates) < 29e9
    for point in points:
        found = seconds("h200", own_read(point))
        assert float(found.seconds) == pytest.approx(point["seconds"], rel=0.09), point


def test_blocks_beyond_one_a_multiprocessor_wait() -> None:
    """192 and 256 blocks are two on the busiest of 132 multiprocessors, 512 are four: 1.6 and 3.3 times as long."""
    points = [p for p in own_points("fa2_unsplit") if p["batch"] * p["q_heads"] > 132]
    assert {-(-p["batch"] * p["q_heads"] // 132) for p in points} == {2, 4}
    for point in points:
        found = seconds("h200", own_read(point))
        assert float(found.seconds) == pytest.approx(point["seconds"], rel=0.15), point


def test_an_unsplit_launch_takes_as_long_for_two_rows_as_for_eight() -> None:
    times: dict[tuple, list[float]] = {}
    for p in own_points("fa2_unsplit"):
        times.setdefault((p["q_heads"], p["kv_heads"], p["context"], p["batch"]), []).append(p["seconds"])
    assert len(times) == 36
    assert all(max(each) < 1.06 * min(each) for each in times.values())


@pytest.mark.parametrize("variant", ["triton_2d", "triton_3d"])
def test_triton_is_priced_as_it_was_measured(variant: str) -> None:
    """The shipped profile knows these points: 90 % of them within its spread, the median within 5 %."""
    errors = []
    for point in own_points(variant):
        found = seconds("h200", own_read(point))
        errors.append(abs(np.log(float(found.seconds) / point["seconds"])))
    assert np.median(errors) < 0.05
    assert np.quantile(errors, 0.9) < np.log(1.2)


def test_without_segments_each_tile_of_rows_walks_the_context() -> None:
    """Eight query heads a KV head put two rows into a tile of 16: 8 rows are four walks, side by side for one."""
    few, many = (read(EIGHT, "triton_2d", rows=8, context=32_768, batch=b) for b in (1, 64))
    assert (few.rereads, few.rows_per_read) == (4, 2)
    assert float(few.serial_bytes) == pytest.approx(32_768 * 2 * 256 * 2)
    alone, beside = (float(seconds("h200", each).seconds) for each in (few, many))
    assert alone < beside < 64 * alone


# --- which kernel serves a pass ------------------------------------------------------------------------------------


def kernels(found: Estimate, term: str) -> set[str]:
    """The attention kernels of one term of a native step."""
    entries = found.steps["native"].entries
    return {
        e.operation.variant
        for e in entries
        if e.term == term and e.operation.kernel == "attention" and np.all(e.operation.repeats)
    }


def step(gpu: str, *, engine: str = "vllm", model: str = "qwen3.6-27b", **more) -> Estimate:
    asked = {"context": 32_768, "depth": 3, "alpha": 0.75} | more
    return wmtp_sim.estimate(model, gpu, engine=engine, **asked)


@pytest.mark.parametrize(
    ("engine", "gpu", "kv", "one_row", "several"),
    [
        ("vllm", "rtx-3090", "bf16", "fa2", "fa2_unsplit"),
        ("vllm@0.26", "a100-sxm-80gb", "bf16", "fa2", "fa2_unsplit"),
        ("vllm", "l40s", "bf16", "fa2", "fa2_unsplit"),
        ("vllm", "rtx-5090", "bf16", "fa2", "fa2_unsplit"),
        ("vllm", "rtx-5090", "fp8", "flashinfer", "flashinfer"),
        ("vllm", "rtx-3090", "fp8", "flashinfer", "flashinfer"),
        ("vllm", "h200", "bf16", "fa3", "fa3"),
        ("vllm", "h200", "fp8", "fa3", "fa3"),
        ("vllm", "b200", "bf16", "flashinfer_trtllm", "flashinfer_trtllm"),
        ("vllm", "mi300x", "bf16", "rocm_paged_2d", "rocm_prefix_prefill"),
        ("sglang", "rtx-3090", "bf16", "flashinfer", "flashinfer"),
        ("sglang", "rx-7900-xtx", "bf16", "sglang_triton", "sglang_triton_extend"),
    ],
)
def test_by_engine_gpu_cache_and_rows(engine: str, gpu: str, kv: str, one_row: str, several: str) -> None:
    found = step(gpu, engine=engine, kv=kv)
    assert {e.operation.variant for e in found.base_step.entries if e.operation.kernel == "attention"} == {one_row}
    assert kernels(found, "draft") == {one_row}
    assert kernels(found, "verify") == kernels(found, "extend") == {several}


def test_layers_with_sinks_go_elsewhere() -> None:
    """FlashAttention-2 knows no sink logits: gpt-oss runs Triton there, split up to eight rows."""
    sinks = {"model": "gpt-oss-20b", "drafter": "eagle"}
    shallow, deep = (step("rtx-4090", depth=d, **sinks) for d in (3, 8))
    assert kernels(shallow, "verify") == {"triton_3d"}
    assert kernels(deep, "verify") == {"triton_2d"}
    assert kernels(step("h200", **sinks), "verify") == {"fa3"}


def test_flashinfer_reads_sinks_on_a_geforce_since_033() -> None:
    """With its XQA kernels; 0.26 takes Triton, and splits only one row of a sequence."""
    sinks = {"model": "gpt-oss-20b", "drafter": "eagle"}
    assert kernels(step("rtx-5090", **sinks), "verify") == {"flashinfer_xqa"}
    assert kernels(step("rtx-5090", engine="vllm@0.26", **sinks), "verify") == {"triton_2d"}
    assert load_engine("vllm").runs("FLASHINFER", load_gpu("rtx-5090"), 2.0, sinks=True)
    assert not load_engine("vllm@0.26").runs("FLASHINFER", load_gpu("rtx-5090"), 2.0, sinks=True)
    assert not load_engine("vllm").runs("FLASHINFER", load_gpu("rtx-3090"), 2.0, sinks=True)


def test_sglang_runs_layers_with_sinks_on_triton_before_hopper() -> None:
    """Verify and draft-extend with its extend kernel, draft passes with the decode kernel."""
    found = step("rtx-4090", engine="sglang", model="gpt-oss-20b", drafter="eagle")
    assert kernels(found, "verify") == {"sglang_triton_extend"}
    assert {e.operation.variant for e in found.base_step.entries if e.operation.kernel == "attention"} == {
        "sglang_triton"
    }


def test_flash_attention_is_its_fourth_on_data_centre_blackwell() -> None:
    found = step("b200", attention_backend="FLASH_ATTN")
    assert kernels(found, "verify") == kernels(found, "draft") == {"fa4"}


def test_rocm_splits_one_row_for_heads_that_its_paged_kernel_knows() -> None:
    """64 and 128 on Instinct, 128 on Radeon (platforms/rocm.py); Qwen3.6-27B's 256 walk the context unsplit."""
    for gpu, model, expected in (
        ("mi300x", "llama-3.1-8b", "rocm_paged"),
        ("rx-7900-xtx", "llama-3.1-8b", "rocm_paged"),
        ("mi300x", "qwen3.6-27b", "rocm_paged_2d"),
    ):
        found = wmtp_sim.estimate(model, gpu, context=4096, depth=0, engine="vllm").base_step
        assert {e.operation.variant for e in found.entries if e.operation.kernel == "attention"} == {expected}


def test_blocks_of_an_unsplit_launch() -> None:
    """Sequences x streams x tiles of rows: 65 rows are two tiles of FlashAttention-2's 64."""
    fa2, triton = (load_engine("vllm").attention_kernels[name] for name in ("fa2_unsplit", "triton_2d"))
    for rows, tiles in ((1, 1), (64, 1), (65, 2)):
        assert float(blocks_of(read(EIGHT, "fa2_unsplit", rows=rows, context=4096, batch=3), fa2)) == 3 * 16 * tiles
    # Triton's tiles of 16 hold the rows of all 8 query heads of a KV head: two of each.
    assert float(blocks_of(read(EIGHT, "triton_2d", rows=4, context=4096, batch=3), triton)) == 3 * 2 * 2


def test_triton_splits_while_few_blocks_would_run_without() -> None:
    """vLLM 0.33 splits 4 rows of 2 KV heads (2 query blocks each) up to 32 sequences; 0.26 never more than one row."""
    for batch, expected in ((1, "triton_3d"), (32, "triton_3d"), (33, "triton_2d")):
        found = step("rtx-3090", model="qwen3.5-35b-a3b", attention_backend="TRITON_ATTN", batch=batch)
        assert kernels(found, "verify") == {expected}
    older = step("rtx-3090", model="qwen3.5-35b-a3b", engine="vllm@0.26", attention_backend="triton_attn")
    assert kernels(older, "verify") == {"triton_2d"}
    assert kernels(older, "draft") == {"triton_3d"}


def test_a_grid_is_priced_kernel_by_kernel() -> None:
    """One broadcast over batches on both sides of the rule equals point by point."""
    batches = np.array([1.0, 32.0, 33.0, 64.0])
    asked = {"model": "qwen3.5-35b-a3b", "attention_backend": "TRITON_ATTN"}
    grid = step("rtx-3090", batch=batches, **asked).policies["native"].cost.step_s
    points = [float(step("rtx-3090", batch=b, **asked).policies["native"].cost.step_s) for b in batches]
    assert grid == pytest.approx(points, rel=1e-12)


def test_verify_turns_the_sign_on_two_rtx_3090() -> None:
    """MTP over 27B on two cards is net-negative beyond some 10K tokens (avesed/vllm-ampere-optimized #7)."""
    asked = {"tp": 2, "weights": "int4", "kv": "bf16"}
    gains = {c: float(step("rtx-3090", context=c, **asked).policies["native"].speedup) for c in (4_096, 16_384, 32_768)}
    assert gains[4_096] > 1 > gains[16_384] > gains[32_768]


def test_what_splits_would_give_on_two_rtx_3090() -> None:
    """With the 520 us that the split kernel takes (#193) in the verify's 16 layers and the extend's one, MTP at 32K is
    106 % faster (avesed/vllm-ampere-optimized #7)."""
    found = step("rtx-3090", context=32_768, tp=2, weights="int4", kv="bf16")
    now = float(found.policies["native"].cost.step_s)
    unsplit = float(seconds("rtx-3090", read(HALF_27B, "fa2_unsplit", rows=4, context=32_768)).seconds)
    assert now / (now - 17 * (unsplit - 520.3e-6)) == pytest.approx(2.06, rel=0.12)


@pytest.mark.parametrize("engine", [name for name in engine_names() if name not in ("ideal", "bench")])
def test_a_kernel_without_splits_has_a_pace_of_its_own(engine: str) -> None:
    """On every GPU: under the model of another kernel, which splits, one block would read at the whole GPU's rate."""
    release = load_engine(engine)
    for name in gpu_names():
        gpu = load_gpu(name)
        for kernel, rule in release.attention_kernels.items():
            if rule.max_splits == 1 and any(entry.kernel == kernel for entry in entries_on(release, gpu)):
                model = profile_for(gpu).kernel("attention", kernel)
                assert model.cta_bytes_per_s or model.cta_compute, (name, kernel)


def entries_on(release: Engine, gpu: Gpu) -> list[ServedBy]:
    return [entry for entries in release.attention_backends.values() for entry in entries if entry.concerns(gpu)]


# --- backends stated by hand ---------------------------------------------------------------------------------------


def test_one_word_for_all_passes_or_some_by_name() -> None:
    assert kernels(step("rtx-3090", attention_backend="flashinfer"), "verify") == {"flashinfer"}
    mixed = step("h200", engine="sglang", attention_backend="verify=Triton,draft=fa3")
    assert {e.operation.variant for e in mixed.base_step.entries if e.operation.kernel == "attention"} == {"fa3"}
    assert kernels(mixed, "verify") == {"sglang_triton_extend"}
    assert kernels(mixed, "draft") == kernels(mixed, "extend") == {"fa3"}


@pytest.mark.parametrize(
    ("gpu", "stated", "says"),
    [
        ("h200", "fa9", "'fa9' is no backend of vllm 0.33.0 here; one of FLASH_ATTN, FLASHINFER"),
        ("h200", "extend=FLASHINFER", "'extend' is no pass"),
        ("h200", "ROCM_ATTN", "ROCM_ATTN does not run on NVIDIA H200"),
        ("h200", "", "'' is no backend"),
        ("h200", "verify=FLASHINFER,verify=FLASH_ATTN", "verify"),
    ],
)
def test_backends_that_are_refused(gpu: str, stated: str, says: str) -> None:
    with pytest.raises(wmtp_sim.InputError, match="--attention-backend") as caught:
        step(gpu, attention_backend=stated)
    assert says in str(caught.value)


def test_a_backend_that_cannot_read_the_cache_is_refused_with_those_that_can() -> None:
    with pytest.raises(wmtp_sim.InputError, match="over an fp8 cache") as caught:
        step("rtx-3090", attention_backend="FLASH_ATTN", kv="fp8")
    assert "one of FLASHINFER, TRITON_ATTN" in str(caught.value)
    assert step("h200", attention_backend="FLASH_ATTN", kv="fp8").base_step.seconds > 0


@pytest.mark.parametrize("engine", ["sglang", "sglang@26.06", "vllm", "vllm@0.26", "trtllm", "bench"])
def test_what_a_release_picks_runs_there(engine: str) -> None:
    """On every GPU of the catalogue that the release knows; elsewhere a warning says so."""
    release = load_engine(engine)
    for name in gpu_names():
        gpu = load_gpu(name)
        for kv_bytes in (2.0, 1.0):
            choice = release.attention_on(gpu.architecture, kv_bytes)
            known = gpu.vendor != "apple" and (engine == "vllm" or gpu.vendor == "nvidia")
            if known and release.attention_backends:
                assert release.runs(choice.base, gpu, kv_bytes, sinks=False), (name, choice)


def test_extend_follows_draft_and_verify_follows_base() -> None:
    engine = load_engine("sglang", ['attention.Hopper.draft="flashinfer"'])
    choice = engine.attention_on("Hopper", 2.0)
    assert (choice.base, choice.verify, choice.draft, choice.extend) == ("fa3", "fa3", "flashinfer", "flashinfer")


def test_a_gpu_that_states_no_architecture_is_said_to_be_unknown() -> None:
    """Priced as if its backend ran there, with a warning that names what is missing."""
    plain = Gpu(name="mine", memory_bytes=10**11, hbm_bandwidth_bytes_per_s=2e12, peak_dense_flops={"bf16": 3e14})
    assert not load_engine("vllm").runs("FLASH_ATTN", plain, 2.0, sinks=False)
    assert not load_engine("vllm").runs("ROCM_ATTN", plain, 2.0, sinks=False)
    found = warnings(wmtp_sim.estimate("llama-3.1-8b", plain, context=4096, depth=0, engine="vllm"))
    assert "FLASH_ATTN, which may not run on mine, whose file states no architecture" in " ".join(map(str, found))
