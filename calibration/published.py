"""A profile from operator times that NVIDIA publishes in ``aiconfigurator-core``: ``wmtp profiles import``.

Each chosen row becomes a point with the very `Operation` that the cost model counts for its shape, and points are
fitted by `calibration.fit`, as our own are. What is chosen, and what is left out:

* Attention and MLA are told apart by kernel (`ATTENTION`, `MLA`), so one profile holds those of several engines. Dense
  products, experts, recurrences and collectives are of one backend, the first that has a table.
* Decode rows only, one query row per sequence. Verify rows are priced by the form: the cache is read once per sequence.
* Caches were warm: many rows of small shapes are faster than the memory could deliver them, and in a model's step they
  would be read cold. `_cold` says which rows count.
* Kernel classes that the tables lack are carried over from the nearest calibration of ours, with its wider ranges.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibration import fit
from calibration.tables import PACKAGE, Row, Tables, number, seconds, tables, word
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.gpus import load_gpu
from wmtp_sim.catalog.profiles import ELSEWHERE, IDEAL, own_calibration, uncalibrated
from wmtp_sim.errors import InputError
from wmtp_sim.machine.machine import Machine
from wmtp_sim.machine.profile import KernelModel, Profile
from wmtp_sim.spec import model as spec
from wmtp_sim.spec.gpu import Gpu
from wmtp_sim.spec.parallel import Layout
from wmtp_sim.spec.precision import KV_BYTES, GroupFormats
from wmtp_sim.step.serving import split_attention
from wmtp_sim.work import collectives, layers
from wmtp_sim.work.operation import Operation
from wmtp_sim.work.weights import Matrix

#: Catalogue GPUs by the package's names of systems.
SYSTEMS = {
    "a100_pcie": "a100-pcie-80gb",
    "a100_sxm": "a100-sxm-80gb",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "gb200": "gb200",
    "gb300": "gb300",
    "h100_pcie": "h100-pcie",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "l4": "l4",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000-blackwell-server",
}
#: Backends whose kernels our engine files name; TensorRT-LLM's tables do not say which kernel ran.
BACKENDS = ("sglang", "vllm")

#: Attention kernels by the tables' names -> the engine file that says how the kernel splits, and its name there.
#: SGLang's Triton rows show its default of 8 splits (7.7 GB/s per block at 131,072 tokens on a B200; 8.1 on our H200);
#: that vLLM's FlashAttention-3 rows ran with its limit of 32 is inferred in docs/independent.md.
ATTENTION = {
    "fa3": ("sglang", "fa3"),
    "flash_attention": ("sglang", "fa3"),
    "flashinfer": ("sglang", "flashinfer"),
    "triton": ("sglang", "sglang_triton"),
    "trtllm_mha": ("sglang", "trtllm_mha"),
    "vllm_flash_attn": ("vllm", "fa2"),
    "vllm_flash_attn_fa2": ("vllm", "fa2"),
    "vllm_flash_attn_fa3": ("vllm", "fa3"),
    "vllm_flashinfer_fidecode": ("vllm", "flashinfer"),
    "vllm_flashinfer_trtllmdecode": ("vllm", "flashinfer_trtllm"),
}
#: MLA kernels -> the name of the attention choice that brings them along.
MLA = {"flash_attention": "fa3", "triton": "sglang_triton", "trtllm_mla": "trtllm_mha"}

# --- the rows that are taken -------------------------------------------------------------------------------------

#: Query heads, KV heads and head size per rank: the catalogue's models whole, and over 8 ranks.
HEADS = (
    (16, 2, 256),
    (24, 4, 256),
    (32, 2, 256),
    (8, 1, 256),
    (32, 2, 128),
    (64, 2, 128),
    (32, 4, 128),
    (64, 4, 128),
    (32, 8, 128),
    (48, 8, 128),
    (64, 8, 128),
    (96, 8, 128),
    (8, 1, 128),
    (64, 8, 64),
    (8, 1, 64),
)
#: Heads whose fp8 caches are taken too.
FP8_HEADS = ((16, 2, 256), (32, 2, 256), (32, 2, 128), (32, 8, 128), (64, 8, 128), (64, 8, 64), (8, 1, 128))
CONTEXTS = (128, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
BATCHES = (1, 8, 64)
#: Windowed rows of one context, longer than any window of the tables; a window's read does not depend on it.
WINDOWED_CONTEXT = 16384
MLA_HEADS = (8, 16, 32, 64, 128)
#: Inputs and outputs of dense products, and their rows.
PRODUCTS = (
    (512, 2048),
    (1024, 4096),
    (2048, 64),
    (2048, 512),
    (2048, 1024),
    (2048, 2048),
    (2048, 4096),
    (2048, 8192),
    (2048, 12288),
    (2048, 65536),
    (3072, 3072),
    (3072, 8192),
    (4096, 512),
    (4096, 2048),
    (4096, 4096),
    (4096, 6144),
    (4096, 12288),
    (4096, 65536),
    (5120, 5120),
    (5120, 16384),
    (6144, 5120),
    (7168, 2048),
    (7168, 4096),
    (7168, 16384),
    (8192, 1024),
    (8192, 4096),
    (8192, 10240),
    (12288, 4096),
    (16384, 7168),
)
PRODUCT_ROWS = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
#: Number formats of products, best first: ours has one 8-bit float, and block scales are what checkpoints carry.
FORMATS = {"bfloat16": "bf16", "fp8_block": "fp8", "fp8": "fp8", "nvfp4": "nvfp4"}
EXPERT_FORMATS = {**FORMATS, "w4a8_mxfp4_mxfp8": "mxfp4-a8", "w4a16_mxfp4": "mxfp4"}
#: Width, inner size, experts per token, experts -> gated. The tables do not say; these are the catalogue's models.
#: DeepSeek-V3's (7168, 2048, 8, 256) is left out: at 16 and 64 rows its times are 1.6 times too short to read as many
#: experts as balanced rows would touch, on every GPU; that its router limits groups is our guess.
EXPERTS = {
    (2048, 512, 8, 256): True,
    (2048, 768, 8, 128): True,
    (3072, 1024, 8, 256): True,
    (3072, 1536, 8, 256): True,
    (4096, 1024, 10, 512): True,
    (4096, 1536, 8, 128): True,
    (4096, 2048, 8, 256): True,
    (6144, 2048, 8, 256): True,
    (7168, 2048, 8, 384): True,
    (2880, 2880, 4, 32): True,
    (2880, 2880, 4, 128): True,
    (2688, 1856, 6, 128): False,
    (1024, 2688, 22, 512): False,
}
#: Kernels known to run two matrices where a model has two: a third would exceed the memory's rate. Triton's rows of
#: such shapes on an H200 take 1.6 times ours, as if they read a third (docs/independent.md).
UNGATED_KERNELS = ("trtllm",)
EXPERT_TOKENS = (1, 4, 16, 64)
EXPERT_RANKS = (1, 8)
#: Key heads, value heads; all of 128.
GDN_HEADS = ((2, 4), (2, 6), (2, 8), (16, 32), (16, 48), (16, 64))
STATE_BATCHES = (1, 4, 16, 64, 128, 256, 512)
#: All-reduces: elements of two bytes, and ranks that one host holds, or two of GB200 and GB300.
REDUCED = tuple(2**power for power in range(10, 25, 2))
RANKS = (2, 4, 8)
#: The other collectives, by the names in NCCL's tables, and their elements of two bytes.
NCCL = {
    "all_gather": collectives.all_gather,
    "reduce_scatter": collectives.reduce_scatter,
    "alltoall": collectives.all_to_all,
}
GATHERED = tuple(2**power for power in range(8, 25))
#: Tokens of a rank that DeepEP's low-latency kernels send.
SENT_TOKENS = tuple(4**power for power in range(6))
#: With 8 or 16 experts (one or two a rank), a dispatch of 1,024 tokens takes 4 to 10 times what others of its bytes do.
FEWEST_EXPERTS = 128
#: GPUs of one node, where not 8.
NODE_GPUS = {"gb200": 4, "gb300": 4}

# --- which of them count -----------------------------------------------------------------------------------------

#: No spread is below this: the same kernels on one kind of GPU in two hands (docs/independent.md: FlashAttention-3 and
#: products on an H200) differ by so much in nine of ten rows. A judgement.
HANDS = 1.2
#: Rows count where reading their bytes from memory would add no more than this share of their time ...
COLD_SHARE = 0.1
#: ... or where they are this many times the L2, and the next run finds little of the last one in it.
CACHES = 2.0
#: A long read may find the end of the last one in the L2: rows up to so much faster than the datasheet's rate count.
REMAINDER = 0.9
#: The largest L2 of the catalogue, for GPUs whose own is not known.
LARGEST_L2 = 134_217_728
#: Classes whose small rows beat the memory's rate on GPUs with a large L2 (4.5 times on an L40S), and beat it a little
#: on an H100 already: all of them are taken to be warm.
WARM = ("attention", "mla", "recurrent")

NOTE = (
    f"times are NVIDIA's, published in {PACKAGE} (Apache-2.0), not ours: one operator at a time, not in a step's CUDA "
    "graph; rows that a cache served are left out"
)


@dataclass(frozen=True)
class Source:
    """Where rows come from: the tables, and the backend whose table is read."""

    tables: Tables
    backend: str

    def named(self, version: str, kernel: str) -> str:
        return f"{PACKAGE} {self.tables.release}, {self.backend} {version}, {kernel}"[:160]


def import_profile(
    system: str,
    backends: Sequence[str] = (),
    version: str | None = None,
    path: Path | None = None,
    gpu: str | None = None,
) -> tuple[Profile, list[fit.Report]]:
    """The profile that one system's tables make, and its fits.

    Args:
        system: the package's name of the GPU, ``b200_sxm``.
        backends: engines whose kernels are taken, the first for what is not told apart by kernel; all of `BACKENDS`.
        version: the one backend's version; else the newest of each table.
        path: the package's data; else the installed package's.
        gpu: a catalogue name or file, where `SYSTEMS` lacks the system.

    Raises:
        InputError: unknown names, no package, tables that cannot be read, or too few rows to fit anything.
    """
    found = tables(system, path, version)
    target = load_gpu(_gpu_of(system, gpu))
    sources = [Source(found, name) for name in _known_backends(found, backends, version)]
    records = list(_records(sources, target))
    kept = _cold(records, target)
    if not kept:
        raise InputError("--system", f"{system} has no row that can be used", "another --system or --backend")
    return _profile(found, sources, target, kept, len(records))


def _gpu_of(system: str, gpu: str | None) -> str:
    if gpu is None and system not in SYSTEMS:
        raise InputError("--gpu", f"is not known for {system[:60]}", "name the GPU: --gpu b200, or a file")
    return gpu or SYSTEMS[system]


def _known_backends(found: Tables, backends: Sequence[str], version: str | None) -> list[str]:
    known = found.backends()
    for name in backends:
        if name not in known:
            raise InputError("--backend", f"no tables of {name[:60]!r}", f"known: {', '.join(known)[:200]}")
    chosen = list(dict.fromkeys(backends or [name for name in BACKENDS if name in known]))
    if version is not None:
        if len(chosen) != 1:
            raise InputError("--version", "is one backend's", "name it: --backend sglang --version 0.5.14")
        versions = found.versions(chosen[0])
        if version not in versions:
            raise InputError("--version", f"no {version[:40]!r} of {chosen[0]}", f"known: {', '.join(versions)[:200]}")
    return chosen


# --- rows to points ----------------------------------------------------------------------------------------------


def _records(sources: Sequence[Source], gpu: Gpu) -> Iterator[dict[str, Any]]:
    """Points of all classes; rows of one shape and kernel are one point, their median."""
    for source in sources:
        yield from _merged(_attention(source))
        yield from _merged(_mla(source))
    for build in (_products, _experts, _recurrences, _collectives, _nccl, _deepep):
        for source in sources:
            points = _merged(build(source))
            if points:
                yield from points
                break


def _merged(points: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for point in points:
        groups[point["key"]].append(point)
    return [
        group[0] | {"seconds": float(np.median([point["seconds"] for point in group]))} for group in groups.values()
    ]


def _point(operation: Operation, variant: str, sizes: dict[str, Any], time: float, source: str) -> dict[str, Any]:
    """A point as a calibration keeps it; numbers of the operation that are as by default are left out."""
    stated = {}
    for field in fields(Operation):
        value = getattr(operation, field.name)
        if field.name in ("name", "kernel", "variant", "geometry") or field.name in _NOT_TIMED:
            continue
        if isinstance(value, str) or float(np.asarray(value)) != field.default:
            stated[field.name] = value if isinstance(value, str) else float(np.asarray(value))
    shape = ",".join(f"{name}={value}" for name, value in sizes.items())
    return {
        "key": f"{operation.kernel}.{variant}[{shape}]",
        "kernel": operation.kernel,
        "variant": variant,
        "sizes": sizes,
        "operation": stated | {"geometry": [float(size) for size in operation.geometry]},
        "seconds": time,
        "source": source,
    }


#: What a fit does not look at.
_NOT_TIMED = (
    *("repeats", "streams", "query_rows", "query_heads", "positions", "weight_format", "row_tile", "tile_rows"),
    *("rows_per_read", "serial_flops", "blocks"),
)


def _pass(batch: int, rows: int = 1, attended: int = 0, kv_bytes: float = 2.0) -> layers.Pass:
    return layers.Pass(batch=batch, rows=rows, attended=attended, kv_bytes=kv_bytes, state_bytes=4.0)


def _cache_format(row: Row) -> str | None:
    """Our name of a cache's format, where both it and the arithmetic are ones that we price."""
    stated = {"bfloat16": "bf16", "float16": "bf16", "fp8": "fp8"}
    return stated.get(word(row, "kv_cache_dtype"))


