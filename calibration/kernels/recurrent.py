"""One step of recurrent mixers: the state is read once, updated row after row, and written as the engine asks.

Every mixer has two forms. Without ``snapshots`` the last state replaces the given one (a decode step). With them the
state stays, and the state after every row is written (a verify, of which any row may turn out to be the last).
"""

from __future__ import annotations

import importlib.util

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Rows of a Mamba-2 state per program.
BLOCK_P = 8


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    scale: float,
    out: Tensor,
    snapshots: Tensor | None = None,
    block_v: int = 8,
) -> Tensor:
    """Gated delta rule: GDN with one decay per head, KDA with one per key channel. Queries and keys are normalised.

    Args:
        q, k: ``[sequences, rows, k_heads, k_dim]`` bf16; a power of two of channels.
        v: ``[sequences, rows, v_heads, v_dim]`` bf16; v_heads is a multiple of k_heads.
        decay: natural logarithm of the decay, ``[sequences, rows, v_heads]`` or ``[..., v_heads, k_dim]`` float32.
        beta: write strength, ``[sequences, rows, v_heads]`` float32.
        state: ``[sequences, v_heads, k_dim, v_dim]`` float32.
        scale: of the queries.
        out: ``[sequences, rows, v_heads, v_dim]`` bf16, written.
        snapshots: ``[sequences, rows, v_heads, k_dim, v_dim]`` float32, or None to update ``state``.
        block_v: columns of the state per program of one warp.
    """
    sequences, rows, k_heads, k_dim = q.shape
    v_heads, v_dim = v.shape[2:]
    _delta_kernel[(triton.cdiv(v_dim, block_v), v_heads, sequences)](
        q, k, v, decay, beta, state, out, state if snapshots is None else snapshots,
        scale, rows, k_heads, v_heads, v_dim,
        K=k_dim, BLOCK_V=block_v, PER_CHANNEL=decay.dim() == 4, SNAPSHOTS=snapshots is not None, num_warps=1,
    )  # fmt: skip
    return out


def mamba2(
    x: Tensor,
    dt: Tensor,
    a_log: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    out: Tensor,
    snapshots: Tensor | None = None,
) -> Tensor:
    """Mamba-2 (SSD) selective state update, softplus of the time step included.

    Args:
        x: ``[sequences, rows, heads, head_dim]`` bf16.
        dt: raw time steps, ``[sequences, rows, heads]`` bf16.
        a_log, d, dt_bias: ``[heads]`` float32; the state decays by exp(-exp(a_log) softplus(dt + dt_bias)).
        b, c: ``[sequences, rows, groups, state_dim]`` bf16; a power of two of channels.
        state: ``[sequences, heads, head_dim, state_dim]`` float32.
        out: ``[sequences, rows, heads, head_dim]`` bf16, written.
        snapshots: ``[sequences, rows, heads, head_dim, state_dim]`` float32, or None to update ``state``.
    """
    sequences, rows, heads, head_dim = x.shape
    groups, state_dim = b.shape[2:]
    _mamba2_kernel[(triton.cdiv(head_dim, BLOCK_P), heads, sequences)](
        x, dt, a_log, b, c, d, dt_bias, state, out, state if snapshots is None else snapshots,
        rows, heads, groups, head_dim,
        N=state_dim, BLOCK_P=BLOCK_P, SNAPSHOTS=snapshots is not None, num_warps=1,
    )  # fmt: skip
    return out


def short_conv(
    x: Tensor, state: Tensor, weight: Tensor, bias: Tensor, out: Tensor, columns: Tensor | None = None
) -> Tensor:
    """Depthwise causal convolution over the last few inputs, then SiLU.

    Args:
        x: ``[sequences, rows, channels]`` bf16.
        state: the inputs before, ``[sequences, taps - 1, channels]`` bf16.
        weight: ``[channels, taps]`` bf16, the last tap for the present.
        bias: ``[channels]`` bf16.
        out: ``[sequences, rows, channels]`` bf16, written.
        columns: state and rows in one, ``[sequences, taps - 1 + rows, channels]`` bf16, written (a verify); or None to
            update ``state`` (a decode step).
    """
    sequences, rows, channels = x.shape
    _conv_kernel[(triton.cdiv(channels, 256), sequences)](
        x, state, weight, bias, out, state if columns is None else columns,
        channels,
        ROWS=rows, TAPS=weight.shape[1], COLUMNS=columns is not None, BLOCK=256,
    )  # fmt: skip
    return out


# --- the same through fla-core, where it is installed ----------------------------------------------------------


def fla_available() -> bool:
    """Whether fla-core (with its einops) can be imported."""
    return all(importlib.util.find_spec(name) is not None for name in ("fla", "einops"))


