"""One self-contained HTML page: template, style and script of this folder, Plotly's script, and the packed table."""

from __future__ import annotations

from importlib.resources import files

from wmtp_sim.errors import InputError
from wmtp_sim.render.breakeven.document import packed_document
from wmtp_sim.render.breakeven.start import Start
from wmtp_sim.render.breakeven.table import CostTable
from wmtp_sim.render.figures import style
from wmtp_sim.render.offline import embedded, filled, plotly, unpack_script

#: A page is sent by mail; Plotly's script alone is 2 MB.
MAX_BYTES = 6_000_000


def breakeven_page(table: CostTable, start: Start, command: str = "") -> str:
    """The page's HTML. Names and commands are data in it, never markup.

    Raises:
        InputError: ``--context``, where the grid makes a page above `MAX_BYTES`.
    """
    parts = {
        "STYLE": style(_colours(table)) + _text("page.css"),
        "PLOTLY": plotly(),
        "DATA": embedded(packed_document(table, start, command)),
        "SCRIPT": unpack_script() + _text("page.js"),
    }
    page = filled(_text("page.html"), parts)
    size = len(page.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        problem = f"a page of {size / 1e6:.1f} MB, at most {MAX_BYTES / 1e6:.0f} MB"
        raise InputError("--context x --depth x --window x --batch", problem, "narrow one of them")
    return page


def _colours(table: CostTable) -> dict[str, tuple[str, str]]:
    return {each.name: each.system.look.colours for each in table.estimate.systems}


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
