"""Prints the tables of docs/independent.md: ``python -m tests.independent``.

NVIDIA's published operator times for the H200 (tests/data/aiconfigurator-h200.json, which says where they are from)
beside the shipped profile: its own point where that very shape was measured, else its prediction.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import wmtp_sim
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.gpus import load_gpu
from wmtp_sim.catalog.profiles import read_profile
from wmtp_sim.machine.machine import Machine
from wmtp_sim.spec.engine import AttentionKernel
from wmtp_sim.spec.model import Attention, GatedDeltaNet, LatentAttention, Moe
from wmtp_sim.spec.precision import GroupFormats
from wmtp_sim.step.serving import split_attention
from wmtp_sim.work import layers
from wmtp_sim.work.operation import Operation
from wmtp_sim.work.weights import Matrix

PUBLISHED = Path(__file__).parent / "data" / "aiconfigurator-h200.json"
SHIPPED = Path(wmtp_sim.__file__).parent / "data" / "profiles" / "nvidia-h200.json"
ENGINES = ("vllm", "sglang", "trtllm")
K, M = 2**10, 2**20
#: How our attention kernel splits and pads; the engine files say it for FlashAttention-3.
PACKED = AttentionKernel(max_splits=0, tile_tokens=64, row_tile=16)
#: Head shapes (query heads, KV heads, head size) that are also held against our numbers for FlashAttention-3: the first
#: was measured for the profile, the others are predictions.
FA3_HEADS = ((16, 2, 256), (8, 2, 256), (8, 1, 256), (32, 8, 128))
#: Engines whose published rows at these shapes ran FlashAttention-3 (TensorRT-LLM's do not say what ran).
FA3_ENGINES = ("vllm", "sglang")


@dataclass(frozen=True)
class Row:
    """One operator at one shape: published microseconds by engine, and ours (``measured``, else predicted)."""

    group: str
    shape: str
    published: dict[str, float]
    ours: float
    measured: bool
    operation: Operation
    sizes: dict[str, Any]

    @property
    def ratio(self) -> float:
        """Ours over the median of the engines."""
        return self.ours / statistics.median(self.published.values())


@cache
def machine() -> Machine:
    """The H200 with the profile that is shipped, whatever the user has calibrated."""
    return Machine(load_gpu("h200"), read_profile(SHIPPED))


@cache
def published() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(PUBLISHED.read_text(encoding="utf-8"))["rows"])


@cache
def rows() -> tuple[Row, ...]:
    """All rows, group by group."""
    found = [row for entry in published() for row in _rows(entry)]
    groups = list(dict.fromkeys(row.group for row in found))
    return tuple(sorted(found, key=lambda row: groups.index(row.group)))


def of(group: str, **sizes: Any) -> list[Row]:
    """The rows of a group with these sizes."""
    return [row for row in rows() if row.group == group and sizes.items() <= row.sizes.items()]


def _rows(entry: dict[str, Any]) -> Iterator[Row]:
    sizes = {name: value for name, value in entry.items() if name not in ("operator", "us")}
    yield from _BUILDERS[entry["operator"]](sizes, entry["us"])


def _row(
    group: str, shape: str, us: dict[str, float], sizes: dict[str, Any], operation: Operation, point: dict[str, Any]
) -> Row:
    """``point`` says what the profile's own point of this shape would be."""
    point = {"kernel": operation.kernel} | point
    own = [
        entry["seconds"]
        for entry in machine().profile.measurements
        if all(entry.get(name) == value for name, value in point.items())
    ]
    seconds = own[0] if own else float(machine().time(operation).seconds)
    return Row(group, shape, us, 1e6 * seconds, bool(own), operation, sizes)


def _pass(batch: int, rows: int, attended: float = 0.0) -> layers.Pass:
    return layers.Pass(batch=batch, rows=rows, attended=attended, kv_bytes=2.0, state_bytes=4.0)


