"""Runs a plan: every point is built, checked, timed and appended to a file at once, so that nothing measured is lost.

The file is one JSON object a line: a header with the environment, then points. A run into an existing file of the same
environment goes on where that one stopped. Two runs into one file at a time are refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from triton.errors import TritonError

from calibration import between
from calibration.case import Device
from calibration.cases import build
from calibration.environment import Condition, Environment, condition, environment
from calibration.fit import operation_numbers
from calibration.plan import Point
from calibration.sweep_collectives import noise
from calibration.timing import measure, warm_up
from wmtp_sim.errors import InputError
from wmtp_sim.work.operation import Operation

SCHEMA = "wmtp-measurements/1"
#: Seconds of timing per point; building and checking come on top.
BUDGET_S = 0.1
#: Noise above which a point is measured again, and kept with a flag if it stays. A CPU is shared with everything else.
NOISY = {"cuda": 0.05, "cpu": 0.5}
#: How every measurement file begins.
BEGINNING = f'{{"schema": "{SCHEMA}"'.encode()

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Outcome:
    """What became of a plan: how many points were measured now, were there already, or were skipped and why."""

    measured: int
    resumed: int
    skipped: tuple[tuple[str, str], ...]


def run(points: list[Point], path: Path, device: torch.device, progress: Progress, seed: int = 0) -> Outcome:
    """Measure what ``path`` does not hold yet.

    Raises:
        InputError: a file of another environment, a second run into the same file, or a GPU that is busy or throttled.
    """
    here = environment(device)
    refuse_unfit(condition(device))
    torch.manual_seed(seed)
    warm_up(device)
    with _exclusive(path) as file:
        _mend(path)
        done = _done(path, here)
        if not done and path.stat().st_size == 0:
            _append(file, {"schema": SCHEMA, "environment": here.as_dict(), "condition": asdict(condition(device))})
        return _measure_all(points, done, file, device, progress)


def _measure_all(points: list[Point], done: set[str], file: Any, device: torch.device, progress: Progress) -> Outcome:
    measured, skipped = 0, []
    waiting = [point for point in points if point.key not in done]
    alone = [point for point in waiting if point.kernel != "collective"]
    for i, point in enumerate(alone):
        progress(i, len(waiting), point.key)
        try:
            record = measured_point(point, Device.of(device), device)
        except torch.OutOfMemoryError:
            skipped.append((point.key, "does not fit in free memory"))
            continue
        except torch.AcceleratorError as error:  # the device answers nothing more in this process
            kept = "what was measured is kept, and a new run resumes"
            raise InputError("GPU", f"failed at {point.key}: {_first_line(error)}", kept) from None
        except (RuntimeError, TritonError) as error:  # a kernel that this device does not run
            skipped.append((point.key, f"does not run here ({_first_line(error)})"))
            continue
        finally:
            if device.type == "cuda":
                torch.cuda.empty_cache()
        if record is None:
            skipped.append((point.key, "its output disagrees with the reference: not timed"))
            continue
        _append(file, record)
        measured += 1
    if len(alone) < len(waiting):
        progress(len(alone), len(waiting), "collectives")
        found, missing = between.measured_between([p for p in waiting if p.kernel == "collective"], device)
        for point, row in found:
            _append(file, _record_between(point, row))
        measured, skipped = measured + len(found), [*skipped, *missing]
    progress(len(waiting), len(waiting), "")
    return Outcome(measured, len(points) - len(waiting), tuple(skipped))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def measured_point(point: Point, where: Device, device: torch.device) -> dict[str, Any] | None:
    """One point as it is written down, or None when its kernel is wrong."""
    case = build(point, where)
    error = case.check()
    if not error <= case.tolerance:  # NaN fails too
        return None
    sample = measure(case.launch, case.sets, device, BUDGET_S)
    if sample.noise > NOISY[device.type]:
        again = measure(case.launch, case.sets, device, 2 * BUDGET_S)
        sample = min(sample, again, key=lambda s: s.noise)
    more = {"sets": case.sets, "error": error, "noisy": sample.noise > NOISY[device.type]}
    return _record(point, case.operation, sample.figures() | more)


def _record(point: Point, operation: Operation, measured: dict[str, Any]) -> dict[str, Any]:
    """A point as it is written down."""
    stated = {"key": point.key, "kernel": point.kernel, "variant": point.variant, "sizes": dict(point.sizes)}
    return stated | {"operation": operation_numbers(operation)} | measured


def _record_between(point: Point, row: dict[str, Any]) -> dict[str, Any]:
    """A collective's row as a point; ``how`` says what was fastest."""
    measured = {name: row[name] for name in ("how", "seconds", "p10", "p90", "replays")}
    operation = between.operation_of(point.variant, point["ranks"], point["bytes"])
    return _record(point, operation, measured | {"noisy": noise(row) > between.NOISY})


