"""Run every kernel at the shapes of real models: right against its reference, and roughly how fast in a CUDA graph.

    python -m calibration.check_kernels --out checks.json

One line per kernel. A failure is a line too and never ends the run. TB/s counts the bytes that the cost model counts,
or for kernels that no calibration measures the fewest that they must move; inputs rotate through more than the L2,
except where 64 sets are still smaller. ``--tiny`` shrinks everything, to walk through the same code on a CPU.
"""

from __future__ import annotations

import argparse
import math
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibration.bench import fused
from calibration.case import Case, Device, checked
from calibration.cases import build
from calibration.kernels import gemm, recurrent, references, small
from calibration.plan import REPRESENTATIVE, K, M, Point, plan, point
from calibration.report import Report
from calibration.timing import measure
from wmtp_sim.catalog.models import load_model
from wmtp_sim.work.operation import Operation

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
F32, I32, I64 = torch.float32, torch.int32, torch.int64
#: What one error of a case may be here: Triton's interpreter truncates to bf16 where a GPU rounds.
ROUNDING = 1.0 if DEVICE.type == "cuda" else 3.0
#: Seconds of replays behind one figure, and after how many seconds the remaining kernels are left out.
BUDGET_S, DEADLINE_S = 0.02, 105.0
#: Most of a size with ``--tiny``.
TINY = {
    "rows": 3, "batch": 2, "hidden": 64, "vocab": 500, "n": 48, "k": 64, "experts": 6, "top_k": 2, "inner": 48,
    "width": 64, "context": 70, "heads": 8, "k_heads": 2, "v_heads": 4, "k_dim": 32, "v_dim": 16, "groups": 2,
    "head_dim": 32, "state_dim": 32, "q_heads": 4, "kv_heads": 2, "rotary": 16, "layers": 2, "size": 4096, "kib": 4,
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One kernel on one set of inputs: the fewest ``bytes`` it must move, and what `calibration.case.checked` takes."""

    launch: Callable[[], object]
    outputs: list[Tensor]
    expected: Callable[[], list[Tensor]]
    bytes: float
    updated: tuple[Tensor, ...] = ()
    also: Callable[[], bool] = lambda: True  # what else must hold after a run


@dataclass(frozen=True)
class Entry:
    """A kernel to check at a point: one of a calibration's, or another, whose calls are made by ``call``."""

    name: str
    point: Point
    call: Callable[..., Call] | None = None

    def case(self, where: Device) -> Case:
        if self.call is None:
            return build(self.point, where)
        made = partial(self.call, where, **dict(self.point.sizes))
        first = made()
        calls = [first, *(made() for _ in range(where.rotate(first.bytes) - 1))]
        operation = Operation(self.name, "elementwise", activations=sum(call.bytes for call in calls) / len(calls))

        def launch(i: int) -> object:
            return calls[i].launch()

        def check() -> float:
            error = checked(launch, first.outputs, first.expected, first.updated)
            return error if first.also() else math.inf

        return Case(operation, launch, len(calls), check, 1e-2)


@dataclass(frozen=True)
class Result:
    """A line of the report. ``error`` is the largest of all outputs'; ``failure`` is empty when all is well."""

    name: str
    error: float = 0.0
    microseconds: float = 0.0
    noise: float = 0.0
    terabytes_per_second: float = 0.0
    sets: int = 0
    failure: str = ""


def size_of(*tensors: Tensor) -> float:
    """Bytes of all tensors together."""
    return float(sum(t.nbytes for t in tensors))


# --- kernels that no calibration measures ----------------------------------------------------------------------


def batched(where: Device, heads: int, rows: int, k: int, n: int) -> Call:
    x, out = where.randn(rows, heads, k).transpose(0, 1), where.empty(rows, heads, n).transpose(0, 1)
    weight = where.randn(heads, k, n, scale=k**-0.5)
    expected = partial(references.batched, x, weight)
    return Call(lambda: gemm.batched(x, weight, out), [out], lambda: [expected()], size_of(x, weight, out))


def lm_head(where: Device, rows: int, hidden: int, vocab: int) -> Call:
    x, weight = where.randn(rows, hidden), where.randn(vocab, hidden, scale=hidden**-0.5)
    logits, best = where.empty(rows, vocab), where.empty(rows, dtype=I64).zero_()
    return Call(
        lambda: gemm.lm_head(x, weight, logits, best),
        [logits],
        lambda: [references.dense(x, weight)],
        size_of(x, weight, logits),
        also=lambda: torch.equal(logits.gather(1, best[:, None])[:, 0], logits.amax(1)),
    )


def fla_delta_rule(where: Device, rows: int, k_heads: int, v_heads: int, k_dim: int, v_dim: int, kda: int) -> Call:
    """fla-core's own, which allocates what it returns: copied to where the check looks."""
    q, k = (where.randn(1, rows, k_heads, k_dim) for _ in range(2))
    v, beta = where.randn(1, rows, v_heads, v_dim), torch.rand(1, rows, v_heads, device=where.device)
    decay = -torch.rand((1, rows, v_heads, k_dim) if kda else (1, rows, v_heads), device=where.device)
    state = where.randn(1, v_heads, k_dim, v_dim, dtype=F32)
    inputs, out, last = (q, k, v, decay, beta, state, k_dim**-0.5), torch.empty_like(v), torch.empty_like(state)

    def launch() -> None:
        for target, found in zip((out, last), recurrent.fla_delta_rule(*inputs), strict=True):
            target.copy_(found)

    def expected() -> list[Tensor]:
        outs, states = references.delta_rule(*inputs)
        return [outs, states[:, -1]]

    return Call(launch, [out, last], expected, size_of(q, k, v, decay, beta, state, out, last))


def add_rms_norm(where: Device, rows: int, hidden: int) -> Call:
    x, residual, out = (where.randn(rows, hidden) for _ in range(3))
    weight = where.randn(hidden)

    def expected() -> list[Tensor]:
        total = x.double() + residual.double()
        return [references.rms_norm(total, weight, 1e-6), total]

    launch = partial(small.add_rms_norm, x, residual, weight, out)
    return Call(launch, [out], expected, size_of(x, residual, residual, weight, out), (residual,))


def rope(where: Device, rows: int, q_heads: int, kv_heads: int, head_dim: int, rotary: int, context: int) -> Call:
    q, k, v = (where.randn(rows, heads, head_dim) for heads in (q_heads, kv_heads, kv_heads))
    angle = torch.rand(context, rotary // 2, device=where.device) * 6.28
    cos_sin = torch.cat([angle.cos(), angle.sin()], 1)
    positions = torch.randint(0, context, (rows,), device=where.device)
    slots = torch.randperm(context, device=where.device)[:rows]
    q_out, k_cache, v_cache = torch.empty_like(q), *(where.empty(context, kv_heads, head_dim).zero_() for _ in range(2))

    def expected() -> list[Tensor]:
        turned, caches = [references.rope(x, cos_sin, positions) for x in (q, k)], [k_cache.double(), v_cache.double()]
        caches[0][slots], caches[1][slots] = turned[1], v.double()
        return [turned[0], *caches]

    launch = partial(small.rope_and_cache, q, k, v, cos_sin, positions, slots, q_out, k_cache, v_cache)
    return Call(launch, [q_out], expected, 2 * size_of(q, k, v), (k_cache, v_cache))


def router(where: Device, rows: int, experts: int, top_k: int) -> Call:
    logits = torch.rand(rows, experts, device=where.device).argsort(-1).float() * 0.01  # no ties
    ids, weights = where.empty(rows, top_k, dtype=I32), where.empty(rows, top_k, dtype=F32)
    return Call(
        lambda: small.router(logits, ids, weights),
        [ids, weights],
        lambda: list(references.router(logits, top_k)),
        size_of(logits, ids, weights),
    )


def accept(where: Device, batch: int, rows: int) -> Call:
    best = torch.randint(0, 2, (batch, rows), device=where.device)
    draft = torch.randint(0, 2, (batch, rows - 1), device=where.device)
    accepted, tokens = where.empty(batch, dtype=I32), torch.empty_like(best)
    return Call(
        lambda: small.accept(draft, best, accepted, tokens),
        [accepted, tokens],
        lambda: list(references.accept(draft, best)),
        size_of(best, draft, accepted, tokens),
    )


def commit(where: Device, layers: int, batch: int, rows: int, size: int) -> Call:
    """A state per layer, with the inputs of a small convolution."""
    snapshots, state = where.randn(layers, batch, rows, size, dtype=F32), where.empty(layers, batch, size, dtype=F32)
    columns, conv = where.randn(layers, batch, 3 + rows, 16), where.empty(layers, batch, 3, 16)
    accepted = torch.randint(0, rows, (batch,), dtype=I32, device=where.device)
    launch = partial(fused.commit, snapshots, columns, accepted, state, conv)
    return Call(launch, [state], lambda: [references.commit(snapshots, accepted)], 2 * size_of(state))


# --- what is run -----------------------------------------------------------------------------------------------


def measured_entries() -> list[Entry]:
    """A quick calibration's points, experts with every pair alone, and other tiles of absorbed attention."""
    points = plan([load_model(name) for name in REPRESENTATIVE], quick=True)
    whole = (("checked", M),)  # absorbed attention over all of its tokens
    points += [replace(one, variant="paired") for one in points if one.kernel == "moe"]
    for heads, rows in ((128, 1), (128, 4), (16, 1), (16, 4)):
        for tile in ({"block": 64, "stages": 2}, {"block": 16, "stages": 4}):
            points.append(point("mla", "triton_packed", heads=heads, context=128 * K, rows=rows, batch=1, **tile))
    return [Entry(one.key, replace(one, sizes=(*one.sizes, *(whole if one.kernel == "mla" else ())))) for one in points]


def other_entries() -> Iterator[Entry]:
    """What no calibration measures, most of it at the sizes of Qwen3.5-35B."""
    for name, k, n in (("k_up", 128, 512), ("v_up", 512, 128)):
        yield Entry(f"bmm DeepSeek-V3 {name}, 4 rows", point("gemm", "bmm", heads=128, rows=4, k=k, n=n), batched)
    for model, rows, hidden, vocab in (
        ("Qwen", 1, 2048, 248320),
        ("Qwen", 4, 2048, 248320),
        ("Llama", 1, 4096, 128256),
    ):
        one = point("gemm", "lm_head", rows=rows, hidden=hidden, vocab=vocab)
        yield Entry(f"lm_head {model}, {rows} rows", one, lm_head)
    if recurrent.fla_available():
        for name, k_heads, kda in (("GDN", 16, 0), ("KDA", 32, 1)):
            for rows in (1, 4):
                one = point("recurrent", "fla", rows=rows, k_heads=k_heads, v_heads=32, k_dim=128, v_dim=128, kda=kda)
                yield Entry(f"{name} by fla-core, 1 x {rows} rows", one, fla_delta_rule)
    yield Entry("add_rms_norm 2048, 4 rows", point("elementwise", "add_norm", hidden=2048, rows=4), add_rms_norm)
    qwen = {"q_heads": 16, "kv_heads": 2, "head_dim": 256, "rotary": 64, "context": 65536, "rows": 4}
    yield Entry("rope and cache, 4 rows", point("elementwise", "rope", **qwen), rope)
    for experts, top_k in ((256, 8), (512, 22)):
        one = point("elementwise", "router", rows=4, experts=experts, top_k=top_k)
        yield Entry(f"router {experts} top {top_k}, 4 rows", one, router)
    yield Entry("accept, 16 x 4 rows", point("sample", "accept", batch=16, rows=4), accept)
    yield Entry("commit, 30 layers", point("copy", "commit", layers=30, batch=1, rows=4, size=524288), commit)


# --- running ---------------------------------------------------------------------------------------------------


def shrunk(entry: Entry) -> Entry:
    """The entry with no size above `TINY`."""
    sizes = dict(entry.point.sizes) | ({"latent": 32, "rope": 16} if entry.point.kernel == "mla" else {})
    tiny = tuple((name, min(value, TINY.get(name, value))) for name, value in sizes.items())
    return replace(entry, point=replace(entry.point, sizes=tiny))


def run(entry: Entry, where: Device) -> Result:
    """Check and time one kernel; whatever goes wrong becomes the result."""
    error = 0.0
    try:
        case = entry.case(where)
        error, limit = case.check(), case.tolerance * ROUNDING
        failure = "" if error <= limit else f"error {error} beyond {limit}"  # NaN fails too
        sample = measure(case.launch, case.sets, where.device, BUDGET_S)
        speed = float(np.asarray(case.operation.bytes)) / sample.seconds * 1e-12
        return Result(entry.name, error, sample.seconds * 1e6, sample.noise, speed, case.sets, failure)
    except Exception as problem:
        return Result(entry.name, error, failure=f"{problem!r}\n{traceback.format_exc(limit=-4)}")


def line(result: Result) -> str:
    state = "FAILED " + result.failure.splitlines()[0][:150] if result.failure else "ok"
    speed = f"{result.microseconds:10.2f} us ±{100 * result.noise:3.0f}% {result.terabytes_per_second:7.3f} TB/s"
    return f"{result.name:72s} {result.error:8.1e} {speed} {result.sets:3d} sets  {state}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--only", default="", help="run only kernels whose name contains this")
    parser.add_argument("--tiny", action="store_true", help="shrink every size, as for a CPU")
    options = parser.parse_args()
    torch.manual_seed(0)
    report = Report(options.out, DEVICE, DEADLINE_S, results=[])
    failed = []
    entries = [*other_entries(), *measured_entries()]
    if options.tiny:  # many shapes are one then
        entries = list({entry.point: entry for entry in map(shrunk, entries)}.values())
    for entry in entries:
        if options.only not in entry.name:
            continue
        if report.late:
            result = Result(entry.name, failure=f"not run: {DEADLINE_S:.0f} s are over")
        else:
            result = run(entry, Device.of(DEVICE))
        failed += [entry.name] if result.failure else []
        print(line(result), flush=True)
        report.add("results", asdict(result))
    print(f"{len(report.document['results']) - len(failed)} passed, {len(failed)} failed, {report.elapsed:.0f} s")
    for name in failed:
        print(f"  failed: {name}")


if __name__ == "__main__":
    main()
