"""Which shapes are measured: those of the catalogue's models, thinned to what three minutes allow.

A point is a kernel class, an implementation and the sizes that build it. Its key is stable, so that an interrupted run
is resumed where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from wmtp_sim.errors import InputError
from wmtp_sim.spec.model import Attention, Block, GatedDeltaNet, KimiDeltaAttention, LatentAttention, Mamba2, Model, Moe
from wmtp_sim.work.layers import Pass
from wmtp_sim.work.weights import weights_of

#: Models whose shapes stand for the catalogue: gated GQA hybrids, Mamba hybrids, MLA, dense GQA.
REPRESENTATIVE = (
    "qwen3.5-35b-a3b",
    "qwen3.5-27b",
    "nemotron-3-super-120b-a12b",
    "nemotron-3-nano-30b-a3b",
    "deepseek-v3",
    "llama-3.1-8b",
    "kimi-linear-48b-a3b",
)
#: The model that stands for all on a CPU, and how many elements a matrix may have there.
REPRESENTATIVE_ON_CPU = ("llama-3.2-1b",)
CPU_ELEMENTS = 2**25
K, M = 2**10, 2**20
#: Packages whose attention can be measured beside ours, and their variants for one row and for several.
INSTALLED = {
    "flashinfer": (("flashinfer",), ("flashinfer",)),
    "sglang": (
        ("sglang_triton_8", "sglang_triton_16", "sglang_triton_64", "sglang_triton_128"),
        ("sglang_triton_extend",),
    ),
    "vllm": (("fa2", "triton_3d"), ("fa2_unsplit", "triton_2d", "triton_3d")),
}
#: Kernels that do not split the context are measured up to here: SGLang's takes 13 ms at 128K, 104 ms at 1M (H200).
UNSPLIT, UNSPLIT_CONTEXT = ("sglang_triton_extend", "fa2_unsplit", "triton_2d"), 128 * K


@dataclass(frozen=True, order=True)
class Point:
    """One kernel at one shape. ``sizes`` are (name, value) pairs that the case of its kernel understands."""

    kernel: str
    variant: str
    sizes: tuple[tuple[str, int], ...]

    @property
    def key(self) -> str:
        shape = ",".join(f"{name}={value}" for name, value in self.sizes)
        return f"{self.kernel}.{self.variant}[{shape}]"

    def __getitem__(self, name: str) -> int:
        return dict(self.sizes)[name]


def point(kernel: str, variant: str, **sizes: int) -> Point:
    return Point(kernel, variant, tuple(sizes.items()))


def work(
    batch: float, rows: float = 1.0, attended: float = 0.0, kv_bytes: float = 2.0, state_writes: float = 1.0
) -> Pass:
    """The pass that a point stands for, over ``attended`` cached tokens; recurrent states are float32."""
    return Pass(batch, rows, attended, kv_bytes, state_bytes=4.0, state_writes=state_writes)


def latent_attention(heads: int, latent: int = 512, rope: int = 64) -> LatentAttention:
    """So many of DeepSeek-V3's heads, which stand for all absorbed attention."""
    ranks, dims = {"q_lora_rank": 1536, "kv_lora_rank": latent}, {"qk_nope_head_dim": 128, "qk_rope_head_dim": rope}
    return LatentAttention(heads=heads, **ranks, **dims, v_head_dim=128)


def plan(models: Iterable[Model], quick: bool = False, kernels: Iterable[str] = ()) -> list[Point]:
    """All points for these models, small ones first within each kernel, without repetition.

    ``kernels`` names packages whose attention is measured beside ours. Raises `InputError` for an unknown one.
    """
    models = list(models)
    attentions = list(_attentions(models, quick))
    found = [*_floors(quick), *_gemms(models, quick), *attentions, *beside(attentions, kernels)]
    found += _latents(models, quick)
    found += [*_experts(models, quick), *_recurrences(models, quick), *_rows(models, quick)]
    return list(dict.fromkeys(found))


