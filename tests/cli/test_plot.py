"""`wmtp plot roofline`: a page, the data, or one line that says what to type."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wmtp_sim
from wmtp_sim.render import files
from wmtp_sim.render.roofline import roofline

Run = Callable[..., Any]
WORDS = ("plot", "roofline", "qwen3.5-35b-a3b", "--gpu", "h200", "--context", "128K", "--depth", "3")


def test_the_page(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "roofline.html"
    ran = run(*WORDS, "-o", out)
    assert (ran.status, ran.out, ran.err) == (0, "", f"wmtp: roofline: {out}\n")
    text = out.read_text()
    assert len(text) < 6e6
    assert "<title>qwen3.5-35b-a3b on NVIDIA H200: roofline</title>" in text
    assert [path.name for path in tmp_path.iterdir()] == ["roofline.html"]


def test_the_data_are_the_librarys(run: Run, tmp_path: Path) -> None:
    ran = run(*WORDS, "--policy", "ring", "--json", "-o", tmp_path / "roofline.json")
    answer = roofline(wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", context=2**17, depth=3), "ring")
    assert ran.document == json.loads(json.dumps(answer.document))
    assert json.loads((tmp_path / "roofline.json").read_text()) == ran.document


@pytest.mark.parametrize(
    ("words", "field", "hint"),
    [
        ((), "--out: ", "-o roofline.html"),
        (("-o", "roofline.pdf"), "--out: ", "the ending says what to write"),
        (("-o", "."), "--out: ", "does not end in .html, .png, .svg or .json"),
        (("--json", "--context", "4K:1M"), "--context: ", "for example --context 1M"),
        (("--json", "--depth", "0:3"), "--depth: ", "for example --depth 6"),
        (("--json", "--policy", "none"), "--policy: ", "native, flag, ring"),
        (("--json", "--gpu", "nothing"), "--gpu: ", ""),
    ],
)
def test_refusals(refused: Callable[..., str], words: tuple[str, ...], field: str, hint: str) -> None:
    line = refused(*WORDS, *words)
    assert line.startswith(field)
    assert hint in line


def test_a_folder_and_a_picture_without_kaleido(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder.html").mkdir()
    assert "a folder, pipe or device" in refused(*WORDS, "-o", tmp_path / "folder.html")
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    assert "kaleido" in refused(*WORDS, "-o", tmp_path / "roofline.png")
