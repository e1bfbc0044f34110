"""Every operation of every step at every point of the grid, packed for the page, which lists the largest of a point.

Operations of one name in one term are one. Most do not depend on context or window, and policies share terms, so a
hundred thousand points of all operations take less than a megabyte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.machine.machine import ROOFS
from wmtp_sim.machine.profile import Profile
from wmtp_sim.render.breakeven.pack import Packer
from wmtp_sim.render.tables import summed
from wmtp_sim.step.compose import Part
from wmtp_sim.work.operation import Operation

#: Operations that are listed of each step.
LARGEST = 10


def packed_operations(estimate: Estimate, packer: Packer) -> dict[str, Any]:
    """Seconds, bytes, FLOPs, executions and the roof that binds (its place in ``roofs``); terms by step."""
    places: dict[int, int] = {}
    parts: list[list[dict[str, Any]]] = []
    steps: dict[str, list[int]] = {}
    for name, step in estimate.all_steps.items():
        for part in step.parts:
            if id(part) not in places:  # policies share the terms that their windows do not change
                places[id(part)] = len(parts)
                parts.append(list(_packed_part(estimate, part, packer)))
        steps[name] = [places[id(part)] for part in step.parts]
    return {"listed": LARGEST, "roofs": list(ROOFS), "parts": parts, "steps": steps}


def _packed_part(estimate: Estimate, part: Part, packer: Packer) -> Iterator[dict[str, Any]]:
    machine = estimate.machine
    for each in summed(part.entries(machine)):
        operation = each.example.operation
        yield {
            "term": part.term,
            "name": operation.name,
            "known": known(operation, machine.profile),
            **{name: packer.pack(getattr(each, name)) for name in ("seconds", "bytes", "flops", "runs")},
            "roof": packer.pack_places(machine.binding_roofs(operation)),
        }


def known(operation: Operation, profile: Profile) -> str:
    """How an operation's time is known: measured at its geometry, fitted, transferred, assumed, or a peak's."""
    kernel = profile.kernel(operation.kernel, operation.variant)
    if profile.status == "ideal":
        return "datasheet"
    if kernel.points == 0:
        return "assumed"
    if profile.status != "measured" or kernel.carried_from:
        return "transferred"
    at_its_own = kernel.measured is not None and kernel.measured.find(operation.geometry) is not None
    return "measured" if operation.geometry and at_its_own else "fitted"
