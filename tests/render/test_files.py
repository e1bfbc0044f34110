"""Files are written whole or not at all, and what cannot be written is refused by name."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import plotly.graph_objects as go
import pytest

from wmtp_sim.errors import InputError
from wmtp_sim.render import files
from wmtp_sim.render.files import check_output, page, write_bytes, write_figure, write_text

HOSTILE = "</script><script>alert(1)</script>\"'&"


def test_text_is_written_over_an_older_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    write_text(path, "first, longer")
    write_text(path, "µs")
    assert path.read_bytes() == "µs".encode()
    assert os.listdir(path.parent) == ["page.html"]


def test_others_may_read_what_was_written(tmp_path: Path) -> None:
    older = os.umask(0o022)
    try:
        write_text(tmp_path / "page.html", "")
    finally:
        os.umask(older)
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o644


def test_a_disk_that_fills_leaves_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    path.write_text("older")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="No space left"):
        write_bytes(path, b"newer")
    assert (os.listdir(tmp_path), path.read_text()) == (["page.html"], "older")


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "page.html", b"")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["", "nul\0.html", "x" * 300 + ".html", "file/page.html"])
def test_places_where_no_file_can_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_text(tmp_path / name, "")
    assert os.listdir(tmp_path) == ["file"]


def test_an_unwritable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(**_: Any) -> None:  # root may write anywhere, so the mode of a folder would show nothing
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files.tempfile, "mkstemp", denied)
    with pytest.raises(InputError, match="Permission denied"):
        write_text(tmp_path / "page.html", "")


def test_devices_and_pipes_are_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.html")
    for path in (tmp_path / "pipe.html", Path("/dev/null")):
        with pytest.raises(InputError, match="a folder, pipe or device"):
            write_text(path, "")


@pytest.mark.parametrize("name", ["page", "page.pdf", "page.html.gz", ".html"])
def test_unknown_endings(name: str) -> None:
    with pytest.raises(InputError, match=r"does not end in \.html, \.png or \.svg"):
        write_figure(go.Figure(), Path(name))


def test_endings_are_known_in_capitals(tmp_path: Path) -> None:
    assert check_output(tmp_path / "PAGE.HTML", (".html",)) == ".html"
    with pytest.raises(InputError, match=r"does not end in \.html;"):
        check_output(Path("page.pdf"), (".html",))


def test_a_page_needs_no_network_and_its_words_are_inert() -> None:
    text = page(go.Figure(layout={"title": {"text": HOSTILE}}), HOSTILE, [HOSTILE])
    assert "<script>alert" not in text
    assert 'src="http' not in text
    assert text.count("&lt;script&gt;alert(1)") == 2  # the title and the note


def test_pictures_without_kaleido(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="need kaleido, which is not installed; pip install 'kaleido"):
        write_figure(go.Figure(), tmp_path / "a.svg")


def test_pictures_without_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_chrome(*_: Any, **__: Any) -> bytes:
        raise RuntimeError("\nKaleido requires Google Chrome to be installed.\n\nEither download ...")

    monkeypatch.setitem(sys.modules, "kaleido", ModuleType("kaleido"))
    monkeypatch.setattr(files, "find_spec", lambda name: object())
    figure = SimpleNamespace(layout=SimpleNamespace(width=None), to_image=no_chrome)
    with pytest.raises(InputError, match="requires Google Chrome to be installed; kaleido needs Chrome"):
        write_figure(figure, tmp_path / "a.png")
    assert os.listdir(tmp_path) == []


def test_pictures_are_what_kaleido_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "find_spec", lambda name: object())
    figure = SimpleNamespace(layout=SimpleNamespace(width=None), to_image=lambda kind, **_: kind.encode())
    write_figure(figure, tmp_path / "a.PNG")
    assert (tmp_path / "a.PNG").read_bytes() == b"png"
