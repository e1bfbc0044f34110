"""``wmtp calibrate``: measure this GPU (or CPU), fit the kernel models, write a profile."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from calibration import fit, suite
from calibration.between import groups_around, points_between
from calibration.environment import condition, environment
from calibration.kernels.installed import require
from calibration.plan import INSTALLED, REPRESENTATIVE, REPRESENTATIVE_ON_CPU, Point, cpu_plan, plan

# The command line asks this module alone for them.
from calibration.writing import refuse_special, refuse_unwritable, write_profile, write_whole  # noqa: F401
from wmtp_sim.catalog.models import load_model
from wmtp_sim.catalog.profiles import shipped_profile, uncalibrated
from wmtp_sim.errors import InputError
from wmtp_sim.machine.profile import KernelModel, Profile
from wmtp_sim.spec.gpu import Gpu, PeakFlops


def pick_device(name: str) -> torch.device:
    """``cuda``, ``cuda:1``, ``cpu``. Raises `InputError` where there is no such device or no Triton to run on it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError("--device", f"{name[:40]!r} is no device", "cuda, cuda:0 or cpu") from None
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise InputError("--device", "no CUDA GPU is visible", "use --device cpu to exercise the suite")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise InputError("--device", f"{name} is not there", f"0 to {torch.cuda.device_count() - 1}")
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        raise InputError("--device", f"compute capability {major}.{minor} has no bf16 tensor cores", "8.0 or newer")
    return torch.device("cuda", device.index or 0)


def points_for(
    models: Iterable[str], quick: bool, kernels: Sequence[str] = (), device: torch.device | None = None
) -> list[Point]:
    """The plan for the named models, or for those that stand for the catalogue; and for packages' kernels.

    Where ``device`` has idle GPUs of its kind beside it, what they send one another is measured too.
    Raises `InputError` for a package that is unknown or cannot be imported.
    """
    points = plan([load_model(name, "--model") for name in (list(models) or REPRESENTATIVE)], quick, kernels)
    require(kernels)
    return points + points_between(groups_around(device) if device is not None else (), quick)


def cpu_points_for(models: Iterable[str], quick: bool) -> list[Point]:
    """The same for a CPU: few points, of one small model by default."""
    return cpu_plan([load_model(name, "--model") for name in (list(models) or REPRESENTATIVE_ON_CPU)], quick)


def measure(points: list[Point], out: Path, device: torch.device, progress: suite.Progress) -> suite.Outcome:
    """Run the plan into ``out``; see `calibration.suite.run`. A CPU is measured with one thread of it."""
    with torch.cuda.device(device) if device.type == "cuda" else _one_thread():
        return suite.run(points, out, device, progress)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Threads that wait for one another measure the scheduler where anything else runs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def observed_gpu(measurements: Path) -> Gpu:
    """A device without a datasheet, described by the best that was measured on it. For CPUs."""
    header, records = suite.read(measurements)
    if header is None or not records:
        raise InputError(str(measurements), "holds no measured points", "run wmtp calibrate first")
    moved = ("weights", "kv", "state", "activations", "metadata")
    bandwidth = max(sum(r["operation"][name] for name in moved) / r["seconds"] for r in records)
    rate = max(r["operation"]["flops"] * r["operation"]["padding"] / r["seconds"] for r in records)
    here = header["environment"]
    return Gpu(
        name=here["gpu"],
        peak_dense_flops=PeakFlops(bf16=max(rate, 1e9)),
        hbm_bandwidth_bytes_per_s=max(bandwidth, 1e9),
        memory_bytes=here["memory_bytes"],
        notes=("peaks are the best that wmtp calibrate measured on one thread",),
    )


