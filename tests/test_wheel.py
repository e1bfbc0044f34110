"""What a person who installs the wheel gets: the packages, their data, and a command that runs anywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

import wmtp_sim

ROOT = Path(__file__).resolve().parents[1]
# One worker runs this whole file: the wheel is built once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without this interpreter's path settings; return its stdout, or fail with all it said."""
    env = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture
def clean_venv(wheel: Path, tmp_path: Path) -> Iterator[Path]:
    """A virtual environment that holds the wheel and its pinned dependencies, and nothing else."""
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", venv / "bin" / "python")
    run(*pip, "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    yield venv
    shutil.rmtree(venv)


def test_top_level_packages(members: set[str]) -> None:
    top = {PurePosixPath(name).parts[0] for name in members}
    assert {name for name in top if not name.endswith(".dist-info")} == {"wmtp_sim", "calibration"}


def test_version_is_stated_once(wheel: Path) -> None:
    assert wheel.name.split("-")[:2] == ["wmtp_sim", wmtp_sim.__version__]


@pytest.mark.parametrize(
    ("source", "target"),
    [("wmtp_sim", "wmtp_sim"), ("calibration", "calibration"), ("scenarios", "wmtp_sim/scenarios")],
)
def test_every_file_is_in_the_wheel(members: set[str], source: str, target: str) -> None:
    kinds = {".py", ".json", ".toml", ".typed"}
    paths = [path for path in (ROOT / source).rglob("*") if path.suffix in kinds]
    expected = {f"{target}/{path.relative_to(ROOT / source).as_posix()}" for path in paths}
    assert expected
    assert expected <= members


def test_the_installed_command_runs_outside_the_checkout(clean_venv: Path, tmp_path: Path) -> None:
    words = "qwen3.5-35b-a3b --gpu h200 --context 1M --depth 6 --window 4032 --sink 64 --accept-length 4.5"
    stdout = run(clean_venv / "bin" / "wmtp", "estimate", *words.split(), "--json", cwd=tmp_path)
    assert json.loads(stdout.splitlines()[-1])["schema"] == "wmtp-estimate/1"
