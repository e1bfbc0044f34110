"""``wmtp validate --against field``: the tables, the document, and what does not go with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from wmtp_sim.catalog.field import read_field

Run = Callable[..., Any]
Refused = Callable[..., str]
AGAINST = ("validate", "--against", "field")


def test_the_document_holds_every_row(run: Run) -> None:
    found = run(*AGAINST, "--json").document
    assert found["schema"] == "wmtp-field-validation/1"
    unsettled = [row["id"] for row in found["either_cache"]["bf16"]["rows"]]
    assert unsettled == [row["id"] for row in found["either_cache"]["fp8"]["rows"]]
    assert sorted([row["id"] for row in found["rows"]] + unsettled) == sorted(row.id for row in read_field())
    for row in found["rows"]:
        speedup = any("speedup" in level for level in row["levels"])
        assert speedup == (row["no_speedup"] is None)
        assert row["source"]
        for level in row["levels"]:
            figures = {"base_step", "step", "speedup"} & level.keys()
            assert figures
            for name in figures:
                pair = level[name]
                assert pair["error"] == pytest.approx(pair["predicted"] / pair["measured"] - 1)
    assert set(found["breakdown"]) == {"engine", "gpu", "method"}
    assert sum(found["reasons"].values()) == sum(row["no_speedup"] is not None for row in found["rows"])
    assert len(found["worst"]) <= 10
    assert {"id", "level", "figure", "measured", "predicted", "error", "likely_cause"} <= found["worst"][0].keys()
    for level in found["levels"]:
        assert level["level"] in (0, 1, 2)
        assert level["accept_length_from"] in ("row", "other rows")
        assert {"rows", "median", "p90"} == level["speedup_error"].keys()


def test_the_tables_keep_levels_apart(run: Run) -> None:
    shown = run(*AGAINST).out
    rows = f"{len(read_field())} public measurements"
    for text in (rows, "0 nothing fitted", "1 base step given", "2 engine terms of other rows"):
        assert text in shown
    assert "No speedup compared:" in shown
    assert "no engine definition" in shown
    assert max(map(len, shown.splitlines())) <= 140


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("steps.json",), "STEPS: does not go with --against"),
        (("--run", "--model", "qwen3-8b"), "--run: does not go with --against"),
        (("--model", "qwen3-8b"), "--model: does not go with --against"),
        (("--profile", "nvidia-h200"), "--profile: does not go with --against"),
        (("--gpu", "h200"), "--gpu: does not go with --against"),
        (("--budget", "10"), "--budget: does not go with --against"),
    ],
)
def test_refuses_two_kinds_of_measurements(refused: Refused, words: tuple[str, ...], field: str) -> None:
    assert refused(*AGAINST, *words).startswith(field)


def test_refuses_neither_and_what_does_not_ship(refused: Refused) -> None:
    assert refused("validate").startswith("STEPS: is missing; give a file of measured steps, or --against field")
    assert refused("validate", "--against", "paper").startswith("--against: 'paper' does not ship")
