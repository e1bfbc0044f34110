"""The many small kernels between the large ones: norms, activations, rope, routing, copies, sampling, acceptance.

Most of their time is a launch and one trip to memory; a step has hundreds of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

#: What norms add to a mean square.
EPS = 1e-6


def rms_norm(
    x: Tensor, weight: Tensor, out: Tensor, *, residual: Tensor | None = None, picked: Tensor | None = None
) -> Tensor:
    """RMSNorm of ``x [.., hidden]`` (plus ``residual``) with ``weight [hidden]``, into ``out [n, hidden]``.

    Rows of ``x`` and ``out`` may be column ranges of wider matrices. picked: ``[n]`` int32, which of each sequence's
    rows is normed (x has as many rows for each); None norms them all.
    """
    return _norm(x, residual, weight, out, picked, keep=False)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """Adds ``x`` to ``residual`` in place, and norms the sum into ``out``; all ``[rows, hidden]``."""
    return _norm(x, residual, weight, out, None, keep=True)


def _norm(x: Tensor, residual: Tensor | None, weight: Tensor, out: Tensor, picked: Tensor | None, keep: bool) -> Tensor:
    count, hidden = out.shape
    _norm_kernel[(count,)](
        x, x if residual is None else residual, weight, out, x if picked is None else picked,
        x.stride(0), out.stride(0), hidden, x.shape[0] // count, EPS,
        ADD=residual is not None, KEEP=keep, PICK=picked is not None, BLOCK=triton.next_power_of_2(hidden), num_warps=8,
    )  # fmt: skip
    return out


def silu_mul(gate_up: Tensor, out: Tensor) -> Tensor:
    """SiLU(gate) * up: ``gate_up [rows, 2 * inner]`` into ``out [rows, inner]``."""
    return _activate(gate_up, out, gated=True)


def relu_squared(x: Tensor, out: Tensor) -> Tensor:
    """The squared ReLU of ``x [rows, inner]``, into ``out`` of the same shape."""
    return _activate(x, out, gated=False)


def _activate(x: Tensor, out: Tensor, gated: bool) -> Tensor:
    rows, inner = out.shape
    _activation_kernel[(rows, triton.cdiv(inner, 1024))](x, out, inner, GATED=gated, BLOCK=1024)
    return out


def rope_and_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    q_out: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
) -> None:
    """Rotates queries and keys, and writes keys and values to their cache slots: 1 kernel.

    Args:
        q, k, v: ``[rows, q_heads or kv_heads, head_dim or v_head_dim]`` bf16.
        cos_sin: cosines, then sines, of every position, ``[positions, rotary]`` float32; rotary / 2 is a power of two.
            Entries of a head past ``rotary`` are not rotated.
        positions, slots: of each row, ``[rows]`` int32 or int64.
        q_out: as q, written.
        k_cache, v_cache: ``[slots, kv_heads, head_dim or v_head_dim]`` bf16, written at ``slots``.
    """
    rows, q_heads, head_dim = q.shape
    kv_heads, v_dim = v.shape[1:]
    _rope_kernel[(rows, q_heads + kv_heads)](
        q, k, v, cos_sin, positions, slots, q_out, k_cache, v_cache,
        q_heads, kv_heads, head_dim, v_dim,
        HALF=cos_sin.shape[1] // 2, BLOCK_D=triton.next_power_of_2(head_dim), BLOCK_V=triton.next_power_of_2(v_dim),
        num_warps=1,
    )  # fmt: skip


def router(logits: Tensor, ids: Tensor, weights: Tensor) -> None:
    """The best experts of ``logits [rows, experts]``: ``ids [rows, top_k]`` int32 and softmax ``weights`` float32.

    Weights are renormalised over the chosen. Equal logits go to the lower id.
    """
    rows, experts = logits.shape
    top_k = ids.shape[1]
    blocks = {"BLOCK": triton.next_power_of_2(experts), "BLOCK_K": triton.next_power_of_2(top_k)}
    _router_kernel[(rows,)](logits, ids, weights, experts, top_k, **blocks, num_warps=1)


def empty(programs: int = 1) -> None:
    """A kernel that does nothing: what a launch costs."""
    _empty_kernel[(programs,)]()


def copy(source: Tensor, target: Tensor) -> Tensor:
    """A device copy of ``source``'s bytes, as torch does it."""
    return target.copy_(source)


def argmax(logits: Tensor, best: Tensor) -> Tensor:
    """Greedy sampling: the best entry of each row of ``logits [rows, vocab]``, into ``best [rows]`` int64."""
    return torch.argmax(logits, dim=-1, out=best)


def accept(draft: Tensor, best: Tensor, accepted: Tensor, tokens: Tensor) -> None:
    """Counts the drafted tokens that the target would have chosen too, up to the first that it would not.

    Args:
        draft: ``[sequences, depth]`` int64.
        best: the target's choice after each row, ``[sequences, depth + 1]`` int64.
        accepted: ``[sequences]`` int32, written.
        tokens: ``[sequences, depth + 1]`` int64, written: accepted tokens and one more of the target, then -1.
    """
    sequences, depth = draft.shape
    _accept_kernel[(sequences,)](
        draft, best, accepted, tokens, depth, BLOCK=triton.next_power_of_2(depth + 1), num_warps=1
    )


# --- kernels, and what kernels of other modules share with them ------------------------------------------------


