"""Time attention tiles, splits and merges, and index builders, on the GPU at hand; every result is checked first.

    python -m calibration.sweep_attention --out attention_sweep.json --seconds 150

Without a GPU, `TRITON_INTERPRET=1` and `--shrink 1024` walk through the same code on tiny contexts.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import triton

from calibration.kernels import attention as kernel
from calibration.kernels import naive
from calibration.kernels.attention import TileConfig, attention
from calibration.kernels.index import build_lists, parallel_programs
from calibration.kernels.references import relative_error
from calibration.timing import measure

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = 1e-2
# Bytes of caches that successive launches rotate through: several times an L2 of 60 MB.
ROTATED_BYTES = 420e6
# Seconds of replays behind one figure.
BUDGET = 0.02
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Shape:
    """One call of attention. The default is a full-attention layer of Qwen3.5-35B-A3B."""

    name: str
    lengths: tuple[int, ...]
    rows: int = 1
    q_heads: int = 16
    kv_heads: int = 2
    head_dim: int = 256
    v_dim: int = 256
    dtype: torch.dtype = torch.bfloat16
    order: str = "listed"  # listed: in order, through a list. shuffled: the list is a permutation. contiguous: no list.
    tiles: int = 99  # candidate tiles to try

    @property
    def context(self) -> int:
        return max(self.lengths)

    @property
    def packed(self) -> int:
        return self.rows * self.q_heads // self.kv_heads

    @property
    def streams(self) -> int:
        return len(self.lengths) * self.kv_heads

    @property
    def kv_bytes(self) -> int:
        return sum(self.lengths) * self.kv_heads * (self.head_dim + self.v_dim) * self.dtype.itemsize


@dataclass(frozen=True)
class Setting:
    """One way to run a shape."""

    tile: TileConfig
    splits: int
    host_length: bool = False  # the host knows the longest length


@dataclass(frozen=True)
class Result:
    """Outcome of one setting: microseconds per call, or why there are none."""

    shape: str
    setting: Setting
    us: float | None = None
    noise: float | None = None
    tb_s: float | None = None
    error: float | None = None
    failure: str | None = None


K, M = 1024, 1024 * 1024
# Contexts whose time is latency rather than bytes, in tokens.
SHORT = 8 * K
SHAPES = [
    Shape("decode 1M", (M,)),
    Shape("decode 4K", (4 * K,)),
    Shape("decode 32K", (32 * K,)),
    Shape("decode 128K", (128 * K,)),
    Shape("verify 7 rows 1M", (M,), rows=7),
    Shape("verify 7 rows 4K", (4 * K,), rows=7),
    Shape("verify 7 rows 128K", (128 * K,), rows=7),
    Shape("verify 4 rows 1M", (M,), rows=4),
    Shape("verify 4 rows 4K", (4 * K,), rows=4),
    Shape("D128 g16 decode 1M", (M,), q_heads=32, head_dim=128, v_dim=128),
    Shape("D128 g16 decode 4K", (4 * K,), q_heads=32, head_dim=128, v_dim=128),
    Shape("contiguous 4K", (4 * K,), order="contiguous", tiles=4),
    Shape("contiguous 1M", (M,), order="contiguous", tiles=4),
    Shape("shuffled 1M", (M,), order="shuffled", tiles=4),
    Shape("fp8 decode 1M", (M,), dtype=FP8, tiles=7),
    Shape("D128 g16 verify 7 rows 1M", (M,), rows=7, q_heads=32, head_dim=128, v_dim=128, tiles=8),
    Shape("D64 g8 decode 128K", (128 * K,), q_heads=64, kv_heads=8, head_dim=64, v_dim=64, tiles=6),
    Shape("batch 4 decode 32K", (32 * K, 16 * K, 32 * K, 4 * K), tiles=4),
]
CHECKS = [
    (Shape("uneven batch", (777, 1, 64), order="shuffled"), 7, TileConfig()),
    (Shape("uneven batch, no split", (777, 1, 64), rows=3, order="shuffled"), 1, TileConfig()),
    (Shape("fused, one level", (777, 100), order="shuffled"), 7, TileConfig(combine="fused", fan=8)),
    (Shape("fused, two levels", (5000, 100), rows=7, order="shuffled"), 66, TileConfig(combine="fused", fan=8)),
    (Shape("dependent launch", (5000, 100), order="shuffled"), 66, TileConfig(combine="dependent")),
    (Shape("16 rows", (999, 40), rows=16, order="shuffled"), 5, TileConfig(num_warps=8)),
    (Shape("several tiles of rows", (999,), rows=16, q_heads=32, order="shuffled"), 5, TileConfig(num_warps=8)),
    (Shape("fp8", (999, 300), rows=2, dtype=FP8, order="shuffled"), 4, TileConfig()),
    (Shape("fp8 verify", (999, 300), rows=7, dtype=FP8, order="shuffled"), 4, TileConfig(num_warps=8)),
    (Shape("D64", (999, 300), rows=5, head_dim=64, v_dim=64, order="shuffled"), 4, TileConfig(64)),
    (Shape("D96, group 5", (999, 300), rows=5, q_heads=10, head_dim=96, v_dim=96, order="shuffled"), 4, TileConfig(64)),
    (Shape("D192, V128", (999, 300), rows=2, head_dim=192, v_dim=128, order="shuffled"), 4, TileConfig()),
    (Shape("contiguous", (999, 300), rows=4, order="contiguous"), 4, TileConfig(prefetch=False)),
    (Shape("list not loaded ahead", (999, 300), rows=4, order="shuffled"), 4, TileConfig(prefetch=False)),
]


class Case:
    """Tensors of one shape: several sets of slots over one cache, so that successive calls read other bytes."""

    def __init__(self, shape: Shape, flat: dict[torch.dtype, list[torch.Tensor]], rotated_bytes: float = ROTATED_BYTES):
        batch, context = len(shape.lengths), shape.context
        self.shape = shape
        self.sets = max(1, math.ceil(rotated_bytes / shape.kv_bytes)) if rotated_bytes else 1
        slots = self.sets * batch * context
        self.k, self.v = (
            _cache(flat, shape.dtype, i, (slots, shape.kv_heads, dim))
            for i, dim in enumerate((shape.head_dim, shape.v_dim))
        )
        self.q = torch.randn(batch, shape.rows, shape.q_heads, shape.head_dim, device=DEVICE).bfloat16()
        self.lengths = torch.tensor(shape.lengths, dtype=torch.int32, device=DEVICE)
        order = torch.arange(slots, dtype=torch.int32, device=DEVICE).view(self.sets, batch, context)
        if shape.order == "shuffled":
            order = order.view(self.sets, -1)
            shuffles = [torch.randperm(batch * context, device=DEVICE) for _ in range(self.sets)]
            order = torch.stack([row[shuffle] for row, shuffle in zip(order, shuffles, strict=True)])
            order = order.view(self.sets, batch, context)
        if shape.order == "contiguous":
            # Rows of 16 bytes, so that every set's pointer is as aligned as the first's.
            firsts = torch.zeros(self.sets, max(4, batch), dtype=torch.int32, device=DEVICE)
            firsts[:, :batch] = order[:, :, 0]
            order = firsts[:, :batch]
        self.slots = order
        self.out = torch.empty(batch, shape.rows, shape.q_heads, shape.v_dim, dtype=torch.bfloat16, device=DEVICE)
        self._reference: torch.Tensor | None = None

    @property
    def reference(self) -> torch.Tensor:
        """Float64 attention over the first set."""
        if self._reference is None:
            tensors = (self.q, self.k, self.v, self.slots[0], self.lengths)
            self._reference = naive.attention(*tensors, scale=self.shape.head_dim**-0.5)
        return self._reference

    def launcher(self, setting: Setting) -> Callable[[int], torch.Tensor]:
        """A function of the set's number that makes one call."""
        shape, config = self.shape, setting.tile
        workspace = kernel.make_workspace(self.q, shape.kv_heads, shape.v_dim, setting.splits)
        workspace.partial.fill_(torch.nan)
        workspace.lse.fill_(torch.nan)
        return lambda i: attention(
            self.q,
            self.k,
            self.v,
            self.slots[i],
            self.lengths,
            scale=shape.head_dim**-0.5,
            splits=setting.splits,
            out=self.out,
            workspace=workspace,
            max_length=shape.context if setting.host_length else None,
            config=config,
        )

    def compile(self, setting: Setting) -> None:
        """Compile what a setting launches."""
        tensors = (self.q, self.k, self.v, self.slots[0], self.lengths)
        kernel.compile_attention(*tensors, splits=setting.splits, config=setting.tile)

    def run(self, setting: Setting) -> Result:
        """Check one setting against the reference, then time it."""
        try:
            launch = self.launcher(setting)
            for _ in range(2):
                self.out.fill_(torch.nan)
                launch(0)
            error = relative_error(self.out, self.reference)
            if not error < TOLERANCE:
                return Result(self.shape.name, setting, error=error, failure="wrong result")
            sample = measure(launch, self.sets, DEVICE, BUDGET)
        except Exception as problem:
            # Nothing runs after a fault on the GPU, so let it end the sweep; what came before is saved.
            if "CUDA error" in str(problem):
                raise
            return Result(self.shape.name, setting, failure=f"{type(problem).__name__}: {problem}"[:200])
        tb_s = self.shape.kv_bytes / sample.seconds / 1e12
        return Result(self.shape.name, setting, sample.seconds * 1e6, sample.noise, tb_s, error)


