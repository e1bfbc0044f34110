"""Run every kernel at the shapes of real models: right against float64, and roughly how fast inside a CUDA graph.

    python -m calibration.check_kernels --out checks.json

One line per kernel. A failure is a line too and never ends the run. TB/s counts the fewest bytes that the kernel must
move (each touched expert once, each state read once and written as asked); inputs rotate through more than the L2,
except where 64 sets are still smaller. ``--tiny`` shrinks everything, to walk through the same code on a CPU.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibration.bench import fused
from calibration.environment import environment
from calibration.kernels import gemm, mla, moe, recurrent, references, small
from calibration.kernels.references import relative_error
from calibration.timing import input_sets, measure

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BF16, F32, I32, I64 = torch.bfloat16, torch.float32, torch.int32, torch.int64
#: Triton's interpreter truncates to bf16 where a GPU rounds.
TOLERANCE = {BF16: 1e-2 if DEVICE.type == "cuda" else 3e-2, F32: 1e-4, I32: 0.0, I64: 0.0, torch.uint8: 0.0}
#: Seconds of replays behind one figure, and after how many seconds the remaining kernels are left out.
BUDGET_S, DEADLINE_S = 0.02, 105.0
#: Most of a size with ``--tiny``.
TINY = {
    "rows": 3, "sequences": 2, "hidden": 64, "vocab": 500, "n": 48, "k": 64, "experts": 6, "top_k": 2, "inner": 48,
    "context": 70, "heads": 8, "k_heads": 2, "v_heads": 4, "k_dim": 32, "v_dim": 16, "groups": 2, "channels": 80,
    "head_dim": 32, "q_heads": 4, "kv_heads": 2, "rotary": 16, "layers": 2, "size": 4096,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One kernel on one set of inputs.

    Attributes:
        launch: runs it; can be captured.
        outputs: what it wrote, by the time it is asked.
        expected: the same in float64, from the inputs as they are before the launch.
        poison: outputs that it must overwrite whole.
        bytes: the fewest it must move.
    """

    launch: Callable[[], object]
    outputs: Callable[[], list[Tensor]]
    expected: Callable[[], list[Tensor]]
    poison: tuple[Tensor, ...] = ()
    bytes: float = 0.0


@dataclass(frozen=True)
class Entry:
    """A kernel to check: who builds its case, and with which sizes."""

    name: str
    build: Callable[..., Case]
    sizes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """A line of the report. ``errors`` are relative, one per output; ``failure`` is empty when all is well."""

    name: str
    errors: tuple[float, ...] = ()
    microseconds: float = 0.0
    noise: float = 0.0
    terabytes_per_second: float = 0.0
    sets: int = 0
    failure: str = ""


# --- inputs ----------------------------------------------------------------------------------------------------


def normal(*shape: int, dtype: torch.dtype = BF16, scale: float = 1.0) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=DEVICE).normal_(0.0, scale)


def empty(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=DEVICE)


def size_of(*tensors: Tensor) -> float:
    """Bytes of all tensors together."""
    return float(sum(t.numel() * t.element_size() for t in tensors))


# --- matrix products -------------------------------------------------------------------------------------------


def dense(rows: int, n: int, k: int) -> Case:
    x, weight, out = normal(rows, k), normal(n, k, scale=k**-0.5), empty(rows, n)
    return Case(
        lambda: gemm.dense(x, weight, out),
        lambda: [out],
        lambda: [references.dense(x, weight)],
        (out,),
        size_of(x, weight, out),
    )


def fp8_dense(rows: int, n: int, k: int) -> Case:
    x, scale_x = gemm.quantize(normal(rows, k))
    weight, scale_weight = gemm.quantize(normal(n, k, scale=k**-0.5))
    out = empty(gemm.padded_rows(rows), n)
    return Case(
        lambda: gemm.fp8_dense(x, weight, scale_x, scale_weight, out),
        lambda: [out],
        lambda: [references.fp8_dense(x, weight, scale_x, scale_weight)],
        (out,),
        size_of(x, weight, out),
    )


def batched(heads: int, rows: int, k: int, n: int) -> Case:
    x, weight, out = normal(rows, heads, k).transpose(0, 1), normal(heads, k, n, scale=k**-0.5), empty(rows, heads, n)
    return Case(
        lambda: gemm.batched(x, weight, out.transpose(0, 1)),
        lambda: [out.transpose(0, 1)],
        lambda: [references.batched(x, weight)],
        (out,),
        size_of(x, weight, out),
    )


