"""Rows of the tables that NVIDIA publishes in ``aiconfigurator-core``, as points: which are taken, and what they are.

Each chosen row becomes a point with the very `Operation` that the cost model counts for its shape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibration.fit import operation_numbers
from calibration.plan import latent_attention, work
from calibration.tables import PACKAGE, Row, Table, Tables, number, numbers, seconds, word
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.spec import model as spec
from wmtp_sim.spec.parallel import Layout
from wmtp_sim.spec.precision import KV_BYTES, GroupFormats
from wmtp_sim.step.serving import split_attention
from wmtp_sim.work import collectives, layers
from wmtp_sim.work.operation import Operation
from wmtp_sim.work.weights import Matrix

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
    *((q_heads, kv_heads, 256) for q_heads, kv_heads in ((16, 2), (24, 4), (32, 2), (8, 1))),
    *((q_heads, kv_heads, 128) for q_heads, kv_heads in ((32, 2), (64, 2), (32, 4), (64, 4), (8, 1))),
    *((q_heads, 8, 128) for q_heads in (32, 48, 64, 96)),
    *((q_heads, kv_heads, 64) for q_heads, kv_heads in ((64, 8), (8, 1))),
)
#: Heads whose fp8 caches are taken too.
FP8_HEADS = ((16, 2, 256), (32, 2, 256), (32, 2, 128), (32, 8, 128), (64, 8, 128), (64, 8, 64), (8, 1, 128))
CONTEXTS = (128, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
BATCHES = (1, 8, 64)
#: Windowed rows of one context, longer than any window of the tables; a window's read does not depend on it.
WINDOWED_CONTEXT = 16384
MLA_HEADS = (8, 16, 32, 64, 128)
#: Inputs of dense products -> their outputs; and their rows.
OUTPUTS = {
    512: (2048,),
    1024: (4096,),
    2048: (64, 512, 1024, 2048, 4096, 8192, 12288, 65536),
    3072: (3072, 8192),
    4096: (512, 2048, 4096, 6144, 12288, 65536),
    5120: (5120, 16384),
    6144: (5120,),
    7168: (2048, 4096, 16384),
    8192: (1024, 4096, 10240),
    12288: (4096,),
    16384: (7168,),
}
PRODUCTS = tuple((k, n) for k, outputs in OUTPUTS.items() for n in outputs)
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


@dataclass(frozen=True)
class Source:
    """Where rows come from: the tables, and the backend whose table is read."""

    tables: Tables
    backend: str

    def read(self, family: str, operator: str, **wanted: Iterable[Any]) -> Table:
        """Rows of an operator as `Tables.read` finds them; none where there is no such table."""
        return self.tables.read(family, self.backend, operator, **wanted) or Table("", ())

    def named(self, table: Table, kernel: str) -> str:
        return f"{PACKAGE} {self.tables.release}, {self.backend} {table.version}, {kernel}"[:160]


# --- rows to points ----------------------------------------------------------------------------------------------


def records(sources: Sequence[Source]) -> Iterator[dict[str, Any]]:
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


#: Numbers that an operation has where nothing is said.
_PLAIN = operation_numbers(Operation("", "gemm"))


def _point(operation: Operation, variant: str, sizes: dict[str, Any], time: float, source: str) -> dict[str, Any]:
    """A point as a calibration keeps it; numbers of the operation that are as by default are left out."""
    given = operation_numbers(operation)
    shape = ",".join(f"{name}={value}" for name, value in sizes.items())
    return {
        "key": f"{operation.kernel}.{variant}[{shape}]",
        "kernel": operation.kernel,
        "variant": variant,
        "sizes": sizes,
        "operation": {
            name: value for name, value in given.items() if name in ("math", "geometry") or value != _PLAIN[name]
        },
        "seconds": time,
        "source": source,
    }


def _cache_format(row: Row) -> str | None:
    """Our name of a cache's format, where both it and the arithmetic are ones that we price."""
    stated = {"bfloat16": "bf16", "float16": "bf16", "fp8": "fp8"}
    return stated.get(word(row, "kv_cache_dtype"))


