"""Files written whole or not at all. No torch here: a profile can be written where nothing can be measured."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from wmtp_sim.catalog.profiles import dump
from wmtp_sim.errors import InputError
from wmtp_sim.machine.profile import Profile


def write_profile(profile: Profile, path: Path) -> None:
    """The profile as JSON, whole or not at all."""
    write_whole(path, dump(profile))


def write_whole(path: Path, text: str) -> None:
    """Write to a temporary file beside ``path``, then rename. Nothing but a regular file is ever replaced."""
    name = ""
    try:
        refuse_special(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        raise InputError(str(path), f"cannot be written ({error.strerror})", "give another path") from None


def refuse_unwritable(path: Path) -> None:
    """Raises `InputError` where no file can be written, before minutes are spent on its content."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(str(path), f"cannot be written ({error.strerror})", "give another path") from None


def refuse_special(path: Path) -> None:
    """Raises `InputError` for a folder, device or pipe where a file is to be written."""
    try:
        special = path.exists() and not path.is_file()
    except (OSError, ValueError) as error:
        problem = f"cannot be written ({getattr(error, 'strerror', None) or error})"
        raise InputError(str(path)[:200], problem, "give another path") from None
    if special:
        raise InputError(str(path), "cannot be written (a folder, pipe or device)", "give the path of a file")
