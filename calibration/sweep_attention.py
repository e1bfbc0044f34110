"""Time attention tiles, splits and merges, and index builders, on the GPU at hand; every result is checked first.

    python -m calibration.sweep_attention --out attention_sweep.json --seconds 150

Without a GPU, `TRITON_INTERPRET=1` and `--shrink 1024` walk through the same code on tiny contexts.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch
import triton

from calibration.case import Device
from calibration.cases import build
from calibration.kernels import attention as kernel
from calibration.kernels import references
from calibration.kernels.attention import TileConfig, attention
from calibration.plan import K, M, Point, point
from calibration.report import Report, arguments
from calibration.timing import measure

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = 1e-2
#: Bytes of caches that successive launches rotate through: several times an L2 of 60 MB.
ROTATED_BYTES = 420e6
#: Seconds of replays behind one figure.
BUDGET = 0.02
FP8 = torch.float8_e4m3fn
#: Contexts whose time is latency rather than bytes, in tokens.
SHORT = 8 * K


@dataclass(frozen=True)
class Shape:
    """One call of attention. The default is a full-attention layer of Qwen3.5-35B-A3B."""

    name: str
    lengths: tuple[int, ...]
    rows: int = 1
    q_heads: int = 16
    kv_heads: int = 2
    head_dim: int = 256
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
        return sum(self.lengths) * self.kv_heads * 2 * self.head_dim * self.dtype.itemsize


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


AT = {"4K": 4 * K, "32K": 32 * K, "128K": 128 * K, "1M": M}
SHAPES = [
    *(Shape(f"decode {at}", (AT[at],)) for at in ("1M", "4K", "32K", "128K")),
    *(Shape(f"verify 7 rows {at}", (AT[at],), rows=7) for at in ("1M", "4K", "128K")),
    *(Shape(f"verify 4 rows {at}", (AT[at],), rows=4) for at in ("1M", "4K")),
    *(Shape(f"D128 g16 decode {at}", (AT[at],), q_heads=32, head_dim=128) for at in ("1M", "4K")),
    *(Shape(f"contiguous {at}", (AT[at],), order="contiguous", tiles=4) for at in ("4K", "1M")),
    Shape("shuffled 1M", (M,), order="shuffled", tiles=4),
    Shape("fp8 decode 1M", (M,), dtype=FP8, tiles=7),
    Shape("D128 g16 verify 7 rows 1M", (M,), rows=7, q_heads=32, head_dim=128, tiles=8),
    Shape("D64 g8 decode 128K", (128 * K,), q_heads=64, kv_heads=8, head_dim=64, tiles=6),
    Shape("batch 4 decode 32K", (32 * K, 16 * K, 32 * K, 4 * K), tiles=4),
]


class Case:
    """Tensors of one shape: several sets of slots over one cache, so that successive calls read other bytes.

    ``flat`` are random numbers that all shapes share, K and V by type: they are made as large as any shape needs.
    """

    def __init__(self, shape: Shape, flat: dict[torch.dtype, list[torch.Tensor]], rotated_bytes: float):
        batch, context = len(shape.lengths), shape.context
        self.shape = shape
        self.sets = max(1, math.ceil(rotated_bytes / shape.kv_bytes))
        slots = self.sets * batch * context
        cache = (slots, shape.kv_heads, shape.head_dim)
        self.k, self.v = (grown(flat, shape.dtype, i, math.prod(cache)).view(cache) for i in (0, 1))
        self.q = torch.randn(batch, shape.rows, shape.q_heads, shape.head_dim, device=DEVICE).bfloat16()
        self.lengths = torch.tensor(shape.lengths, dtype=torch.int32, device=DEVICE)
        order = torch.arange(slots, dtype=torch.int32, device=DEVICE).view(self.sets, -1)
        if shape.order == "shuffled":
            order = torch.stack([row[torch.randperm(batch * context, device=DEVICE)] for row in order])
        self.slots = order.view(self.sets, batch, context)
        if shape.order == "contiguous":
            # Rows of 16 bytes, so that every set's pointer is as aligned as the first's.
            firsts = torch.zeros(self.sets, max(4, batch), dtype=torch.int32, device=DEVICE)
            firsts[:, :batch] = self.slots[:, :, 0]
            self.slots = firsts[:, :batch]
        self.out = torch.empty_like(self.q)

    @cached_property
    def reference(self) -> torch.Tensor:
        """Float64 attention over the first set."""
        return references.attention(*self.inputs(0), scale=self.shape.head_dim**-0.5)

    def inputs(self, i: int) -> tuple[torch.Tensor, ...]:
        return self.q, self.k, self.v, self.slots[i], self.lengths

    def launcher(self, setting: Setting) -> Callable[[int], torch.Tensor]:
        """A function of the set's number that makes one call."""
        shape = self.shape
        workspace = kernel.make_workspace(self.q, shape.kv_heads, shape.head_dim, setting.splits)
        workspace.partial.fill_(torch.nan)
        workspace.lse.fill_(torch.nan)
        options: dict[str, Any] = {"splits": setting.splits, "out": self.out, "workspace": workspace}
        options |= {"max_length": shape.context if setting.host_length else None, "config": setting.tile}
        return lambda i: attention(*self.inputs(i), scale=shape.head_dim**-0.5, **options)

    def compile(self, setting: Setting) -> None:
        """Compile what a setting launches."""
        kernel.compile_attention(*self.inputs(0), splits=setting.splits, config=setting.tile)

    def run(self, setting: Setting) -> Result:
        """Check one setting against the reference, then time it."""
        try:
            launch = self.launcher(setting)
            for _ in range(2):
                self.out.fill_(torch.nan)
                launch(0)
            error = references.relative_error(self.out, self.reference)
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


