"""SGLang's own kernels on an H200, against engine ``sglang`` with its Triton backend and ``sglang@pre-tiling``.

The rows were measured apart from any engine of ours, on another H200 and another day than the shipped profile's points:
decode under five split caps (four of which the profile holds), its unsplit extend as a verify, and the builders of slot
lists, serial and tiled.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import wmtp_sim
from wmtp_sim.catalog.engines import load_engine

ROWS = json.loads((Path(__file__).parents[1] / "data" / "sglang-h200.json").read_text())["rows"]
K = 1024


def attended(row: dict) -> int:
    return min(row["context"], row["window"] + row.get("sink", 0)) if row.get("window") else row["context"]


def one(step, kernel: str, term: str) -> float:
    """Microseconds of one execution."""
    found = next(e for e in step.entries if e.operation.kernel == kernel and e.term == term)
    return 1e6 * float(found.timing.seconds / found.operation.repeats)


def estimate(context: int, depth: int, engine: str, *changes: str):
    chosen = load_engine(engine, changes)
    return wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", context=context, depth=depth, engine=chosen)


def of(kernel: str, **sizes) -> list:
    found = [r for r in ROWS if r["kernel"] == kernel and all(r.get(name) == value for name, value in sizes.items())]
    return [pytest.param(r, id="-".join(str(v) for k, v in r.items() if k not in ("kernel", "us"))) for r in found]


@pytest.mark.parametrize("row", of("sglang_triton_decode"))
def test_decode_under_a_split_cap(row):
    """Few blocks cannot fill the memory: 16.4 ms with 8 splits, 1.1 with 128, for the same read."""
    splits = row["num_kv_splits"]
    cap = f"attention_kernels.sglang_triton.max_splits={splits}"
    found = estimate(attended(row) - 1, 0, "sglang", cap, "attention.Hopper.base=sglang_triton")
    measured_cap = splits != 32
    assert one(found.base_step, "attention", "verify") == pytest.approx(row["us"], rel=0.06 if measured_cap else 0.23)


@pytest.mark.parametrize("row", of("sglang_triton_extend_verify"))
def test_an_unsplit_extend_as_verify(row):
    """104 ms at 1M. At 4K ours was measured 18 % faster than theirs; why is not known."""
    change = "attention.Hopper.verify=sglang_triton_extend"
    found = estimate(attended(row) - row["rows"], row["rows"] - 1, "sglang", change)
    long = attended(row) > 4 * K
    expected = pytest.approx(row["us"], rel=0.01 if long else 0.2)
    assert one(found.steps["native"], "attention", "verify") == expected


@pytest.mark.parametrize(
    "row", [*of("sglang_draft_kv_index", mode="serial"), *of("sglang_target_kv_index", mode="serial")]
)
@pytest.mark.parametrize("engine", ["sglang@pre-tiling", "sglang@26.06"])
def test_serial_lists(row, engine):
    """The paper's release walks its lists on this GPU at the pace that was measured here, not at the B200's."""
    term = "draft" if "steps" in row else "verify"
    found = estimate(attended(row), row.get("steps", 0) + 1, engine)
    measured = pytest.approx(row["us"], rel=0.11, abs=1.0)
    assert one(found.steps["native"], "index_build", term) == measured


@pytest.mark.parametrize("row", of("sglang_draft_kv_index", mode="token_block_parallel"))
def test_tiled_lists_take_microseconds(row):
    found = estimate(attended(row), row.get("steps", 0) + 1, "sglang")
    assert one(found.steps["native"], "index_build", "draft") == pytest.approx(row["us"], rel=0.3)
