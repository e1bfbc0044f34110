"""A point made runnable: inputs on the device, the launch to time, the check against a float reference, and its work.

The work is the very `Operation` that the cost model would count for that shape, so that a fit cannot count differently.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from calibration.case import BF16, Case, Device, checked
from calibration.kernels import attention, gemm, index, installed, mla, moe, recurrent, references, small
from calibration.plan import Point, latent_attention, work
from wmtp_sim.spec import model as spec
from wmtp_sim.spec.engine import AttentionKernel
from wmtp_sim.spec.precision import GroupFormats
from wmtp_sim.step.serving import split_attention
from wmtp_sim.work import layers
from wmtp_sim.work.operation import Operation
from wmtp_sim.work.passes import sample
from wmtp_sim.work.weights import Matrix, weights_of

#: How our attention kernel splits and pads; the bench engine states the same.
PACKED = AttentionKernel(max_splits=0, tile_tokens=64, row_tile=16)
#: Tokens up to which an attention is checked whole; longer ones are checked at this length.
CHECKED_TOKENS = 65536


def build(point: Point, where: Device) -> Case:
    """The case of a point. Raises ``torch.OutOfMemoryError`` where its inputs do not fit."""
    return _BUILDERS[point.kernel](point, where)


# --- products ----------------------------------------------------------------------------------------------------


def _gemm(point: Point, where: Device) -> Case:
    k, n, rows = point["k"], point["n"], point["rows"]
    fp8 = point.variant == "cublas_fp8"
    formats = GroupFormats(attention="fp8" if fp8 else "bf16")
    operation = layers.gemm(Matrix("measured", k, n, "attention"), work(1, rows), formats)
    sets = where.rotate(k * n * (1 if fp8 else 2))
    weights = [where.randn(n, k, scale=k**-0.5).to(gemm.FP8 if fp8 else BF16) for _ in range(sets)]
    x, one = where.randn(rows, k), torch.ones((), device=where.device)
    if fp8:
        x, scale = gemm.quantize(x)
    out = where.empty(x.shape[0], n)

    def launch(i: int) -> torch.Tensor:
        return gemm.fp8_dense(x, weights[i], scale, one, out) if fp8 else gemm.dense(x, weights[i], out)

    def expected() -> list[torch.Tensor]:
        return [references.fp8_dense(x, weights[0], scale, one) if fp8 else references.dense(x, weights[0])]

    return Case(operation, launch, sets, lambda: checked(launch, [out], expected), 2e-2 if fp8 else 1e-2)


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
    operation = layers.experts(layer, work(1, rows), width, GroupFormats())
    operation = replace(operation, weights=float(one * sum(unions) / len(unions)))

    run = moe.paired if point.variant == "paired" else moe.grouped

    def launch(i: int) -> torch.Tensor:
        return run(x, gate_up, down, *routing[i], out, workspace)

    def expected() -> list[torch.Tensor]:
        return [references.routed_experts(x, gate_up, down, *routing[0])]

    return Case(operation, launch, sets, lambda: checked(launch, [out], expected), 2e-2)


def _routing(rows: int, experts: int, top_k: int, where: Device) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct random experts for every row, with weights that sum to 1."""
    scores = torch.rand(rows, experts, device=where.device)
    weights, ids = scores.topk(top_k, dim=-1)
    return ids.int(), (weights / weights.sum(-1, keepdim=True)).float()


# --- attention ---------------------------------------------------------------------------------------------------


def _attended(point: Point, rule: AttentionKernel | None) -> Operation:
    """What the cost model counts for an attention, split by ``rule`` if any."""
    head, rows = point["head_dim"], point["rows"]
    mixer = spec.Attention(q_heads=point["q_heads"], kv_heads=point["kv_heads"], head_dim=head, v_head_dim=head)
    shape = work(point["batch"], rows, point["context"] - rows, _kv_bytes(point))
    (operation,) = layers.attention(mixer, shape)
    operation = replace(operation, variant=point.variant)
    return split_attention(operation, rule) if rule else operation


def _kv_bytes(point: Point) -> int:
    """Bytes of an element of the cache."""
    return dict(point.sizes).get("kv_bytes", 2)