def _cache(flat: dict[torch.dtype, list[torch.Tensor]], dtype: torch.dtype, which: int, shape: tuple[int, ...]) -> Any:
    """A view into random numbers that all shapes share; `which` is 0 for K and 1 for V."""
    count = math.prod(shape)
    pair = flat.setdefault(dtype, [torch.empty(0, device=DEVICE, dtype=dtype)] * 2)
    if pair[which].numel() < count:
        pair[which] = torch.empty(count, device=DEVICE, dtype=dtype)
        for chunk in pair[which].split(1 << 27):
            chunk.copy_(torch.randn(chunk.shape, device=DEVICE, dtype=torch.bfloat16))
    return pair[which][:count].view(shape)


def compile_all(jobs: list[tuple[Case, Setting]]) -> None:
    """Compile in parallel; what fails fails again, and is recorded, when it runs."""
    if kernel.INTERPRETED:
        return
    with ThreadPoolExecutor(os.cpu_count()) as executor, triton.AsyncCompileMode(executor, ignore_errors=True):
        for case, setting in jobs:
            case.compile(setting)


def heuristic(shape: Shape, sm_count: int) -> Setting:
    """What a caller gets without a sweep."""
    splits = kernel.choose_splits(shape.context, shape.streams, sm_count, shape.head_dim, shape.packed)
    return Setting(kernel.default_config(shape.head_dim, shape.packed), splits)


