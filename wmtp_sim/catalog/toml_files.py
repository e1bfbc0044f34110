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
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(str(path), f"not valid TOML: {error}", "see the shipped files for the format") from None
    except (RecursionError, ValueError):
        raise InputError(str(path), "nested too deeply or a number too long", "is this the right file?") from None


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
        raise complaint(error, where) from None


def complaint(error: ValidationError, where: str, hint: str = "") -> InputError:
    """Pydantic's first complaint as an `InputError` that names the document, the field and its value."""
    first = error.errors()[0]
    spot = ".".join(str(part)[:60] for part in first["loc"])
    field = f"{where}: {spot}" if spot else where
    if first["type"] == "extra_forbidden":
        return InputError(field, "is not a known field", hint or "remove it, or check its name")
    if first["type"] == "missing":
        return InputError(field, "is missing", hint)
    message = first["msg"].removeprefix("Value error, ")
    value = first.get("input")
    shown = "" if isinstance(value, BaseModel | dict) else f" (got {repr(value)[:60]})"
    return InputError(field, f"{message[:200]}{shown}", hint)
