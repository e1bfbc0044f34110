"""Profiles from published operator tables: which rows become points, what is left out, and what a file may not do.

Tables here are made up, in the package's layout and file format; a last test runs where the real package is installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration import published
from calibration import published_points as points
from calibration.published import import_profile, operation_of
from calibration.tables import Tables, number, seconds, tables, word
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.gpus import load_gpu
from wmtp_sim.catalog.profiles import ELSEWHERE, IDEAL, own_calibration, profile_for, read_profile
from wmtp_sim.errors import InputError
from wmtp_sim.machine.machine import Machine
from wmtp_sim.work import collectives, layers
from wmtp_sim.work.weights import Matrix

Rows = list[dict[str, Any]]
Write = Callable[[str, Rows], Path]

#: What a made-up B200 does: 10 us a launch, and 80 % of the memory's rate.
FLOOR_MS, RATE = 0.010, 0.8 * 7.67232e12


def took(moved: float) -> float:
    """Milliseconds, as the tables state them."""
    return FLOOR_MS + 1e3 * moved / RATE


def decode_rows(kernel: str, kv_heads: int = 8, fmt: str = "bfloat16") -> Rows:
    width = 1 if fmt == "fp8" else 2
    return [
        {
            "kernel_source": kernel,
            "batch_size": batch,
            "num_heads": 64,
            "num_key_value_heads": kv_heads,
            "head_dim": 128,
            "kv_cache_dtype": fmt,
            "step": context - 1,
            "window_size": 0,
            "latency": took(batch * context * kv_heads * 256 * width),
        }
        for batch in (1, 8, 64)
        for context in (128, 4096, 32768, 131072)
    ]


def product_rows(fmt: str = "bfloat16") -> Rows:
    width = {"bfloat16": 2.0, "nvfp4": 0.5625}.get(fmt, 1.0)
    return [
        {"kernel_source": "a", "gemm_dtype": fmt, "m": m, "n": n, "k": k, "latency": took(k * n * width)}
        for k, n in points.PRODUCTS[:10]
        for m in (1, 8, 64)
    ]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "b200_sxm").mkdir(parents=True)
    return folder


@pytest.fixture
def write(data: Path) -> Write:
    """Writes rows to ``family/backend/version/operator`` of the made-up B200, as the package does."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def writer(place: str, rows: Rows) -> Path:
        path = data / "b200_sxm" / f"{place}_perf.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(arrow.Table.from_pylist(rows), path)
        return path

    return writer


@pytest.fixture
def decode(write: Write) -> Path:
    return write("attention/sglang/0.5.14/generation_attention", decode_rows("trtllm_mha"))


def imported(data: Path, **options: Any) -> published.Profile:
    return import_profile("b200_sxm", path=data, **options)[0]


def test_nothing_here_needs_torch() -> None:
    code = "import sys, calibration.published; assert not {'torch', 'pyarrow', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- what becomes of rows ----------------------------------------------------------------------------------------


def test_a_fit_finds_what_the_rows_were_made_with(data: Path, decode: Path) -> None:
    model = imported(data).kernels["attention.trtllm_mha"]
    assert model.floor_s == pytest.approx(FLOOR_MS / 1e3, rel=0.03)
    assert model.bandwidth == pytest.approx(0.8, rel=0.03)
    assert model.median_error < 0.02


def test_a_point_is_the_operation_that_the_cost_model_counts(data: Path, decode: Path) -> None:
    (record,) = (r for r in imported(data).measurements if r["sizes"]["context"] == 131072 and r["sizes"]["batch"] == 8)
    operation = operation_of(record)
    assert operation.kv == 8 * 131072 * 8 * 256 * 2
    assert operation.geometry == (128.0, 8.0, 8.0, 2.0)
    assert operation.padding == 64 / 8  # the engine file's tile of 64 rows, for 8 query heads of a stream
    assert operation.rows == 1


