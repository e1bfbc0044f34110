"""Files written whole or not at all. No torch here: a profile can be written where nothing can be measured."""

from __future__ import annotations

import tempfile
from pathlib import Path

from wmtp_sim.catalog.profiles import dump
from wmtp_sim.errors import InputError
from wmtp_sim.machine.profile import Profile
from wmtp_sim.render.files import refuse_special  # noqa: F401
from wmtp_sim.render.files import write_text as write_whole


def write_profile(profile: Profile, path: Path) -> None:
    """The profile as JSON, whole or not at all."""
    write_whole(path, dump(profile))


def refuse_unwritable(path: Path) -> None:
    """Raises `InputError` where no file can be written, before minutes are spent on its content."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(str(path), f"cannot be written ({error.strerror})", "give another path") from None