def refuse_unfit(now: Condition) -> None:
    """Raises `InputError` for a GPU that other processes use or that is throttled."""
    if now.others:
        listed = ", ".join(map(str, now.others[:5]))
        raise InputError(
            "GPU", f"other processes compute on it (pid {listed})", "stop them: their kernels would be timed"
        )
    if now.throttled:
        raise InputError("GPU", f"is throttled ({', '.join(now.throttled)})", "let it cool down, then run again")


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[Any]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab", buffering=0)
    except OSError as error:
        raise InputError(str(path), f"cannot be written ({error.strerror})", "give another --out") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(str(path), "another calibration is writing to it", "wait, or give another --out") from None
        yield file


def _append(file: Any, record: dict[str, Any]) -> None:
    """One whole line, on disk before the next point starts."""
    line = (json.dumps(record) + "\n").encode()
    try:
        if file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise InputError(file.name, problem, "free some space; a new run resumes") from None


def _mend(path: Path) -> None:
    """Cut off a last line that a crash left unfinished, so that the next one starts afresh."""
    if not path.is_file():
        return
    text = path.read_bytes()
    if text and not text.endswith(b"\n") and text.startswith(BEGINNING[: len(text)]):
        os.truncate(path, text.rfind(b"\n") + 1)


def _done(path: Path, here: Environment) -> set[str]:
    """Keys already in the file, which must come from the same environment."""
    header, records = read(path)
    if header is None:
        return set()
    names = ("gpu", "driver", "torch", "triton")
    theirs, ours = ({name: given.get(name) for name in names} for given in (header["environment"], here.as_dict()))
    if theirs != ours:
        differs = ", ".join(
            f"{name} {str(theirs[name])[:60]} there, {ours[name]} here" for name in names if theirs[name] != ours[name]
        )
        raise InputError(str(path), f"was measured elsewhere ({differs})", "give another --out, or remove the file")
    return {record["key"] for record in records if not record.get("noisy")}  # noisy ones are tried again


def read(path: Path) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Header and points of a measurement file. A last line cut short by a crash is left out."""
    if not path.exists() or path.stat().st_size == 0:
        return None, []
    rows = []
    try:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                rows.append(json.loads(line))
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "give another --out") from None
    header = rows[0] if rows and isinstance(rows[0], dict) else {}
    if header.get("schema") != SCHEMA or not isinstance(header.get("environment"), dict):
        raise InputError(str(path), "is not a measurement file of this release", f"expected schema {SCHEMA!r}")
    return header, list({row["key"]: row for row in rows[1:] if _whole(row)}.values())  # a later try counts


def _whole(row: Any) -> bool:
    """Whether a line is a point that can be fitted; one that is not is measured again."""
    if not isinstance(row, dict) or not {"key", "kernel", "variant", "operation"} <= row.keys():
        return False
    seconds = row.get("seconds")
    if not isinstance(row["key"], str):
        return False
    return isinstance(seconds, float) and math.isfinite(seconds) and seconds > 0 and isinstance(row["operation"], dict)