def _attention(source: Source) -> Iterator[dict[str, Any]]:
    """One query row per sequence that attends ``step`` cached tokens and itself, or its window of them."""
    table = source.read("attention", "generation_attention", batch_size=BATCHES, step=[c - 1 for c in CONTEXTS])
    for row in table.rows:
        q_heads, kv_heads, head_dim = heads = numbers(row, "num_heads", "num_key_value_heads", "head_dim")
        kernel, cache, window = word(row, "kernel_source"), _cache_format(row), number(row, "window_size", 0)
        context, batch = number(row, "step") + 1, number(row, "batch_size")
        if kernel not in ATTENTION or cache is None or heads not in (HEADS if cache == "bf16" else FP8_HEADS):
            continue
        if window and (context != WINDOWED_CONTEXT or window >= context):
            continue
        engine, name = ATTENTION[kernel]
        rule = load_engine(engine).attention_kernels[name]
        head = {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim}
        mixer = spec.Attention(**head, v_head_dim=head_dim, window=window or None)
        (operation,) = layers.attention(mixer, work(batch, attended=context - 1, kv_bytes=KV_BYTES[cache]))
        operation = split_attention(operation, rule)
        sizes = {
            **head,
            "window": window,
            "context": context,
            "batch": batch,
            "rows": 1,
            "kv_bytes": int(KV_BYTES[cache]),
        }
        variant = f"{name}_{rule.max_splits}" if rule.max_splits else name
        yield _point(operation, variant, sizes, seconds(row), source.named(table, kernel))


def _mla(source: Source) -> Iterator[dict[str, Any]]:
    """Absorbed latent attention alone, without the projections around it."""
    table = source.read("mla", "generation_mla", batch_size=BATCHES, step=[c - 1 for c in CONTEXTS])
    for row in table.rows:
        kernel, cache, heads = word(row, "kernel_source"), _cache_format(row), number(row, "num_heads")
        if kernel not in MLA or cache is None or heads not in MLA_HEADS or word(row, "mla_dtype") != "bfloat16":
            continue
        context, batch = number(row, "step") + 1, number(row, "batch_size")
        shape = work(batch, attended=context - 1, kv_bytes=KV_BYTES[cache])
        (operation,) = layers.latent_attention(latent_attention(heads), shape)
        sizes = {"heads": heads, "context": context, "batch": batch, "rows": 1, "kv_bytes": int(KV_BYTES[cache])}
        yield _point(operation, MLA[kernel], sizes, seconds(row), source.named(table, kernel))


def _products(source: Source) -> Iterator[dict[str, Any]]:
    """Dense products. Of two kernels for one of our formats, the first in `FORMATS` counts."""
    table = source.read("gemm", "gemm", m=PRODUCT_ROWS, gemm_dtype=FORMATS)
    for row, fmt in _in_our_formats(table.rows, "gemm_dtype", FORMATS, ("k", "n")):
        k, n, rows = numbers(row, "k", "n", "m")
        if (k, n) not in PRODUCTS:
            continue
        operation = layers.gemm(Matrix("published", k, n, "attention"), work(1, rows), GroupFormats(attention=fmt))
        name = source.named(table, word(row, "kernel_source"))
        yield _point(operation, fmt, {"k": k, "n": n, "rows": rows}, seconds(row), name)


def _experts(source: Source) -> Iterator[dict[str, Any]]:
    """Routed experts under balanced routing: no expert twice before each was touched once."""
    wanted = {"num_tokens": EXPERT_TOKENS, "moe_tp_size": EXPERT_RANKS, "moe_dtype": EXPERT_FORMATS}
    table = source.read("moe", "moe", **wanted, distribution=["balanced"], moe_ep_size=[1])
    shape_columns = ("hidden_size", "inter_size", "topk", "num_experts")
    for row, fmt in _in_our_formats(table.rows, "moe_dtype", EXPERT_FORMATS, shape_columns):
        width, inner, top_k, experts = shape = numbers(row, *shape_columns)
        tokens, ranks, kernel = number(row, "num_tokens"), number(row, "moe_tp_size"), word(row, "kernel_source")
        if shape not in EXPERTS or (not EXPERTS[shape] and not any(name in kernel for name in UNGATED_KERNELS)):
            continue
        layer = spec.Moe(experts=experts, top_k=top_k, inner=inner, gated=EXPERTS[shape])
        operation = layers.experts(
            layer, replace(work(1, tokens), layout=Layout(ranks)), width, GroupFormats(expert=fmt)
        )
        one = float(np.asarray(operation.weights)) / float(np.asarray(layers.expert_union(layer, 1, tokens, 0.0)))
        operation = replace(operation, weights=one * min(experts, tokens * top_k))
        sizes = {"experts": experts, "top_k": top_k, "inner": inner, "width": width, "rows": tokens, "ranks": ranks}
        yield _point(operation, fmt, sizes, seconds(row), source.named(table, kernel))


