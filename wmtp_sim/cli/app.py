"""Commands and their options."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from wmtp_sim import __version__
from wmtp_sim.cli.breakeven import breakeven
from wmtp_sim.cli.calibrate import calibrate
from wmtp_sim.cli.plot import plot_app
from wmtp_sim.cli.profiles import profiles_app, validate

app = typer.Typer(
    name="wmtp",
    help="What a speculative decoding step costs, and what it gains, before it is deployed.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document, complete and schema-versioned.")]


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
def estimate(
    model: Annotated[str, typer.Argument(help="Catalogue name (wmtp models), config.json, or its folder.")],
    gpu: Annotated[str, typer.Option(help="GPU name (wmtp gpus), or a GPU's TOML or JSON file.")],
    context: Annotated[str, typer.Option(help="Committed tokens: 1M, 128K, 4K,32K or 4K:1M (doubling).")],
    depth: Annotated[str, typer.Option(help="Tokens drafted per step: 6 or 0:12. 0 is no speculation.")] = "3",
    window: Annotated[str, typer.Option(help="Recent tokens that a windowed draft attends.")] = "4032",
    sink: Annotated[str, typer.Option(help="First tokens that a windowed draft attends.")] = "64",
    batch: Annotated[str, typer.Option(help="Sequences decoded together: 8 or 1:64 (doubling).")] = "1",
    accept_length: Annotated[
        float | None,
        typer.Option(help="Mean tokens per step, bonus included (SGLang accept len).", rich_help_panel="Acceptance"),
    ] = None,
    windowed_accept_length: Annotated[
        float | None, typer.Option(help="The same for windowed drafts, where it differs.", rich_help_panel="Acceptance")
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="One conditional acceptance rate for every position.", rich_help_panel="Acceptance"),
    ] = None,
    survival: Annotated[
        str | None,
        typer.Option(
            help="P(first j tokens accepted), per position: vLLM's per-position rate.", rich_help_panel="Acceptance"
        ),
    ] = None,
    conditional: Annotated[
        str | None,
        typer.Option(help="P(token j accepted, given those before), per position.", rich_help_panel="Acceptance"),
    ] = None,
    acceptance_source: Annotated[
        str, typer.Option(help="given, measured, published or assumed.", rich_help_panel="Acceptance")
    ] = "given",
    engine: Annotated[str, typer.Option(help="sglang, vllm@0.26 (wmtp engines), or an engine's TOML file.")] = "sglang",
    engine_set: Annotated[
        list[str] | None,
        typer.Option(help="Change a value of the engine: host.step_s=0.001; several times.", metavar="PATH=VALUE"),
    ] = None,
    drafter: Annotated[str, typer.Option(help="mtp, eagle, or a draft model.", rich_help_panel="Deployment")] = "mtp",
    weights: Annotated[
        str | None, typer.Option(help="Format of the target's linear layers.", rich_help_panel="Deployment")
    ] = None,
    head_weights: Annotated[str | None, typer.Option(help="Format of lm_head.", rich_help_panel="Deployment")] = None,
    draft_weights: Annotated[
        str | None, typer.Option(help="Format of the draft head's linear layers.", rich_help_panel="Deployment")
    ] = None,
    kv: Annotated[str | None, typer.Option(help="KV cache: bf16 or fp8.", rich_help_panel="Deployment")] = None,
    draft_kv: Annotated[str | None, typer.Option(help="Draft KV cache.", rich_help_panel="Deployment")] = None,
    overlap: Annotated[
        float, typer.Option(help="Experts shared by consecutive rows, 0 to 1.", rich_help_panel="Deployment")
    ] = 0.0,
    routing_skew: Annotated[
        float, typer.Option(help="Exponent of experts' popularity: 0 uniform, 1 Zipf.", rich_help_panel="Deployment")
    ] = 0.0,
    tp: Annotated[str, typer.Option(help="Tensor-parallel GPUs.", rich_help_panel="Deployment")] = "1",
    expert_parallel: Annotated[
        bool, typer.Option("--expert-parallel", help="GPUs hold whole experts.", rich_help_panel="Deployment")
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(help="Machine profile (wmtp profiles), or its JSON file.", rich_help_panel="Deployment"),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Operations by time, and the roof that binds.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Cost of a speculative step, and what acceptance makes of it."""
    from wmtp_sim.api import estimate as estimate_deployment
    from wmtp_sim.catalog.engines import load_engine
    from wmtp_sim.cli.ranges import counting, doubling, gridded, rates, whole
    from wmtp_sim.errors import InputError

    if acceptance_source not in ("given", "measured", "published", "assumed"):
        raise InputError("--acceptance-source", f"{acceptance_source[:40]!r}", "given, measured, published or assumed")
    contexts, depths, windows, batches = gridded(
        {
            "--context": doubling(context, "--context"),
            "--depth": counting(depth, "--depth"),
            "--window": doubling(window, "--window"),
            "--batch": doubling(batch, "--batch"),
        }
    )
    answer = estimate_deployment(
        model,
        gpu,
        context=contexts,
        depth=depths,
        window=windows,
        sink=whole(sink, "--sink"),
        batch=batches,
        engine=load_engine(engine, engine_set or ()),
        accept_length=accept_length,
        windowed_accept_length=windowed_accept_length,
        conditional=rates(conditional, "--conditional"),
        survival=rates(survival, "--survival"),
        alpha=alpha,
        acceptance_source=acceptance_source,  # type: ignore[arg-type]
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
    if explain and answer.work.shape != ():
        raise InputError("--explain", "explains one point, not a range", "give one context, depth, window and batch")
    if as_json:
        from wmtp_sim.render.document import estimate_document

        _print_json(estimate_document(answer, operations=explain))
        return
    from wmtp_sim.render.tables import print_estimate, print_explanation

    print_estimate(answer, _console())
    if explain:
        print_explanation(answer, _console())


models_app = typer.Typer(help="The model catalogue.", invoke_without_command=True)
app.add_typer(models_app, name="models")


@models_app.callback(invoke_without_command=True)
def models(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the shipped models: parameters, KV bytes per token, draft head."""
    if context.invoked_subcommand is not None:
        context.obj = as_json  # `wmtp models --json show NAME` means what it says
        return
    from wmtp_sim.render.catalog import model_documents, print_models

    if as_json:
        _print_json(model_documents())
        return
    print_models(_console())


@models_app.command("show")
def models_show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Catalogue name, config.json, or its folder.")],
    as_json: JsonFlag = False,
) -> None:
    """One model: parameter totals, layers, KV, state, draft head, precision."""
    from wmtp_sim.catalog.models import load_model
    from wmtp_sim.render.catalog import model_document, print_model

    model = load_model(name)
    if as_json or context.obj:
        _print_json(model_document(model))
        return
    print_model(model, _console())


@app.command()
def gpus(as_json: JsonFlag = False) -> None:
    """List the GPU catalogue."""
    from wmtp_sim.render.catalog import gpu_documents, print_gpus

    if as_json:
        _print_json(gpu_documents())
        return
    print_gpus(_console())


engines_app = typer.Typer(help="The engine definitions.", invoke_without_command=True)
app.add_typer(engines_app, name="engines")


@engines_app.callback(invoke_without_command=True)
def engines(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the engine definitions: a name without a version is the newest."""
    if context.invoked_subcommand is not None:
        context.obj = as_json
        return
    from wmtp_sim.render.catalog import engine_documents, print_engines

    if as_json:
        _print_json(engine_documents())
        return
    print_engines(_console())


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

    engine = load_engine(name, engine_set or ())
    if as_json or context.obj:
        _print_json(engine_document(engine))
        return
    print_engine(engine, _console())


app.command()(breakeven)
app.command()(calibrate)
app.command()(validate)
app.add_typer(profiles_app, name="profiles")
app.add_typer(plot_app, name="plot")


def _print_json(document: dict[str, Any]) -> None:
    import json

    typer.echo(json.dumps(document, allow_nan=False))


def _console() -> Any:
    from wmtp_sim.render.console import stdout_console

    return stdout_console()
