"""Routed experts for a few rows: align, gate and up, activation, down, sum. Fixed shapes, no host decision.

A *pair* is one (row, choice) of the routing, numbered ``row * top_k + choice``. Two variants multiply them:

* `grouped`: pairs of one expert share blocks of 16 rows, so that an expert's weights are streamed once;
* `paired`: every pair is a block of its own, as in vLLM's small-batch path, and asks for its expert's weights anew.

Gated experts have ``gate_up [experts, 2 * inner, hidden]`` (SiLU(gate) * up); plain ones ``[experts, inner, hidden]``
(squared ReLU, as Nemotron). ``down`` is ``[experts, hidden, inner]``. All are bf16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from calibration.kernels.small import activated

#: Rows of one block, the smallest that tensor cores take.
BLOCK_ROWS = 16


@dataclass(frozen=True)
class Tile:
    """How one program multiplies: ``n`` outputs at a time, ``k`` inputs per turn."""

    n: int = 64
    k: int = 128
    warps: int = 4
    stages: int = 4


DEFAULT_TILE = Tile()


@dataclass(frozen=True)
class Workspace:
    """Buffers of one shape of the layer.

    Attributes:
        counts: pairs of each expert, ``[experts]`` int32.
        block_expert: expert of each block, -1 past the last, ``[max_blocks]`` int32.
        block_pairs: pairs of each block, ``rows * top_k`` where a block is not full, ``[max_blocks, 16]`` int32.
        inner: gate and up of each pair, ``[pairs, inner or 2 * inner]``.
        activated: ``[pairs, inner]``.
        outputs: down's output times the routing weight, ``[pairs, hidden]``.
    """

    counts: Tensor
    block_expert: Tensor
    block_pairs: Tensor
    inner: Tensor
    activated: Tensor
    outputs: Tensor


def max_blocks(pairs: int, experts: int) -> int:
    """The most blocks of 16 that ``pairs`` can need, whatever the routing."""
    touched = min(pairs, experts)
    return touched + (pairs - touched) // BLOCK_ROWS


def make_workspace(
    rows: int, top_k: int, gate_up: Tensor, down: Tensor, dtype: torch.dtype = torch.bfloat16
) -> Workspace:
    """Buffers for ``rows`` rows with ``top_k`` choices each; ``dtype`` holds what one kernel hands to the next."""
    experts, width, _ = gate_up.shape
    _, hidden, inner = down.shape
    pairs, device = rows * top_k, gate_up.device
    blocks = max_blocks(pairs, experts)
    return Workspace(
        counts=torch.empty(experts, dtype=torch.int32, device=device),
        block_expert=torch.empty(blocks, dtype=torch.int32, device=device),
        block_pairs=torch.empty(blocks, BLOCK_ROWS, dtype=torch.int32, device=device),
        inner=torch.empty(pairs, width, dtype=dtype, device=device),
        activated=torch.empty(pairs, inner, dtype=dtype, device=device),
        outputs=torch.empty(pairs, hidden, dtype=dtype, device=device),
    )


def grouped(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    weights: Tensor,
    out: Tensor,
    workspace: Workspace,
    tile: Tile = DEFAULT_TILE,
    *,
    alone: bool = False,
) -> Tensor:
    """The layer with pairs grouped by expert: 6 kernels.

    Args:
        x: ``[rows, hidden]`` bf16.
        gate_up, down: expert weights, as the module says.
        ids: chosen experts, ``[rows, top_k]`` int32.
        weights: their routing weights, ``[rows, top_k]`` float32.
        out: ``[rows, hidden]`` bf16, written.
        workspace: from `make_workspace`.
        alone: every pair is a block of its own: 4 kernels, see `paired`.
    """
    if not alone:
        align(ids, workspace)
    (rows, top_k), hidden, inner = ids.shape, out.shape[1], down.shape[2]
    _product(x, gate_up, ids, None, workspace.inner, workspace, tile, alone)
    gated = workspace.inner.shape[1] == 2 * inner
    _activation_kernel[(rows * top_k, triton.cdiv(inner, 1024))](
        workspace.inner, workspace.activated, inner, GATED=gated, BLOCK=1024
    )
    _product(workspace.activated, down, ids, weights, workspace.outputs, workspace, tile, alone)
    _sum_kernel[(rows, triton.cdiv(hidden, 512))](workspace.outputs, out, hidden, top_k, BLOCK=512)
    return out


def paired(*given: Any) -> Tensor:
    """The layer with every pair a block of its own: arguments as in `grouped`."""
    return grouped(*given, alone=True)


def align(ids: Tensor, workspace: Workspace) -> None:
    """Sorts the pairs of ``ids [rows, top_k]`` by expert into blocks of 16: 2 kernels."""
    experts, pairs = workspace.counts.numel(), ids.numel()
    chunk = min(256, max(16, triton.next_power_of_2(pairs)))
    _count_kernel[(triton.cdiv(experts, 16),)](ids, workspace.counts, pairs, experts, 16, chunk)
    _align_kernel[(workspace.block_expert.numel(),)](
        ids, workspace.counts, workspace.block_expert, workspace.block_pairs,
        pairs, experts, triton.next_power_of_2(experts), chunk, BLOCK_ROWS,
    )  # fmt: skip


def _product(
    x: Tensor,
    weight: Tensor,
    ids: Tensor,
    scales: Tensor | None,
    out: Tensor,
    workspace: Workspace,
    tile: Tile,
    alone: bool,
) -> None:
    """``out[pair] = x[row of pair] @ weight[expert of pair].T``, times ``scales[pair]`` where given.

    ``x`` has a row for every pair, or one for all pairs of a row.
    """
    _, n, k = weight.shape
    block_expert = ids if alone else workspace.block_expert
    blocks, tiles = block_expert.numel(), triton.cdiv(n, tile.n)
    _product_kernel[(blocks * tiles,)](
        x, weight, block_expert, workspace.block_pairs, scales, out,
        ids.numel(), blocks, tiles, n, k, ids.numel() // x.shape[0],
        PAIRED=alone, SCALED=scales is not None, EVEN=n % tile.n == 0 and k % tile.k == 0, BLOCK_M=BLOCK_ROWS,
        BLOCK_N=tile.n, BLOCK_K=tile.k, UPCAST=x.device.type == "cpu", num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


@triton.jit
def _count_kernel(ids, counts, pairs, experts, BLOCK_E: tl.constexpr, CHUNK: tl.constexpr):
    """``counts[e]`` = how many pairs chose expert e, for 16 experts."""
    expert = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
    count = tl.zeros([BLOCK_E], tl.int32)
    for first in range(0, pairs, CHUNK):
        pair = first + tl.arange(0, CHUNK)
        chosen = tl.load(ids + pair, mask=pair < pairs, other=-1)
        count += tl.sum((chosen[None, :] == expert[:, None]).to(tl.int32), 1)
    tl.store(counts + expert, count, mask=expert < experts)


@triton.jit
def _align_kernel(
    ids, counts, block_expert, block_pairs,
    pairs, experts,
    EXPERTS: tl.constexpr, CHUNK: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """One block: finds its expert from the counts, then the pairs of that expert whose rank falls into the block."""
    block = tl.program_id(0)
    expert_range = tl.arange(0, EXPERTS)
    count = tl.load(counts + expert_range, mask=expert_range < experts, other=0)
    blocks = (count + BLOCK_M - 1) // BLOCK_M
    end = tl.cumsum(blocks, 0)
    expert = tl.sum((end <= block).to(tl.int32), 0)
    active = expert < experts
    tl.store(block_expert + block, tl.where(active, expert, -1))
    first_block = tl.sum(tl.where(expert_range < expert, blocks, 0), 0)
    first_rank = (block - first_block) * BLOCK_M
    filled = tl.sum(tl.where(expert_range == expert, count, 0), 0) - first_rank
    lane = tl.arange(0, BLOCK_M)
    tl.store(block_pairs + block * BLOCK_M + lane, tl.zeros([BLOCK_M], tl.int32) + pairs, mask=lane >= filled)
    rank = 0
    for first in range(0, pairs, CHUNK):
        pair = first + tl.arange(0, CHUNK)
        chosen = tl.load(ids + pair, mask=pair < pairs, other=-1)
        hit = (chosen == expert).to(tl.int32)
        slot = rank + tl.cumsum(hit, 0) - 1 - first_rank
        mask = (hit > 0) & (slot >= 0) & (slot < BLOCK_M)
        tl.store(block_pairs + block * BLOCK_M + slot, pair, mask=mask)
        rank += tl.sum(hit, 0)


@triton.jit
def _product_kernel(
    x, weight, block_expert, block_pairs, scales, out,
    pairs, blocks, tiles, n_size, k_size, pairs_per_row,
    PAIRED: tl.constexpr, SCALED: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """One block of pairs times one tile of its expert's outputs.

    Grouped programs that share an expert and a tile are neighbours, so that a second block finds the weights in the
    L2 cache. Paired programs walk all tiles of a pair first, as vLLM's do. UPCAST: Triton's interpreter multiplies
    the bit patterns of bf16, so it gets float32.
    """
    program = tl.program_id(0)
    if PAIRED:
        block, tile = program // tiles, program % tiles
    else:
        block, tile = program % blocks, program // blocks
    expert = tl.load(block_expert + block)
    if expert < 0:
        return
    lane = tl.arange(0, BLOCK_M)
    pair = tl.where(lane == 0, block, pairs) if PAIRED else tl.load(block_pairs + block * BLOCK_M + lane)
    valid = pair < pairs
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    row = (pair // pairs_per_row).to(tl.int64)
    x_tile = x + row[:, None] * k_size + k[None, :]
    w_tile = weight + (expert.to(tl.int64) * n_size + n[None, :]) * k_size + k[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, k_size, BLOCK_K):
        if EVEN:
            a = tl.load(x_tile, mask=valid[:, None], other=0.0)
            b = tl.load(w_tile)
        else:
            inside = first + k < k_size
            a = tl.load(x_tile, mask=valid[:, None] & inside[None, :], other=0.0)
            b = tl.load(w_tile, mask=inside[:, None] & (n < n_size)[None, :], other=0.0)
        if UPCAST:
            a, b = a.to(tl.float32), b.to(tl.float32)
        total = tl.dot(a, b, total)
        x_tile += BLOCK_K
        w_tile += BLOCK_K
    if SCALED:
        total *= tl.load(scales + pair, mask=valid, other=0.0)[:, None]
    target = out + pair.to(tl.int64)[:, None] * n_size + n[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=valid[:, None] & (n < n_size)[None, :])


@triton.jit
def _activation_kernel(inner, out, width, GATED: tl.constexpr, BLOCK: tl.constexpr):
    """SiLU(gate) * up, or relu(up)^2, of one pair."""
    pair = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    value = activated(inner + pair * width * (2 if GATED else 1), column, mask, width, GATED)
    tl.store(out + pair * width + column, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _sum_kernel(outputs, out, hidden, top_k, BLOCK: tl.constexpr):
    """One row's sum over its choices."""
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < hidden
    total = tl.zeros([BLOCK], tl.float32)
    for choice in range(top_k):
        total += tl.load(outputs + (row * top_k + choice) * hidden + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + column, total.to(out.dtype.element_ty), mask=mask)
