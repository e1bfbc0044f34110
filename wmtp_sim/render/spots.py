"""Where names go beside marks so that both can be read: the first free place around each mark."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Place = tuple[float, float]
#: Directions tried around a mark, in degrees: beside it first, straight above and below last.
DIRECTIONS = (0, 180, 30, -30, 150, 210, 60, -60, 120, 240, 90, 270)
#: Pixels between a mark's rim and the near edge of its name, nearest first.
DISTANCES = (8.0, 20.0, 36.0, 56.0, 80.0, 110.0, 145.0, 185.0)
#: What a line from a mark to its name costs for each mark or name that it crosses, and for each of its pixels; in
#: pixels² of a name that covers something.
CROSSED, FAR = 25.0, 0.5


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels, y downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Box) -> float:
        """Pixels² in common."""
        across = min(self.right, other.right) - max(self.left, other.left)
        down = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(across, 0.0) * max(down, 0.0)

    def holds(self, place: Place) -> bool:
        return self.left <= place[0] <= self.right and self.top <= place[1] <= self.bottom

    @property
    def area(self) -> float:
        return (self.right - self.left) * (self.bottom - self.top)


def spots(
    marks: Sequence[Place], radii: Sequence[float], sizes: Sequence[Place], frame: Box, obstacles: Sequence[Box] = ()
) -> list[Place]:
    """Centres of the names of the first ``len(sizes)`` marks, each ``(width, height)``, placed in their order.

    A name covers no mark, obstacle or other name and stays in the frame if that can be; else it takes the place that
    covers least.
    """
    taken = [_box(mark, (2 * radius, 2 * radius)) for mark, radius in zip(marks, radii, strict=True)]
    found = []
    for mark, radius, size in zip(marks, radii, sizes, strict=False):
        costs = {
            centre: _covered(_box(centre, size), [*taken, *obstacles], frame)
            + CROSSED * _crossed(mark, centre, taken)
            + FAR * distance
            for centre, distance in _around(mark, radius, size)
        }
        found.append(min(costs, key=costs.__getitem__))
        taken.append(_box(found[-1], size))
    return found


def _around(mark: Place, radius: float, size: Place) -> Iterator[tuple[Place, float]]:
    """Centres that a name could have, and how far it would be from the mark's rim."""
    for distance in DISTANCES:
        for degrees in DIRECTIONS:
            across, down = math.cos(math.radians(degrees)), -math.sin(math.radians(degrees))
            reach = radius + distance
            yield (mark[0] + across * (reach + size[0] / 2), mark[1] + down * (reach + size[1] / 2)), distance


def _covered(box: Box, taken: Sequence[Box], frame: Box) -> float:
    """Pixels² that a name hides or that stick out of the frame."""
    outside = box.area - box.overlap(frame)
    return 4.0 * outside + sum(box.overlap(other) for other in taken)


def _crossed(mark: Place, centre: Place, taken: Sequence[Box]) -> int:
    """Boxes that the line from a mark to its name runs through, besides those it starts in."""
    steps = [i / 24 for i in range(25)]
    line = [(mark[0] + (centre[0] - mark[0]) * t, mark[1] + (centre[1] - mark[1]) * t) for t in steps]
    return sum(any(box.holds(place) for place in line) and not box.holds(mark) for box in taken)


def _box(centre: Place, size: Place) -> Box:
    x, y, width, height = *centre, size[0] / 2, size[1] / 2
    return Box(x - width, y - height, x + width, y + height)
