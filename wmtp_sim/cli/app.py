"""Commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from wmtp_sim import __version__
from wmtp_sim.cli.breakeven import breakeven
from wmtp_sim.cli.calibrate import calibrate
from wmtp_sim.cli.options import (
    ACCEPTANCE,
    Deployment,
    GpuName,
    JsonFlag,
    ModelName,
    Sink,
    SourcedRates,
    Window,
    WindowedAcceptLength,
    grouped,
)
from wmtp_sim.cli.output import console, print_json, show
from wmtp_sim.cli.plot import plot_app
from wmtp_sim.cli.preflight import preflight
from wmtp_sim.cli.profiles import profiles_app, validate
from wmtp_sim.cli.recommend import recommend

app = typer.Typer(
    name="wmtp",
    help="What a speculative decoding step costs, and what it gains, before it is deployed.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"wmtp {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Version, and exit.")] = (
        False
    ),
) -> None:
    """Options before the command; without a command, the help."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)  # rich prints it and returns nothing


@app.command()
@grouped
def estimate(
    model: ModelName,
    gpu: GpuName,
    context: Annotated[str, typer.Option(help="Committed tokens: 1M, 128K, 4K,32K or 4K:1M (doubling).")],
    depth: Annotated[
        str | None,
        typer.Option(help="Tokens drafted per step: 6 or 0:12; 0 is none. As a system is made, else 3."),
    ] = None,
    window: Window = "4032",
    sink: Sink = "64",
    batch: Annotated[str, typer.Option(help="Sequences that all GPUs decode together: 8 or 1:64 (doubling).")] = "1",
    accept_length: Annotated[
        list[str] | None,
        typer.Option(
            help="Mean tokens per step, bonus included (SGLang accept len); by system: NAME=2.8.",
            metavar="NUMBER",
            rich_help_panel=ACCEPTANCE,
        ),
    ] = None,
    windowed_accept_length: WindowedAcceptLength = None,
    *,
    rates: SourcedRates,
    deployment: Deployment,
    explain: Annotated[bool, typer.Option("--explain", help="Operations by time, and the roof that binds.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Cost of a speculative step, and what acceptance makes of it."""
    from wmtp_sim.api import estimate as estimate_deployment
    from wmtp_sim.cli.ranges import counting, doubling, gridded, lengths, whole
    from wmtp_sim.errors import InputError

    source = rates.source
    contexts, depths, windows, batches = gridded(
        {
            "--context": doubling(context, "--context"),
            "--depth": [0] if depth is None else counting(depth, "--depth"),
            "--window": doubling(window, "--window"),
            "--batch": doubling(batch, "--batch"),
        }
    )
    answer = estimate_deployment(
        model,
        gpu,
        context=contexts,
        depth=None if depth is None else depths,
        window=windows,
        sink=whole(sink, "--sink"),
        batch=batches,
        accept_length=lengths(accept_length or ()),
        windowed_accept_length=windowed_accept_length,
        acceptance_source=source,
        **rates.keywords(),
        **deployment.keywords(),
    )
    if explain and answer.work.shape != ():
        raise InputError("--explain", "explains one point, not a range", "give one context, depth, window and batch")
    if as_json:
        from wmtp_sim.render.document import estimate_document

        print_json(estimate_document(answer, operations=explain))
        return
    from wmtp_sim.render.tables import print_estimate, print_explanation

    print_estimate(answer, console())
    if explain:
        print_explanation(answer, console())


models_app = typer.Typer(help="The model catalogue.", invoke_without_command=True)
app.add_typer(models_app, name="models")


@models_app.callback(invoke_without_command=True)
def models(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the shipped models: parameters, KV bytes per token, draft head."""
    if context.invoked_subcommand is not None:
        context.obj = as_json  # `wmtp models --json show NAME` means what it says
        return
    from wmtp_sim.render.catalog import model_documents, print_models

    show(as_json, model_documents, print_models)


@models_app.command("show")
def models_show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Catalogue name, config.json, or its folder.")],
    as_json: JsonFlag = False,
) -> None:
    """One model: parameter totals, layers, KV, state, draft head, precision."""
    from wmtp_sim.catalog.models import load_model
    from wmtp_sim.render.catalog import model_document, print_model

    show(as_json or context.obj, model_document, print_model, load_model(name))


@app.command()
def gpus(as_json: JsonFlag = False) -> None:
    """List the GPU catalogue."""
    from wmtp_sim.render.catalog import gpu_documents, print_gpus

    show(as_json, gpu_documents, print_gpus)


@app.command()
def systems(
    name: Annotated[str | None, typer.Argument(help="One system, or its TOML file; all otherwise.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the systems, or show one: what drafts, over which cache, in how many passes, and what of it is assumed."""
    from wmtp_sim.catalog.systems import load_system, shipped_systems
    from wmtp_sim.render.systems import print_system, print_systems, system_document

    if as_json:
        known = shipped_systems().values() if name is None else [load_system(name)]
        print_json({"schema": "wmtp-systems/1", "systems": [system_document(each) for each in known]})
    elif name is None:
        print_systems(console())
    else:
        print_system(load_system(name), console())


engines_app = typer.Typer(help="The engine definitions.", invoke_without_command=True)
app.add_typer(engines_app, name="engines")


@engines_app.callback(invoke_without_command=True)
def engines(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the engine definitions: a name without a version is the newest."""
    if context.invoked_subcommand is not None:
        context.obj = as_json
        return
    from wmtp_sim.render.catalog import engine_documents, print_engines

    show(as_json, engine_documents, print_engines)


@engines_app.command("show")
def engines_show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="sglang, vllm@0.26, or an engine's TOML file.")],
    engine_set: Annotated[list[str] | None, typer.Option(help="Change a value first.", metavar="PATH=VALUE")] = None,
    as_json: JsonFlag = False,
) -> None:
    """One engine: every value of its definition, and where it comes from."""
    from wmtp_sim.catalog.engines import load_engine
    from wmtp_sim.render.catalog import engine_document, print_engine

    show(as_json or context.obj, engine_document, print_engine, load_engine(name, engine_set or ()))


app.command()(breakeven)
app.command()(recommend)
app.command()(preflight)
app.command()(calibrate)
app.command()(validate)
app.add_typer(profiles_app, name="profiles")
app.add_typer(plot_app, name="plot")
