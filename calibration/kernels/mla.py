"""Absorbed multi-head latent attention over a paged cache: split over the cache, then combined.

One cached token is a latent (key and value of all heads) and a shared rotary key, 512 + 64 elements as a rule. Queries
of all heads and rows of one sequence see the same tokens, so they are packed into blocks of 64 of a matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Queries (row x head) per program: what one Hopper warp group multiplies.
BLOCK_QUERIES = 64
LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Workspace:
    """Partial results: ``partial [sequences, queries, splits, latent]`` and ``lse [sequences, queries, splits]``."""

    partial: Tensor
    lse: Tensor

    @property
    def splits(self) -> int:
        return self.lse.shape[-1]


def choose_splits(sequences: int, queries: int, sm_count: int, longest: int, block: int = 32) -> int:
    """Splits that give every multiprocessor one program, but no split less than one block of tokens."""
    programs = sequences * triton.cdiv(queries, BLOCK_QUERIES)
    return max(1, min(sm_count // programs, triton.cdiv(longest, block)))


def make_workspace(q: Tensor, latent: int, splits: int) -> Workspace:
    """Buffers for ``q [sequences, rows, heads, latent + rope]`` and a fixed number of splits."""
    sequences, rows, heads, _ = q.shape
    shape = (sequences, rows * heads, splits)
    return Workspace(
        partial=torch.empty(*shape, latent, dtype=torch.float32, device=q.device),
        lse=torch.empty(shape, dtype=torch.float32, device=q.device),
    )


def attention(
    q: Tensor,
    cache: Tensor,
    slots: Tensor,
    lengths: Tensor,
    *,
    scale: float,
    out: Tensor,
    workspace: Workspace,
    block: int = 32,
    stages: int = 3,
) -> Tensor:
    """Decode (one row) or verify (several, the last rows of the sequence, each blind to later ones): 2 kernels.

    Args:
        q: absorbed queries, ``[sequences, rows, heads, latent + rope]`` bf16, contiguous.
        cache: ``[slots, latent + rope]`` bf16. The rows' own tokens are already in it.
        slots: token i of sequence s lies in slot ``slots[s, i]``, ``[sequences, width]`` int32 or int64.
        lengths: tokens of each sequence, its new rows included, ``[sequences]`` int32.
        scale: of the scores.
        out: ``[sequences, rows, heads, latent]`` bf16, written.
        workspace: from `make_workspace`.
        block, stages: tokens per turn, and pipeline depth.
    """
    sequences, rows, heads, width = q.shape
    latent, queries, splits = out.shape[-1], rows * heads, workspace.splits
    _split_kernel[(triton.cdiv(queries, BLOCK_QUERIES), splits, sequences)](
        q, cache, slots, lengths, workspace.partial, workspace.lse,
        queries, rows, heads, slots.shape[1], splits, scale * LOG2_E,
        LATENT=latent, ROPE=width - latent, BLOCK_M=BLOCK_QUERIES, BLOCK_N=block, UPCAST=q.device.type == "cpu",
        num_warps=8, num_stages=stages,
    )  # fmt: skip
    _combine_kernel[(sequences * queries, triton.cdiv(latent, 128))](
        workspace.partial, workspace.lse, out, splits,
        LATENT=latent, SPLITS=triton.next_power_of_2(splits), BLOCK_S=min(16, triton.next_power_of_2(splits)),
        BLOCK_D=min(128, latent),
    )  # fmt: skip
    return out


@triton.jit
def _split_kernel(
    q, cache, slots, lengths, partial, lse,
    queries, rows, heads, width, splits, scale_log2,
    LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """64 queries of one sequence over one split of its tokens: a normalised output and a base-2 log-sum-exp.

    A query that sees nothing of the split gets a log-sum-exp of -inf. UPCAST: Triton's interpreter multiplies the bit
    patterns of bf16, so it gets float32.
    """
    split, sequence = tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + sequence)
    listed = slots + sequence.to(tl.int64) * width
    per_split = tl.cdiv(tl.cdiv(length, splits), BLOCK_N) * BLOCK_N
    start = split * per_split
    stop = tl.minimum(start + per_split, length)

    query = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid = query < queries
    sees = tl.minimum(length - rows + query // heads + 1, stop)
    d, r = tl.arange(0, LATENT), tl.arange(0, ROPE)
    q_row = q + (sequence.to(tl.int64) * queries + query[:, None]) * (LATENT + ROPE)
    q_latent = tl.load(q_row + d[None, :], mask=valid[:, None], other=0.0)
    q_rope = tl.load(q_row + LATENT + r[None, :], mask=valid[:, None], other=0.0)

    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, LATENT], tl.float32)
    for first in range(start, stop, BLOCK_N):
        token = first + tl.arange(0, BLOCK_N)
        inside = token < stop
        slot = tl.load(listed + token, mask=inside, other=0).to(tl.int64)
        row = cache + slot[:, None] * (LATENT + ROPE)
        latent = tl.load(row + d[None, :], mask=inside[:, None], other=0.0)
        rope = tl.load(row + LATENT + r[None, :], mask=inside[:, None], other=0.0)
        if UPCAST:
            latent, rope = latent.to(tl.float32), rope.to(tl.float32)
            scores = tl.dot(q_rope.to(tl.float32), tl.trans(rope))
            scores = tl.dot(q_latent.to(tl.float32), tl.trans(latent), scores)
        else:
            scores = tl.dot(q_rope, tl.trans(rope))
            scores = tl.dot(q_latent, tl.trans(latent), scores)
        scores = tl.where(token[None, :] < sees[:, None], scores * scale_log2, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        offset = tl.where(new_best == float("-inf"), 0.0, new_best)
        share = tl.exp2(scores - offset[:, None])
        shrink = tl.exp2(best - offset)
        weight = weight * shrink + tl.sum(share, 1)
        total = tl.dot(share.to(latent.dtype), latent, total * shrink[:, None])
        best = new_best

    seen = weight > 0.0
    cell = (sequence.to(tl.int64) * queries + query) * splits + split
    total = total / tl.where(seen, weight, 1.0)[:, None]
    tl.store(partial + cell[:, None] * LATENT + d[None, :], total, mask=(valid & seen)[:, None])
    tl.store(lse + cell, tl.where(seen, best + tl.log2(tl.where(seen, weight, 1.0)), float("-inf")), mask=valid)


@triton.jit
def _combine_kernel(
    partial, lse, out, splits,
    LATENT: tl.constexpr, SPLITS: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One query's output from its splits, 128 elements at a time."""
    query = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    everything = tl.arange(0, SPLITS)
    best = tl.max(tl.load(lse + query * splits + everything, mask=everything < splits, other=float("-inf")), 0)
    weight = 0.0
    total = tl.zeros([BLOCK_D], tl.float32)
    for first in range(0, splits, BLOCK_S):
        split = first + tl.arange(0, BLOCK_S)
        level = tl.load(lse + query * splits + split, mask=split < splits, other=float("-inf"))
        share = tl.exp2(level - best)
        cell = partial + (query * splits + split[:, None]) * LATENT + d[None, :]
        value = tl.load(cell, mask=(level > float("-inf"))[:, None], other=0.0)
        total += tl.sum(share[:, None] * value, 0)
        weight += tl.sum(share, 0)
    tl.store(out + query * LATENT + d, (total / weight).to(out.dtype.element_ty))
