"""Split-KV attention over a paged cache, for passes of a few query rows: draft decode, draft-extend and verify.

One program holds every query head of one KV head and every row of one sequence in one tile, so that K and V are read
once per sequence and KV head. It walks one split of the sequence's tokens; the splits are then merged by their
log-sum-exp, either by a second kernel or by the programs that arrive last.

Scores are kept in the base-2 domain: score · scale · log2(e), so that the softmax is a plain exp2.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

Combine = Literal["launch", "dependent", "fused"]

LOG2_E = math.log2(math.e)
INTERPRETED = triton.knobs.runtime.interpret
# Tokens below which a split only adds work to the merge.
MIN_SPLIT = 128
# Tokens per split from which two programs of a large tile share a multiprocessor with profit.
LONG_SPLIT = 2048
# What a thread can hold of a float32 accumulator without spilling, in values.
ACCUMULATOR = 128


@dataclass(frozen=True)
class TileConfig:
    """Shape of the work of one program. None of it changes the result beyond rounding."""

    block_n: int = 32  # tokens per loop turn
    num_warps: int = 4
    num_stages: int = 3  # software pipelining depth: block_n tokens of K and V in flight per stage
    prefetch: bool = True  # load the slot list one loop turn ahead, off the critical path
    # launch: a second kernel merges. dependent: the same, launched early (programmatic dependent launch).
    # fused: the last program to arrive merges, in two levels when there are more than `fan` splits.
    combine: Combine = "launch"
    fan: int = 16  # splits merged by one program of the first level


@dataclass(frozen=True)
class Workspace:
    """Buffers between the splits of one call. `arrivals` starts at zero and every call leaves it at zero."""

    partial: Tensor  # [batch · kv_heads, splits, rows · group, v_dim], float32
    lse: Tensor  # [batch · kv_heads, rows · group, splits], float32, base 2
    arrivals: Tensor  # int32, one per group of splits and one per tile


def make_workspace(q: Tensor, kv_heads: int, v_dim: int, splits: int) -> Workspace:
    """Buffers for `attention` on q [batch, rows, q_heads, head_dim] with any tile config."""
    batch, rows, q_heads, _ = q.shape
    streams, packed = batch * kv_heads, rows * q_heads // kv_heads
    return Workspace(
        partial=torch.empty(streams, splits, packed, v_dim, dtype=torch.float32, device=q.device),
        lse=torch.empty(streams, packed, splits, dtype=torch.float32, device=q.device),
        arrivals=torch.zeros(streams * triton.cdiv(packed, 16) * (splits + 1), dtype=torch.int32, device=q.device),
    )


def choose_splits(context: int, streams: int, sm_count: int, head_dim: int, rows: int) -> int:
    """Splits per stream that fill the GPU with one wave of programs.

    context: tokens in the list. streams: batch × KV heads. rows: query rows packed into a tile (rows × GQA group).
    Two programs of up to 32 rows saturate a multiprocessor, whatever the head size. A tile of more rows leaves room for
    one, and a second pays only once splits are long (H200 sweep of 2026-11-29: 132 splits per head at 1M, 66 at 128K).
    """
    fill = max(1, sm_count * 2 // streams)
    if rows > 32 and context // fill < LONG_SPLIT:
        fill = max(1, fill // 2)
    return max(1, min(fill, triton.cdiv(context, MIN_SPLIT)))


def default_config(head_dim: int, rows: int) -> TileConfig:
    """The tile that won an H200 sweep (2026-11-29). rows: query rows packed into a tile (rows × GQA group)."""
    if rows <= 32:
        block_n = 64 if head_dim > 128 else 128
        return TileConfig(block_n=block_n, num_warps=4, num_stages=2, combine="dependent")
    if rows <= 64 and head_dim > 128:
        return TileConfig(block_n=32, num_warps=4, num_stages=3, prefetch=False)
    return TileConfig(32, 8, 3) if head_dim > 128 else TileConfig(64, 8, 3)


def candidate_configs(head_dim: int, rows: int) -> list[TileConfig]:
    """Tiles worth timing on Hopper, the default first, then by (block_n, num_warps, num_stages).

    Up to 32 rows the matrix unit is idle most of the time and small tiles let two or more programs share a
    multiprocessor. From 64 rows on, Hopper's asynchronous matrix instructions apply, and loads overlap them only with
    three stages or more. All of these fit in 227 KB of shared memory at head size 256.
    """
    wide = head_dim > 128
    if rows <= 32 and wide:
        shapes = [(32, 4, 3), (32, 4, 2), (64, 4, 2), (32, 4, 4), (64, 8, 2), (64, 8, 3), (64, 4, 3), (16, 4, 4)]
    elif rows <= 32:
        shapes = [(64, 4, 3), (64, 4, 2), (32, 4, 3), (32, 4, 4), (64, 4, 4), (128, 4, 2), (128, 8, 2), (128, 8, 3)]
    elif rows <= 64 and wide:
        shapes = [(64, 8, 3), (32, 4, 3), (64, 4, 3), (32, 4, 4), (32, 4, 2), (32, 8, 3), (32, 4, 5), (16, 4, 4)]
    elif wide:
        shapes = [(32, 8, 3), (32, 8, 2), (64, 8, 2), (16, 8, 4)]
    else:
        shapes = [(64, 8, 3), (64, 8, 2), (64, 4, 3), (64, 4, 2), (128, 8, 2), (128, 8, 3), (32, 4, 4)]
    return list(dict.fromkeys([default_config(head_dim, rows), *(TileConfig(*shape) for shape in shapes)]))


def attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    lengths: Tensor,
    *,
    scale: float,
    splits: int,
    out: Tensor | None = None,
    workspace: Workspace | None = None,
    causal_rows: int | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    max_length: int | None = None,
    config: TileConfig | None = None,
) -> Tensor:
    """Attention of a few rows per sequence over its listed tokens; returns `out` [batch, rows, q_heads, v_dim].

    q: [batch, rows, q_heads, head_dim], contiguous. k_cache, v_cache: [num_slots, kv_heads, head_dim or v_dim], bf16,
    fp16 or fp8 e4m3 (then K and V are the stored values times k_scale and v_scale).
    slots: [batch, width] int32 or int64, token i of sequence b lies in slot slots[b, i]; or [batch], and token i lies
    in slot slots[b] + i (no list is read).
    lengths: [batch] int32, listed tokens with this pass's own. The last `causal_rows` of them (default: rows) are the
    rows' own tokens: row r sees everything before them and the own tokens up to r. A row that sees no token gets zeros.
    max_length: longest of `lengths` where the host knows it; then the split's bounds wait for no load, and every
    sequence is cut at the same places. Without it each sequence is cut evenly by its own length.
    """
    batch, rows, q_heads, head_dim = q.shape
    kv_heads, v_dim = k_cache.shape[1], v_cache.shape[2]
    config = config or default_config(head_dim, rows * q_heads // kv_heads)
    out = torch.empty(batch, rows, q_heads, v_dim, dtype=q.dtype, device=q.device) if out is None else out
    workspace = workspace or make_workspace(q, kv_heads, v_dim, splits)
    cache = (k_cache, v_cache, slots, lengths)
    _check(q, cache, out, workspace, splits)
    causal_rows = rows if causal_rows is None else causal_rows
    scalars = (scale * k_scale * LOG2_E, v_scale, _span(max_length, splits, config.block_n), causal_rows)
    for kernel, grid, arguments, options in _launches(q, cache, out, workspace, scalars, splits, config):
        kernel[grid](*arguments, **options)
    return out


def compile_attention(q: Tensor, *cache: Tensor, splits: int, config: TileConfig) -> None:
    """Compile what `attention` launches on such tensors, running nothing (in parallel under AsyncCompileMode)."""
    kv_heads, v_dim = cache[0].shape[1], cache[1].shape[2]
    out, workspace = q.new_empty(*q.shape[:-1], v_dim), make_workspace(q, kv_heads, v_dim, splits)
    for kernel, grid, arguments, options in _launches(q, cache, out, workspace, (1.0, 1.0, 0, 1), splits, config):
        kernel.warmup(*arguments, grid=grid, **options)


def _launches(
    q: Tensor,
    cache: tuple[Tensor, ...],
    out: Tensor,
    workspace: Workspace,
    scalars: tuple[float, float, int, int],
    splits: int,
    config: TileConfig,
) -> list[tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]]:
    """The kernels of one call: (kernel, grid, positional arguments, constants and launch options).

    cache: k_cache, v_cache, slots, lengths. scalars: base-2 score scale, v_scale, span, causal_rows.
    """
    k_cache, v_cache, slots, _ = cache
    scale, v_scale, span, causal_rows = scalars
    batch, rows, q_heads, head_dim = q.shape
    kv_heads, v_dim = k_cache.shape[1], v_cache.shape[2]
    group = q_heads // kv_heads
    heads = {"KV_HEADS": kv_heads, "GROUP": group, "ROWS": rows, "V_DIM": v_dim}
    block_v = triton.next_power_of_2(v_dim)
    block_m = _block_m(rows * group, block_v, config.num_warps)
    tiles = triton.cdiv(rows * group, block_m)
    fused = splits > 1 and config.combine == "fused"
    dependent = splits > 1 and config.combine == "dependent" and not INTERPRETED
    listed = slots.dim() == 2
    strides = (*k_cache.stride()[:2], *v_cache.stride()[:2], slots.stride(0))
    buffers = (workspace.partial, workspace.lse)
    attend = (q, *cache, out, *buffers, workspace.arrivals)
    attend += (scale, v_scale, slots.shape[1] if listed else 0, span, causal_rows, *strides)
    options = heads | {
        "HEAD_DIM": head_dim,
        "BLOCK_M": block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_D": triton.next_power_of_2(head_dim),
        "BLOCK_V": block_v,
        "COMPUTE": _compute_type(q, k_cache),
        "LISTED": listed,
        "PREFETCH": listed and config.prefetch,
        "ALONE": splits == 1,
        "FUSED": fused,
        "DEPENDENT": dependent,
        "FAN": config.fan if fused else 1,
        "FAN_ROOT": triton.next_power_of_2(triton.cdiv(splits, config.fan)) if fused else 1,
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
    }
    launches = [(_attend, (batch * kv_heads * tiles, splits), attend, options)]
    if splits > 1 and not fused:
        block_c, block_s = min(64, block_v), triton.next_power_of_2(splits)
        options = heads | {"BLOCK_V": block_c, "BLOCK_S": block_s, "CHUNK": min(64, block_s), "DEPENDENT": dependent}
        options |= {"num_warps": 4} | ({"launch_pdl": True} if dependent else {})
        grid = (batch * q_heads * rows, triton.cdiv(v_dim, block_c))
        launches.append((_combine, grid, (*buffers, out, splits), options))
    return launches


def _block_m(packed: int, block_v: int, num_warps: int) -> int:
    """Packed rows per tile: all of them where the accumulator fits in registers."""
    fits = ACCUMULATOR * 32 * num_warps // block_v
    return max(16, min(triton.next_power_of_2(packed), fits))


def _span(max_length: int | None, splits: int, block_n: int) -> int:
    """Tokens per split in whole tiles; 0 lets each program derive it from its sequence's length."""
    return 0 if max_length is None else max(1, triton.cdiv(triton.cdiv(max_length, block_n), splits)) * block_n


