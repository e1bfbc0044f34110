"""Names lie beside their marks, on nothing, inside the frame, as far as there is room."""

from __future__ import annotations

import numpy as np
import pytest

from wmtp_sim.render.spots import Box, spots

FRAME = Box(0.0, 0.0, 800.0, 500.0)
SIZE = (120.0, 15.0)


def box(centre: tuple[float, float]) -> Box:
    return Box(centre[0] - 60.0, centre[1] - 7.5, centre[0] + 60.0, centre[1] + 7.5)


def test_a_lone_name_is_to_the_right_of_its_mark() -> None:
    ((x, y),) = spots([(100.0, 100.0)], [10.0], [SIZE], FRAME)
    assert (x, y) == (100.0 + 10.0 + 8.0 + 60.0, 100.0)


@pytest.mark.parametrize("seed", range(5))
def test_names_cover_nothing_where_there_is_room(seed: int) -> None:
    places = np.random.default_rng(seed).uniform((100, 50), (700, 450), (8, 2)).tolist()
    marks = [(x, y) for x, y in places]
    found = [box(centre) for centre in spots(marks, [6.0] * 8, [SIZE] * 8, FRAME)]
    for i, one in enumerate(found):
        assert one.overlap(FRAME) == pytest.approx(one.area)
        assert all(one.overlap(other) == 0 for other in found[i + 1 :])


def test_names_keep_off_obstacles() -> None:
    right = Box(110.0, 0.0, 800.0, 500.0)
    ((x, _),) = spots([(200.0, 100.0)], [5.0], [SIZE], FRAME, [Box(205.0, 0.0, 800.0, 500.0)])
    assert x + 60.0 < right.right
    assert box((x, 100.0)).right <= 205.0 + 60.0
    assert x < 200.0


def test_more_names_than_there_is_room_for_are_placed_all_the_same() -> None:
    assert len(spots([(5.0, 5.0)] * 20, [5.0] * 20, [SIZE] * 20, Box(0.0, 0.0, 50.0, 20.0))) == 20