def test_only_decode_rows_are_points(data: Path, decode: Path, write: Write) -> None:
    """A verify is priced by the form, which reads the cache once; never as a batch of sequences."""
    profile = imported(data)
    assert {r["operation"].get("rows", 1.0) for r in profile.measurements if r["kernel"] == "attention"} == {1.0}
    gpu = load_gpu("b200")
    machine = Machine(gpu, profile)
    mixer = points.spec.Attention(q_heads=64, kv_heads=8, head_dim=128, v_head_dim=128)
    times = []
    for rows, batch in ((1, 1), (7, 1), (1, 7)):
        (operation,) = layers.attention(mixer, points.work(batch, rows, 131072))
        rule = load_engine("sglang").attention_kernels["trtllm_mha"]
        operation = points.split_attention(points.replace(operation, variant="trtllm_mha"), rule)
        times.append(float(np.asarray(machine.time(operation).seconds)))
    assert times[0] <= times[1] < 1.2 * times[0] < 4 * times[0] < times[2]


def test_a_capped_kernel_is_a_geometry_of_its_own(data: Path, write: Write) -> None:
    write("attention/vllm/0.24.0/generation_attention", decode_rows("vllm_flash_attn_fa3"))
    write("attention/sglang/0.5.14/generation_attention", decode_rows("fa3"))
    model = imported(data).kernels["attention.fa3"]
    assert {entry.geometry for entry in model.measured.geometries} == {(128, 8, 8, 2), (128, 8, 8, 32, 2)}


def test_eight_bit_caches_and_weights_are_geometries_of_their_own(data: Path, decode: Path, write: Write) -> None:
    write("attention/vllm/0.24.0/generation_attention", decode_rows("vllm_flashinfer_trtllmdecode", fmt="fp8"))
    write("gemm/sglang/0.5.14/gemm", product_rows() + product_rows("fp8_block") + product_rows("nvfp4"))
    kernels = imported(data).kernels
    assert {e.geometry[-1] for e in kernels["attention.flashinfer_trtllm"].measured.geometries} == {1.0}
    assert {round(e.geometry[-1], 3) for e in kernels["gemm"].measured.geometries} == {2.0, 1.0, 0.562}


def test_block_scales_count_before_scales_of_a_tensor(data: Path, write: Write) -> None:
    """Both are our fp8; checkpoints carry block scales."""
    slow = [row | {"latency": 2 * row["latency"], "kernel_source": "slow"} for row in product_rows("fp8")]
    write("gemm/sglang/0.5.14/gemm", slow + product_rows("fp8_block"))
    sources = {r["source"] for r in imported(data).measurements}
    assert sources == {"aiconfigurator-core unknown, sglang 0.5.14, a"}


def test_the_first_backend_with_a_table_gives_what_no_kernel_tells_apart(data: Path, write: Write) -> None:
    write("gemm/sglang/0.5.14/gemm", product_rows())
    write("gemm/vllm/0.24.0/gemm", product_rows())
    ours = imported(data), imported(data, backends=("vllm", "sglang"))
    assert ["sglang" in profile.measurements[0]["source"] for profile in ours] == [True, False]


def test_the_newest_version_is_read_unless_one_is_named(data: Path, decode: Path, write: Write) -> None:
    write("attention/sglang/0.5.9/generation_attention", decode_rows("trtllm_mha"))
    assert "sglang 0.5.14" in imported(data).measurements[0]["source"]
    named = imported(data, backends=("sglang",), version="0.5.9")
    assert "sglang 0.5.9" in named.measurements[0]["source"]


def test_rows_that_a_cache_served_are_left_out(data: Path, write: Write) -> None:
    """Between a read that is nothing beside the floor and twice the L2, an attention's time is not the memory's."""
    write("attention/sglang/0.5.14/generation_attention", decode_rows("trtllm_mha"))
    gpu, kept = load_gpu("b200"), imported(data).measurements
    moved = [operation_of(r).kv for r in kept]
    small = [size for size in moved if size < 2 * gpu.l2_bytes]
    assert moved
    assert max(small) / gpu.hbm_bandwidth_bytes_per_s <= 0.1 * took(max(small)) / 1e3
    assert len(small) < len(moved) < len(decode_rows("trtllm_mha"))


def test_a_row_faster_than_the_memory_takes_its_neighbours_along(data: Path, write: Write) -> None:
    rows = product_rows()
    fast = next(row for row in rows if row["k"] == 2048 and row["n"] == 8192 and row["m"] == 1)
    fast["latency"] = 1e3 * 0.5 * 2048 * 8192 * 2 / 7.67232e12
    write("gemm/sglang/0.5.14/gemm", rows)
    kept = {(r["sizes"]["k"], r["sizes"]["n"]) for r in imported(data).measurements}
    assert not {(2048, 8192), (2048, 12288)} & kept
    assert {(2048, 64), (2048, 65536)} <= kept  # one is nothing beside a launch, the other eight times as large


