"""`wmtp breakeven`: the page that shows from which depth, context and window drafting stops to pay."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from wmtp_sim.render.breakeven.start import Start
    from wmtp_sim.render.breakeven.table import CostTable

ACCEPTANCE, DEPLOYMENT = "Acceptance", "Deployment"


def _acceptance(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=ACCEPTANCE)


def _deployment(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=DEPLOYMENT)


def breakeven(
    model: Annotated[str, typer.Argument(help="Catalogue name (wmtp models), config.json, or its folder.")],
    gpu: Annotated[str, typer.Option(help="GPU name (wmtp gpus), or a GPU's TOML or JSON file.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where it goes: report.html, or a picture for print: .png, .svg.", metavar="FILE"
        ),
    ] = None,
    context: Annotated[str, typer.Option(help="Committed tokens: a list, or 4K:1M (doubling).")] = "4K:1M",
    depth: Annotated[str, typer.Option(help="Tokens drafted per step: 0:12.")] = "0:12",
    window: Annotated[
        str, typer.Option(help="Recent tokens that a windowed draft attends: a list, or 1K:16K (doubling).")
    ] = "256,512,1K,2K,4032,8K,16K",
    sink: Annotated[str, typer.Option(help="First tokens that a windowed draft attends.")] = "64",
    batch: Annotated[str, typer.Option(help="Sequences decoded together: 1:64 (doubling).")] = "1:64",
    at: Annotated[
        list[str] | None,
        typer.Option(help="The point that the page opens at: depth=6,context=1M.", metavar="AXIS=VALUE"),
    ] = None,
    accept_length: Annotated[
        float | None, _acceptance("Mean tokens per step, bonus included, at the depth of --at.")
    ] = None,
    windowed_accept_length: Annotated[
        float | None, _acceptance("The same for windowed drafts, where it differs.")
    ] = None,
    alpha: Annotated[float | None, _acceptance("One conditional acceptance rate for every position.")] = None,
    survival: Annotated[
        str | None, _acceptance("P(first j tokens accepted), per position: vLLM's per-position rate.")
    ] = None,
    conditional: Annotated[str | None, _acceptance("P(token j accepted, given those before), per position.")] = None,
    acceptance_source: Annotated[str, _acceptance("given, measured, published or assumed.")] = "given",
    engine: Annotated[str, typer.Option(help="sglang, vllm@0.26 (wmtp engines), or an engine's TOML file.")] = "sglang",
    engine_set: Annotated[
        list[str] | None,
        typer.Option(help="Change a value of the engine: host.step_s=0.001; several times.", metavar="PATH=VALUE"),
    ] = None,
    drafter: Annotated[str, _deployment("mtp, eagle, or a draft model.")] = "mtp",
    weights: Annotated[str | None, _deployment("Format of the target's linear layers.")] = None,
    head_weights: Annotated[str | None, _deployment("Format of lm_head.")] = None,
    draft_weights: Annotated[str | None, _deployment("Format of the draft head's linear layers.")] = None,
    kv: Annotated[str | None, _deployment("KV cache: bf16 or fp8.")] = None,
    draft_kv: Annotated[str | None, _deployment("Draft KV cache.")] = None,
    overlap: Annotated[float, _deployment("Experts shared by consecutive rows, 0 to 1.")] = 0.0,
    routing_skew: Annotated[float, _deployment("Exponent of experts' popularity: 0 uniform, 1 Zipf.")] = 0.0,
    tp: Annotated[str, _deployment("Tensor-parallel GPUs.")] = "1",
    expert_parallel: Annotated[
        bool, typer.Option("--expert-parallel", help="GPUs hold whole experts.", rich_help_panel=DEPLOYMENT)
    ] = False,
    profile: Annotated[str | None, _deployment("Machine profile (wmtp profiles), or its JSON file.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the data as one JSON document, complete and schema-versioned.")
    ] = False,
) -> None:
    """One self-contained HTML page: speedup against depth, break-even maps, sliders for acceptance and the rest."""
    from wmtp_sim.api import estimate
    from wmtp_sim.catalog.engines import load_engine
    from wmtp_sim.cli.ranges import counting, doubling, named_point, rates, refuse_large, whole
    from wmtp_sim.errors import InputError
    from wmtp_sim.render.breakeven.start import opening
    from wmtp_sim.render.breakeven.table import CostTable
    from wmtp_sim.render.files import PAGE, PICTURES, check_output
    from wmtp_sim.spec.workload import open_grid

    if output is None and not as_json:
        raise InputError("--output", "no file is named for the page", "-o report.html, or --json for the data alone")
    if acceptance_source not in ("given", "measured", "published", "assumed"):
        raise InputError("--acceptance-source", f"{acceptance_source[:40]!r}", "given, measured, published or assumed")
    if output is not None:
        check_output(output, (PAGE, *PICTURES), "--output")
    axes = {
        "--context": sorted(set(doubling(context, "--context"))),
        "--depth": sorted(set(counting(depth, "--depth"))),
        "--window": sorted(set(doubling(window, "--window"))),
        "--batch": sorted(set(doubling(batch, "--batch"))),
    }
    refuse_large(axes)
    contexts, depths, windows, batches = open_grid(*axes.values())
    costs = estimate(
        model,
        gpu,
        context=contexts,
        depth=depths,
        window=windows,
        sink=whole(sink, "--sink"),
        batch=batches,
        engine=load_engine(engine, engine_set or ()),
        drafter=drafter,
        weights=weights,
        head_weights=head_weights,
        draft_weights=draft_weights,
        kv=kv,
        draft_kv=draft_kv,
        overlap=overlap,
        routing_skew=routing_skew,
        expert_parallel=expert_parallel,
        tp=whole(tp, "--tp"),
        profile=profile,
    )
    table = CostTable(costs)
    start = opening(
        table,
        named_point(at or (), "--at"),
        accept_length=accept_length,
        windowed_accept_length=windowed_accept_length,
        conditional=rates(conditional, "--conditional"),
        survival=rates(survival, "--survival"),
        alpha=alpha,
        source=acceptance_source,  # type: ignore[arg-type]
    )
    command = shlex.join(["wmtp", *sys.argv[1:]])
    if output is not None:
        _write(table, start, command, output)
        if not as_json:
            typer.echo(f"{output.resolve()}{': open it in a browser' if output.suffix.lower() == PAGE else ''}")
    if as_json:
        import json

        from wmtp_sim.render.breakeven.document import breakeven_document

        typer.echo(json.dumps(breakeven_document(table, start, command), allow_nan=False))


def _write(table: CostTable, start: Start, command: str, output: Path) -> None:
    """The page, or the picture of what it opens with."""
    from wmtp_sim.render.files import PAGE, write_figure, write_text

    if output.suffix.lower() == PAGE:
        from wmtp_sim.render.breakeven.page import breakeven_page

        write_text(output, breakeven_page(table, start, command))
    else:
        from wmtp_sim.render.breakeven.figure import breakeven_figure

        write_figure(breakeven_figure(table, start), output, flag="--output")
