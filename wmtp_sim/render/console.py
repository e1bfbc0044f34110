"""Where tables go: a terminal at its own width, or a pipe at a fixed one, and never a control character from a file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

#: Columns of a table that is piped; wide enough for every table, so that no number wraps.
PIPE_WIDTH = 140


class PlainConsole(Console):
    """A console whose text is taken literally: no markup, no emoji, nothing unprintable.

    Names come from files and paths, which may hold escape sequences. Colours are rich's own and pass.
    """

    def __init__(self, width: int | None = None) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, width=width)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            safe = segment.control or segment.text.isprintable() or segment.text == "\n"
            yield segment if safe else Segment(_printable(segment.text), segment.style)


def _printable(text: str) -> str:
    return "".join(c for c in text if c.isprintable() or c == "\n")


def plain_table(words: Iterable[str], numbers: Iterable[str] = (), **column: Any) -> Table:
    """A table without lines: columns of words, then columns of numbers; ``column`` as `Table.add_column` takes it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in words:
        table.add_column(name, **column)
    for name in numbers:
        table.add_column(name, justify="right", **column)
    return table


def share(part: float | None) -> str:
    """A share as a cell of a table has it."""
    return "-" if part is None else f"{part:.1%}"


def stdout_console() -> Console:
    """Standard output as it is now."""
    console = PlainConsole()
    return console if console.is_terminal else PlainConsole(width=PIPE_WIDTH)