def split_choices(shape: Shape, sm_count: int) -> list[int]:
    """The heuristic's choice first, then one to four programs a multiprocessor and, for short contexts, other cuts."""
    first = heuristic(shape, sm_count).splits
    wanted = [sm_count * resident // shape.streams for resident in (1, 2, 3, 4)]
    if shape.context <= SHORT:
        wanted = [triton.cdiv(shape.context, tokens) for tokens in (32, 64, 96, 128, 256)]
    most = triton.cdiv(shape.context, 32)
    return [first, *sorted({min(max(splits, 1), most) for splits in wanted} - {first})]


def variants(shape: Shape, best: Setting) -> list[Setting]:
    """The best tile with other ways to find the split's bounds, to load the list and, where it tells, to merge."""
    ahead = replace(best.tile, prefetch=False, num_stages=2 * best.tile.num_stages - 1)
    settings = [replace(best, host_length=True), replace(best, tile=replace(best.tile, combine="dependent"))]
    if shape.order != "contiguous":
        settings += [replace(best, tile=replace(best.tile, prefetch=False)), replace(best, tile=ahead)]
    if shape.context > SHORT or best.splits == 1:
        return settings
    merges = [replace(best.tile, combine="dependent")]
    merges += [replace(best.tile, combine="fused", fan=fan) for fan in (8, 16)]
    fewer = sorted({max(2, best.splits // part) for part in (1, 2, 4)}, reverse=True)
    return settings + [Setting(tile, splits, host_length=True) for tile in merges for splits in fewer]


def sweep(case: Case, sm_count: int, deadline: float) -> list[Result]:
    """Time a shape's settings until the deadline: the heuristic's own first, then tiles, then variants of the best."""
    shape = case.shape
    tiles = kernel.candidate_configs(shape.head_dim, shape.packed)[: shape.tiles]
    choices = split_choices(shape, sm_count)
    compile_all([(case, Setting(tile, splits)) for tile in tiles for splits in choices])
    # Two thirds of the time for tiles, the rest for variants.
    soon = time.monotonic() + (deadline - time.monotonic()) * 2 / 3
    results: list[Result] = []
    for tile in tiles:
        for splits in choices:
            results.append(case.run(Setting(tile, splits)))
            best, us = fastest(results), results[-1].us
            hopeless = us is None or us > 1.5 * best.us
            if time.monotonic() > soon or (splits == choices[0] and hopeless):
                break
        if time.monotonic() > soon:
            break
    if best := fastest(results):
        more = variants(shape, best.setting)
        compile_all([(case, setting) for setting in more])
        for setting in more:
            if time.monotonic() > deadline:
                break
            results.append(case.run(setting))
    return results


def fastest(results: list[Result]) -> Result | None:
    return min((r for r in results if r.us is not None), key=lambda r: r.us or math.inf, default=None)


# --- what the figures stand next to ------------------------------------------------------------------------------


@triton.jit
def _empty(out) -> None:
    """Nothing: what a launch costs."""


def references() -> list[dict[str, Any]]:
    """An empty kernel, and copies of 2 MB to 1 GB (bytes read plus bytes written)."""
    target = torch.empty(1, device=DEVICE)
    rows = [{"what": "empty kernel", "us": measure(lambda _: _empty[(1,)](target), 1, DEVICE, BUDGET).seconds * 1e6}]
    for megabytes in (2, 34, 134, 537, 1074) if DEVICE.type == "cuda" else (2,):
        half = megabytes * 500_000
        sets = max(1, math.ceil(ROTATED_BYTES / (2 * half)))
        pairs = [torch.empty(2, half, dtype=torch.uint8, device=DEVICE).random_() for _ in range(sets)]
        seconds = measure(lambda i, pairs=pairs: pairs[i][1].copy_(pairs[i][0]), sets, DEVICE, BUDGET).seconds
        rows.append({"what": f"copy {megabytes} MB moved", "us": seconds * 1e6, "tb_s": 2 * half / seconds / 1e12})
    return rows


def index_builders(shrink: int) -> list[dict[str, Any]]:
    """Serial and parallel builders of full and windowed lists, checked against the table and timed."""
    rows = []
    for tokens in (32 * K // shrink, 128 * K // shrink, M // shrink):
        blocks = parallel_programs(tokens, 3, 1)
        serial, parallel = {"block": 128, "programs": 1}, {"block": 512, "programs": blocks}
        window = {"window": 4032 // shrink, "sink": 64 // shrink}
        rows += [
            build_case("draft, serial, 3 steps", tokens, 3, serial),
            build_case("draft, parallel, 3 steps", tokens, 3, parallel),
            build_case("draft, window, serial, 3 steps", tokens, 3, serial | window),
            build_case("draft, ring, serial, 3 steps", tokens, 3, serial | window | {"ring_depth": 3}),
            build_case("target, serial", tokens, 1, {"block": 512, "programs": 1}),
            build_case("target, parallel", tokens, 1, {"block": 512, "programs": parallel_programs(tokens, 1, 1)}),
        ]
    return rows


def build_case(what: str, tokens: int, steps: int, how: dict[str, int]) -> dict[str, Any]:
    """Check and time one builder on one request of `tokens` committed tokens."""
    width = tokens + steps + 1
    table = torch.randperm(width, device=DEVICE).to(torch.int32).view(1, -1)
    request = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    committed = torch.tensor([tokens], dtype=torch.int32, device=DEVICE)
    out = torch.full((steps, 1, width), -1, dtype=torch.int64, device=DEVICE)
    lengths = torch.full((steps, 1), -1, dtype=torch.int32, device=DEVICE)

    def launch(_: int) -> None:
        build_lists(table, request, committed, out=out, out_lengths=lengths, **how)  # type: ignore[arg-type]

    launch(0)
    positions = naive.listed_positions(tokens, steps, how.get("window"), how.get("sink", 0))
    if "ring_depth" in how:
        ring = (how["window"], how["sink"], how["ring_depth"])
        positions = [naive.ring_entry(position, *ring) for position in positions]
    wanted = table[0, torch.tensor(positions, device=DEVICE)]
    right = bool(lengths[-1, 0] == len(positions)) and torch.equal(out[-1, 0, : len(positions)], wanted.long())
    seconds = measure(launch, 1, DEVICE, BUDGET).seconds
    turns = math.ceil(len(positions) / (how["block"] * how["programs"]))
    return {
        "what": what,
        "tokens": tokens,
        **how,
        "right": right,
        "us": seconds * 1e6,
        "us_per_turn": seconds * 1e6 / turns,
    }


# --- the run -----------------------------------------------------------------------------------------------------


def shrunk(shape: Shape, shrink: int) -> Shape:
    return replace(shape, lengths=tuple(max(length // shrink, 5) for length in shape.lengths))


def row(result: Result) -> dict[str, Any]:
    """A result as one flat JSON object."""
    values = asdict(result)
    setting = values.pop("setting")
    return values | setting.pop("tile") | setting


def describe(result: Result) -> str:
    tile, setting = result.setting.tile, result.setting
    merge = tile.combine + (f"/{tile.fan}" if tile.combine == "fused" else "")
    how = f"n{tile.block_n} w{tile.num_warps} s{tile.num_stages} splits {setting.splits} {merge}"
    return how + ("" if tile.prefetch else " no-prefetch") + (" host-length" if setting.host_length else "")


def table(groups: dict[str, list[Result]]) -> str:
    """The heuristic's time and the best one of each shape."""
    lines = [f"{'shape':28} {'default us':>10} {'best us':>9} {'TB/s':>6} {'noise':>6}  best setting"]
    for name, results in groups.items():
        best, default = fastest(results), results[0]
        first = "failed" if default.us is None else f"{default.us:.1f}"
        if best is None:
            lines.append(f"{name:28} {first:>10}  {default.failure}")
        else:
            figures = f"{best.us:9.1f} {best.tb_s:6.2f} {best.noise:6.1%}"
            lines.append(f"{name:28} {first:>10} {figures}  {describe(best)}")
    return "\n".join(lines)


def say(text: str, start: float) -> None:
    print(f"[{time.monotonic() - start:6.1f} s] {text}", flush=True)


def run_checks(flat: dict[torch.dtype, list[torch.Tensor]], shrink: int, start: float) -> list[dict[str, Any]]:
    """Small shapes that the sweep does not reach, against float64."""
    jobs = [
        (Case(shrunk(shape, shrink), flat, rotated_bytes=0), Setting(tile, splits)) for shape, splits, tile in CHECKS
    ]
    compile_all(jobs)
    rows = []
    for case, setting in jobs:
        result = case.run(setting)
        rows.append(row(result))
        say(f"check {case.shape.name}: {result.failure or 'fine'}, error {result.error}", start)
    return rows


def provenance() -> dict[str, Any]:
    gpu = torch.cuda.get_device_properties(DEVICE) if DEVICE.type == "cuda" else None
    return {
        "gpu": gpu.name if gpu else "none",
        "sm_count": gpu.multi_processor_count if gpu else 4,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "rotated_bytes": ROTATED_BYTES,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--seconds", type=float, default=150, help="about how long to take")
    parser.add_argument("--only", default="", help="time only shapes whose name contains this")
    parser.add_argument("--shrink", type=int, default=1, help="divide contexts, to try the script without a GPU")
    options = parser.parse_args()

    start = time.monotonic()
    report: dict[str, Any] = {"machine": provenance() | {"seed": torch.seed()}}
    flat: dict[torch.dtype, list[torch.Tensor]] = {}
    groups: dict[str, list[Result]] = {}

    def save() -> None:
        report["attention"] = [row(result) for results in groups.values() for result in results]
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1))

    report["checks"] = run_checks(flat, min(options.shrink, 16), start)
    report["references"] = references()
    report["index"] = index_builders(options.shrink)
    save()
    shapes = [shrunk(shape, options.shrink) for shape in SHAPES if options.only in shape.name]
    for i, shape in enumerate(shapes):
        left = options.seconds - (time.monotonic() - start)
        if left <= 0:
            say(f"out of time before {shape.name}", start)
            break
        # The first shape of a tile pays for its compilation: let it take up to three shares.
        share = min(left, 3 * left / (len(shapes) - i))
        rotated = ROTATED_BYTES if DEVICE.type == "cuda" else 2 * shape.kv_bytes
        groups[shape.name] = sweep(Case(shape, flat, rotated), report["machine"]["sm_count"], time.monotonic() + share)
        save()
        best = fastest(groups[shape.name])
        failed = sum(result.us is None for result in groups[shape.name])
        outcome = f"{best.us:.1f} us with {describe(best)}" if best else "nothing ran"
        say(f"{shape.name}: {outcome}; {len(groups[shape.name])} settings, {failed} failed", start)

    for line in report["references"]:
        print(f"{line['what']:28} {line['us']:10.1f} us {line.get('tb_s', 0):6.2f} TB/s")
    for line in report["index"]:
        figures = f"{line['tokens']:>8} tokens {line['us']:10.1f} us {line['us_per_turn']:7.3f} us/turn"
        print(f"{line['what']:32} {figures}{'' if line['right'] else '  WRONG'}")
    print(table(groups))


if __name__ == "__main__":
    main()
