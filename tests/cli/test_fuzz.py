"""Every option of every command, given what nobody means: an answer or a refusal in one line, and never a traceback.

Options are taken from the commands themselves, so that a new one is tried by being there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.cli.conftest import Run
from wmtp_sim.cli.app import app

POINT = ("--gpu", "h200", "--context", "4K")
#: Commands that answer by themselves, and how; `calibrate` and what it writes need a GPU.
COMMANDS: dict[str, tuple[str, ...]] = {
    "estimate": ("estimate", "qwen3-8b", *POINT, "--depth", "0"),
    "recommend": ("recommend", "qwen3.5-27b", *POINT, "--depth", "1", "--alpha", "0.6"),
    "preflight": ("preflight", "qwen3.5-27b", *POINT),
    "breakeven": ("breakeven", "qwen3.5-27b", *POINT, "--depth", "0:1", "--window", "1K", "--batch", "1", "--json"),
    "plot roofline": ("plot", "roofline", "qwen3-8b", *POINT, "--depth", "0", "--json"),
    "engines show": ("engines", "show", "vllm"),
    "profiles import": ("profiles", "import", "aiconfigurator", "--system", "none"),
    "validate": ("validate",),
}
#: Commands whose one argument is what is tried.
NAMED: dict[str, tuple[str, ...]] = {
    "estimate": ("estimate", *POINT),
    "recommend": ("recommend", *POINT, "--alpha", "0.5"),
    "preflight": ("preflight", *POINT),
    "breakeven": ("breakeven", *POINT, "--json"),
    "models show": ("models", "show"),
    "engines show": ("engines", "show"),
    "profiles show": ("profiles", "show"),
    "validate": ("validate",),
}
NONSENSE = (
    "",
    "0",
    "-1",
    "2147483648",
    "1e400",
    "nan",
    "FP8",
    "\u00e9\u2603\x1b[31m",
    "x" * 5000,
    "FOLDER",
    "a=b",
    "1:2",
)
#: Values per option; all of them are tried on some option of each command.
SHARE = 2


def options() -> Iterator[tuple[str, str]]:
    """Every option that takes a value, by its command."""
    for command in COMMANDS:
        found: Any = get_command(app)
        for word in command.split():
            found = found.commands[word]
        yield from (
            (command, each.opts[0]) for each in found.params if each.opts[0].startswith("--") and not each.is_flag
        )


TRIED = tuple(options())


def test_options_are_found() -> None:
    assert len(TRIED) > 100
    assert {("estimate", "--kv"), ("recommend", "--draft-tp"), ("plot roofline", "--gpu")} <= set(TRIED)


def answers(run: Run, words: tuple[str, ...], value: str, folder: Path) -> None:
    ran = run(*words, str(folder) if value == "FOLDER" else value)  # `run` fails by itself where an exception escapes
    assert ran.status in (0, 1, 2)
    assert "Traceback" not in ran.err
    if ran.status == 2:
        assert (ran.out, ran.err.count("\n")) == ("", 1)
        assert ran.err.startswith("wmtp: ")
        assert ran.err[:-1].isprintable()


@pytest.mark.parametrize("place", range(len(TRIED)), ids=[" ".join(each) for each in TRIED])
def test_options(run: Run, tmp_path: Path, place: int) -> None:
    command, option = TRIED[place]
    for value in [NONSENSE[(place * SHARE + i) % len(NONSENSE)] for i in range(SHARE)]:
        answers(run, (*COMMANDS[command], option), value, tmp_path)


@pytest.mark.parametrize("command", NAMED)
def test_arguments(run: Run, tmp_path: Path, command: str) -> None:
    for value in NONSENSE:
        answers(run, NAMED[command], value, tmp_path)


@pytest.mark.parametrize("flag", ["--kv", "--draft-kv"])
@pytest.mark.parametrize("command", ["estimate", "recommend", "preflight"])
def test_cache_formats_by_the_engines_words(run: Run, refused: Any, command: str, flag: str) -> None:
    """fp8_e4m3 and fp8_e5m2 are fp8, in any case."""
    words = COMMANDS[command]
    plain = run(*words, flag, "fp8")
    assert plain.status == 0
    for word in ("FP8_E4M3", "fp8_e5m2"):
        assert run(*words, flag, word) == plain
    assert refused(*words, flag, "fp9").endswith("one of bf16, bfloat16, fp8, fp8_e4m3, fp8_e5m2")


@pytest.mark.parametrize("command", [command for command, option in TRIED if option == "--draft-tp"])
def test_no_ranks_for_a_drafter(refused: Any, command: str) -> None:
    assert refused(*COMMANDS[command], "--draft-tp", "0").startswith("--draft-tp: ")
