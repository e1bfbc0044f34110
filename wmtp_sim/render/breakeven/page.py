"""One self-contained HTML page: template, style and script of this folder, Plotly's script, and the packed table."""

from __future__ import annotations

from wmtp_sim.errors import InputError
from wmtp_sim.render.breakeven.document import packed_document
from wmtp_sim.render.breakeven.start import Start
from wmtp_sim.render.breakeven.table import CostTable
from wmtp_sim.render.figures import style
from wmtp_sim.render.offline import filled, packaged, page_parts

#: A page is sent by mail; Plotly's script alone is 2 MB.
MAX_BYTES = 6_000_000


def breakeven_page(table: CostTable, start: Start, command: str = "") -> str:
    """The page's HTML. Names and commands are data in it, never markup.

    Raises:
        InputError: ``--context``, where the grid makes a page above `MAX_BYTES`.
    """
    template, own_style, script = (packaged(__package__, f"page.{kind}") for kind in ("html", "css", "js"))
    colours = {each.name: each.system.look.colours for each in table.estimate.systems}
    parts = page_parts(style(colours) + own_style, script, packed_document(table, start, command))
    page = filled(template, parts)
    size = len(page.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        problem = f"a page of {size / 1e6:.1f} MB, at most {MAX_BYTES / 1e6:.0f} MB"
        raise InputError("--context x --depth x --window x --batch", problem, "narrow one of them")
    return page
