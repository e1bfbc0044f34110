"""Steps beside NVIDIA's aiconfigurator: ``python -m tests.versus_aiconfigurator``.

Published MTP steps that both can be asked for, two of which gave the paper's engine its terms. Ours are computed;
theirs are those of tests/data/aiconfigurator-estimates.json, which holds every call, its versions and its answer.
``--record`` asks an installed aiconfigurator again and rewrites the file (pip install aiconfigurator==0.12.0).
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wmtp_sim
from wmtp_sim.catalog.models import load_model
from wmtp_sim.spec.model import Model
from wmtp_sim.spec.precision import GroupFormats

RECORDED = Path(__file__).parent / "data" / "aiconfigurator-estimates.json"
PACKAGES = ("aiconfigurator", "aiconfigurator-core")
#: Measured tables first; estimates for what they lack only where they refuse.
DATABASES = ("SILICON", "HYBRID")


@dataclass(frozen=True)
class Row:
    """One published step: milliseconds measured, ours, and theirs (None where their tool cannot express it)."""

    entry: dict[str, Any]
    measured: float
    ours: float
    theirs: float | None

    @property
    def our_error(self) -> float:
        return error(self.ours, self.measured)

    @property
    def their_error(self) -> float | None:
        return None if self.theirs is None else error(self.theirs, self.measured)


def error(predicted: float, measured: float) -> float:
    """Predicted over measured, less 1: negative where the prediction is too fast."""
    return predicted / measured - 1


def recorded() -> dict[str, Any]:
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def rows() -> list[Row]:
    return [
        Row(entry, entry["measured_ms"], 1e3 * our_step(entry), entry["theirs"].get("step_ms"))
        for entry in recorded()["rows"]
    ]


# --- ours ---


def our_step(entry: dict[str, Any]) -> float:
    """Seconds of the step that an entry describes, estimated now."""
    arguments = dict(entry["ours"])
    model = _stored_as(load_model(arguments.pop("model")), arguments.pop("formats", None))
    answer = wmtp_sim.estimate(model, arguments.pop("gpu"), **arguments)
    return float(answer.policies[entry["policy"]].cost.step_s)


def _stored_as(model: Model, formats: dict[str, dict[str, str]] | None) -> Model:
    """The model in formats of another checkpoint: by weight group, bf16 where none is named."""
    if formats is None:
        return model
    stored = {part: GroupFormats(**groups) for part, groups in formats.items()}
    return model.model_copy(update={"precision": model.precision.model_copy(update=stored | {"stated": True})})


# --- theirs ---


def record() -> None:
    """Asks the installed aiconfigurator for every row and rewrites the file."""
    logging.disable(logging.WARNING)  # it warns about each table that it extends
    document = recorded()
    for entry in document["rows"]:
        theirs = entry["theirs"]
        if "call" not in theirs:
            continue
        entry["theirs"] = {"call": theirs["call"]} | ask(theirs["call"])
        if changes := [each["change"] for each in theirs.get("elsewhere", [])]:
            entry["theirs"]["elsewhere"] = [from_table(theirs["call"], change) for change in changes]
    document["attribution"]["versions"] = {name: importlib.metadata.version(name) for name in PACKAGES}
    document["attribution"]["recorded"] = datetime.date.today().isoformat()
    RECORDED.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def from_table(call: dict[str, Any], change: dict[str, str]) -> dict[str, Any]:
    """Their answer from another table (none changed: the call's own), and their plain step, without speculation."""
    call = call | change
    plain = ask(call | {"nextn": 0, "nextn_accepted": None})
    return {"change": change} | ask(call) | {"plain_ms": plain["step_ms"]}


def ask(call: dict[str, Any]) -> dict[str, Any]:
    """Their answer to a call, or why there is none, and which of their databases gave it."""
    from aiconfigurator.cli.api import cli_estimate

    refused: dict[str, str] = {}
    for database in DATABASES:
        try:
            answer = cli_estimate(**call, database_mode=database)
        except Exception as problem:  # any refusal is an answer, and its class is not public
            refused[database] = _without_paths(f"{type(problem).__name__}: {problem}")
            continue
        found = {"step_ms": round(answer.tpot * (1 + (call["nextn_accepted"] or 0)), 3), "tpot_ms": answer.tpot}
        tables = f"{answer.backend_name} {answer.backend_version}"
        shares = largest_operator(answer.summary.get_generation_latency_dict())
        return found | {"database": database, "tables": tables} | shares | ({"refused": refused} if refused else {})
    return {"refused": refused}


def largest_operator(times: dict[str, float]) -> dict[str, Any]:
    """Which operator takes most of their step, and its share of it."""
    name = max(times, key=lambda each: times[each])
    return {"largest_operator": name, "share": round(times[name] / sum(times.values()), 3)}


def _without_paths(message: str) -> str:
    return re.sub(r" at /\S+", "", message)[:300]


# --- the tables ---


def table(found: Sequence[Row]) -> Iterator[str]:
    yield (
        f"{'row':<15}  {'model':<32} {'gpu':<4} {'context':>9} {'batch':>5} {'depth':>5}  {'measured':>8}"
        f"  {'ours':>6} {'error':>6}  {'theirs':>6} {'error':>6}"
    )
    for row in found:
        what = row.entry["ours"]
        theirs = "-" if row.theirs is None else f"{row.theirs:.2f}"
        yield (
            f"{row.entry['id']:<15}  {what['model']:<32} {what['gpu']:<4} {what['context']:>9,} {what['batch']:>5}"
            f" {what['depth']:>5}  {row.measured:>8.2f}  {row.ours:>6.2f} {_percent(row.our_error):>6}"
            f"  {theirs:>6} {_percent(row.their_error):>6}"
        )


def summary(found: Sequence[Row]) -> Iterator[str]:
    """Mean absolute errors by set; the sets are never pooled."""
    yield f"{'set':<15}  {'rows':>4}  {'mean |error|: ours':>18}  {'theirs':>6}  {'worst: ours':>11}  {'theirs':>6}"
    for name in dict.fromkeys(row.entry["set"] for row in found):
        here = [row for row in found if row.entry["set"] == name]
        ours = [row.our_error for row in here]
        theirs = [row.their_error for row in here if row.their_error is not None]
        yield (
            f"{name:<15}  {len(here):>4}  {_mean(ours):>18}  {_mean(theirs):>6}  {_percent(worst(ours)):>11}"
            f"  {_percent(worst(theirs)):>6}"
        )


def elsewhere(found: Sequence[Row]) -> Iterator[str]:
    """The paper's native steps from each of their tables: the measured engine's own, other kernels', other engines'."""
    tables: dict[str, list[tuple[Row, dict[str, Any]]]] = {}
    for row in found:
        for answer in row.entry["theirs"].get("elsewhere", []):
            tables.setdefault(" ".join(answer["change"].values()) or "as above", []).append((row, answer))
    yield f"{'theirs, from':<15}  {'mean |error|':>12}  {'steps of the native rows':<51}  without speculation"
    for name, answers in tables.items():
        errors = [error(answer["step_ms"], row.measured) for row, answer in answers]
        steps = (f"{answer['step_ms']:.2f} ({_percent(e)})" for e, (_, answer) in zip(errors, answers, strict=True))
        plain = ", ".join(f"{answer['plain_ms']:.2f}" for _, answer in answers)
        yield f"{name:<15}  {_mean(errors):>12}  {', '.join(steps):<51}  {plain}"


def worst(errors: Sequence[float]) -> float | None:
    return max(errors, key=abs, default=None)


def _mean(errors: Sequence[float]) -> str:
    return f"{sum(map(abs, errors)) / len(errors):.0%}" if errors else "-"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.0%}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.versus_aiconfigurator", description=__doc__)
    parser.add_argument("--record", action="store_true", help="ask the installed aiconfigurator again")
    if parser.parse_args(arguments).record:
        if importlib.util.find_spec("aiconfigurator") is None:
            print("aiconfigurator is not installed: pip install aiconfigurator==0.12.0", file=sys.stderr)
            return 2
        record()
    found = rows()
    print("ms per step; theirs: aiconfigurator " + recorded()["attribution"]["versions"]["aiconfigurator"])
    print("\n".join((*table(found), "", *summary(found), "", *elsewhere(found))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
