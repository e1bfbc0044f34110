"""One self-contained HTML page: template, style and script of this folder, Plotly's script, and the packed table."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

from wmtp_sim.errors import InputError
from wmtp_sim.render.breakeven.document import packed_document
from wmtp_sim.render.breakeven.start import Start
from wmtp_sim.render.breakeven.table import CostTable

#: A page is sent by mail; Plotly's script alone is 4.8 MB.
MAX_BYTES = 6_000_000
#: Where the template takes a part.
_SLOT = re.compile(r"/\*([A-Z]+)\*/")
#: Written as escapes inside a script element: what could end it, or a line of it.
_UNSAFE = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def breakeven_page(table: CostTable, start: Start, command: str = "") -> str:
    """The page's HTML. Names and commands are data in it, never markup.

    Raises:
        InputError: ``--context``, where the grid makes a page above `MAX_BYTES`.
    """
    from plotly.offline import get_plotlyjs

    parts = {
        "STYLE": _text("page.css"),
        "PLOTLY": get_plotlyjs().replace("</script", "<\\/script"),
        "DATA": embedded(packed_document(table, start, command)),
        "SCRIPT": _text("page.js"),
    }
    pieces = _SLOT.split(_text("page.html"))  # slots are found in the template alone: content is never searched
    page = "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))
    size = len(page.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        problem = f"a page of {size / 1e6:.1f} MB, at most {MAX_BYTES / 1e6:.0f} MB"
        raise InputError("--context x --depth x --window x --batch", problem, "narrow one of them")
    return page


def embedded(document: dict[str, Any]) -> str:
    """A document as JSON that is inert inside a script element, in ASCII."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).translate(_UNSAFE)


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
