"""Acceptance arithmetic against enumeration, identities, published tables, and everything that cannot be."""

from __future__ import annotations

import dataclasses
import itertools
import math
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmtp_sim.decide.acceptance import (
    accept_length,
    alpha_from_accept_length,
    at_depth,
    conditional_from_survival,
    expected_length_constant,
    speedup_closed_form,
    survival_from_conditional,
)
from wmtp_sim.errors import InputError
from wmtp_sim.spec.acceptance import (
    AcceptLength,
    ConditionalRates,
    ConstantRate,
    SurvivalRates,
    state_acceptance,
)

ROOT = Path(__file__).resolve().parents[2]

rate = st.floats(0, 1)
rates = st.lists(rate, min_size=1, max_size=7)
depths = st.integers(1, 32)


def enumerated(conditional: list[float]) -> float:
    """Mean committed tokens over every accept/reject outcome: the leading accepts, and the bonus token."""
    total = 0.0
    for outcome in itertools.product([True, False], repeat=len(conditional)):
        chance = math.prod(a if accepted else 1 - a for a, accepted in zip(conditional, outcome, strict=True))
        total += chance * (1 + sum(itertools.takewhile(bool, outcome)))
    return total


# --- the definition ----------------------------------------------------------------------------------------


@given(rates)
def test_conditional_rates_match_enumeration(conditional):
    depth = len(conditional)
    assert accept_length(ConditionalRates(conditional), depth) == pytest.approx(enumerated(conditional), rel=1e-12)


@given(rates)
def test_survival_rates_match_enumeration_at_every_depth(conditional):
    acceptance = SurvivalRates(survival_from_conditional(conditional))
    every = np.arange(len(conditional) + 1)
    expected = [enumerated(conditional[:depth]) for depth in every]
    np.testing.assert_allclose(accept_length(acceptance, every), expected, rtol=1e-12)


@given(rate, st.integers(0, 7))
def test_closed_form_matches_enumeration(alpha, depth):
    expected = enumerated([alpha] * depth)
    assert expected_length_constant(alpha, depth) == pytest.approx(expected, rel=1e-12)
    assert accept_length(ConstantRate(alpha), depth) == pytest.approx(expected, rel=1e-12)


@given(rates)
def test_survival_and_conditional_invert_each_other(conditional):
    survival = survival_from_conditional(conditional)
    back = conditional_from_survival(survival)
    np.testing.assert_allclose(survival_from_conditional(back), survival, rtol=1e-12, atol=0)
    # A product that has reached the subnormals no longer holds the rate's digits.
    reached = np.concatenate([[1.0], survival[:-1]]) * np.asarray(conditional) > 1e-300
    np.testing.assert_allclose(back[reached], np.asarray(conditional)[reached], rtol=1e-12)


def test_unreached_positions_read_zero():
    assert conditional_from_survival([0.5, 0.0, 0.0]).tolist() == [0.5, 0.0, 0.0]


# --- the constant rate -------------------------------------------------------------------------------------


@given(st.integers(0, 10_000))
def test_constant_rate_is_exact_at_its_ends(depth):
    assert expected_length_constant(0.0, depth) == 1
    assert expected_length_constant(1.0, depth) == depth + 1


@given(st.integers(1, 64), st.floats(1e-16, 1e-3))
def test_constant_rate_is_stable_near_one(depth, gap):
    alpha = 1 - gap
    terms = [alpha**j for j in range(depth + 1)]
    assert expected_length_constant(alpha, depth) == pytest.approx(sum(terms), rel=1e-13)


@given(rate, rate, depths)
def test_more_acceptance_or_depth_never_commits_less(one, other, depth):
    low, high = sorted([one, other])
    slack = 1 + 1e-13
    assert expected_length_constant(low, depth) <= expected_length_constant(high, depth) * slack
    assert expected_length_constant(low, depth) <= expected_length_constant(low, depth + 1) * slack
    assert 1 <= expected_length_constant(low, depth) <= depth + 1


