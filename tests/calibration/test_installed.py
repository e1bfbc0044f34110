"""Other packages' attention beside ours: stand-ins with their very signatures, in plain torch, judge what they get."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from calibration import calibrate, cases, compare_installed, sweep_vllm  # noqa: E402
from calibration.kernels import installed, references  # noqa: E402
from calibration.plan import INSTALLED, REPRESENTATIVE, plan, point  # noqa: E402
from wmtp_sim.catalog.models import load_model  # noqa: E402
from wmtp_sim.cli import calibrate as command  # noqa: E402
from wmtp_sim.errors import InputError  # noqa: E402

CPU = torch.device("cpu")
HERE = cases.Device(CPU, 0, 2**30, 4)
BF16, I32, I64 = torch.bfloat16, torch.int32, torch.int64
MODELS = [load_model(name) for name in REPRESENTATIVE]
VARIANTS = [(variant, rows) for pair in INSTALLED.values() for i, rows in enumerate((1, 3)) for variant in pair[i]]


def softmax(q: Any, k: Any, v: Any, scale: float, seen: Any) -> Any:
    """[rows, q_heads, dim] over [tokens, kv_heads, dim]; row r sees the first seen[r] tokens."""
    out = torch.empty(q.shape, dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for row in range(q.shape[0]):
        for head in range(q.shape[1]):
            keys, values = (cache[: seen[row], head // group].double() for cache in (k, v))
            out[row, head] = torch.softmax(keys @ q[row, head].double() * scale, 0) @ values
    return out


# --- stand-ins ---------------------------------------------------------------------------------------------------


class PagedWrapper:
    """What both FlashInfer wrappers of 0.6.14 demand and do in their CUDA-graph mode."""

    made: list[PagedWrapper]

    def begin(self, workspace: Any, layout: str, graph: bool, backend: str, *buffers: Any) -> None:
        assert workspace.dtype == torch.uint8
        assert not workspace.any()
        assert (layout, graph, backend) == ("NHD", True, "fa2")
        assert all(torch.is_tensor(buffer) and buffer.dtype == I32 for buffer in buffers)
        self.indptr, self.indices, self.last = buffers[-3:]
        assert len(self.indptr) == len(self.last) + 1
        self.planned, self.runs = False, 0
        type(self).made.append(self)

    def planning(self, indptr: Any, indices: Any, last: Any, page_size: int, types: tuple[Any, Any]) -> None:
        for given, buffer in ((indptr, self.indptr), (indices, self.indices), (last, self.last)):
            assert given.dtype == I32
            assert given.dim() == 1
            buffer[: len(given)].copy_(given)
        assert page_size == 1
        assert indptr[0] == 0
        assert indptr[-1] == len(indices)
        assert last.tolist() == [1] * (len(indptr) - 1)
        assert types == (BF16, BF16)
        self.planned = True

    def attend(self, q: Any, paged: Any, out: Any, rows: list[int]) -> Any:
        assert self.planned
        self.runs += 1
        assert q.dtype == out.dtype == BF16
        assert q.shape == out.shape == (sum(rows), *self.heads_of_q)
        k, v = paged
        assert k.shape[1:] == v.shape[1:] == (1, *self.heads_of_kv)
        begin = 0
        for b, count in enumerate(rows):
            listed = self.indices[self.indptr[b] : self.indptr[b + 1]].long()
            tokens = len(listed)
            seen = [tokens - count + 1 + row for row in range(count)] if self.causal else [tokens] * count
            one = q[begin : begin + count]
            out[begin : begin + count] = softmax(one, k[listed, 0], v[listed, 0], self.scale, seen).to(BF16)
            begin += count
        return out


class Decode(PagedWrapper):
    made: list[PagedWrapper] = []  # noqa: RUF012

    def __init__(
        self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, use_tensor_cores=False,
        paged_kv_indptr_buffer=None, paged_kv_indices_buffer=None, paged_kv_last_page_len_buffer=None,
        backend="auto", jit_args=None,
    ) -> None:  # fmt: skip
        lists = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        self.begin(float_workspace_buffer, kv_layout, use_cuda_graph, backend, *lists)
        self.tensor_cores = use_tensor_cores

    def plan(
        self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size,
        pos_encoding_mode="NONE", window_left=-1, logits_soft_cap=None, q_data_type="float16", kv_data_type=None,
        o_data_type=None, data_type=None, sm_scale=None, rope_scale=None, rope_theta=None, non_blocking=True,
        block_tables=None, seq_lens=None, fixed_split_size=None, disable_split_kv=False, q_len_per_req=1,
    ) -> None:  # fmt: skip
        assert self.tensor_cores == (num_qo_heads // num_kv_heads >= 4)
        self.heads_of_q, self.heads_of_kv = (num_qo_heads, head_dim), (num_kv_heads, head_dim)
        self.scale, self.causal = sm_scale, False
        self.planning(indptr, indices, last_page_len, page_size, (q_data_type, kv_data_type))

    def run(self, q, paged_kv_cache, *args, out=None, lse=None, return_lse=False, enable_pdl=None):
        return self.attend(q, paged_kv_cache, out, [1] * len(self.last))


class Prefill(PagedWrapper):
    made: list[PagedWrapper] = []  # noqa: RUF012

    def __init__(
        self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, qo_indptr_buf=None,
        paged_kv_indptr_buf=None, paged_kv_indices_buf=None, paged_kv_last_page_len_buf=None, custom_mask_buf=None,
        mask_indptr_buf=None, backend="auto", jit_args=None, jit_kwargs=None,
    ) -> None:  # fmt: skip
        lists = (qo_indptr_buf, paged_kv_indptr_buf, paged_kv_indices_buf, paged_kv_last_page_len_buf)
        self.begin(float_workspace_buffer, kv_layout, use_cuda_graph, backend, *lists)
        self.queries = qo_indptr_buf

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
        head_dim_qk, page_size, head_dim_vo=None, custom_mask=None, packed_custom_mask=None, causal=False,
        pos_encoding_mode="NONE", use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None,
        rope_scale=None, rope_theta=None, q_data_type="float16", kv_data_type=None, o_data_type=None,
        non_blocking=True,
    ) -> None:  # fmt: skip
        assert qo_indptr.dtype == I32
        self.queries.copy_(qo_indptr)
        self.heads_of_q, self.heads_of_kv = (num_qo_heads, head_dim_qk), (num_kv_heads, head_dim_qk)
        self.scale, self.causal = sm_scale, causal
        lists = (paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        self.planning(*lists, page_size, (q_data_type, kv_data_type))

    def run(self, q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None):
        return self.attend(q, paged_kv_cache, out, self.queries.diff().tolist())


def decode_attention_fwd(
    q, k_buffer, v_buffer, o, kv_indptr, kv_indices, attn_logits, attn_lse, num_kv_splits, max_kv_splits, sm_scale,
    k_scale, v_scale, logit_cap=0.0, sinks=None, xai_temperature_len=-1, has_mla=False, use_pdl=False, page_size=1,
):  # fmt: skip
    batch, heads, dim = q.shape
    assert attn_logits.shape == (batch, heads, max_kv_splits, dim)
    assert attn_lse.shape == (batch, heads, max_kv_splits)
    assert attn_logits.dtype == attn_lse.dtype == torch.float32
    assert num_kv_splits.tolist() == [max_kv_splits] * batch
    assert (num_kv_splits.dtype, kv_indptr.dtype, kv_indices.dtype) == (I32, I32, I64)
    assert (k_scale, v_scale) == (1.0, 1.0)
    for b in range(batch):
        listed = kv_indices[kv_indptr[b] : kv_indptr[b + 1]]
        o[b] = softmax(q[b : b + 1], k_buffer[listed], v_buffer[listed], sm_scale, [len(listed)])[0].to(o.dtype)


def older_decode_attention_fwd(
    q, k_buffer, v_buffer, o, kv_indptr, kv_indices, attn_logits, attn_lse, num_kv_splits, max_kv_splits, sm_scale,
    logit_cap=0.0, sinks=None, xai_temperature_len=-1,
):  # fmt: skip
    given = (q, k_buffer, v_buffer, o, kv_indptr, kv_indices, attn_logits, attn_lse, num_kv_splits, max_kv_splits)
    decode_attention_fwd(*given, sm_scale, 1.0, 1.0)


def extend_attention_fwd(
    q_extend, k_extend, v_extend, o_extend, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, custom_mask,
    is_causal, mask_indptr, max_len_extend, k_scale, v_scale, sm_scale=None, logit_cap=0.0,
    skip_prefix_custom_mask=True, sliding_window_size=-1, sinks=None,
):  # fmt: skip
    assert (custom_mask, mask_indptr, is_causal) == (None, None, True)
    assert (qo_indptr.dtype, kv_indptr.dtype, kv_indices.dtype) == (I64, I32, I64)
    assert (k_scale, v_scale) == (1.0, 1.0)
    assert all(t.is_contiguous() for t in (q_extend, k_extend, v_extend, o_extend))
    assert len(q_extend) == len(k_extend) == len(v_extend) == len(o_extend) == qo_indptr[-1]
    for b in range(len(qo_indptr) - 1):
        rows = slice(int(qo_indptr[b]), int(qo_indptr[b + 1]))
        count = rows.stop - rows.start
        assert count <= max_len_extend
        prefix = kv_indices[kv_indptr[b] : kv_indptr[b + 1]]
        k, v = (torch.cat([c[prefix], own[rows]]) for c, own in ((k_buffer, k_extend), (v_buffer, v_extend)))
        seen = [len(prefix) + row + 1 for row in range(count)]
        o_extend[rows] = softmax(q_extend[rows], k, v, sm_scale, seen).to(o_extend.dtype)


def paged_attention(q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, scale, block_table) -> None:
    """Each sequence through its pages, causal at its end."""
    batch = len(seqused_k)
    assert k.shape == v.shape
    assert k.shape[1] == installed.PAGE
    assert {t.dtype for t in (cu_seqlens_q, seqused_k, block_table)} == {I32}
    assert cu_seqlens_q.tolist() == [max_seqlen_q * i for i in range(batch + 1)]
    assert max_seqlen_k == int(seqused_k.max())
    assert block_table.shape == (batch, -(-max_seqlen_k // installed.PAGE))
    for b, context in enumerate(seqused_k.tolist()):
        rows = slice(int(cu_seqlens_q[b]), int(cu_seqlens_q[b + 1]))
        keys, values = (cache[block_table[b].long()].flatten(0, 1) for cache in (k, v))
        seen = [context - max_seqlen_q + 1 + row for row in range(max_seqlen_q)]
        out[rows] = softmax(q[rows], keys, values, scale, seen).to(out.dtype)


def flash_attn_varlen_func(
    q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None, q_v=None, dropout_p=0.0,
    softmax_scale=None, causal=False, window_size=None, softcap=0.0, alibi_slopes=None, deterministic=False,
    return_attn_probs=False, block_table=None, return_softmax_lse=False, out=None, scheduler_metadata=None,
    q_descale=None, k_descale=None, v_descale=None, num_splits=0, output_scale=None, fa_version=3, s_aux=None,
):  # fmt: skip
    assert (causal, fa_version, num_splits, cu_seqlens_k) == (True, 2, 0, None)
    lists = (cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k)
    paged_attention(q, k, v, out, *lists, softmax_scale, block_table)


class Unified:
    """`unified_attention` of vLLM 0.33.0, and which grid it chose."""

    chosen: list[str]

    def __call__(
        self, q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size,
        block_table, softcap, q_descale, k_descale, v_descale, seq_threshold_3D=None, num_par_softmax_segments=None,
        softmax_segm_output=None, softmax_segm_max=None, softmax_segm_expsum=None, alibi_slopes=None,
    ) -> None:  # fmt: skip
        assert (causal, window_size, softcap) == (True, (-1, -1), 0.0)
        self.chosen.append("2d" if seq_threshold_3D is None else "3d")
        if seq_threshold_3D is not None:
            assert num_par_softmax_segments == 16
            assert softmax_segm_output.shape[:3] == softmax_segm_max.shape == (*q.shape[:2], 16)
            assert softmax_segm_max.shape == softmax_segm_expsum.shape
            blocks = -(-max_seqlen_q // max(1, 16 // (q.shape[1] // k.shape[2])))
            assert len(seqused_k) * blocks <= seq_threshold_3D
        lists = (cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k)
        paged_attention(q, k, v, out, *lists, softmax_scale, block_table)


def module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> ModuleType:
    parts = name.split(".")
    for i in range(1, len(parts)):
        if ".".join(parts[:i]) not in sys.modules:
            parent = ModuleType(".".join(parts[:i]))
            parent.__path__ = []
            monkeypatch.setitem(sys.modules, parent.__name__, parent)
    made = ModuleType(name)
    vars(made).update(members)
    monkeypatch.setitem(sys.modules, name, made)
    return made


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """All packages, as installed."""
    monkeypatch.setattr(installed, "WORKSPACE_BYTES", 1024)
    Decode.made, Prefill.made = [], []
    wrappers = {"BatchDecodeWithPagedKVCacheWrapper": Decode, "BatchPrefillWithPagedKVCacheWrapper": Prefill}
    module(monkeypatch, "flashinfer", **wrappers)
    module(monkeypatch, installed.SGLANG_DECODE[0], decode_attention_fwd=decode_attention_fwd)
    module(monkeypatch, installed.SGLANG_EXTEND[0], extend_attention_fwd=extend_attention_fwd)
    Unified.chosen = []
    module(monkeypatch, installed.VLLM_FLASH[0], flash_attn_varlen_func=flash_attn_varlen_func)
    module(monkeypatch, installed.VLLM_TRITON[0], unified_attention=Unified(), MAX_3D_QUERY_LEN=8)


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in INSTALLED:
        monkeypatch.setitem(sys.modules, name, None)


# --- adapters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variant", "rows"), VARIANTS)
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_every_adapter_computes_attention(packages: None, variant: str, rows: int, kv_heads: int) -> None:
    """Scattered slots, two sequences, two input sets: each launch is that of its set."""
    batch, context, q_heads, dim = 2, 11, 4, 8
    torch.manual_seed(1)
    q = torch.randn(batch, rows, q_heads, dim, dtype=BF16)
    caches = [tuple(torch.randn(40, kv_heads, dim, dtype=BF16) for _ in range(2)) for _ in range(2)]
    slots = torch.randperm(40)[: batch * context].view(batch, context).int()
    out = torch.full_like(q, torch.nan)
    launch = installed.prepare(variant, q, caches, slots, scale=0.7, out=out)
    for i, (k, v) in enumerate(caches):
        launch(i)
        expected = references.attention(q, k, v, slots, torch.full((batch,), context), scale=0.7)
        torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("rows", "wrapper"), [(1, Decode), (3, Prefill)])
def test_plans_are_made_before_what_is_timed(packages: None, rows: int, wrapper: Any) -> None:
    case = cases.build(_point("flashinfer", rows), HERE)
    (made,) = wrapper.made
    assert (made.planned, made.runs) == (True, 0)
    case.launch(0)
    assert (len(wrapper.made), made.runs) == (1, 1)


@pytest.mark.parametrize(("variant", "chosen"), [("triton_2d", "2d"), ("triton_3d", "3d")])
def test_triton_is_told_whether_to_split(packages: None, variant: str, chosen: str) -> None:
    case = cases.build(_point(variant, 3), HERE)
    case.launch(0)
    assert Unified.chosen == [chosen]


def test_an_older_vllm_splits_one_row_only(packages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, installed.VLLM_TRITON[0], unified_attention=Unified())
    assert cases.build(_point("triton_3d", 1), HERE).check() <= 1e-2
    with pytest.raises(RuntimeError, match=r"splits no more than 1 row"):
        cases.build(_point("triton_3d", 3), HERE)


@pytest.mark.parametrize(("context", "shared"), [(48, True), (40, False)])
def test_whole_pages_are_not_copied(context: int, shared: bool) -> None:
    """Where a sequence does not begin at a page, its tokens are copied into pages of its own."""
    caches = [tuple(torch.randn(2 * context, 2, 8) for _ in range(2))]
    slots = torch.arange(2 * context, dtype=I32).view(2, context)
    paged = installed._vllm_pages(caches, slots)
    for cache, pages in zip(caches[0], paged.caches[0], strict=True):
        assert (cache.data_ptr() == pages.data_ptr()) == shared
        for b in range(2):
            assert torch.equal(pages[paged.table[b].long()].flatten(0, 1)[:context], cache[slots[b].long()])


def test_older_sglang_is_measured_too(packages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, installed.SGLANG_DECODE[0], None)
    module(monkeypatch, installed.SGLANG_DECODE[1], decode_attention_fwd=older_decode_attention_fwd)
    case = cases.build(_point("sglang_triton_8", 1), HERE)
    assert case.check() <= case.tolerance


def _point(variant: str, rows: int, context: int = 40) -> Any:
    sizes = {"q_heads": 4, "kv_heads": 2, "head_dim": 16, "context": context, "rows": rows, "batch": 2}
    return point("attention", variant, **sizes)


@pytest.mark.parametrize(("variant", "rows"), VARIANTS)
def test_cases_are_checked_and_counted(packages: None, variant: str, rows: int) -> None:
    case = cases.build(_point(variant, rows), HERE)
    assert case.check() <= case.tolerance
    assert case.operation.variant == variant
    ours = cases.build(_point("triton_packed", rows), HERE).operation
    assert float(case.operation.kv) == float(ours.kv)
    assert (float(case.operation.rereads) > 1) == (variant == "sglang_triton_extend")


@pytest.mark.parametrize(("variant", "rows"), VARIANTS)
def test_long_cases_are_checked_on_part_of_the_list(
    packages: None, monkeypatch: pytest.MonkeyPatch, variant: str, rows: int
) -> None:
    monkeypatch.setattr(cases, "CHECKED_TOKENS", 16)
    case = cases.build(_point(variant, rows), HERE)
    assert case.check() <= case.tolerance


def test_a_wrong_kernel_is_found(packages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_a_mask(self: Any, *args: Any, **given: Any) -> None:
        plan_(self, *args, **given | {"causal": False})

    plan_ = Prefill.plan
    monkeypatch.setattr(Prefill, "plan", without_a_mask)
    case = cases.build(_point("flashinfer", 3), HERE)
    assert case.check() > case.tolerance


# --- missing packages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", list(INSTALLED))
def test_a_missing_package_says_what_to_install(absent: None, package: str) -> None:
    with pytest.raises(InputError, match=rf"--kernels: {package} cannot be imported .*pip install {package}"):
        calibrate.points_for((), True, [package])


@pytest.mark.parametrize("error", [ImportError("libcudart.so.12: cannot open"), RuntimeError("versions differ")])
def test_a_broken_package_says_why(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def broken(name: str) -> Any:
        raise error

    monkeypatch.setattr(installed, "importlib", SimpleNamespace(import_module=broken))
    with pytest.raises(InputError, match=str(error)):
        installed.require(["flashinfer"])


def test_a_package_that_lacks_something_of_its_own_names_that(
    packages: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "flashinfer")
    (tmp_path / "flashinfer.py").write_text("import a_missing_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="a_missing_dependency"):
        installed.require(["flashinfer"])


def test_another_release_without_the_function(packages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "flashinfer")
    with pytest.raises(InputError, match="flashinfer has no BatchDecodeWithPagedKVCacheWrapper"):
        cases.build(_point("flashinfer", 1), HERE)


# --- plan, report, comparison ------------------------------------------------------------------------------------


@pytest.mark.parametrize("quick", [False, True])
def test_plans_hold_the_same_shapes_for_each(quick: bool) -> None:
    alone = plan(MODELS, quick)
    points = plan(MODELS, quick, kernels=("flashinfer", "sglang", "vllm"))
    assert [p for p in points if p.variant not in installed.RULES] == alone
    shapes = {p.sizes for p in alone if p.kernel == "attention" and "kv_bytes" not in dict(p.sizes)}
    found = {name: {p.sizes for p in points if p.variant == name} for name in installed.RULES}
    assert found["flashinfer"] == shapes
    narrow = {sizes for sizes in shapes if dict(sizes)["rows"] == 1}
    assert all(found[f"sglang_triton_{splits}"] == narrow for splits in (8, 16, 64, 128))
    wide = {sizes for sizes in shapes - narrow if dict(sizes)["context"] <= 2**17}
    assert found["sglang_triton_extend"] == found["fa2_unsplit"] == found["triton_2d"] == wide
    assert found["fa2"] == narrow
    assert found["triton_3d"] == shapes


def test_an_unknown_package() -> None:
    with pytest.raises(InputError, match="--kernels: 'fa4' is not known; flashinfer or sglang or vllm"):
        plan(MODELS, kernels=["fa4"])


def test_side_by_side(tmp_path: Path) -> None:
    def row(variant: str, seconds: float, rows: int = 1) -> str:
        key = _point(variant, rows).key
        return json.dumps({"key": key, "kernel": "attention", "variant": variant, "operation": {}, "seconds": seconds})

    header = json.dumps({"schema": "wmtp-measurements/1", "environment": {}})
    lines = [header, row("flashinfer", 3e-5), row("triton_packed", 2e-5), row("flashinfer", 1e-5, rows=4)]
    path = tmp_path / "m.jsonl"
    path.write_text("\n".join([*lines, row("sglang_triton_8", 9e-5)]) + "\n")
    shape = "q_heads=4,kv_heads=2,head_dim=16,context=40,rows=1,batch=2"
    assert calibrate.side_by_side(path, ["flashinfer"]) == [(shape, "flashinfer", 2e-5, 3e-5)]
    assert len(calibrate.side_by_side(path, ["flashinfer", "sglang"])) == 2


def test_the_command_measures_packages_on_a_gpu_only() -> None:
    with pytest.raises(InputError, match="--kernels: 'flashinfer' needs a GPU"):
        command._points(calibrate, CPU, [], True, ["flashinfer"])
    assert command._points(calibrate, CPU, [], True, []) == calibrate.cpu_points_for([], True)


def test_the_command_passes_packages_on(packages: None) -> None:
    points = command._points(calibrate, torch.device("cuda"), ["llama-3.2-1b"], True, ["flashinfer"])
    assert "flashinfer" in {p.variant for p in points}


def small_shapes() -> list[Any]:
    return compare_installed.shapes(heads=((4, 2, 16),), contexts=(48,), rows=(1, 4))


def test_comparison(
    packages: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare_installed, "BUDGET_S", 0.001)
    monkeypatch.setattr(compare_installed, "build", lambda p, where: cases.build(p, HERE))
    out = tmp_path / "compared.json"
    groups = compare_installed.compare(out, 60, ["flashinfer"], small_shapes(), CPU)
    assert [[row["variant"] for row in group] for group in groups] == [["triton_packed", "flashinfer"]] * 2
    assert all("seconds" in row for row in groups[0])
    assert json.loads(out.read_text())["shapes"] == groups
    assert "theirs/ours" in capsys.readouterr().out


def test_comparison_without_the_package(
    absent: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare_installed, "BUDGET_S", 0.001)
    monkeypatch.setattr(compare_installed, "build", lambda p, where: cases.build(p, HERE))
    out = tmp_path / "compared.json"
    groups = compare_installed.compare(out, 60, ["flashinfer"], small_shapes()[:1], CPU)
    assert [row["variant"] for row in groups[0]] == ["triton_packed"]
    assert "pip install flashinfer-python" in json.loads(out.read_text())["missing"]["flashinfer"]
    assert "cannot be imported" in capsys.readouterr().out


def test_a_kernel_that_fails_ends_nothing(
    packages: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(self: Any, *args: Any, **given: Any) -> None:
        raise RuntimeError("Ninja build failed. Ninja output:\nnvcc: not found")

    monkeypatch.setattr(compare_installed, "BUDGET_S", 0.001)
    monkeypatch.setattr(compare_installed, "build", lambda p, where: cases.build(p, HERE))
    monkeypatch.setattr(Decode, "plan", fails)
    groups = compare_installed.compare(tmp_path / "c.json", 60, ["flashinfer"], small_shapes(), CPU)
    assert "nvcc: not found" in groups[0][1]["failed"]
    assert "seconds" in groups[0][0]
    assert "seconds" in groups[1][1]
    assert "Ninja build failed" in capsys.readouterr().out


# --- vLLM's own sweep --------------------------------------------------------------------------------------------


def test_the_sweep_asks_each_variant_for_the_rows_it_runs() -> None:
    points = sweep_vllm.points(heads=["32/8x128"], rows=(1, 4), contexts=(2**12, 2**17), batches=(1, 64))
    assert {(p.variant, p["rows"]) for p in points} == {
        ("fa2", 1), ("triton_3d", 1), ("fa2_unsplit", 4), ("triton_2d", 4), ("triton_3d", 4),
    }  # fmt: skip
    assert {(p["batch"], p["context"]) for p in points} == {(1, 2**12), (1, 2**17), (64, 2**12)}
    assert {p.variant for p in sweep_vllm.points(variants=["fa2"])} == {"fa2"}


def test_the_sweep_keeps_what_fails(
    packages: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**given: Any) -> None:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(sweep_vllm, "BUDGET_S", 0.001)
    monkeypatch.setattr(compare_installed, "build", lambda p, where: cases.build(p, HERE))
    module(monkeypatch, installed.VLLM_FLASH[0], flash_attn_varlen_func=fails)
    planned = sweep_vllm.points(heads=["4/2x16"], rows=(1,), contexts=(48,), batches=(1,))
    out = tmp_path / "swept.json"
    flash, triton = sweep_vllm.sweep(out, 60, planned, CPU)
    assert "no kernel image" in flash["failed"]
    assert triton["seconds"] > 0
    assert triton["kv_bytes"] == 48 * 2 * 16 * 2 * 2
    assert json.loads(out.read_text())["points"] == [flash, triton]
    sweep_vllm.sweep(out, 0, planned, CPU)
    assert json.loads(out.read_text())["left_out"] == [p.key for p in planned]
    assert "2 points left out" in capsys.readouterr().out


def test_the_sweep_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert sweep_vllm.main(["--out", str(tmp_path / "x.json")]) == 2