def _attention(source: Source) -> Iterator[dict[str, Any]]:
    """One query row per sequence that attends ``step`` cached tokens and itself, or its window of them."""
    table = source.tables.read(
        "attention", source.backend, "generation_attention", batch_size=BATCHES, step=[c - 1 for c in CONTEXTS]
    )
    for row in table.rows if table else ():
        heads = (number(row, "num_heads"), number(row, "num_key_value_heads"), number(row, "head_dim"))
        kernel, cache, window = word(row, "kernel_source"), _cache_format(row), number(row, "window_size", 0)
        context, batch = number(row, "step") + 1, number(row, "batch_size")
        if kernel not in ATTENTION or cache is None or heads not in (HEADS if cache == "bf16" else FP8_HEADS):
            continue
        if window and (context != WINDOWED_CONTEXT or window >= context):
            continue
        engine, name = ATTENTION[kernel]
        rule = load_engine(engine).attention_kernels[name]
        mixer = spec.Attention(
            q_heads=heads[0], kv_heads=heads[1], head_dim=heads[2], v_head_dim=heads[2], window=window or None
        )
        (operation,) = layers.attention(mixer, _pass(batch, attended=context - 1, kv_bytes=KV_BYTES[cache]))
        operation = split_attention(operation, rule)
        sizes = {"q_heads": heads[0], "kv_heads": heads[1], "head_dim": heads[2], "window": window}
        sizes |= {"context": context, "batch": batch, "rows": 1, "kv_bytes": int(KV_BYTES[cache])}
        variant = f"{name}_{rule.max_splits}" if rule.max_splits else name
        yield _point(operation, variant, sizes, seconds(row), source.named(table.version, kernel))  # type: ignore[union-attr]