def attention(sizes: dict[str, Any], variant: str, rule: AttentionKernel) -> Operation:
    """One decode row per sequence; ``context`` counts it."""
    heads = {name: sizes[name] for name in ("q_heads", "kv_heads", "head_dim")}
    mixer = Attention(**heads, v_head_dim=sizes["head_dim"], window=sizes["window"] or None)
    (operation,) = layers.attention(mixer, _pass(sizes["batch"], 1, sizes["context"] - 1.0))
    return split_attention(replace(operation, variant=variant), rule)


def _attention(sizes: dict[str, Any], us: dict[str, float]) -> Iterator[Row]:
    """Our kernel beside every engine; FlashAttention-3, split as an engine splits it, beside that engine alone."""
    heads = tuple(sizes[name] for name in ("q_heads", "kv_heads", "head_dim"))
    shape = f"{heads[0]}/{heads[1]}x{heads[2]}"
    shape += f" w{sizes['window']}" if sizes["window"] else ""
    shape += f" {sizes['context'] // K}K b{sizes['batch']}"
    own = {name: value for name, value in sizes.items() if name != "window"} | {"rows": 1}
    point = {"variant": "triton_packed", "sizes": None if sizes["window"] else own}  # no window was measured
    yield _row(
        "window" if sizes["window"] else "attention", shape, us, sizes, attention(sizes, "triton_packed", PACKED), point
    )
    if heads in FA3_HEADS and sizes["batch"] == 1:
        for engine in (name for name in FA3_ENGINES if name in us):
            rule = load_engine(engine).attention_kernels["fa3"]
            operation = attention(sizes, "fa3", rule)
            point = {"variant": "fa3", "sizes": None if sizes["window"] or rule.max_splits else own}
            group = f"fa3{'w' if sizes['window'] else ''} {engine}"
            yield _row(group, shape, {engine: us[engine]}, sizes, operation, point)


def _mla(sizes: dict[str, Any], us: dict[str, float]) -> Iterator[Row]:
    mixer = LatentAttention(
        heads=sizes["heads"],
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )
    (operation,) = layers.latent_attention(mixer, _pass(sizes["batch"], 1, sizes["context"] - 1.0))
    shape = f"{sizes['heads']} heads {sizes['context'] // K}K b{sizes['batch']}"
    operation = replace(operation, variant="triton_packed")
    yield _row("mla", shape, us, sizes, operation, {"variant": "triton_packed", "sizes": sizes | {"rows": 1}})


def _gemm(sizes: dict[str, Any], us: dict[str, float]) -> Iterator[Row]:
    k, n, count = sizes["k"], sizes["n"], sizes["rows"]
    operation = layers.gemm(Matrix("m", k, n, "attention"), _pass(1, count), GroupFormats(attention=sizes["dtype"]))
    own = {"variant": "cublas_fp8" if sizes["dtype"] == "fp8" else "cublas", "sizes": {"k": k, "n": n, "rows": count}}
    yield _row(f"gemm {sizes['dtype']}", f"k{k} n{n} rows {count}", us, sizes, operation, own)


def _gdn(sizes: dict[str, Any], us: dict[str, float]) -> Iterator[Row]:
    heads = {"k_heads": sizes["k_heads"], "v_heads": sizes["v_heads"], "k_dim": 128, "v_dim": 128, "conv_kernel": 4}
    (operation,) = layers.recurrent(GatedDeltaNet(**heads), _pass(sizes["batch"], 1))
    shape = f"{sizes['k_heads']}/{sizes['v_heads']}x128 b{sizes['batch']}"
    own = heads | {"batch": sizes["batch"], "rows": 1}
    yield _row("gdn", shape, us, sizes, operation, {"variant": "gdn", "sizes": own})


