"""Index builders: from a table of each request's cache slots to the lists that attention reads.

Engines build a list per draft step and request. The serial builder walks a request in one program, a few hundred tokens
per dependent loop turn; the parallel one spreads the blocks of tokens over programs. Both are this kernel with another
number of programs.
"""

import triton
import triton.language as tl
from torch import Tensor

# The token-block rule of FlashInfer's draft backend in SGLang: table entries per program, and programs in all.
TOKENS_PER_PROGRAM = 8192
PROGRAMS = 512


def parallel_programs(width: int, steps: int, batch: int) -> int:
    """Programs per list of the token-block builder. width: the longest list in tokens."""
    return max(1, min(triton.cdiv(width, TOKENS_PER_PROGRAM), PROGRAMS // (steps * batch)))


def build_lists(
    table: Tensor,
    requests: Tensor,
    committed: Tensor,
    *,
    out: Tensor,
    out_lengths: Tensor,
    appended: int = 1,
    window: int | None = None,
    sink: int = 0,
    ring_depth: int | None = None,
    block: int = 128,
    programs: int = 1,
) -> None:
    """Fill out[step, b] with the slots that draft step `step` of sequence b attends to; out_lengths, with their count.

    table: [requests, max_tokens] int32, slot of each logical position. requests: [batch], a sequence's row of it.
    committed: [batch] tokens before this pass. out: [steps, batch, width] int32 or int64; entries past a list's
    length are left alone. out_lengths: [steps, batch] int32.
    Step i appends the appended + i tokens after the committed ones: 1 for draft decode, the rows for verify and extend.
    window, sink: keep the first `sink` and the last `window` committed tokens; None keeps all.
    ring_depth: the cache holds only sink + window + ring_depth + 1 entries per request, position p in entry `ring(p)`.
    block, programs: tokens per loop turn, and programs that share a list (1 is the serial builder).
    """
    steps, batch, _ = out.shape
    if ring_depth is not None and window is None:
        raise ValueError("a ring needs a window")
    _build[(steps, batch, programs)](
        table, requests, committed, out, out_lengths,
        table.stride(0), out.stride(0), out.stride(1),
        appended, window or 0, sink, 0 if ring_depth is None else window + ring_depth + 1,
        WINDOWED=window is not None, RING=ring_depth is not None, BLOCK=block, num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["appended", "window", "sink", "ring"])
def _build(
    table, requests, committed, out, out_lengths,
    table_row, out_step, out_row,
    appended, window, sink, ring,
    WINDOWED: tl.constexpr, RING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (step, sequence, share): every `programs`-th block of one list."""
    step, sequence, share = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    past = tl.load(committed + sequence).to(tl.int32)
    table += tl.load(requests + sequence).to(tl.int64) * table_row
    out += step.to(tl.int64) * out_step + sequence.to(tl.int64) * out_row
    kept = tl.minimum(past, window + sink) if WINDOWED else past
    first_kept = tl.minimum(sink, kept) if WINDOWED else kept
    length = kept + appended + step
    if share == 0:
        tl.store(out_lengths + step * tl.num_programs(1) + sequence, length)
    for first in tl.range(share * BLOCK, length, tl.num_programs(2) * BLOCK):
        i = first + tl.arange(0, BLOCK)
        position = tl.where(i < first_kept, i, i + past - kept)
        if RING:
            position = tl.where(position < sink, position, sink + (position - sink) % ring)
        slot = tl.load(table + position, mask=i < length, other=0)
        tl.store(out + i, slot.to(out.dtype.element_ty), mask=i < length)