def _mla(source: Source) -> Iterator[dict[str, Any]]:
    """Absorbed latent attention alone, without the projections around it."""
    table = source.tables.read(
        "mla", source.backend, "generation_mla", batch_size=BATCHES, step=[c - 1 for c in CONTEXTS]
    )
    for row in table.rows if table else ():
        kernel, cache, heads = word(row, "kernel_source"), _cache_format(row), number(row, "num_heads")
        if kernel not in MLA or cache is None or heads not in MLA_HEADS or word(row, "mla_dtype") != "bfloat16":
            continue
        context, batch = number(row, "step") + 1, number(row, "batch_size")
        mixer = spec.LatentAttention(
            heads=heads, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
        )
        (operation,) = layers.latent_attention(mixer, _pass(batch, attended=context - 1, kv_bytes=KV_BYTES[cache]))
        sizes = {"heads": heads, "context": context, "batch": batch, "rows": 1, "kv_bytes": int(KV_BYTES[cache])}
        yield _point(operation, MLA[kernel], sizes, seconds(row), source.named(table.version, kernel))  # type: ignore[union-attr]


def _products(source: Source) -> Iterator[dict[str, Any]]:
    """Dense products. Of two kernels for one of our formats, the first in `FORMATS` counts."""
    table = source.tables.read("gemm", source.backend, "gemm", m=PRODUCT_ROWS, gemm_dtype=FORMATS)
    for row, fmt in _in_our_formats(table.rows if table else (), "gemm_dtype", FORMATS, ("k", "n")):
        k, n, rows = number(row, "k"), number(row, "n"), number(row, "m")
        if (k, n) not in PRODUCTS:
            continue
        operation = layers.gemm(Matrix("published", k, n, "attention"), _pass(1, rows), GroupFormats(attention=fmt))
        name = source.named(table.version, word(row, "kernel_source"))  # type: ignore[union-attr]
        yield _point(operation, fmt, {"k": k, "n": n, "rows": rows}, seconds(row), name)


