"""What ships: models, GPUs and engines as tables and as JSON documents."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from wmtp_sim.catalog.engines import engine_names, load_engine
from wmtp_sim.catalog.gpus import gpu_names, load_gpu
from wmtp_sim.catalog.models import load_model, model_names
from wmtp_sim.render.console import plain_table
from wmtp_sim.spec.engine import TITLES, Engine, quoted
from wmtp_sim.spec.model import Block, Mixer, Model
from wmtp_sim.units import gigabytes, tokens
from wmtp_sim.work.cache import (
    kv_bytes_per_token,
    kv_token_bytes,
    mtp_kv_bytes_per_token,
    state_bytes_per_sequence,
    window_bytes_per_sequence,
)
from wmtp_sim.work.weights import active_params, checkpoint_params, mtp_active_params, mtp_params, target_params

MODEL_SCHEMA = "wmtp-model/1"
BF16 = 2.0


# --- models ----------------------------------------------------------------------------------------------------


def model_document(model: Model) -> dict[str, Any]:
    """Parameters, layers, cache and state of one model; bytes at bf16 KV."""
    kv, draft_kv = kv_bytes_per_token(model, BF16), mtp_kv_bytes_per_token(model, BF16)
    return {
        "schema": MODEL_SCHEMA,
        "name": model.name,
        "family": model.family,
        "params": {
            "target": target_params(model),
            "active": active_params(model),
            "lm_head": model.vocab * model.hidden,
            "vision": model.vision_params,
            "checkpoint": checkpoint_params(model),
        },
        "hidden": model.hidden,
        "vocab": model.vocab,
        "max_context": model.max_context,
        "encodes_positions": model.rope,
        "layers": {"mixers": _kinds(model.blocks, "mixers"), "channels": _kinds(model.blocks, "channels")},
        "kv_bytes_per_token": kv,
        "kv_growing_layers": growing_layers(model.blocks),
        "window_bytes_per_sequence": window_bytes_per_sequence(model, BF16),
        "state_bytes_per_sequence": state_bytes_per_sequence(model),
        "draft_head": _head(model, draft_kv),
        "draft_head_note": model.mtp_note or None,
        "draft_kv_share": draft_kv / (kv + draft_kv) if kv + draft_kv else 0.0,
        "precision": model.precision.model_dump(),
    }


def _head(model: Model, draft_kv: float) -> dict[str, Any] | None:
    if model.mtp is None:
        return None
    return {
        "heads": model.mtp.heads,
        "params": mtp_params(model),
        "active_params": mtp_active_params(model),
        "own_lm_head": model.mtp.own_lm_head,
        "kv_bytes_per_token": draft_kv,
        "mixers": _kinds(model.mtp.blocks, "mixers"),
        "channels": _kinds(model.mtp.blocks, "channels"),
    }


def growing_layers(blocks: tuple[Block, ...]) -> int:
    """Token mixers whose cache grows with context (LongCat has two a layer)."""
    return sum(block.count for block in blocks for mixer in block.mixers if kv_token_bytes(mixer, BF16) > 0)


def _kinds(blocks: tuple[Block, ...], part: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for block in blocks:
        for item in getattr(block, part):
            counts[_label(item)] += block.count
    return dict(counts)


def _label(part: Mixer) -> str:
    window = getattr(part, "window", None)
    return f"{part.kind} window {window}" if window and part.kind == "attention" else part.kind


def model_documents() -> dict[str, Any]:
    return {"schema": "wmtp-models/1", "models": [model_document(load_model(name)) for name in model_names()]}


def print_models(console: Console) -> None:
    rows = []
    for name in model_names():
        document = model_document(load_model(name))
        params, head = document["params"], document["draft_head"]
        row = {
            "model": name,
            "target B": f"{params['target'] / 1e9:.1f}",
            "active B": f"{params['active'] / 1e9:.1f}",
            "KV B/token": f"{document['kv_bytes_per_token']:,.0f}",
            "state MB": f"{document['state_bytes_per_sequence'] / 1e6:.1f}",
            "draft head": " + ".join(head["mixers"]) if head else "none",
            "draft KV": f"{document['draft_kv_share']:.2%}" if head else "",
            "limit": tokens(document["max_context"]),
        }
        rows.append(row)
    _print_rows(console, rows, left=("model",), spare=("draft head", "limit", "state MB", "active B"))
    console.print(Text("KV at bf16; draft KV is the head's share of the whole cache.", style="dim"))


def print_model(model: Model, console: Console) -> None:
    """The facts of one model, a line each."""
    document = model_document(model)
    params, head = document["params"], document["draft_head"]
    formats = document["precision"]["target"]
    facts = {
        "family": model.family,
        "parameters": f"{params['target']:,} target, {params['active']:,} active, {params['checkpoint']:,} checkpoint",
        "layers": _sentence(document["layers"]["mixers"]) + "; " + _sentence(document["layers"]["channels"]),
        "context limit": tokens(model.max_context) + ("" if model.rope else " (no position encoding)"),
        "KV": f"{document['kv_bytes_per_token']:,.0f} B/token at bf16 over {document['kv_growing_layers']} layers",
        "state": f"{gigabytes(state)} per sequence" if (state := document["state_bytes_per_sequence"]) else "none",
        "weights": ", ".join(f"{group} {name}" for group, name in formats.items() if name != "bf16") or "bf16",
    }
    if head:
        share = f"{head['kv_bytes_per_token']:,.0f} B/token, {document['draft_kv_share']:.2%} of all KV"
        facts["draft head"] = (
            f"{head['heads']} x {_sentence(head['mixers'])} + {_sentence(head['channels'])}, "
            f"{head['params']:,} parameters ({head['active_params']:,} active), {share}"
        )
    else:
        facts["draft head"] = f"none: {model.mtp_note}"
    if model.precision.note:
        facts["note"] = model.precision.note
    console.print(Text(model.name, style="bold"))
    table = plain_table([""])
    table.add_column(overflow="fold")
    table.show_header = False
    for label, fact in facts.items():
        table.add_row(label, fact)
    console.print(table)


def _sentence(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


# --- GPUs and engines ------------------------------------------------------------------------------------------


def gpu_documents() -> dict[str, Any]:
    return {"schema": "wmtp-gpus/1", "gpus": {name: load_gpu(name).model_dump() for name in gpu_names()}}


def print_gpus(console: Console) -> None:
    rows = []
    for name in gpu_names():
        gpu = load_gpu(name)
        peaks = gpu.peak_dense_flops
        row = {
            "gpu": name,
            "name": gpu.name,
            "bf16": _teraflops(peaks.bf16),
            "fp8": _teraflops(peaks.fp8),
            "fp4": _teraflops(peaks.fp4),
            "MiB": f"{gpu.memory_bytes / 2**20:,.0f}{'?' if 'memory_bytes' in gpu.unverified else ''}",
            "GB": gigabytes(gpu.memory_bytes).removesuffix(" GB"),
            "TB/s": f"{gpu.hbm_bandwidth_bytes_per_s / 1e12:.2f}",
            "SMs": str(gpu.sm_count or "?"),
            "unverified": str(len(gpu.unverified) or ""),
        }
        rows.append(row)
    _print_rows(console, rows, left=("gpu", "name"), spare=("name", "unverified", "SMs"))
    for line in (
        "Memory is what drivers read out (nvidia-smi's MiB; GB are 10^9 bytes); ?: no read-out was seen.",
        "Peaks are dense TFLOP/s, without structured sparsity. `wmtp gpus --json` has sources.",
    ):
        console.print(Text(line, style="dim"))


def _teraflops(peak: float | None) -> str:
    return f"{peak / 1e12:.0f}" if peak else "-"


def engine_documents() -> dict[str, Any]:
    return {"schema": "wmtp-engines/1", "engines": {name: load_engine(name).model_dump() for name in engine_names()}}


def print_engines(console: Console) -> None:
    table = plain_table(["engine"], ["what it is"])
    table.add_column("draft windows")
    for name in engine_names():
        engine = load_engine(name)
        table.add_row(name, engine.title, ", ".join(engine.offers) or "none")
    console.print(table)


def engine_values(engine: Engine) -> list[tuple[str, str, str]]:
    """Every value of an engine: path, value as TOML spells it, source."""
    document = engine.model_dump(exclude={"sources", *TITLES})
    return [(path, _toml(value), engine.source_of(path)) for path, value in _leaves(document)]


def _leaves(table: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        path = f"{above}{quoted(name)}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{path}.")
        elif isinstance(value, tuple | list) and value and isinstance(value[0], dict):
            for i, each in enumerate(value):
                yield from _leaves(each, f"{path}.{i}.")
        else:
            yield path, value


def _toml(value: Any) -> str:
    """A number, a text, a list of them or an empty table; TOML has no word for an absent value."""
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def engine_document(engine: Engine) -> dict[str, Any]:
    """One engine in full, and its values with their sources."""
    values = [{"path": path, "value": value, "source": source} for path, value, source in engine_values(engine)]
    return {"schema": "wmtp-engine-values/1", "engine": engine.model_dump(), "values": values}


def print_engine(engine: Engine, console: Console) -> None:
    """One engine: what it is, and every value beside its source."""
    console.print(Text(f"{engine.name} {engine.version}: {engine.title}", style="bold"))
    table = plain_table(("value", "", "source"), overflow="fold")
    said = ""
    for path, value, source in engine_values(engine):
        table.add_row(Text(path), Text(value), Text('"' if source == said else source))
        said = source
    console.print(table)
    for note in engine.notes:
        console.print(Text(f"note: {note.text}"))
    console.print(Text("--engine-set PATH=VALUE changes any of these; none is a value that is not there.", style="dim"))


def _print_rows(console: Console, rows: list[dict[str, str]], left: tuple[str, ...], spare: tuple[str, ...]) -> None:
    """A table of equal rows; where it is wider than the console, without ``spare`` columns, the first one first."""
    widths = {heading: max(len(heading), *(len(row[heading]) for row in rows)) for heading in rows[0]}
    dropped: list[str] = []
    while spare[len(dropped) :] and sum(widths.values()) + 2 * (len(widths) - 1) > console.width:
        dropped.append(spare[len(dropped)])
        del widths[dropped[-1]]
    words = [heading for heading in widths if heading in left]
    table = plain_table(words, [heading for heading in widths if heading not in left], no_wrap=True)
    for row in rows:
        table.add_row(*(row[heading] for heading in widths))
    console.print(table)
    if dropped:
        text = f"Not shown at {console.width} columns: {', '.join(dropped)}; --json has all."
        console.print(Text(text, style="dim"))
