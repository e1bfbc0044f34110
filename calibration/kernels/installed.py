"""Attention kernels of other packages, where they are installed, on the inputs of our own.

Each adapter prepares what its engine prepares before a step (page lists, plans, workspaces) and hands back a launch
that can be captured. Nothing of a package is imported before it is asked for.

All input sets share one list of slots, relative to their own cache, and one plan: layers of a model do, too. Ours
reads a list per set, so that what the caches hold of lists and plans is in the other package's favour.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.errors import InputError

#: Where each package keeps what is measured: the first place that exists counts, newest release first.
FLASHINFER = ("flashinfer",)
SGLANG_DECODE = (
    "sglang.kernels.ops.attention.decode_attention",
    "sglang.srt.layers.attention.triton_ops.decode_attention",
)
SGLANG_EXTEND = (
    "sglang.kernels.ops.attention.extend_attention",
    "sglang.srt.layers.attention.triton_ops.extend_attention",
)
VLLM_FLASH = ("vllm.vllm_flash_attn",)
VLLM_TRITON = ("vllm.v1.attention.ops.triton_unified_attention",)
#: What is imported of each package.
PLACES = {
    "flashinfer": (FLASHINFER,),
    "sglang": (SGLANG_DECODE, SGLANG_EXTEND),
    "vllm": (VLLM_FLASH, VLLM_TRITON),
}
#: The releases whose signatures were read.
INSTALL = {
    "flashinfer": "pip install flashinfer-python==0.6.14 (it compiles its kernels: nvcc and ninja)",
    "sglang": "pip install sglang==0.5.23",
    "vllm": "pip install vllm==0.33.0 (0.26.0 serves too)",
}
#: Split results of FlashInfer; SGLang reserves as much for models with 16 or more query heads per GPU.
WORKSPACE_BYTES = 512 * 2**20
#: Query heads per KV head from which FlashInfer's decode runs on tensor cores (SGLang's rule).
TENSOR_CORE_GROUP = 4
#: Tokens a page of vLLM's caches, and segments into which its Triton attention splits a context.
PAGE, SEGMENTS = 16, 16
_SGLANG, _VLLM = (load_engine(name).attention_kernels for name in ("sglang", "vllm"))
#: How each implementation spreads its read over the GPU: as the engine definitions say, under several caps.
RULES = {
    "flashinfer": _SGLANG["flashinfer"],
    **{f"sglang_triton_{n}": _SGLANG["sglang_triton"].model_copy(update={"max_splits": n}) for n in (8, 16, 64, 128)},
    "sglang_triton_extend": _SGLANG["sglang_triton_extend"],
    **{name: _VLLM[name] for name in ("fa2", "fa2_unsplit", "triton_3d", "triton_2d")},
}

Launch = Callable[[int], object]
Caches = list[tuple[Tensor, Tensor]]


def require(packages: Iterable[str]) -> None:
    """Import what these packages are measured by. Raises `InputError` for one that is missing or does not import."""
    for package in packages:
        for places in PLACES[package]:
            _module(package, places)


def prepare(variant: str, q: Tensor, caches: Caches, slots: Tensor, *, scale: float, out: Tensor) -> Launch:
    """A launch of ``variant`` on input set i of ``caches``.

    Args:
        variant: a key of `RULES`.
        q: [batch, rows, q_heads, head_dim]; the last of the rows sees the whole list, each one before it a token less.
        caches: for every input set its K and V, [slots, kv_heads, head_dim].
        slots: [batch, context] the tokens of each sequence in the caches.
        scale: of the scores.
        out: like q; written by the launch.

    Raises `InputError` where the package or a function of it is missing, and ``RuntimeError`` where its release runs
    fewer rows so.
    """
    if variant == "flashinfer":
        return (_flashinfer_decode if q.shape[1] == 1 else _flashinfer_verify)(q, caches, slots, scale, out)
    if variant == "sglang_triton_extend":
        return _sglang_extend(q, caches, slots, scale, out)
    if variant in ("fa2", "fa2_unsplit"):
        return _vllm_flash(q, caches, slots, scale, out)
    if variant in ("triton_3d", "triton_2d"):
        return _vllm_triton(q, caches, slots, scale, out, split=variant == "triton_3d")
    return _sglang_decode(q, caches, slots, scale, out, splits=RULES[variant].max_splits)


def _module(package: str, places: tuple[str, ...]) -> Any:
    reason = ""
    for place in places:
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            reason = reason or str(error)
            if error.name is None or not place.startswith(error.name):  # it is there, and lacks something of its own
                reason = str(error)
                break
        except Exception as error:  # made for another torch, a missing library, versions that do not match
            reason = f"{type(error).__name__}: {error}"
            break
    said = (reason.splitlines() or [""])[0][:160]
    raise InputError("--kernels", f"{package} cannot be imported here ({said})", INSTALL[package])


def _attribute(package: str, places: tuple[str, ...], name: str) -> Any:
    module = _module(package, places)
    try:
        return getattr(module, name)
    except AttributeError:
        raise InputError("--kernels", f"{package} has no {name} here", INSTALL[package]) from None


def _offsets(batch: int, each: int, device: torch.device, dtype: torch.dtype = torch.int32) -> Tensor:
    """[batch + 1] where each sequence begins in a list of ``each`` entries a sequence."""
    return torch.arange(batch + 1, dtype=dtype, device=device) * each


# --- FlashInfer --------------------------------------------------------------------------------------------------


def _flashinfer_decode(q: Tensor, caches: Caches, slots: Tensor, scale: float, out: Tensor) -> Launch:
    q_heads, head_dim = q.shape[2:]
    kv_heads = caches[0][0].shape[1]
    pages, lists = _pages(slots), {}
    for name, given in zip(("indptr", "indices", "last_page_len"), pages, strict=True):
        lists[f"paged_kv_{name}_buffer"] = torch.empty_like(given)
    wrapper = _attribute("flashinfer", FLASHINFER, "BatchDecodeWithPagedKVCacheWrapper")(
        _workspace(q.device),
        "NHD",
        use_cuda_graph=True,
        use_tensor_cores=q_heads // kv_heads >= TENSOR_CORE_GROUP,
        backend="fa2",
        **lists,
    )
    types = {"q_data_type": q.dtype, "kv_data_type": caches[0][0].dtype}
    wrapper.plan(*pages, q_heads, kv_heads, head_dim, 1, sm_scale=scale, **types)
    return _flashinfer_run(wrapper, q, caches, out)


def _flashinfer_verify(q: Tensor, caches: Caches, slots: Tensor, scale: float, out: Tensor) -> Launch:
    batch, rows, q_heads, head_dim = q.shape
    kv_heads = caches[0][0].shape[1]
    queries, pages = _offsets(batch, rows, q.device), _pages(slots)
    lists = {"qo_indptr_buf": torch.empty_like(queries)}
    for name, given in zip(("indptr", "indices", "last_page_len"), pages, strict=True):
        lists[f"paged_kv_{name}_buf"] = torch.empty_like(given)
    wrapper = _attribute("flashinfer", FLASHINFER, "BatchPrefillWithPagedKVCacheWrapper")(
        _workspace(q.device), "NHD", use_cuda_graph=True, backend="fa2", **lists
    )
    types = {"q_data_type": q.dtype, "kv_data_type": caches[0][0].dtype}
    wrapper.plan(queries, *pages, q_heads, kv_heads, head_dim, 1, causal=True, sm_scale=scale, **types)
    return _flashinfer_run(wrapper, q, caches, out)


def _flashinfer_run(wrapper: Any, q: Tensor, caches: Caches, out: Tensor) -> Launch:
    queries, results = q.flatten(0, 1), out.flatten(0, 1)
    paged = [(k.unsqueeze(1), v.unsqueeze(1)) for k, v in caches]  # NHD, one token a page
    return lambda i: wrapper.run(queries, paged[i], out=results)


def _pages(slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where each sequence's pages begin, the pages, and how full its last one is: always, with one token a page."""
    batch, context = slots.shape
    full = torch.ones(batch, dtype=torch.int32, device=slots.device)
    return _offsets(batch, context, slots.device), slots.to(torch.int32).reshape(-1), full


