"""A cost table with what is known of it, as one JSON document: ``wmtp-breakeven/1`` for programs, packed for the page.

Seconds, tokens and pure numbers. Arrays of the document have the axes context, depth, window and batch, in this order,
whatever their lengths; what no window changes has length 1 there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wmtp_sim.decide.choice import offered
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.warnings import warnings
from wmtp_sim.render.breakeven.pack import Packer
from wmtp_sim.render.breakeven.start import Start, as_rates
from wmtp_sim.render.breakeven.table import AXES, CostTable
from wmtp_sim.render.tables import summed
from wmtp_sim.step.compose import POLICIES, TERMS, Entry

SCHEMA = "wmtp-breakeven/1"
#: Operations that are listed of each step.
LARGEST = 10
#: Characters of a name or command line that are carried.
LONGEST_NAME, LONGEST_COMMAND = 200, 4000


def breakeven_document(table: CostTable, start: Start, command: str = "") -> dict[str, Any]:
    """Everything, with costs as nested lists."""
    base = table.total("base").seconds
    costs: dict[str, Any] = {}
    for name, terms in table.terms.items():
        total = table.total(name)
        costs[name] = {
            "step_s": _nested(total.seconds),
            "interval_s": [_nested(total.low), _nested(total.high)],
            "terms": {term: _nested(timing.seconds) for term, timing in terms.items()},
        }
        if name != "base":
            costs[name]["break_even_accept_length"] = _nested(total.seconds / base)
            costs[name]["margin"] = _nested(table.total("native").seconds / total.seconds - 1.0)
    return {"schema": SCHEMA, **facts(table, start, command), "costs": costs}


def packed_document(table: CostTable, start: Start, command: str = "") -> dict[str, Any]:
    """Everything, with each term's seconds, range and bound packed (see `Packer`)."""
    packer = Packer(np.asarray(np.broadcast_to(table.estimate.work.windowed, _plane(table))))
    costs = {
        name: {term: packer.pack_timing(timing) for term, timing in terms.items()}
        for name, terms in table.terms.items()
    }
    fits = {name: packer.pack_flags(np.asarray(memory.fits)) for name, memory in table.estimate.memory.items()}
    return {
        **facts(table, start, command),
        "start": start.index(table),
        "costs": costs,
        "fits": fits,
        "fold": packer.fold.tolist(),
        "blobs": packer.blobs,
    }


def facts(table: CostTable, start: Start, command: str) -> dict[str, Any]:
    """What the numbers are of, where they come from, and the point that the command named."""
    estimate, depth = table.estimate, start.point["depth"]
    machine, work = estimate.machine, estimate.work
    point = start.at_point(table)
    return {
        "model": _short(estimate.model.name, LONGEST_NAME),
        "gpu": _short(machine.gpu.name, LONGEST_NAME),
        "engine": {
            "name": _short(f"{estimate.engine.name} {estimate.engine.version}", LONGEST_NAME),
            "spread": estimate.engine.spread,
            "label": "judged" if estimate.engine.spread > 1 else "as defined",
        },
        "profile": {
            "name": _short(machine.profile.name, LONGEST_NAME),
            "label": machine.profile.label,
            "date": _date(machine.profile.provenance),
        },
        "drafter": _short(estimate.drafter.name if estimate.drafter else "none", LONGEST_NAME),
        "deployment": {
            "sink": int(work.sink.max()),
            "kv_element_bytes": work.kv_bytes,
            "draft_kv_element_bytes": work.draft_kv_bytes,
            "overlap": work.overlap,
            "routing_skew": work.skew,
            "expert_parallel": work.whole_experts,
            "tp": work.tp,
        },
        "command": _short(command, LONGEST_COMMAND),
        "axes": table.axes,
        "terms": list(TERMS),
        "point": dict(start.point),
        "policies": [{"name": name, "offered": offered(estimate, name)} for name in POLICIES if name in table.terms],
        "acceptance": {
            "native": as_rates(start.acceptance, depth),
            "windowed": None if start.windowed is None else as_rates(start.windowed, depth),
        },
        "operations": _operations(point),
        "warnings": [{"id": w.id, "text": _short(w.text, 400)} for w in warnings(point)],
    }


def _operations(point: Estimate) -> dict[str, Any]:
    """Each step's largest operations, those of one name and term together."""
    found = {}
    for name, step in point.all_steps.items():
        entries = sorted(summed(step.entries), key=lambda each: -each[1])[:LARGEST]
        found[name] = [
            {
                "term": entry.term,
                "name": entry.operation.name,
                "seconds": seconds,
                "share": seconds / float(step.seconds),
                "bytes": moved,
                "flops": flops,
                "runs": runs,
                "roof": point.machine.binding_roof(entry.operation),
                "known": _known(entry, point),
            }
            for entry, seconds, moved, flops, runs in entries
        ]
    return found


def _known(entry: Entry, point: Estimate) -> str:
    """How an operation's time is known: measured at its geometry, fitted, transferred, assumed, or a peak's."""
    profile, operation = point.machine.profile, entry.operation
    kernel = profile.kernel(operation.kernel, operation.variant)
    if profile.status == "ideal":
        return "datasheet"
    if kernel.points == 0:
        return "assumed"
    if profile.status != "measured" or kernel.carried_from:
        return "transferred"
    known = kernel.measured is not None and kernel.measured.find(operation.geometry) is not None
    return "measured" if operation.geometry and known else "fitted"


def _date(provenance: dict[str, Any]) -> str | None:
    """The day of the measurement, or the publication where its day is not known."""
    found = provenance.get("date") or provenance.get("package")
    return None if found is None else _short(str(found), 60)


def _plane(table: CostTable) -> tuple[int, ...]:
    contexts, _, windows, _ = table.shape
    return (contexts, 1, windows, 1)


def _nested(values: ArrayLike) -> Any:
    array = np.asarray(values, dtype=float)
    return array.reshape((1,) * (len(AXES) - array.ndim) + array.shape).tolist()


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
