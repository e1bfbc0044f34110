"""Shell scripts cut into their commands, so that a launch line can be found in one. Nothing is run or expanded.

Known of a shell's grammar: quotes, backslashes, comments, what ends a command (``;``, ``&``, ``|``, brackets, a line
end), redirections, substitutions (kept as one word) and here-documents (passed over). What stands between ``then`` and
``fi`` is a command like any.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

#: What a shell takes as one piece, the first that fits.
_PIECE = re.compile(
    r"""(?P<goes_on>\\\n)
    | (?P<kept>\\.|'[^']*'|"(?:\\.|[^"\\])*"|\d?>&\d?|&>>?|<&|>\||<<<)
    | (?P<put_in>`[^`]*`|\$\((?:[^()]|\([^()]*\))*\))
    | (?P<comment>(?<![^\s;&|()])\#[^\n]*)
    | (?P<here><<(?P<tabs>-?)[ \t]*(?P<quote>['"]?)\\?(?P<word>[A-Za-z0-9_.-]+)(?P=quote))
    | (?P<end>[;|&()\n])
    | (?P<other>[^\\'"`$\#\d<>&;|()\n]+|.)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Statement:
    """One command of a script as written, with the number of the line that it begins in."""

    line: int
    text: str


def statements(script: str) -> Iterator[Statement]:
    """The commands of a script, in order."""
    script = script.replace("\r\n", "\n")
    at, begins, text = 0, 0, ""
    bodies: list[tuple[str, str]] = []
    while found := _PIECE.match(script, at):
        at = found.end()
        if found["end"] is None:
            begins = begins if text.strip() else found.start()
            text += _as_words(found)
            if found["here"]:
                bodies.append((found["tabs"], found["word"]))
            continue
        if text.strip():
            yield Statement(script.count("\n", 0, begins) + 1, text.strip())
        text = ""
        if found["end"] == "\n":
            at = _behind(script, at, bodies)
            bodies = []
    if text.strip():
        yield Statement(script.count("\n", 0, begins) + 1, text.strip())


def _as_words(piece: re.Match[str]) -> str:
    """A piece as text that splits into words as the shell would; a substitution is one word, as it stands."""
    if piece["comment"] or piece["here"]:
        return ""
    if piece["goes_on"]:
        return " "
    return shlex.quote(piece[0]) if piece["put_in"] else piece[0]


def _behind(script: str, at: int, bodies: list[tuple[str, str]]) -> int:
    """The place behind here-documents, which begin at a line's start; each ends with a line that is its word."""
    for tabs, word in bodies:
        indent = r"\t*" if tabs else ""
        ended = re.compile(rf"^{indent}{re.escape(word)}$\n?", re.MULTILINE).search(script, at)
        at = ended.end() if ended else len(script)
    return at
