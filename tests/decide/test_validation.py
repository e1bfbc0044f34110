"""Predicted steps beside measured ones: errors that can be worked out by hand, and files that are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import wmtp_sim
from wmtp_sim import validation
from wmtp_sim.catalog.models import load_model
from wmtp_sim.errors import InputError
from wmtp_sim.render.validation import validation_document
from wmtp_sim.spec.precision import Precision

MODEL = "qwen3.5-35b-a3b"


def point(policy: str = "native", depth: int = 3, **more: Any) -> dict[str, Any]:
    """A point that took exactly what is predicted."""
    target = load_model(MODEL).model_copy(update={"precision": Precision(), "state_dtype_bytes": 4})
    found = wmtp_sim.estimate(
        target, "h200", context=65536, depth=depth, window=4032, sink=64, engine="bench", kv="bf16"
    )
    phases = {"base": {"seconds": float(found.base.step_s)}}
    if depth:
        step = found.steps[policy]  # type: ignore[index]
        names = ("draft", "verify", "extend", "sample")
        phases |= {name: {"seconds": float(step.term(name))} for name in names}  # type: ignore[arg-type]
    shape = {"context": 65536, "depth": depth, "batch": 1, "window": 4032, "sink": 64, "policy": policy}
    return shape | {"phases": phases} | more


def written(folder: Path, *points: dict[str, Any], **changes: Any) -> Path:
    document = {"schema": "wmtp-steps/1", "environment": {"gpu": "NVIDIA H200"}, "model": MODEL, "points": list(points)}
    path = folder / "steps.json"
    path.write_text(json.dumps(document | changes))
    return path


def test_what_is_predicted_exactly_has_no_error(tmp_path: Path) -> None:
    answer = validation.validate(
        written(tmp_path, *(point(policy) for policy in ("native", "flag", "ring")), point(depth=0))
    )
    found = answer.summary
    assert found.points == 4
    for error in (found.base_error, found.step_error, found.margin_error_points, found.speedup_error):
        assert error == pytest.approx(0.0, abs=1e-9)
    assert found.coverage == 1.0
    assert [row.margin is None for row in answer.rows] == [True, False, False, True]


def test_errors_by_hand(tmp_path: Path) -> None:
    native, ring = point("native"), point("ring")
    for phase in ring["phases"].values():
        phase["seconds"] *= 1.25
    answer = validation.validate(written(tmp_path, native, ring))
    row = answer.rows[1]
    assert row.step is not None
    assert row.margin is not None
    assert row.speedup is not None
    assert row.step.error == pytest.approx(-0.2)
    assert row.terms["verify"].error == pytest.approx(-0.2)
    assert row.speedup.error == pytest.approx(0.0, abs=1e-9)  # its base is 1.25 times as slow, too
    assert row.speedup.predicted == pytest.approx(2.5 * row.base.predicted / row.step.predicted)  # type: ignore[union-attr]
    saved = 1 + row.margin.predicted
    assert row.margin.measured == pytest.approx(saved / 1.25 - 1)
    assert answer.summary.step_error == pytest.approx(0.1)
    assert answer.summary.margin_error_points == pytest.approx(100 * (saved - saved / 1.25))


def test_a_step_far_outside_is_not_covered(tmp_path: Path) -> None:
    slow = point()
    for phase in slow["phases"].values():
        phase["seconds"] *= 10
    assert validation.validate(written(tmp_path, slow)).summary.coverage == 0.0


def test_experts_beside_the_expected(tmp_path: Path) -> None:
    answer = validation.validate(written(tmp_path, point(experts={"base": [8, 8], "verify": [26, 30], "draft": [8]})))
    experts = answer.rows[0].experts
    assert (experts["base"].measured, experts["base"].predicted) == (8.0, pytest.approx(8.0))
    assert experts["verify"].measured == 28.0
    assert experts["verify"].predicted == pytest.approx(256 * (1 - (1 - 8 / 256) ** 4))


def test_points_without_figures_are_listed(tmp_path: Path) -> None:
    failed, late = point(error="OutOfMemoryError: x"), point(skipped="time budget")
    answer = validation.validate(written(tmp_path, point(), failed, late, point() | {"phases": {}}))
    assert [why for _, why in answer.steps.left_out] == ["OutOfMemoryError: x", "time budget", "nothing was measured"]


def test_a_model_without_a_draft_head_has_verify_and_sample(tmp_path: Path) -> None:
    measured = point()
    measured["phases"] = {name: {"seconds": 0.01} for name in ("base", "verify", "sample")}
    answer = validation.validate(written(tmp_path, measured, model="llama-3.1-8b"))
    assert answer.rows[0].terms.keys() == {"verify", "sample"}
    assert answer.rows[0].step is not None
    assert answer.rows[0].step.predicted == pytest.approx(sum(pair.predicted for pair in answer.rows[0].terms.values()))


def test_the_document_is_json(tmp_path: Path) -> None:
    odd = {"gpu": "NVIDIA H200", "odd": math.nan}
    document = validation_document(validation.validate(written(tmp_path, point(), point("ring"), environment=odd)))
    again = json.loads(json.dumps(document, allow_nan=False))
    assert again["schema"] == "wmtp-validation/1"
    assert again["points"][1]["margin"]["error_points"] == pytest.approx(0.0, abs=1e-6)
    assert again["environment"]["odd"] is None


def phase(seconds: Any) -> dict[str, Any]:
    return point() | {"phases": {"base": {"seconds": seconds}}}


@pytest.mark.parametrize(
    ("points", "changes", "named"),
    [
        ([point()], {"schema": "wmtp-steps/2"}, "schema"),
        ([], {}, "no measured step"),
        ([point(policy="native") | {"policy": "magic"}], {}, "points.0.: policy"),
        ([point() | {"context": 0}], {}, "context"),
        ([point() | {"depth": -1}], {}, "depth"),
        ([phase(math.nan)], {}, "seconds"),
        ([phase(-1.0)], {}, "seconds"),
        ([phase("1")], {}, "seconds"),
        ([phase(10**400)], {}, "seconds"),
        ([phase(5e-324)], {}, "seconds"),
        ([point() | {"experts": {"verify": [0]}}], {}, "verify"),
        ([point() | {"experts": {"verify": [10**400]}}], {}, "verify"),
        ([point()] * 5000, {}, "5,000"),
        ([point()], {"points": {}}, "points"),
        ([point()], {"model": "nobody"}, "steps.json: model: .*nobody"),
        ([point()], {"environment": {"gpu": "Tesla T4"}}, "Tesla T4"),
        ([point()], {"environment": {}}, "gpu"),
    ],
)
def test_refused_files(tmp_path: Path, points: list[dict[str, Any]], changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        validation.validate(written(tmp_path, *points, **changes))


def test_margins_that_cannot_differ_do_not_count(tmp_path: Path) -> None:
    wide = {"window": 65536}
    answer = validation.validate(written(tmp_path, point(), point("flag") | wide, point("ring") | wide))
    assert all(row.margin is not None for row in answer.rows[1:])
    assert answer.summary.margin_error_points is None


def without(phase: str) -> dict[str, Any]:
    ring = point("ring")
    return ring | {"phases": {name: value for name, value in ring["phases"].items() if name != phase}}


def test_a_margin_needs_the_same_phases(tmp_path: Path) -> None:
    (_, partial) = validation.validate(written(tmp_path, point(), without("sample"))).rows
    assert partial.margin is None


def test_a_step_without_its_verify_is_left_out(tmp_path: Path) -> None:
    answer = validation.validate(written(tmp_path, point(), without("verify")))
    assert [why for _, why in answer.steps.left_out] == ["verify was not measured"]
    assert len(answer.rows) == 1
