"""`wmtp plot`: pictures of one step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wmtp_sim.cli.options import Deployment, GpuName, ModelName, Sink, Window, grouped
from wmtp_sim.cli.output import print_json
from wmtp_sim.errors import InputError

if TYPE_CHECKING:
    from wmtp_sim.render.roofline import Roofline

plot_app = typer.Typer(help="Pictures of one step: the roofline.")


@plot_app.callback()
def plot() -> None:
    """Pictures of one step."""


@plot_app.command("roofline")
@grouped
def plot_roofline(
    model: ModelName,
    gpu: GpuName,
    context: Annotated[str, typer.Option(help="Committed tokens: 1M, 128K or 1_040_000.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A .html, .png, .svg or .json file.")] = None,
    depth: Annotated[
        str | None,
        typer.Option(help="Tokens drafted per step; 0 shows the base step alone. As a system is made, else 3."),
    ] = None,
    policy: Annotated[str | None, typer.Option(help="The system whose step stands beside the base step.")] = None,
    window: Window = "4032",
    sink: Sink = "64",
    batch: Annotated[str, typer.Option(help="Sequences that all GPUs decode together.")] = "1",
    *,
    deployment: Deployment,
    as_json: Annotated[bool, typer.Option("--json", help="Print the data as one JSON document.")] = False,
) -> None:
    """The kernels of one step on the machine's roofline, and measured points over fitted curves."""
    from wmtp_sim.api import estimate
    from wmtp_sim.cli.ranges import whole
    from wmtp_sim.render.files import PAGE, PICTURES, check_output
    from wmtp_sim.render.roofline import roofline

    if out is None and not as_json:
        raise InputError("--out", "is missing", "say where to draw: -o roofline.html; or print the data: --json")
    if out is not None:
        check_output(out, (PAGE, *PICTURES, ".json"))
    answer = estimate(
        model,
        gpu,
        context=whole(context, "--context"),
        depth=None if depth is None else whole(depth, "--depth"),
        window=whole(window, "--window"),
        sink=whole(sink, "--sink"),
        batch=whole(batch, "--batch"),
        **deployment.keywords(),
    )
    roofs = roofline(answer, policy)
    if out is not None:
        _write(roofs, out)
    if as_json:
        print_json(roofs.document)


def _write(roofs: Roofline, out: Path) -> None:
    """The data as a JSON file, or the picture."""
    from wmtp_sim.render.files import write_figure, write_text

    if out.suffix.lower() == ".json":
        write_text(out, json.dumps(roofs.document, allow_nan=False) + "\n")
    else:
        from wmtp_sim.render.figures import shown
        from wmtp_sim.render.roofline_figure import roofline_figure, roofline_notes, roofline_rows

        title = f"{shown(roofs.model)} on {shown(roofs.gpu)}: roofline"
        write_figure(roofline_figure(roofs), out, title, roofline_notes(roofs), roofline_rows(roofs))
    typer.echo(f"wmtp: roofline: {out}", err=True)