def _workspace(device: torch.device) -> Tensor:
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


# --- SGLang ------------------------------------------------------------------------------------------------------


def _sglang_decode(q: Tensor, caches: Caches, slots: Tensor, scale: float, out: Tensor, splits: int) -> Launch:
    batch, _, q_heads, head_dim = q.shape
    context, device = slots.shape[1], q.device
    decode = _attribute("sglang", SGLANG_DECODE, "decode_attention_fwd")
    partial = torch.empty(batch, q_heads, splits, head_dim, dtype=torch.float32, device=device)
    sums = torch.empty(batch, q_heads, splits, dtype=torch.float32, device=device)
    bound = functools.partial(
        decode,
        kv_indptr=_offsets(batch, context, device),
        kv_indices=slots.to(torch.int64).reshape(-1),
        attn_logits=partial,
        attn_lse=sums,
        num_kv_splits=torch.full((batch,), splits, dtype=torch.int32, device=device),
        max_kv_splits=splits,
        sm_scale=scale,
        **_unscaled(decode),
    )
    queries, results = q.flatten(0, 1), out.flatten(0, 1)
    return lambda i: bound(q=queries, k_buffer=caches[i][0], v_buffer=caches[i][1], o=results)


def _sglang_extend(q: Tensor, caches: Caches, slots: Tensor, scale: float, out: Tensor) -> Launch:
    """The prefix comes from the cache, the rows' own keys and values as tensors, as after their projection."""
    batch, rows = q.shape[:2]
    prefix, device = slots.shape[1] - rows, q.device
    extend = _attribute("sglang", SGLANG_EXTEND, "extend_attention_fwd")
    own = slots[:, prefix:].reshape(-1).long()
    appended = [(k[own], v[own]) for k, v in caches]
    bound = functools.partial(
        extend,
        qo_indptr=_offsets(batch, rows, device, torch.int64),
        kv_indptr=_offsets(batch, prefix, device),
        kv_indices=slots[:, :prefix].to(torch.int64).reshape(-1),
        custom_mask=None,
        is_causal=True,
        mask_indptr=None,
        max_len_extend=rows,
        sm_scale=scale,
        **_unscaled(extend),
    )
    queries, results = q.flatten(0, 1), out.flatten(0, 1)

    def launch(i: int) -> object:
        (k, v), (k_own, v_own) = caches[i], appended[i]
        return bound(q_extend=queries, k_extend=k_own, v_extend=v_own, o_extend=results, k_buffer=k, v_buffer=v)

    return launch


