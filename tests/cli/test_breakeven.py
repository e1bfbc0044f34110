"""`wmtp breakeven`: a page, its data, and refusals that leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from plotly.graph_objects import Figure

from tests.cli.conftest import Run
from wmtp_sim.render import files

SMALL = ("breakeven", "qwen3.5-35b-a3b", "--gpu", "h200", "--context", "64K:1M", "--depth", "0:4", "--batch", "1,8")


def test_a_page_is_written_and_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    ran = run(*SMALL, "--alpha", "0.8", "-o", path)
    assert (ran.status, ran.err) == (0, "")
    assert str(path) in ran.out
    assert path.read_text(encoding="utf-8").endswith("</html>\n")
    assert list(tmp_path.iterdir()) == [path]


def test_the_suffix_says_what_is_written(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(Figure, "to_image", lambda figure, kind, **sizes: drawn.append(kind) or kind.encode())
    monkeypatch.setattr(files, "find_spec", lambda name: True)
    for name in ("a.png", "a.SVG"):
        ran = run(*SMALL, "--alpha", "0.8", "-o", tmp_path / name)
        assert (ran.status, ran.err, ran.out) == (0, "", f"{tmp_path / name}\n")
    assert drawn == ["png", "svg"]
    assert (tmp_path / "a.SVG").read_bytes() == b"svg"


def test_a_picture_without_kaleido(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    line = refused(*SMALL, "-o", tmp_path / "a.png")
    assert line.startswith("--output: .png pictures need kaleido, which is not installed; pip install 'kaleido")
    assert not list(tmp_path.iterdir())


def test_the_data_alone(run: Run) -> None:
    ran = run(*SMALL, "--survival", "0.9,0.8,0.7,0.6", "--at", "depth=2,context=128K", "--json")
    document = ran.document
    assert document["schema"] == "wmtp-breakeven/1"
    assert document["point"] == {"context": 2**17, "depth": 2, "window": 4032, "batch": 1}
    assert document["command"].startswith("wmtp breakeven qwen3.5-35b-a3b --gpu h200")
    assert document["acceptance"]["native"]["rates"] == pytest.approx([0.9, 0.8 / 0.9, 0.7 / 0.8, 0.6 / 0.7])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "--output: no file is named"),
        (("--at", "depth", "--json"), "--at: 'depth' is not AXIS=VALUE"),
        (("--at", "depth=2", "--at", "depth=3", "--json"), "stated twice"),
        (("--at", "depth=9", "--json"), "--at: depth 9 is not in --depth"),
        (("--accept-length", "3", "--json"), "--at depth="),
        (("--acceptance-source", "hearsay", "--json"), "--acceptance-source"),
        (("--depth", "0", "--json"), "--depth: 0 drafts nothing"),
        (("--drafter", "none", "--json"), "--drafter"),
        (("--window", "1:40960,", "--json"), "--window"),
        (("--depth", "0:4000", "--json"), "points, at most"),
        (("-o", "/"), "--output: '/' does not end in .html"),
        (("-o", "/dev/null/at/all.html"), "cannot be written"),
    ],
)
def test_refusals(refused: Callable[..., str], flags: tuple[str, ...], words: str) -> None:
    assert words in refused(*SMALL, *flags)
