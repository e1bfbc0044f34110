"""Reading shipped or user TOML files into specs, with errors that name the file and the field."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from wmtp_sim.catalog.fields import read_text
from wmtp_sim.errors import InputError

SpecType = TypeVar("SpecType", bound=BaseModel)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML document. Raises `InputError` with the position of the first mistake."""
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(str(path), f"not valid TOML: {error}", "see the shipped files for the format") from None


def read_spec(path: Path, spec: type[SpecType], schema: str) -> SpecType:
    """A spec from a TOML file whose ``schema`` line must match."""
    document = read_toml(path)
    stated = document.pop("schema", None)
    if stated != schema:
        raise InputError(f"{path}: schema", f"is {stated!r}", f"this release reads {schema!r}")
    return validated(document, spec, str(path))


def validated(document: dict[str, Any], spec: type[SpecType], where: str) -> SpecType:
    """A spec from a parsed document; pydantic's first complaint becomes an `InputError`."""
    try:
        return spec.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        spot = ".".join(str(part) for part in first["loc"])
        shown = repr(first.get("input"))[:60]
        raise InputError(f"{where}: {spot}", f"{first['msg']} (got {shown})") from None
