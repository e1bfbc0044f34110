"""An estimate names the kernel classes that its profile never measured."""

from __future__ import annotations

import pytest

import wmtp_sim
from wmtp_sim.decide.warnings import warnings


@pytest.mark.parametrize(
    ("model", "tp", "assumed"),
    [("qwen3.5-35b-a3b", 1, None), ("deepseek-v3", 8, None), ("deepseek-v3.2", 8, "index_scan")],
)
def test_classes_without_points_are_named(model: str, tp: int, assumed: str | None) -> None:
    found = wmtp_sim.estimate(model, "h200", context=131_072, depth=3, tp=tp, profile="nvidia-h200")
    texts = [w.text for w in warnings(found) if w.id == "assumed-kernels"]
    assert texts == ([] if assumed is None else [f"never measured, documented constants instead: {assumed}"])
