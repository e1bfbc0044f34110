"""`wmtp breakeven`: the page that shows from which depth, context and window drafting stops to pay."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wmtp_sim.cli.options import (
    ACCEPTANCE,
    AcceptanceSource,
    AllToAll,
    Alpha,
    AttentionBackend,
    Conditional,
    Dp,
    DpAttention,
    DrafterName,
    DraftKv,
    DraftTp,
    DraftWeights,
    EngineName,
    EngineSet,
    ExpertParallel,
    GpuName,
    HeadWeights,
    Kv,
    ModelName,
    Overlap,
    ProfileName,
    RoutingSkew,
    Sink,
    Survival,
    SystemNames,
    Tp,
    Weights,
    WindowedAcceptLength,
    checked_source,
)

if TYPE_CHECKING:
    from wmtp_sim.render.breakeven.start import Start
    from wmtp_sim.render.breakeven.table import CostTable


def breakeven(
    model: ModelName,
    gpu: GpuName,
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
    sink: Sink = "64",
    batch: Annotated[str, typer.Option(help="Sequences that all GPUs decode together: 1:64 (doubling).")] = "1:64",
    at: Annotated[
        list[str] | None,
        typer.Option(help="The point that the page opens at: depth=6,context=1M.", metavar="AXIS=VALUE"),
    ] = None,
    accept_length: Annotated[
        float | None,
        typer.Option(help="Mean tokens per step, bonus included, at the depth of --at.", rich_help_panel=ACCEPTANCE),
    ] = None,
    windowed_accept_length: WindowedAcceptLength = None,
    alpha: Alpha = None,
    survival: Survival = None,
    conditional: Conditional = None,
    acceptance_source: AcceptanceSource = "given",
    engine: EngineName = "sglang",
    engine_set: EngineSet = None,
    attention_backend: AttentionBackend = None,
    drafter: DrafterName = None,
    system: SystemNames = None,
    weights: Weights = None,
    head_weights: HeadWeights = None,
    draft_weights: DraftWeights = None,
    kv: Kv = None,
    draft_kv: DraftKv = None,
    overlap: Overlap = 0.0,
    routing_skew: RoutingSkew = 0.0,
    tp: Tp = "1",
    dp: Dp = "1",
    dp_attention: DpAttention = False,
    draft_tp: DraftTp = None,
    expert_parallel: ExpertParallel = False,
    all_to_all: AllToAll = False,
    profile: ProfileName = None,
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
    source = checked_source(acceptance_source)
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
        attention_backend=attention_backend,
        drafter=drafter,
        system=system or (),
        weights=weights,
        head_weights=head_weights,
        draft_weights=draft_weights,
        kv=kv,
        draft_kv=draft_kv,
        overlap=overlap,
        routing_skew=routing_skew,
        expert_parallel=expert_parallel,
        tp=whole(tp, "--tp"),
        dp=whole(dp, "--dp"),
        dp_attention=dp_attention,
        all_to_all=all_to_all,
        draft_tp=None if draft_tp is None else whole(draft_tp, "--draft-tp"),
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
        source=source,
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
