"""wmtp-sim: what a speculative decoding step costs, and what it gains, before it is deployed.

import wmtp_sim
answer = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", context=2**20, depth=6, accept_length=4.5)
answer.policies["ring"].speedup

Names are imported when they are first asked for, so that a command that is stopped at once has imported nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wmtp_sim.api import estimate, recommend
    from wmtp_sim.catalog.gpus import gpu_names, load_gpu
    from wmtp_sim.catalog.models import load_model, model_names
    from wmtp_sim.decide.estimate import Estimate
    from wmtp_sim.errors import InputError
    from wmtp_sim.spec.workload import open_grid

__version__ = "0.1.0"
__all__ = [
    "Estimate",
    "InputError",
    "estimate",
    "gpu_names",
    "load_gpu",
    "load_model",
    "model_names",
    "open_grid",
    "recommend",
]

_HOMES = {
    "Estimate": "decide.estimate",
    "InputError": "errors",
    "estimate": "api",
    "gpu_names": "catalog.gpus",
    "load_gpu": "catalog.gpus",
    "load_model": "catalog.models",
    "model_names": "catalog.models",
    "open_grid": "spec.workload",
    "recommend": "api",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