def grown(flat: dict[torch.dtype, list[torch.Tensor]], dtype: torch.dtype, which: int, count: int) -> torch.Tensor:
    """So many of the shared random numbers; `which` is 0 for K and 1 for V."""
    pair = flat.setdefault(dtype, [torch.empty(0, device=DEVICE, dtype=dtype)] * 2)
    if pair[which].numel() < count:
        pair[which] = torch.empty(count, device=DEVICE, dtype=dtype)
        for chunk in pair[which].split(1 << 27):
            chunk.copy_(torch.randn(chunk.shape, device=DEVICE, dtype=torch.bfloat16))
    return pair[which][:count]


def compile_all(case: Case, settings: list[Setting]) -> None:
    """Compile in parallel; what fails fails again, and is recorded, when it runs."""
    if kernel.INTERPRETED:
        return
    with ThreadPoolExecutor(os.cpu_count()) as executor, triton.AsyncCompileMode(executor, ignore_errors=True):
        for setting in settings:
            case.compile(setting)


def split_choices(shape: Shape, sm_count: int) -> list[int]:
    """The heuristic's choice first, then one to four programs a multiprocessor and, for short contexts, other cuts."""
    first = kernel.choose_splits(shape.context, shape.streams, sm_count, shape.head_dim, shape.packed)
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
    compile_all(case, [Setting(tile, splits) for tile in tiles for splits in choices])
    # Two thirds of the time for tiles, the rest for variants.
    soon = time.monotonic() + (deadline - time.monotonic()) * 2 / 3
    results: list[Result] = []
    for tile in tiles:
        for splits in choices:
            results.append(case.run(Setting(tile, splits)))
            best, us = fastest(results), results[-1].us
            hopeless = best is None or us is None or us > 1.5 * best.us
            if time.monotonic() > soon or (splits == choices[0] and hopeless):
                break
        if time.monotonic() > soon:
            break
    if best := fastest(results):
        more = variants(shape, best.setting)
        compile_all(case, more)
        for setting in more:
            if time.monotonic() > deadline:
                break
            results.append(case.run(setting))
    return results


def fastest(results: list[Result]) -> Result | None:
    return min((r for r in results if r.us is not None), key=lambda r: r.us or math.inf, default=None)


# --- what the figures stand next to ------------------------------------------------------------------------------


