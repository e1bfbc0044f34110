"""``wmtp profiles`` and ``wmtp validate``: what machines were measured to do, and how predictions of steps fare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from wmtp_sim.cli.options import JsonFlag
from wmtp_sim.cli.output import console, print_json, show
from wmtp_sim.errors import InputError

profiles_app = typer.Typer(help="The machine profiles.", invoke_without_command=True)


@profiles_app.callback(invoke_without_command=True)
def profiles(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the shipped profiles and your own: GPU, status, date, points."""
    if context.invoked_subcommand is not None:
        context.obj = as_json
        return
    from wmtp_sim.render.profiles import print_profiles, profile_documents

    show(as_json, profile_documents, print_profiles)


@profiles_app.command("show")
def profiles_show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A profile's name, or its JSON file.")],
    as_json: JsonFlag = False,
) -> None:
    """One profile: each kernel class's floor, shares, errors and measured range, and where they come from."""
    from wmtp_sim.catalog.profiles import dump, load_profile
    from wmtp_sim.render.profiles import print_profile

    profile = load_profile(name)
    if as_json or context.obj:
        print_json(json.loads(dump(profile)))
    else:
        print_profile(profile, console())


@profiles_app.command("import")
def profiles_import(
    source: Annotated[str, typer.Argument(help="Whose tables: aiconfigurator (the PyPI package aiconfigurator-core).")],
    system: Annotated[str, typer.Option(help="The GPU by the tables' own name: b200_sxm.")],
    out: Annotated[Path, typer.Option(help="The profile to write, a .json file.")],
    backend: Annotated[
        list[str] | None, typer.Option(help="Engines whose kernels to take, several times; else sglang and vllm.")
    ] = None,
    version: Annotated[str | None, typer.Option(help="That backend's version; each table's newest otherwise.")] = None,
    path: Annotated[Path | None, typer.Option(help="The package's data folder, where it is not installed.")] = None,
    gpu: Annotated[str | None, typer.Option(help="A catalogue name or file, for a system that is not known.")] = None,
    points: Annotated[bool, typer.Option("--points/--no-points", help="Keep the points that it is fitted on.")] = True,
) -> None:
    """Fit a profile on published operator times, as `wmtp calibrate` fits its own, and say whose they are."""
    from wmtp_sim.cli.calibrate import part_of_calibration
    from wmtp_sim.render.profiles import print_fit

    if source != "aiconfigurator":
        raise InputError("SOURCE", f"no tables are called {source[:60]!r}", "known: aiconfigurator")
    published, writing = part_of_calibration("published"), part_of_calibration("writing")
    writing.refuse_special(out)
    if out.suffix != ".json":
        raise InputError("--out", f"{str(out)[:80]!r} does not end in .json", "a profile is a JSON file")
    profile, reports = published.import_profile(system, backend or (), version=version, path=path, gpu=gpu)
    kept = profile if points else profile.model_copy(update={"measurements": ()})
    writing.write_profile(kept, out)
    print_fit(profile, reports, console())
    typer.echo(f"wmtp: profile: {out}", err=True)


def validate(
    context: typer.Context,
    steps: Annotated[
        Path | None, typer.Argument(help="Measured steps (wmtp-steps/1); with --run, written here.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="field: the shipped public measurements, instead of measured steps.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="A profile's name or JSON file; the GPU's own otherwise.")] = None,
    gpu: Annotated[
        str | None, typer.Option(help="The GPU the steps were measured on, where its name is not known.")
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Measure the steps first, on this machine's GPU.")] = False,
    model: Annotated[str | None, typer.Option(help="The model whose steps to measure.", rich_help_panel="Run")] = None,
    contexts: Annotated[str, typer.Option(help="Committed tokens.", rich_help_panel="Run")] = "4K,128K,1M",
    depths: Annotated[str, typer.Option(help="Tokens drafted per step.", rich_help_panel="Run")] = "1,3,6",
    batches: Annotated[str, typer.Option(help="Sequences decoded together.", rich_help_panel="Run")] = "1",
    budget: Annotated[float, typer.Option(help="Seconds to measure for.", rich_help_panel="Run")] = 150.0,
    as_json: JsonFlag = False,
) -> None:
    """Hold predicted steps against measured ones, term by term, or against public measurements, by level."""
    from wmtp_sim.render.validation import print_validation, validation_document
    from wmtp_sim.validation import validate as validated

    if against is not None:
        _validate_field(context, against, as_json)
        return
    if steps is None:
        raise InputError("STEPS", "is missing", "give a file of measured steps, or --against field")
    if run:
        if model is None:
            raise InputError("--model", "is missing", "--run measures one model's steps: --run --model NAME")
        _run_bench(steps, model, contexts, depths, batches, budget)
    else:
        _refuse_run_flags(context)
    answer = validated(steps, profile=profile, gpu=gpu)
    show(as_json, validation_document, print_validation, answer)


#: What only a run reads.
_RUN_FLAGS = ("model", "contexts", "depths", "batches", "budget")


def _validate_field(context: typer.Context, against: str, as_json: bool) -> None:
    """Every public measurement that can be priced, beside its prediction."""
    from wmtp_sim.render.field import field_document, print_field
    from wmtp_sim.validation import validate_field

    if against != "field":
        raise InputError("--against", f"{against[:40]!r} does not ship", "field is what ships")
    for name in ("steps", "profile", "gpu", "run", *_RUN_FLAGS):
        if _stated(context, name):
            flag = "STEPS" if name == "steps" else f"--{name}"
            raise InputError(flag, "does not go with --against", "each public row states its own; drop one of the two")
    show(as_json, field_document, print_field, validate_field())


def _refuse_run_flags(context: typer.Context) -> None:
    for name in _RUN_FLAGS:
        if _stated(context, name):
            raise InputError(f"--{name}", "is for --run only", "the file says what was measured")


def _stated(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _run_bench(steps: Path, model: str, contexts: str, depths: str, batches: str, budget: float) -> None:
    """Measure, with the bench's own table on stderr."""
    import contextlib
    import sys

    from wmtp_sim.cli.calibrate import INTERRUPTED, part_of_calibration

    calibration, bench = part_of_calibration("calibrate"), part_of_calibration("bench.run")
    calibration.pick_device("cuda")
    calibration.refuse_special(steps)
    calibration.refuse_unwritable(steps)
    words = ["--model", model, "--contexts", contexts, "--depths", depths, "--batches", batches]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            status = bench.main([*words, "--budget-s", str(budget), "--out", str(steps), "--device", "cuda"])
    except KeyboardInterrupt:
        sys.stderr.write(f"wmtp: interrupted: the points measured so far are in {steps}\n")
        raise typer.Exit(INTERRUPTED) from None
    if status:
        raise typer.Exit(status)  # it has said why
