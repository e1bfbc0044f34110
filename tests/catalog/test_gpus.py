"""GPUs: every shipped entry, exact samples, names as people type them, and a person's own file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from wmtp_sim.catalog.gpus import _catalog, gpu_names, load_gpu
from wmtp_sim.errors import InputError
from wmtp_sim.spec.gpu import Gpu, PeakFlops

OWN = """
name = "My GPU"
hbm_bandwidth_bytes_per_s = 2.5e12
memory_bytes = 64_000_000_000
[peak_dense_flops]
bf16 = 5e14
"""
FIELDS: dict[str, Any] = {
    "name": "My GPU",
    "hbm_bandwidth_bytes_per_s": 2.5e12,
    "memory_bytes": 64_000_000_000,
    "peak_dense_flops": {"bf16": 5e14},
}


# --- shipped ---------------------------------------------------------------------------------------------------------


def test_names() -> None:
    assert list(gpu_names()) == sorted(gpu_names())
    assert {"h200-sxm", "h100-sxm", "b200", "a100-sxm-80gb", "rtx-4090", "dgx-spark-gb10", "mi300x"} < set(gpu_names())


@pytest.mark.parametrize("name", gpu_names())
def test_every_entry(name: str) -> None:
    gpu = load_gpu(name)
    peaks = gpu.peak_dense_flops
    # The largest dense rates that exist; a figure with sparsity would exceed them.
    assert 3e13 <= peaks.bf16 <= 2.6e15
    assert peaks.fp8 is None or peaks.fp8 <= 5.1e15
    assert peaks.fp4 is None or peaks.fp4 <= 1.5e16
    assert 2e11 <= gpu.hbm_bandwidth_bytes_per_s <= 8e12
    assert 2**33 <= gpu.memory_bytes <= 288 * 2**30
    assert gpu.vendor in ("nvidia", "amd", "apple")
    assert gpu.sources
    assert gpu.compute_capability or gpu.vendor == "apple"
    assert gpu.launch_slowdown == 1.0 or any("launches are assumed" in note for note in gpu.notes)


def test_gpus_of_one_host() -> None:
    """8 where nobody says more or fewer; an entry that does says why."""
    found = {name: load_gpu(name).gpus_per_host for name in gpu_names()}
    assert (found["h200-sxm"], found["gb200"], found["gb300"], found["dgx-spark-gb10"]) == (8, 72, 72, 1)
    for name in (name for name, most in found.items() if most != 8):
        assert any(source.startswith("gpus_per_host: ") for source in load_gpu(name).sources)
    assert Gpu.model_validate(FIELDS).gpus_per_host == 8
    with pytest.raises(ValidationError, match="gpus_per_host"):
        Gpu.model_validate({**FIELDS, "gpus_per_host": 0})


@pytest.mark.parametrize("name", gpu_names())
def test_dense_ratios(name: str) -> None:
    """fp8 runs at twice the bf16 rate, fp4 at least at twice the fp8 rate."""
    gpu = load_gpu(name)
    peaks = gpu.peak_dense_flops
    if peaks.fp8 is not None:
        assert peaks.fp8 == pytest.approx(2 * peaks.bf16, rel=0.015)
    if peaks.fp4 is not None:
        assert peaks.fp8 is not None
        assert peaks.fp4 >= 1.99 * peaks.fp8


@pytest.mark.parametrize("name", gpu_names())
def test_hardware_support_follows_the_architecture(name: str) -> None:
    gpu = load_gpu(name)
    if gpu.vendor == "apple":
        assert (gpu.peak_dense_flops.fp8, gpu.peak_dense_flops.fp4) == (None, None)
        return
    assert gpu.compute_capability is not None
    if gpu.vendor == "nvidia":
        capability = float(gpu.compute_capability)
        assert (gpu.peak_dense_flops.fp8 is not None) == (capability >= 8.9)
        assert (gpu.peak_dense_flops.fp4 is not None) == (capability >= 10)
    else:
        assert (gpu.peak_dense_flops.fp4 is not None) == (gpu.compute_capability == "gfx950")


@pytest.mark.parametrize("name", gpu_names())
def test_unverified_names_fields(name: str) -> None:
    gpu = load_gpu(name)
    fields = {*Gpu.model_fields, *(f"peak_dense_flops.{dtype}" for dtype in PeakFlops.model_fields)}
    assert set(gpu.unverified) <= fields
    assert not any(len(text) > 260 for text in (*gpu.notes, *gpu.conflicts, *gpu.sources))


def test_h200() -> None:
    gpu = load_gpu("h200-sxm")
    assert gpu.name == "NVIDIA H200"
    assert gpu.peak_dense_flops == PeakFlops(bf16=989e12, fp8=1979e12, fp4=None, int8=1979e12)
    assert gpu.hbm_bandwidth_bytes_per_s == 4.8e12
    assert gpu.memory_bytes == 143_771 * 2**20  # what nvidia-smi reports, not the label's 141e9
    assert gpu.l2_bytes == 60 * 2**20
    assert gpu.sm_count == 132
    assert gpu.scale_up_bidir_bytes_per_s == 900e9
    assert gpu.pcie_unidir_bytes_per_s == 64e9
    assert gpu.tdp_w == 700
    assert gpu.unverified == ("clock_hz",)


def test_samples() -> None:
    assert load_gpu("h100-sxm").peak_dense_flops.bf16 == 989.4e12
    assert load_gpu("h100-sxm").hbm_bandwidth_bytes_per_s == 3.35e12
    b200 = load_gpu("b200")
    assert b200.hbm_bandwidth_bytes_per_s == 7680 / 8 * 3996e6 * 2
    assert (b200.l2_bytes, b200.sm_count, b200.memory_bytes) == (132_644_864, 148, 183_359 * 2**20)
    assert load_gpu("gb300").sm_count is None
    assert load_gpu("rtx-5090").scale_up_bidir_bytes_per_s is None
    assert load_gpu("dgx-spark-gb10").hbm_bandwidth_bytes_per_s == 273e9
    assert load_gpu("mi355x").peak_dense_flops.fp4 == 1.00663e16


# --- memory ----------------------------------------------------------------------------------------------------------

#: What nvidia-smi prints as a GPU's total, in MiB.
READ_OUTS = {
    "a10": 23_028,
    "a100-pcie-80gb": 81_920,
    "a100-sxm-40gb": 40_960,
    "a100-sxm-80gb": 81_920,
    "b200": 183_359,
    "b300": 275_040,
    "gb200": 189_471,
    "gb300": 284_208,
    "h100-pcie": 81_559,
    "h100-sxm": 81_559,
    "h200-sxm": 143_771,
    "l4": 23_034,
    "l40s": 46_068,
    "rtx-3090": 24_576,
    "rtx-4090": 24_564,
    "rtx-5090": 32_607,
    "rtx-pro-6000-blackwell": 97_887,
    "rtx-pro-6000-blackwell-server": 97_887,
}


@pytest.mark.parametrize("name", gpu_names())
def test_memory_is_a_read_out_or_says_that_it_is_none(name: str) -> None:
    """A decimal label (24e9 bytes) can never pass: 2^20 divides no multiple of 10^9 below 2,048 GB."""
    gpu = load_gpu(name)
    mib, rest = divmod(gpu.memory_bytes, 2**20)
    assert rest == 0
    assert READ_OUTS.get(name, mib) == mib
    assert (name in READ_OUTS) == ("memory_bytes" not in gpu.unverified)


@pytest.mark.parametrize("name", gpu_names())
def test_memory_has_one_source_which_states_it(name: str) -> None:
    gpu = load_gpu(name)
    (source,) = [source for source in gpu.sources if source.startswith("memory")]
    assert source.startswith(f"memory_bytes: {gpu.memory_bytes // 2**20:,} MiB, ")


def test_a_label_that_no_read_out_was_seen_for_is_binary() -> None:
    """By product name: 94 GB of HBM are 94 GiB, as memory chips are made."""
    labels = {"h100-nvl": 94, "h20": 96, "mi300x": 192, "mi325x": 256, "mi355x": 288, "rtx-3080": 10, "rtx-a6000": 48}
    labels |= {"rtx-2080-ti": 11, "v100-32gb": 32, "rtx-5060-ti-16gb": 16, "strix-halo": 128, "rx-7900-xtx": 24}
    labels |= {"m3-ultra": 96, "m4-max": 128, "m5-max": 128, "m5-pro": 64}
    assert {name: load_gpu(name).memory_bytes // 2**30 for name in labels} == labels
    assert set(gpu_names()) - set(READ_OUTS) - set(labels) == {"dgx-spark-gb10"}  # a framework's 121.63 GiB
    assert load_gpu("dgx-spark-gb10").memory_bytes == round(121.63 * 1024) * 2**20


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("h200", "h200-sxm"),
        ("H200", "h200-sxm"),
        (" H 200 ", "h200-sxm"),
        ("h100_sxm", "h100-sxm"),
        ("H100 SXM", "h100-sxm"),
        ("h100", "h100-sxm"),
        ("a100", "a100-sxm-80gb"),
        ("4090", "rtx-4090"),
        ("RTX 5090", "rtx-5090"),
        ("spark", "dgx-spark-gb10"),
        ("pro-6000", "rtx-pro-6000-blackwell"),
        ("MI300X", "mi300x"),
    ],
)
def test_names_as_people_type_them(typed: str, name: str) -> None:
    assert load_gpu(typed) is load_gpu(name)


def test_aliases_lead_somewhere_and_hide_nothing() -> None:
    for alias, name in _catalog()["aliases"].items():
        assert name in gpu_names()
        assert alias not in gpu_names()


@pytest.mark.parametrize(
    ("typed", "close"), [("h2oo", "h200-sxm"), ("h20o", "h20"), ("b2000", "b200"), ("rtx4080", "rtx-4090")]
)
def test_a_typo_gets_close_names(typed: str, close: str) -> None:
    with pytest.raises(InputError, match=rf"--gpu: no catalogue GPU is called '{typed}'; did you mean .*{close}"):
        load_gpu(typed)


@pytest.mark.parametrize("typed", ["", "tpu-v7x", "x" * 10_000, "/nowhere", "a\nb"])
def test_unknown_names_list_the_catalogue(typed: str) -> None:
    with pytest.raises(InputError, match="known: a10, a100-pcie-80gb") as caught:
        load_gpu(typed)
    assert len(str(caught.value)) < 800


# --- a person's own file ---------------------------------------------------------------------------------------------


def write(folder: Path, fields: dict[str, Any]) -> str:
    path = folder / "own.json"
    path.write_text(json.dumps(fields))
    return str(path)


def test_own_file(tmp_path: Path) -> None:
    toml = tmp_path / "own.TOML"
    toml.write_text(OWN)
    gpu = load_gpu(str(toml))
    assert gpu == load_gpu(write(tmp_path, FIELDS))
    assert gpu.peak_dense_flops == PeakFlops(bf16=5e14)
    assert (gpu.name, gpu.sm_count, gpu.l2_bytes, gpu.unverified) == ("My GPU", None, None, ())


@pytest.mark.parametrize("name", gpu_names())
def test_a_shipped_gpu_survives_its_own_file(name: str, tmp_path: Path) -> None:
    gpu = load_gpu(name)
    path = tmp_path / "copy.json"
    path.write_text(gpu.model_dump_json())
    assert load_gpu(str(path)) == gpu


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_required_fields(field: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"own.json: {field}"):
        load_gpu(write(tmp_path, {name: value for name, value in FIELDS.items() if name != field}))


@pytest.mark.parametrize("value", [0, -1, -1e12, 1e19, 4800, float("nan"), float("inf"), "4.8e12", True, None, [], {}])
@pytest.mark.parametrize("field", ["hbm_bandwidth_bytes_per_s", "memory_bytes", "peak_dense_flops.bf16"])
def test_values_out_of_range(field: str, value: Any, tmp_path: Path) -> None:
    """4800 is what a person types who thinks in GB/s."""
    outer, _, inner = field.partition(".")
    changed = FIELDS | {outer: {inner: value} if inner else value}
    with pytest.raises(InputError, match=rf"own\.json: {field}"):
        load_gpu(write(tmp_path, changed))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sm_count", 0),
        ("sm_count", 1.5),
        ("sm_count", -3),
        ("sm_count", 2**40),
        ("l2_bytes", 0),
        ("clock_hz", 1830),
        ("clock_hz", float("nan")),
        ("tdp_w", -1),
        ("scale_up_bidir_bytes_per_s", 900),
        ("name", ""),
        ("name", 5),
        ("name", "x" * 1000),
        ("unverified", "l2_bytes"),
        ("bandwidth", 4.8e12),
    ],
)
def test_other_bad_fields(field: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"own\.json: {field}") as caught:
        load_gpu(write(tmp_path, FIELDS | {field: value}))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("a.toml", "name = ", "not valid TOML"),
        ("a.toml", "x = " + "[" * 5000, "nested too deeply"),
        ("a.toml", "sm_count = " + "9" * 10_000, "number too long"),
        ("a.toml", OWN.replace("2.5e12", "nan"), "hbm_bandwidth_bytes_per_s"),
        ("a.toml", OWN.replace("2.5e12", "inf"), "hbm_bandwidth_bytes_per_s"),
        ("a.toml", OWN.replace("2.5e12", "1979-05-27"), "hbm_bandwidth_bytes_per_s"),
        ("a.json", "{", "not valid JSON at line 1"),
        ("a.json", "[]", "holds a JSON list"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", json.dumps(FIELDS).replace("2500000000000.0", "1" + "0" * 400), "hbm_bandwidth_bytes_per_s"),
        ("a.json", "\ufeff{}", "not valid JSON"),
    ],
)
def test_broken_files(file: str, content: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.write_text(content)
    with pytest.raises(InputError, match=problem) as caught:
        load_gpu(str(path))
    assert len(str(caught.value)) < 500 + len(str(path))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_gpu(str(tmp_path / "absent.toml"))
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        load_gpu(str(tmp_path / "folder.json"))
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not UTF-8"):
        load_gpu(str(tmp_path / "bytes.json"))
    (tmp_path / "large.json").write_bytes(b" " * (16 * 2**20 + 1))
    with pytest.raises(InputError, match="16,777,217 bytes"):
        load_gpu(str(tmp_path / "large.json"))


def test_a_gpu_is_frozen() -> None:
    with pytest.raises(ValidationError):
        load_gpu("h200").sm_count = 1
