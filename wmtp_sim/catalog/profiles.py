"""Machine profiles by name, and the one that serves a GPU."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import get_args

from wmtp_sim.catalog.toml_files import read_spec
from wmtp_sim.machine.profile import KernelModel, Profile
from wmtp_sim.spec.gpu import Gpu
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


#: By how much a GPU other than the measured one widens every spread. Judged: the published B200 steps of Windowed-MTP
#: (SGLang 26.06) run 1.7 to 2.5 times the expected value, and 1.8 takes the widest of them into the range.
ELSEWHERE = 1.8


def profile_for(gpu: Gpu) -> Profile:
    """The profile that serves a GPU, with wider ranges where it was measured on another one."""
    profile = uncalibrated()
    return profile if gpu.name == profile.gpu else profile.widened(ELSEWHERE)


@cache
def uncalibrated() -> Profile:
    """Documented efficiency constants for a GPU that nobody has calibrated."""
    folder = Path(str(resources.files("wmtp_sim") / "data" / "profiles"))
    return read_spec(folder / "uncalibrated.toml", Profile, SCHEMA)
