"""A point made runnable: inputs on the device, the launch to time, the check against a float reference, and its work.

The work is the very `Operation` that the cost model would count for that shape, so that a fit cannot count differently.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from calibration.kernels import attention, gemm, index, installed, mla, moe, recurrent, references, small
from calibration.plan import Point
from calibration.timing import input_sets
from wmtp_sim.spec import model as spec
from wmtp_sim.spec.engine import AttentionKernel
from wmtp_sim.spec.precision import GroupFormats
from wmtp_sim.step.serving import split_attention
from wmtp_sim.work import layers
from wmtp_sim.work.operation import Operation
from wmtp_sim.work.passes import sample
from wmtp_sim.work.weights import Matrix, weights_of

BF16 = torch.bfloat16
#: How our attention kernel splits and pads; the bench engine states the same.
PACKED = AttentionKernel(max_splits=0, tile_tokens=64, row_tile=16)
#: Tokens up to which an attention is checked whole; longer ones are checked at this length.
CHECKED_TOKENS = 65536


@dataclass(frozen=True)
class Case:
    """``launch(i)`` runs on input set i of ``sets``; ``check()`` is the relative error of a run on poisoned outputs."""

    operation: Operation
    launch: Callable[[int], object]
    sets: int
    check: Callable[[], float]
    tolerance: float


@dataclass(frozen=True)
class Device:
    """Where cases are built: the device, its L2 and free memory in bytes, and how many processors share the work."""

    device: torch.device
    l2_bytes: int
    free_bytes: int
    sm_count: int

    def rotate(self, set_bytes: float) -> int:
        return input_sets(int(set_bytes), self.l2_bytes, self.free_bytes)

    def randn(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = BF16) -> torch.Tensor:
        return torch.empty(*shape, device=self.device, dtype=dtype).normal_(std=scale)

    def empty(self, *shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
        return torch.empty(*shape, device=self.device, dtype=dtype)


def build(point: Point, where: Device) -> Case:
    """The case of a point. Raises ``torch.OutOfMemoryError`` where its inputs do not fit."""
    return _BUILDERS[point.kernel](point, where)


def _shape(
    batch: float, rows: float, attended: float = 0.0, kv_bytes: float = 2.0, state_writes: float = 1.0
) -> layers.Pass:
    return layers.Pass(
        batch=batch,
        rows=rows,
        attended=attended,
        kv_bytes=kv_bytes,
        state_bytes=4.0,
        state_writes=state_writes,
    )


def _checked(
    launch: Callable[[int], object], outputs: list[torch.Tensor], expected: Callable[[], torch.Tensor]
) -> float:
    """Error of set 0, whose outputs (the first of the list is compared) are filled with NaN before the run."""
    for output in outputs:
        if output.is_floating_point():
            output.fill_(math.nan)
    launch(0)
    return references.relative_error(outputs[0], expected())


# --- products ----------------------------------------------------------------------------------------------------


def _gemm(point: Point, where: Device) -> Case:
    k, n, rows = point["k"], point["n"], point["rows"]
    fp8 = point.variant == "cublas_fp8"
    formats = GroupFormats(attention="fp8" if fp8 else "bf16")
    operation = layers.gemm(Matrix("measured", k, n, "attention"), _shape(1, rows), formats)
    sets = where.rotate(k * n * (1 if fp8 else 2))
    if fp8:
        return _fp8_gemm(operation, k, n, rows, sets, where)
    weights = [where.randn(n, k, scale=k**-0.5) for _ in range(sets)]
    x, out = where.randn(rows, k), where.empty(rows, n)

    def launch(i: int) -> torch.Tensor:
        return gemm.dense(x, weights[i], out)

    return Case(operation, launch, sets, lambda: _checked(launch, [out], lambda: references.dense(x, weights[0])), 1e-2)


def _fp8_gemm(operation: Operation, k: int, n: int, rows: int, sets: int, where: Device) -> Case:
    weights = [where.randn(n, k, scale=k**-0.5).to(gemm.FP8) for _ in range(sets)]
    x, scale_x = gemm.quantize(where.randn(rows, k))
    scale_w, out = torch.ones((), device=where.device), where.empty(x.shape[0], n)

    def launch(i: int) -> torch.Tensor:
        return gemm.fp8_dense(x, weights[i], scale_x, scale_w, out)

    def expected() -> torch.Tensor:
        return references.fp8_dense(x, weights[0], scale_x, scale_w)

    return Case(operation, launch, sets, lambda: _checked(launch, [out], expected), 2e-2)


def _moe(point: Point, where: Device) -> Case:
    experts, top_k, inner, width = (point[name] for name in ("experts", "top_k", "inner", "width"))
    rows, gated = point["rows"], bool(point["gated"])
    layer = spec.Moe(experts=experts, top_k=top_k, inner=inner, gated=gated)
    gate_up = where.randn(experts, (2 if gated else 1) * inner, width, scale=width**-0.5)
    down = where.randn(experts, width, inner, scale=inner**-0.5)
    x, out = where.randn(rows, width), where.empty(rows, width)
    workspace = moe.make_workspace(rows, top_k, gate_up, down)
    one = sum(m.copy_params for m in weights_of(layer, width).experts) * 2
    sets = min(where.rotate(one * min(rows * top_k, experts)), 16)
    routing = [_routing(rows, experts, top_k, where) for _ in range(sets)]
    unions = [ids.unique().numel() for ids, _ in routing]
    operation = layers.experts(layer, _shape(1, rows), width, GroupFormats())
    operation = replace(operation, weights=float(one * sum(unions) / len(unions)))

    def launch(i: int) -> torch.Tensor:
        return moe.grouped(x, gate_up, down, *routing[i], out, workspace)

    def expected() -> torch.Tensor:
        return references.routed_experts(x, gate_up, down, *routing[0])

    return Case(operation, launch, sets, lambda: _checked(launch, [out], expected), 2e-2)


def _routing(rows: int, experts: int, top_k: int, where: Device) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct random experts for every row, with weights that sum to 1."""
    scores = torch.rand(rows, experts, device=where.device)
    weights, ids = scores.topk(top_k, dim=-1)
    return ids.int(), (weights / weights.sum(-1, keepdim=True)).float()


