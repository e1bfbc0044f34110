"""The commands that README.md and docs/ show are run, and what they show as output is what comes out.

In a block fenced as ```` ```console ````, lines after ``$`` are commands; those that start with ``wmtp`` or ``python``
run, in order, in a copy of the checkout, and must exit with 0. Lines below a command are its output on a pipe and must
match to the letter (spaces at line ends apart), unless the block is fenced as ```` ```console no-check ````. Commands
of a block fenced as ```` ```console gpu ```` may also refuse, where no GPU is visible.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from wmtp_sim.catalog.field import read_field
from wmtp_sim.catalog.gpus import gpu_names
from wmtp_sim.catalog.models import model_names

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if path.is_file()]
FENCE = re.compile(r"^ {0,3}```console(?P<flags>[^\n`]*)\n(?P<body>.*?)^ {0,3}```[ \t]*$", re.MULTILINE | re.DOTALL)
#: What a copy of the checkout does without.
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "node_modules")
HANGS = 300


@dataclass
class Shown:
    """One command as a document shows it, with the output below it."""

    command: str
    checked: bool
    gpu: bool
    output: list[str] = field(default_factory=list)

    @property
    def runs(self) -> bool:
        return re.match(r"(wmtp|python3?)(\s|$)", self.command) is not None


def commands(text: str) -> list[Shown]:
    """All commands of a document's console blocks; a line that ends in a backslash goes on."""
    found: list[Shown] = []
    for block in FENCE.finditer(text):
        flags = block["flags"].split()
        current: Shown | None = None
        for line in block["body"].splitlines():
            if current is not None and current.command.endswith("\\"):
                current.command = current.command[:-1] + line.strip()
            elif line.startswith("$ "):
                current = Shown(line[2:].strip(), checked="no-check" not in flags, gpu="gpu" in flags)
                found.append(current)
            elif current is not None:
                current.output.append(line)
    return found


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As a person would in a shell, with this environment's ``wmtp`` and ``python`` first."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    quiet = {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)}
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=inherited | quiet,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )


def lines(text: str) -> list[str]:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n").split("\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="the documents' commands are written for bash")
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_work_as_shown(document: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(ROOT, folder, ignore=LEFT_OUT)
    wrong = []
    for shown in commands(document.read_text(encoding="utf-8")):
        if not shown.runs:
            continue
        ran = run(shown.command, folder)
        if shown.gpu and ran.returncode == 2 and "no CUDA GPU is visible" in ran.stderr:
            continue
        if ran.returncode:
            wrong.append(f"$ {shown.command}\nexit code {ran.returncode}: {ran.stderr.strip()[-500:]}")
        elif shown.checked and any(map(str.strip, shown.output)):
            expected, real = lines("\n".join(shown.output)), lines(ran.stdout)
            if expected != real:
                wrong.append(f"$ {shown.command}\nshown:\n" + "\n".join(expected) + "\nreal:\n" + "\n".join(real))
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.skipif(not (ROOT / "README.md").is_file(), reason="no README.md yet")
def test_the_readme_shows_commands() -> None:
    assert any(shown.runs for shown in commands((ROOT / "README.md").read_text(encoding="utf-8")))


@pytest.mark.skipif(not (ROOT / "README.md").is_file(), reason="no README.md yet")
def test_the_readme_counts_what_ships() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shipped = {"configs": model_names(), "GPUs": gpu_names(), "public measurements": read_field()}
    for what, items in shipped.items():
        assert f"{len(items)} {what}" in readme


def test_blocks_are_understood() -> None:
    text = """
```sh
$ wmtp not-this
```
```console
$ wmtp models \\
    --json
{"one": 1}

two
$ make demo
```
   ```console no-check
   $ not at the start of a line
$ python -c 'print(1)'  # a comment
anything
```
"""
    found = commands(text)
    assert [shown.command for shown in found] == [
        "wmtp models --json",
        "make demo",
        "python -c 'print(1)'  # a comment",
    ]
    assert [shown.checked for shown in found] == [True, True, False]
    assert [shown.runs for shown in found] == [True, False, True]
    assert found[0].output == ['{"one": 1}', "", "two"]
