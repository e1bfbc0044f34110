"""Times the phases of whole decode steps, so that predictions can be held against them.

    python -m calibration.bench.run --model qwen3.5-35b-a3b --contexts 4K,128K,1M --depths 1,3,6 --out steps.json

Every phase is one CUDA graph; phases that several points share (a verify does not depend on the draft policy) are
measured once. The lists of cache slots that a phase attends are built at its start, and are part of its time.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from triton.errors import TritonError

from calibration.bench.layers import UnsupportedError
from calibration.bench.model import Demand, Phases, Stack, fitting_repeats, step_launches
from calibration.bench.passes import Place
from calibration.environment import condition, environment
from calibration.kernels.attention import INTERPRETED
from calibration.timing import Sample, captured, summary, warm_up
from calibration.writing import write_whole
from wmtp_sim.catalog.models import load_model
from wmtp_sim.catalog.systems import load_system, standard_systems
from wmtp_sim.cli.ranges import counting, doubling, whole
from wmtp_sim.errors import InputError
from wmtp_sim.spec.model import Model

SCHEMA = "wmtp-steps/1"
MIN_REPLAYS, MAX_REPLAYS = 10, 100
#: Systems of a chain that its own head drafts.
POLICIES = tuple(each.name for each in standard_systems("mtp"))
#: Seconds of replays behind one figure.
PHASE_BUDGET_S = 0.2
#: Short phases are captured several times in a row, so that the GPU never waits for the host between replays.
COPIES = {"sample": 10, "lists": 10}
#: Phases whose time grows with the number of layers: extrapolated where the model was built in part.
LAYERED = ("base", "verify", "sample")


@dataclass(frozen=True)
class Point:
    """One step. Windowed policies attend ``sink`` first and ``window`` last committed tokens."""

    context: int
    depth: int
    batch: int = 1
    window: int = 4032
    sink: int = 64
    policy: str = POLICIES[0]

    @property
    def narrow(self) -> tuple[int, int] | None:
        """(window, sink) of narrow draft passes; None is the whole context."""
        return self._window(load_system(self.policy).cache.bounded)

    @property
    def wide(self) -> tuple[int, int] | None:
        """The same of the pass over the rows just verified."""
        return self._window(load_system(self.policy).cache.bounded_everywhere)

    def _window(self, bounded: bool) -> tuple[int, int] | None:
        return (self.window, self.sink) if bounded else None


@dataclass(frozen=True)
class Timed(Sample):
    """What an execution takes; ``again`` runs it once more, without waiting."""

    again: Callable[[], None]


# --- timing ----------------------------------------------------------------------------------------------------


def timed(function: Callable[[], None], device: torch.device, budget_s: float, copies: int = 1) -> Timed:
    """Times a sequence of launches: captured ``copies`` times in a CUDA graph, or called as it is on a CPU."""
    if device.type != "cuda":
        return Timed(**vars(summary(list(_loop(function, budget_s)))), again=function)
    function()
    torch.cuda.synchronize(device)
    graph = replayed(function, device, copies)
    once = replayed(function, device) if copies > 1 else graph
    each = [seconds / copies for seconds in _replays(graph, budget_s)]
    return Timed(**vars(summary(each)), again=once)


def replayed(function: Callable[[], None], device: torch.device, copies: int = 1) -> Callable[[], None]:
    """What replays a CUDA graph of ``function``. The function is kept: the graph holds only addresses."""
    graph = captured(lambda _: function(), copies, device)

    def replay(_: Callable[[], None] = function) -> None:
        graph.replay()

    return replay


def _replays(replay: Callable[[], None], budget_s: float) -> list[float]:
    """Seconds between events around replays that follow one another at once; the first finds the GPU idle."""
    replay()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    replay()
    torch.cuda.synchronize()
    once = time.perf_counter() - begin
    count = max(MIN_REPLAYS, min(MAX_REPLAYS, int(budget_s / once)))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 2)]
    for mark in marks[:-1]:
        mark.record()
        replay()
    marks[-1].record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) * 1e-3 for a, b in pairwise(marks[1:])]


def _loop(function: Callable[[], None], budget_s: float) -> Iterator[float]:
    deadline = time.perf_counter() + budget_s
    for count in range(MAX_REPLAYS):
        if count >= 2 and time.perf_counter() > deadline:
            return
        begin = time.perf_counter()
        function()
        yield time.perf_counter() - begin


def wall_clock(parts: Sequence[Callable[[], None]], result: torch.Tensor, budget_s: float) -> float:
    """Median seconds of an iteration: the parts launched one after the other, then ``result`` read by the host."""
    host = torch.empty(result.shape, dtype=result.dtype, pin_memory=result.is_cuda)

    def iteration() -> float:
        begin = time.perf_counter()
        for part in parts:
            part()
        host.copy_(result, non_blocking=True)
        if result.is_cuda:
            torch.cuda.current_stream().synchronize()
        return time.perf_counter() - begin

    once = iteration()
    if not result.is_cuda:
        return once
    count = max(MIN_REPLAYS, min(MAX_REPLAYS, int(budget_s / once)))
    return statistics.median(iteration() for _ in range(count))


# --- one model -------------------------------------------------------------------------------------------------


@dataclass
class Bench:
    """A built model and what was measured on it, by phase and shape."""

    stack: Stack
    budget_s: float = PHASE_BUDGET_S
    known: dict[Any, Timed] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.stack.place.device

    def measure(self, point: Point) -> dict[str, Any]:
        """All phases of one step, with and without speculation: see `measure_steps`."""
        result: dict[str, Any] = asdict(point) | {"phases": {}, "experts": {}, "kernels": {}, "host": {}}
        self._add(result, point, self._phases(point, depth=0))
        if point.depth:
            self._add(result, point, self._phases(point, point.depth))
        return result

    def _add(self, result: dict[str, Any], point: Point, phases: Phases) -> None:
        """Measures a step with or without speculation into a point's results."""
        measured = {name: self._timed(name, phases, point) for name in phases.available}
        figures = {name: self._figures(name, phases, point, found) for name, found in measured.items()}
        parts = [found.again for found in measured.values()]
        seconds = wall_clock(parts, phases.tokens, self.budget_s)
        seam = seconds - sum(found.seconds for found in measured.values())
        result["experts"] |= self._experts(phases)  # of the iteration just run
        kind = "step" if phases.depth else "base"
        result["host"] |= {f"{kind}_iteration_s": seconds, f"{kind}_seam_s": seam}
        result["kernels"] |= step_launches(phases)
        result["phases"] |= figures
        if phases.depth:
            result["step_s"] = sum(figure["seconds"] for figure in figures.values())
            result["phases"]["lists"] = self._timed("lists", phases, point).figures()

    def _phases(self, point: Point, depth: int, repeats: int | None = None) -> Phases:
        return Phases(self.stack, point.context, point.batch, depth, point.narrow, point.wide, repeats)

    def _timed(self, name: str, phases: Phases, point: Point, variant: str = "") -> Timed:
        """A phase's time, measured unless another point had the same phase."""
        windows = {"draft": point.narrow, "extend": point.wide, "lists": (point.narrow, point.wide)}
        key = (name, point.context, point.batch, phases.depth, windows.get(name), variant)
        if key not in self.known:
            function = phases.build_lists if name == "lists" else phases.available[name]
            self.known[key] = timed(function, self.device, self.budget_s, COPIES.get(name, 1))
        return self.known[key]

    def _figures(self, name: str, phases: Phases, point: Point, measured: Timed) -> dict[str, float]:
        """Seconds of a phase in the whole model.

        Where it was built in part, t = a + b repeats from what was built and half of it (``built_s``, ``half_s``).
        """
        figures = measured.figures()
        built, whole_model = self.stack.repeats, self.stack.layout.repeats
        if name not in LAYERED or built == whole_model:
            return figures
        half = self._timed(name, self._phases(point, phases.depth, built // 2), point, "half").seconds
        per_repeat = (measured.seconds - half) / (built - built // 2)
        seconds = measured.seconds + per_repeat * (whole_model - built)
        return figures | {"seconds": seconds, "built_s": measured.seconds, "half_s": half}

    def _experts(self, phases: Phases) -> dict[str, list[int]]:
        """Distinct experts of each MoE layer in the last run of each phase (of the last narrow pass)."""
        stack, tokens = self.stack, phases.batch * phases.rows
        found = {"verify" if phases.depth else "base": stack.touched(phases.blocks, tokens)}
        if stack.head is not None and phases.wide is not None:
            found["extend"] = stack.touched(stack.head.blocks, tokens)
        if stack.head is not None and phases.narrow is not None:
            found["draft"] = stack.touched(stack.head.blocks, phases.batch)
        return found


def measure_steps(
    model: str | Model,
    points: Sequence[Point],
    device: torch.device,
    budget_s: float,
    *,
    memory_bytes: float = 120e9,
    repeats: int | None = None,
    skew: float = 0.0,
    dtype: torch.dtype = torch.bfloat16,
    phase_budget_s: float = PHASE_BUDGET_S,
    on_change: Callable[[dict[str, Any]], None] = lambda document: None,
) -> dict[str, Any]:
    """Builds a model and measures its steps; returns the document that `main` writes.

    Args:
        model: a catalogue name or a `Model`.
        points: what to measure. Their contexts share one cache of the largest size.
        device: a GPU, or a CPU with Triton's interpreter.
        budget_s: points not begun after so many seconds are skipped, building included.
        memory_bytes: what the build may take; fewer repeats of the layers are built where the model needs more.
        repeats: units of the model's layout to build, at most; None takes what fits.
        skew: exponent of a skewed expert routing; 0 lets the routers decide.
        dtype: of weights, caches and activations.
        phase_budget_s: of replays per phase, at least 10 replays apart.
        on_change: called with the document after the build and after every point.

    A point of the document holds, in seconds, ``phases``: base (whole step without speculation), draft (all narrow
    passes), verify, sample (argmax, acceptance, state commit), extend, and, contained in them, lists (all slot lists);
    ``step_s``, the sum of the speculative ones; ``host``: wall-clock iterations of separate graphs and their seams
    (of what was built); ``experts``: distinct experts per MoE layer; ``kernels``: launches by class.
    """
    begin = time.perf_counter()
    spec = load_model(model, "--model") if isinstance(model, str) else model
    torch.manual_seed(0)
    demand = demand_of(points)
    if device.type == "cuda":
        memory_bytes = min(memory_bytes, torch.cuda.mem_get_info(device)[0])
    fitting = fitting_repeats(spec, demand, memory_bytes, dtype.itemsize)
    stack = Stack(spec, Place(device, dtype), demand, min(fitting, repeats or fitting), skew)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "environment": environment(device).as_dict(),
        "condition": {"start": asdict(condition(device))},
        "model": spec.name,
        "engine": "bench/1",
        "built": built(stack, time.perf_counter() - begin),
        "notes": notes(stack, skew),
        "points": [],
    }
    on_change(document)
    warm_up(device)
    bench = Bench(stack, phase_budget_s)
    for point in points:
        document["points"].append(_attempt(bench, point, begin + budget_s))
        document["condition"]["end"] = asdict(condition(device))
        document["seconds"] = time.perf_counter() - begin
        on_change(document)
    return document


def _attempt(bench: Bench, point: Point, deadline: float) -> dict[str, Any]:
    """One point's results, or why there are none."""
    if time.perf_counter() > deadline:
        return asdict(point) | {"skipped": "time budget"}
    try:
        return bench.measure(point)
    except (RuntimeError, TritonError) as error:  # out of memory, or a kernel that does not fit this GPU
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()
        first_line = (str(error).splitlines() or [""])[0]
        return asdict(point) | {"error": f"{type(error).__name__}: {first_line[:200]}"}


def demand_of(points: Sequence[Point]) -> Demand:
    """Cache slots and positions for the largest point, and the shapes that keep states."""
    lengths = [(point.context + point.depth + 1, point.batch) for point in points]
    return Demand(
        slots=max(length * batch for length, batch in lengths),
        positions=max(length for length, _ in lengths),
        shapes=frozenset((point.batch, rows) for point in points for rows in (1, point.depth + 1)),
    )


def built(stack: Stack, seconds: float) -> dict[str, Any]:
    """What was built of the model, in words for people and numbers for programs."""
    units = [(block.count, [part.kind for part in (*block.mixers, *block.channels)]) for block in stack.layout.unit]
    return {
        "repeats": stack.repeats,
        "of": stack.layout.repeats,
        "unit": [f"{count} x {'+'.join(kinds)}" for count, kinds in units],
        "fixed_layers": len(stack.fixed),
        "dtype": str(stack.place.dtype).removeprefix("torch."),
        "slots": stack.demand.slots,
        "seconds": seconds,
    }


def notes(stack: Stack, skew: float) -> list[str]:
    """What a reader must know before comparing."""
    model = stack.model
    found = [
        "weights, KV and activations are random and of the stated dtype, whatever the checkpoint's format: predict so",
        "cache slots lie in order; lists are built in every phase",
        "positions and write slots of a step are constants",
        f"routing: {f'skewed, exponent {skew}' if skew else 'by the routers, with random weights'}",
    ]
    if stack.repeats < stack.layout.repeats:
        found.append(
            f"{stack.repeats} of {stack.layout.repeats} units were built: {', '.join(LAYERED)} are extrapolated "
            f"linearly from {stack.repeats} and {stack.repeats // 2} units, host seams are not"
        )
    if model.state_dtype_bytes != 4:
        found.append("recurrent states are float32, the model's are not")
    if model.mtp is None:
        found.append("the model has no MTP head: no draft and extend phases")
    return found


# --- the command -----------------------------------------------------------------------------------------------


def row(result: dict[str, Any]) -> str:
    """A line of the table: milliseconds."""
    shape = f"{result['context']:>9} {result['depth']:>2} {result['batch']:>3} {result['policy']:>6}"
    if "phases" not in result:
        return f"{shape}  {result.get('error') or result['skipped']}"
    phases, host = result["phases"], result["host"]
    figures = [
        phases.get(name, {}).get("seconds", math.nan) for name in ("base", "draft", "verify", "sample", "extend")
    ]
    figures += [result.get("step_s", math.nan), host.get("step_seam_s", math.nan), host["base_seam_s"]]
    return shape + "".join("        –" if math.isnan(figure) else f"{figure * 1e3:9.3f}" for figure in figures)


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="calibration.bench.run", description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="catalogue name, config.json or folder")
    parser.add_argument("--contexts", default="4K,128K,1M", help="committed tokens, as in 4096,128K,1M")
    parser.add_argument("--depths", default="1,3,6")
    parser.add_argument("--batches", default="1")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--window", default="4032")
    parser.add_argument("--sink", default="64")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget-s", type=float, default=150.0)
    parser.add_argument("--memory-gb", type=float, default=120.0)
    parser.add_argument("--repeats", type=int, help="units of the model's layers to build, at most")
    parser.add_argument("--skew", type=float, default=0.0, help="exponent of a skewed expert routing")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args(words)


def points_of(asked: argparse.Namespace) -> list[Point]:
    """Every combination, the contexts outermost."""
    policies = asked.policies.split(",")
    for policy in policies:
        if policy not in POLICIES:
            raise InputError("--policies", f"unknown policy {policy[:40]!r}", f"of {', '.join(POLICIES)}")
    window, sink = whole(asked.window, "--window"), whole(asked.sink, "--sink")
    return [
        Point(context, depth, batch, window, sink, policy)
        for context in doubling(asked.contexts, "--contexts")
        for batch in counting(asked.batches, "--batches")
        for depth in counting(asked.depths, "--depths")
        for policy in (policies if depth else policies[:1])
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Measures, prints a table in milliseconds, and writes the document as it grows."""
    asked = arguments(words)

    def changed(document: dict[str, Any]) -> None:
        write_whole(asked.out, json.dumps(document, indent=1) + "\n")
        if document["points"]:
            print(row(document["points"][-1]), flush=True)
            return
        build = document["built"]
        print(f"{document['model']}: {build['repeats']} of {build['of']} units built in {build['seconds']:.1f} s")
        print("  context  d   b policy     base    draft   verify   sample   extend     step    seam base seam")

    try:
        if asked.device == "cpu" and not INTERPRETED:
            raise InputError("--device", "no GPU", "TRITON_INTERPRET=1 walks tiny models through the code on a CPU")
        measure_steps(
            asked.model,
            points_of(asked),
            torch.device(asked.device),
            asked.budget_s,
            memory_bytes=asked.memory_gb * 1e9,
            repeats=asked.repeats,
            skew=asked.skew,
            on_change=changed,
        )
    except (InputError, UnsupportedError, torch.OutOfMemoryError) as error:
        print(f"calibration.bench.run: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