def test_experts_touched_are_counted_as_balanced_rows_touch_them(data: Path, write: Write) -> None:
    shape = {"hidden_size": 2048, "inter_size": 512, "topk": 8, "num_experts": 256}
    rows = [
        shape
        | {"kernel_source": "trtllm", "moe_dtype": "bfloat16", "num_tokens": tokens, "moe_tp_size": 1, "moe_ep_size": 1}
        | {"distribution": "balanced", "latency": took(min(256, 8 * tokens) * 3 * 2048 * 512 * 2)}
        for tokens in (1, 4, 16, 64)
    ]
    write("moe/sglang/0.5.14/moe", rows + [row | {"distribution": "power_law_1.2", "latency": 9.0} for row in rows])
    kept = imported(data).measurements
    assert [r["operation"]["weights"] for r in kept] == [n * 3 * 2048 * 512 * 2 for n in (8, 32, 128, 256)]


def test_recurrences_are_both_of_their_kernels(data: Path, write: Write) -> None:
    sizes = {"phase": "generation", "seq_len": 1, "num_k_heads": 16, "num_v_heads": 32}
    sizes |= {"head_k_dim": 128, "head_v_dim": 128}
    rows = [
        sizes | {"batch_size": batch, "kernel_source": kernel, "latency": time}
        for batch in (1, 256, 512)
        for kernel, time in (("causal_conv1d_update", 0.002), ("fused_recurrent_x", took(batch * 2**22)))
    ]
    write("linear_attention/sglang/0.5.14/gdn", rows)
    first = imported(data).measurements[0]
    assert first["seconds"] == pytest.approx((0.002 + took(2**22)) / 1e3)
    assert first["variant"] == "gdn"


def test_collectives_go_over_the_link(data: Path, write: Write) -> None:
    gpu = load_gpu("b200")
    link = gpu.scale_up_bidir_bytes_per_s / 2
    rows = [
        {
            "kernel_source": kind,
            "num_gpus": ranks,
            "message_size": size,
            "latency": 0.004 + 1e3 * 2 * (ranks - 1) / ranks * 2 * size / (0.5 * link),
        }
        for ranks in (2, 4, 8)
        for size in points.REDUCED
        for kind in ("X_graph", "X_eager")
    ]
    write("comm/sglang/0.5.14/custom_allreduce", rows)
    profile = imported(data)
    assert profile.kernels["collective"].bandwidth == pytest.approx(0.5, rel=0.05)
    assert all(r["source"].endswith("graph") for r in profile.measurements)
    machine = Machine(gpu, profile)
    operation = collectives.all_reduce(2.0 * points.REDUCED[-1], 4)
    wanted = next(r["latency"] for r in rows if r["num_gpus"] == 4 and r["message_size"] == points.REDUCED[-1])
    assert float(machine.time(operation).seconds) == pytest.approx(wanted / 1e3, rel=0.02)


def link_rate(gpu: str = "b200") -> float:
    """Bytes per second of one direction."""
    both = load_gpu(gpu).scale_up_bidir_bytes_per_s
    assert both is not None
    return both / 2


def nccl_rows(fmt: str = "half") -> Rows:
    """What each of NCCL's collectives sends, at a share of the link of its own."""
    return [
        {"op_name": name, "kernel_source": "NCCL", "nccl_dtype": fmt, "num_gpus": ranks, "message_size": size}
        | {"latency": 0.008 + 1e3 * sent * (ranks - 1) / ranks * 2 * size / (share * link_rate())}
        for name, sent, share in (
            ("all_gather", 1, 0.4),
            ("reduce_scatter", 1, 0.5),
            ("alltoall", 1, 0.6),
            ("all_reduce", 2, 0.3),
        )
        for ranks in (2, 4, 8)
        for size in points.GATHERED
    ]