def _experts(source: Source) -> Iterator[dict[str, Any]]:
    """Routed experts under balanced routing: no expert twice before each was touched once."""
    table = source.tables.read(
        "moe", source.backend, "moe", num_tokens=EXPERT_TOKENS, distribution=["balanced"], moe_ep_size=[1],
        moe_tp_size=EXPERT_RANKS, moe_dtype=EXPERT_FORMATS,
    )  # fmt: skip
    shape_columns = ("hidden_size", "inter_size", "topk", "num_experts")
    for row, fmt in _in_our_formats(table.rows if table else (), "moe_dtype", EXPERT_FORMATS, shape_columns):
        width, inner, top_k, experts = shape = tuple(number(row, name) for name in shape_columns)
        tokens, ranks, kernel = number(row, "num_tokens"), number(row, "moe_tp_size"), word(row, "kernel_source")
        if shape not in EXPERTS or (not EXPERTS[shape] and not any(name in kernel for name in UNGATED_KERNELS)):
            continue
        layer = spec.Moe(experts=experts, top_k=top_k, inner=inner, gated=EXPERTS[shape])
        operation = layers.experts(
            layer, replace(_pass(1, tokens), layout=Layout(ranks)), width, GroupFormats(expert=fmt)
        )
        one = float(np.asarray(operation.weights)) / float(np.asarray(layers.expert_union(layer, 1, tokens, 0.0)))
        operation = replace(operation, weights=one * min(experts, tokens * top_k))
        sizes = {"experts": experts, "top_k": top_k, "inner": inner, "width": width, "rows": tokens, "ranks": ranks}
        yield _point(operation, fmt, sizes, seconds(row), source.named(table.version, kernel))  # type: ignore[union-attr]


