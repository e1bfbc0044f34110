"""Grids hold their results and little else."""

import tracemalloc

import numpy as np

import wmtp_sim


def test_memory_grows_no_faster_than_the_grid():
    """A tenfold grid takes at most ten times the memory: nothing per point besides the results is kept."""

    def peak(lengths):
        context, depth, batch, alpha = wmtp_sim.open_grid(
            np.geomspace(4096, 2**20, 20).astype(int), range(1, 9), range(1, 9), np.linspace(0, 1, lengths)
        )
        tracemalloc.start()
        answer = wmtp_sim.estimate(
            "qwen3.5-35b-a3b", "h200", context=context, depth=depth, batch=batch, alpha=alpha, engine="sglang"
        )
        speedup = answer.policies["ring"].speedup
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most, speedup.size

    (small, few), (large, many) = peak(20), peak(200)
    assert many == 10 * few
    assert large <= 10 * small