@torch.no_grad()
def fla_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """fla-core's fused recurrence on `delta_rule`'s inputs: outputs and the last state, both newly allocated."""
    if decay.dim() == 4:
        from fla.ops.kda import fused_recurrent_kda as rule
    else:
        from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule as rule
    options = {"initial_state": state, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
    return rule(q=q, k=k, v=v, g=decay, beta=beta, scale=scale, **options)


# --- kernels ---------------------------------------------------------------------------------------------------


@triton.jit
def _unit(x):
    """A vector over its length."""
    return x / tl.sqrt(tl.sum(x * x, 0) + 1e-6)


@triton.jit
def _delta_kernel(
    q, k, v, decay, beta, state, out, states_out,
    scale, rows, k_heads, v_heads, v_dim,
    K: tl.constexpr, BLOCK_V: tl.constexpr, PER_CHANNEL: tl.constexpr, SNAPSHOTS: tl.constexpr,
):  # fmt: skip
    """A few columns of one head's state: all rows, one after the other."""
    head, sequence = tl.program_id(1), tl.program_id(2).to(tl.int64)
    k_head = head // (v_heads // k_heads)
    c = tl.arange(0, K)
    column = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    mask = column < v_dim
    cell = c[:, None] * v_dim + column[None, :]
    size = K * v_dim
    h = tl.load(state + (sequence * v_heads + head) * size + cell, mask=mask[None, :], other=0.0)
    for row in range(rows):
        at = sequence * rows + row
        query = _unit(tl.load(q + (at * k_heads + k_head) * K + c).to(tl.float32)) * scale
        key = _unit(tl.load(k + (at * k_heads + k_head) * K + c).to(tl.float32))
        value = tl.load(v + (at * v_heads + head) * v_dim + column, mask=mask, other=0.0).to(tl.float32)
        strength = tl.load(beta + at * v_heads + head)
        if PER_CHANNEL:
            h *= tl.exp(tl.load(decay + (at * v_heads + head) * K + c))[:, None]
        else:
            h *= tl.exp(tl.load(decay + at * v_heads + head))
        error = (value - tl.sum(h * key[:, None], 0)) * strength
        h += key[:, None] * error[None, :]
        result = tl.sum(h * query[:, None], 0)
        tl.store(out + (at * v_heads + head) * v_dim + column, result.to(out.dtype.element_ty), mask=mask)
        if SNAPSHOTS:
            tl.store(states_out + (at * v_heads + head) * size + cell, h, mask=mask[None, :])
    if not SNAPSHOTS:
        tl.store(states_out + (sequence * v_heads + head) * size + cell, h, mask=mask[None, :])


@triton.jit
def softplus(x):
    """log(1 + exp(x)), and x where that is the same."""
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def _mamba2_kernel(
    x, dt, a_log, b, c, d, dt_bias, state, out, states_out,
    rows, heads, groups, head_dim,
    N: tl.constexpr, BLOCK_P: tl.constexpr, SNAPSHOTS: tl.constexpr,
):  # fmt: skip
    """A few rows of one head's state: all rows of the sequence, one after the other."""
    head, sequence = tl.program_id(1), tl.program_id(2).to(tl.int64)
    group = head // (heads // groups)
    n = tl.arange(0, N)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    mask = p < head_dim
    cell = p[:, None] * N + n[None, :]
    size = head_dim * N
    rate = -tl.exp(tl.load(a_log + head))
    skip, bias = tl.load(d + head), tl.load(dt_bias + head)
    h = tl.load(state + (sequence * heads + head) * size + cell, mask=mask[:, None], other=0.0)
    for row in range(rows):
        at = sequence * rows + row
        width = softplus(tl.load(dt + at * heads + head).to(tl.float32) + bias)
        value = tl.load(x + (at * heads + head) * head_dim + p, mask=mask, other=0.0).to(tl.float32)
        write = tl.load(b + (at * groups + group) * N + n).to(tl.float32)
        read = tl.load(c + (at * groups + group) * N + n).to(tl.float32)
        h = h * tl.exp(rate * width) + (value * width)[:, None] * write[None, :]
        result = tl.sum(h * read[None, :], 1) + skip * value
        tl.store(out + (at * heads + head) * head_dim + p, result.to(out.dtype.element_ty), mask=mask)
        if SNAPSHOTS:
            tl.store(states_out + (at * heads + head) * size + cell, h, mask=mask[:, None])
    if not SNAPSHOTS:
        tl.store(states_out + (sequence * heads + head) * size + cell, h, mask=mask[:, None])


@triton.jit
def _column(x, state, sequence, index, channel, mask, channels, ROWS: tl.constexpr, PAST: tl.constexpr):
    """Column ``index`` of the state followed by the rows."""
    if index < PAST:
        value = tl.load(state + (sequence * PAST + index) * channels + channel, mask=mask, other=0.0)
    else:
        value = tl.load(x + (sequence * ROWS + index - PAST) * channels + channel, mask=mask, other=0.0)
    return value


@triton.jit
def _conv_kernel(
    x, state, weight, bias, out, columns,
    channels,
    ROWS: tl.constexpr, TAPS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """256 channels of one sequence. A state in place is written last, each column after those before it were read."""
    sequence = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = channel < channels
    PAST: tl.constexpr = TAPS - 1
    offset = tl.load(bias + channel, mask=mask, other=0.0).to(tl.float32)
    for row in tl.static_range(ROWS):
        total = offset
        for tap in tl.static_range(TAPS):
            column = _column(x, state, sequence, row + tap, channel, mask, channels, ROWS, PAST)
            factor = tl.load(weight + channel * TAPS + tap, mask=mask, other=0.0)
            total += column.to(tl.float32) * factor.to(tl.float32)
        result = total * tl.sigmoid(total)
        tl.store(out + (sequence * ROWS + row) * channels + channel, result.to(out.dtype.element_ty), mask=mask)
    if COLUMNS:
        for index in tl.static_range(PAST + ROWS):
            column = _column(x, state, sequence, index, channel, mask, channels, ROWS, PAST)
            tl.store(columns + (sequence * (PAST + ROWS) + index) * channels + channel, column, mask=mask)
    else:
        for index in tl.static_range(PAST):
            column = _column(x, state, sequence, ROWS + index, channel, mask, channels, ROWS, PAST)
            tl.store(columns + (sequence * PAST + index) * channels + channel, column, mask=mask)
