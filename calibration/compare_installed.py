"""Our attention and another package's on one GPU, in one run, alternating.

    python -m calibration.compare_installed --out FILE --seconds 120 [--kernels flashinfer]

Decode (1 row) and verify (4 and 7 rows) at 4K, 32K, 128K and 1M cached tokens, for 16/2 x 256 and 32/8 x 128 heads.
What cannot be imported, compiled or trusted is a line with its reason and ends nothing. ``--seconds`` starts once the
packages' own compilation is over.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from calibration.case import Case, Device
from calibration.cases import build
from calibration.kernels.installed import require
from calibration.plan import INSTALLED, K, M, Point, beside, point
from calibration.report import Report, arguments, on_a_gpu
from calibration.timing import measure, warm_up
from wmtp_sim.errors import InputError

HEADS = ((16, 2, 256), (32, 8, 128))
CONTEXTS = (4 * K, 32 * K, 128 * K, M)
ROWS = (1, 4, 7)
#: Seconds of replays behind one figure, and how often ours and theirs take turns.
BUDGET_S, TURNS = 0.1, 3
DISTRIBUTIONS = {"flashinfer": "flashinfer-python", "sglang": "sglang", "vllm": "vllm"}

Row = dict[str, Any]


def shapes(
    heads: Iterable[tuple[int, int, int]] = HEADS, contexts: Iterable[int] = CONTEXTS, rows: Iterable[int] = ROWS
) -> list[Point]:
    """Our points, short contexts first."""
    return [
        point("attention", "triton_packed", q_heads=q, kv_heads=kv, head_dim=d, context=context, rows=r, batch=1)
        for context in contexts
        for q, kv, d in heads
        for r in rows
    ]


def compared(ours: Point, theirs: list[Point], device: torch.device) -> list[Row]:
    """One shape: medians of alternating turns, for ours and for each of theirs."""
    rows = [{"variant": p.variant, "sizes": dict(p.sizes)} for p in (ours, *theirs)]
    cases = [checked_case(p, row, device) for p, row in zip((ours, *theirs), rows, strict=True)]
    turns: list[list[float]] = [[] for _ in rows]
    for _ in range(TURNS):
        for case, row, seconds in zip(cases, rows, turns, strict=True):
            if case is not None and "failed" not in row:
                try:
                    seconds.append(measure(case.launch, case.sets, device, BUDGET_S).seconds)
                except Exception as error:  # whatever a foreign kernel raises is its line
                    row["failed"] = reason(error)
    for row, seconds in zip(rows, turns, strict=True):
        if seconds and "failed" not in row:
            row |= {"seconds": statistics.median(seconds), "turns": seconds}
    return rows


def checked_case(p: Point, row: Row, device: torch.device) -> Case | None:
    """Built and checked, or None with the reason in ``row``."""
    try:
        case = build(p, Device.of(device, part=2))
        row["error"], row["sets"] = case.check(), case.sets
    except Exception as error:
        row["failed"] = reason(error)
        return None
    if not row["error"] <= case.tolerance:
        row["failed"] = f"disagrees with the reference by {row['error']:.2g}"
        return None
    return case


def reason(error: Exception) -> str:
    """An error in one line: what it is, and how its text begins and ends."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}" + (f" ... {lines[-1][-400:]}" if len(lines) > 1 else "")


def usable(kernels: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Packages that import here, and for each that does not, why."""
    found, missing = [], {}
    for name in kernels:
        try:
            require([name])
            found.append(name)
        except InputError as error:
            missing[name] = str(error)
    return found, missing


def prepared(ours: list[Point], kernels: list[str], device: torch.device) -> Iterator[Row]:
    """Everything that is compiled at first use, on the shortest context of each geometry and number of rows."""
    shortest = min(p["context"] for p in ours)
    for p in (p for p in ours if p["context"] == shortest):
        for each in (p, *beside([p], kernels)):
            started, row = time.monotonic(), {"variant": each.variant, "key": each.key}
            checked_case(each, row, device)
            yield row | {"seconds": time.monotonic() - started}


def table(rows: list[list[Row]]) -> str:
    """Shape, kernel, microseconds, and theirs over ours."""
    lines = [f"{'heads':>12} {'context':>8} {'rows':>4}  {'kernel':<21} {'us':>9} {'theirs/ours':>11}"]
    for group in rows:
        first = group[0].get("seconds")
        for row in group:
            size = row["sizes"]
            heads = f"{size['q_heads']}/{size['kv_heads']}x{size['head_dim']}"
            begin = f"{heads:>12} {size['context']:>8} {size['rows']:>4}  {row['variant']:<21}"
            if "seconds" not in row:
                lines.append(f"{begin} {row.get('failed', 'not run')}")
                continue
            ratio = f"{row['seconds'] / first:11.2f}" if first and row is not group[0] else ""
            lines.append(f"{begin} {row['seconds'] * 1e6:9.1f} {ratio}".rstrip())
    return "\n".join(lines)


def compare(out: Path, seconds: float, kernels: list[str], ours: list[Point], device: torch.device) -> list[list[Row]]:
    """Measure within ``seconds``, keeping ``out`` whole after every shape."""
    found, missing = usable(kernels)
    for why in missing.values():
        print(why, flush=True)
    versions = {name: installed_version(name) for name in found}
    report = Report(out, device, versions=versions, missing=missing, prepared=[], shapes=[])
    for row in prepared(ours, found, device):
        print(f"prepared {row['key']} in {row['seconds']:.1f} s {row.get('failed', '')}".rstrip(), flush=True)
        report.add("prepared", row)
    warm_up(device)
    report.limit(seconds)
    for p in ours:
        if report.late:
            print(f"stopped after {seconds:.0f} s before {p.key}", flush=True)
            break
        group = compared(p, list(beside([p], found)), device)
        print("\n".join(table([group]).splitlines()[1:]), flush=True)
        report.add("shapes", group)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    report.close()
    groups: list[list[Row]] = report.document["shapes"]
    print(table(groups), flush=True)
    return groups


def installed_version(package: str) -> str | None:
    """The release of a package of `INSTALLED`, where it is installed."""
    try:
        return metadata.version(DISTRIBUTIONS[package])
    except metadata.PackageNotFoundError:
        return None


def main(words: list[str] | None = None) -> int:
    parser = arguments(__doc__, seconds=120.0)
    parser.add_argument("--kernels", action="append", choices=sorted(INSTALLED))
    given = parser.parse_args(words)
    return on_a_gpu(lambda gpu: compare(given.out, given.seconds, given.kernels or ["flashinfer"], shapes(), gpu))


if __name__ == "__main__":
    sys.exit(main())
