"""What preflight found, as lines for people and as one JSON document, ``wmtp-preflight/1``."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.memory import Memory
from wmtp_sim.render.layout import layout_words
from wmtp_sim.spec.deployment import ServerDeployment
from wmtp_sim.units import about_tokens, gigabytes, tokens

if TYPE_CHECKING:
    from rich.console import Console

    from wmtp_sim.preflight import Preflight

SCHEMA = "wmtp-preflight/1"
_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def preflight_document(found: Preflight) -> dict[str, Any]:
    """Everything that preflight says: the deployment as understood, memory, traps by severity, the launch line."""
    estimate = found.estimate
    return {
        "schema": SCHEMA,
        "model": estimate.model.name,
        "gpu": estimate.machine.gpu.name,
        "engine": f"{estimate.engine.name}@{estimate.engine.version}",
        "passed": found.passed,
        "context": int(estimate.work.context),
        "batch": int(estimate.work.batch),
        "deployment": found.deployment.model_dump() | {"verify_rows": found.deployment.rows},
        "memory": {name: _memory(memory) for name, memory in list(estimate.memory.items())[:2]},
        "traps": [asdict(trap) for trap in found.traps],
        "launch": None if found.launch is None else found.launch.text,
    }


def _memory(memory: Memory) -> dict[str, Any]:
    most = {name: float(getattr(memory, name)) for name in ("max_context", "max_batch")}
    used = {"total_bytes": float(memory.total_bytes), "budget_bytes": memory.budget_bytes, "fits": bool(memory.fits)}
    return used | {name: count if math.isfinite(count) else None for name, count in most.items()}


def print_preflight(found: Preflight, console: Console) -> None:
    """What was understood, whether it fits, each trap with its fix, and the line that starts it."""
    from rich.text import Text

    estimate = found.estimate
    console.print(Text(estimate.title, style="bold"))
    console.print(Text(_understood(found.deployment, estimate), style="dim"))
    console.print(Text(_fit(estimate)))
    for trap in found.traps:
        console.print(Text(f"{trap.severity:<8}{trap.reason} [{trap.id}]", style=_STYLES[trap.severity]))
        console.print(Text(f"        -> {trap.fix}"))
    counts = {s: sum(trap.severity == s for trap in found.traps) for s in _STYLES}
    said = ", ".join(f"{count} {name}{'s' if count != 1 else ''}" for name, count in counts.items())
    console.print(Text(said, style="bold"))
    if found.launch is not None:
        console.print(Text(_heading(found)))
        console.print(Text(found.launch.text), soft_wrap=True)


def _heading(found: Preflight) -> str:
    """What the launch line is, and what it mends: it never leaves a window to a default backend that ignores it."""
    left_open = found.deployment.draft_attention_backend is None
    if left_open and any(trap.id == "window-inert-backend" for trap in found.traps):
        return "launch line, with a draft backend that honours the window:"
    return "launch line:"


def _understood(stated: ServerDeployment, estimate: Estimate) -> str:
    """The deployment in a line."""
    parts = [f"context {tokens(float(estimate.work.context))}", f"batch {int(estimate.work.batch)}"]
    if stated.chain:
        parts.append(f"depth {stated.depth} ({stated.rows} rows verified)" if stated.depth else "no speculation")
    elif estimate.systems:
        priced = estimate.systems[0]
        parts.append(f"{priced.name} of {int(priced.levels(estimate.work.depth))} tokens")
    else:
        parts.append(f"{stated.method}, which is not priced")
    if stated.window is not None:
        parts.append(f"window {stated.window:,} + sink {stated.sink or 0:,}")
    if stated.depth and stated.draft_attention_backend:
        parts.append(f"draft on {stated.draft_attention_backend}")
    return ", ".join([*parts, *layout_words(estimate.work.layout)])


def _fit(estimate: Estimate) -> str:
    """Memory per GPU and the largest context, with the drafter and without."""
    base, *with_drafter = estimate.memory.values()
    found = [("with the drafter", memory) for memory in with_drafter[:1]] + [("without", base)]
    parts = [
        f"{name} {gigabytes(float(m.total_bytes))}, at most {about_tokens(float(m.max_context))} of context"
        for name, m in found
    ]
    return f"memory per GPU of {gigabytes(base.budget_bytes)} usable: {'; '.join(parts)}"
