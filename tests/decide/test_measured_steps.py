"""Whole steps measured on an H200 against predictions from its kernel profile: the aims of calibration, on real data.

The steps were run by ``calibration.bench`` on 2026-11-29 and are in no fit. What was chosen with them in sight is said
in docs/accuracy.md.
"""

from pathlib import Path
from statistics import fmean

import pytest

import wmtp_sim
from wmtp_sim.validation import validate

STEPS = sorted((Path(wmtp_sim.__file__).parent / "data" / "steps").glob("*.json"))


@pytest.fixture(scope="module")
def compared():
    return {path.stem: validate(path) for path in STEPS}


def test_four_families_and_six_runs():
    assert [path.stem for path in STEPS] == [
        "h200-deepseek-v3",
        "h200-nemotron-3-super",
        "h200-nemotron-3.5-lightning",
        "h200-qwen3.5-27b",
        "h200-qwen3.5-35b-a3b-batched",
        "h200-qwen3.5-35b-a3b",
    ]


def test_steps_are_within_five_percent_on_average(compared):
    errors = [abs(row.step.error) for answer in compared.values() for row in answer.rows]
    assert len(errors) == 136
    assert fmean(errors) < 0.05
    assert all(answer.summary.step_error < 0.05 for answer in compared.values())


def test_margins_are_within_two_points(compared):
    found = [answer.summary.margin_error_points for answer in compared.values()]
    assert all(error < 2.0 for error in found if error is not None)
    assert sum(error is not None for error in found) == 6


def test_speedups_at_fixed_acceptance_are_within_three_percent(compared):
    errors = [abs(row.speedup.error) for answer in compared.values() for row in answer.rows if row.speedup]
    assert fmean(errors) < 0.03


def test_the_interval_covers(compared):
    covered = [row.covered for answer in compared.values() for row in answer.rows]
    assert fmean(covered) >= 0.85


def test_every_measured_step_is_above_its_speed_of_light(compared):
    """Bytes and FLOPs cannot be overcounted: nothing runs faster than the bound of what we count."""
    for answer in compared.values():
        for row in answer.rows:
            estimate = wmtp_sim.estimate(
                answer.steps.model,
                "h200",
                context=row.point.context,
                depth=row.point.depth,
                batch=row.point.batch,
                engine="ideal",
                overlap=0.5,
                kv="bf16",
            )
            assert float(estimate.base.bound_s) < row.base.measured
