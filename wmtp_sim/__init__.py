"""wmtp-sim: what a speculative decoding step costs, and what it gains, before it is deployed.

import wmtp_sim
answer = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", context=2**20, depth=6, accept_length=4.5)
answer.policies["ring"].speedup
"""

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
