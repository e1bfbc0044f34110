"""Dense products as engines run them, through torch: cuBLAS does the work.

Weights are stored ``[n, k]``, as checkpoints have them. All outputs are given; nothing is allocated.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: fp8 products want inner sizes in multiples of 16; rows are padded to the same, as engines do.
FP8_MULTIPLE = 16
FP8 = torch.float8_e4m3fn


def dense(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """``x [rows, k]`` times ``weight [n, k]`` transposed, into ``out [rows, n]``."""
    return torch.mm(x, weight.t(), out=out)


def fp8_dense(x: Tensor, weight: Tensor, scale_x: Tensor, scale_weight: Tensor, out: Tensor) -> Tensor:
    """An fp8 product with one float32 scale per matrix.

    Args:
        x: ``[rows, k]`` e4m3, rows padded by `padded_rows`.
        weight: ``[n, k]`` e4m3; n and k are multiples of 16.
        scale_x, scale_weight: what one unit of ``x`` and ``weight`` is worth; scalars.
        out: ``[rows, n]`` bf16.
    """
    torch._scaled_mm(x, weight.t(), scale_x, scale_weight, out_dtype=out.dtype, use_fast_accum=True, out=out)
    return out


def padded_rows(rows: int) -> int:
    """Rows that an fp8 product of ``rows`` runs with."""
    return -(-rows // FP8_MULTIPLE) * FP8_MULTIPLE


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x [rows, k]`` as e4m3 with zero rows added up to `padded_rows`, and its scale. Allocates: set-up only."""
    scale = x.abs().amax().float() / torch.finfo(FP8).max
    padded = x.new_zeros(padded_rows(x.shape[0]), x.shape[1], dtype=torch.float32)
    padded[: x.shape[0]] = x.float() / scale
    return padded.to(FP8), scale


def batched(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """One product per head, as absorbed MLA has before (k_up) and after (v_up) its attention.

    Args:
        x: ``[heads, rows, k]``, usually a transposed view of ``[rows, heads, k]``.
        weight: ``[heads, k, n]``.
        out: ``[heads, rows, n]``, may be such a view too.
    """
    return torch.bmm(x, weight, out=out)


def lm_head(x: Tensor, weight: Tensor, logits: Tensor, best: Tensor) -> Tensor:
    """Logits of ``x [rows, hidden]`` against ``weight [vocab, hidden]``, and the best token of each row.

    ``logits [rows, vocab]`` in x's type and ``best [rows]`` int64 are written.
    """
    dense(x, weight, logits)
    return torch.argmax(logits, dim=-1, out=best)
