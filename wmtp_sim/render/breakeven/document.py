"""A cost table with what is known of it, as one JSON document: ``wmtp-breakeven/1`` for programs, packed for the page.

Seconds, tokens and pure numbers. Arrays of the document have the axes context, depth, window and batch, in this order,
whatever their lengths; what no window changes has length 1 there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wmtp_sim.decide.acceptance import lasting
from wmtp_sim.decide.choice import INDIFFERENT
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.evidence import unmeasured
from wmtp_sim.decide.memory import Memory
from wmtp_sim.decide.ratio import Range
from wmtp_sim.decide.verdict import WORDS
from wmtp_sim.decide.warnings import ACCEPTANCE, NEAR_ONE, Finding, findings, warnings
from wmtp_sim.render.breakeven.operations import LARGEST, known, packed_operations
from wmtp_sim.render.breakeven.pack import Packer
from wmtp_sim.render.breakeven.start import Start, as_rates
from wmtp_sim.render.breakeven.table import AXES, CostTable
from wmtp_sim.render.document import verdict_document
from wmtp_sim.render.layout import layout_document, layout_words
from wmtp_sim.render.sentences import SENTENCES
from wmtp_sim.render.tables import Summed, summed
from wmtp_sim.spec.system import Speculation
from wmtp_sim.step.compose import Step
from wmtp_sim.step.plan import TERMS

SCHEMA = "wmtp-breakeven/1"
#: Characters of a name, a command line or a warning that are carried.
LONGEST_NAME, LONGEST_COMMAND, LONGEST_WARNING = 200, 4000, 400


def breakeven_document(table: CostTable, start: Start, command: str = "") -> dict[str, Any]:
    """Everything, with costs as nested lists."""
    point = start.at_point(table)
    return {
        "schema": SCHEMA,
        **facts(table, start, command),
        "verdict": verdict_document(point),
        "operations": {name: _largest(step, point) for name, step in point.all_steps.items()},
        "warnings": [{"id": w.id, "text": _short(w.text, LONGEST_WARNING)} for w in warnings(point)],
        "costs": {"base": _cost(table, "base"), **{name: _policy(table, name) for name in table.policies}},
    }


def _cost(table: CostTable, name: str) -> dict[str, Any]:
    cost = table.costs[name]
    return {
        "step_s": _nested(cost.step_s),
        "interval_s": [_nested(cost.low_s), _nested(cost.high_s)],
        "terms": {term: _nested(cost.terms[term]) for term in TERMS},
        "fits": _nested(table.fits(name)),
    }


def _policy(table: CostTable, policy: str) -> dict[str, Any]:
    result, gain = table.estimate.policies[policy], table.ratios[policy]
    return {
        "in_engine": table.offered(policy),
        **_cost(table, policy),
        "break_even_accept_length": _nested(result.break_even_accept_length),
        "base_over_step_interval": [_nested(gain.low), _nested(gain.high)],
        "margin": _nested(result.margin),
    }


def packed_document(table: CostTable, start: Start, command: str = "") -> dict[str, Any]:
    """Everything, with each term's seconds, each ratio's range and each arrangement's memory packed (see `Packer`)."""
    contexts, _, windows, _ = table.shape
    packer = Packer(np.asarray(np.broadcast_to(table.estimate.work.windowed, (contexts, 1, windows, 1))))
    drafter, memory = table.estimate.drafter, table.estimate.memory
    return {
        **facts(table, start, command),
        "windowable": drafter is not None and drafter.windowable,
        "near_one": NEAR_ONE,
        "start": start.index(table),
        "systems": {each.name: _system(each, table) for each in table.estimate.systems},
        "words": _words(table.estimate),
        "operations": packed_operations(table.estimate, packer),
        "warnings": _packed_warnings(table.estimate, packer),
        "costs": {name: {term: packer.pack(c.terms[term]) for term in TERMS} for name, c in table.costs.items()},
        "ranges": {name: _packed_range(gain, packer) for name, gain in table.ratios.items()},
        "memory": {name: _packed_memory(each, packer) for name, each in memory.items()},
        "fold": packer.fold.tolist(),
        "blobs": packer.blobs,
    }


