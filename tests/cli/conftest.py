"""The command in this process: an exception that escapes `main` fails the test by itself."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wmtp_sim.cli import main


@dataclass(frozen=True)
class Ran:
    """What one command left behind."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The last line of stdout, read strictly."""
        return strict_json(self.out.splitlines()[-1])


Run = Callable[..., Ran]


def strict_json(text: str) -> Any:
    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """``run("estimate", "qwen3-8b", ...)`` in an empty folder, which must stay empty."""
    folder = tmp_path_factory.mktemp("empty")
    monkeypatch.chdir(folder)

    def command(*arguments: str | Path) -> Ran:
        monkeypatch.setattr(sys, "argv", ["wmtp", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not os.listdir(folder)
        status = ended.value.code or 0
        assert isinstance(status, int)
        out, err = capsys.readouterr()
        return Ran(status, out, err)

    return command


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """The one line that a refused command writes, after ``wmtp: ``."""

    def command(*arguments: str | Path) -> str:
        ran = run(*arguments)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.startswith("wmtp: ")
        assert ran.err.endswith("\n")
        line = ran.err[len("wmtp: ") : -1]
        assert line.isprintable()
        assert 20 < len(line) <= 1000
        return line

    return command