def _in_our_formats(
    rows: Sequence[Row], column: str, formats: dict[str, str], shape: Sequence[str]
) -> Iterator[tuple[Row, str]]:
    """Rows with our format's name; where several of theirs are one of ours at a shape, the first of ``formats``.

    Two formats of one width (mxfp4 with 8 or 16 bits of activations) are one geometry here, and so the first counts.
    """
    order = {name: i for i, name in enumerate(formats)}
    best: dict[tuple[int, ...], dict[float, int]] = defaultdict(dict)
    stated = [(row, word(row, column), tuple(number(row, name) for name in shape)) for row in rows]
    for _, name, key in stated:
        width = GroupFormats(attention=formats[name]).of("attention").bytes_per_weight
        best[key][width] = min(order[name], best[key].get(width, len(order)))
    for row, name, key in stated:
        width = GroupFormats(attention=formats[name]).of("attention").bytes_per_weight
        if best[key][width] == order[name]:
            yield row, formats[name]


def _recurrences(source: Source) -> Iterator[dict[str, Any]]:
    """Decode steps of GDN and KDA: the short convolution and the delta rule, which the tables time one by one.

    Mamba-2's decode rows are of its convolution alone and are left out.
    """
    for kind, family in (("gdn", "linear_attention"), ("kda", "kda")):
        table = source.tables.read(family, source.backend, kind, phase=["generation"], batch_size=STATE_BATCHES)
        times: dict[tuple[int, int, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in table.rows if table else ():
            if number(row, "head_k_dim") != 128 or number(row, "head_v_dim") != 128 or number(row, "seq_len") != 1:
                continue
            shape = (number(row, "num_k_heads"), number(row, "num_v_heads"), number(row, "batch_size"))
            times[shape][word(row, "kernel_source")].append(seconds(row))
        for (k_heads, v_heads, batch), kernels in times.items():
            convolutions = [name for name in kernels if "conv1d" in name]
            rules = [name for name in kernels if name.startswith("fused_recurrent")]
            if not convolutions or not rules or (kind == "gdn" and (k_heads, v_heads) not in GDN_HEADS):
                continue
            mixer: spec.Mixer = (
                spec.GatedDeltaNet(k_heads=k_heads, v_heads=v_heads, k_dim=128, v_dim=128, conv_kernel=4)
                if kind == "gdn"
                else spec.KimiDeltaAttention(heads=v_heads, head_dim=128, conv_kernel=4, decay_entries=v_heads)
            )
            (operation,) = layers.recurrent(mixer, _pass(batch))
            time = float(np.median(kernels[convolutions[0]]) + np.median(kernels[rules[0]]))
            sizes = {"k_heads": k_heads, "v_heads": v_heads, "batch": batch, "rows": 1}
            name = source.named(table.version, f"{convolutions[0]} + {rules[0]}")  # type: ignore[union-attr]
            yield _point(operation, kind, sizes, time, name)


def _collectives(source: Source) -> Iterator[dict[str, Any]]:
    """All-reduces inside CUDA graphs. ``message_size`` counts elements: NCCL's half takes twice what its int8 does."""
    table = source.tables.read("comm", source.backend, "custom_allreduce", message_size=REDUCED, num_gpus=RANKS)
    for row in table.rows if table else ():
        kernel, ranks, elements = word(row, "kernel_source"), number(row, "num_gpus"), number(row, "message_size")
        if kernel.endswith("eager") or ranks not in RANKS or elements not in REDUCED:
            continue
        operation = collectives.all_reduce(2.0 * elements, ranks)
        sizes = {"ranks": ranks, "bytes": 2 * elements}
        yield _point(operation, "all_reduce", sizes, seconds(row), source.named(table.version, kernel))  # type: ignore[union-attr]


def _nccl(source: Source) -> Iterator[dict[str, Any]]:
    """All-gathers, reduce-scatters and all-to-alls by NCCL alone; its newest table, whichever version is pinned.

    ``message_size`` counts elements, of the larger of a rank's two buffers, as NCCL's own tests do. Elements: an
    all-gather over eight H200s takes 725 us for 2^28 of int8 and 726 us for 2^27 halves. The larger buffer: for 2^28
    halves each of them then sends 470 MB in 1,395 us, 0.34 of its link's 0.45 TB/s; if it were each rank's part, 2.7
    TB/s. Reduce-scatters take 1,393 us and all-to-alls 1,510.
    """
    nccl = Source(replace(source.tables, version=None), "nccl")
    table = nccl.tables.read("comm", "nccl", "nccl", message_size=GATHERED, num_gpus=RANKS, nccl_dtype=["half"])
    for row in table.rows if table else ():
        name, ranks, elements = word(row, "op_name"), number(row, "num_gpus"), number(row, "message_size")
        if name not in NCCL or ranks not in RANKS or elements not in GATHERED or word(row, "nccl_dtype") != "half":
            continue
        operation = NCCL[name](2.0 * elements, ranks)
        sizes = {"ranks": ranks, "bytes": 2 * elements}
        yield _point(operation, operation.variant, sizes, seconds(row), nccl.named(table.version, name))  # type: ignore[union-attr]


def _deepep(source: Source) -> Iterator[dict[str, Any]]:
    """DeepEP's low-latency dispatch and combine among the GPUs of one node, as an engine's tables have them.

    The bytes are DeepEP's own count: a row's bandwidth times its time is ``tokens * top_k`` copies of what
    `collectives.dispatch` and `combine` count for one, to the byte, in all 1,056 rows of 0.12.0. How many ranks sent
    them is not stated: those of a node, of which GB200 and GB300 have four GPUs each.
    """
    table = source.tables.read("comm", source.backend, "wideep_deepep_ll", node_num=[1], num_token=SENT_TOKENS)
    ranks = NODE_GPUS.get(source.tables.system, 8)
    for row in table.rows if table else ():
        tokens, hidden, top_k = (number(row, name) for name in ("num_token", "hidden_size", "num_topk"))
        experts = number(row, "num_experts")
        if tokens not in SENT_TOKENS or experts < FEWEST_EXPERTS or number(row, "node_num") != 1:
            continue
        for name, build in (("dispatch", collectives.dispatch), ("combine", collectives.combine)):
            sizes: dict[str, Any] = {"sent": name, "ranks": ranks, "tokens": tokens, "hidden": hidden}
            sizes |= {"top_k": top_k, "experts": experts}
            time = seconds(row, f"{name}_avg_t_us", 1e6)
            label = source.named(table.version, "DeepEP low latency")  # type: ignore[union-attr]
            yield _point(build(tokens, top_k, hidden, ranks), "deepep", sizes, time, label)


# --- points to a profile -----------------------------------------------------------------------------------------


def operation_of(record: dict[str, Any]) -> Operation:
    """The operation that a point keeps."""
    numbers = dict(record["operation"])
    geometry = tuple(numbers.pop("geometry"))
    return Operation(record["key"], record["kernel"], record["variant"], geometry=geometry, **numbers)


def _cold(records: list[dict[str, Any]], gpu: Gpu) -> list[dict[str, Any]]:
    """Points whose time is that of reading memory.

    A row faster than the datasheet's rate was served by a cache, and so may be rows of its class up to twice its size.
    In the classes of `WARM` all rows up to twice the L2 may be.
    """
    machine = Machine(gpu, IDEAL)
    limit = dict.fromkeys(WARM, CACHES * (gpu.l2_bytes or LARGEST_L2))
    facts = [(record, operation_of(record)) for record in records]
    reads = [float(np.asarray(operation.bytes)) / machine.peak_bandwidth(operation) for _, operation in facts]
    for (record, operation), read in zip(facts, reads, strict=True):
        if record["seconds"] < REMAINDER * read:
            limit[record["kernel"]] = max(limit.get(record["kernel"], 0.0), CACHES * _footprint(operation))
    kept = []
    for (record, operation), read in zip(facts, reads, strict=True):
        possible = record["seconds"] >= REMAINDER * float(np.asarray(machine.bound(operation)))
        large = _footprint(operation) >= limit.get(record["kernel"], 0.0)
        if possible and (large or read <= COLD_SHARE * record["seconds"]):
            kept.append(record)
    return kept


def _footprint(operation: Operation) -> float:
    """Bytes that one run touches; a state is read and written in place."""
    return float(np.asarray(operation.bytes)) - float(np.asarray(operation.state)) / 2.0


def _profile(
    found: Tables, sources: Sequence[Source], gpu: Gpu, records: list[dict[str, Any]], chosen: int
) -> tuple[Profile, list[fit.Report]]:
    """Fits of the points; what no point tells is carried over from the nearest calibration of ours."""
    ours = own_calibration()
    source = f"fitted on {PACKAGE} {found.release}, {found.system}"
    reports = fit.fit_classes(records, gpu, ours.turn_s, source)
    fitted = {report.name: _judged(report.model) for report in reports}
    carried = {
        name: model.model_copy(update={"carried_from": model.carried_from or ours.gpu})
        for name, model in ours.transferred(ELSEWHERE).kernels.items()
    }
    kernels = carried | fitted | fit.class_defaults(fitted)
    provenance = {
        "package": f"{PACKAGE} {found.release}",
        "publisher": "NVIDIA CORPORATION & AFFILIATES",
        "licence": "Apache-2.0",
        "system": found.system,
        "backends": ", ".join(source.backend for source in sources),
        "tables": sorted({record["source"].removeprefix(f"{PACKAGE} {found.release}, ") for record in records}),
        "points": dict(Counter(record["kernel"] for record in records)),
        "left_out": f"{chosen - len(records)} of {chosen} chosen rows, which a warm cache may have served",
        "carried_over": f"from {ours.gpu}: {', '.join(sorted(_carried(kernels)))}",
        "note": NOTE,
    }
    profile = Profile(
        name=f"{gpu.name}, {PACKAGE} {found.release}",
        status="measured",
        by="aiconfigurator",
        gpu=gpu.name,
        kernels=kernels,
        turn_s=ours.turn_s,
        host_spread=uncalibrated().host_spread,
        provenance=provenance,
        measurements=tuple(records),
    )
    return profile, reports


def _judged(model: KernelModel) -> KernelModel:
    """A fit to one hand's times, with what another hand would find in its spreads."""
    spreads = {"spread": model.spread, "spread_elsewhere": model.spread_elsewhere}
    return model.model_copy(update={name: max(value or 1.0, HANDS) for name, value in spreads.items()})


def _carried(kernels: dict[str, KernelModel]) -> list[str]:
    return [name for name, model in kernels.items() if model.carried_from]
