"""What commands print: one JSON document, or tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import typer


def print_json(document: dict[str, Any]) -> None:
    """One line of JSON on standard output."""
    typer.echo(json.dumps(document, allow_nan=False))


def console() -> Any:
    """Standard output for tables; rich is imported only where there are some."""
    from wmtp_sim.render.console import stdout_console

    return stdout_console()


def show(as_json: bool, document: Callable[..., dict[str, Any]], tables: Callable[..., None], *found: Any) -> None:
    """What was found, or a whole catalogue where nothing is given: its document, or its tables."""
    if as_json:
        print_json(document(*found))
    else:
        tables(*found, console())
