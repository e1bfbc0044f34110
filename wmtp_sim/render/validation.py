"""Predicted steps beside measured ones, as a table and as a JSON document."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from wmtp_sim.decide.validation import PHASES, ComparedStep, Pair, Validation
from wmtp_sim.render.console import plain_table, share
from wmtp_sim.units import milliseconds, percent, tokens

SCHEMA = "wmtp-validation/1"


def validation_document(answer: Validation) -> dict[str, Any]:
    """Everything compared: seconds, shares of measured figures, percentage points of margins."""
    steps = answer.steps
    return {
        "schema": SCHEMA,
        "model": steps.model,
        "gpu": answer.gpu,
        "profile": {"name": answer.profile, "status": answer.profile_status},
        "environment": _finite(steps.environment),
        "built": _finite(steps.built),
        "notes": list(steps.notes),
        "points": [_row_document(row) for row in answer.rows],
        "left_out": [{"point": label, "why": why} for label, why in steps.left_out],
        "summary": asdict(answer.summary),
    }


def _row_document(row: ComparedStep) -> dict[str, Any]:
    point = row.point
    names = ("context", "depth", "batch", "window", "sink", "policy")
    document: dict[str, Any] = {name: getattr(point, name) for name in names}
    document["base"] = _pair(row.base)
    document["terms"] = {name: _pair(pair) for name, pair in row.terms.items()}
    document["step"] = _pair(row.step)
    if row.step is not None:
        document["step"] |= {"low": row.low_s, "high": row.high_s, "covered": row.covered}
    document["speedup"] = _pair(row.speedup)
    document["margin"] = row.margin and asdict(row.margin) | {"error_points": 100 * row.margin.difference}
    document["experts"] = {name: _pair(pair) for name, pair in row.experts.items()}
    return document


def _pair(pair: Pair | None) -> dict[str, Any] | None:
    if pair is None:
        return None
    return asdict(pair) | {"error": None if math.isnan(pair.error) else pair.error}


def _finite(value: Any, depth: int = 0) -> Any:
    """A foreign document's part without what JSON cannot say, and not too deep."""
    if (isinstance(value, float) and not math.isfinite(value)) or depth > 8:
        return None
    if isinstance(value, dict):
        return {str(key): _finite(inner, depth + 1) for key, inner in value.items()}
    return [_finite(inner, depth + 1) for inner in value] if isinstance(value, list) else value


def print_validation(answer: Validation, console: Console) -> None:
    """Measured and predicted milliseconds of every term, errors, and the summary."""
    steps = answer.steps
    heading = f"{steps.model} on {answer.gpu}, profile {answer.profile} ({answer.profile_status})"
    console.print(Text(heading, style="bold"), soft_wrap=True)
    table = plain_table(("point", ""), ("base", *PHASES, "step", "error", "margin", "speedup"), no_wrap=True)
    for row in answer.rows:
        table.add_row(*_cells(row, measured=True))
        table.add_row(*_cells(row, measured=False))
    console.print(table)
    console.print(Text("Milliseconds. Speedup: at depth / 2 + 1 tokens a step. Margin: what the policy saves.", "dim"))
    for line in (*_expert_lines(answer), *_summary_lines(answer)):
        console.print(Text(line), soft_wrap=True)
    for label, why in steps.left_out:
        console.print(Text(f"left out: {label}: {why}", style="dim"), soft_wrap=True)
    for note in steps.notes:
        console.print(Text(f"note: {note}", style="dim"), soft_wrap=True)


def _cells(row: ComparedStep, measured: bool) -> list[str]:
    def value(pair: Pair | None) -> float | None:
        return None if pair is None else pair.measured if measured else pair.predicted

    def ms(pair: Pair | None) -> str:
        seconds = value(pair)
        return "-" if seconds is None else milliseconds(seconds)

    point, error = row.point, row.step or row.base
    label = f"{tokens(point.context)} d{point.depth} b{point.batch} {point.policy if point.depth else ''}".strip()
    outside = " !" if row.covered is False else ""
    margin, speedup = value(row.margin), value(row.speedup)
    return [
        label if measured else "",
        "measured" if measured else "predicted",
        ms(row.base),
        *(ms(row.terms.get(name)) for name in PHASES),
        ms(row.step),
        "" if measured or error is None else percent(error.error) + outside,
        "-" if margin is None else percent(margin),
        "-" if speedup is None else f"{speedup:.3f}",
    ]


def _expert_lines(answer: Validation) -> list[str]:
    """Distinct experts per layer where they were counted: once for each kind of pass and number of tokens."""
    seen: dict[tuple[str, int, int], Pair] = {}
    for row in answer.rows:
        for phase, pair in row.experts.items():
            wide = phase in ("verify", "extend")
            seen.setdefault((phase, row.point.batch, row.point.depth + 1 if wide else 1), pair)
    return [
        f"experts in {phase}, batch {batch} x {rows} rows: {pair.measured:.1f} measured, {pair.predicted:.1f} expected"
        for (phase, batch, rows), pair in sorted(seen.items())
    ]


def _summary_lines(answer: Validation) -> list[str]:
    found = answer.summary
    terms = ", ".join(f"{name} {error:.1%}" for name, error in found.term_errors.items())
    lines = {
        "mean absolute error of the base step": share(found.base_error),
        "of the speculative step": share(found.step_error) + (f" ({terms})" if terms else ""),
        "of margins": "-" if found.margin_error_points is None else f"{found.margin_error_points:.2f} points",
        "of speedups": share(found.speedup_error),
        "steps inside the 90 % interval": "-" if found.coverage is None else f"{found.coverage:.0%}",
    }
    return [f"{label}: {text}" for label, text in lines.items()]