def lm_head(rows: int, hidden: int, vocab: int) -> Case:
    x, weight = normal(rows, hidden), normal(vocab, hidden, scale=hidden**-0.5)
    logits, best = empty(rows, vocab), empty(rows, dtype=I64)
    return Case(
        lambda: gemm.lm_head(x, weight, logits, best),
        lambda: [logits, logits.gather(1, best[:, None])[:, 0] == logits.amax(1)],
        lambda: [references.dense(x, weight), torch.ones(rows, dtype=torch.bool, device=DEVICE)],
        (logits, best),
        size_of(x, weight, logits),
    )


@lru_cache(maxsize=1)
def expert_weights(experts: int, hidden: int, inner: int, gated: bool) -> tuple[Tensor, Tensor]:
    width = 2 * inner if gated else inner
    return normal(experts, width, hidden, scale=hidden**-0.5), normal(experts, hidden, inner, scale=inner**-0.5)


def routed(
    rows: int, top_k: int, experts: int, hidden: int, inner: int, gated: bool = True, paired: bool = False
) -> Case:
    """Experts with random routing. All cases of one model share their weights."""
    gate_up, down = expert_weights(experts, hidden, inner, gated)
    ids = torch.rand(rows, experts, device=DEVICE).topk(top_k, dim=-1).indices.int()
    weights, x, out = torch.softmax(normal(rows, top_k, dtype=F32), -1), normal(rows, hidden), empty(rows, hidden)
    workspace = moe.make_workspace(rows, top_k, gate_up, down)
    run = moe.paired if paired else moe.grouped
    return Case(
        lambda: run(x, gate_up, down, ids, weights, out, workspace),
        lambda: [out],
        lambda: [references.routed_experts(x, gate_up, down, ids, weights)],
        (out, workspace.inner, workspace.activated, workspace.outputs),
        ids.unique().numel() * size_of(gate_up[0], down[0]) + size_of(x, out),
    )


# --- attention and recurrences ---------------------------------------------------------------------------------


def latent_attention(
    sequences: int, rows: int, heads: int, context: int, latent: int = 512, rope: int = 64, **tile: int
) -> Case:
    q, cache = normal(sequences, rows, heads, latent + rope), normal(sequences * context, latent + rope)
    slots = torch.randperm(sequences * context, device=DEVICE).int().view(sequences, context)
    lengths = torch.full((sequences,), context, dtype=I32, device=DEVICE)
    out, scale = empty(sequences, rows, heads, latent), (latent + rope) ** -0.5
    splits = mla.choose_splits(sequences, rows * heads, environment(DEVICE).sm_count, context)
    workspace = mla.make_workspace(q, latent, splits)
    return Case(
        lambda: mla.attention(q, cache, slots, lengths, scale=scale, out=out, workspace=workspace, **tile),
        lambda: [out],
        lambda: [references.latent_attention(q, cache, slots, lengths, latent, scale)],
        (out, workspace.partial, workspace.lse),
        size_of(q, cache, slots, out),
    )


def _delta_inputs(
    sequences: int, rows: int, k_heads: int, v_heads: int, k_dim: int, v_dim: int, per_channel: bool
) -> tuple:
    gates = (sequences, rows, v_heads)
    return (
        normal(sequences, rows, k_heads, k_dim),
        normal(sequences, rows, k_heads, k_dim),
        normal(sequences, rows, v_heads, v_dim),
        -torch.rand((*gates, k_dim) if per_channel else gates, device=DEVICE),
        torch.rand(gates, device=DEVICE),
        normal(sequences, v_heads, k_dim, v_dim, dtype=F32),
        k_dim**-0.5,
    )


def delta_rule(per_channel: bool = False, snapshots: bool = False, fla: bool = False, **sizes: int) -> Case:
    inputs = _delta_inputs(**sizes, per_channel=per_channel)
    out, state, rows = torch.empty_like(inputs[2]), inputs[5], sizes["rows"]
    states = empty(sizes["sequences"], rows, *state.shape[1:], dtype=F32) if snapshots else None
    kept: list[Tensor] = []

    def launch() -> None:
        if fla:
            kept[:] = recurrent.fla_delta_rule(*inputs)
        else:
            recurrent.delta_rule(*inputs, out, states)

    def outputs() -> list[Tensor]:
        return kept if fla else [out, state if states is None else states]

    def expected() -> list[Tensor]:
        outs, all_states = references.delta_rule(*inputs)
        return [outs, all_states if snapshots else all_states[:, -1]]

    poison = (out,) if states is None else (out, states)
    moved = size_of(*inputs[:6], out) + size_of(state if states is None else states)
    return Case(launch, outputs, expected, () if fla else poison, moved)


