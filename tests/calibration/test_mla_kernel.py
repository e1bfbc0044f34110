"""Absorbed MLA against float64: rows, heads, splits, lengths, and slots in any order."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from calibration.kernels import mla, references
from calibration.kernels.references import relative_error

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BF16 = torch.bfloat16
# A GPU rounds to bf16; the interpreter truncates, so that it writes float32 and is held to more.
OUT, TOLERANCE = (BF16, 1e-2) if DEVICE.type == "cuda" else (torch.float32, 1e-4)


@dataclass(frozen=True)
class Case:
    lengths: tuple[int, ...]
    rows: int = 1
    heads: int = 16
    splits: int = 3
    block: int = 32
    latent: int = 64
    rope: int = 16
    slot_type: torch.dtype = torch.int32


CASES = [
    Case(lengths=(1,)),  # fewer tokens than splits
    Case(lengths=(100, 33), splits=1),
    Case(lengths=(97, 5), rows=4),  # more rows than a split has tokens
    Case(lengths=(64, 200, 8), rows=8, splits=5),  # queries fill two blocks
    Case(lengths=(130,), rows=3, heads=20, splits=4, slot_type=torch.int64),  # queries fill no block
    Case(lengths=(70,), heads=128, splits=2, block=16),
    Case(lengths=(150, 90), rows=2, latent=512, rope=64, splits=2),
]


def inputs(case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, a cache whose unlisted slots are NaN, slots in random order, lengths."""
    width, total = case.latent + case.rope, sum(case.lengths)
    q = torch.randn(len(case.lengths), case.rows, case.heads, width, device=DEVICE).to(BF16)
    cache = torch.full((total + 9, width), float("nan"), dtype=BF16, device=DEVICE)
    order = torch.randperm(total + 9, device=DEVICE)[:total]
    cache[order] = torch.randn(total, width, device=DEVICE).to(BF16)
    slots = torch.full((len(case.lengths), max(case.lengths) + 2), 2**30, dtype=case.slot_type, device=DEVICE)
    for sequence, part in enumerate(order.split(list(case.lengths))):
        slots[sequence, : len(part)] = part.to(case.slot_type)
    return q, cache, slots, torch.tensor(case.lengths, dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_attention(case: Case, seed: int) -> None:
    torch.manual_seed(seed)
    q, cache, slots, lengths = inputs(case)
    scale = (case.latent + case.rope) ** -0.5
    out = torch.full((*q.shape[:-1], case.latent), float("nan"), dtype=OUT, device=DEVICE)
    workspace = mla.make_workspace(q, case.latent, case.splits)
    workspace.partial.fill_(float("nan"))
    workspace.lse.fill_(float("nan"))
    mla.attention(q, cache, slots, lengths, scale=scale, out=out, workspace=workspace, block=case.block)
    expected = references.latent_attention(q, cache, slots, lengths, case.latent, scale)
    assert relative_error(out, expected) < TOLERANCE


def test_large_scores_do_not_overflow() -> None:
    torch.manual_seed(5)
    case = Case(lengths=(80,), rows=2)
    q, cache, slots, lengths = inputs(case)
    out = torch.empty(*q.shape[:-1], case.latent, dtype=OUT, device=DEVICE)
    workspace = mla.make_workspace(q, case.latent, case.splits)
    mla.attention(q, cache, slots, lengths, scale=20.0, out=out, workspace=workspace)
    assert relative_error(out, references.latent_attention(q, cache, slots, lengths, case.latent, 20.0)) < TOLERANCE


def test_splits_fill_the_gpu_once() -> None:
    assert mla.choose_splits(sequences=1, queries=16, sm_count=132, longest=131072) == 132
    assert mla.choose_splits(sequences=1, queries=128, sm_count=132, longest=131072) == 66
    assert mla.choose_splits(sequences=64, queries=512, sm_count=132, longest=131072) == 1
    assert mla.choose_splits(sequences=1, queries=16, sm_count=132, longest=40) == 2