def _attention(point: Point, where: Device) -> Case:
    if point.variant == "torch":
        return _torch_attention(point, where)
    if point.variant in installed.RULES:
        return _installed_attention(point, where)
    q_heads, kv_heads, head_dim = point["q_heads"], point["kv_heads"], point["head_dim"]
    context, rows, batch, kv_bytes = point["context"], point["rows"], point["batch"], _kv_bytes(point)
    sets = where.rotate(batch * context * kv_heads * head_dim * 2 * kv_bytes)
    k_cache, v_cache = (
        where.randn(sets * batch * context, kv_heads, head_dim).to(gemm.FP8 if kv_bytes == 1 else BF16)
        for _ in range(2)
    )
    q, out = where.randn(batch, rows, q_heads, head_dim), where.empty(batch, rows, q_heads, head_dim)
    lists, lengths = _lists(sets, batch, context, where), _lengths(batch, context, where)
    splits = attention.choose_splits(context, batch * kv_heads, where.sm_count, head_dim, rows * q_heads // kv_heads)
    workspace = attention.make_workspace(q, kv_heads, head_dim, splits)
    options = {"scale": head_dim**-0.5, "splits": splits, "out": out, "workspace": workspace}

    def launch(i: int) -> torch.Tensor:
        return attention.attention(q, k_cache, v_cache, lists[i], lengths, max_length=context, **options)

    def check() -> float:
        few = _lengths(batch, min(context, CHECKED_TOKENS), where)
        given = (q, k_cache, v_cache, lists[0], few)
        return checked(
            lambda _: attention.attention(*given, max_length=int(few[0]), **options),
            [out],
            lambda: [references.attention(*given, scale=head_dim**-0.5, dtype=torch.float32)],
        )

    return Case(_attended(point, PACKED), launch, sets, check, 1e-2)


def _installed_attention(point: Point, where: Device) -> Case:
    """Another package's kernel on the same inputs; each input set is a cache of its own to it."""
    q_heads, kv_heads, head_dim = point["q_heads"], point["kv_heads"], point["head_dim"]
    context, rows, batch = point["context"], point["rows"], point["batch"]
    sets = where.rotate(batch * context * kv_heads * head_dim * 4)
    shape = (batch * context, kv_heads, head_dim)
    caches = [(where.randn(*shape), where.randn(*shape)) for _ in range(sets)]
    q, out = where.randn(batch, rows, q_heads, head_dim), where.empty(batch, rows, q_heads, head_dim)
    (slots,), scale = _lists(1, batch, context, where), head_dim**-0.5
    launch = installed.prepare(point.variant, q, caches, slots, scale=scale, out=out)

    def check() -> float:
        short = slots[:, :CHECKED_TOKENS].contiguous()
        given = (q, *caches[0], short, _lengths(batch, short.shape[1], where))
        return checked(
            installed.prepare(point.variant, q, caches[:1], short, scale=scale, out=out),
            [out],
            lambda: [references.attention(*given, scale=scale, dtype=torch.float32)],
        )

    return Case(_attended(point, installed.RULES[point.variant]), launch, sets, check, 1e-2)


def _torch_attention(point: Point, where: Device) -> Case:
    """Torch's own scaled_dot_product_attention over a plain cache, its last rows causal."""
    q_heads, kv_heads, head_dim = point["q_heads"], point["kv_heads"], point["head_dim"]
    context, rows, batch = point["context"], point["rows"], point["batch"]
    sets = where.rotate(batch * context * kv_heads * head_dim * 4)
    caches = [[where.randn(batch, kv_heads, context, head_dim) for _ in range(2)] for _ in range(sets)]
    q, out = where.randn(batch, q_heads, rows, head_dim), where.empty(batch, q_heads, rows, head_dim)
    ends = context - rows + torch.arange(rows, device=where.device)
    seen = torch.arange(context, device=where.device) <= ends[:, None]

    def launch(i: int) -> torch.Tensor:
        k, v = caches[i]
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return out.copy_(found)

    def expected() -> list[torch.Tensor]:
        k, v = (cache.transpose(1, 2).reshape(-1, kv_heads, head_dim) for cache in caches[0])
        (slots,), lengths = _lists(1, batch, context, where), _lengths(batch, context, where)
        return [references.attention(q.transpose(1, 2), k, v, slots, lengths, scale=head_dim**-0.5).transpose(1, 2)]

    return Case(_attended(point, None), launch, sets, lambda: checked(launch, [out], expected), 2e-2)


def _lists(sets: int, batch: int, context: int, where: Device) -> torch.Tensor:
    """Slots of each sequence of each input set, in order: ``[sets, batch, context]`` int32."""
    slots = torch.arange(sets * batch * context, dtype=torch.int32, device=where.device)
    return slots.view(sets, batch, context)


def _lengths(batch: int, context: int, where: Device) -> torch.Tensor:
    return torch.full((batch,), context, dtype=torch.int32, device=where.device)


def _mla(point: Point, where: Device) -> Case:
    heads, context, rows, batch = point["heads"], point["context"], point["rows"], point["batch"]
    given = dict(point.sizes)
    latent, rope = given.get("latent", 512), given.get("rope", 64)
    (operation,) = layers.latent_attention(latent_attention(heads, latent, rope), work(batch, rows, context - rows))
    sets = where.rotate(batch * context * (latent + rope) * 2)
    cache = where.randn(sets * batch * context, latent + rope)
    q, out = where.randn(batch, rows, heads, latent + rope, scale=0.3), where.empty(batch, rows, heads, latent)
    lists, lengths = _lists(sets, batch, context, where), _lengths(batch, context, where)
    splits = mla.choose_splits(batch, rows * heads, where.sm_count, context)
    options = {"scale": 192**-0.5, "out": out, "workspace": mla.make_workspace(q, latent, splits)}
    options |= {name: given[name] for name in ("block", "stages") if name in given}

    def launch(i: int) -> torch.Tensor:
        return mla.attention(q, cache, lists[i], lengths, **options)

    def check() -> float:
        inputs = (q, cache, lists[0], _lengths(batch, min(context, given.get("checked", CHECKED_TOKENS)), where))
        return checked(
            lambda _: mla.attention(*inputs, **options),
            [out],
            lambda: [references.latent_attention(*inputs, latent, options["scale"])],
        )

    return Case(replace(operation, variant=point.variant), launch, sets, check, 1e-2)


# --- recurrences -------------------------------------------------------------------------------------------------

_MIXERS = {"gdn": spec.GatedDeltaNet, "kda": spec.KimiDeltaAttention, "mamba2": spec.Mamba2}
#: Fields of a mixer that are stated as 0 or 1.
_FLAGS = ("conv_bias", "gated_norm", "full_rank_gate")


@dataclass(frozen=True)
class _Recurrence:
    """A recurrence behind its convolution: ``run(state, snapshots)`` writes ``out``.

    ``reference(state)`` gives the outputs, and the state after every row.
    """

    state_shape: tuple[int, ...]
    channels: int
    out: torch.Tensor
    run: Callable[[torch.Tensor, torch.Tensor | None], object]
    reference: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def _recurrent(point: Point, where: Device) -> Case:
    """A decode step of one row, which updates its states, or a verify with a snapshot per row."""
    sizes = {name: bool(value) if name in _FLAGS else value for name, value in point.sizes}
    batch, rows = sizes.pop("batch"), sizes.pop("rows")
    mixer = _MIXERS[point.variant](**sizes)
    one = _mamba2(mixer, batch, rows, where) if isinstance(mixer, spec.Mamba2) else _delta(mixer, batch, rows, where)
    (operation,) = layers.recurrent(mixer, work(batch, rows, state_writes=rows))
    sets = where.rotate(batch * math.prod(one.state_shape) * 4 * (1 + rows))
    states = [where.randn(batch, *one.state_shape, dtype=torch.float32) for _ in range(sets)]
    kept = [where.empty(batch, rows, *one.state_shape, dtype=torch.float32) for _ in range(sets if rows > 1 else 0)]
    conv = _Conv(batch, rows, one.channels, where)

    def launch(i: int) -> None:
        conv.launch()
        one.run(states[i], kept[i] if kept else None)

    def expected() -> list[torch.Tensor]:
        outs, after = one.reference(states[0])
        convolved, columns = references.short_conv(conv.x, conv.state, conv.weight, conv.bias)
        return [convolved, outs, *((columns, after) if kept else (columns[:, rows:], after[:, -1]))]

    def check() -> float:
        outputs = [conv.out, one.out]
        if conv.columns is not None:
            return checked(launch, [*outputs, conv.columns, kept[0]], expected)
        return checked(launch, outputs, expected, updated=(conv.state, states[0]))

    return Case(operation, launch, sets, check, 1e-2)


def _delta(mixer: spec.GatedDeltaNet | spec.KimiDeltaAttention, batch: int, rows: int, where: Device) -> _Recurrence:
    """GDN's delta rule with one decay per head, or KDA's with one per key channel."""
    if isinstance(mixer, spec.GatedDeltaNet):
        k_heads, v_heads, k_dim, v_dim = mixer.k_heads, mixer.v_heads, mixer.k_dim, mixer.v_dim
        decays: tuple[int, ...] = (batch, rows, v_heads)
    else:
        k_heads, v_heads, k_dim, v_dim = mixer.heads, mixer.heads, mixer.head_dim, mixer.head_dim
        decays = (batch, rows, v_heads, k_dim)
    q, k = (where.randn(batch, rows, k_heads, k_dim) for _ in range(2))
    v, out = where.randn(batch, rows, v_heads, v_dim), where.empty(batch, rows, v_heads, v_dim)
    decay = -where.randn(*decays, dtype=torch.float32).abs()
    inputs = (q, k, v, decay, torch.rand(batch, rows, v_heads, device=where.device))
    return _Recurrence(
        (v_heads, k_dim, v_dim),
        2 * k_heads * k_dim + v_heads * v_dim,
        out,
        lambda state, snapshots: recurrent.delta_rule(*inputs, state, 1.0, out, snapshots),
        lambda state: references.delta_rule(*inputs, state, 1.0),
    )


def _mamba2(mixer: spec.Mamba2, batch: int, rows: int, where: Device) -> _Recurrence:
    heads, dim, groups, size = mixer.heads, mixer.head_dim, mixer.groups, mixer.state_dim
    x, out = where.randn(batch, rows, heads, dim), where.empty(batch, rows, heads, dim)
    dt = where.randn(batch, rows, heads)
    a_log, d, dt_bias = (where.randn(heads, dtype=torch.float32, scale=0.5) for _ in range(3))
    b, c = (where.randn(batch, rows, groups, size, scale=size**-0.5) for _ in range(2))
    inputs = (x, dt, a_log, b, c, d, dt_bias)
    return _Recurrence(
        (heads, dim, size),
        mixer.conv_dim,
        out,
        lambda state, snapshots: recurrent.mamba2(*inputs, state, out, snapshots),
        lambda state: references.mamba2(*inputs, state),
    )


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
    """A norm, an activation, or nothing; on a CPU by torch's own operators."""
    rows, on_cpu = point["rows"], where.device.type == "cpu"
    if point.variant == "empty":
        operation = Operation(name="empty", kernel="elementwise")
        least = where.empty(1).zero_()  # on a CPU, the least that an operator of torch does
        launch = (lambda i: least.zero_()) if on_cpu else (lambda i: small.empty(1))
        return Case(operation, launch, 1, lambda: 0.0, 1.0)
    hidden, norm = point["hidden"], point.variant == "norm"
    operation = layers.elementwise("norm" if norm else "act", work(1, rows), hidden)
    x, weight = where.randn(rows, hidden if norm else 2 * hidden), where.randn(hidden)
    out = where.empty(rows, hidden)

    def launch_norm(i: int) -> torch.Tensor:
        if on_cpu:
            return out.copy_(torch.nn.functional.rms_norm(x, (hidden,), weight, 1e-6))
        return small.rms_norm(x, weight, out)

    def launch_act(i: int) -> torch.Tensor:
        if on_cpu:
            return torch.mul(torch.nn.functional.silu(x[:, :hidden]), x[:, hidden:], out=out)
        return small.silu_mul(x, out)

    def expected() -> list[torch.Tensor]:
        return [references.rms_norm(x, weight, 1e-6) if norm else references.silu_mul(x)]

    launch = launch_norm if norm else launch_act
    return Case(operation, launch, 1, lambda: checked(launch, [out], expected), 1e-2)


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

    return Case(operation, launch, sets, lambda: checked(launch, targets[:1], lambda: sources[:1]), 0.0)


def _index_build(point: Point, where: Device) -> Case:
    """Lists of ``steps`` draft passes over all committed tokens, or over those that a window or a ring keeps."""
    context, steps, block = point["context"], point["steps"], point["block"]
    kept = {name: value for name, value in point.sizes if name in ("window", "sink", "ring_depth")}
    listed = min(context, kept["window"] + kept["sink"]) if kept else context
    programs = 1 if point.variant == "serial" else index.parallel_programs(context, steps, 1)
    operation = Operation(
        name="index.build",
        kernel="index_build",
        metadata=8.0 * listed * steps,
        turns=math.ceil(listed / block / programs),
    )
    table = torch.randperm(context + 16, device=where.device).int()[None]
    requests = torch.zeros(1, dtype=torch.int32, device=where.device)
    committed = _lengths(1, context, where)
    out = torch.zeros(steps, 1, context + 16, dtype=torch.int32, device=where.device)
    lengths = torch.zeros(steps, 1, dtype=torch.int32, device=where.device)
    options: dict[str, Any] = {"out": out, "out_lengths": lengths, "block": block, "programs": programs, **kept}

    def launch(i: int) -> None:
        index.build_lists(table, requests, committed, **options)

    def check() -> float:
        positions = references.listed_positions(context, steps, kept.get("window"), kept.get("sink", 0))
        if "ring_depth" in kept:
            positions = [references.ring_entry(p, kept["window"], kept["sink"], kept["ring_depth"]) for p in positions]
        wanted = table[0, torch.tensor(positions, device=where.device)]
        out.fill_(-1)
        launch(0)
        ends = [listed + 1 + step for step in range(steps)]
        right = lengths[:, 0].tolist() == ends
        return float(not (right and all(torch.equal(out[s, 0, :end], wanted[:end]) for s, end in enumerate(ends))))

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