def mamba2(
    sequences: int, rows: int, heads: int, head_dim: int, groups: int, k_dim: int, snapshots: bool = False
) -> Case:
    inputs = (
        normal(sequences, rows, heads, head_dim),
        normal(sequences, rows, heads),
        -torch.rand(heads, device=DEVICE),
        normal(sequences, rows, groups, k_dim),
        normal(sequences, rows, groups, k_dim),
        normal(heads, dtype=F32),
        normal(heads, dtype=F32),
        normal(sequences, heads, head_dim, k_dim, dtype=F32),
    )
    out, state = torch.empty_like(inputs[0]), inputs[7]
    states = empty(sequences, rows, *state.shape[1:], dtype=F32) if snapshots else None

    def expected() -> list[Tensor]:
        outs, all_states = references.mamba2(*inputs)
        return [outs, all_states if snapshots else all_states[:, -1]]

    return Case(
        lambda: recurrent.mamba2(*inputs, out, states),
        lambda: [out, state if states is None else states],
        expected,
        (out,) if states is None else (out, states),
        size_of(*inputs, out) + size_of(state if states is None else states),
    )


def short_conv(sequences: int, rows: int, channels: int, verify: bool = False) -> Case:
    x, state = normal(sequences, rows, channels), normal(sequences, 3, channels)
    weight, bias, out = normal(channels, 4), normal(channels), empty(sequences, rows, channels)
    columns = empty(sequences, 3 + rows, channels) if verify else None

    def expected() -> list[Tensor]:
        outs, seen = references.short_conv(x, state, weight, bias)
        return [outs, seen if verify else seen[:, rows:]]

    return Case(
        lambda: recurrent.short_conv(x, state, weight, bias, out, columns),
        lambda: [out, state if columns is None else columns],
        expected,
        (out,) if columns is None else (out, columns),
        size_of(x, state, weight, bias, out, state if columns is None else columns),
    )


# --- small kernels ---------------------------------------------------------------------------------------------


def rms_norm(rows: int, hidden: int) -> Case:
    x, weight, out = normal(rows, hidden), normal(hidden), empty(rows, hidden)
    return Case(
        lambda: small.rms_norm(x, weight, out),
        lambda: [out],
        lambda: [references.rms_norm(x, weight, 1e-6)],
        (out,),
        size_of(x, weight, out),
    )


def add_rms_norm(rows: int, hidden: int) -> Case:
    x, residual, weight, out = normal(rows, hidden), normal(rows, hidden), normal(hidden), empty(rows, hidden)

    def expected() -> list[Tensor]:
        total = x.double() + residual.double()
        return [total, references.rms_norm(total, weight, 1e-6)]

    return Case(
        lambda: small.add_rms_norm(x, residual, weight, out),
        lambda: [residual, out],
        expected,
        (out,),
        size_of(x, residual, residual, weight, out),
    )


def silu_mul(rows: int, inner: int) -> Case:
    gate_up, out = normal(rows, 2 * inner), empty(rows, inner)
    return Case(
        lambda: small.silu_mul(gate_up, out),
        lambda: [out],
        lambda: [references.silu_mul(gate_up)],
        (out,),
        size_of(gate_up, out),
    )


