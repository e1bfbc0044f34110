"""What a person reads: a dozen rows, whole numbers at any width, no escape sequence that rich did not write."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import wmtp_sim
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.gpus import gpu_names
from wmtp_sim.catalog.models import catalog_folder, import_config, load_model, model_names
from wmtp_sim.render.catalog import print_engines, print_gpus, print_model, print_models
from wmtp_sim.render.console import PIPE_WIDTH, PlainConsole, stdout_console
from wmtp_sim.render.tables import print_estimate, print_explanation
from wmtp_sim.spec.engine import Note

ESCAPES = "\x1b[31mred\x07\x1b]0;title\x07\r\x08\u202e"
ROWS = (
    *("draft ms", "verify ms", "extend ms", "sample ms", "host ms", "step ms"),
    *("tok/s per request", "margin over native", "speedup (at most)", "break-even AL"),
    *("memory per GPU", "max context"),
)

Show = Callable[[PlainConsole], None]


def shown(show: Show, width: int) -> list[str]:
    console = PlainConsole(width=width)
    console.file = io.StringIO()
    show(console)
    return console.file.getvalue().splitlines()


def demo(**changes: object) -> wmtp_sim.Estimate:
    stated = {"context": 2**20, "depth": 6, "accept_length": 4.5} | changes
    model = stated.pop("model", "qwen3.5-35b-a3b")
    return wmtp_sim.estimate(model, stated.pop("gpu", "h200"), **stated)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "changes", "label"),
    [
        ("bench", [], "90 % interval of a step"),
        ("sglang", [], "Range (kernels measured, engine judged) of a step"),
        ("sglang", ["spread=1"], "Range (kernels measured, engine stated) of a step"),
    ],
)
def test_only_a_definition_left_alone_gives_an_interval(engine: str, changes: list[str], label: str) -> None:
    lines = estimate_lines(160, engine=load_engine(engine, changes))
    assert any(line.startswith(label) for line in lines)


def estimate_lines(width: int, **changes: object) -> list[str]:
    answer = demo(**changes)
    return shown(lambda console: print_estimate(answer, console), width)


def table_of(lines: list[str]) -> dict[str, list[str]]:
    """Row label -> cells, up to the first sentence below the table."""
    found = {}
    heading = next(i for i, line in enumerate(lines) if line.split()[:1] == ["base"])
    for line in lines[heading + 1 :]:
        cells = re.split(r"\s{2,}", line.strip())
        if line.startswith(("Speculation", "Depth", "Base step", "Does not", "The target", "Judged", "Range", "90 %")):
            break
        found[cells[0]] = cells[1:]
    return found


# --- one point ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 100, PIPE_WIDTH])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"accept_length": None},
        {"gpu": "4090", "depth": 16, "batch": 64, "accept_length": 1.1, "engine": "vllm"},
        {"model": "deepseek-v3", "gpu": "b200", "tp": 8, "depth": 1, "accept_length": 1.8, "context": 1000},
        {"model": "llama-3.1-70b", "depth": 8, "drafter": "llama-3.2-1b", "accept_length": 3.0, "context": 2**17},
    ],
)
def test_a_point_at_every_width(width: int, changes: dict[str, object]) -> None:
    lines = estimate_lines(width, **changes)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    table = table_of(lines)
    assert set(ROWS) <= set(table)
    assert len(table) <= 14
    assert len(table["step ms"]) == 4
    assert all(re.fullmatch(r"[0-9.]+", cell) for cell in table["step ms"])
    assert table == table_of(estimate_lines(PIPE_WIDTH, **changes))


def test_units_are_named() -> None:
    lines = estimate_lines(PIPE_WIDTH)
    assert {line.split("  ")[0].strip() for line in lines} >= {"step ms", "tok/s per request"}
    assert re.search(r"memory per GPU .* GB", "\n".join(lines))


def test_no_drafter_is_not_called_depth_0() -> None:
    none = estimate_lines(PIPE_WIDTH, drafter="none", accept_length=None)
    zero = estimate_lines(PIPE_WIDTH, depth=0, accept_length=None)
    assert "Base step alone: nothing is drafted." in none
    assert "Base step alone: nothing is drafted at depth 0." in zero


def test_what_neither_pays_nor_loses_breaks_even() -> None:
    even = float(demo().policies["flag"].break_even_accept_length)  # the best that this engine has
    for length, says in (
        (even * 0.6, "loses"),
        (even * 0.99, "probably loses"),
        (even * 0.999, "breaks even"),
        (even, "breaks even"),
        (even * 1.01, "probably pays"),
        (even * 1.6, "pays"),
    ):
        assert f"Speculation {says} at depth 6" in "\n".join(estimate_lines(PIPE_WIDTH, accept_length=length))


@pytest.mark.parametrize("width", [80, PIPE_WIDTH])
def test_a_sweep_is_a_dozen_rows(width: int) -> None:
    grid = wmtp_sim.open_grid([2**12, 2**16, 2**20], range(9), [1024, 4096], [1, 64])
    context, depth, window, batch = grid
    lines = estimate_lines(
        width, context=context, depth=depth, window=window, batch=batch, accept_length=None, alpha=0.7
    )
    rows = [line for line in lines if re.match(r"\s*(4K|64K|1M)\s", line)]
    assert len(rows) == 12
    fitting = [line for line in rows if "no room" not in line]
    assert 6 < len(fitting) < 12
    assert all(len(line.split()) == 5 + 3 * 2 for line in fitting)
    text = " ".join(" ".join(lines).split())
    assert "no room: memory does not hold it." in text
    assert "12 of 108 points; --json has all." in text
    assert ("?: probably." in text) == any("x?" in line for line in rows)


def test_a_cell_that_does_not_fit_shows_no_win() -> None:
    """64 sequences at 1M need 1,448 GB of an H200's 128: no step, no speedup."""
    lines = estimate_lines(PIPE_WIDTH, context=2**20, batch=np.array([1, 64]), depth=3, accept_length=2.5)
    row = next(line for line in lines if line.split()[:1] == ["64"])
    assert row.split() == ["64", *(["no", "room"] * 4)]


