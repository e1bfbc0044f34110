"""Our attention kernel beside FlashInfer's on one H200, in turns (tests/data/flashinfer-h200.json names the run)."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

SHAPES = json.loads((Path(__file__).parents[1] / "data" / "flashinfer-h200.json").read_text(encoding="utf-8"))["shapes"]
RATIOS = {
    tuple(row[name] for name in ("q_heads", "context", "rows")): row["flashinfer"]["seconds"]
    / row["triton_packed"]["seconds"]
    for row in SHAPES
}


def test_both_computed_attention() -> None:
    assert len(SHAPES) == 24
    assert max(row[kernel]["error"] for row in SHAPES for kernel in ("flashinfer", "triton_packed")) < 0.01


def test_our_kernel_is_at_parity() -> None:
    """As docs/accuracy.md says: mostly faster; slower beyond 1 % at two shapes of 7 rows and heads of 256."""
    assert 1.0 < statistics.median(RATIOS.values()) < 1.2
    assert {shape for shape, ratio in RATIOS.items() if ratio < 0.99} == {(16, 32_768, 7), (16, 131_072, 7)}
    assert min(RATIOS.values()) > 0.7