@triton.jit
def unit_scale(value, size, eps):
    """One over the root mean square of ``size`` values; entries past them are zero."""
    return 1.0 / tl.sqrt(tl.sum(value * value, 0) / size + eps)


@triton.jit
def _norm_kernel(
    x, residual, weight, out, picked,
    x_step, out_step, hidden, rows, eps,
    ADD: tl.constexpr, KEEP: tl.constexpr, PICK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row."""
    target = tl.program_id(0).to(tl.int64)
    source = target * rows + tl.load(picked + target) if PICK else target
    column = tl.arange(0, BLOCK)
    mask = column < hidden
    value = tl.load(x + source * x_step + column, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + source * hidden + column, mask=mask, other=0.0).to(tl.float32)
    if KEEP:
        tl.store(residual + source * hidden + column, value.to(residual.dtype.element_ty), mask=mask)
    factor = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    value = value * unit_scale(value, hidden, eps) * factor
    tl.store(out + target * out_step + column, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def activated(inner, column, mask, width, GATED: tl.constexpr):
    """SiLU(gate) * up of one row ``[2 * width]``, or relu(up)^2 of ``[width]``, at some columns."""
    if GATED:
        gate = tl.load(inner + column, mask=mask, other=0.0).to(tl.float32)
        value = gate * tl.sigmoid(gate) * tl.load(inner + width + column, mask=mask, other=0.0).to(tl.float32)
    else:
        up = tl.maximum(tl.load(inner + column, mask=mask, other=0.0).to(tl.float32), 0.0)
        value = up * up
    return value


@triton.jit
def _activation_kernel(x, out, width, GATED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    value = activated(x + row * width * (2 if GATED else 1), column, mask, width, GATED)
    tl.store(out + row * width + column, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def turn(source, target, cos, sin, HALF: tl.constexpr):
    """Rotates entries against those HALF further on. source, target: [HALF] pointers to the first ones."""
    low, high = tl.load(source).to(tl.float32), tl.load(source + HALF).to(tl.float32)
    tl.store(target, (low * cos - high * sin).to(target.dtype.element_ty))
    tl.store(target + HALF, (high * cos + low * sin).to(target.dtype.element_ty))


@triton.jit
def _rotate(source, target, cos, sin, head_dim, HALF: tl.constexpr, BLOCK_D: tl.constexpr):
    """One head: rotated in its first 2 * HALF entries, copied in the others."""
    half, d = tl.arange(0, HALF), tl.arange(0, BLOCK_D)
    rest = (d >= 2 * HALF) & (d < head_dim)
    tl.store(target + d, tl.load(source + d, mask=rest, other=0.0), mask=rest)
    turn(source + half, target + half, cos, sin, HALF)


@triton.jit
def _rope_kernel(
    q, k, v, cos_sin, positions, slots, q_out, k_cache, v_cache,
    q_heads, kv_heads, head_dim, v_dim,
    HALF: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One head of one row: a query, or a key and its value."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    angle = cos_sin + tl.load(positions + row).to(tl.int64) * (2 * HALF) + tl.arange(0, HALF)
    cos, sin = tl.load(angle), tl.load(angle + HALF)
    if head < q_heads:
        at = (row * q_heads + head) * head_dim
        _rotate(q + at, q_out + at, cos, sin, head_dim, HALF, BLOCK_D)
    else:
        kv_head = head - q_heads
        slot = tl.load(slots + row).to(tl.int64)
        source, target = row * kv_heads + kv_head, slot * kv_heads + kv_head
        _rotate(k + source * head_dim, k_cache + target * head_dim, cos, sin, head_dim, HALF, BLOCK_D)
        d = tl.arange(0, BLOCK_V)
        value = tl.load(v + source * v_dim + d, mask=d < v_dim, other=0.0)
        tl.store(v_cache + target * v_dim + d, value, mask=d < v_dim)


@triton.jit
def _router_kernel(logits, ids, weights, experts, top_k, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    """One row: the best is taken out ``top_k`` times."""
    row = tl.program_id(0)
    expert, place = tl.arange(0, BLOCK), tl.arange(0, BLOCK_K)
    score = tl.load(logits + row * experts + expert, mask=expert < experts, other=float("-inf")).to(tl.float32)
    best = tl.max(score, 0)
    chosen = tl.zeros([BLOCK_K], tl.int32)
    share = tl.zeros([BLOCK_K], tl.float32)
    for choice in range(top_k):
        value, top = tl.max(score, 0, return_indices=True)
        chosen = tl.where(place == choice, top, chosen)
        share = tl.where(place == choice, tl.exp(value - best), share)
        score = tl.where(expert == top, float("-inf"), score)
    share = share / tl.sum(share, 0)
    tl.store(ids + row * top_k + place, chosen, mask=place < top_k)
    tl.store(weights + row * top_k + place, share, mask=place < top_k)


@triton.jit
def _empty_kernel():
    pass


@triton.jit
def _accept_kernel(draft, best, accepted, tokens, depth, BLOCK: tl.constexpr):
    """One sequence."""
    sequence = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    drafted = tl.load(draft + sequence * depth + place, mask=place < depth, other=-1)
    wanted = tl.load(best + sequence * (depth + 1) + place, mask=place <= depth, other=-2)
    misses = tl.cumsum((drafted != wanted).to(tl.int32), 0)
    count = tl.sum((misses == 0).to(tl.int32), 0)
    tl.store(accepted + sequence, count)
    tl.store(tokens + sequence * (depth + 1) + place, tl.where(place <= count, wanted, -1), mask=place <= depth)
