"""Prints the table of docs/independent.md: ``python -m tests.three_sources``.

One kernel on one kind of GPU, three times: our measurement (the shipped H200 profile's own points), NVIDIA's published
one (`tests.independent`), and the datasheet's bound for the bytes and FLOPs that we count.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

from tests.independent import Row, machine, rows


@dataclass(frozen=True)
class Three:
    """Microseconds of one kernel at one shape, from three sources."""

    group: str
    shape: str
    ours: float
    theirs: float
    bound: float


def three() -> list[Three]:
    """Every shape that both we and they measured; theirs is the median of the engines."""
    return [
        Three(row.group, row.shape, row.ours, statistics.median(row.published.values()), _bound(row)) for row in _both()
    ]


def _both() -> list[Row]:
    return [row for row in rows() if row.measured]


def _bound(row: Row) -> float:
    return 1e6 * float(np.asarray(machine().bound(row.operation)))


def main() -> None:
    found = three()
    print("operator    shape                        ours us  theirs us  datasheet us  ours/theirs")
    for group in dict.fromkeys(row.group for row in found):
        mine = sorted((row for row in found if row.group == group), key=lambda row: row.bound)
        for row in mine if len(mine) < 3 else (mine[0], mine[-1]):
            times = f"{row.ours:>7.1f}  {row.theirs:>9.1f}  {row.bound:>12.1f}"
            print(f"{row.group:<11} {row.shape:<28} {times}  {row.ours / row.theirs:>11.2f}")
    print()
    print("median share of the datasheet's rate")
    print("operator    shapes   ours  theirs  ours/theirs, 10th to 90th percentile")
    for group in dict.fromkeys(row.group for row in found):
        mine = [row for row in found if row.group == group]
        shares = [statistics.median(row.bound / getattr(row, name) for row in mine) for name in ("ours", "theirs")]
        low, high = np.quantile([row.ours / row.theirs for row in mine], (0.1, 0.9))
        print(f"{group:<11} {len(mine):>6}  {shares[0]:>5.0%}  {shares[1]:>6.0%}  {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    main()
