"""Engines by name: the shipped definition files, or a user's own."""

from __future__ import annotations

import difflib
from functools import cache
from importlib import resources
from pathlib import Path

from wmtp_sim.catalog.toml_files import read_spec
from wmtp_sim.errors import InputError
from wmtp_sim.spec.engine import Engine

SCHEMA = "wmtp-engine/1"


def _folder() -> Path:
    return Path(str(resources.files("wmtp_sim") / "data" / "engines"))


@cache
def engine_names() -> tuple[str, ...]:
    """Names of the shipped engines, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob("*.toml")))


def load_engine(reference: str) -> Engine:
    """An engine from a shipped name or a TOML file. Raises `InputError` with close names for an unknown one."""
    name = reference.lower()
    if name in engine_names():
        return _shipped(name)
    if reference.endswith(".toml"):
        return read_spec(Path(reference), Engine, SCHEMA)
    close = difflib.get_close_matches(name, engine_names(), n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    known = f"{hint}one of {', '.join(engine_names())}, or an engine file that ends in .toml"
    raise InputError("--engine", f"unknown engine {reference[:60]!r}", known)


@cache
def _shipped(name: str) -> Engine:
    return read_spec(_folder() / f"{name}.toml", Engine, SCHEMA)