def _moe(sizes: dict[str, Any], us: dict[str, float]) -> Iterator[Row]:
    layer = Moe(experts=sizes["experts"], top_k=sizes["top_k"], inner=sizes["inner"], gated=bool(sizes["gated"]))
    operation = layers.experts(layer, _pass(1, sizes["rows"]), sizes["width"], GroupFormats())
    shape = f"{sizes['width']}x{sizes['inner']} {sizes['top_k']}/{sizes['experts']} rows {sizes['rows']}"
    yield _row("moe", shape, us, sizes, operation, {"variant": "grouped", "sizes": sizes})


_BUILDERS: dict[str, Callable[[dict[str, Any], dict[str, float]], Iterator[Row]]] = {
    "attention": _attention,
    "mla": _mla,
    "gemm": _gemm,
    "gdn": _gdn,
    "moe": _moe,
}


def at_a_million(heads: tuple[int, int, int], engine: str) -> float:
    """Microseconds at 1M tokens, on the line through an engine's published times at 32K and 64K."""
    found = {}
    for entry in published():
        if entry["operator"] == "attention" and entry["window"] == 0 and entry["batch"] == 1:
            here = tuple(entry[name] for name in ("q_heads", "kv_heads", "head_dim"))
            if here == heads:
                found[entry["context"]] = entry["us"][engine]
    slope = (found[64 * K] - found[32 * K]) / (32 * K)
    return found[64 * K] + slope * (M - 64 * K)


def own_at_a_million(heads: tuple[int, int, int], variant: str) -> float:
    """Microseconds of the profile's own point at 1M tokens."""
    sizes = dict(zip(("q_heads", "kv_heads", "head_dim"), heads, strict=True))
    wanted = sizes | {"context": M, "rows": 1, "batch": 1}
    (point,) = (
        entry
        for entry in machine().profile.measurements
        if entry["kernel"] == "attention" and entry["variant"] == variant and entry.get("sizes") == wanted
    )
    return 1e6 * point["seconds"]


def split_at_a_million(heads: tuple[int, int, int]) -> float:
    """Microseconds that FlashAttention-3 with vLLM's limit of splits is predicted to take at 1M tokens."""
    sizes = dict(zip(("q_heads", "kv_heads", "head_dim"), heads, strict=True))
    rule = load_engine("vllm").attention_kernels["fa3"]
    operation = attention(sizes | {"window": 0, "context": M, "batch": 1}, "fa3", rule)
    return 1e6 * float(machine().time(operation).seconds)


def main() -> None:
    print(f"{'operator':<11} {'shape':<28} {'vllm':>7} {'sglang':>7} {'trtllm':>7} {'ours':>7}    ratio")
    for row in rows():
        theirs = " ".join(f"{row.published[e]:>7.1f}" if e in row.published else f"{'-':>7}" for e in ENGINES)
        kind = "m" if row.measured else "p"
        print(f"{row.group:<11} {row.shape:<28} {theirs} {row.ours:>7.1f} {kind}  {row.ratio:>5.2f}")
    print()
    print("operator     rows  median ratio  from    to")
    for group in dict.fromkeys(row.group for row in rows()):
        ratios = sorted(row.ratio for row in of(group))
        print(f"{group:<11}  {len(ratios):>4}  {statistics.median(ratios):>12.2f}  {ratios[0]:.2f}  {ratios[-1]:.2f}")
    print()
    print("1M tokens  theirs, on a line from 32K and 64K   ours")
    for heads, variants in (((32, 8, 128), ("triton_packed",)), ((16, 2, 256), ("triton_packed", "fa3"))):
        theirs = "  ".join(f"{engine} {at_a_million(heads, engine):.0f}" for engine in ENGINES)
        ours = "  ".join(f"{variant} {own_at_a_million(heads, variant):.0f} m" for variant in variants)
        print(f"{heads[0]}/{heads[1]}x{heads[2]}   {theirs:<36}  {ours}")
    print(f"{'':<48} fa3, 32 splits {split_at_a_million((16, 2, 256)):.0f} p")


if __name__ == "__main__":
    main()
