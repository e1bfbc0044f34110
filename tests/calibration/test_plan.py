"""What is measured: distinct, stable keys; shapes of the models that stand for the catalogue; sizes that fit a GPU."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from calibration import cases
from calibration.plan import REPRESENTATIVE, Point, plan, point
from wmtp_sim.catalog.models import load_model
from wmtp_sim.spec.model import Attention, LatentAttention, Moe
from wmtp_sim.work.weights import weights_of

MODELS = [load_model(name) for name in REPRESENTATIVE]
POINTS = plan(MODELS)
QUICK = plan(MODELS, quick=True)
GB = 1e9


def of(kernel: str, points: list[Point] = POINTS) -> list[Point]:
    return [p for p in points if p.kernel == kernel]


@pytest.mark.parametrize("points", [POINTS, QUICK], ids=["full", "quick"])
def test_keys_are_unique(points):
    assert [key for key, times in Counter(p.key for p in points).items() if times > 1] == []
    assert len(set(points)) == len(points)


def test_keys_are_stable():
    """An interrupted run finds its points again by these."""
    assert plan(MODELS) == POINTS
    assert {p.key for p in plan(MODELS[::-1])} == {p.key for p in POINTS}
    assert {p.key for p in plan([*MODELS, *MODELS])} == {p.key for p in POINTS}
    keys = {p.key for p in POINTS}
    assert keys >= {
        "elementwise.empty[rows=1]",
        "copy.torch[kib=8]",
        "index_build.serial[context=8192,steps=3,block=128]",
        "gemm.cublas[k=4096,n=4096,rows=1]",
        "attention.triton_packed[q_heads=32,kv_heads=8,head_dim=128,context=1048576,rows=7,batch=1]",
        "mla.triton_packed[heads=128,context=2048,rows=1,batch=1]",
        "moe.grouped[experts=256,top_k=8,inner=2048,width=7168,gated=1,rows=8]",
        "sample.argmax[vocab=128256,rows=1]",
    }


def test_keys_say_all_of_a_point():
    one = point("gemm", "cublas", k=4, n=8, rows=1)
    assert one.key == "gemm.cublas[k=4,n=8,rows=1]"
    assert (one["k"], one["n"], one["rows"]) == (4, 8, 1)
    assert (
        len({one.key, *(point("gemm", "cublas", **s).key for s in ({"k": 8, "n": 4, "rows": 1}, {"k": 4, "n": 8}))})
        == 3
    )
    for each in POINTS:
        kernel, variant, sizes = re.fullmatch(r"(\w+)\.(\w+)\[(.*)\]", each.key).groups()
        read = tuple((name, int(value)) for name, value in (pair.split("=") for pair in sizes.split(",")))
        assert Point(kernel, variant, read) == each


@pytest.mark.parametrize("model", MODELS, ids=REPRESENTATIVE)
def test_every_dense_matrix_of_a_model_is_measured(model):
    measured = {(p["k"], p["n"]) for p in of("gemm") if p.variant == "cublas"}
    blocks = (*model.blocks, *(model.mtp.blocks if model.mtp else ()))
    wanted = {
        (m.k, m.n)
        for block in blocks
        for part in (*block.mixers, *block.channels)
        for m in weights_of(part, model.hidden).matrices
        if m.copies == 1 and m.n >= 16
    }
    wanted |= {(model.hidden, model.vocab)}
    assert wanted
    assert wanted <= measured


@pytest.mark.parametrize("model", MODELS, ids=REPRESENTATIVE)
def test_every_core_of_a_model_is_measured_at_decode_and_verify(model):
    for block in model.blocks:
        for part in (*block.mixers, *block.channels):
            if isinstance(part, Attention):
                head = (part.q_heads, part.kv_heads, part.head_dim)
                found = [p for p in of("attention") if (p["q_heads"], p["kv_heads"], p["head_dim"]) == head]
            elif isinstance(part, LatentAttention):
                found = [p for p in of("mla") if p["heads"] == part.heads]
            elif isinstance(part, Moe):
                width = part.latent or model.hidden
                wanted = (part.experts, part.top_k, part.inner, width, int(part.gated))
                names = ("experts", "top_k", "inner", "width", "gated")
                found = [p for p in of("moe") if tuple(p[name] for name in names) == wanted]
            elif part.kind in ("gdn", "kda", "mamba2"):
                sizes = {name: int(value) for name, value in part if name != "kind"}
                found = [
                    p for p in of("recurrent") if p.variant == part.kind and sizes.items() <= dict(p.sizes).items()
                ]
            else:
                continue
            assert {p["rows"] for p in found} >= {1, 2, 4, 7}, part


def test_quick_is_a_small_plan():
    assert len(QUICK) < 0.25 * len(POINTS)
    assert len(QUICK) < 150
    assert {p.kernel for p in QUICK} == {p.kernel for p in POINTS}


def test_a_full_plan_takes_minutes():
    """About a quarter of a second each, building included."""
    assert len(POINTS) < 800


def set_bytes(p: Point) -> float:
    """Bytes of one set of a point's inputs and outputs, by its own sizes."""
    sizes = dict(p.sizes)
    rows, batch, context = sizes.get("rows", 1), sizes.get("batch", 1), sizes.get("context", 1)
    match p.kernel:
        case "gemm":
            return 2.0 * (p["k"] * p["n"] + rows * (p["k"] + p["n"]))
        case "attention":
            return 4.0 * batch * context * p["kv_heads"] * p["head_dim"]
        case "mla":
            return 2.0 * batch * context * (512 + 64)
        case "moe":
            return 2.0 * (3 if p["gated"] else 2) * p["experts"] * p["inner"] * p["width"]
        case "recurrent":
            names = [n for n in ("v_heads", "heads", "k_dim", "v_dim", "head_dim", "state_dim") if n in sizes]
            state = 4.0
            for name in names:
                state *= sizes[name]
            if p.variant == "kda":
                state *= sizes["head_dim"]
            return state * batch * (1 + rows)
        case "copy":
            return 1024.0 * p["kib"]
        case "sample":
            return 2.0 * rows * p["vocab"]
        case "elementwise":
            return 6.0 * rows * sizes.get("hidden", 1)
        case "index_build":
            return 4.0 * context * (p["steps"] + 1)
    raise AssertionError(f"no size rule for {p.kernel}")


