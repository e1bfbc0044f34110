"""`wmtp breakeven`: the page that shows from which depth, context and window drafting stops to pay."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wmtp_sim.cli.options import (
    AcceptLength,
    Deployment,
    GpuName,
    ModelName,
    Sink,
    SourcedRates,
    WindowedAcceptLength,
    grouped,
)
from wmtp_sim.cli.output import print_json

if TYPE_CHECKING:
    from wmtp_sim.render.breakeven.start import Start
    from wmtp_sim.render.breakeven.table import CostTable


@grouped
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
    accept_length: AcceptLength = None,
    windowed_accept_length: WindowedAcceptLength = None,
    *,
    rates: SourcedRates,
    deployment: Deployment,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the data as one JSON document, complete and schema-versioned.")
    ] = False,
) -> None:
    """One self-contained HTML page: speedup against depth, break-even maps, sliders for acceptance and the rest."""
    from wmtp_sim.api import estimate
    from wmtp_sim.cli.ranges import counting, doubling, named_point, refuse_large, whole
    from wmtp_sim.errors import InputError
    from wmtp_sim.render.breakeven.start import opening
    from wmtp_sim.render.breakeven.table import CostTable
    from wmtp_sim.render.files import PAGE, PICTURES, check_output
    from wmtp_sim.spec.workload import open_grid

    if output is None and not as_json:
        raise InputError("--output", "no file is named for the page", "-o report.html, or --json for the data alone")
    source = rates.source
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
        **deployment.keywords(),
    )
    table = CostTable(costs)
    start = opening(
        table,
        named_point(at or (), "--at"),
        accept_length=accept_length,
        windowed_accept_length=windowed_accept_length,
        source=source,
        **rates.keywords(),
    )
    command = shlex.join(["wmtp", *sys.argv[1:]])
    if output is not None:
        _write(table, start, command, output)
        if not as_json:
            typer.echo(f"{output.resolve()}{': open it in a browser' if output.suffix.lower() == PAGE else ''}")
    if as_json:
        from wmtp_sim.render.breakeven.document import breakeven_document

        print_json(breakeven_document(table, start, command))


def _write(table: CostTable, start: Start, command: str, output: Path) -> None:
    """The page, or the picture of what it opens with."""
    from wmtp_sim.render.files import PAGE, write_figure, write_text

    if output.suffix.lower() == PAGE:
        from wmtp_sim.render.breakeven.page import breakeven_page

        write_text(output, breakeven_page(table, start, command))
    else:
        from wmtp_sim.render.breakeven.figure import breakeven_figure

        write_figure(breakeven_figure(table, start), output, flag="--output")
