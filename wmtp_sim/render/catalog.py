"""What ships: models, GPUs and engines as tables and as JSON documents."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wmtp_sim.catalog.engines import engine_names, load_engine
from wmtp_sim.catalog.gpus import gpu_names, load_gpu
from wmtp_sim.catalog.models import load_model, model_names
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
    table = _table("model", "target B", "active B", "KV B/token", "state MB", "draft head", "draft KV", "limit")
    for name in model_names():
        document = model_document(load_model(name))
        params, head = document["params"], document["draft_head"]
        table.add_row(
            name,
            f"{params['target'] / 1e9:.1f}",
            f"{params['active'] / 1e9:.1f}",
            f"{document['kv_bytes_per_token']:,.0f}",
            f"{document['state_bytes_per_sequence'] / 1e6:.1f}",
            " + ".join(head["mixers"]) if head else "none",
            f"{document['draft_kv_share']:.2%}" if head else "",
            tokens(document["max_context"]),
        )
    console.print(table)
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
        "state": f"{gigabytes(document['state_bytes_per_sequence'])} per sequence",
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
    table = _table("", "")
    table.show_header = False
    for label, fact in facts.items():
        table.add_row(label, fact)
    table.columns[1].justify, table.columns[1].overflow = "left", "fold"
    console.print(table)


def _sentence(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


# --- GPUs and engines ------------------------------------------------------------------------------------------


def gpu_documents() -> dict[str, Any]:
    return {"schema": "wmtp-gpus/1", "gpus": {name: load_gpu(name).model_dump() for name in gpu_names()}}


def print_gpus(console: Console) -> None:
    table = _table("gpu", "name", "bf16 TFLOP/s", "fp8", "fp4", "memory", "TB/s", "SMs", "unverified")
    for name in gpu_names():
        gpu = load_gpu(name)
        peaks = gpu.peak_dense_flops
        table.add_row(
            name,
            gpu.name,
            *(f"{peak / 1e12:.0f}" if peak else "-" for peak in (peaks.bf16, peaks.fp8, peaks.fp4)),
            gigabytes(gpu.memory_bytes),
            f"{gpu.hbm_bandwidth_bytes_per_s / 1e12:.2f}",
            str(gpu.sm_count or "?"),
            str(len(gpu.unverified) or ""),
        )
    table.columns[1].justify = "left"
    console.print(table)
    console.print(Text("Dense peaks, without structured sparsity. `wmtp gpus --json` has sources.", style="dim"))


def engine_documents() -> dict[str, Any]:
    return {"schema": "wmtp-engines/1", "engines": {name: load_engine(name).model_dump() for name in engine_names()}}


def print_engines(console: Console) -> None:
    table = _table("engine", "version", "what it is", "draft windows")
    for name in engine_names():
        engine = load_engine(name)
        table.add_row(name, engine.version, engine.title, ", ".join(engine.window_policies) or "none")
    table.columns[2].justify = "left"
    console.print(table)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    return table