def _in_our_formats(
    rows: Sequence[Row], column: str, formats: dict[str, str], shape: Sequence[str]
) -> Iterator[tuple[Row, str]]:
    """Rows with our format's name; where several of theirs are one of ours at a shape, the first of ``formats``.

    Two formats of one width (mxfp4 with 8 or 16 bits of activations) are one geometry here, and so the first counts.
    """
    order = {name: i for i, name in enumerate(formats)}
    best: dict[tuple[int, ...], dict[float, int]] = defaultdict(dict)
    stated = [(row, word(row, column), numbers(row, *shape)) for row in rows]
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
        table = source.read(family, kind, phase=["generation"], batch_size=STATE_BATCHES)
        times: dict[tuple[int, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in table.rows:
            if numbers(row, "head_k_dim", "head_v_dim", "seq_len") != (128, 128, 1):
                continue
            shape = numbers(row, "num_k_heads", "num_v_heads", "batch_size")
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
            (operation,) = layers.recurrent(mixer, work(batch))
            time = float(np.median(kernels[convolutions[0]]) + np.median(kernels[rules[0]]))
            sizes = {"k_heads": k_heads, "v_heads": v_heads, "batch": batch, "rows": 1}
            name = source.named(table, f"{convolutions[0]} + {rules[0]}")
            yield _point(operation, kind, sizes, time, name)


def _collectives(source: Source) -> Iterator[dict[str, Any]]:
    """All-reduces inside CUDA graphs. ``message_size`` counts elements: NCCL's half takes twice what its int8 does."""
    table = source.read("comm", "custom_allreduce", message_size=REDUCED, num_gpus=RANKS)
    for row in table.rows:
        kernel, ranks, elements = word(row, "kernel_source"), number(row, "num_gpus"), number(row, "message_size")
        if kernel.endswith("eager") or ranks not in RANKS or elements not in REDUCED:
            continue
        operation = collectives.all_reduce(2.0 * elements, ranks)
        sizes = {"ranks": ranks, "bytes": 2 * elements}
        yield _point(operation, "all_reduce", sizes, seconds(row), source.named(table, kernel))


def _nccl(source: Source) -> Iterator[dict[str, Any]]:
    """All-gathers, reduce-scatters and all-to-alls by NCCL alone; its newest table, whichever version is pinned.

    ``message_size`` counts elements, of the larger of a rank's two buffers, as NCCL's own tests do. Elements: an
    all-gather over eight H200s takes 725 us for 2^28 of int8 and 726 us for 2^27 halves. The larger buffer: for 2^28
    halves each of them then sends 470 MB in 1,395 us, 0.34 of its link's 0.45 TB/s; if it were each rank's part, 2.7
    TB/s. Reduce-scatters take 1,393 us and all-to-alls 1,510.
    """
    nccl = Source(replace(source.tables, version=None), "nccl")
    table = nccl.read("comm", "nccl", message_size=GATHERED, num_gpus=RANKS, nccl_dtype=["half"])
    for row in table.rows:
        name, ranks, elements = word(row, "op_name"), number(row, "num_gpus"), number(row, "message_size")
        if name not in NCCL or ranks not in RANKS or elements not in GATHERED or word(row, "nccl_dtype") != "half":
            continue
        operation = NCCL[name](2.0 * elements, ranks)
        sizes = {"ranks": ranks, "bytes": 2 * elements}
        yield _point(operation, operation.variant, sizes, seconds(row), nccl.named(table, name))


def _deepep(source: Source) -> Iterator[dict[str, Any]]:
    """DeepEP's low-latency dispatch and combine among the GPUs of one node, as an engine's tables have them.

    The bytes are DeepEP's own count: a row's bandwidth times its time is ``tokens * top_k`` copies of what
    `collectives.dispatch` and `combine` count for one, to the byte, in all 1,056 rows of 0.12.0. How many ranks sent
    them is not stated: those of a node, of which GB200 and GB300 have four GPUs each.
    """
    table = source.read("comm", "wideep_deepep_ll", node_num=[1], num_token=SENT_TOKENS)
    ranks = NODE_GPUS.get(source.tables.system, 8)
    for row in table.rows:
        tokens, hidden, top_k, experts = numbers(row, "num_token", "hidden_size", "num_topk", "num_experts")
        if tokens not in SENT_TOKENS or experts < FEWEST_EXPERTS or number(row, "node_num") != 1:
            continue
        for name, build in (("dispatch", collectives.dispatch), ("combine", collectives.combine)):
            sizes = {
                "sent": name,
                "ranks": ranks,
                "tokens": tokens,
                "hidden": hidden,
                "top_k": top_k,
                "experts": experts,
            }
            time, label = seconds(row, f"{name}_avg_t_us", 1e6), source.named(table, "DeepEP low latency")
            yield _point(build(tokens, top_k, hidden, ranks), "deepep", sizes, time, label)
