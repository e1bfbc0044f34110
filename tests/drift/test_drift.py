"""A committed grid of estimates over all families, re-predicted: every number that moved is listed by name."""

import json

import numpy as np
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
            if not same(value, old["answer"][name]):
                moved.append(f"{key(old)} {name}: {shown(old['answer'][name])} -> {shown(value)}")
    assert not moved, f"{len(moved)} numbers moved:\n" + "\n".join(moved)


def same(value, committed) -> bool:
    """Whether an answer is the committed one: numbers within `REL`, words to the letter."""
    try:
        return value == pytest.approx(committed, rel=REL)
    except TypeError:  # words, or a list with words in it
        return value == committed


def shown(value) -> str:
    return np.array2string(np.asarray(value), precision=6, threshold=8)


def key(point: dict) -> str:
    return " ".join(f"{name}={value}" for name, value in point.items() if name != "answer")