@given(rates)
def test_rates_stay_within_bounds_and_never_fall_with_depth(conditional):
    every = np.arange(len(conditional) + 1)
    length = accept_length(ConditionalRates(conditional), every)
    assert length[0] == 1
    assert np.all(np.diff(length) >= 0)
    assert np.all(length <= every + 1)


@given(rate, depths)
def test_alpha_round_trip(alpha, depth):
    length = expected_length_constant(alpha, depth)
    # The accept length is a float: one ulp of it moves alpha by this much at most (dAL/dalpha >= 1).
    assert alpha_from_accept_length(length, depth) == pytest.approx(alpha, abs=4 * float(np.spacing(length)))


@given(st.floats(0, 1), depths)
def test_accept_length_round_trip(part, depth):
    length = 1 + part * depth
    alpha = alpha_from_accept_length(length, depth)
    assert 0 <= alpha <= 1
    assert expected_length_constant(alpha, depth) == pytest.approx(length, rel=1e-12)


@given(st.floats(0, 1), st.floats(0, 1), depths)
def test_inverse_is_monotone(one, other, depth):
    low, high = sorted([one, other])
    alpha = alpha_from_accept_length([1 + low * depth, 1 + high * depth], depth)
    assert alpha[0] <= alpha[1] + 1e-15


def test_inverse_is_exact_at_its_ends():
    depth = np.arange(1, 100)
    assert np.all(alpha_from_accept_length(1, depth) == 0)
    assert np.all(alpha_from_accept_length(depth + 1, depth) == 1)


def test_long_blocks_invert_too():
    assert alpha_from_accept_length(10.0, 100_000) == pytest.approx(0.9, abs=1e-15)
    assert expected_length_constant(alpha_from_accept_length(5e4, 100_000), 100_000) == pytest.approx(5e4, rel=1e-9)


# --- another depth -----------------------------------------------------------------------------------------


def test_accept_length_is_not_used_at_another_depth():
    acceptance = AcceptLength(4.5, depth=6)
    assert accept_length(acceptance, 6) == 4.5
    with pytest.raises(InputError, match=r"^--accept-length: holds at depth 6, not at depth 3, 4;"):
        accept_length(acceptance, [3, 4, 6])


def test_at_depth_keeps_the_stated_value_and_marks_the_rest_assumed():
    stated = AcceptLength(4.5, depth=6, source="measured")
    derived = at_depth(stated, np.arange(9))
    assert derived.source == "assumed"
    length = accept_length(derived, np.arange(9))
    assert length[0] == 1
    assert length[6] == 4.5
    alpha = alpha_from_accept_length(4.5, 6)
    np.testing.assert_allclose(length, [sum(float(alpha) ** j for j in range(g + 1)) for g in range(9)], rtol=1e-12)


def test_at_depth_leaves_alone_what_it_need_not_derive():
    for acceptance in (AcceptLength(3.0, 4, "measured"), ConstantRate(0.7), SurvivalRates([0.9, 0.5, 0.4, 0.1])):
        assert at_depth(acceptance, [0, 4]) is acceptance
    with pytest.raises(InputError, match=r"^--survival: covers depth 2, not depth 3"):
        at_depth(SurvivalRates([0.9, 0.5]), 3)


def test_at_depth_learns_nothing_from_depth_zero():
    with pytest.raises(InputError, match=r"^--depth: 0 drafts nothing"):
        at_depth(AcceptLength(1.0, 0), 3)


@given(st.lists(rate, min_size=8, max_size=8), st.booleans(), st.integers(1, 7))
def test_direction_of_the_constant_rate_assumption(conditional, falling, stated):
    """As documented: where rates fall with position, deeper is optimistic and shallower pessimistic."""
    every = np.arange(9)
    truth = accept_length(ConditionalRates(sorted(conditional, reverse=falling)), every)
    guess = accept_length(at_depth(AcceptLength(truth[stated], stated), every), every)
    excess = (guess - truth) * (1 if falling else -1)
    assert np.all(excess[stated:] >= -1e-9)
    assert np.all(excess[: stated + 1] <= 1e-9)


# --- broadcasting ------------------------------------------------------------------------------------------


