"""Small kernels of the bench's layers that `calibration.kernels.small` lacks: they take a fused product's output apart.

Every function is one launch. Inputs named ``*_rows`` may be column ranges of a wider matrix: their row stride is
honoured, their columns are dense.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from calibration.kernels.recurrent import softplus
from calibration.kernels.small import EPS, turn, unit_scale


def embed(table: Tensor, first: Tensor, rest: Tensor | None, out: Tensor) -> Tensor:
    """Embedding rows ``out [sequences * rows, hidden]`` of each sequence's first token and of the ones after it.

    first: ``[sequences]``; rest: ``[sequences, rows - 1]`` or None; both int64 and of any sequence stride.
    """
    tokens, hidden = out.shape
    rest = first if rest is None else rest
    rows = tokens // first.shape[0]
    grid = (tokens, triton.cdiv(hidden, 1024))
    _embed_kernel[grid](table, first, rest, out, first.stride(0), rest.stride(0), hidden, rows, BLOCK=1024)
    return out


def split(source_rows: Tensor, *parts: Tensor) -> None:
    """Copies the columns of ``source_rows [rows, >= widths]`` to up to three dense parts ``[rows, width]`` in order."""
    a, b, c = (*parts, *(parts[:1] * (3 - len(parts))))
    widths = [part.shape[1] for part in parts] + [0] * (3 - len(parts))
    grid = (source_rows.shape[0], triton.cdiv(sum(widths), 1024))
    _split_kernel[grid](source_rows, a, b, c, source_rows.stride(0), *widths, BLOCK=1024)


def split_heads(
    qkv_rows: Tensor, q_norm: Tensor | None, k_norm: Tensor | None, bias: Tensor | None, q: Tensor, k: Tensor, v: Tensor
) -> None:
    """Heads of ``[q | k | v | ..]`` rows as dense ``q, k, v [rows, heads, head_dim]``, biased and normed where asked.

    q_norm, k_norm: ``[head_dim]`` RMSNorm weights, both or neither. bias: of the q, k and v columns, or None.
    """
    rows, q_heads, head_dim = q.shape
    kv_heads, v_dim = v.shape[1:]
    _split_heads_kernel[(rows, q_heads + 2 * kv_heads)](
        qkv_rows, qkv_rows if q_norm is None else q_norm, qkv_rows if k_norm is None else k_norm,
        qkv_rows if bias is None else bias, q, k, v,
        qkv_rows.stride(0), q_heads, kv_heads, head_dim, v_dim, EPS,
        NORM=q_norm is not None, BIAS=bias is not None, BLOCK=triton.next_power_of_2(max(head_dim, v_dim)), num_warps=1,
    )  # fmt: skip


def gate(x: Tensor, gates_rows: Tensor, out: Tensor) -> Tensor:
    """``x * sigmoid(gates_rows)``, all ``[rows, width]``."""
    rows, width = out.shape
    _gate_kernel[(rows, triton.cdiv(width, 1024))](x, gates_rows, out, gates_rows.stride(0), width, BLOCK=1024)
    return out


def decay_and_strength(ba: Tensor, a_log: Tensor, dt_bias: Tensor, decay: Tensor, beta: Tensor) -> None:
    """GDN's gates: ``beta = sigmoid(b)`` and ``decay = -exp(a_log) softplus(a + dt_bias)``.

    ba: ``[rows, 2 * heads]``, b first. a_log, dt_bias: ``[heads]`` float32. decay, beta: ``[rows, heads]`` float32.
    """
    rows, heads = decay.shape
    block = triton.next_power_of_2(heads)
    _decay_kernel[(rows,)](ba, a_log, dt_bias, decay, beta, heads, BLOCK=block, num_warps=1)


def gated_norm(y: Tensor, z_rows: Tensor, weight: Tensor, out: Tensor, groups: int, gate_first: bool) -> Tensor:
    """RMSNorm of each of ``groups`` equal parts of ``y [rows, width]``, times SiLU(z), before (Mamba-2) or after (GDN).

    weight: ``[width]``. out: ``[rows, width]``.
    """
    rows, width = y.shape
    size = width // groups
    _gated_norm_kernel[(rows, groups)](
        y, z_rows, weight, out,
        z_rows.stride(0), width, size, EPS,
        GATE_FIRST=gate_first, BLOCK=triton.next_power_of_2(size), num_warps=4 if size > 512 else 1,
    )  # fmt: skip
    return out


def add_shared(routed: Tensor, shared: Tensor, logit: Tensor | None, out: Tensor) -> Tensor:
    """``routed + shared``, the latter times ``sigmoid(logit [rows, 1])`` where there is one; all ``[rows, hidden]``."""
    rows, hidden = out.shape
    _add_shared_kernel[(rows, triton.cdiv(hidden, 1024))](
        routed, shared, routed if logit is None else logit, out, hidden, GATED=logit is not None, BLOCK=1024
    )
    return out


def latent_rope_and_cache(
    q: Tensor,
    latent_rows: Tensor,
    weight: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    q_absorbed: Tensor,
    cache: Tensor,
) -> None:
    """Rotates MLA's queries and shared key, norms the latent, and writes latent and key to their cache slots.

    Args:
        q: ``[rows, heads, nope + rope]``; the last ``rope`` entries are rotated into the tail of ``q_absorbed``.
        latent_rows: ``[rows, latent + rope]``.
        weight: ``[latent]``, of the RMSNorm.
        cos_sin: cosines, then sines, ``[positions, rope]`` float32.
        positions, slots: of each row, ``[rows]`` int32.
        q_absorbed: ``[rows, heads, latent + rope]``; its head is left alone.
        cache: ``[slots, latent + rope]``, written at ``slots``.
    """
    rows, heads, qk = q.shape
    latent, rope = weight.shape[0], cos_sin.shape[1]
    _latent_rope_kernel[(rows, heads + 1)](
        q, latent_rows, weight, cos_sin, positions, slots, q_absorbed, cache,
        latent_rows.stride(0), heads, qk, latent, EPS,
        HALF=rope // 2, BLOCK=triton.next_power_of_2(latent), num_warps=1,
    )  # fmt: skip


def hand_over(tokens: Tensor, accepted: Tensor, committed: Tensor, bonus: Tensor, next_committed: Tensor) -> None:
    """What the next step starts from: its first token, ``bonus [sequences]`` int64, and how many tokens are then
    committed, ``next_committed [sequences]`` int32.

    tokens: ``[sequences, rows]``, accepted ones and one more. accepted, committed: ``[sequences]`` int32.
    """
    sequences, rows = tokens.shape
    _hand_over_kernel[(sequences,)](tokens, accepted, committed, bonus, next_committed, rows, num_warps=1)


def commit(snapshots: Tensor, columns: Tensor, accepted: Tensor, state: Tensor, conv: Tensor) -> None:
    """Copies each sequence's state after its last accepted row, and the convolution inputs before the next one.

    Args:
        snapshots: ``[layers, sequences, rows, n]``; state: ``[layers, sequences, n]``, written.
        columns: ``[layers, sequences, taps - 1 + rows, channels]``; conv: ``[layers, sequences, taps - 1, channels]``,
            written.
        accepted: ``[sequences]`` int32, the row.
    """
    layers, sequences, rows, n = snapshots.shape
    past, channels = conv.shape[2:]
    blocks = triton.cdiv(n, 4096)
    _commit_kernel[(blocks + triton.cdiv(past * channels, 4096), layers * sequences)](
        snapshots, columns, accepted, state, conv,
        blocks, sequences, rows, n, past * channels, channels,
        BLOCK=4096, num_warps=8,
    )  # fmt: skip


# --- kernels ---------------------------------------------------------------------------------------------------


@triton.jit
def _embed_kernel(table, first, rest, out, first_step, rest_step, hidden, rows, BLOCK: tl.constexpr):
    at = tl.program_id(0)
    sequence, row = (at // rows).to(tl.int64), at % rows
    head = tl.load(first + sequence * first_step)
    later = tl.load(rest + sequence * rest_step + row - 1, mask=row > 0, other=0)
    token = tl.where(row > 0, later, head)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < hidden
    value = tl.load(table + token * hidden + column, mask=mask)
    tl.store(out + at.to(tl.int64) * hidden + column, value, mask=mask)


@triton.jit
def _split_kernel(source, a, b, c, step, a_width, b_width, c_width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    end_b = a_width + b_width
    value = tl.load(source + row * step + column, mask=column < end_b + c_width, other=0.0)
    tl.store(a + row * a_width + column, value, mask=column < a_width)
    tl.store(b + row * b_width + column - a_width, value, mask=(column >= a_width) & (column < end_b))
    tl.store(c + row * c_width + column - end_b, value, mask=(column >= end_b) & (column < end_b + c_width))


@triton.jit
def _split_heads_kernel(
    qkv, q_norm, k_norm, bias, q, k, v,
    step, q_heads, kv_heads, head_dim, v_dim, eps,
    NORM: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One head of one row."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d = tl.arange(0, BLOCK)
    keys = q_heads + kv_heads
    is_value = head >= keys
    width = tl.where(is_value, v_dim, head_dim)
    start = tl.where(is_value, keys * head_dim + (head - keys) * v_dim, head * head_dim)
    mask = d < width
    value = tl.load(qkv + row * step + start + d, mask=mask, other=0.0).to(tl.float32)
    if BIAS:
        value += tl.load(bias + start + d, mask=mask, other=0.0).to(tl.float32)
    if head < q_heads:
        if NORM:
            value *= unit_scale(value, head_dim, eps) * tl.load(q_norm + d, mask=mask, other=0.0).to(tl.float32)
        tl.store(q + (row * q_heads + head) * head_dim + d, value.to(q.dtype.element_ty), mask=mask)
    elif head < keys:
        if NORM:
            value *= unit_scale(value, head_dim, eps) * tl.load(k_norm + d, mask=mask, other=0.0).to(tl.float32)
        tl.store(k + (row * kv_heads + head - q_heads) * head_dim + d, value.to(k.dtype.element_ty), mask=mask)
    else:
        tl.store(v + (row * kv_heads + head - keys) * v_dim + d, value.to(v.dtype.element_ty), mask=mask)


@triton.jit
def _gate_kernel(x, gates, out, step, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    value = tl.load(x + row * width + column, mask=mask, other=0.0).to(tl.float32)
    opening = tl.sigmoid(tl.load(gates + row * step + column, mask=mask, other=0.0).to(tl.float32))
    tl.store(out + row * width + column, (value * opening).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _decay_kernel(ba, a_log, dt_bias, decay, beta, heads, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK)
    mask = head < heads
    b = tl.load(ba + row * 2 * heads + head, mask=mask, other=0.0).to(tl.float32)
    width = tl.load(ba + row * 2 * heads + heads + head, mask=mask, other=0.0).to(tl.float32)
    width += tl.load(dt_bias + head, mask=mask, other=0.0)
    rate = tl.exp(tl.load(a_log + head, mask=mask, other=0.0))
    tl.store(decay + row * heads + head, -rate * softplus(width), mask=mask)
    tl.store(beta + row * heads + head, tl.sigmoid(b), mask=mask)


@triton.jit
def _gated_norm_kernel(y, z, weight, out, z_step, width, size, eps, GATE_FIRST: tl.constexpr, BLOCK: tl.constexpr):
    """One group of one row."""
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    mask = d < size
    column = tl.program_id(1) * size + d
    value = tl.load(y + row * width + column, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(z + row * z_step + column, mask=mask, other=0.0).to(tl.float32)
    gate *= tl.sigmoid(gate)
    if GATE_FIRST:
        value *= gate
    value *= unit_scale(value, size, eps) * tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    if not GATE_FIRST:
        value *= gate
    tl.store(out + row * width + column, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _add_shared_kernel(routed, shared, logit, out, hidden, GATED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < hidden
    value = tl.load(shared + row * hidden + column, mask=mask, other=0.0).to(tl.float32)
    if GATED:
        value *= tl.sigmoid(tl.load(logit + row).to(tl.float32))
    value += tl.load(routed + row * hidden + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + column, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _latent_rope_kernel(
    q, latents, weight, cos_sin, positions, slots, q_absorbed, cache,
    step, heads, qk, latent, eps,
    HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One head of one row, or, last, the row's latent and key."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half = tl.arange(0, HALF)
    angle = cos_sin + tl.load(positions + row).to(tl.int64) * (2 * HALF) + half
    cos, sin = tl.load(angle), tl.load(angle + HALF)
    width = latent + 2 * HALF
    if head < heads:
        at = row * heads + head
        turn(q + at * qk + qk - 2 * HALF + half, q_absorbed + at * width + latent + half, cos, sin, HALF)
    else:
        source = latents + row * step
        target = cache + tl.load(slots + row).to(tl.int64) * width
        d = tl.arange(0, BLOCK)
        mask = d < latent
        value = tl.load(source + d, mask=mask, other=0.0).to(tl.float32)
        value *= unit_scale(value, latent, eps) * tl.load(weight + d, mask=mask, other=0.0).to(tl.float32)
        tl.store(target + d, value.to(cache.dtype.element_ty), mask=mask)
        turn(source + latent + half, target + latent + half, cos, sin, HALF)


@triton.jit
def _hand_over_kernel(tokens, accepted, committed, bonus, next_committed, rows):
    sequence = tl.program_id(0)
    count = tl.load(accepted + sequence)
    tl.store(bonus + sequence, tl.load(tokens + sequence * rows + count))
    tl.store(next_committed + sequence, tl.load(committed + sequence) + count + 1)


@triton.jit
def _commit_kernel(
    snapshots, columns, accepted, state, conv, blocks, sequences, rows, n, conv_n, channels, BLOCK: tl.constexpr
):
    """4096 elements of one sequence's state, or of its convolution inputs, in one layer."""
    cell = tl.program_id(1).to(tl.int64)
    row = tl.load(accepted + cell % sequences)
    block = tl.program_id(0)
    if block < blocks:
        _copy(snapshots + (cell * rows + row) * n, state + cell * n, block, n, BLOCK)
    else:
        past = columns + cell * (conv_n + rows * channels) + (row + 1) * channels
        _copy(past, conv + cell * conv_n, block - blocks, conv_n, BLOCK)


@triton.jit
def _copy(source, target, block, n, BLOCK: tl.constexpr):
    element = block * BLOCK + tl.arange(0, BLOCK)
    mask = element < n
    tl.store(target + element, tl.load(source + element, mask=mask), mask=mask)