def _compute_type(q: Tensor, cache: Tensor) -> tl.dtype:
    """Type of the matrix operands: fp8 widens to fp16 exactly; the interpreter multiplies bf16 wrongly."""
    if INTERPRETED:
        return tl.float32
    return tl.float16 if cache.element_size() == 1 or q.dtype == torch.float16 else tl.bfloat16


def _check(q: Tensor, cache: tuple[Tensor, ...], out: Tensor, workspace: Workspace, splits: int) -> None:
    """Refuse what the kernels would silently misread. cache: as in `_launches`."""
    k_cache, v_cache, slots, lengths = cache
    batch, rows, q_heads, head_dim = q.shape
    kv_heads, v_dim = k_cache.shape[1], v_cache.shape[2]
    streams, packed = batch * kv_heads, rows * q_heads // kv_heads
    required = {
        "q, out and lengths must be dense": q.is_contiguous() and out.is_contiguous() and lengths.is_contiguous(),
        "query heads must be a multiple of KV heads": q_heads % kv_heads == 0,
        "q and k_cache disagree on the head size": head_dim == k_cache.shape[2],
        "k_cache and v_cache disagree on heads or type": (kv_heads, k_cache.dtype) == (v_cache.shape[1], v_cache.dtype),
        "the head dimension of a cache must be contiguous": k_cache.stride(2) == v_cache.stride(2) == 1,
        "out must be [batch, rows, q_heads, v_dim]": out.shape == (batch, rows, q_heads, v_dim),
        "lengths must be [batch]": lengths.shape == (batch,),
        "slots must be [batch] or [batch, width]": slots.shape[0] == batch and slots.stride(-1) == 1,
        "the workspace is of another shape": workspace.partial.shape == (streams, splits, packed, v_dim)
        and workspace.lse.shape == (streams, packed, splits),
    }
    for problem, fine in required.items():
        if not fine:
            raise ValueError(problem)