def test_each_of_nccls_collectives_has_a_model_of_its_own(data: Path, write: Write) -> None:
    """All-reduces are engines' own: NCCL's are not taken, and no other collective stands for them."""
    write("comm/nccl/2.29.2/nccl", nccl_rows() + [row | {"latency": 50.0} for row in nccl_rows("int8")])
    write("comm/sglang/0.5.14/other", nccl_rows())
    profile = imported(data)
    fitted = {name: model.bandwidth for name, model in profile.kernels.items() if "nccl 2.29.2" in model.source}
    wanted = {"collective.all_gather": 0.4, "collective.reduce_scatter": 0.5, "collective.all_to_all": 0.6}
    assert fitted == {name: pytest.approx(share, rel=0.05) for name, share in wanted.items()}
    assert profile.kernels["collective"].carried_from == "NVIDIA H200"
    machine = Machine(load_gpu("b200"), profile)
    for build, name in (
        (collectives.all_gather, "all_gather"),
        (collectives.reduce_scatter, "reduce_scatter"),
        (collectives.all_to_all, "alltoall"),
    ):
        row = next(r for r in nccl_rows() if (r["op_name"], r["num_gpus"], r["message_size"]) == (name, 4, 2**20))
        found = float(machine.time(build(2.0 * 2**20, 4)).seconds)
        assert found == pytest.approx(row["latency"] / 1e3, rel=0.02)


def test_nccls_newest_table_is_read_whichever_engine_is_pinned(data: Path, decode: Path, write: Write) -> None:
    write("comm/nccl/2.9.1/nccl", nccl_rows())
    write("comm/nccl/2.29.2/nccl", nccl_rows())
    profile = imported(data, backends=("sglang",), version="0.5.14")
    assert {r["source"].split(", ")[1] for r in profile.measurements if r["kernel"] == "collective"} == {"nccl 2.29.2"}


def deepep_rows(per_copy: Callable[[str, int], float]) -> Rows:
    """DeepEP's rows over eight ranks whose copies take bytes as stated, in the tables' columns and microseconds."""
    times = {
        what: lambda tokens, hidden, what=what: 12.0 + 1e6 * 7 / 8 * tokens * 8 * per_copy(what, hidden) / 2e11
        for what in ("dispatch", "combine")
    }
    return [
        {"op_name": "ll", "kernel_source": "deepep", "node_num": nodes, "hidden_size": hidden, "num_token": tokens}
        | {"num_topk": 8, "num_experts": experts}
        | {f"{what}_avg_t_us": nodes * time(tokens, hidden) for what, time in times.items()}
        for hidden in (2048, 7168)
        for tokens in points.SENT_TOKENS
        for experts in (8, 256)
        for nodes in (1, 2)
    ]


def test_deepep_moves_fp8_out_and_bf16_back(data: Path, write: Write) -> None:
    """Rows made of DeepEP's own bytes come out as made; more nodes, and experts too few to fill a GPU, are left out."""
    sizes = {"dispatch": lambda hidden: hidden * (1 + 4 / 128) + 16, "combine": lambda hidden: 2 * hidden}
    write("comm/sglang/0.5.12/wideep_deepep_ll", deepep_rows(lambda what, hidden: sizes[what](hidden)))
    profile = imported(data)
    model = profile.kernels["collective.deepep"]
    assert model.points == 2 * 2 * len(points.SENT_TOKENS)
    assert model.floor_s == pytest.approx(12e-6, rel=0.03)
    assert model.bandwidth * link_rate() == pytest.approx(2e11, rel=0.03)
    assert {r["sizes"]["experts"] for r in profile.measurements} == {256}
    machine = Machine(load_gpu("b200"), profile)
    for build, copy in ((collectives.dispatch, sizes["dispatch"]), (collectives.combine, sizes["combine"])):
        found = float(machine.time(build(64, 8, 7168, 8)).seconds)
        assert found == pytest.approx(12e-6 + 7 / 8 * 64 * 8 * copy(7168) / 2e11, rel=0.03)


def test_a_node_of_gb200_has_four_gpus(data: Path, write: Write) -> None:
    write("comm/sglang/0.5.12/wideep_deepep_ll", deepep_rows(lambda _, hidden: 2 * hidden))
    (data / "b200_sxm").rename(data / "gb200")
    profile = import_profile("gb200", path=data)[0]
    assert {tuple(r["operation"]["geometry"]) for r in profile.measurements} == {(4.0,)}
    sent = {r["operation"]["activations"] for r in profile.measurements if r["sizes"]["sent"] == "combine"}
    assert max(sent) == 3 / 4 * 1024 * 8 * 2 * 7168