def test_constant_rate_grid_equals_a_loop():
    alpha, depth, ratio = np.ix_([0.0, 0.3, 0.97, 1.0], [0, 1, 6, 15], [0.0, 0.05, 0.4])
    grid = speedup_closed_form(alpha, depth, ratio)
    assert grid.shape == (4, 4, 3)
    for place in np.ndindex(grid.shape):
        i, j, k = place
        point = speedup_closed_form(alpha[i, 0, 0], depth[0, j, 0], ratio[0, 0, k])
        assert point.shape == ()
        assert grid[place] == point


@pytest.mark.parametrize("kind", [ConditionalRates, SurvivalRates])
def test_rate_grid_equals_a_loop(kind):
    stated = np.sort(np.random.default_rng(1).random((3, 1, 5)), axis=-1)[..., ::-1]
    depth = np.array([0, 1, 4, 5])
    grid = accept_length(kind(stated), depth)
    assert grid.shape == (3, 4)
    for i, j in np.ndindex(grid.shape):
        survival = stated[i, 0] if kind is SurvivalRates else np.cumprod(stated[i, 0])
        assert grid[i, j] == pytest.approx(1 + sum(survival[: depth[j]]), rel=1e-15)
        assert grid[i, j] == accept_length(kind(stated[i, 0]), depth[j])


def test_inverse_grid_equals_a_loop():
    length, depth = np.ix_([1.0, 1.7, 2.0], [1, 3, 8])
    grid = alpha_from_accept_length(length, depth)
    for i, j in np.ndindex(grid.shape):
        assert grid[i, j] == alpha_from_accept_length(length[i, 0], depth[0, j])


def test_accept_length_arrays_broadcast_with_depth():
    by_context = AcceptLength([4.5, 3.9], depth=6)
    assert accept_length(by_context, np.full((3, 1), 6)).tolist() == [[4.5, 3.9]] * 3
    by_depth = AcceptLength([1.8, 2.5, 3.0], depth=[1, 2, 3])
    assert accept_length(by_depth, [1, 2, 3]).tolist() == [1.8, 2.5, 3.0]
    every = np.arange(4)[:, np.newaxis]
    assert accept_length(at_depth(by_context, every), every).shape == (4, 2)


# --- what cannot be ----------------------------------------------------------------------------------------

IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"accept_length": 0.9, "depth": 3}, r"--accept-length: 0.9 is not an accept length of at least 1"),
    ({"accept_length": 4.5, "depth": 3}, r"--accept-length: 4.5 exceeds 4; depth 3 commits at most 4"),
    ({"accept_length": [2.0, 4.5], "depth": 3}, r"--accept-length: 4.5 exceeds 4"),
    ({"accept_length": [2.0, float("nan")], "depth": 3}, r"--accept-length: nan \(number 2\) is not"),
    ({"accept_length": float("inf"), "depth": 3}, r"--accept-length: inf exceeds 4"),
    ({"accept_length": 1.5, "depth": [1, 2, 3]}, r"--accept-length: an accept length holds at one depth, and 1.5 is"),
    (
        {"accept_length": [1.5, 2.0], "depth": [1, 2, 3]},
        r"--accept-length: an accept length holds at one depth, and 1.5, 2.0 is",
    ),
    ({"accept_length": "many", "depth": 3}, r"--accept-length: 'many' is not a number"),
    ({"accept_length": [[1.0], [1.0, 2.0]], "depth": 3}, r"--accept-length: .* is ragged"),
    ({"accept_length": True, "depth": 3}, r"--accept-length: True is not a number"),
    ({"conditional": [0.9, 1.1], "depth": 2}, r"--conditional: 1.1 \(number 2\) is not a rate between 0 and 1"),
    ({"conditional": [-0.1], "depth": 1}, r"--conditional: -0.1 is not a rate"),
    ({"conditional": [0.9, float("nan")], "depth": 2}, r"--conditional: nan \(number 2\) is not a rate"),
    ({"conditional": [0.9, 0.8], "depth": 6}, r"--conditional: covers depth 2, not depth 6; give 6 rates, or"),
    ({"conditional": [], "depth": 0}, r"--conditional: holds no rates"),
    ({"survival": [0.9, 0.5, 0.6], "depth": 3}, r"--survival: survival rises from 0.5 at position 2 to 0.6"),
    ({"survival": [1.2, 0.5], "depth": 2}, r"--survival: 1.2 \(number 1\) is not a rate"),
    ({"survival": [float("nan")], "depth": 1}, r"--survival: nan is not a rate"),
    ({"survival": [0.9, 0.8], "depth": [1, 5, 3]}, r"--survival: covers depth 2, not depth 5"),
    ({"alpha": 1.01, "depth": 2}, r"--alpha: 1.01 is not a rate"),
    ({"alpha": -0.01, "depth": 2}, r"--alpha: -0.01 is not a rate"),
    ({"alpha": float("nan"), "depth": 2}, r"--alpha: nan is not a rate"),
    ({"alpha": 0.8, "depth": -1}, r"--depth: -1 is not between 0 and"),
    ({"alpha": 0.8, "depth": 2.5}, r"--depth: 2.5 is not a whole number"),
    ({"alpha": 0.8, "depth": 2**40}, r"--depth: 1099511627776 is not between"),
    ({"alpha": 0.8, "depth": 2**80}, r"--depth: 1208925819614629174706176 is not a whole number"),
    ({"alpha": 0.8, "accept_length": 2.0, "depth": 2}, r"--accept-length and --alpha: acceptance is stated in more"),
    ({"survival": [0.8], "conditional": [0.8], "depth": 1}, r"--conditional and --survival: acceptance is stated"),
    ({"depth": 2}, r"--accept-length: acceptance is not stated; give one of --accept-length, --conditional, --surv"),
    ({"alpha": 0.8, "depth": 2, "source": "rumour"}, r"acceptance source: 'rumour' is unknown; one of given, meas"),
]