def cpu_plan(models: Iterable[Model], quick: bool = False) -> list[Point]:
    """At most 30 points that torch's own CPU operators measure in seconds, at these models' small shapes.

    They exercise the whole loop where there is no GPU. What has no plain operator (experts, recurrences) is left out.
    """
    models = list(models)
    shapes = sorted({shape for shape in _dense_shapes(models) if math.prod(shape) <= CPU_ELEMENTS}, key=math.prod)
    found = [point("elementwise", "empty", rows=1)]
    found += [point("copy", "torch", kib=kib) for kib in (8 * K, 16 * K, 32 * K, 64 * K)]
    for k, n in shapes[:: max(1, math.ceil(len(shapes) / (2 if quick else 4)))][:3]:
        found += [point("gemm", "torch", k=k, n=n, rows=rows) for rows in (1, 8)]
    for q_heads, kv_heads, head_dim in _heads(models)[:1]:
        head = {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim}
        for context in (K, 4 * K) if quick else (K, 4 * K, 16 * K):
            found += [point("attention", "torch", **head, context=context, rows=rows, batch=1) for rows in (1, 4)]
    for hidden in sorted({model.hidden for model in models})[:1]:
        for rows in (1, 8, 64, 256):
            found += [point("elementwise", kind, hidden=hidden, rows=rows) for kind in ("norm", "act")]
    for vocab in sorted({model.vocab for model in models})[:1]:
        found += [point("sample", "argmax", vocab=vocab, rows=rows) for rows in (1, 2, 4, 8)]
    return list(dict.fromkeys(found))


def _blocks(models: Iterable[Model]) -> Iterator[tuple[Model, Block]]:
    for model in models:
        for block in (*model.blocks, *(model.mtp.blocks if model.mtp else ())):
            yield model, block


def _mixers(models: Iterable[Model], *kinds: type) -> set[Any]:
    """Every distinct mixer of some kinds; an attention over a window is none of its own."""
    mixers = (mixer for _, block in _blocks(models) for mixer in block.mixers if isinstance(mixer, kinds))
    return {mixer for mixer in mixers if not (isinstance(mixer, Attention) and mixer.window is not None)}


def _heads(models: Iterable[Model]) -> list[tuple[int, int, int]]:
    """Query heads, KV heads and head size of every attention."""
    return sorted({(m.q_heads, m.kv_heads, m.head_dim) for m in _mixers(models, Attention)})


def _floors(quick: bool) -> Iterator[Point]:
    """What a launch costs, copies, and index builders."""
    yield point("elementwise", "empty", rows=1)
    for kib in (8, 2 * K, 32 * K, 512 * K) if quick else tuple(2**i for i in range(3, 21)):
        yield point("copy", "torch", kib=kib)
    for context in (32 * K, M) if quick else (8 * K, 32 * K, 128 * K, 512 * K, M):
        yield point("index_build", "serial", context=context, steps=3, block=128)
        yield point("index_build", "parallel", context=context, steps=3, block=512)


def _gemms(models: list[Model], quick: bool) -> Iterator[Point]:
    """Every distinct dense matrix at one and eight rows, every third up to where FLOPs bind; vocabulary matrices."""
    shapes = sorted(set(_dense_shapes(models)), key=lambda shape: shape[0] * shape[1])
    shapes = shapes[::4] if quick else shapes
    for i, (k, n) in enumerate(shapes):
        rows = [1, 8] if i % 3 else [1, 4, 8, 16, 64, 256, 1024]
        for r in rows[:2] if quick else rows:
            yield point("gemm", "cublas", k=k, n=n, rows=r)
        if i % 5 == 0 and k % 16 == 0 and n % 16 == 0:
            for r in (8,) if quick else (8, 64, 256):
                yield point("gemm", "cublas_fp8", k=k, n=n, rows=r)


def _dense_shapes(models: list[Model]) -> Iterator[tuple[int, int]]:
    for model, block in _blocks(models):
        for part in (*block.mixers, *block.channels):
            for matrix in weights_of(part, model.hidden).matrices:
                if matrix.copies == 1 and matrix.n >= 16:
                    yield matrix.k, matrix.n
    for model in models:
        yield model.hidden, model.vocab
        for joined in model.mtp.projections(model.hidden) if model.mtp else ():
            yield joined.k, joined.n