# --- what the profile says of itself -----------------------------------------------------------------------------


def test_it_says_whose_times_they_are(data: Path, decode: Path) -> None:
    profile = imported(data)
    assert (profile.status, profile.by, profile.label) == ("measured", "aiconfigurator", "measured (aiconfigurator)")
    said = profile.provenance
    assert said["licence"] == "Apache-2.0"
    assert said["publisher"].startswith("NVIDIA")
    assert said["system"] == "b200_sxm"
    assert said["tables"] == ["sglang 0.5.14, trtllm_mha"]
    assert "not ours" in said["note"]
    assert profile.transferred(1.8).label == "transferred (aiconfigurator)"


def test_classes_without_tables_are_carried_over_with_wider_ranges(data: Path, decode: Path) -> None:
    profile, ours = imported(data), profile_for(load_gpu("h200"))
    for name in ("copy", "elementwise.norm", "sample", "recurrent.mamba2", "gemm", "index_scan"):
        assert profile.kernels[name].carried_from == "NVIDIA H200"
        assert profile.kernels[name].spread > ours.kernels[name].spread
    assert profile.kernels["attention.trtllm_mha"].carried_from is None
    assert profile.kernels.keys() >= ours.kernels.keys()


def test_no_spread_is_below_what_two_hands_differ_by(data: Path, decode: Path) -> None:
    assert imported(data).kernels["attention.trtllm_mha"].spread == published.HANDS


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"backends": ("trtllm",)}, "--backend"),
        ({"backends": ("../..",)}, "--backend"),
        ({"version": "0.5.14", "backends": ()}, "--version"),
        ({"version": "9.9", "backends": ("sglang",)}, "--version"),
        ({"gpu": "no such"}, "--gpu"),
    ],
)
def test_unknown_names_are_refused(data: Path, decode: Path, write: Write, options: dict[str, Any], named: str) -> None:
    write("attention/vllm/0.24.0/generation_attention", decode_rows("vllm_flash_attn_fa3"))
    with pytest.raises(InputError) as error:
        imported(data, **options)
    assert error.value.field == named


def test_an_unknown_system_is_refused_by_name(data: Path) -> None:
    with pytest.raises(InputError, match="--system"):
        tables("b200_sxm/..", data)
    with pytest.raises(InputError, match="--path"):
        tables("b200_sxm", data / "nowhere")


def test_a_system_that_is_not_known_needs_a_gpu(data: Path, decode: Path) -> None:
    (data / "b200_sxm").rename(data / "c300_sxm")
    with pytest.raises(InputError, match="--gpu"):
        import_profile("c300_sxm", path=data)
    assert import_profile("c300_sxm", path=data, gpu="b200")[0].gpu == load_gpu("b200").name


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\0" * 64 + b"PAR1", b"not parquet" * 100])
def test_a_file_that_is_no_table_is_refused(data: Path, decode: Path, content: bytes) -> None:
    decode.write_bytes(content)
    with pytest.raises(InputError, match="parquet"):
        imported(data)


def test_a_folder_in_a_tables_place_is_refused(data: Path, decode: Path) -> None:
    decode.unlink()
    decode.mkdir()
    with pytest.raises(InputError, match=r"perf\.parquet"):
        imported(data)


def test_a_table_without_its_columns_is_refused(data: Path, write: Write) -> None:
    rows = [{name: value for name, value in row.items() if name != "num_heads"} for row in decode_rows("trtllm_mha")]
    write("attention/sglang/0.5.14/generation_attention", rows)
    with pytest.raises(InputError, match="num_heads"):
        imported(data)


def test_tables_without_a_usable_row_are_refused(data: Path, write: Write) -> None:
    write("attention/sglang/0.5.14/generation_attention", decode_rows("a kernel that nobody knows"))
    with pytest.raises(InputError, match="no row"):
        imported(data)


@pytest.mark.parametrize("value", [None, True, "8", -1, 0.5, float("nan"), float("inf"), 2**41])
def test_a_size_is_a_whole_number(value: Any) -> None:
    with pytest.raises(InputError, match="num_heads"):
        number({"num_heads": value}, "num_heads")


