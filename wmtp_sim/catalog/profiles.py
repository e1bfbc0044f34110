"""Machine profiles by name or file, and the one that serves a GPU.

A GPU that somebody calibrated is served by its own profile: the user's, else the shipped one. Shipped are our own
calibration of one H200, and profiles fitted on published operator times, which say so. Any other GPU is served by a
shipped profile of its architecture, else by our own, carried over by datasheet ratios (*transferred*), with wider
ranges. Kernel classes that no calibration measured keep the documented constants of ``uncalibrated.toml``.
"""

from __future__ import annotations

import json
import math
import os
import re
from functools import cache
from pathlib import Path
from typing import Any, get_args

from wmtp_sim.catalog.fields import read_json_object, shipped
from wmtp_sim.catalog.gpus import gpu_names, load_gpu, named_by_driver
from wmtp_sim.catalog.toml_files import read_spec, validated
from wmtp_sim.errors import InputError
from wmtp_sim.machine.profile import KernelModel, Profile
from wmtp_sim.spec.gpu import Gpu
from wmtp_sim.work.operation import KernelClass

SCHEMA = "wmtp-profile/2"
_FOLDER = shipped("profiles")
#: The shipped profile that `wmtp calibrate` wrote. The others are fitted on published tables (`wmtp profiles import`).
OWN = "nvidia-h200"

#: Every kernel at the datasheet's peak, with no latency: the machine of the byte roofline.
IDEAL = Profile(
    name="datasheet peaks",
    status="ideal",
    kernels=dict.fromkeys(
        get_args(KernelClass),
        KernelModel(floor_s=0.0, bandwidth=1.0, compute=1.0, spread=1.0, source="datasheet"),
    ),
    turn_s=0.0,
    host_spread=1.0,
)

#: By how much a GPU other than the measured one widens every spread. Judged: priced so, the published B200 steps of
#: Windowed-MTP (SGLang 26.06) ran up to 2.8 times the expected value, and 1.8 took them into the range. Published
#: kernels have since shown that they missed something else than transfer (docs/accuracy.md).
ELSEWHERE = 1.8


def profile_for(gpu: Gpu) -> Profile:
    """The profile that serves a GPU: its own, or the shipped one transferred from the nearest measured GPU."""
    for path in _paths():
        if path.stem == slug(gpu.name) and _serves(found := load_profile(str(path)), gpu):
            return found
    return nearest_measured(gpu).transferred(ELSEWHERE, gpu.launch_slowdown)


def shipped_profile(gpu: Gpu) -> Profile | None:
    """The shipped profile of that very GPU, whatever a user has of it; None where none ships."""
    paths = (path for path in _shipped_paths() if path.stem == slug(gpu.name))
    return next((found for found in map(read_profile, paths) if is_of(found, gpu)), None)


def is_of(profile: Profile, gpu: Gpu) -> bool:
    """Whether a profile was measured on that very GPU, as the catalogue and the driver name it."""
    if not profile.gpu:
        return False
    return slug(profile.gpu) == slug(gpu.name) or named_by_driver(profile.gpu) == gpu


def _serves(profile: Profile, gpu: Gpu) -> bool:
    """A file under a GPU's name is its own unless it says otherwise: a GPU that is stated goes by the user's name."""
    catalogued = gpu.name in {load_gpu(name).name for name in gpu_names()}
    return is_of(profile, gpu) or not (catalogued or (profile.gpu and named_by_driver(profile.gpu)))


def nearest_measured(gpu: Gpu) -> Profile:
    """The shipped profile to transfer from: of a GPU of the same architecture, of nearest bandwidth; else our own.

    Our own calibration, which measured every class, comes first among those of its architecture.
    """
    shipped = {path.stem: path for path in _shipped_paths()}
    kin = [load_gpu(name) for name in gpu_names()]
    kin = [other for other in kin if other.architecture == gpu.architecture and slug(other.name) in shipped]
    if kin and OWN not in (slug(other.name) for other in kin):
        rate = gpu.hbm_bandwidth_bytes_per_s
        nearest = min(kin, key=lambda other: abs(math.log(other.hbm_bandwidth_bytes_per_s / rate)))
        return load_profile(str(shipped[slug(nearest.name)]))
    return own_calibration()


def own_calibration() -> Profile:
    """What `wmtp calibrate` measured on the GPU that this project has: every class."""
    path = _FOLDER / f"{OWN}.json"
    return load_profile(str(path)) if path.is_file() else uncalibrated()


@cache
def load_profile(reference: str) -> Profile:
    """A profile by name (``nvidia-h200``) or file.

    Raises:
        InputError: no such profile, another schema, a class that this release does not know, numbers out of range.
    """
    for path in _paths():
        if reference == path.stem:
            return read_profile(path)
    if not reference.endswith(".json"):
        names = ", ".join(profile_names()) or "none yet"
        raise InputError("--profile", f"no profile is called {reference[:60]!r}", f"known: {names}; or a .json file")
    return read_profile(Path(reference))


def read_profile(path: Path) -> Profile:
    """A profile from its JSON file."""
    document = read_json_object(path)
    stated = document.pop("schema", None)
    if stated != SCHEMA:
        raise InputError(f"{path}: schema", f"is {repr(stated)[:60]}", f"this release reads {SCHEMA!r}")
    _refuse_unknown_classes(document, path)
    profile = validated(document, Profile, str(path))
    return profile.model_copy(update={"kernels": dict(uncalibrated().kernels) | profile.kernels})


def _refuse_unknown_classes(document: dict[str, Any], path: Path) -> None:
    kernels = document.get("kernels")
    for name in kernels if isinstance(kernels, dict) else ():
        if name.split(".")[0] not in get_args(KernelClass):
            known = ", ".join(get_args(KernelClass))
            raise InputError(f"{path}: kernels", f"{name[:40]!r} is no kernel class of this release", f"known: {known}")


def profile_names() -> tuple[str, ...]:
    """Names of the user's and the shipped profiles."""
    return tuple(dict.fromkeys(path.stem for path in _paths()))


def profile_path(name: str) -> Path:
    """The file of one of `profile_names`: the user's before the shipped one."""
    return next((path for path in _paths() if path.stem == name), user_folder() / f"{name}.json")


def user_folder() -> Path:
    """Where ``wmtp calibrate`` keeps profiles: ``$WMTP_PROFILES``, else the user's data folder."""
    stated = os.environ.get("WMTP_PROFILES")
    if stated:
        return Path(stated)
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "wmtp" / "profiles"


def slug(gpu_name: str) -> str:
    """A GPU's name as a file name: ``NVIDIA H200`` is ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", gpu_name.lower()).strip("-")[:80]


def _user_paths() -> list[Path]:
    folder = user_folder()
    return sorted(folder.glob("*.json")) if folder.is_dir() else []


def _shipped_paths() -> list[Path]:
    return sorted(_FOLDER.glob("*.json"))


def _paths() -> list[Path]:
    """Every profile, the user's before those that ship."""
    return [*_user_paths(), *_shipped_paths()]


@cache
def uncalibrated() -> Profile:
    """Documented efficiency constants for kernels that nobody has calibrated."""
    return read_spec(_FOLDER / "uncalibrated.toml", Profile, SCHEMA)


def dump(profile: Profile) -> str:
    """A profile as the text of its file. Raises `InputError` where its provenance is nested too deeply to write."""
    try:
        numbers = profile.model_dump(mode="json", exclude_none=True)
    except ValueError:
        raise InputError("provenance", "is nested too deeply", "at most a few levels") from None
    return json.dumps({"schema": SCHEMA, **numbers}) + "\n"
