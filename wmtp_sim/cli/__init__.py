"""The `wmtp` command: read the words, call, render. No arithmetic lives here."""

from __future__ import annotations

import os
import sys

from wmtp_sim.errors import InputError


def main() -> None:
    """Console entry point: what cannot be used is one line on stderr and exit code 2, never a traceback."""
    from wmtp_sim.cli.app import app

    try:
        app()
    except InputError as error:
        sys.stderr.write(f"wmtp: {_one_line(error)}\n")
        sys.exit(2)
    except BrokenPipeError:
        # The reader of a pipe left (`wmtp models | head`): not an error. Keep the interpreter's own flush quiet too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(error: InputError) -> str:
    """The message without control characters, which hostile file content could smuggle into a terminal."""
    return "".join(c if c.isprintable() else " " for c in str(error))[:1000]