def rope(rows: int, q_heads: int, kv_heads: int, head_dim: int, rotary: int, context: int) -> Case:
    q, k, v = normal(rows, q_heads, head_dim), normal(rows, kv_heads, head_dim), normal(rows, kv_heads, head_dim)
    angle = torch.rand(context, rotary // 2, device=DEVICE) * 6.28
    cos_sin = torch.cat([angle.cos(), angle.sin()], 1)
    positions = torch.randint(0, context, (rows,), device=DEVICE)
    slots = torch.randperm(context, device=DEVICE)[:rows]
    q_out, k_cache, v_cache = torch.empty_like(q), *(empty(context, kv_heads, head_dim) for _ in range(2))
    return Case(
        lambda: small.rope_and_cache(q, k, v, cos_sin, positions, slots, q_out, k_cache, v_cache),
        lambda: [q_out, k_cache[slots], v_cache[slots]],
        lambda: [references.rope(q, cos_sin, positions), references.rope(k, cos_sin, positions), v],
        (q_out, k_cache, v_cache),
        2 * size_of(q, k, v),
    )


def router(rows: int, experts: int, top_k: int) -> Case:
    logits = torch.rand(rows, experts, device=DEVICE).argsort(-1).float() * 0.01  # no ties
    ids, weights = empty(rows, top_k, dtype=I32), empty(rows, top_k, dtype=F32)
    return Case(
        lambda: small.router(logits, ids, weights),
        lambda: [ids, weights],
        lambda: list(references.router(logits, top_k)),
        (ids, weights),
        size_of(logits, ids, weights),
    )


def nothing() -> Case:
    return Case(small.empty, list, list)


def copy(size: int) -> Case:
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    return Case(lambda: small.copy(source, target), lambda: [target], lambda: [source.clone()], (target,), 2.0 * size)


def argmax(rows: int, vocab: int) -> Case:
    logits, best = normal(rows, vocab), empty(rows, dtype=I64)
    return Case(
        lambda: small.argmax(logits, best),
        lambda: [logits.gather(1, best[:, None])],
        lambda: [logits.amax(1, keepdim=True)],
        (best,),
        size_of(logits),
    )


def accept(sequences: int, rows: int) -> Case:
    best = torch.randint(0, 2, (sequences, rows), device=DEVICE)
    draft = torch.randint(0, 2, (sequences, rows - 1), device=DEVICE)
    accepted, tokens = empty(sequences, dtype=I32), torch.empty_like(best)
    return Case(
        lambda: small.accept(draft, best, accepted, tokens),
        lambda: [accepted + 1, tokens],
        lambda: [references.accept(draft, best)[0] + 1, references.accept(draft, best)[1]],
        (accepted, tokens),
        size_of(best, draft, accepted, tokens),
    )


def commit(layers: int, sequences: int, rows: int, size: int) -> Case:
    snapshots, state = normal(layers, sequences, rows, size, dtype=F32), empty(layers, sequences, size, dtype=F32)
    accepted = torch.randint(0, rows, (sequences,), dtype=I32, device=DEVICE)
    columns, conv = normal(layers, sequences, 3 + rows, 16), empty(layers, sequences, 3, 16)
    return Case(
        lambda: fused.commit(snapshots, columns, accepted, state, conv),
        lambda: [state],
        lambda: [references.commit(snapshots, accepted)],
        (state,),
        2 * size_of(state),
    )


# --- what is run -----------------------------------------------------------------------------------------------


def matrix_entries() -> Iterator[Entry]:
    for rows in (1, 4, 16, 64):
        yield Entry(f"gemm Llama-8B gate_up, {rows} rows", dense, {"rows": rows, "n": 28672, "k": 4096})
    for rows in (1, 4):
        yield Entry(f"gemm Qwen3.5-35B qkv, {rows} rows", dense, {"rows": rows, "n": 9216, "k": 2048})
    yield Entry("gemm DeepSeek-V3 o_proj, 4 rows", dense, {"rows": 4, "n": 7168, "k": 16384})
    for rows in (1, 16, 64):
        yield Entry(f"gemm fp8 Llama-8B gate_up, {rows} rows", fp8_dense, {"rows": rows, "n": 28672, "k": 4096})
    yield Entry("bmm DeepSeek-V3 k_up, 4 rows", batched, {"heads": 128, "rows": 4, "k": 128, "n": 512})
    yield Entry("bmm DeepSeek-V3 v_up, 4 rows", batched, {"heads": 128, "rows": 4, "k": 512, "n": 128})
    for rows in (1, 4):
        sizes = {"rows": rows, "hidden": 2048, "vocab": 248320}
        yield Entry(f"lm_head Qwen3.5-35B, {rows} rows", lm_head, sizes)
    yield Entry("lm_head Llama-8B, 1 row", lm_head, {"rows": 1, "hidden": 4096, "vocab": 128256})


def expert_entries() -> Iterator[Entry]:
    qwen = {"top_k": 8, "experts": 256, "hidden": 2048, "inner": 512}
    nemotron = {"top_k": 22, "experts": 512, "hidden": 1024, "inner": 2688, "gated": False}
    kimi = {"top_k": 8, "experts": 256, "hidden": 2304, "inner": 1024}
    deepseek = {"top_k": 8, "experts": 256, "hidden": 7168, "inner": 2048}
    models = [
        ("Qwen3.5-35B", qwen, (1, 4, 32, 128)),
        ("Nemotron-3-Super", nemotron, (1, 4, 16)),
        ("Kimi-Linear", kimi, (4,)),
        ("DeepSeek-V3", deepseek, (1, 4, 32)),
    ]
    for model, sizes, grouped in models:
        for rows in grouped:
            yield Entry(f"moe grouped {model}, {rows} rows", routed, sizes | {"rows": rows})
        yield Entry(f"moe paired {model}, 4 rows", routed, sizes | {"rows": 4, "paired": True})


def attention_entries() -> Iterator[Entry]:
    shapes = [
        ("DeepSeek-V3", 1, 1, 128, 131072),
        ("DeepSeek-V3", 1, 4, 128, 131072),
        ("DeepSeek-V3", 16, 1, 128, 8192),
        ("DeepSeek-V3 TP8", 1, 1, 16, 131072),
        ("DeepSeek-V3 TP8", 1, 4, 16, 131072),
        ("Kimi-Linear", 1, 1, 32, 4096),
        ("Kimi-Linear", 1, 4, 32, 1048576),
    ]
    for model, sequences, rows, heads, context in shapes:
        sizes = {"sequences": sequences, "rows": rows, "heads": heads, "context": context}
        name = f"mla {model}, {sequences} x {rows} rows, {context} tokens"
        yield Entry(name, latent_attention, sizes)
        if context == 131072:
            yield Entry(f"{name}, tile 64", latent_attention, sizes | {"block": 64, "stages": 2})
            yield Entry(f"{name}, tile 16", latent_attention, sizes | {"block": 16, "stages": 4})


def recurrent_entries() -> Iterator[Entry]:
    gdn = {"k_heads": 16, "v_heads": 32, "k_dim": 128, "v_dim": 128}
    kda = {"k_heads": 32, "v_heads": 32, "k_dim": 128, "v_dim": 128, "per_channel": True}
    ssd = {"heads": 128, "head_dim": 64, "groups": 8, "k_dim": 128}
    for name, build, sizes in (
        ("GDN Qwen3.5-35B", delta_rule, gdn),
        ("KDA Kimi-Linear", delta_rule, kda),
        ("Mamba2 Nemotron", mamba2, ssd),
    ):
        for sequences in (1, 32):
            yield Entry(f"{name}, {sequences} x 1 row", build, sizes | {"sequences": sequences, "rows": 1})
            verify = {"sequences": sequences, "rows": 4, "snapshots": True}
            yield Entry(f"{name}, {sequences} x 4 rows, snapshots", build, sizes | verify)
    if recurrent.fla_available():
        for name, sizes in (("GDN", gdn), ("KDA", kda)):
            for rows in (1, 4):
                more = {"sequences": 1, "rows": rows, "fla": True}
                yield Entry(f"{name} by fla-core, 1 x {rows} rows", delta_rule, sizes | more)
    for verify in (False, True):
        sizes = {"sequences": 1, "rows": 4 if verify else 1, "channels": 8192, "verify": verify}
        yield Entry(f"short conv Qwen3.5-35B, {sizes['rows']} rows", short_conv, sizes)


def small_entries() -> Iterator[Entry]:
    yield Entry("empty", nothing)
    yield Entry("rms_norm 2048, 4 rows", rms_norm, {"rows": 4, "hidden": 2048})
    yield Entry("rms_norm 7168, 64 rows", rms_norm, {"rows": 64, "hidden": 7168})
    yield Entry("add_rms_norm 2048, 4 rows", add_rms_norm, {"rows": 4, "hidden": 2048})
    yield Entry("silu_mul 14336, 4 rows", silu_mul, {"rows": 4, "inner": 14336})
    qwen = {"q_heads": 16, "kv_heads": 2, "head_dim": 256, "rotary": 64, "context": 65536}
    yield Entry("rope and cache Qwen3.5-35B, 4 rows", rope, qwen | {"rows": 4})
    yield Entry("router 256 top 8, 4 rows", router, {"rows": 4, "experts": 256, "top_k": 8})
    yield Entry("router 512 top 22, 4 rows", router, {"rows": 4, "experts": 512, "top_k": 22})
    for name, size in (("64 KiB", 2**16), ("2 MiB", 2**21), ("1 GiB", 2**30)):
        yield Entry(f"copy {name}", copy, {"size": size})
    for rows in (1, 4):
        yield Entry(f"argmax Qwen3.5-35B, {rows} rows", argmax, {"rows": rows, "vocab": 248320})
    yield Entry("accept, 16 x 4 rows", accept, {"sequences": 16, "rows": 4})
    yield Entry("commit Qwen3.5-35B, 30 layers", commit, {"layers": 30, "sequences": 1, "rows": 4, "size": 524288})


def all_entries() -> list[Entry]:
    """Every kernel at every shape, experts of one model together."""
    groups = (small_entries, matrix_entries, recurrent_entries, attention_entries, expert_entries)
    return [entry for group in groups for entry in group()]


# --- running ---------------------------------------------------------------------------------------------------


def check(case: Case) -> tuple[tuple[float, ...], str]:
    """Relative errors of one launch on poisoned outputs, and what is wrong with them."""
    expected = case.expected()
    for tensor in case.poison:
        tensor.fill_(float("nan") if tensor.is_floating_point() else 77)
    case.launch()
    outputs = case.outputs()
    errors = tuple(relative_error(out, right) for out, right in zip(outputs, expected, strict=True))
    limits = [TOLERANCE.get(out.dtype, 0.0) for out in outputs]
    good = all(error <= limit for error, limit in zip(errors, limits, strict=True))
    return errors, "" if good else f"errors {errors} beyond {limits}"


def shrunk(entry: Entry) -> dict[str, Any]:
    """The entry's sizes, none above `TINY`."""
    sizes = {k: min(v, TINY.get(k, v)) if type(v) is int else v for k, v in entry.sizes.items()}
    return sizes | {"latent": 32, "rope": 16} if entry.build is latent_attention else sizes


def run(entry: Entry, tiny: bool) -> Result:
    """Check and time one kernel; whatever goes wrong becomes the result."""
    sizes = shrunk(entry) if tiny else entry.sizes
    errors: tuple[float, ...] = ()
    try:
        case = entry.build(**sizes)
        errors, failure = check(case)
        cases = [case, *(entry.build(**sizes) for _ in range(_sets(case) - 1))]
        sample = measure(lambda i: cases[i].launch(), len(cases), DEVICE, BUDGET_S)
        moved = sum(c.bytes for c in cases) / len(cases)
        return Result(
            entry.name,
            errors,
            sample.seconds * 1e6,
            sample.noise,
            moved / sample.seconds * 1e-12,
            len(cases),
            failure,
        )
    except Exception as error:
        return Result(entry.name, errors, failure=f"{error!r}\n{traceback.format_exc(limit=-4)}")


def _sets(case: Case) -> int:
    """How many input sets the timing rotates."""
    if DEVICE.type != "cuda":
        return 1
    free = torch.cuda.mem_get_info(DEVICE)[0]
    return input_sets(int(case.bytes), environment(DEVICE).l2_bytes, free)


def line(result: Result) -> str:
    worst = max(result.errors, default=0.0)
    state = "FAILED " + result.failure.splitlines()[0][:150] if result.failure else "ok"
    speed = f"{result.microseconds:10.2f} us ±{100 * result.noise:3.0f}% {result.terabytes_per_second:7.3f} TB/s"
    return f"{result.name:56s} {worst:8.1e} {speed} {result.sets:3d} sets  {state}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--only", default="", help="run only kernels whose name contains this")
    parser.add_argument("--tiny", action="store_true", help="shrink every size, as for a CPU")
    options = parser.parse_args()
    torch.manual_seed(0)
    start, results = time.perf_counter(), []
    for entry in all_entries():
        if options.only not in entry.name:
            continue
        if time.perf_counter() - start > DEADLINE_S:
            result = Result(entry.name, failure=f"not run: {DEADLINE_S:.0f} s are over")
        else:
            result = run(entry, options.tiny)
        results.append(result)
        print(line(result), flush=True)
        if options.out:
            report = {"environment": environment(DEVICE).as_dict(), "results": [asdict(r) for r in results]}
            options.out.write_text(json.dumps(report, indent=1))
    failed = [result.name for result in results if result.failure]
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed, {time.perf_counter() - start:.0f} s")
    for name in failed:
        print(f"  failed: {name}")


if __name__ == "__main__":
    main()