@triton.jit(do_not_specialize=["width", "span", "causal_rows"])
def _attend(
    q, k_cache, v_cache, slots, lengths, out, partial, lse, arrivals,
    scale, v_scale, width, span, causal_rows,
    k_slot, k_head, v_slot, v_head, slots_batch,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, COMPUTE: tl.constexpr,
    LISTED: tl.constexpr, PREFETCH: tl.constexpr, ALONE: tl.constexpr, FUSED: tl.constexpr, DEPENDENT: tl.constexpr,
    FAN: tl.constexpr, FAN_ROOT: tl.constexpr,
):  # fmt: skip
    """Program (stream and tile of rows, split): one split of one sequence for the rows of one KV head."""
    PACKED: tl.constexpr = ROWS * GROUP
    TILES: tl.constexpr = (PACKED + BLOCK_M - 1) // BLOCK_M
    if DEPENDENT:
        gdc_launch_dependents()
    stream = tl.program_id(0) // TILES
    split = tl.program_id(1)
    splits = tl.num_programs(1)
    batch, head = stream // KV_HEADS, stream % KV_HEADS

    m = tl.program_id(0) % TILES * BLOCK_M + tl.arange(0, BLOCK_M)
    row = m // GROUP
    real = m < PACKED
    query = (batch * ROWS + row) * (KV_HEADS * GROUP) + head * GROUP + m % GROUP
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    n = tl.arange(0, BLOCK_N)

    length = tl.load(lengths + batch)
    q_tile = tl.load(
        q + query[:, None] * HEAD_DIM + d[None, :], mask=real[:, None] & (d < HEAD_DIM)[None, :], other=0.0
    )
    q_tile = q_tile.to(COMPUTE)
    if span == 0:
        span = tl.cdiv(tl.cdiv(length, BLOCK_N), splits) * BLOCK_N
    start = split * span
    end = tl.minimum(start + span, length)
    limit = length - tl.maximum(causal_rows - 1 - row, 0)

    k_tile = k_cache + head * k_head + d[None, :]
    v_tile = v_cache + head * v_head + dv[None, :]
    if LISTED:
        slots += batch.to(tl.int64) * slots_batch
        ahead = n
        if PREFETCH:
            ahead = tl.load(slots + start + n, mask=start + n < width, other=0)
    else:
        ahead = tl.load(slots + batch) + n

    # A finite start keeps rows that have seen no token yet free of inf - inf.
    top = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    for first in tl.range(start, end, BLOCK_N):
        pos = first + n
        if PREFETCH:
            # Carried as loaded: any arithmetic here would make the pipeliner wait for the load before the next tile's.
            slot = ahead
            ahead = tl.load(slots + pos + BLOCK_N, mask=pos + BLOCK_N < width, other=0)
        elif LISTED:
            slot = tl.load(slots + pos, mask=pos < width, other=0)
        else:
            slot = ahead + first
        slot = slot.to(tl.int64)[:, None]
        live = (pos < length)[:, None]
        k = tl.load(k_tile + slot * k_slot, mask=live & (d < HEAD_DIM)[None, :], other=0.0)
        v = tl.load(v_tile + slot * v_slot, mask=live & (dv < V_DIM)[None, :], other=0.0)
        scores = tl.dot(q_tile, tl.trans(k.to(COMPUTE)))
        scores = tl.where(pos[None, :] < limit[:, None], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores * scale - (new_top * scale)[:, None])
        fade = tl.exp2((top - new_top) * scale)
        total = total * fade + tl.sum(weights, 1)
        acc = tl.dot(weights.to(COMPUTE), v.to(COMPUTE), acc * fade[:, None])
        top = new_top

    seen = total > 0
    total = tl.where(seen, total, 1.0)
    acc = acc * (v_scale / total)[:, None]
    kept = real[:, None] & (dv < V_DIM)[None, :]
    out += query * V_DIM
    if ALONE:
        tl.store(out[:, None] + dv[None, :], acc.to(out.dtype.element_ty), mask=kept)
    else:
        step: tl.constexpr = PACKED * V_DIM
        entry = stream.to(tl.int64) * splits
        partial += entry * step + m * V_DIM
        lse += entry * PACKED + m * splits
        tl.store((partial + split * step)[:, None] + dv[None, :], acc.to(partial.dtype.element_ty), mask=kept)
        tl.store(lse + split, tl.where(seen, top * scale + tl.log2(total), float("-inf")), mask=real)
        if FUSED:
            groups = tl.cdiv(splits, FAN)
            arrivals += tl.program_id(0) * (groups + 1)
            leader = split // FAN * FAN
            size = tl.minimum(FAN, splits - leader)
            if _is_last(arrivals + 1 + split // FAN, size):
                if groups == 1:
                    _merge(partial, lse, size, 1, out, real, step, V_DIM, BLOCK_M, BLOCK_V, FAN)
                else:
                    first_part, first_lse = partial + leader * step, lse + leader
                    merged = _merge(
                        first_part, first_lse, size, 1, first_part, real, step, V_DIM, BLOCK_M, BLOCK_V, FAN
                    )
                    tl.store(first_lse, merged, mask=real)
                    if _is_last(arrivals, groups):
                        _merge(partial, lse, groups, FAN, out, real, step, V_DIM, BLOCK_M, BLOCK_V, FAN_ROOT)


@triton.jit
def _is_last(arrivals, expected):
    """Publish this program's stores and count it in; true in the last of `expected`, which also resets the count."""
    tl.debug_barrier()
    last = tl.atomic_add(arrivals, 1, sem="acq_rel", scope="gpu") == expected - 1
    if last:
        tl.store(arrivals, 0)
    return last


@triton.jit
def _merge(
    parts, parts_lse, count, apart, target, real,
    step: tl.constexpr, V_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr, FAN: tl.constexpr,
):  # fmt: skip
    """Merge `count` <= FAN splits that lie `apart` splits (of `step` values) apart; returns their lse [BLOCK_M].

    parts, parts_lse, target: [BLOCK_M] pointers to each row in the first split and in the target, which may be that
    split itself. Loads bypass the first-level cache, which other multiprocessors' stores do not reach.
    """
    # Few enough columns at a time that four splits are in flight without spilling.
    BLOCK_C: tl.constexpr = BLOCK_V if BLOCK_M * BLOCK_V <= 4096 else 4096 // BLOCK_M
    i = tl.arange(0, FAN)
    present = real[:, None] & (i < count)[None, :]
    each = tl.load(parts_lse[:, None] + i[None, :] * apart, mask=present, other=float("-inf"), cache_modifier=".cg")
    top = tl.max(each, 1)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(each - top[:, None]), 1)
    seen = total > 0
    total = tl.where(seen, total, 1.0)
    share = 1.0 / total
    for c in tl.static_range(0, BLOCK_V, BLOCK_C):
        dv = c + tl.arange(0, BLOCK_C)
        kept = real[:, None] & (dv < V_DIM)[None, :]
        acc = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
        for j in tl.range(0, count, loop_unroll_factor=4):
            lse = tl.load(parts_lse + j * apart, mask=real, other=float("-inf"), cache_modifier=".cg")
            part = tl.load(
                (parts + j * apart * step)[:, None] + dv[None, :], mask=kept, other=0.0, cache_modifier=".cg"
            )
            acc += part.to(tl.float32) * (tl.exp2(lse - top) * share)[:, None]
        # Every thread has read its part of these columns before any thread overwrites them.
        tl.debug_barrier()
        tl.store(target[:, None] + dv[None, :], acc.to(target.dtype.element_ty), mask=kept)
    return tl.where(seen, top + tl.log2(total), float("-inf"))