@pytest.mark.parametrize(("words", "message"), IMPOSSIBLE, ids=lambda value: str(value)[:40])
def test_the_impossible_is_refused_by_name(words, message):
    with pytest.raises(InputError, match=f"^{message}"):
        state_acceptance(**words)


def test_the_functions_refuse_too():
    for refused, flag in [
        (lambda: survival_from_conditional([1.5]), "--conditional"),
        (lambda: conditional_from_survival([0.1, 0.2]), "--survival"),
        (lambda: expected_length_constant(2.0, 3), "--alpha"),
        (lambda: alpha_from_accept_length(5.0, 3), "--accept-length"),
        (lambda: alpha_from_accept_length(1.0, [0, 3]), "--depth"),
        (lambda: speedup_closed_form(0.5, 3, -0.1), "draft_cost_ratio"),
        (lambda: speedup_closed_form(0.5, 3, float("nan")), "draft_cost_ratio"),
    ]:
        with pytest.raises(InputError) as caught:
            refused()
        assert caught.value.field == flag


def test_one_ulp_beyond_is_refused():
    AcceptLength(4.0, 3)
    with pytest.raises(InputError, match=r"4\.000000000000001 exceeds 4"):
        AcceptLength(np.nextafter(4.0, 5.0), 3)


def test_each_way_of_stating_makes_its_kind():
    made = [
        state_acceptance(accept_length=2.5, depth=3),
        state_acceptance(conditional=[0.9, 0.8, 0.7], depth=3),
        state_acceptance(survival=[0.9, 0.8, 0.7], depth=3, source="published"),
        state_acceptance(alpha=0.8, depth=[1, 2, 3]),
    ]
    assert [acceptance.kind for acceptance in made] == ["accept_length", "conditional", "survival", "alpha"]
    assert [acceptance.source for acceptance in made] == ["given", "given", "published", "given"]


def test_statements_are_frozen():
    stated = np.array([0.9, 0.8])
    acceptance = ConditionalRates(stated)
    stated[0] = 0.1
    assert acceptance.rates[0] == 0.9
    with pytest.raises(ValueError, match="read-only"):
        acceptance.rates[0] = 0.1
    with pytest.raises(dataclasses.FrozenInstanceError):
        acceptance.source = "measured"  # type: ignore[misc]
    assert dataclasses.replace(acceptance, source="measured").source == "measured"


