"""How fast a grid is: a million points through the public API, beside plain NumPy passes over as many numbers.

Benchmarks measure, they do not judge: `make bench` prints seconds, points per second, and the ratio to the baseline of
one multiply-add over a million float64 values.
"""

import time

import numpy as np
import pytest

import wmtp_sim

POINTS = 1_000_000


def axes():
    """25 contexts x 10 depths x 10 windows x 8 batches x 50 accept lengths."""
    context = np.unique(np.geomspace(4096, 2**20, 25).astype(int))
    window = np.unique(np.geomspace(128, 65536, 10).astype(int))
    return wmtp_sim.open_grid(context, np.arange(1, 11), window, np.arange(1, 9), np.linspace(1, 2, 50))


def speedups(engine):
    context, depth, window, batch, accept_length = axes()
    answer = wmtp_sim.estimate(
        "qwen3.5-35b-a3b",
        "h200",
        context=context,
        depth=depth,
        window=window,
        batch=batch,
        accept_length=accept_length,
        engine=engine,
    )
    return {policy: result.speedup for policy, result in answer.policies.items()}


def multiply_add_seconds():
    a, b = np.random.default_rng(0).random((2, POINTS))
    runs = []
    for _ in range(9):
        start = time.perf_counter()
        a * b + a
        runs.append(time.perf_counter() - start)
    return sorted(runs)[4]


@pytest.mark.parametrize("engine", ["ideal", "sglang"])
def test_a_million_points(benchmark, engine):
    found = benchmark(speedups, engine)
    assert found["ring"].size == POINTS
    if benchmark.stats is not None:
        median = benchmark.stats.stats.median
        ratio = median / multiply_add_seconds()
        print(f"\n{engine}: {POINTS / median / 1e6:.0f} million points/s, {ratio:.1f} x one multiply-add over as many")


def test_one_point(benchmark):
    assert benchmark(speedup_at_one_point) > 0


def speedup_at_one_point():
    answer = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", context=2**20, depth=6, accept_length=4.5)
    return float(answer.policies["ring"].speedup)
