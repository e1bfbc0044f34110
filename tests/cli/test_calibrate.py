"""``wmtp calibrate`` on a CPU, from measuring to an estimate; and everything that may go wrong on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wmtp_sim.catalog.profiles import load_profile

pytest.importorskip("torch")
pytest.importorskip("triton")

Run = Callable[..., Any]
Refused = Callable[..., str]
ROOT = Path(__file__).parents[2]
QUICK = ("calibrate", "--device", "cpu", "--quick")
COMMAND = (sys.executable, str(ROOT / "cli.py"))


def measurements(out: Path) -> Path:
    return Path(f"{out}.measurements.jsonl")


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profile of one quick calibration, which no test changes."""
    out = tmp_path_factory.mktemp("calibrated") / "cpu.json"
    subprocess.run([*COMMAND, *QUICK, "--out", str(out)], check=True, capture_output=True, timeout=300)
    return out


def copied(calibrated: Path, folder: Path) -> Path:
    """Its measurements in another folder, beside a profile yet to be written."""
    out = folder / "cpu.json"
    text = measurements(calibrated).read_text()
    measurements(out).write_text(text.replace('"noisy": true', '"noisy": false'))  # those would be tried again
    return out


def points(path: Path) -> list[str]:
    return [json.loads(line)["key"] for line in path.read_text().splitlines()[1:]]


def test_from_calibration_to_estimate(run: Run, calibrated: Path) -> None:
    profile = load_profile(str(calibrated))
    assert profile.status == "measured"
    copies = [r for r in profile.measurements if r["kernel"] == "copy"]
    quiet = [r for r in copies if not r["noisy"]]  # on a busy machine some are not, and are not fitted
    assert len(copies) >= 4
    assert profile.kernels["copy"].points == (len(quiet) if len(quiet) >= 4 else 0)
    described = calibrated.with_suffix(".gpu.toml")
    words = ("estimate", "llama-3.2-1b", "--gpu", described, "--context", "4K", "--depth", "0")
    ran = run(*words, "--profile", calibrated, "--json")
    assert ran.status == 0
    assert ran.document["schema"].startswith("wmtp-estimate/")
    assert "measured" in run(*words, "--profile", calibrated).out
    assert "transferred" in run("estimate", *words[1:2], "--gpu", "h200", *words[4:], "--profile", calibrated).out


def test_a_second_run_measures_nothing_again(run: Run, calibrated: Path, tmp_path: Path) -> None:
    out = copied(calibrated, tmp_path)
    before = measurements(out).read_bytes()
    ran = run(*QUICK, "--out", out)
    assert ran.status == 0
    assert "0 are new" in ran.err
    assert measurements(out).read_bytes() == before
    assert "gemm" in ran.out


def test_resumes_after_a_truncated_line(run: Run, calibrated: Path, tmp_path: Path) -> None:
    out = copied(calibrated, tmp_path)
    whole = measurements(out).read_bytes()
    measurements(out).write_bytes(whole[:-100])
    ran = run(*QUICK, "--out", out)
    assert ran.status == 0
    assert "1 are new" in ran.err
    assert sorted(points(measurements(out))) == sorted(points(measurements(calibrated)))


def test_interrupted_keeps_points_and_resumes(
    run: Run, calibrated: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ctrl-C at the fifth point. What points measure is known, so that nothing depends on the machine's load."""
    out, asked = tmp_path / "cpu.json", []
    _, *lines = measurements(calibrated).read_text().splitlines()
    known = {record["key"]: record | {"noisy": False} for record in map(json.loads, lines)}

    def measured_point(point: Any, *_: Any) -> Any:
        asked.append(point.key)
        if len(asked) == 5:
            raise KeyboardInterrupt
        return known[point.key]

    monkeypatch.setattr("calibration.suite.measured_point", measured_point)
    ran = run(*QUICK, "--out", out)
    assert ran.status == 130
    assert f"4 points are kept in {measurements(out)}; a new run resumes" in ran.err.splitlines()[-1]
    assert points(measurements(out)) == asked[:4]
    assert not out.exists()
    again = run(*QUICK, "--out", out)
    assert again.status == 0
    assert f"4 points were there already, {len(known) - 4} are new" in again.err
    assert points(measurements(out)) == asked[:4] + asked[5:]
    assert asked[5] == asked[4]
    assert out.exists()


def test_two_into_one_file(refused: Refused, tmp_path: Path) -> None:
    import fcntl

    out = tmp_path / "cpu.json"
    with measurements(out).open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "another calibration" in refused(*QUICK, "--out", out)


def test_measured_elsewhere(refused: Refused, calibrated: Path, tmp_path: Path) -> None:
    out = copied(calibrated, tmp_path)
    header, *rest = measurements(out).read_text().splitlines()
    document = json.loads(header)
    document["environment"]["gpu"] = "NVIDIA H200"
    text = "\n".join([json.dumps(document), *rest]) + "\n"
    measurements(out).write_text(text)
    assert "was measured elsewhere (gpu NVIDIA H200 there" in refused(*QUICK, "--out", out)
    assert measurements(out).read_text() == text


@pytest.mark.parametrize("content", ["precious", "[1]\n", '{"schema": "wmtp-measurements/9"}\n', "\x00\n", "{}"])
def test_no_measurement_file(refused: Refused, tmp_path: Path, content: str) -> None:
    """Whatever it is, it stays as it was."""
    out = tmp_path / "cpu.json"
    measurements(out).write_text(content)
    assert "is not a measurement file" in refused(*QUICK, "--out", out)
    assert measurements(out).read_text() == content


def test_disk_full(refused: Refused, tmp_path: Path) -> None:
    out = tmp_path / "cpu.json"
    measurements(out).symlink_to("/dev/full")
    assert "No space left" in refused(*QUICK, "--out", out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--out", "/dev/full"), "device"),
        (("--out", "/dev"), "folder"),
        (("--out", "profile.toml"), "--out"),
        (("--out", "/proc/nowhere/cpu.json"), "cannot be written"),
        (("--model", "no-such-model"), "--model"),
        (("--devices", "0"), "--devices"),
    ],
)
def test_refusals(refused: Refused, words: tuple[str, ...], named: str) -> None:
    assert named in refused(*QUICK, *words)
    assert not Path("/dev/full").is_file()


@pytest.mark.parametrize(
    "words", [("--device", "tpu"), ("--device", "mps"), ("--devices", "0,x"), ("--devices", "1,1")]
)
def test_no_such_device(refused: Refused, words: tuple[str, ...]) -> None:
    assert refused("calibrate", *words).startswith("--device")


def test_no_gpu(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "no CUDA GPU is visible" in refused("calibrate")
    assert "no CUDA GPU is visible" in refused("validate", "steps.json", "--run", "--model", "llama-3.1-8b")


@pytest.mark.parametrize("missing", ["torch", "triton"])
@pytest.mark.parametrize("words", [("calibrate",), ("validate", "s.json", "--run", "--model", "llama-3.1-8b")])
def test_without_the_extra(tmp_path: Path, missing: str, words: tuple[str, ...]) -> None:
    """A module that cannot be imported, as where the extra was not installed."""
    blocker = f"raise ModuleNotFoundError(\"No module named '{missing}'\", name='{missing}')"
    (tmp_path / f"{missing}.py").write_text(blocker)
    ran = subprocess.run(
        [*COMMAND, *words],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"wmtp: {missing}: ")
    assert "pip install 'wmtp-sim[gpu]'" in ran.stderr
    assert ran.stderr.count("\n") == 1