@pytest.mark.parametrize("value", [None, True, "8", -1.0, 0.0, float("nan"), float("inf")])
def test_a_time_is_finite_and_positive(value: Any) -> None:
    with pytest.raises(InputError, match="latency"):
        seconds({"latency": value})


def test_a_word_is_a_word() -> None:
    with pytest.raises(InputError, match="kernel_source"):
        word({"kernel_source": 3}, "kernel_source")


def test_a_table_that_is_not_there_is_none(data: Path) -> None:
    assert Tables(data, "b200_sxm", "0").read("gemm", "sglang", "gemm") is None


# --- the shipped profiles ----------------------------------------------------------------------------------------

SHIPPED = sorted((Path(published.__file__).parents[1] / "wmtp_sim" / "data" / "profiles").glob("*.json"))
OTHERS = [path for path in SHIPPED if path.stem != "nvidia-h200"]


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.stem)
def test_a_shipped_profile_serves_its_gpu_and_says_who_measured(path: Path) -> None:
    profile = read_profile(path)
    gpu = next(load_gpu(name) for name in published.SYSTEMS.values() if load_gpu(name).name == profile.gpu)
    assert profile_for(gpu) == profile
    assert profile.label == "measured (aiconfigurator)"
    assert profile.provenance["package"] == "aiconfigurator-core 0.12.0"
    assert profile.provenance["licence"] == "Apache-2.0"
    own = {name: model for name, model in profile.kernels.items() if model.points and not model.carried_from}
    assert {"gemm", "moe", "attention", "collective", "recurrent.gdn"} <= own.keys()
    assert {f"collective.{name}" for name in ("all_gather", "reduce_scatter", "all_to_all")} <= own.keys()
    assert ("collective.deepep" in own) == (bool(gpu.scale_up_bidir_bytes_per_s) and gpu.architecture != "Ampere")
    assert all(model.spread >= published.HANDS for model in own.values())
    assert not profile.measurements


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.stem)
def test_what_it_carried_over_is_no_wider_on_a_third_gpu_than_straight_from_home(path: Path) -> None:
    """Fitted classes widen; the others come from our H200, whichever way."""
    straight, through = own_calibration().transferred(ELSEWHERE), read_profile(path).transferred(ELSEWHERE)
    carried = {name for name, model in through.kernels.items() if model.carried_from}
    assert {"index_scan", "copy"} <= carried
    for name in carried:
        assert through.kernels[name].spread == pytest.approx(straight.kernels[name].spread), name
    assert through.kernels["gemm"].spread > read_profile(path).kernels["gemm"].spread_elsewhere


def test_shipped_profiles_stay_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED) < 3e6


def test_no_shipped_time_is_below_the_datasheets_bound() -> None:
    """What was measured at a shape is never priced faster than its bytes and FLOPs at the datasheet's peaks."""
    gpu = load_gpu("b200")
    machine, ideal = Machine(gpu, profile_for(gpu)), Machine(gpu, IDEAL)
    for k, n in points.PRODUCTS:
        for fmt in ("bf16", "fp8", "nvfp4"):
            shape = points.work(1, 7)
            operation = layers.gemm(Matrix("m", k, n, "attention"), shape, points.GroupFormats(attention=fmt))
            assert float(machine.time(operation).seconds) >= float(np.asarray(ideal.bound(operation)))


@pytest.mark.slow
@pytest.mark.parametrize(("system", "stem"), [("b200_sxm", "nvidia-b200-sxm-hgx"), ("l40s", "nvidia-l40s")])
def test_the_real_package_makes_the_shipped_profiles(system: str, stem: str) -> None:
    package = pytest.importorskip("aiconfigurator_core")
    pytest.importorskip("pyarrow")
    path = Path(package.__file__).parent
    if tables(system, path).release != "0.12.0":
        pytest.skip("another release of aiconfigurator-core")
    again = import_profile(system, path=path)[0]
    shipped = read_profile(next(path for path in OTHERS if path.stem == stem))
    assert json.loads(json.dumps(again.provenance)) == shipped.provenance
    for name, model in again.kernels.items():
        for field in ("floor_s", "bandwidth", "spread", "median_error", "points"):
            stated = getattr(shipped.kernels[name], field)
            assert getattr(model, field) == (stated if stated is None else pytest.approx(stated, rel=0.01)), name
