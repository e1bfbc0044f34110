"""What only a process of its own shows: imports of a cold start, pipes that close or never answer, odd stdouts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

POINT = ("estimate", "qwen3.5-35b-a3b", "--gpu", "h200", "--context", "1M", "--depth", "6")
COMMAND = (sys.executable, "-c", "from wmtp_sim.cli import main; main()")
#: Far above what any of these commands takes: it only turns a hang into a failure.
HANGS = 60


def wmtp(*words: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *words], capture_output=True, timeout=HANGS, check=False, **more)


# --- cold start --------------------------------------------------------------------------------------------------

PROBE = """
import sys
from wmtp_sim.cli import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print()
print(" ".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        ((*POINT, "--accept-length", "4.5", "--json"), {"torch", "plotly", "scipy", "rich"}),
        (("models", "show", "kimi-k3", "--json"), {"torch", "plotly", "scipy"}),
        (POINT, {"torch", "plotly", "scipy"}),
        (("models",), {"torch", "plotly", "scipy"}),
        (("--help",), {"torch", "plotly", "scipy"}),
        (("estimate", "--help"), {"torch", "plotly", "scipy"}),
        (
            ("preflight", "qwen3.5-27b", "--gpu", "h200", "--context", "4K", "--json"),
            {"torch", "plotly", "scipy", "rich"},
        ),
        (("--version",), {"torch", "plotly", "scipy", "rich"}),
    ],
)
def test_a_cold_start_imports_little(words: tuple[str, ...], absent: set[str]) -> None:
    ran = subprocess.run([sys.executable, "-c", PROBE, *words], capture_output=True, timeout=HANGS, check=True)
    imported = set(ran.stdout.decode().splitlines()[-1].split())
    assert "wmtp_sim" in imported
    assert not imported & absent


# --- Ctrl-C ------------------------------------------------------------------------------------------------------

STOPPED = """
import importlib.abc, os, signal, sys

module = sys.argv.pop(1)

class Interrupts(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
from wmtp_sim.cli import main
main()
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize(
    "module",
    [
        "typer",
        "wmtp_sim.cli.app",
        "wmtp_sim.api",
        "numpy",
        "numpy._core._multiarray_umath",
        "pydantic",
        "pydantic_core",
        "wmtp_sim.render.tables",
        "rich.table",
    ],
)
def test_ctrl_c_while_something_is_imported(module: str) -> None:
    words = [sys.executable, "-c", STOPPED, module, *POINT]
    ran = subprocess.run(words, capture_output=True, timeout=HANGS, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, b"", b"")


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_while_it_works() -> None:
    grid = ("--context", "1:1M", "--depth", "0:400", "--json")
    with subprocess.Popen([*COMMAND, *POINT, *grid], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(20)  # it is writing, and waits for a reader
        process.send_signal(signal.SIGINT)
        assert process.wait(HANGS) == 130
        assert process.stderr.read() == b""


def test_a_command_that_is_stopped_at_once_has_imported_nothing() -> None:
    """Before `main` can watch for Ctrl-C, only a few modules of Python's own are imported."""
    probe = "import sys, wmtp_sim.cli; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    ran = subprocess.run([sys.executable, "-c", probe], capture_output=True, timeout=HANGS, check=True)
    assert not {"numpy", "pydantic", "typer", "rich"} & set(ran.stdout.decode().split())


# --- pipes and devices -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("models",), ("models", "--json"), ("--help",), POINT, (*POINT, "--explain")])
def test_a_reader_who_leaves(words: tuple[str, ...]) -> None:
    """`wmtp models | head -3`: the pipe is closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run([*COMMAND, *words], stdout=writing, stderr=subprocess.PIPE, timeout=HANGS, check=False)
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (1, b"")


def test_a_reader_who_leaves_later() -> None:
    grid = ("--context", "1K:1M", "--depth", "0:400", "--json")
    with subprocess.Popen([*COMMAND, *POINT, *grid], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(20).startswith(b'{"schema": "wmtp-')
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a full disk at hand")
@pytest.mark.parametrize("words", [("models",), ("models", "--json"), (*POINT, "--json"), ("--help",), ("--version",)])
def test_a_full_disk(words: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        ran = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, timeout=HANGS, check=False)
    assert ran.returncode == 1
    assert ran.stderr == b"wmtp: the output cannot be written (No space left on device)\n"


@pytest.mark.skipif(os.name == "nt", reason="a shell's >&- closes it")
@pytest.mark.parametrize(
    "words", [("models",), ("gpus", "--json"), POINT, (*POINT, "--json"), ("--help",), ("--version",)]
)
def test_a_closed_stdout(words: tuple[str, ...]) -> None:
    """`wmtp models >&-`: nothing can have been told, so that is no success; without a stderr either, it is silent."""
    for closed, err in (
        (">&-", b"wmtp: the output cannot be written (standard output is closed)\n"),
        (">&- 2>&-", b""),
    ):
        shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, *words]
        ran = subprocess.run(shell, capture_output=True, timeout=HANGS, check=False)
        assert (ran.returncode, ran.stdout, ran.stderr) == (1, b"", err)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize(
    ("flag", "name"), [("MODEL", "pipe.json"), ("--gpu", "pipe.toml"), ("--engine", "pipe.toml"), ("--drafter", "pipe")]
)
def test_a_pipe_that_never_answers(tmp_path: Path, flag: str, name: str) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    words = ("estimate", str(pipe), *POINT[2:]) if flag == "MODEL" else (*POINT, flag, str(pipe))
    ran = wmtp(*words)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert b"cannot be read (a folder, pipe or device); give a regular file\n" in ran.stderr


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no endless device here")
@pytest.mark.parametrize("flag", ["MODEL", "--gpu", "--engine", "--drafter"])
def test_an_endless_device(tmp_path: Path, flag: str) -> None:
    """By its own name, and behind a link that looks like a file."""
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    for path in ("/dev/zero", str(tmp_path / "zero.toml")):
        words = ("estimate", path, *POINT[2:]) if flag == "MODEL" else (*POINT, flag, path)
        ran = wmtp(*words)
        assert (ran.returncode, ran.stdout) == (2, b"")
        assert ran.stderr.count(b"\n") == 1


# --- odd standard outputs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("models",), ("gpus",), ("engines",), ("models", "show", "kimi-k3"), POINT])
def test_an_ascii_stdout(words: tuple[str, ...]) -> None:
    ran = wmtp(*words, env={**os.environ, "PYTHONIOENCODING": "ascii:strict"})
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.isascii()


@pytest.mark.skipif(os.name == "nt", reason="bytes that are no text cannot be typed")
def test_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "wmtp_sim" / "data" / "models" / "qwen3-8b.json"
    path = os.fsencode(tmp_path) + b"/caf\xe9\x1b[31m.json"
    Path(os.fsdecode(path)).write_bytes(source.read_bytes())
    words: list[Any] = [*COMMAND, "estimate", path, "--gpu", "h200", "--context", "1K", "--depth", "0"]
    for more in ([], ["--json"]):
        ran = subprocess.run([*words, *more], capture_output=True, timeout=HANGS, check=False)
        assert (ran.returncode, ran.stderr) == (0, b"")
        assert b"\x1b" not in ran.stdout
    json.loads(ran.stdout)["model"].encode()