@pytest.mark.parametrize("width", [80, PIPE_WIDTH])
def test_an_explanation_is_a_dozen_rows_a_step(width: int) -> None:
    answer = demo()
    lines = shown(lambda console: print_explanation(answer, console), width)
    assert max(map(len, lines)) <= width
    steps = "\n".join(lines).strip().split("\n\n")
    assert [step.split(":")[0] for step in steps] == ["base", "native", "flag", "ring"]
    assert all(len(step.splitlines()) <= 16 for step in steps)


# --- the catalogue -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 100, PIPE_WIDTH])
def test_lists_keep_names_and_numbers_whole(width: int) -> None:
    for show, names in ((print_models, model_names()), (print_gpus, gpu_names())):
        lines = shown(show, width)
        assert max(map(len, lines)) <= width
        assert [line.split()[0] for line in lines[1 : 1 + len(names)]] == list(names)
        assert not any("…" in line for line in lines)
        assert ("Not shown" in "\n".join(lines)) == (width < PIPE_WIDTH)
    engines = shown(print_engines, width)
    assert max(map(len, engines)) <= width


@pytest.mark.parametrize("name", model_names())
def test_a_model_at_80_columns(name: str) -> None:
    lines = shown(lambda console: print_model(load_model(name), console), 80)
    assert max(map(len, lines)) <= 80
    assert lines[0] == name
    assert {line.split("  ")[0] for line in lines} >= {"parameters", "KV", "state", "draft head"}


# --- terminals and pipes -----------------------------------------------------------------------------------------


def test_names_cannot_carry_escape_sequences() -> None:
    document = json.loads((catalog_folder() / "qwen3-8b.json").read_text())
    model = import_config(document, f"mine{ESCAPES}")
    gpu = wmtp_sim.load_gpu("h200").model_copy(update={"name": f"fast{ESCAPES}"})
    engine = load_engine("sglang").model_copy(update={"version": ESCAPES, "notes": (Note(text=ESCAPES),)})
    answer = wmtp_sim.estimate(model, gpu, context=1024, depth=2, drafter="eagle", engine=engine)
    for show in (
        lambda console: print_estimate(answer, console),
        lambda console: print_explanation(answer, console),
        lambda console: print_model(model, console),
    ):
        lines = shown(show, PIPE_WIDTH)
        assert all(line.isprintable() for line in lines)
        assert "mine" in lines[0] or "base" in lines[1]


def test_a_pipe_is_wide_and_plain(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    console = stdout_console()
    assert console.width == PIPE_WIDTH
    print_estimate(demo(), console)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert len(table_of(out.splitlines())["step ms"]) == 4


@pytest.fixture
def terminal() -> Iterator[Callable[..., str]]:
    """``terminal(columns, *words, **environment)``: what a terminal of that width receives."""
    pty = pytest.importorskip("pty")
    fcntl, struct, termios = (pytest.importorskip(name) for name in ("fcntl", "struct", "termios"))
    opened: list[int] = []

    def run(columns: int, *words: str, **environment: str) -> str:
        ours, theirs = pty.openpty()
        opened.append(ours)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
        command = [sys.executable, "-c", "from wmtp_sim.cli import main; main()", *words]
        with subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=inherited | {"TERM": "xterm"} | environment
        ):
            os.close(theirs)
            received = b""
            while True:
                try:
                    piece = os.read(ours, 65_536)
                except OSError:  # Linux says so when the other side has closed
                    break
                if not piece:
                    break
                received += piece
        return received.decode().replace("\r\n", "\n")

    yield run
    for descriptor in opened:
        os.close(descriptor)


COLOUR = re.compile(r"\x1b\[[0-9;]*m")
POINT = ("estimate", "qwen3.5-35b-a3b", "--gpu", "h200", "--context", "1M", "--depth", "6", "--accept-length", "4.5")


def test_a_terminal_of_80_columns(terminal: Callable[..., str]) -> None:
    coloured = terminal(80, *POINT)
    assert "\x1b[33m" in coloured  # warnings are yellow
    plain = COLOUR.sub("", coloured)
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= 80
    assert table_of(plain.splitlines()) == table_of(estimate_lines(PIPE_WIDTH))


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_without_colour(terminal: Callable[..., str], environment: dict[str, str]) -> None:
    text = terminal(80, *POINT, **environment)
    assert not re.search(r"\x1b\[(3|4|9)[0-9]", text)
    assert table_of(COLOUR.sub("", text).splitlines()) == table_of(estimate_lines(PIPE_WIDTH))


def test_files_of_a_terminal_are_named_as_typed(terminal: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "\x1b[5mblink.json"
    path.write_text((catalog_folder() / "qwen3-8b.json").read_text())
    text = terminal(80, "models", "show", str(path), NO_COLOR="1")
    assert "\x1b[5m" not in text
    assert "blink" in text