def gpu_text(gpu: Gpu) -> str:
    """An observed device as the text of a file for ``--gpu``."""
    fields = {"name": gpu.name, "hbm_bandwidth_bytes_per_s": gpu.hbm_bandwidth_bytes_per_s}
    fields |= {"memory_bytes": gpu.memory_bytes, "notes": list(gpu.notes)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join([*lines, "", "[peak_dense_flops]", f"bf16 = {gpu.peak_dense_flops.bf16!r}", ""])


def side_by_side(measurements: Path, kernels: Sequence[str]) -> list[tuple[str, str, float, float]]:
    """Shape, their variant, our seconds and theirs: every attention measured with a package's kernel and with ours."""
    records = [r for r in suite.read(measurements)[1] if r["kernel"] == "attention"]
    shapes = {r["key"]: r["key"].partition("[")[2].rstrip("]") for r in records}
    ours = {shapes[r["key"]]: r["seconds"] for r in records if r["variant"] == "triton_packed"}
    theirs = {variant for name in kernels for group in INSTALLED[name] for variant in group}
    return [
        (shape, r["variant"], ours[shape], r["seconds"])
        for r in records
        if r["variant"] in theirs and (shape := shapes[r["key"]]) in ours
    ]


def device_spread(files: Sequence[Path]) -> dict[str, float]:
    """Median |ratio - 1| between several GPUs and the first, point by point, for each kernel class."""
    first, *others = [{r["key"]: r for r in suite.read(path)[1] if not r.get("noisy")} for path in files]
    ratios: dict[str, list[float]] = defaultdict(list)
    for other in others:
        for key in first.keys() & other.keys():
            ratios[first[key]["kernel"]].append(abs(other[key]["seconds"] / first[key]["seconds"] - 1.0))
    return {name: statistics.median(found) for name, found in sorted(ratios.items())}


def profile_from(measurements: Path, gpu: Gpu) -> tuple[Profile, list[fit.Report]]:
    """A profile of what a measurement file holds. Classes without points keep the uncalibrated model, and say so."""
    header, records = suite.read(measurements)
    if header is None or not records:
        raise InputError(str(measurements), "holds no measured points", "run wmtp calibrate first")
    return build_profile(header["environment"], records, gpu)


def build_profile(
    provenance: dict[str, Any], records: list[dict[str, Any]], gpu: Gpu
) -> tuple[Profile, list[fit.Report]]:
    """Fit every class and variant that has enough points.

    Collectives need several GPUs: those that were not measured stay as they ship for this GPU. So do all-reduces, even
    measured. Engines run their own: 2.6 us for a small one in SGLang's traces on two H200s, where the fastest that is
    timed here, torch's symmetric memory, takes 6.6 us. What ships are engines' all-reduces, timed by others. Where none
    ships ours count, an upper bound. Numbers of ranks that were not measured here keep their shipped points.
    """
    turn_s = fit.turn_seconds(records) or uncalibrated().turn_s
    source = f"fitted on {provenance['gpu']}, {provenance['date']}"
    shipped = _shipped_collectives(gpu)
    taken = [r for r in records if not ("collective" in shipped and _is_our_all_reduce(r))]
    reports = fit.fit_classes(taken + _of_other_ranks(taken, gpu), gpu, turn_s, source)
    fitted = {report.name: report.model for report in reports}
    kernels = shipped | fitted | fit.class_defaults(fitted)
    profile = Profile(
        name=f"{provenance['gpu']} {provenance['date']}",
        status="measured",
        gpu=provenance["gpu"],
        kernels=kernels,
        turn_s=turn_s,
        host_spread=uncalibrated().host_spread,
        provenance=provenance,
        measurements=tuple(records),
    )
    return profile, reports


def _shipped_collectives(gpu: Gpu) -> dict[str, KernelModel]:
    """Those that somebody timed on this GPU: documented constants, which every profile has, are left out."""
    shipped = shipped_profile(gpu)
    kernels = shipped.kernels if shipped else {}
    return {name: model for name, model in kernels.items() if name.split(".")[0] == "collective" and model.points}


def _of_other_ranks(records: list[dict[str, Any]], gpu: Gpu) -> list[dict[str, Any]]:
    """Shipped points of the kinds of collectives measured here, among numbers of ranks that were not."""
    measured = {(r["variant"], r["sizes"]["ranks"]) for r in records if r["kernel"] == "collective"}
    kinds, shipped = {kind for kind, _ in measured}, shipped_profile(gpu)
    points = [r for r in shipped.measurements if r["kernel"] == "collective"] if shipped else []
    return [r for r in points if r["variant"] in kinds and (r["variant"], r["sizes"]["ranks"]) not in measured]


def _is_our_all_reduce(record: dict[str, Any]) -> bool:
    """Whether a point is an all-reduce that was timed here; points of others state their source."""
    return (record["kernel"], record["variant"]) == ("collective", "all_reduce") and "source" not in record


def unfitness(device: torch.device) -> list[str]:
    """What disturbs a device now, in words: other processes, throttling."""
    now = condition(device)
    found = [f"is shared with other processes ({', '.join(map(str, now.others[:5]))})"] if now.others else []
    return [*found, *(f"is throttled ({reason})" for reason in now.throttled)]


def main() -> None:
    """The suite without the command line: ``python -m calibration.calibrate OUT SECONDS [quick]``."""
    import sys

    out, seconds, quick = Path(sys.argv[1]), float(sys.argv[2]), "quick" in sys.argv[3:]
    device = pick_device("cuda" if torch.cuda.is_available() else "cpu")
    started = time.monotonic()

    def progress(done: int, total: int, key: str) -> None:
        if time.monotonic() - started > seconds:
            raise SystemExit(f"stopped at {done} of {total}")
        if done % 20 == 0:
            print(f"{time.monotonic() - started:6.1f} s  {done}/{total} {key}", flush=True)

    print(environment(device))
    print(measure(points_for((), quick, device=device), out, device, progress))


if __name__ == "__main__":
    main()
