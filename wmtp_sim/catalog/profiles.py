"""Machine profiles by name, and the one that serves a GPU."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import get_args

from wmtp_sim.catalog.toml_files import read_spec
from wmtp_sim.machine.profile import KernelModel, Profile
from wmtp_sim.work.operation import KernelClass

SCHEMA = "wmtp-profile/1"

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


@cache
def uncalibrated() -> Profile:
    """Documented efficiency constants for a GPU that nobody has calibrated."""
    folder = Path(str(resources.files("wmtp_sim") / "data" / "profiles"))
    return read_spec(folder / "uncalibrated.toml", Profile, SCHEMA)