def test_import_is_cheap():
    code = "import sys, wmtp_sim.decide.acceptance; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"scipy", "plotly", "torch", "triton", "typer"} & set(done.stdout.split())


# --- published tables --------------------------------------------------------------------------------------


def scenario(name: str) -> dict[str, Any]:
    with (ROOT / "scenarios" / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


LEVIATHAN = scenario("leviathan-2022")
CHEN = scenario("chen-2023")


def half_unit(document: dict[str, Any], field: str) -> float:
    """Half a unit of the last decimal that the source prints."""
    decimals: int = document["printed_decimals"][field]
    return 0.5 * 10.0**-decimals


def around(document: dict[str, Any], field: str, value: float) -> np.ndarray:
    """The range that a printed value stands for: [low, high]."""
    return value + half_unit(document, field) * np.array([-1, 1])


def overlap(ours: np.ndarray, printed: np.ndarray) -> bool:
    """Whether two ranges [low, high] touch."""
    return bool(ours[0] <= printed[1] + 1e-12 and printed[0] - 1e-12 <= ours[1])


@pytest.mark.parametrize("row", LEVIATHAN["rows"], ids=lambda row: row["name"])
def test_leviathan_expected_speedups_within_the_printed_rounding(row):
    alpha = around(LEVIATHAN, "alpha", row["alpha"])
    ratio = around(LEVIATHAN, "draft_cost_ratio", row["draft_cost_ratio"])[::-1]
    ours = speedup_closed_form(alpha, row["depth"], ratio)
    assert overlap(ours, around(LEVIATHAN, "expected_speedup", row["reported"]["expected_speedup"]))


def test_leviathan_rows_that_need_the_rounding_of_their_inputs():
    """At the printed inputs, nine of twelve round to the printed value; a wrong formula would lose more."""
    columns = np.array([[row["alpha"], row["depth"], row["draft_cost_ratio"]] for row in LEVIATHAN["rows"]]).T
    predicted = np.round(speedup_closed_form(columns[0], columns[1].astype(int), columns[2]), 1)
    missed = [
        row["name"]
        for row, value in zip(LEVIATHAN["rows"], predicted, strict=True)
        if value != row["reported"]["expected_speedup"]
    ]
    assert missed == ["ende-t1-base", "ende-t1-large", "cnndm-t1-large"]
    assert all("within the rounding" in row["note"] for row in LEVIATHAN["rows"] if row["name"] in missed)


def test_leviathan_honest_error_band():
    assert len(LEVIATHAN["rows"]) == 12
    reported = [row["reported"] for row in LEVIATHAN["rows"]]
    error = [row["measured_speedup"] / row["expected_speedup"] - 1 for row in reported]
    assert (round(min(error), 2), round(max(error), 2)) == (-0.32, 0.29)


@pytest.mark.parametrize("row", CHEN["rows"], ids=lambda row: row["name"])
def test_chen_implied_acceptance(row):
    depth, ratio = CHEN["depth"], CHEN["draft_token_ms"] / CHEN["target_token_ms"]
    length = around(CHEN, "speedup", row["reported"]["speedup"]) * (depth * ratio + 1)
    assert overlap(length, around(CHEN, "accept_length", row["derived"]["accept_length"]))
    alpha = alpha_from_accept_length(length, depth)
    assert overlap(alpha, around(CHEN, "alpha", row["derived"]["alpha"]))
    back = speedup_closed_form(row["derived"]["alpha"], depth, ratio)
    assert back == pytest.approx(row["reported"]["speedup"], abs=half_unit(CHEN, "speedup"))


@pytest.mark.parametrize("row", CHEN["rows"], ids=lambda row: row["name"])
def test_chen_printed_times_agree_with_printed_speedups_but_for_one_row(row):
    target = around(CHEN, "target_token_ms", CHEN["target_token_ms"])
    ours = target / around(CHEN, "token_ms", row["reported"]["token_ms"])[::-1]
    agrees = overlap(ours, around(CHEN, "speedup", row["reported"]["speedup"]))
    assert agrees == (row["name"] != "xsum-nucleus")
    assert agrees == ("note" not in row)
