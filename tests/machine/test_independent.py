"""The shipped H200 profile against operator times that NVIDIA published (aiconfigurator-core, Apache-2.0).

Bands are what docs/independent.md shows, with room for a new calibration of the same GPU; where we are known to differ
by kernel, only the side that would mean a mistake of ours is bounded.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable

import pytest

from tests import independent
from tests.independent import K, Row, at_a_million, of, own_at_a_million, rows

MB = 1e6
#: FlashAttention-3's planning kernel in a trace of vLLM 0.26.0 on an H200 (facts of 2026-11-29).
PLANNING_US = 1.7


def median_ratio(found: Iterable[Row]) -> float:
    return statistics.median(row.ratio for row in found)


def test_the_copied_figures_are_few_and_say_whose_they_are() -> None:
    document = json.loads(independent.PUBLISHED.read_text(encoding="utf-8"))
    assert document["attribution"]["licence"] == "Apache-2.0"
    assert document["attribution"]["device"] == "NVIDIA H200"
    assert len(document["rows"]) <= 120
    assert independent.PUBLISHED.stat().st_size < 30_000


def test_no_published_time_is_below_our_bound() -> None:
    """Were our byte counts too high, or their inputs left in the L2, some kernel would beat the speed of light."""
    for row in rows():
        bound = 1e6 * float(independent.machine().bound(row.operation))
        assert min(row.published.values()) > bound, row.shape


# --- products ---


def large(measured: bool) -> list[Row]:
    return [row for row in of("gemm bf16") if row.operation.weights >= 30 * MB and row.measured is measured]


@pytest.mark.parametrize("measured", [True, False])
def test_products_of_30_mb_and_more_agree(measured: bool) -> None:
    """The same library on another H200; shapes that we never measured agree as well as those that we did."""
    found = large(measured)
    assert len(found) >= 8
    assert median_ratio(found) == pytest.approx(1.0, abs=0.05)
    for row in found:
        assert 0.9 * min(row.published.values()) < row.ours < 1.1 * max(row.published.values()), row.shape


def test_small_products_agree_within_a_microsecond() -> None:
    small = [row for row in of("gemm bf16") if row.operation.weights < 30 * MB]
    assert len(small) >= 5
    for row in small:
        assert row.ours == pytest.approx(statistics.median(row.published.values()), abs=1.0), row.shape


def test_fp8_products_are_faster_than_published_by_a_small_kernel() -> None:
    """Ours leave out the quantization of the activations."""
    for row in of("gemm fp8"):
        fastest = min(row.published.values())
        assert fastest - 8 < row.ours < fastest, row.shape


# --- attention ---


def test_our_kernel_is_the_fastest_and_close_where_bytes_count() -> None:
    found = [row for row in of("attention") if row.measured and row.sizes["context"] * row.sizes["batch"] >= 32 * K]
    assert len(found) >= 8
    for row in found:
        assert 0.7 < row.ours / min(row.published.values()) < 1.03, row.shape
    batched = [row for row in found if row.sizes["batch"] > 1]
    assert median_ratio(batched) > median_ratio(row for row in found if row.sizes["batch"] == 1)


def test_flash_attention_3_as_sglang_runs_it() -> None:
    """Points of one head shape at 4K, 128K and 1M stand for the contexts between and for fewer heads as wide."""
    found = of("fa3 sglang", head_dim=256)
    assert len(found) >= 8
    for row in found:
        assert 0.8 < row.ratio < 1.03, row.shape


def test_flash_attention_3_with_the_32_splits_of_vllm() -> None:
    """One KV head on 32 thread blocks: what one block streams limits it, in their table as in ours.

    Theirs hold the kernel that plans the splits; vLLM runs it once for all layers, and ours leave it out.
    """
    found = of("fa3 vllm", head_dim=256)
    assert len(found) >= 8
    for row in found:
        assert row.ours + PLANNING_US == pytest.approx(row.published["vllm"], rel=0.15), row.shape
    (short,), (long,) = (of("fa3 vllm", kv_heads=1, context=c * K) for c in (64, 128))
    read = long.operation.kv - short.operation.kv
    per_block = read / 32 / (1e-6 * (long.published["vllm"] - short.published["vllm"]))
    assert per_block == pytest.approx(independent.machine().profile.kernel("attention", "fa3").cta_bytes_per_s, rel=0.2)
    unlimited = of("fa3 sglang", kv_heads=1, context=128 * K)[0]
    assert long.published["vllm"] > 1.5 * unlimited.published["sglang"]
    assert long.ours > 1.5 * unlimited.ours


def test_flash_attention_3_at_narrower_heads() -> None:
    """Carried to heads of 128 it holds within its range from 16K on; below, its floor is of a head twice as wide."""
    stated = independent.machine().profile.kernel("attention", "fa3").spread_elsewhere
    for row in (*of("fa3 vllm", head_dim=128), *of("fa3 sglang", head_dim=128)):
        far = stated if row.sizes["context"] >= 16 * K else 1.5
        assert 1 / far < row.ratio < far, row.shape


def test_a_window_makes_the_context_irrelevant() -> None:
    """The published times are flat beyond the window, which is what our byte count says."""
    for engine, window in (("vllm", 128), ("vllm", 1024), ("sglang", 1024), ("vllm", 8192), ("sglang", 8192)):
        times = [row.published[engine] for row in of("window", window=window)]
        assert len(times) >= 2
        assert max(times) < 1.05 * min(times), (engine, window)
    for row in of("fa3w vllm"):
        assert row.ratio == pytest.approx(1.0, abs=0.3), row.shape
    (full,), (narrow,) = (of(name, head_dim=128, context=64 * K) for name in ("fa3 vllm", "fa3w vllm"))
    saved = full.published["vllm"] - narrow.published["vllm"]
    assert full.ours - narrow.ours == pytest.approx(saved, rel=0.15)


def test_the_published_lines_do_not_settle_a_million_tokens() -> None:
    """Extended from 64K they differ by 30 %; our own points lie below the lowest, by less than 20 %."""
    heads = (16, 2, 256)
    lines = [at_a_million(heads, engine) for engine in independent.ENGINES]
    assert max(lines) > 1.2 * min(lines)
    assert 0.85 * min(lines) < own_at_a_million(heads, "fa3") < min(lines)
    for each in (heads, (32, 8, 128)):
        line = min(at_a_million(each, engine) for engine in independent.ENGINES)
        assert 0.8 * line < own_at_a_million(each, "triton_packed") < line


# --- recurrences, experts ---


def test_a_gated_delta_step_agrees_at_batch_1() -> None:
    """Within 2 us of the fastest engine; at 16 sequences our kernel is slower, by less than half."""
    for row in of("gdn"):
        fastest = min(row.published.values())
        if row.sizes["batch"] == 1:
            assert row.ours == pytest.approx(fastest, abs=2.0), row.shape
        assert row.ours < 1.55 * fastest, row.shape


def test_experts_of_a_gated_layer_agree_but_for_the_kernels_around() -> None:
    for row in of("moe", gated=1):
        fastest = min(row.published.values())
        assert fastest - 12 < row.ours < fastest, row.shape
