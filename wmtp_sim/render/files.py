"""Files that a command leaves behind, written whole or not at all: text, pages and pictures."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from wmtp_sim.errors import InputError

#: What a figure can be written as: a page with its script inside, or a picture that needs kaleido.
PAGE, PICTURES = ".html", (".png", ".svg")
#: Width of a picture whose figure states none, and pixels per unit of it: papers are printed.
PICTURE_WIDTH = 1100
SCALE = {".png": 2.0, ".svg": 1.0}
#: Pixels below which a page's figure is scrolled sideways instead of squeezed.
LEAST_WIDTH = 860


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
        raise InputError(flag, f"{suffix} pictures need kaleido, which is not installed", _KALEIDO)
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
    figure: Any, path: Path, title: str = "wmtp", notes: Collection[str] = (), flag: str = "--out"
) -> None:
    """A plotly figure as a self-contained page (``.html``) or a picture (``.png``, ``.svg``).

    ``title`` and ``notes`` are plain text of the page, whatever characters they hold; a picture has neither.

    Raises:
        InputError: as `check_output` and `write_text`, and where kaleido finds no browser to draw with.
    """
    suffix = check_output(path, (PAGE, *PICTURES), flag)
    if suffix == PAGE:
        write_text(path, page(figure, title, notes))
    else:
        width = figure.layout.width or PICTURE_WIDTH
        picture = _picture(lambda: figure.to_image(suffix[1:], width=width, scale=SCALE[suffix]), suffix, flag)
        write_bytes(path, picture)


def page(figure: Any, title: str, notes: Collection[str] = ()) -> str:
    """A whole HTML document that needs no network: plotly's script is inside."""
    body = figure.to_html(full_html=False, include_plotlyjs=True, config={"displaylogo": False, "responsive": True})
    paragraphs = "\n".join(f"<p>{escape(note)}</p>" for note in notes)
    return _PAGE.format(title=escape(title), body=body, notes=paragraphs, least=LEAST_WIDTH)


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


_KALEIDO = "pip install 'kaleido>=1,<2', or write .html"
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
html {{ overflow-y: scroll; }}
body {{ margin: 0 auto; max-width: 1180px; padding: 8px; background: #fff; color: #222;
  font: 14px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }}
.wide {{ overflow-x: auto; }}
.wide > div {{ min-width: {least}px; }}
p {{ margin: 0.4em 12px; max-width: 75em; }}
</style>
</head>
<body>
<div class="wide"><div>{body}</div></div>
{notes}
</body>
</html>
"""


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
