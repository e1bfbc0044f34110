"""The `wmtp` command: read the words, call, render. No arithmetic lives here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from wmtp_sim.errors import InputError

if TYPE_CHECKING:
    from typer import TyperException

#: A message longer than this is cut, whatever a file or a command line put into it.
_LONGEST = 1000


def main() -> None:
    """Console entry point: what cannot be used is one line on stderr and exit code 2, never a traceback.

    The reader of a pipe may leave (`wmtp models | head`): typer and rich then end the process quietly.
    """
    from typer import TyperException

    from wmtp_sim.cli.app import app

    try:
        status = app(prog_name="wmtp", standalone_mode=False)
    except InputError as error:
        _fail(str(error), 2)
    except TyperException as error:  # an unknown flag, a missing argument, text where a number belongs
        _fail(_usage(error), 2)
    except OSError as error:  # files that are read raise `InputError`: this is stdout, as on a full disk
        _fail(f"the output cannot be written ({error.strerror})", 1)
    sys.exit(status if isinstance(status, int) else 0)


def _usage(error: TyperException) -> str:
    """Typer's message, and where the right words are listed."""
    message = error.format_message().rstrip(".")
    command = getattr(getattr(error, "ctx", None), "command_path", "wmtp")
    return f"{message}{'' if message.endswith('?') else ';'} `{command} --help` lists what it takes"


def _fail(message: str, status: int) -> NoReturn:
    """One line without control characters, which hostile file content could smuggle into a terminal."""
    line = "".join(c if c.isprintable() else " " for c in message)
    sys.stderr.write(f"wmtp: {line[:_LONGEST]}\n")
    sys.exit(status)
