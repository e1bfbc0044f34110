"""A recommendation as JSON, ``wmtp-recommend/1``, and its table of depths, ``wmtp-depth-table/1``.

Seconds, tokens, tokens per second. Arrays over the mix are nested by context, then by batch.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from wmtp_sim.catalog.launch import Launch, LaunchByBatch
from wmtp_sim.decide.backends import better_backend
from wmtp_sim.decide.depth_table import MARGIN, DepthTable, Interval, Row
from wmtp_sim.decide.difference import Difference
from wmtp_sim.decide.options import Option
from wmtp_sim.decide.recommend import Recommendation
from wmtp_sim.render.layout import layout_document
from wmtp_sim.render.recommend import notices

SCHEMA, TABLE_SCHEMA = "wmtp-recommend/1", "wmtp-depth-table/1"
#: The rule of `wmtp_sim.decide.depth_table`, in the words of a file that is read alone.
RULE = (
    "Use the row of the smallest listed batch that is not below the running one (else the last). Keep the current "
    "depth while the context lies in one of its keep intervals; otherwise take the depth whose best interval holds "
    "the context. Outside all intervals the depth stays."
)


def recommend_document(
    found: Recommendation, launch: Launch | None = None, by_batch: LaunchByBatch | None = None
) -> dict[str, Any]:
    """Everything a recommendation knows; ``choice`` is null where there is none, ``launch`` where no command starts it,
    and ``launch_unsaid`` is then what no flag says; ``by_batch`` is null where it was not asked for."""
    launch = launch or Launch()
    deployment, options = found.space.deployment, found.space.options
    table = found.depth_table
    return {
        "schema": SCHEMA,
        "model": deployment.model.name,
        "gpu": deployment.machine.gpu.name,
        "engine": _engine(found),
        "profile": {"name": deployment.machine.profile.name, "status": deployment.machine.profile.status},
        "drafter": deployment.drafter.name if deployment.drafter else None,
        "layout": layout_document(deployment.work.layout),
        "mix": {
            "contexts": found.asked.contexts.astype(int).tolist(),
            "batches": found.asked.batches.astype(int).tolist(),
            "shares": found.asked.shares.tolist(),
            "fits": found.asked_priced.fits[0].tolist(),
        },
        "acceptance": _acceptance(found),
        "slo_itl_s": found.target.seconds if np.isfinite(found.target.seconds) else None,
        "slo_certain": found.target.certain,
        "need": found.need,
        "options": [_option(found, place) for place in range(len(options))],
        "choice": _choice(found),
        "launch": launch.line,
        "launch_unsaid": launch.unsaid,
        "by_batch": None if by_batch is None else _by_batch(by_batch, deployment.work.layout.dp),
        "over_runner_up": _over(found, found.runner_up),
        "over_off": _over(found, 0 if found.place else None),
        "speculation": None if found.speculation is None else found.speculation.word,
        "what_if": None if found.what_if is None else _named(options[found.what_if]),
        "too_large": None if found.too_large is None else _named(options[found.too_large]),
        "better_backend": _better_backend(found),
        "thresholds": [
            asdict(each) | {"becomes": _if_any(each.becomes), "option": _if_any(each.option)}
            for each in found.thresholds
        ],
        "standing": [asdict(each) | {"option": _if_any(each.option)} for each in found.standing],
        "switching": None if table is None else _switching(table),
        "warnings": [{"id": w.id, "text": w.text} for w in notices(found)],
    }


def table_document(found: Recommendation) -> dict[str, Any]:
    """Depths by batch and context. Raises ValueError where there is no table."""
    table = found.depth_table
    if table is None:
        raise ValueError("no table of depths")
    return {
        "schema": TABLE_SCHEMA,
        "model": found.space.deployment.model.name,
        "gpu": found.space.deployment.machine.gpu.name,
        "engine": _engine(found),
        "policy": table.draft_kv.policy,
        "window": table.draft_kv.window,
        "sink": table.draft_kv.sink,
        "depths": list(table.depths),
        "contexts": table.contexts.astype(int).tolist(),
        "batches": table.batches.astype(int).tolist(),
        "depth": table.depth.tolist(),
        "tokens_per_s": table.tokens_per_s.tolist(),
        "rule": RULE,
        "margin": MARGIN,
        "rows": [_row(row) for row in table.rows],
        "by_batch": [
            {"above": int(before), "up_to": int(batch), "depth": int(depth)}
            for before, batch, depth in zip([0, *table.batches[:-1]], table.batches, table.by_batch, strict=True)
        ],
        "batch_only_loss": table.batch_only_loss,
    }


def _engine(found: Recommendation) -> str:
    engine = found.space.deployment.engine
    return f"{engine.name}@{engine.version}"


def _acceptance(found: Recommendation) -> dict[str, Any] | None:
    if found.acceptance is None:
        return None
    other_depths = "assumed: one constant conditional rate" if found.assumed else "as stated"
    return {"stated_as": found.acceptance.kind, "source": found.acceptance.source, "other_depths": other_depths}


def _named(option: Option) -> dict[str, Any]:
    return asdict(option) | {"policy": option.policy or "off"}


def _if_any(option: Option | None) -> dict[str, Any] | None:
    return None if option is None else _named(option)


def _option(found: Recommendation, place: int) -> dict[str, Any]:
    """Costs and needs of one option, and over the mix what it gives; null without an acceptance or where none fits."""
    document = _named(found.space.options[place]) | {
        "in_engine": bool(found.space.allowed[place]),
        "step_s": found.asked_priced.seconds[place].tolist(),
        "fits": found.asked_priced.fits[place].tolist(),
        "accept_length_needed": found.needed[place].tolist(),
        "unwinnable": found.unwinnable[place].tolist(),
        "accept_length_needed_on_mix": None if found.mix is None else float(found.needed_on_mix[place]),
        "accept_length": None if found.lengths is None else float(found.lengths[place]),
    }
    judged = found.judged
    return document | {
        "tokens_per_s": None if judged is None else float(judged.rate[place]),
        "speedup": None if judged is None else float(judged.rate[place] / judged.rate[0]),
        "longest_itl_s": None if judged is None else float(judged.latency_s[place]),
        "longest_itl_high_s": None if judged is None else float(judged.slow_latency_s[place]),
        "possible": None if judged is None else bool(judged.possible[place]),
    }


def _choice(found: Recommendation) -> dict[str, Any] | None:
    if found.place is None:
        return None
    deployment = found.space.deployment
    drafter = deployment.drafter.name if found.place and deployment.drafter else None
    return {"engine": _engine(found), "drafter": drafter} | _option(found, found.place)


def _over(found: Recommendation, other: int | None) -> dict[str, Any] | None:
    if other is None:
        return None
    over: Difference = found.over(other)
    return _named(found.space.options[other]) | {
        "gain": over.expected,
        "interval": [over.low, over.high],
        "sure": over.sure,
        "never_measured": list(over.unmeasured),
    }


def _better_backend(found: Recommendation) -> dict[str, Any] | None:
    other = better_backend(found)
    if other is None:
        return None
    return {"backend": other.backend, "option": _named(other.option), "gain": other.more}


def _switching(table: DepthTable) -> dict[str, Any]:
    return {
        "policy": table.draft_kv.policy,
        "window": table.draft_kv.window,
        "sink": table.draft_kv.sink,
        "depth": table.depth.tolist(),
        "by_batch": table.by_batch.tolist(),
        "tokens_per_s": table.switching,
        "batch_only_loss": table.batch_only_loss,
    }


def _by_batch(launch: LaunchByBatch, replicas: int) -> dict[str, Any]:
    """Batches are those of one of the replicas, which is what it looks up."""
    ranges = [{"above": first - 1, "up_to": last, "depth": depth} for first, last, depth in launch.ranges]
    found = {"launch": launch.line, "file": json.loads(launch.content), "depths": ranges, "note": launch.note or None}
    return found | {"replicas": replicas}


def _row(row: Row) -> dict[str, Any]:
    return {"batch": row.batch, "best": _bands(row.best), "keep": _bands(row.keep)}


def _bands(bands: dict[int, list[Interval]]) -> dict[str, list[list[int]]]:
    return {str(depth): [list(interval) for interval in intervals] for depth, intervals in bands.items()}
