"""Fits on a source's other rows: planted terms come back, and the row that is predicted has no say."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from wmtp_sim.decide.field_fit import (
    FEWEST,
    FEWEST_LENGTHS,
    LengthKind,
    Observation,
    SourceKind,
    Terms,
    accept_lengths,
    fit,
    fitted,
    length_of,
    rate_of,
    usual_speedups,
)

SOURCE = SourceKind("a sweep", "a GPU", "an engine")
KIND = LengthKind(SOURCE, "a model", "fp8", "MTP")
PLANTED = Terms(a=1.25, b=0.002, c=0.0015, d=0.0004)
RATE = 0.7


def planted(states_length: bool = True, noise: float = 0.0, depths: tuple[int, ...] = (1, 2, 4)) -> list[Observation]:
    """Rows of a sweep over kernel time and depth, whose steps follow `PLANTED`."""
    random = np.random.default_rng(0)
    rows = []
    for i, (kernels_s, depth) in enumerate(product((0.004, 0.007, 0.012, 0.02), depths)):
        step_kernels_s, length = kernels_s * (1.2 + 0.1 * depth), length_of(RATE, depth)
        base_s = PLANTED.base_s(kernels_s) * (1 + noise * random.normal())
        step_s = PLANTED.step_s(step_kernels_s, depth) * (1 + noise * random.normal())
        rows.append(
            Observation(
                id=str(i),
                source=SOURCE,
                kind=KIND,
                base_s=base_s,
                token_s=step_s / length,
                speedup=length * base_s / step_s,
                accept_length=length if states_length else None,
                depth=depth,
                base_kernels_s=kernels_s,
                step_kernels_s=step_kernels_s,
                step_given_base_s=step_s,
            )
        )
    return rows


def test_one_rate_and_its_length() -> None:
    assert length_of(0.5, 2) == pytest.approx(1.75)
    assert rate_of(1.75, 2) == pytest.approx(0.5)
    assert rate_of(9.0, 2) == pytest.approx(1.0)
    assert rate_of(0.9, 2) == pytest.approx(0.0)


def test_planted_terms_come_back() -> None:
    found = fit(planted(), KIND)
    assert found is not None
    terms, rate = found
    assert terms == pytest.approx(PLANTED, rel=1e-6)
    assert rate is None


def test_a_planted_acceptance_rate_comes_back() -> None:
    found = fit(planted(states_length=False), KIND)
    assert found is not None
    terms, rate = found
    assert rate == pytest.approx(RATE)
    assert terms == pytest.approx(PLANTED, rel=1e-6)


def test_terms_are_never_negative_and_an_outlier_counts_little() -> None:
    rows = planted(noise=0.01)
    rows[3] = replace(rows[3], base_s=3 * (rows[3].base_s or 0.0))
    found = fit(rows, KIND)
    assert found is not None
    assert min(found[0]) >= 0
    assert found[0].base_s(0.012) == pytest.approx(PLANTED.base_s(0.012), rel=0.05)


@pytest.mark.parametrize("states_length", [True, False])
def test_a_row_has_no_say_in_its_own_prediction(states_length: bool) -> None:
    """Whatever it measured; but its own kernels and stated accept length count."""
    rows = planted(states_length, noise=0.02)
    for i, row in enumerate(rows):
        other = replace(row, base_s=99.0, token_s=99.0, speedup=99.0, step_given_base_s=99.0)
        changed = [*rows[:i], other, *rows[i + 1 :]]
        assert fitted(other, changed) == fitted(row, rows)
        assert accept_lengths(changed).get(row.id) == accept_lengths(rows).get(row.id)
        assert usual_speedups(changed)[row.id] == usual_speedups(rows)[row.id]


def test_predictions_are_what_was_planted() -> None:
    rows = planted()
    for row in rows:
        found = fitted(row, rows)
        assert found is not None
        base_s, step_s, length = found
        assert (base_s, length) == (pytest.approx(row.base_s), row.accept_length)
        assert step_s == pytest.approx((row.token_s or 0.0) * (row.accept_length or 0.0))


def test_accept_lengths_follow_the_other_rows_at_the_row_s_own_depth() -> None:
    rows = planted(states_length=False)
    found = accept_lengths(rows)
    assert found == {row.id: pytest.approx(length_of(RATE, row.depth or 0)) for row in rows}


def test_who_qualifies() -> None:
    """Other sources do not help, nor rows of another model where the accept length is asked for."""
    rows = planted(depths=(2,))
    assert len(rows) == FEWEST
    assert fitted(rows[0], rows) is None
    elsewhere = [replace(row, id=f"e{row.id}", source=SourceKind("another", "a GPU", "an engine")) for row in rows]
    assert fitted(rows[0], rows + elsewhere) is None
    twice = [replace(row, id=f"t{row.id}") for row in rows]
    assert fitted(rows[0], rows + twice) is not None
    unstated = [replace(row, accept_length=None) for row in rows]
    of_another_model = [replace(row, id=f"m{row.id}", kind=KIND._replace(model="another")) for row in unstated]
    assert fitted(unstated[0], unstated + of_another_model) is None
    assert accept_lengths(unstated[:FEWEST_LENGTHS]) == {}


def test_without_a_step_only_the_base_is_predicted() -> None:
    rows = planted()
    alone = replace(rows[0], token_s=None, depth=None, step_kernels_s=None)
    found = fitted(alone, [alone, *rows[1:]])
    assert found is not None
    assert found[0] == pytest.approx(PLANTED.base_s(alone.base_kernels_s))
    assert found[1:] == (None, None)