def beside(shrink: int) -> list[tuple[str, Point]]:
    """An empty kernel, copies of 2 MB to 1 GB (bytes read plus bytes written), and index builders, by what they are.

    Builders are serial and parallel, of full, windowed and ring lists: of three draft steps, or of the target's one.
    """
    found = [("empty kernel", point("elementwise", "empty", rows=1))]
    for megabytes in (2, 34, 134, 537, 1074) if DEVICE.type == "cuda" else (2,):
        found.append((f"copy {megabytes} MB moved", point("copy", "torch", kib=round(megabytes * 1e6 / K))))
    window = {"window": 4032 // shrink, "sink": 64 // shrink}
    for context in (32 * K // shrink, 128 * K // shrink, M // shrink):
        for what, variant, sizes in (
            ("draft, serial, 3 steps", "serial", {"steps": 3, "block": 128}),
            ("draft, parallel, 3 steps", "parallel", {"steps": 3, "block": 512}),
            ("draft, window, serial, 3 steps", "serial", {"steps": 3, "block": 128, **window}),
            ("draft, ring, serial, 3 steps", "serial", {"steps": 3, "block": 128, **window, "ring_depth": 3}),
            ("target, serial", "serial", {"steps": 1, "block": 512}),
            ("target, parallel", "parallel", {"steps": 1, "block": 512}),
        ):
            found.append((what, point("index_build", variant, context=context, **sizes)))
    return found


def timed(what: str, one: Point) -> dict[str, Any]:
    """One of them, checked: microseconds, TB/s of what moves bytes, and microseconds of a dependent loop turn."""
    case = build(one, Device.of(DEVICE))
    right = case.check() <= case.tolerance
    us = measure(case.launch, case.sets, DEVICE, BUDGET).seconds * 1e6
    row = {"what": what, **dict(one.sizes), "right": right, "us": us}
    if one.kernel == "copy":
        row["tb_s"] = float(case.operation.state) / us / 1e6
    if one.kernel == "index_build":
        row["us_per_turn"] = us / float(case.operation.turns)
    return row


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


def main() -> None:
    parser = arguments(__doc__, seconds=150.0)
    parser.add_argument("--only", default="", help="time only shapes whose name contains this")
    parser.add_argument("--shrink", type=int, default=1, help="divide contexts, to try the script without a GPU")
    options = parser.parse_args()
    report = Report(options.out, DEVICE, options.seconds, seed=torch.seed(), beside=[], attention=[])
    for what, one in beside(options.shrink):
        line = timed(what, one)
        report.add("beside", line)
        size = f" {line['context']} tokens" if "context" in line else ""
        speed = f" {line['tb_s']:.2f} TB/s" if "tb_s" in line else ""
        turn = f" {line['us_per_turn']:.3f} us/turn" if "us_per_turn" in line else ""
        report.say(f"{what}{size}: {line['us']:.1f} us{speed}{turn}{'' if line['right'] else '  WRONG'}")
    flat: dict[torch.dtype, list[torch.Tensor]] = {}
    groups: dict[str, list[Result]] = {}
    shapes = [shrunk(shape, options.shrink) for shape in SHAPES if options.only in shape.name]
    for i, shape in enumerate(shapes):
        if report.late:
            report.say(f"out of time before {shape.name}")
            break
        # The first shape of a tile pays for its compilation: let it take up to three shares.
        left = options.seconds - report.elapsed
        share = min(left, 3 * left / (len(shapes) - i))
        rotated = ROTATED_BYTES if DEVICE.type == "cuda" else 2 * shape.kv_bytes
        found = sweep(Case(shape, flat, rotated), Device.of(DEVICE).sm_count, time.monotonic() + share)
        groups[shape.name], best = found, fastest(found)
        for result in found:
            report.add("attention", row(result))
        failed = sum(result.us is None for result in found)
        outcome = f"{best.us:.1f} us with {describe(best)}" if best else "nothing ran"
        report.say(f"{shape.name}: {outcome}; {len(found)} settings, {failed} failed")
    report.close()
    print(table(groups))


if __name__ == "__main__":
    main()
