"""Files that a command leaves behind, written whole or not at all: text, pages and pictures."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Collection, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from wmtp_sim.errors import InputError
from wmtp_sim.render.figures import DARK, LIGHT, style
from wmtp_sim.render.offline import filled, packaged, page_parts

#: What a figure can be written as: a page with its script inside, or a picture that needs kaleido.
PAGE, PICTURES = ".html", (".png", ".svg")
#: Width of a picture whose figure states none, and pixels per unit of it: papers are printed.
PICTURE_WIDTH = 1100
SCALE = {".png": 2.0, ".svg": 1.0}
#: Colours of the palette that a page changes in its figure where the system is dark.
RECOLOURED = ("ground", "ink", "soft", "line", "faint", "veil", "vermilion", "blue", "green")


def check_output(path: Path, suffixes: Collection[str], flag: str = "--out") -> str:
    """The suffix of a file to be written, before anything is computed for it.

    Raises:
        InputError: an unknown suffix, a folder, device or pipe, or a picture where kaleido is missing.
    """
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        named = str(path)[:80]
        raise InputError(flag, f"{named!r} does not end in {_either(suffixes)}", "the ending says what to write")
    refuse_special(path)
    if suffix in PICTURES and find_spec("kaleido") is None:
        hint = "pip install 'kaleido>=1,<2', or write .html"
        raise InputError(flag, f"{suffix} pictures need kaleido, which is not installed", hint)
    return suffix


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text (half a surrogate pair is a ``?``), whole or not at all. Raises `InputError` naming the path."""
    write_bytes(path, text.encode(errors="replace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write to a temporary file beside ``path``, then rename. Nothing but a regular file is ever replaced."""
    name = ""
    try:
        refuse_special(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".wmtp.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(_usual_mode())
        Path(name).replace(path)
    except (OSError, ValueError) as error:  # a path with a null character is a value at fault
        raise _unwritable(path, error) from None
    finally:  # nothing is there any more where all went well
        if name:
            Path(name).unlink(missing_ok=True)


def write_figure(
    figure: Any,
    path: Path,
    title: str = "wmtp",
    notes: Collection[str] = (),
    rows: Sequence[Sequence[str]] = (),
    flag: str = "--out",
) -> None:
    """A plotly figure as a self-contained page (``.html``) or a picture (``.png``, ``.svg``).

    ``title``, ``notes`` and ``rows``, the figure's data with the columns' names first, are plain text of the page,
    whatever characters they hold; a picture has none of them.

    Raises:
        InputError: as `check_output` and `write_text`, and where kaleido finds no browser to draw with.
    """
    suffix = check_output(path, (PAGE, *PICTURES), flag)
    if suffix == PAGE:
        write_text(path, page(figure, title, notes, rows))
    else:
        width = figure.layout.width or PICTURE_WIDTH
        picture = _picture(lambda: figure.to_image(suffix[1:], width=width, scale=SCALE[suffix]), suffix, flag)
        write_bytes(path, picture)


def page(figure: Any, title: str, notes: Collection[str] = (), rows: Sequence[Sequence[str]] = ()) -> str:
    """A whole HTML document that needs no network, in light or dark mode as the system has it."""
    own = figure.layout.meta or {}  # what the figure has of colours of its own, light to dark
    document = {"figure": json.loads(figure.to_json()), "dark": {LIGHT[name]: DARK[name] for name in RECOLOURED} | own}
    template, own_style, script = (packaged(__package__, f"figure.{kind}") for kind in ("html", "css", "js"))
    said = {
        "TITLE": escape(title),
        "NOTES": "\n".join(f"<p>{escape(note)}</p>" for note in notes),
        "TABLE": _table(*rows) if rows else "",
    }
    return filled(template, said | page_parts(style() + own_style, script, document))


def _table(head: Sequence[str], *body: Sequence[str]) -> str:
    """The figure's data for those who do not see it."""

    def line(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    lines = "".join(line(row, "td") for row in body)
    table = f"<table><thead>{line(head, 'th')}</thead><tbody>{lines}</tbody></table>"
    inside = f'<div class="scroll" tabindex="0" role="region" aria-label="The figure as a table">{table}</div>'
    return f"<details><summary>The figure as a table</summary>{inside}</details>"


def refuse_special(path: Path) -> None:
    """Raises `InputError` for a folder, device or pipe where a file is to be written."""
    try:
        special = path.exists() and not path.is_file()
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None
    if special:
        raise InputError(str(path)[:200], "cannot be written (a folder, pipe or device)", "give the path of a file")


def _unwritable(path: Path, error: Exception) -> InputError:
    problem = f"cannot be written ({getattr(error, 'strerror', None) or error})"
    return InputError(str(path)[:200], problem, "give another path")


def _picture(draw: Callable[[], bytes], suffix: str, flag: str) -> bytes:
    """What kaleido draws. It drives a browser, and each of its releases fails in its own words."""
    try:
        return draw()
    except Exception as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        problem = f"{suffix} was not drawn: {said[:160].rstrip('.')}"
        raise InputError(flag, problem, "kaleido needs Chrome or Chromium on the PATH; or write .html") from None


def _usual_mode() -> int:
    """Permissions of a new file; a temporary file's are its owner's alone."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _either(suffixes: Collection[str]) -> str:
    *others, last = suffixes
    return f"{', '.join(others)} or {last}" if others else last
