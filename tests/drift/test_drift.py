"""A committed grid of estimates over all families, re-predicted: every number that moved is listed by name."""

import json

import pytest

from tests.drift.grid import PATH, points

#: Room for the last digits that another processor's libm rounds differently; the file keeps ten digits.
REL = 1e-8


def test_no_prediction_drifts_unnoticed():
    """A deliberate change of the model rewrites the grid (make drift) and shows in its diff."""
    committed, now = json.loads(PATH.read_text()), points()
    assert [key(point) for point in committed] == [key(point) for point in now]
    moved = []
    for old, new in zip(committed, now, strict=True):
        assert old["answer"].keys() == new["answer"].keys()
        for name, value in new["answer"].items():
            if value != pytest.approx(old["answer"][name], rel=REL):
                moved.append(f"{key(old)} {name}: {old['answer'][name]:.6g} -> {value:.6g}")
    assert not moved, f"{len(moved)} numbers moved:\n" + "\n".join(moved)


def key(point: dict) -> str:
    return " ".join(f"{name}={value}" for name, value in point.items() if name != "answer")