@pytest.mark.parametrize("points", [POINTS, QUICK], ids=["full", "quick"])
def test_no_point_needs_more_than_a_gpu_holds(points):
    sizes = {p.key: set_bytes(p) for p in points}
    assert {key: size for key, size in sizes.items() if not 0 < size < 100 * GB} == {}


def test_all_sizes_are_positive_integers():
    flags = ("gated", "conv_bias", "gated_norm", "full_rank_gate")
    for p in POINTS:
        for name, value in p.sizes:
            assert type(value) is int, p.key
            assert value > 0 or name in flags, p.key


def test_rows_fit_the_context():
    for p in (*of("attention"), *of("mla")):
        assert p["rows"] < p["context"]


def test_eight_bit_products_have_sizes_that_the_library_takes():
    found = [p for p in of("gemm") if p.variant == "cublas_fp8"]
    assert found
    assert all(p["k"] % 16 == 0 and p["n"] % 16 == 0 for p in found)


def test_every_kernel_has_a_case_builder():
    assert {p.kernel for p in POINTS} == set(cases._BUILDERS)


def test_a_small_plan_for_one_model():
    alone = plan([load_model("llama-3.1-8b")])
    assert len(alone) < len(POINTS)
    assert not of("moe", alone)
    assert not of("mla", alone)
    assert not of("recurrent", alone)
    assert of("attention", alone)


def test_a_plan_for_no_model_still_measures_the_floors():
    assert {p.kernel for p in plan([])} == {"elementwise", "copy", "index_build"}


def test_narrow_formats_are_measured_at_several_sizes():
    caches = [dict(p.sizes) for p in of("attention") if "kv_bytes" in dict(p.sizes)]
    assert {sizes["rows"] for sizes in caches} == {1, 4}
    assert len({sizes["context"] for sizes in caches}) >= 6
    assert {p["rows"] for p in of("gemm") if p.variant == "cublas_fp8"} == {8, 64, 256}