def _system(speculation: Speculation, table: CostTable) -> dict[str, Any]:
    """What a system makes of an acceptance: drafted tokens at each depth, and what remains at each context."""
    system, work = speculation.system, table.estimate.work
    kept = np.asarray(lasting(np.full(work.context.size, 2.0), system, work.context.ravel())) - 1.0
    return {
        "windowed": speculation.windowed,
        "most": np.asarray(speculation.most(work.depth), dtype=float).ravel().tolist(),
        "levels": np.asarray(speculation.levels(work.depth)).astype(int).ravel().tolist(),
        "lasting": kept.tolist() if system.changes_acceptance else None,
        "shift": system.verify.shift,
        "span": system.verify.rows if system.verify.rule == "none" else None,
    }


def _words(estimate: Estimate) -> dict[str, Any]:
    """What the page needs to say of any point what the terminal says of it."""
    return {
        "verdicts": WORDS,
        "indifferent": INDIFFERENT,
        "never_measured": unmeasured(estimate),
        "sentences": SENTENCES,
        "names": {each.name: each.system.look.phrase for each in estimate.systems},
    }


def _packed_range(gain: Range, packer: Packer) -> dict[str, Any]:
    """The ends of a range as shares of what is expected."""
    return {"low": packer.pack_near(gain.low / gain.expected), "high": packer.pack_near(gain.high / gain.expected)}


def _packed_memory(memory: Memory, packer: Packer) -> dict[str, Any]:
    return {
        "usable": memory.budget_bytes,
        "needed": packer.pack(memory.total_bytes),
        "longest": packer.pack(memory.max_context),
        "fits": packer.pack_flags(memory.fits),
    }


def facts(table: CostTable, start: Start, command: str) -> dict[str, Any]:
    """What the numbers are of, where they come from, and the point that the command named."""
    estimate = table.estimate
    machine, work = estimate.machine, estimate.work
    return {
        "model": _short(estimate.model.name, LONGEST_NAME),
        "gpu": _short(machine.gpu.name, LONGEST_NAME),
        "engine": {"name": _short(estimate.release, LONGEST_NAME), "label": estimate.engine.standing},
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
            "layout": layout_words(work.layout) or ["one GPU"],
            **layout_document(work.layout),
        },
        "command": _short(command, LONGEST_COMMAND),
        "axes": table.axes,
        "terms": list(TERMS),
        "point": dict(start.point),
        "policies": [{"name": name, "offered": table.offered(name)} for name in table.policies],
        "acceptance": {
            table.policies[0]: as_rates(start.acceptance, start.drafted),
            "windowed": None if start.windowed is None else as_rates(start.windowed, start.drafted),
        },
    }


def _largest(step: Step, point: Estimate) -> list[dict[str, Any]]:
    """A step's largest operations, those of one name and term together."""
    found = sorted(summed(step.entries), key=lambda each: -float(each.seconds))
    return [_listed(each, step, point) for each in found[:LARGEST]]


def _listed(each: Summed, step: Step, point: Estimate) -> dict[str, Any]:
    operation = each.example.operation
    return {
        "term": each.example.term,
        "name": operation.name,
        "seconds": float(each.seconds),
        "share": float(each.seconds) / float(step.seconds),
        "bytes": float(each.bytes),
        "flops": float(each.flops),
        "runs": float(each.runs),
        "roof": point.machine.binding_roof(operation),
        "known": known(operation, point.machine.profile),
    }


def _packed_finding(finding: Finding, packer: Packer) -> dict[str, Any]:
    """A warning with the points it is of, and its numbers there."""
    numbers = [{"unit": number.unit, "values": packer.pack(number.values)} for number in finding.numbers]
    text = _short(finding.text, LONGEST_WARNING)
    return {"id": finding.id, "text": text, "where": packer.pack_flags(finding.points), "numbers": numbers}


def _packed_warnings(estimate: Estimate, packer: Packer) -> list[dict[str, Any]]:
    """Every warning that a point of the grid may need, in their order."""
    found: list[dict[str, Any]] = []
    for finding in findings(replace(estimate, acceptance=None, windowed_acceptance=None)):
        if finding.id in ACCEPTANCE:
            found += [{"id": name, "text": text, "where": None, "numbers": []} for name, text in ACCEPTANCE.items()]
        elif np.any(finding.points):
            found.append(_packed_finding(finding, packer))
    return found


def _date(provenance: dict[str, Any]) -> str | None:
    """The day of the measurement, or the publication where its day is not known."""
    found = provenance.get("date") or provenance.get("package")
    return None if found is None else _short(str(found), 60)


def _nested(values: ArrayLike) -> Any:
    array = np.asarray(values)
    return array.reshape((1,) * (len(AXES) - array.ndim) + array.shape).tolist()


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
