"""Where tables go: a terminal at its own width, or a pipe at a fixed one, and never a control character from a file."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

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


def stdout_console() -> Console:
    """Standard output as it is now."""
    console = PlainConsole()
    return console if console.is_terminal else PlainConsole(width=PIPE_WIDTH)
