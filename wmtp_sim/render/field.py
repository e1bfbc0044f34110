"""Predictions beside what people measured: tables by level, the worst, the reasons; and all rows as one document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wmtp_sim.decide.field import BREAKDOWNS, ErrorShare, FieldComparison, LevelSummary, pooled
from wmtp_sim.decide.field_rows import Compared, ComparedRow
from wmtp_sim.decide.validation import Pair
from wmtp_sim.render.console import plain_table, share
from wmtp_sim.units import milliseconds

SCHEMA = "wmtp-field-validation/1"

TITLES = {0: "0 nothing fitted", 1: "1 base step given", 2: "2 engine terms of other rows"}
#: Lines of each breakdown in the table for people; the document has all.
MOST_GROUPS = 4


def field_document(answer: FieldComparison) -> dict[str, Any]:
    """Every row: seconds, speedups, errors as shares of the measured figure; summaries; reasons."""
    return {
        "schema": SCHEMA,
        "levels": [_summary_document(found) for found in answer.levels],
        "yardstick": asdict(answer.yardstick),
        "breakdown": {
            name: {group: [_summary_document(found) for found in levels] for group, levels in answer.by(key).items()}
            for name, key in BREAKDOWNS.items()
        },
        "worst": [
            {
                "id": worst.row.id,
                "level": worst.level,
                "figure": worst.figure,
                **_pair(worst.pair),
                "rows_of_its_kind": worst.of,
                "likely_cause": worst.cause,
            }
            for worst in answer.worst
        ],
        "reasons": answer.reasons,
        "rows": [_row_document(row) for row in answer.rows],
        "either_cache": {cache: field_document(found) for cache, found in answer.either.items()},
    }


def _summary_document(found: LevelSummary) -> dict[str, Any]:
    return {
        "level": found.level,
        "accept_length_from": found.length_from,
        "rows": found.rows,
        "sign_right": found.sign,
        "speedup_error": asdict(found.speedup),
        "step_error": asdict(found.step),
        "base_error": asdict(found.base),
    }


def _row_document(compared: ComparedRow) -> dict[str, Any]:
    row, stated = compared.row, compared.case.deployment
    return {
        **row.model_dump(mode="json"),
        "priced_as": stated and {"model": stated.model.name, "gpu": stated.gpu, "engine": stated.engine},
        "levels": [_level_document(found) for found in compared.levels],
        "median_of_other_rows": None if compared.usual is None else _pair(compared.usual),
        "no_speedup": None if compared.reason is None else asdict(compared.reason),
    }


def _level_document(found: Compared) -> dict[str, Any]:
    pairs = {name.replace(" ", "_"): _pair(pair) for name, pair in found.pairs.items()}
    return {"level": found.level, "accept_length_from": found.length_from, **pairs}


def _pair(pair: Pair) -> dict[str, Any]:
    return asdict(pair) | {"error": pair.error}


# --- for people --------------------------------------------------------------------------------------------------


def print_field(answer: FieldComparison, console: Console) -> None:
    """Levels, breakdowns, the worst and the reasons. Errors are |predicted / measured - 1|."""
    unsettled = next((found.rows for found in answer.either.values()), ())
    compared = sum(bool(row.levels) for row in answer.rows)
    speedups = sum(row.reason is None for row in answer.rows)
    heading = f"{len(answer.rows) + len(unsettled)} public measurements: {compared} compared, {speedups} with a speedup"
    if unsettled:
        heading += f"; {len(unsettled)} more that do not say their cache's format, under each"
    console.print(Text(heading, style="bold"))
    console.print(_level_table(answer))
    usual = answer.yardstick
    if usual.rows:
        median, p90 = _errors(usual)
        line = f"For comparison, on the {usual.rows} rows of level 2: the median speedup of the other rows errs by"
        console.print(Text(f"{line} {median} (p90 {p90})"), soft_wrap=True)
    console.print(_group_table(answer))
    console.print(_worst_table(answer))
    console.print(Text("No speedup compared:", style="bold"))
    console.print(Text("; ".join(f"{count} {kind}" for kind, count in answer.reasons.items())))
    console.print(Text("Every row with its figures, predictions and reason: --json", style="dim"))


def _level_table(answer: FieldComparison) -> Table:
    numbers = ("speedups", "sign right", "median", "p90", "steps", "median", "p90", "bases", "median", "p90")
    table = plain_table(["level"], numbers, no_wrap=True)
    levels = [("", found) for found in answer.levels]
    for cache, under in answer.either.items():
        levels += [(f"if {cache}: ", found) for found in under.levels]
    for which, found in levels:
        of_others = ", accept length too" if found.level == 2 else ", accept length of other rows"
        title = TITLES[found.level] + (of_others if found.length_from == "other rows" else "")
        sign = "-" if found.sign is None else f"{found.sign:.0%}"
        errors = (*_errors(found.speedup), *_counted(found.step), *_counted(found.base))
        table.add_row(which + title, str(found.speedup.rows), sign, *errors)
    return table


def _group_table(answer: FieldComparison) -> Table:
    """Medians by engine, GPU and method, largest groups first."""
    numbers = ("bases", "base (0)", "steps", "step (0)", "speedups", "speedup (1)", "speedup (2)")
    table = plain_table(("by", ""), numbers, no_wrap=True)
    for name, key in BREAKDOWNS.items():
        groups = answer.groups(key)
        for i, (group, rows) in enumerate(list(groups.items())[:MOST_GROUPS]):
            found = pooled(rows, 0, "base step"), pooled(rows, 0, "step"), pooled(rows, 1, "speedup")
            cells = [cell for each in found for cell in _counted(each)[:2]]
            table.add_row(name if i == 0 else "", group[:44], *cells, _errors(pooled(rows, 2, "speedup"))[0])
    return table


def _worst_table(answer: FieldComparison) -> Table:
    numbers = ("of", "figure", "measured", "predicted", "error")
    table = plain_table(["farthest off, at most base given"], numbers, no_wrap=True)
    table.add_column("likely cause", no_wrap=True)
    for worst in answer.worst:
        pair, in_ms = worst.pair, worst.figure != "speedup"
        shown = [f"{milliseconds(x)} ms" if in_ms else f"{x:.2f}x" for x in (pair.measured, pair.predicted)]
        table.add_row(worst.row.id, str(worst.of), worst.figure, *shown, f"{pair.error:+.0%}", worst.cause)
    return table


def _counted(found: ErrorShare) -> tuple[str, str, str]:
    return (str(found.rows) if found.rows else "-", *_errors(found))


def _errors(found: ErrorShare) -> tuple[str, str]:
    return share(found.median), share(found.p90)