def _attentions(models: list[Model], quick: bool) -> Iterator[Point]:
    """Each head geometry from 1K to 1M tokens, narrow and verify; a few batches; every other one over an fp8 cache."""
    shapes = _heads(models)
    contexts = (4 * K, 128 * K, M) if quick else tuple(2**i * K for i in range(11))
    for i, (q_heads, kv_heads, head_dim) in enumerate(shapes[::2] if quick else shapes):
        head = {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim}
        for context in contexts:
            for rows in (1, 7) if quick else (1, 2, 4, 7) if context in contexts[::2] else (1, 4, 7):
                yield point("attention", "triton_packed", **head, context=context, rows=rows, batch=1)
        for batch, context in () if quick else ((4, 32 * K), (16, 8 * K), (16, 64 * K)):
            for rows in (1, 4):
                yield point("attention", "triton_packed", **head, context=context, rows=rows, batch=batch)
        for context in () if quick or i % 2 else contexts[::2]:
            for rows in (1, 4):
                yield point("attention", "triton_packed", **head, context=context, rows=rows, batch=1, kv_bytes=1)


def beside(attentions: Iterable[Point], kernels: Iterable[str]) -> Iterator[Point]:
    """The same attention shapes, over caches of two bytes an element, for the kernels of other packages."""
    kernels, attentions = list(kernels), [ours for ours in attentions if "kv_bytes" not in dict(ours.sizes)]
    for name in kernels:
        if name not in INSTALLED:
            raise InputError("--kernels", f"{name[:40]!r} is not known", " or ".join(INSTALLED))
    for name in kernels:
        for ours in attentions:
            for variant in INSTALLED[name][ours["rows"] > 1]:
                if variant not in UNSPLIT or ours["context"] <= UNSPLIT_CONTEXT:
                    yield Point("attention", variant, ours.sizes)


def _latents(models: list[Model], quick: bool) -> Iterator[Point]:
    for heads in sorted({m.heads for m in _mixers(models, LatentAttention)})[:: 2 if quick else 1]:
        for context in (4 * K, 128 * K) if quick else tuple(2**i * K for i in range(1, 10)):
            for rows in (1, 4) if quick else (1, 2, 4, 7):
                yield point("mla", "triton_packed", heads=heads, context=context, rows=rows, batch=1)
        if not quick:
            yield point("mla", "triton_packed", heads=heads, context=8 * K, rows=1, batch=16)


def _experts(models: list[Model], quick: bool) -> Iterator[Point]:
    """Each MoE layer at decode and verify widths."""
    layers = {(c, model.hidden) for model, block in _blocks(models) for c in block.channels if isinstance(c, Moe)}
    for moe, hidden in sorted(layers, key=lambda pair: (pair[0].experts, pair[0].inner))[:: 2 if quick else 1]:
        for rows in (1, 8) if quick else (1, 2, 4, 7, 8, 16, 32, 64, 128, 256, 512):
            width = moe.latent or hidden
            sizes = {"experts": moe.experts, "top_k": moe.top_k, "inner": moe.inner, "width": width}
            yield point("moe", "grouped", **sizes, gated=int(moe.gated), rows=rows)


def _recurrences(models: list[Model], quick: bool) -> Iterator[Point]:
    for mixer in sorted(_mixers(models, GatedDeltaNet, KimiDeltaAttention, Mamba2), key=repr):
        sizes = {name: int(value) for name, value in mixer if name != "kind"}
        for batch, rows in ((1, 1), (1, 7)) if quick else tuple((b, r) for b in (1, 2, 4, 8, 16) for r in (1, 2, 4, 7)):
            yield point("recurrent", mixer.kind, **sizes, batch=batch, rows=rows)


def _rows(models: list[Model], quick: bool) -> Iterator[Point]:
    """Small kernels over rows, and sampling over vocabularies."""
    for hidden in sorted({model.hidden for model in models})[:: 3 if quick else 1]:
        for rows in (1, 8) if quick else (1, 8, 64):
            yield point("elementwise", "norm", hidden=hidden, rows=rows)
            yield point("elementwise", "act", hidden=hidden, rows=rows)
    for vocab in sorted({model.vocab for model in models})[:: 3 if quick else 1]:
        for rows in (1, 8) if quick else (1, 2, 4, 8, 16):
            yield point("sample", "argmax", vocab=vocab, rows=rows)
