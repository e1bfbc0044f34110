"""Predictions beside public measurements: the arithmetic of each level, and every row accounted for."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from wmtp_sim.api import estimate
from wmtp_sim.catalog.field import FieldRow, read_field
from wmtp_sim.catalog.field_mapping import read_mapping
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.field import (
    BREAKDOWNS,
    ErrorShare,
    FieldComparison,
    compare_field,
    likely_cause,
    summaries,
)
from wmtp_sim.decide.field_rows import Case, Compared, ComparedRow, StepTime, with_excess
from wmtp_sim.decide.validation import Pair
from wmtp_sim.validation import validate_field


@cache
def shipped() -> FieldComparison:
    return validate_field()


def priced(**changes: Any) -> tuple[FieldComparison, Estimate]:
    """One row of known figures: 20 ms a base step, 30 ms a step, 2.4 tokens in it."""
    stated: dict[str, Any] = {
        "id": "x",
        "source": "test",
        "model": "Qwen3.6-27B",
        "weight_dtype": "BF16",
        "gpu": "H200",
        "n_gpu": 1,
        "engine": "vLLM",
        "batch": 4,
        "context": 8192,
        "method": "MTP",
        "depth": 2,
        "accept_length": 2.4,
        "tps_base": 4 / 0.020,
        "tps_spec": 4 * 2.4 / 0.030,
        "tps_scope": "aggregate",
    }
    alone = estimate("qwen3.6-27b", "h200", context=8192, depth=2, batch=4, engine="vllm", accept_length=2.4)
    row = FieldRow.model_validate(stated | changes)
    return compare_field([row], read_mapping(), lambda _: alone), alone


# --- one row at each level ---------------------------------------------------------------------------------------


def test_nothing_fitted_is_the_estimate() -> None:
    answer, alone = priced()
    (row,) = answer.rows
    found = row.at(0)
    assert found is not None
    native = alone.policies["native"]
    assert found.base == Pair(pytest.approx(0.020), pytest.approx(float(alone.base.step_s)))
    assert found.step == Pair(pytest.approx(0.030), pytest.approx(float(native.cost.step_s)))
    assert native.speedup is not None
    assert found.speedup == Pair(pytest.approx(2.4 * 20 / 30), pytest.approx(float(native.speedup)))
    assert row.reason is None


def test_the_base_step_given() -> None:
    """Its excess, per kernel, is on every kernel of the speculative step; the speedup starts from what was measured."""
    answer, alone = priced()
    found = answer.rows[0].at(1)
    assert found is not None
    base, step = StepTime.of(alone.base_step), StepTime.of(alone.steps["native"])
    expected = step.seconds + (0.020 - base.seconds) / base.launches * step.launches
    assert found.base is None
    assert found.step == Pair(pytest.approx(0.030), pytest.approx(expected))
    assert found.speedup == Pair(pytest.approx(1.6), pytest.approx(2.4 * 0.020 / expected))


def test_an_excess_is_carried_per_kernel_and_a_shortfall_in_proportion() -> None:
    base, step = StepTime(0.010, 0.009, 100), StepTime(0.016, 0.014, 130)
    assert with_excess(base, step, 0.012) == pytest.approx(0.016 + 0.002 * 1.3)
    assert with_excess(base, step, 0.008) == pytest.approx(0.016 * 0.8)
    assert with_excess(base, step, 0.010) == pytest.approx(0.016)


def test_what_a_row_lacks_is_not_compared() -> None:
    answer, _ = priced(accept_length=None)
    assert [found.pairs.keys() for found in answer.rows[0].levels] == [{"base step"}]
    assert answer.reasons == {"accept length not stated": 1}
    answer, _ = priced(tps_base=None)
    assert [found.pairs.keys() for found in answer.rows[0].levels] == [{"step"}]
    assert answer.reasons == {"no base step measured": 1}
    answer, _ = priced(spoiled="requests queued")
    assert [found.pairs.keys() for found in answer.rows[0].levels] == [{"base step"}]
    assert answer.reasons == {"not a decode step against none": 1}
    answer, _ = priced(tps_spec=None, tps_base=None)
    assert answer.rows[0].levels == ()
    assert answer.reasons == {"no figure of a step or a speedup": 1}


def test_a_stated_speedup_needs_no_steps() -> None:
    answer, alone = priced(tps_spec=None, tps_base=None, speedup=1.5)
    (found,) = answer.rows[0].levels
    speedup = alone.policies["native"].speedup
    assert speedup is not None
    assert found.pairs == {"speedup": Pair(1.5, pytest.approx(float(speedup)))}


def test_what_the_estimate_refuses_is_a_reason() -> None:
    """Llama 3.1 has no trained head."""

    def refusing(_: object) -> Estimate:
        return estimate("llama-3.1-8b", "h200", context=8192, depth=2, engine="vllm")

    row = FieldRow.model_validate(
        {"id": "x", "source": "s", "model": "Llama-3.1-8B", "weight_dtype": "BF16", "gpu": "H200", "n_gpu": 1}
        | {"engine": "vLLM", "batch": 1, "context": 100, "method": "MTP", "depth": 2, "speedup": 1.5}
    )
    (found,) = compare_field([row], read_mapping(), refusing).rows
    assert found.levels == ()
    assert found.reason is not None
    assert found.reason.kind == "refused by the estimate"
    assert "no trained draft head" in found.reason.detail


# --- summaries -----------------------------------------------------------------------------------------------------


def compared(*speedups: tuple[float, float]) -> list[ComparedRow]:
    rows = []
    for i, (measured, predicted) in enumerate(speedups):
        case = Case(FieldRow(id=str(i), source="s"))
        rows.append(ComparedRow(case, (Compared(0, "row", speedup=Pair(measured, predicted)),), None))
    return rows


def test_a_level_s_errors_and_signs() -> None:
    """Errors 10, 20, 50 %: the median is 20, and 1.2 for 0.8 is the wrong side of 1."""
    (found,) = summaries(compared((2.0, 2.2), (1.5, 1.2), (0.8, 1.2)))
    assert (found.level, found.rows) == (0, 3)
    assert found.sign == pytest.approx(2 / 3)
    assert found.speedup == ErrorShare(3, pytest.approx(0.2), pytest.approx(0.2 + 0.8 * 0.3))
    assert found.step == ErrorShare(0)


def test_the_worst_are_one_of_each_kind_by_ratio() -> None:
    """Half and twice are as far off; all rows of one source count as one kind."""
    answer = FieldComparison(tuple(compared((1.0, 1.1), (1.0, 0.4), (1.0, 2.0))))
    (worst,) = answer.worst
    assert (worst.row.id, worst.of, worst.figure) == ("1", 3, "speedup")


def test_a_speedup_predicted_too_high_is_a_step_predicted_too_fast() -> None:
    case = Case(FieldRow(id="x", source="s", context=1_000_000))
    row = ComparedRow(case, (), None)
    assert likely_cause(row, "speedup", Pair(1.0, 2.0)).startswith("long context")
    assert likely_cause(row, "step", Pair(2.0, 1.0)).startswith("long context")
    assert not likely_cause(row, "speedup", Pair(2.0, 1.0)).startswith("long context")


# --- the shipped rows ----------------------------------------------------------------------------------------------


def test_every_row_is_compared_or_says_why_not() -> None:
    answer = shipped()
    unsettled = [found.row.id for found in answer.either["fp8"].rows]
    assert unsettled == [found.row.id for found in answer.either["bf16"].rows]
    assert sorted([*(found.row.id for found in answer.rows), *unsettled]) == sorted(row.id for row in read_field())
    for compared in (answer, *answer.either.values()):
        for found in compared.rows:
            speedup = any(level.speedup is not None for level in found.levels)
            assert speedup == (found.reason is None), found.row.id
            assert all(level.pairs for level in found.levels)
        with_one = sum(found.reason is None for found in compared.rows)
        assert sum(compared.reasons.values()) + with_one == len(compared.rows)


def test_a_cache_that_is_not_stated_is_neither() -> None:
    """80 rows of vLLM on RTX PRO 6000: with bf16 FlashAttention-2 verifies without splits, with fp8 FlashInfer with."""
    either = shipped().either
    assert {len(found.rows) for found in either.values()} == {80}
    for found in either["bf16"].rows:
        assert found.row.kv_dtype == "auto (bf16 default; unverified)"
        assert found.case.deployment is not None
        assert found.case.deployment.kv == "bf16"
    steps = {cache: [r.case.step.seconds for r in found.rows if r.case.step] for cache, found in either.items()}
    assert all(bf16 > fp8 for bf16, fp8 in zip(steps["bf16"], steps["fp8"], strict=True))


def test_no_prediction_of_a_stated_length_leans_on_other_rows() -> None:
    """Levels 0 and 1 of a row that states its accept length are the same if it is the only row."""
    stated = [found for found in shipped().rows if found.levels and found.row.accept_length is not None]
    assert stated
    for found in stated[:3]:
        deployment = found.case.deployment
        assert deployment is not None
        alone = estimate(
            deployment.model,
            deployment.gpu,
            context=deployment.context,
            depth=deployment.depth or 0,
            batch=deployment.batch,
            engine=deployment.engine,
            kv=deployment.kv,
            weights=deployment.weights,
            head_weights=deployment.head_weights,
            draft_weights=deployment.draft_weights,
            tp=deployment.tp,
            expert_parallel=deployment.expert_groups if deployment.expert_groups > 1 else False,
            window=deployment.window or 4032,
            sink=deployment.sink or 64,
        )
        (again,) = compare_field([found.row], read_mapping(), lambda _, alone=alone: alone).rows  # type: ignore[misc]
        assert again.levels == tuple(level for level in found.levels if level.level < 2)


def test_breakdowns_hold_every_compared_row() -> None:
    answer = shipped()
    rows = sum(bool(found.levels) for found in answer.rows)
    for key in BREAKDOWNS.values():
        assert sum(map(len, answer.groups(key).values())) == rows


def test_what_was_found() -> None:
    """Bounds around what is found (2026-11-30): a regression of the model, the mapping or the rule would show.

    Of 11 speedups whose rows state an accept length, 9 run on llama.cpp, whose definition no step was measured for.
    Most rows are wins, so that signs say little.
    """
    answer = shipped()
    assert_within(answer, {(0, "row"): (11, 0.90, 0.13), (1, "row"): (11, 0.80, 0.22), (2, "row"): (6, 0.90, 0.07)})
    assert_base(answer, rows=44, median=0.13)  # 11.9 %
    fp8 = answer.either["fp8"]  # 7.9 and 4.3 %, every sign right
    assert_within(fp8, {(1, "other rows"): (72, 0.95, 0.09), (2, "other rows"): (72, 0.95, 0.06)})
    assert_base(fp8, rows=80, median=0.09)  # 7.5 %
    bf16 = answer.either["bf16"]  # 9.9 and 10.3 %, 89 and 92 % of the signs: unsplit, which fp8 is not
    assert_within(bf16, {(1, "other rows"): (72, 0.85, 0.11), (2, "other rows"): (72, 0.85, 0.11)})
    assert_base(bf16, rows=80, median=0.10)  # 8.7 %


def assert_within(answer: FieldComparison, expected: dict[tuple[int, str], tuple[int, float, float]]) -> None:
    """At least so many speedups, at least this share of their signs right, at most this median error."""
    levels = {(found.level, found.length_from): found for found in answer.levels}
    for key, (rows, sign, median) in expected.items():
        found = levels[key]  # type: ignore[index]
        assert found.speedup.rows >= rows, key
        assert found.sign is not None, key
        assert found.sign >= sign, key
        assert found.speedup.median is not None, key
        assert found.speedup.median < median, key


def assert_base(answer: FieldComparison, *, rows: int, median: float) -> None:
    base = next(found.base for found in answer.levels if (found.level, found.length_from) == (0, "row"))
    assert base.rows >= rows
    assert base.median is not None
    assert base.median < median


def test_eight_splits_explain_a_base_step_that_doubles_with_context():
    """Qwen3.5-397B on four RTX PRO 6000, SGLang under Triton, one sequence: 13.5 ms at no context, 28.6 at 128K.

    One KV head a GPU and eight splits leave eight thread blocks; their pace was measured on an H200.
    """
    bases = {}
    for found in shipped().rows:
        if found.row.id.startswith("rtx6k-sgl-") and found.row.batch == 1 and found.row.attention_backend:
            bases[found.row.context] = next(level for level in found.levels if level.level == 0).pairs["base step"]
    grown = {name: getattr(bases[131072], name) - getattr(bases[0], name) for name in ("measured", "predicted")}
    assert grown["measured"] == pytest.approx(15.06e-3, rel=0.01)
    assert grown["predicted"] == pytest.approx(grown["measured"], rel=0.2)
