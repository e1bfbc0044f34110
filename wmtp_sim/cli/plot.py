"""`wmtp plot`: pictures of one step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wmtp_sim.errors import InputError

if TYPE_CHECKING:
    from wmtp_sim.render.roofline import Roofline

plot_app = typer.Typer(help="Pictures of one step: the roofline.")
_PANEL = "Deployment"


@plot_app.callback()
def plot() -> None:
    """Pictures of one step."""


@plot_app.command("roofline")
def plot_roofline(
    model: Annotated[str, typer.Argument(help="Catalogue name (wmtp models), config.json, or its folder.")],
    gpu: Annotated[str, typer.Option(help="GPU name (wmtp gpus), or a GPU's TOML or JSON file.")],
    context: Annotated[str, typer.Option(help="Committed tokens: 1M, 128K or 1_040_000.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A .html, .png, .svg or .json file.")] = None,
    depth: Annotated[str, typer.Option(help="Tokens drafted per step; 0 shows the base step alone.")] = "3",
    policy: Annotated[str, typer.Option(help="Whose step beside the base step: native, flag or ring.")] = "native",
    window: Annotated[str, typer.Option(help="Recent tokens that a windowed draft attends.")] = "4032",
    sink: Annotated[str, typer.Option(help="First tokens that a windowed draft attends.")] = "64",
    batch: Annotated[str, typer.Option(help="Sequences decoded together.")] = "1",
    engine: Annotated[str, typer.Option(help="sglang, vllm@0.26 (wmtp engines), or an engine's TOML file.")] = "sglang",
    engine_set: Annotated[
        list[str] | None,
        typer.Option(help="Change a value of the engine: host.step_s=0.001; several times.", metavar="PATH=VALUE"),
    ] = None,
    drafter: Annotated[str, typer.Option(help="mtp, eagle, or a draft model.", rich_help_panel=_PANEL)] = "mtp",
    weights: Annotated[
        str | None, typer.Option(help="Format of the target's linear layers.", rich_help_panel=_PANEL)
    ] = None,
    head_weights: Annotated[str | None, typer.Option(help="Format of lm_head.", rich_help_panel=_PANEL)] = None,
    draft_weights: Annotated[
        str | None, typer.Option(help="Format of the draft head's linear layers.", rich_help_panel=_PANEL)
    ] = None,
    kv: Annotated[str | None, typer.Option(help="KV cache: bf16 or fp8.", rich_help_panel=_PANEL)] = None,
    draft_kv: Annotated[str | None, typer.Option(help="Draft KV cache.", rich_help_panel=_PANEL)] = None,
    overlap: Annotated[
        float, typer.Option(help="Experts shared by consecutive rows, 0 to 1.", rich_help_panel=_PANEL)
    ] = 0.0,
    routing_skew: Annotated[
        float, typer.Option(help="Exponent of experts' popularity: 0 uniform, 1 Zipf.", rich_help_panel=_PANEL)
    ] = 0.0,
    tp: Annotated[str, typer.Option(help="Tensor-parallel GPUs.", rich_help_panel=_PANEL)] = "1",
    expert_parallel: Annotated[
        bool, typer.Option("--expert-parallel", help="GPUs hold whole experts.", rich_help_panel=_PANEL)
    ] = False,
    profile: Annotated[
        str | None, typer.Option(help="Machine profile (wmtp profiles), or its JSON file.", rich_help_panel=_PANEL)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the data as one JSON document.")] = False,
) -> None:
    """The kernels of one step on the machine's roofline, and measured points over fitted curves."""
    from wmtp_sim.api import estimate
    from wmtp_sim.catalog.engines import load_engine
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
        depth=whole(depth, "--depth"),
        window=whole(window, "--window"),
        sink=whole(sink, "--sink"),
        batch=whole(batch, "--batch"),
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
    roofs = roofline(answer, policy)
    if out is not None:
        _write(roofs, out)
    if as_json:
        typer.echo(json.dumps(roofs.document, allow_nan=False))


def _write(roofs: Roofline, out: Path) -> None:
    """The data as a JSON file, or the picture."""
    from wmtp_sim.render.files import write_figure, write_text

    if out.suffix.lower() == ".json":
        write_text(out, json.dumps(roofs.document, allow_nan=False) + "\n")
    else:
        from wmtp_sim.render.figures import shown
        from wmtp_sim.render.roofline_figure import roofline_figure, roofline_notes

        title = f"{shown(roofs.model)} on {shown(roofs.gpu)}: roofline"
        write_figure(roofline_figure(roofs), out, title, roofline_notes(roofs))
    typer.echo(f"wmtp: roofline: {out}", err=True)
