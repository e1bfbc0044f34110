"""Reading a foreign JSON document safely: bounded files, typed fields, errors that name the field.

A ``config.json`` is hostile input: it may be huge, truncated, mistyped, or from a model nobody has seen. `Fields`
answers with a value of the asked-for type or raises `InputError` with the field's name. A default is used only where
the caller states one, because the class of that model family does.
"""

from __future__ import annotations

import json
import math
import stat
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from wmtp_sim.errors import InputError

MAX_FILE_BYTES = 16 * 2**20
#: Sixteen million: a hundred times the largest width, vocabulary or context of a model that exists.
MAX_SIZE = 2**24

_MISSING: Any = object()


def shipped(*parts: str) -> Path:
    """A data file or folder of this package."""
    return Path(str(resources.files("wmtp_sim").joinpath("data", *parts)))


def path_kind(path: Path) -> Literal["file", "folder", "nothing"]:
    """What lies at a path that a person typed. Pipes, devices and what may not be looked at count as files: reading
    them says what is wrong."""
    try:
        return "folder" if stat.S_ISDIR(path.stat().st_mode) else "file"
    except PermissionError:
        return "file"
    except (OSError, ValueError):  # no such path; a name that is too long, or holds a NUL
        return "nothing"


def read_text(path: Path) -> str:
    """A text file of at most 16 MiB. Raises `InputError` when it is missing, no regular file, too large or not UTF-8.

    Only regular files are opened: a pipe may never answer, and a device never end.
    """
    if "\0" in str(path):
        raise InputError(repr(str(path))[:120], "is no file name", "a path holds no NUL")
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(str(path), "cannot be read (a folder, pipe or device)", "give a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise InputError(str(path), f"has {status.st_size:,} bytes", f"at most {MAX_FILE_BYTES:,} are read")
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "give a readable file") from None
    if len(raw) > MAX_FILE_BYTES:  # it grew, or its file system does not say its size
        raise InputError(str(path), "the file is larger than 16 MiB", "is this the right file?")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(str(path), "is not UTF-8 text", "give a JSON or TOML text file") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises `InputError` with the line of the first mistake."""
    text = read_text(path)
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        problem = f"not valid JSON at line {error.lineno}: {error.msg}"
        raise InputError(str(path), problem, "is the download complete?") from None
    except (RecursionError, ValueError):
        raise InputError(str(path), "nested too deeply or a number too long", "is this the right file?") from None
    if not isinstance(document, dict):
        raise InputError(str(path), f"holds a JSON {type(document).__name__}", "an object {...} is needed")
    return document


class Fields:
    """Typed access to one JSON object. ``where`` names it in errors, as in ``config.json: text_config``."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def __contains__(self, name: str) -> bool:
        """Whether the field is present and not null."""
        return self.values.get(name) is not None

    def error(self, name: str, problem: str, hint: str = "") -> InputError:
        return InputError(f"{self.where}: {name}", problem, hint)

    def _get(self, names: tuple[str, ...], default: Any) -> tuple[str, Any]:
        for name in names:
            if name in self:
                return name, self.values[name]
        if default is _MISSING:
            raise self.error(" or ".join(names), "is missing", "the cost cannot be computed without it")
        return names[0], default

    def size(self, *names: str, default: int | None = _MISSING) -> int:
        """A whole number of at least 1. The first of ``names`` that is present wins."""
        name, value = self._get(names, default)
        return self._whole(name, value, 1)

    def count(self, *names: str, default: int = _MISSING) -> int:
        """A whole number of at least 0."""
        name, value = self._get(names, default)
        return self._whole(name, value, 0)

    def optional_size(self, *names: str) -> int | None:
        """A whole number of at least 1, or None when absent or null."""
        name, value = self._get(names, None)
        return None if value is None else self._whole(name, value, 1)

    def nullable_size(self, name: str) -> int | None:
        """A whole number of at least 1, or None where the field says null; where it is absent, nothing is assumed."""
        if name not in self.values:
            raise self.error(name, "is missing", "null means that there is none")
        return self.optional_size(name)

    def _whole(self, name: str, value: Any, least: int) -> int:
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"{_shown(value)} is not a whole number")
        if not least <= value <= MAX_SIZE:
            raise self.error(name, f"{_shown(value)} is out of range", f"between {least} and {MAX_SIZE}")
        return value

    def number(self, *names: str, default: float = _MISSING) -> float:
        """A finite number."""
        name, value = self._get(names, default)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not -sys.float_info.max <= value <= sys.float_info.max:  # nan compares false; ints may be huge
            raise self.error(name, f"{_shown(value)} is not a finite number")
        return float(value)

    def flag(self, *names: str, default: bool = _MISSING) -> bool:
        name, value = self._get(names, default)
        if not isinstance(value, bool):
            raise self.error(name, f"{_shown(value)} is not true or false")
        return value

    def text(self, *names: str, default: str = _MISSING) -> str:
        name, value = self._get(names, default)
        if not isinstance(value, str):
            raise self.error(name, f"{_shown(value)} is not text")
        return value

    def word(self, name: str, *known: str, default: str = _MISSING) -> str:
        """A text that is one of the ``known``."""
        value = self.text(name, default=default)
        if value not in known:
            raise self.error(name, f"{value[:40]!r} is unknown", f"known: {', '.join(known)}")
        return value

    def items(self, *names: str, of: type, length: int | None = None) -> list[Any]:
        """A list whose elements all have type ``of`` (bool is not an int here) and, if given, this length."""
        name, value = self._get(names, _MISSING)
        if not isinstance(value, list):
            raise self.error(name, f"{_shown(value)} is not a list")
        for element in value:
            if not isinstance(element, of) or (of is int and isinstance(element, bool)):
                raise self.error(name, f"element {_shown(element)} is not {of.__name__}")
        if length is not None and len(value) != length:
            raise self.error(name, f"has {len(value)} entries", f"expected {length}, one per layer")
        return value

    def child(self, *names: str) -> Fields:
        """A nested object."""
        name, value = self._get(names, _MISSING)
        if not isinstance(value, dict):
            raise self.error(name, f"{_shown(value)} is not an object")
        return Fields(value, f"{self.where}: {name}")


def _shown(value: Any) -> str:
    """A value as quoted in an error: short, whatever was in the file."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python prints
        return "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."