@triton.jit(do_not_specialize=["splits"])
def _combine(
    partial, lse, out, splits,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, V_DIM: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_S: tl.constexpr, CHUNK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Program (packed row of a stream, block of V dimensions): the mean of its splits, weighted by exp2(lse)."""
    PACKED: tl.constexpr = ROWS * GROUP
    packed_row = tl.program_id(0).to(tl.int64)
    stream, m = packed_row // PACKED, packed_row % PACKED
    dv = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    s = tl.arange(0, BLOCK_S)
    lse += packed_row * splits
    partial += stream * splits * (PACKED * V_DIM) + m * V_DIM + dv[None, :]
    if DEPENDENT:
        gdc_wait()
    parts = tl.load(lse + s, mask=s < splits, other=float("-inf"))
    top = tl.max(parts, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(parts - top), 0)
    acc = tl.zeros([BLOCK_V], tl.float32)
    for first in tl.static_range(0, BLOCK_S, CHUNK):
        c = first + tl.arange(0, CHUNK)
        weight = tl.exp2(tl.load(lse + c, mask=c < splits, other=float("-inf")) - top)
        mask = (c < splits)[:, None] & (dv < V_DIM)[None, :]
        part = tl.load(partial + c[:, None] * (PACKED * V_DIM), mask=mask, other=0.0)
        acc += tl.sum(part.to(tl.float32) * weight[:, None], 0)
    acc = acc / tl.where(total > 0, total, 1.0)
    query = (stream // KV_HEADS * ROWS + m // GROUP) * (KV_HEADS * GROUP) + stream % KV_HEADS * GROUP + m % GROUP
    tl.store(out + query * V_DIM + dv, acc.to(out.dtype.element_ty), mask=dv < V_DIM)
