"""How long one launch takes inside a CUDA graph: medians over replays, inputs rotated through more than the L2.

On a GPU a graph of back-to-back launches is captured once and replayed: what a step pays per kernel, gap included.
Every launch in it works on another set of inputs, so that none finds its bytes in the cache. On a CPU the
same launches run in a plain loop, so that everything around them can be exercised anywhere.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: Launches per graph: enough to hide the graph's own start, few enough to capture quickly.
GRAPH_LAUNCHES = 20
#: Rotated inputs hold at least this many times the L2.
L2_TIMES = 3.0
MIN_REPLAYS = 5
#: Graphs and launches in each that are captured before anything is timed: see `settle_graphs`.
SETTLING_GRAPHS, SETTLING_LAUNCHES = 12, 1000


@dataclass(frozen=True)
class Sample:
    """Seconds of one execution: median and spread over replays."""

    seconds: float
    p10: float
    p90: float
    replays: int

    def figures(self) -> dict[str, float]:
        """As a measurement keeps them."""
        return {"seconds": self.seconds, "p10": self.p10, "p90": self.p90, "replays": self.replays}

    @property
    def noise(self) -> float:
        """Half the 10-90 % range over the median."""
        return (self.p90 - self.p10) / (2 * self.seconds)


def input_sets(set_bytes: int, l2_bytes: int, free_bytes: int) -> int:
    """How many input sets to rotate: at least ``L2_TIMES`` the L2 in all, within 40 % of free memory, at most 64."""
    wanted = math.ceil(L2_TIMES * l2_bytes / max(set_bytes, 1)) + 1
    affordable = int(0.4 * free_bytes / max(set_bytes, 1))
    return max(1, min(wanted, affordable, 64))


def warm_up(device: torch.device, seconds: float = 3.0) -> None:
    """Bring a GPU to its working clocks and heat, and the process's graphs to how they run in a server."""
    if device.type != "cuda":
        return
    settle_graphs(device)
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        for _ in range(10):
            torch.mm(a, b)
            b.copy_(a)
        torch.cuda.synchronize(device)


@functools.cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that a GPU's graphs are captured on. Torch's own default belongs to the GPU it first captured on."""
    return torch.cuda.Stream(device)


def captured(launch: Callable[[int], object], count: int, device: torch.device, **options: Any) -> torch.cuda.CUDAGraph:
    """A graph of ``launch(0)`` to ``launch(count - 1)``, of which it holds only addresses. options: torch's own."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=capture_stream(device), **options):
        for i in range(count):
            launch(i)
    return graph


def settle_graphs(device: torch.device) -> None:
    """Bring a process to where a server's is after it has captured its graphs.

    Once about 3,000 launches have been captured, each launch of every graph of the process, old or new, starts 0.2 to
    0.4 us later, for good; kernels themselves take as long as before (driver 580, two H200s, 2026-11-30: gaps of a step
    of 1,029 launches grow from 0.11 to 0.47 ms). An engine captures many times that before it serves.
    """
    if device.type != "cuda":
        return
    x = torch.zeros(1, device=device)
    for _ in range(SETTLING_GRAPHS):
        captured(lambda _: x.add_(1), SETTLING_LAUNCHES, device).replay()
    torch.cuda.synchronize(device)


def measure(launch: Callable[[int], object], sets: int, device: torch.device, budget_s: float) -> Sample:
    """Time ``launch(i)`` for input sets i = 0..sets-1, within about ``budget_s`` seconds.

    The launch must be capturable: fixed shapes, preallocated outputs, no host synchronisation.
    """
    for i in range(min(sets, 3)):
        launch(i)
    if device.type != "cuda":
        return _measure_loop(launch, sets, budget_s)
    torch.cuda.synchronize(device)
    count = sets * max(1, GRAPH_LAUNCHES // sets)
    return _measure_replays(captured(lambda i: launch(i % sets), count, device), count, budget_s)


def _measure_replays(graph: torch.cuda.CUDAGraph, count: int, budget_s: float) -> Sample:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def replay() -> float:
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / count

    graph.replay()
    first = replay()
    replays = max(MIN_REPLAYS, min(200, int(budget_s / max(first * count, 1e-6))))
    return summary([replay() for _ in range(replays)])


def _measure_loop(launch: Callable[[int], object], sets: int, budget_s: float) -> Sample:
    """The faster half of plain calls: on a CPU, whatever else runs interrupts the rest."""
    times: list[float] = []
    deadline = time.perf_counter() + budget_s
    while len(times) < MIN_REPLAYS or (time.perf_counter() < deadline and len(times) < 200):
        begin = time.perf_counter()
        launch(len(times) % sets)
        times.append(time.perf_counter() - begin)
    return summary(sorted(times)[: max(MIN_REPLAYS, len(times) // 2)])


def summary(times: Sequence[float]) -> Sample:
    """The median of replays and what a tenth of them is below or above."""
    tenths = statistics.quantiles(times, n=10, method="inclusive")
    return Sample(statistics.median(times), tenths[0], tenths[-1], len(times))
