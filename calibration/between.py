"""Collectives as points of a calibration: what `calibration.sweep_collectives` times, in the form that fits read.

A point is a collective, a number of ranks and the bytes of the larger of a rank's two buffers. Where it can be done
several ways the fastest counts, as in an engine, and the point says which that was.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from calibration.environment import condition
from calibration.plan import Point, point
from calibration.sweep_collectives import COLLECTIVES, PAYLOADS, Row, fastest, gpus_here, groups_of, sweep
from wmtp_sim.work import collectives
from wmtp_sim.work.operation import Operation

#: The operation that the cost model counts for each.
OPERATIONS = {name: getattr(collectives, name) for name in COLLECTIVES}
#: A quick run takes every third size, 1 KB to 32 MB.
QUICK = 3
#: Seconds for one number of ranks, processes and communicators included.
GROUP_S = 120.0
#: Noise above which a point is kept with a flag and tried again by the next run: ranks wait for the slowest of them.
NOISY = 0.1


def points_between(ranks: Sequence[int], quick: bool = False) -> list[Point]:
    """Collectives among so many ranks; a quick plan has fewer sizes, among all of them alone."""
    return [
        point("collective", collective, ranks=among, bytes=payload)
        for among in (ranks[-1:] if quick else ranks)
        for collective in COLLECTIVES
        for payload in PAYLOADS[:: QUICK if quick else 1]
    ]


def idle_gpus(device: torch.device) -> list[int]:
    """This GPU and those of its kind that nobody else uses, where they can be joined."""
    first = device.index or 0
    return [i for i in gpus_here(first) if i == first or not condition(torch.device("cuda", i)).others]


def groups_around(device: torch.device) -> list[int]:
    """How many ranks can be measured with this GPU among them; none for a GPU alone, or a CPU."""
    return groups_of(idle_gpus(device)) if device.type == "cuda" else []


def operation_of(collective: str, ranks: int, payload: int) -> Operation:
    operation: Operation = OPERATIONS[collective](float(payload), ranks)
    return operation


def measured_between(
    points: Sequence[Point], device: torch.device
) -> tuple[list[tuple[Point, Row]], list[tuple[str, str]]]:
    """The rows of these points, and what is missing and why."""
    counts, payloads = (sorted({one[size] for one in points}) for size in ("ranks", "bytes"))
    found = sweep(counts, idle_gpus(device), payloads, GROUP_S)
    rows = {(row["collective"], row["ranks"], row["bytes"]): row for row in fastest(found.rows)}
    wanted = ((one, rows.get((one.variant, one["ranks"], one["bytes"]))) for one in points)
    return [(one, row) for one, row in wanted if row], [("collectives", failure) for failure in found.failures]
