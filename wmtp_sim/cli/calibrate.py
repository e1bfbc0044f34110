"""``wmtp calibrate``: measure this machine's kernels and write the profile that its estimates then use."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from wmtp_sim.cli import say
from wmtp_sim.cli.output import console
from wmtp_sim.errors import InputError

INTERRUPTED = 130


def calibrate(
    model: Annotated[
        list[str] | None, typer.Option(help="Measure the shapes of this model; may be given several times.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer shapes: under a minute.")] = False,
    device: Annotated[str | None, typer.Option(help="cuda, cuda:1, or cpu (torch's own operators).")] = None,
    devices: Annotated[str | None, typer.Option(help="Several GPUs of one kind, in turn: 0,1.")] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Its datasheet, where the catalogue lacks it: a TOML or JSON file.")
    ] = None,
    kernels: Annotated[
        list[str] | None,
        typer.Option(help="Measure this package's attention beside ours: flashinfer, sglang or vllm; several times."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Profile to write; by default where estimates look for it.")] = None,
) -> None:
    """Measure the kernels of this GPU (or CPU), and write its profile.

    Points are kept in OUT.measurements.jsonl as they are measured: a run that was stopped is resumed by the next one.
    """
    if device is not None and devices is not None:
        raise InputError("--devices", "and --device were both given", "give one of them")
    kept: list[Path] = []
    try:
        _calibrate(model or [], quick, _names(device or "cuda", devices), gpu, out, kept, kernels or [])
    except KeyboardInterrupt:
        say(_interruption(kept))
        raise typer.Exit(INTERRUPTED) from None


def part_of_calibration(name: str) -> Any:
    """A module of `calibration`, which needs torch and triton. Raises `InputError` where one of them is missing."""
    try:
        return importlib.import_module(f"calibration.{name}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing not in ("torch", "triton"):
            raise
        raise InputError(missing, "is not installed, and measuring needs it", "pip install 'wmtp-sim[gpu]'") from None


def _names(device: str, devices: str | None) -> list[str]:
    if devices is None:
        return [device]
    numbers = devices.split(",")
    if not all(number.strip().isdecimal() and len(number) <= 4 for number in numbers):
        raise InputError("--devices", f"{devices[:40]!r} is not a list of GPU numbers", "for example --devices 0,1")
    if len({int(number) for number in numbers}) != len(numbers):
        raise InputError("--devices", f"{devices[:40]!r} names a GPU twice", "for example --devices 0,1")
    return [f"cuda:{int(number)}" for number in numbers]


def _calibrate(
    models: list[str],
    quick: bool,
    names: list[str],
    gpu: str | None,
    out: Path | None,
    kept: list[Path],
    kernels: list[str],
) -> None:
    from wmtp_sim.render.profiles import print_spread

    calibration = part_of_calibration("calibrate")
    targets = [calibration.pick_device(name) for name in names]
    first = _place(calibration, targets[0], gpu, out)
    files = [first, *(first.with_name(f"{first.stem}-gpu{target.index}.json") for target in targets[1:])]
    for target, file in zip(targets, files, strict=True):
        calibration.refuse_special(file)
        kept.append(Path(f"{file}.measurements.jsonl"))
        _one(calibration, target, models, quick, gpu, file, kept[-1], kernels)
    if len(targets) > 1:
        print_spread(calibration.device_spread(kept), console())


def _place(calibration: Any, target: Any, gpu: str | None, out: Path | None) -> Path:
    """Where the profile goes: by default the file in which `profile_for` looks for this GPU's."""
    from wmtp_sim.catalog.profiles import slug, user_folder

    known = _datasheet(calibration, target, gpu)
    if out is None:
        name = known.name if known else calibration.environment(target).gpu
        return user_folder() / f"{slug(name)}.json"
    if out.suffix != ".json":
        calibration.refuse_special(out)
        raise InputError("--out", f"{str(out)[:80]!r} does not end in .json", "a profile is a JSON file")
    return out


def _datasheet(calibration: Any, target: Any, gpu: str | None) -> Any:
    """The stated GPU, the catalogue's, or None for a CPU, which is described by what is measured."""
    from wmtp_sim.catalog.gpus import load_gpu, named_by_driver

    if gpu is not None:
        return load_gpu(gpu)
    if target.type == "cpu":
        return None
    name = calibration.environment(target).gpu
    found = named_by_driver(name)
    if found is None:
        raise InputError("--gpu", f"the catalogue has no {name!r}", "describe it in a TOML file: --gpu FILE")
    return found


def _one(
    calibration: Any,
    target: Any,
    models: list[str],
    quick: bool,
    gpu: str | None,
    file: Path,
    measurements: Path,
    kernels: list[str],
) -> None:
    """Measure one device, print the fit, write its profile."""
    from wmtp_sim.render.profiles import print_fit, print_side_by_side

    points = _points(calibration, target, models, quick, kernels)
    with _progress() as progress:
        outcome = calibration.measure(points, measurements, target, progress)
    if outcome.resumed:
        say(f"{outcome.resumed} points were there already, {outcome.measured} are new")
    for key, why in outcome.skipped:
        say(f"skipped {key}: {why}")
    for line in calibration.unfitness(target):
        say(f"warning: at the end the GPU {line}")
    datasheet = _datasheet(calibration, target, gpu)
    if datasheet is None:
        datasheet = calibration.observed_gpu(measurements)
        described = file.with_suffix(".gpu.toml")
        calibration.write_whole(described, calibration.gpu_text(datasheet))
        say(f"this CPU as a GPU file: {described}")
    profile, reports = calibration.profile_from(measurements, datasheet)
    if not reports:
        raise InputError(str(measurements), "holds too few steady points to fit", "run again on an idle machine")
    calibration.write_profile(profile, file)
    print_fit(profile, reports, console())
    if kernels:
        print_side_by_side(calibration.side_by_side(measurements, kernels), console())
    say(f"profile: {file}")


def _points(calibration: Any, target: Any, models: list[str], quick: bool, kernels: list[str]) -> Any:
    if target.type != "cpu":
        return calibration.points_for(models, quick, kernels, target)
    if kernels:
        raise InputError("--kernels", f"{kernels[0][:40]!r} needs a GPU", "leave it out with --device cpu")
    return calibration.cpu_points_for(models, quick)


@contextmanager
def _progress() -> Iterator[Any]:
    """What the suite reports to: a bar with the time left on a terminal, else a line every tenth."""
    if sys.stderr.isatty():
        with _bar() as update:
            yield update
        return
    started, tenths = time.monotonic(), [0]

    def lines(done: int, total: int, key: str) -> None:
        if total and done * 10 // total > tenths[0]:
            tenths[0] = done * 10 // total
            elapsed = time.monotonic() - started
            say(f"{done}/{total} points, {elapsed:.0f} s, about {elapsed / done * (total - done):.0f} s left")

    yield lines


@contextmanager
def _bar() -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)

        def update(done: int, total: int, key: str) -> None:
            bar.update(task, completed=done, total=total, description=key[:60])

        yield update


def _interruption(kept: list[Path]) -> str:
    if not kept:
        return "interrupted before anything was measured"
    try:
        points = len(part_of_calibration("suite").read(kept[-1])[1])
    except InputError:
        points = 0
    return f"interrupted: {points} points are kept in {kept[-1]}; a new run resumes"
