"""``wmtp profiles`` and ``--profile``: what is listed, and which files are refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wmtp_sim.catalog.gpus import gpu_names, load_gpu, named_by_driver
from wmtp_sim.catalog.profiles import IDEAL, SCHEMA, dump, load_profile, slug

Run = Callable[..., Any]
Refused = Callable[..., str]
POINT = ("estimate", "llama-3.2-1b", "--gpu", "h200", "--context", "4K", "--depth", "0")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's profiles, of which there are none yet."""
    monkeypatch.setenv("WMTP_PROFILES", str(tmp_path))
    load_profile.cache_clear()
    return tmp_path


def document(**changes: Any) -> dict[str, Any]:
    measured = IDEAL.model_copy(update={"name": "mine", "status": "measured", "gpu": "NVIDIA H200"})
    return json.loads(dump(measured)) | changes


def written(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(json.dumps(content))
    return path


def with_gemm(**changes: Any) -> dict[str, Any]:
    found = document()
    found["kernels"]["gemm"] |= changes
    return found


def test_lists_shipped_and_own(run: Run, folder: Path) -> None:
    written(folder / "mine.json", document(provenance={"date": "2026-01-02"}))
    (folder / "broken.json").write_text("{")
    found = run("profiles", "--json").document
    assert found["schema"] == "wmtp-profiles/1"
    rows = {row["name"]: row for row in found["profiles"]}
    assert rows["mine"]["path"] == str(folder / "mine.json")
    assert (rows["mine"]["date"], rows["mine"]["status"], rows["mine"]["gpu"]) == (
        "2026-01-02",
        "measured",
        "NVIDIA H200",
    )
    assert rows["broken"]["status"] == "unreadable"
    table = run("profiles").out
    assert all(name in table for name in rows)


def test_shows_by_name_and_by_file(run: Run, folder: Path) -> None:
    path = written(folder / "mine.json", document(provenance={"date": "2026-01-02", "driver": "\x1b[31m580"}))
    for reference in ("mine", path):
        shown = run("profiles", "show", reference).out
        assert "gemm" in shown
        assert "date: 2026-01-02" in shown
        assert "\x1b" not in shown
    assert run("profiles", "show", path, "--json").document["schema"] == SCHEMA
    assert run("profiles", "--json", "show", "mine").document["name"] == "mine"


def test_a_profile_serves_its_gpu(run: Run, folder: Path) -> None:
    path = written(folder / "mine.json", document())
    assert "kernels: measured" in run(*POINT, "--profile", "mine").out
    assert "kernels: measured" in run(*POINT, "--profile", path).out


def test_a_file_of_another_gpu_serves_nobody(run: Run, folder: Path) -> None:
    """Whatever it is called: a CPU's as an H200's, an H200's as a B200's."""
    shipped = run(*POINT, "--json").document
    written(folder / "nvidia-h200.json", document(gpu="Some CPU"))
    written(folder / f"{slug(load_gpu('b200').name)}.json", document())
    load_profile.cache_clear()
    assert run(*POINT, "--json").document == shipped
    assert "kernels: measured (aiconfigurator)" in run(*POINT[:3], "b200", *POINT[4:]).out
    written(folder / f"{slug(load_gpu('h20').name)}.json", document())
    load_profile.cache_clear()
    assert "kernels: transferred" in run(*POINT[:3], "h20", *POINT[4:]).out


def test_another_gpus_profile_is_carried_over(run: Run, folder: Path) -> None:
    path = written(folder / "other.json", document(gpu="NVIDIA B200"))
    ours, theirs = (run(*POINT, "--profile", p).out for p in (written(folder / "o.json", document()), path))
    assert "kernels: transferred" in theirs
    assert "kernels: measured" in ours


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (document(schema="wmtp-profile/9"), "schema"),
        (document(schema=None), "schema"),
        (document(turn_s=math.nan), "turn_s"),
        (with_gemm(bandwidth=1.5), "kernels.gemm.bandwidth"),
        (with_gemm(bandwidth=-1), "kernels.gemm.bandwidth"),
        (with_gemm(floor_s=math.nan), "kernels.gemm.floor_s"),
        (with_gemm(spread=math.inf), "kernels.gemm.spread"),
        (with_gemm(code="import os"), "kernels.gemm.code"),
        (document(kernels={"warp_drive": {}}), "warp_drive"),
        (document(kernels=[]), "kernels"),
        ({"schema": SCHEMA}, "missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_refused_profiles(refused: Refused, folder: Path, content: dict[str, Any], named: str) -> None:
    path = written(folder / "bad.json", content)
    assert named in refused(*POINT, "--profile", path)
    assert named in refused("profiles", "show", path)


def test_refused_references(refused: Refused, folder: Path) -> None:
    assert refused(*POINT, "--profile", "nobody").startswith("--profile: no profile is called 'nobody'")
    assert "cannot be read" in refused(*POINT, "--profile", folder / "gone.json")
    assert refused(*POINT, "--engine", "ideal", "--profile", "nobody").startswith("--profile: the ideal engine")


def test_nan_among_measurements_is_null(run: Run, folder: Path) -> None:
    path = written(folder / "nan.json", document(measurements=[{"seconds": math.nan}]))
    assert run("profiles", "show", path, "--json").document["measurements"] == [{"seconds": None}]


@pytest.mark.parametrize("name", gpu_names())
def test_every_catalogue_name_is_known(name: str) -> None:
    assert named_by_driver(load_gpu(name).name) == load_gpu(name)


@pytest.mark.parametrize(
    ("driver", "name"),
    [("NVIDIA H100 80GB HBM3", "h100-sxm"), ("NVIDIA L40S", "l40s"), ("NVIDIA B200", "b200"), ("Tesla T4", None)],
)
def test_drivers_names(driver: str, name: str | None) -> None:
    assert named_by_driver(driver) == (name and load_gpu(name))


@pytest.mark.parametrize("words", [("--model", "llama-3.2-1b"), ("--depths", "3"), ("--budget", "9")])
def test_flags_of_a_run_need_a_run(refused: Refused, words: tuple[str, str]) -> None:
    assert refused("validate", "steps.json", *words).startswith(f"{words[0]}: is for --run only")


def test_importing_refuses_in_words_and_writes_nothing(run: Run, refused: Refused, tmp_path: Path) -> None:
    asked = ("profiles", "import", "aiconfigurator", "--system", "b200_sxm", "--path", tmp_path)
    out = tmp_path / "made.json"
    assert "--system" in refused(*asked, "--out", out)
    assert "--out" in refused(*asked, "--out", tmp_path / "made.txt")
    assert "folder" in refused(*asked, "--out", tmp_path)
    assert "aiconfigurator" in refused("profiles", "import", "hearsay", "--system", "b200_sxm", "--out", out)
    assert not list(tmp_path.iterdir())


def test_an_imported_profile_serves_under_its_authors_name(run: Run, folder: Path) -> None:
    """`wmtp profiles import` names who measured; every face of an estimate repeats it."""
    path = written(folder / "theirs.json", document(by="aiconfigurator"))
    assert "kernels: measured (aiconfigurator)" in run(*POINT, "--profile", path).out
    assert "kernels measured by aiconfigurator" in run(*POINT, "--profile", path).out
    assert run(*POINT, "--profile", path, "--json").document["profile"]["by"] == "aiconfigurator"
    assert "by" not in run(*POINT, "--json").document["profile"]
    assert "(aiconfigurator)" in run("profiles").out


def test_what_a_gpus_own_profile_lacks_is_said(run: Run) -> None:
    warnings = {w["id"]: w["text"] for w in run(*POINT[:3], "b200", *POINT[4:], "--json").document["warnings"]}
    assert "NVIDIA H200" in warnings["transferred-kernels"]
    assert "elementwise" in warnings["transferred-kernels"]
    assert "gemm" not in warnings["transferred-kernels"]
