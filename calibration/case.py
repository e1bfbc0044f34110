"""What a case is: one kernel at one shape with its inputs on a device, ready to be checked, timed and counted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from calibration.environment import environment
from calibration.kernels.references import strict_error
from calibration.timing import input_sets
from wmtp_sim.work.operation import Operation

BF16 = torch.bfloat16


@dataclass(frozen=True)
class Case:
    """``launch(i)`` runs on input set i of ``sets``; ``check()`` is the relative error of a run on poisoned outputs."""

    operation: Operation
    launch: Callable[[int], object]
    sets: int
    check: Callable[[], float]
    tolerance: float


@dataclass(frozen=True)
class Device:
    """Where cases are built: the device, its L2 and free memory in bytes, and how many processors share the work."""

    device: torch.device
    l2_bytes: int
    free_bytes: int
    sm_count: int

    @classmethod
    def of(cls, device: torch.device, part: int = 1) -> Device:
        """A device as it is now, with so small a part of its free memory; a CPU's is taken to be a quarter of all."""
        if device.type != "cuda":
            here = environment(device)
            return cls(device, here.l2_bytes, here.memory_bytes // 4 // part, here.sm_count)
        gpu, (free, _) = torch.cuda.get_device_properties(device), torch.cuda.mem_get_info(device)
        return cls(device, gpu.L2_cache_size, free // part, gpu.multi_processor_count)

    def rotate(self, set_bytes: float) -> int:
        return input_sets(int(set_bytes), self.l2_bytes, self.free_bytes)

    def randn(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = BF16) -> torch.Tensor:
        return torch.empty(*shape, device=self.device, dtype=dtype).normal_(std=scale)

    def empty(self, *shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
        return torch.empty(*shape, device=self.device, dtype=dtype)


def checked(
    launch: Callable[[int], object],
    outputs: list[torch.Tensor],
    expected: Callable[[], list[torch.Tensor]],
    updated: tuple[torch.Tensor, ...] = (),
) -> float:
    """The largest error of a run on set 0, NaN where any is: see `strict_error`.

    Args:
        outputs: what it must write whole: they are poisoned before.
        expected: outputs, then what is updated, from the inputs as they are before the run.
        updated: what it changes in place.
    """
    wanted = expected()
    for output in outputs:
        output.fill_(math.nan if output.is_floating_point() else 77)
    launch(0)
    return float(np.max([strict_error(*pair) for pair in zip((*outputs, *updated), wanted, strict=True)]))