def _unscaled(function: Any) -> dict[str, float]:
    """Scales of an 8-bit cache, which older releases do not take."""
    taken = inspect.signature(function).parameters
    return {name: 1.0 for name in ("k_scale", "v_scale") if name in taken}


# --- vLLM --------------------------------------------------------------------------------------------------------


def _vllm_flash(q: Tensor, caches: Caches, slots: Tensor, scale: float, out: Tensor) -> Launch:
    """FlashAttention-2 over pages. It splits the context where a sequence has one row, and never where it has more."""
    attend = _attribute("vllm", VLLM_FLASH, "flash_attn_varlen_func")
    paged, options = _vllm_pages(caches, slots), {"softmax_scale": scale, "causal": True, "fa_version": 2}
    bound = functools.partial(attend, **_vllm_lists(q, slots), block_table=paged.table, **options)
    queries, results = q.flatten(0, 1), out.flatten(0, 1)
    return lambda i: bound(q=queries, k=paged.caches[i][0], v=paged.caches[i][1], out=results)


def _vllm_triton(q: Tensor, caches: Caches, slots: Tensor, scale: float, out: Tensor, split: bool) -> Launch:
    """Triton's unified attention over pages, "3D" (split into segments) or "2D"."""
    attend = _attribute("vllm", VLLM_TRITON, "unified_attention")
    paged = _vllm_pages(caches, slots)
    bound = functools.partial(
        attend,
        **_vllm_lists(q, slots),
        softmax_scale=scale,
        causal=True,
        window_size=(-1, -1),
        block_table=paged.table,
        softcap=0.0,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        **(_vllm_segments(q) if split else {}),
    )
    queries, results = q.flatten(0, 1), out.flatten(0, 1)
    return lambda i: bound(q=queries, k=paged.caches[i][0], v=paged.caches[i][1], out=results)


def _vllm_segments(q: Tensor) -> dict[str, Any]:
    """Buffers of the split results. Raises ``RuntimeError`` where this release would not split so many rows.

    The engine also stops splitting from some number of sequences on; here the threshold is never reached.
    """
    batch, rows, q_heads, head_dim = q.shape
    most = getattr(_module("vllm", VLLM_TRITON), "MAX_3D_QUERY_LEN", 1)
    if rows > most:
        raise RuntimeError(f"this vLLM splits no more than {most} row(s) of a sequence")
    shape = (batch * rows, q_heads, SEGMENTS)
    padded = 1 << (head_dim - 1).bit_length()
    return {
        "seq_threshold_3D": batch * rows,
        "num_par_softmax_segments": SEGMENTS,
        "softmax_segm_output": torch.empty(*shape, padded, dtype=torch.float32, device=q.device),
        "softmax_segm_max": torch.empty(shape, dtype=torch.float32, device=q.device),
        "softmax_segm_expsum": torch.empty(shape, dtype=torch.float32, device=q.device),
    }


def _vllm_lists(q: Tensor, slots: Tensor) -> dict[str, Any]:
    """Where each sequence's rows begin, and how long it is."""
    batch, rows = q.shape[:2]
    context = slots.shape[1]
    return {
        "cu_seqlens_q": _offsets(batch, rows, q.device),
        "max_seqlen_q": rows,
        "seqused_k": torch.full((batch,), context, dtype=torch.int32, device=q.device),
        "max_seqlen_k": context,
    }


class _Pages(NamedTuple):
    """Caches of [pages, PAGE, kv_heads, head_dim], and [batch, pages of a sequence] which of them hold it."""

    caches: Caches
    table: Tensor


def _vllm_pages(caches: Caches, slots: Tensor) -> _Pages:
    """The same caches where the slots are whole pages of them; else copies of what is listed."""
    batch, context = slots.shape
    count = -(-context // PAGE)
    firsts, within = slots[:, ::PAGE], torch.arange(context, device=slots.device) % PAGE
    whole = torch.equal(slots, firsts.repeat_interleave(PAGE, 1)[:, :context] + within)
    if whole and not (firsts % PAGE).any() and len(caches[0][0]) % PAGE == 0:
        return _Pages([(_paged(k), _paged(v)) for k, v in caches], (firsts // PAGE).to(torch.int32).contiguous())
    padded = torch.cat([slots, slots[:, -1:].expand(-1, count * PAGE - context)], 1).reshape(-1).long()
    table = torch.arange(batch * count, dtype=torch.int32, device=slots.device).view(batch, count)
    return _Pages([(_paged(k[padded]), _paged(v[padded])) for k, v in caches], table)


def _paged(cache: Tensor) -> Tensor:
    return cache.view(-1, PAGE, *cache.shape[1:])