# --- attention ---------------------------------------------------------------------------------------------------


def _attention(point: Point, where: Device) -> Case:
    if point.variant == "torch":
        return _torch_attention(point, where)
    if point.variant in installed.RULES:
        return _installed_attention(point, where)
    q_heads, kv_heads, head_dim = point["q_heads"], point["kv_heads"], point["head_dim"]
    context, rows, batch = point["context"], point["rows"], point["batch"]
    kv_bytes = dict(point.sizes).get("kv_bytes", 2)
    mixer = spec.Attention(q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim)
    (operation,) = layers.attention(mixer, _shape(batch, rows, context - rows, kv_bytes))
    operation = split_attention(replace(operation, variant=point.variant), PACKED)
    set_bytes = batch * context * kv_heads * head_dim * 2 * kv_bytes
    sets = where.rotate(set_bytes)
    slots_each = batch * context
    k_cache, v_cache = (where.randn(sets * slots_each, kv_heads, head_dim) for _ in range(2))
    if kv_bytes == 1:
        k_cache, v_cache = k_cache.to(gemm.FP8), v_cache.to(gemm.FP8)
    q, out = where.randn(batch, rows, q_heads, head_dim), where.empty(batch, rows, q_heads, head_dim)
    lists = [_slots(i * slots_each, batch, context, where) for i in range(sets)]
    lengths = torch.full((batch,), context, dtype=torch.int32, device=where.device)
    splits = attention.choose_splits(context, batch * kv_heads, where.sm_count, head_dim, rows * q_heads // kv_heads)
    workspace = attention.make_workspace(q, kv_heads, head_dim, splits)
    options = {"scale": head_dim**-0.5, "splits": splits, "out": out, "workspace": workspace}

    def launch(i: int) -> torch.Tensor:
        return attention.attention(q, k_cache, v_cache, lists[i], lengths, max_length=context, **options)

    def check() -> float:
        short = min(context, CHECKED_TOKENS)
        few = torch.full_like(lengths, short)
        out.fill_(math.nan)
        attention.attention(q, k_cache, v_cache, lists[0], few, max_length=short, **options)
        return references.relative_error(out, _softmax(q, k_cache, v_cache, lists[0][:, :short], head_dim**-0.5))

    return Case(operation, launch, sets, check, 1e-2)


def _installed_attention(point: Point, where: Device) -> Case:
    """Another package's kernel on the same inputs; each input set is a cache of its own to it."""
    q_heads, kv_heads, head_dim = point["q_heads"], point["kv_heads"], point["head_dim"]
    context, rows, batch = point["context"], point["rows"], point["batch"]
    mixer = spec.Attention(q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim)
    (operation,) = layers.attention(mixer, _shape(batch, rows, context - rows))
    operation = split_attention(replace(operation, variant=point.variant), installed.RULES[point.variant])
    sets = where.rotate(batch * context * kv_heads * head_dim * 4)
    shape = (batch * context, kv_heads, head_dim)
    caches = [(where.randn(*shape), where.randn(*shape)) for _ in range(sets)]
    q, out = where.randn(batch, rows, q_heads, head_dim), where.empty(batch, rows, q_heads, head_dim)
    slots, scale = _slots(0, batch, context, where), head_dim**-0.5
    launch = installed.prepare(point.variant, q, caches, slots, scale=scale, out=out)

    def check() -> float:
        short = slots[:, : min(context, CHECKED_TOKENS)].contiguous()
        checked = installed.prepare(point.variant, q, caches[:1], short, scale=scale, out=out)
        return _checked(checked, [out], lambda: _softmax(q, *caches[0], short, scale))

    return Case(operation, launch, sets, check, 1e-2)


def _torch_attention(point: Point, where: Device) -> Case:
    """Torch's own scaled_dot_product_attention over a plain cache, its last rows causal."""
    q_heads, kv_heads, head_dim = point["q_heads"], point["kv_heads"], point["head_dim"]
    context, rows, batch = point["context"], point["rows"], point["batch"]
    mixer = spec.Attention(q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim)
    (operation,) = layers.attention(mixer, _shape(batch, rows, context - rows))
    sets = where.rotate(batch * context * kv_heads * head_dim * 4)
    caches = [[where.randn(batch, kv_heads, context, head_dim) for _ in range(2)] for _ in range(sets)]
    q, out = where.randn(batch, q_heads, rows, head_dim), where.empty(batch, q_heads, rows, head_dim)
    ends = context - rows + torch.arange(rows, device=where.device)
    seen = torch.arange(context, device=where.device) <= ends[:, None]

    def launch(i: int) -> torch.Tensor:
        k, v = caches[i]
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return out.copy_(found)

    def expected() -> torch.Tensor:
        k, v = (cache.double().repeat_interleave(q_heads // kv_heads, 1) for cache in caches[0])
        scores = (q.double() @ k.transpose(2, 3)) * head_dim**-0.5
        return scores.masked_fill(~seen, -math.inf).softmax(-1) @ v

    operation = replace(operation, variant=point.variant)
    return Case(operation, launch, sets, lambda: _checked(launch, [out], expected), 2e-2)


def _slots(first: int, batch: int, context: int, where: Device) -> torch.Tensor:
    span = torch.arange(first, first + batch * context, dtype=torch.int32, device=where.device)
    return span.view(batch, context)


def _rows_of(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Some tokens of a cache; torch gathers no fp8, but bytes."""
    if cache.dtype == gemm.FP8:
        return cache.view(torch.uint8)[slots.long()].view(gemm.FP8)
    return cache[slots.long()]


def _softmax(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor, scale: float
) -> torch.Tensor:
    """Grouped attention in float32, the last rows causal; [batch, rows, q_heads, head_dim]."""
    batch, rows, q_heads, _ = q.shape
    group, length = q_heads // k_cache.shape[1], slots.shape[1]
    seen = (
        torch.arange(length, device=q.device)[None, :] <= (length - rows + torch.arange(rows, device=q.device))[:, None]
    )
    outputs = []
    for b in range(batch):
        k, v = (_rows_of(cache, slots[b]).float().repeat_interleave(group, 1) for cache in (k_cache, v_cache))
        scores = torch.einsum("rhd,thd->hrt", q[b].float(), k) * scale
        outputs.append(torch.einsum("hrt,thd->rhd", scores.masked_fill(~seen, -math.inf).softmax(-1), v))
    return torch.stack(outputs)


def _mla(point: Point, where: Device) -> Case:
    heads, context, rows, batch = point["heads"], point["context"], point["rows"], point["batch"]
    latent, rope = 512, 64
    mixer = spec.LatentAttention(
        heads=heads, q_lora_rank=1536, kv_lora_rank=latent, qk_nope_head_dim=128, qk_rope_head_dim=rope, v_head_dim=128
    )
    (operation,) = layers.latent_attention(mixer, _shape(batch, rows, context - rows))
    sets = where.rotate(batch * context * (latent + rope) * 2)
    cache = where.randn(sets * batch * context, latent + rope)
    q, out = where.randn(batch, rows, heads, latent + rope, scale=0.3), where.empty(batch, rows, heads, latent)
    lists = [_slots(i * batch * context, batch, context, where) for i in range(sets)]
    lengths = torch.full((batch,), context, dtype=torch.int32, device=where.device)
    splits = mla.choose_splits(batch, rows * heads, where.sm_count, context)
    workspace = mla.make_workspace(q, latent, splits)
    scale = 192**-0.5

    def launch(i: int) -> torch.Tensor:
        return mla.attention(q, cache, lists[i], lengths, scale=scale, out=out, workspace=workspace)

    def check() -> float:
        short = min(context, CHECKED_TOKENS // 8)
        few = torch.full_like(lengths, short)
        out.fill_(math.nan)
        mla.attention(q, cache, lists[0], few, scale=scale, out=out, workspace=workspace)
        return references.relative_error(out, references.latent_attention(q, cache, lists[0], few, latent, scale))

    return Case(replace(operation, variant=point.variant), launch, sets, check, 1e-2)


# --- recurrences -------------------------------------------------------------------------------------------------


def _recurrent(point: Point, where: Device) -> Case:
    batch, rows = point["batch"], point["rows"]
    sizes = {name: value for name, value in point.sizes if name not in ("batch", "rows")}
    if point.variant == "mamba2":
        return _mamba2(spec.Mamba2(**{**sizes, **_flags(sizes)}), batch, rows, where)  # type: ignore[arg-type]
    if point.variant == "gdn":
        gdn = spec.GatedDeltaNet(**sizes)  # type: ignore[arg-type]
        return _delta(gdn, (gdn.k_heads, gdn.v_heads, gdn.k_dim, gdn.v_dim), False, batch, rows, where)
    kda = spec.KimiDeltaAttention(**{**sizes, "full_rank_gate": bool(sizes["full_rank_gate"])})  # type: ignore[arg-type]
    return _delta(kda, (kda.heads, kda.heads, kda.head_dim, kda.head_dim), True, batch, rows, where)


def _flags(sizes: dict[str, int]) -> dict[str, bool]:
    return {name: bool(sizes[name]) for name in ("conv_bias", "gated_norm")}


def _delta(
    mixer: spec.Mixer, sizes: tuple[int, int, int, int], per_channel: bool, batch: int, rows: int, where: Device
) -> Case:
    """Convolution and delta rule of GDN or KDA: a decode step of one row, or a verify with a snapshot per row."""
    k_heads, v_heads, k_dim, v_dim = sizes
    channels = 2 * k_heads * k_dim + v_heads * v_dim
    writes = 1 if rows == 1 else rows
    (operation,) = layers.recurrent(mixer, _shape(batch, rows, state_writes=writes))
    state_bytes = batch * v_heads * k_dim * v_dim * 4
    sets = where.rotate(state_bytes * (1 + writes))
    states = [where.randn(batch, v_heads, k_dim, v_dim, dtype=torch.float32) for _ in range(sets)]
    kept = (
        [where.empty(batch, rows, v_heads, k_dim, v_dim, dtype=torch.float32) for _ in range(sets)]
        if rows > 1
        else None
    )
    q, k = (where.randn(batch, rows, k_heads, k_dim) for _ in range(2))
    v, out = where.randn(batch, rows, v_heads, v_dim), where.empty(batch, rows, v_heads, v_dim)
    decay_shape = (batch, rows, v_heads, k_dim) if per_channel else (batch, rows, v_heads)
    decay = -where.randn(*decay_shape, dtype=torch.float32).abs()
    beta = torch.rand(batch, rows, v_heads, device=where.device)
    conv = _Conv(batch, rows, channels, where)

    def launch(i: int) -> None:
        conv.launch()
        recurrent.delta_rule(q, k, v, decay, beta, states[i], 1.0, out, snapshots=kept[i] if kept else None)

    def check() -> float:
        start = states[0].clone()
        expected, _ = references.delta_rule(q, k, v, decay, beta, start, 1.0)
        return _checked(launch, [out], lambda: expected)

    return Case(operation, launch, sets, check, 1e-2)


def _mamba2(mixer: spec.Mamba2, batch: int, rows: int, where: Device) -> Case:
    heads, dim, groups, size = mixer.heads, mixer.head_dim, mixer.groups, mixer.state_dim
    writes = 1 if rows == 1 else rows
    (operation,) = layers.recurrent(mixer, _shape(batch, rows, state_writes=writes))
    sets = where.rotate(batch * heads * dim * size * 4 * (1 + writes))
    states = [where.randn(batch, heads, dim, size, dtype=torch.float32) for _ in range(sets)]
    kept = [where.empty(batch, rows, heads, dim, size, dtype=torch.float32) for _ in range(sets)] if rows > 1 else None
    x, out = where.randn(batch, rows, heads, dim), where.empty(batch, rows, heads, dim)
    dt = where.randn(batch, rows, heads)
    a_log, d, dt_bias = (where.randn(heads, dtype=torch.float32, scale=0.5) for _ in range(3))
    b, c = (where.randn(batch, rows, groups, size, scale=size**-0.5) for _ in range(2))
    conv = _Conv(batch, rows, mixer.conv_dim, where)

    def launch(i: int) -> None:
        conv.launch()
        recurrent.mamba2(x, dt, a_log, b, c, d, dt_bias, states[i], out, snapshots=kept[i] if kept else None)

    def check() -> float:
        expected, _ = references.mamba2(x, dt, a_log, b, c, d, dt_bias, states[0].clone())
        return _checked(launch, [out], lambda: expected)

    return Case(operation, launch, sets, check, 1e-2)


class _Conv:
    """The short convolution in front of a recurrence, on one set of inputs (its state is small)."""

    def __init__(self, batch: int, rows: int, channels: int, where: Device) -> None:
        self.x, self.out = where.randn(batch, rows, channels), where.empty(batch, rows, channels)
        self.state = where.randn(batch, 3, channels)
        self.weight, self.bias = where.randn(channels, 4, scale=0.5), where.randn(channels)
        self.columns = where.empty(batch, 3 + rows, channels) if rows > 1 else None

    def launch(self) -> None:
        recurrent.short_conv(self.x, self.state, self.weight, self.bias, self.out, columns=self.columns)


# --- small kernels -----------------------------------------------------------------------------------------------


def _elementwise(point: Point, where: Device) -> Case:
    rows, on_cpu = point["rows"], where.device.type == "cpu"
    if point.variant == "empty":
        operation = Operation(name="empty", kernel="elementwise")
        least = where.empty(1).zero_()  # on a CPU, the least that an operator of torch does
        launch = (lambda i: least.zero_()) if on_cpu else (lambda i: small.empty(1))
        return Case(operation, launch, 1, lambda: 0.0, 1.0)
    hidden = point["hidden"]
    operation = layers.elementwise("norm" if point.variant == "norm" else "act", _shape(1, rows), hidden)
    if point.variant == "norm":
        x, weight, out = where.randn(rows, hidden), where.randn(hidden), where.empty(rows, hidden)

        def norm(i: int) -> torch.Tensor:
            if on_cpu:
                return out.copy_(torch.nn.functional.rms_norm(x, (hidden,), weight, 1e-6))
            return small.rms_norm(x, weight, out)

        return Case(
            operation, norm, 1, lambda: _checked(norm, [out], lambda: references.rms_norm(x, weight, 1e-6)), 1e-2
        )
    gate_up, out = where.randn(rows, 2 * hidden), where.empty(rows, hidden)

    def act(i: int) -> torch.Tensor:
        if on_cpu:
            return torch.mul(torch.nn.functional.silu(gate_up[:, :hidden]), gate_up[:, hidden:], out=out)
        return small.silu_mul(gate_up, out)

    return Case(operation, act, 1, lambda: _checked(act, [out], lambda: references.silu_mul(gate_up)), 1e-2)


def _sample(point: Point, where: Device) -> Case:
    rows, vocab = point["rows"], point["vocab"]
    operation = sample(rows, vocab, "sample.argmax", launches=2.0)
    logits, best = where.randn(rows, vocab), where.empty(rows, dtype=torch.int64)

    def launch(i: int) -> torch.Tensor:
        return small.argmax(logits, best)

    def check() -> float:
        best.fill_(-1)
        launch(0)
        chosen = logits.gather(1, best[:, None].clamp_min(0))[:, 0]
        return float((logits.float().amax(-1) - chosen.float()).abs().max())

    return Case(operation, launch, 1, check, 0.0)


def _copy(point: Point, where: Device) -> Case:
    moved = point["kib"] * 1024
    operation = Operation(name="copy", kernel="copy", state=float(moved), geometry=(1.0,))
    sets = where.rotate(moved)
    sources = [torch.randint(0, 255, (moved // 2,), dtype=torch.uint8, device=where.device) for _ in range(sets)]
    targets = [torch.empty_like(source) for source in sources]

    def launch(i: int) -> torch.Tensor:
        return small.copy(sources[i], targets[i])

    def check() -> float:
        targets[0].zero_()
        launch(0)
        return float((targets[0] != sources[0]).float().mean())

    return Case(operation, launch, sets, check, 0.0)


def _index_build(point: Point, where: Device) -> Case:
    context, steps, block = point["context"], point["steps"], point["block"]
    programs = 1 if point.variant == "serial" else index.parallel_programs(context, steps, 1)
    operation = Operation(
        name="index.build",
        kernel="index_build",
        metadata=8.0 * context * steps,
        turns=math.ceil(context / block / programs),
    )
    table = torch.arange(context + 16, dtype=torch.int32, device=where.device)[None]
    requests = torch.zeros(1, dtype=torch.int32, device=where.device)
    committed = torch.full((1,), context, dtype=torch.int32, device=where.device)
    out = torch.zeros(steps, 1, context + 16, dtype=torch.int32, device=where.device)
    lengths = torch.zeros(steps, 1, dtype=torch.int32, device=where.device)

    def launch(i: int) -> None:
        index.build_lists(table, requests, committed, out=out, out_lengths=lengths, block=block, programs=programs)

    def check() -> float:
        out.fill_(-1)
        launch(0)
        return float((out[:, 0, :context] != table[0, :context]).float().mean())

    return Case(operation, launch, 1, check, 0.0)


_BUILDERS: dict[str, Callable[[Point, Device], Case]] = {
    "gemm": _gemm,
    "moe": _moe,
    "attention": _attention,
    "mla": _mla,
    "recurrent": _recurrent,
    "elementwise": _elementwise,
    "sample": _sample,
    "copy": _copy,
    "index_build": _index_build,
}
