"""vLLM's attention kernels over rows, contexts and batches, alone and one after the other.

    python -m calibration.sweep_vllm --out FILE --seconds 240 [--variants fa2 fa2_unsplit] [--rows 1 4] ...

For maintainers: which kernel a verify of several rows gets depends on the release, so this is run once with each, in a
process of its own. Every point is checked against the float reference and timed inside a CUDA graph. What fails is a
line with its reason. Small batches come first; what ``--seconds`` leaves no time for is counted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from calibration.compare_installed import checked_case, installed_version, reason
from calibration.plan import INSTALLED, K, Point, point
from calibration.report import Report, arguments, on_a_gpu
from calibration.timing import measure, warm_up

HEADS = ("16/2x256", "12/2x256", "32/8x128", "16/4x128")
ROWS, CONTEXTS, BATCHES = (1, 2, 4, 8), (4 * K, 32 * K, 128 * K), (1, 4, 16)
VARIANTS = tuple(dict.fromkeys(variant for group in INSTALLED["vllm"] for variant in group))
#: Seconds of replays behind one figure, and the largest cache of one input set in bytes.
BUDGET_S, MOST_BYTES = 0.02, 20e9


def points(
    heads: Iterable[str] = HEADS,
    rows: Iterable[int] = ROWS,
    contexts: Iterable[int] = CONTEXTS,
    batches: Iterable[int] = BATCHES,
    variants: Iterable[str] = VARIANTS,
) -> list[Point]:
    """Every shape with each of ``variants`` that runs that many rows, small batches and short contexts first.

    ``heads`` are query heads / KV heads x head size. Shapes whose cache is larger than `MOST_BYTES` are left out.
    """
    sizes, rows, variants = [_sizes(text) for text in heads], list(rows), list(variants)
    return [
        point("attention", variant, q_heads=q, kv_heads=kv, head_dim=dim, context=context, rows=r, batch=batch)
        for batch in batches
        for context in contexts
        for q, kv, dim in sizes
        if batch * context * kv * dim * 4 <= MOST_BYTES
        for r in rows
        for variant in INSTALLED["vllm"][r > 1]
        if variant in variants
    ]


def _sizes(text: str) -> tuple[int, int, int]:
    q_heads, _, rest = text.partition("/")
    kv_heads, _, head_dim = rest.partition("x")
    return int(q_heads), int(kv_heads), int(head_dim)


def timed(p: Point, device: torch.device) -> dict[str, Any]:
    """One point: seconds of a launch (median, p10, p90), error of its output, KV bytes that its operation counts."""
    row: dict[str, Any] = {"variant": p.variant, "sizes": dict(p.sizes), "key": p.key}
    try:
        case = checked_case(p, row, device)
        if case is not None:
            sample = measure(case.launch, case.sets, device, BUDGET_S)
            row |= sample.figures() | {"kv_bytes": float(case.operation.kv)}
    except Exception as error:  # whatever a foreign kernel raises is its line
        row["failed"] = reason(error)
    return row


def sweep(out: Path, seconds: float, planned: list[Point], device: torch.device) -> list[dict[str, Any]]:
    """Time ``planned`` within ``seconds``, keeping ``out`` whole after every point."""
    warm_up(device)
    report = Report(out, device, seconds, versions={"vllm": installed_version("vllm")}, points=[])
    rows: list[dict[str, Any]] = report.document["points"]
    for i, p in enumerate(planned):
        if report.late:
            report.document["left_out"] = [left.key for left in planned[i:]]
            print(f"stopped after {seconds:.0f} s, {len(planned) - i} points left out", flush=True)
            break
        row = timed(p, device)
        said = f"{row['seconds'] * 1e6:9.1f} us  error {row['error']:.1g}" if "seconds" in row else row["failed"]
        report.say(f"{p.key}  {said}")
        report.add("points", row)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    report.close()
    return rows


def main(words: list[str] | None = None) -> int:
    parser = arguments(__doc__, seconds=240.0)
    parser.add_argument("--heads", nargs="+", default=HEADS, metavar="Q/KVxD")
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--contexts", nargs="+", type=int, default=CONTEXTS)
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    given = parser.parse_args(words)
    planned = points(given.heads, given.rows, given.contexts, given.batches, given.variants)
    return on_a_gpu(lambda gpu: sweep(given.out, given.seconds, planned, gpu))


if __name__ == "__main__":
    sys.exit(main())
