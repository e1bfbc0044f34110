"""Files written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from wmtp_sim.errors import InputError

#: Characters of a path that an error repeats.
_LONGEST = 200


def write_whole(path: Path, text: str, field: str = "--output") -> None:
    """Write to a temporary file beside ``path``, then rename. Nothing but a regular file is ever replaced.

    Raises:
        InputError: naming ``field`` and the path, which then is as it was.
    """
    name = ""
    try:
        if path.exists() and not path.is_file():
            raise InputError(field, f"{_short(path)} is a folder, pipe or device", "give the path of a file")
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".wmtp-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o666 & ~_umask())  # mkstemp's file is for its owner alone
        Path(name).replace(path)
    except (OSError, ValueError) as error:
        if name:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(field, f"{_short(path)} cannot be written ({reason})", "give another path") from None


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _short(path: Path) -> str:
    text = str(path)
    return text if len(text) <= _LONGEST else f"...{text[-_LONGEST:]}"
