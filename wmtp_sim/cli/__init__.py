"""The `wmtp` command: read the words, call, render. No arithmetic lives here."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from wmtp_sim.errors import InputError

if TYPE_CHECKING:
    from types import FrameType

    from typer import TyperException

#: A message longer than this is cut, whatever a file or a command line put into it.
_LONGEST = 1000
#: What a shell reports of a process that Ctrl-C ended.
_INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Console entry point: what cannot be used is one line on stderr and exit code 2, never a traceback.

    The reader of a pipe may leave (`wmtp models | head`): typer and rich then end the process quietly, with 1. Output
    that cannot be written for another reason is one line and 1, Ctrl-C is 130.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    if sys.stdout is None:
        sys.stdout = _Closed()
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


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Ctrl-C: at once while something is imported, as an exception cannot always leave an import; else as usual."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            os._exit(_INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


class _Closed(io.TextIOBase):
    """A standard output that was closed before the process began (`wmtp models >&-`): nothing can be written to it."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "standard output is closed")


def _usage(error: TyperException) -> str:
    """Typer's message, and where the right words are listed."""
    message = error.format_message().rstrip(".")
    command = getattr(getattr(error, "ctx", None), "command_path", "wmtp")
    return f"{message}{'' if message.endswith('?') else ';'} `{command} --help` lists what it takes"


def _fail(message: str, status: int) -> NoReturn:
    say(message)
    sys.exit(status)


def say(message: str) -> None:
    """One line on stderr without control characters, which hostile file content could smuggle into a terminal."""
    line = "".join(c if c.isprintable() else " " for c in message)
    if sys.stderr is not None:
        sys.stderr.write(f"wmtp: {line[:_LONGEST]}\n")
        sys.stderr.flush()
