"""A GPU with a profile: operations in, seconds out. It knows no model and no engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmtp_sim.errors import InputError
from wmtp_sim.machine.curves import Pace
from wmtp_sim.machine.profile import KernelModel, Profile
from wmtp_sim.spec.gpu import Gpu
from wmtp_sim.work.operation import Array, Operation

#: What a leg counts in an operation's size beside the longest: enough to order sizes, too little to reorder them.
HIDDEN_SHARE = 0.01
#: Below every kernel: where a form without a floor moves nothing, a logarithm still has a value.
SHORTEST_S = 1e-12
#: What an operation may mostly wait for.
ROOFS = ("memory", "few CTAs", "math", "latency", "turns", "link")


@dataclass(frozen=True)
class Timing:
    """Seconds of all repeats of one or more operations: expected, 90 % interval, and the datasheet's bound."""

    seconds: Array
    low: Array
    high: Array
    bound: Array

    def __add__(self, other: Timing) -> Timing:
        """One after the other. Errors of a class go the same way, so intervals add."""
        return Timing(
            self.seconds + other.seconds, self.low + other.low, self.high + other.high, self.bound + other.bound
        )


NOTHING = Timing(*(np.float64(0.0),) * 4)


@dataclass(frozen=True)
class Machine:
    """One GPU of a deployment and how well its kernels do."""

    gpu: Gpu
    profile: Profile

    def time(self, operation: Operation) -> Timing:
        """Seconds that all repeats of an operation take, never less than its speed-of-light bound."""
        kernel = self.profile.kernel(operation.kernel, operation.variant)
        bound = self.bound(operation) * operation.repeats
        seconds = self.once(operation, kernel) * operation.slowdown * operation.repeats
        spread = kernel.spread_at(operation.geometry, operation.rows)
        return Timing(seconds=seconds, low=np.maximum(seconds / spread, bound), high=seconds * spread, bound=bound)

    def bound(self, operation: Operation) -> Array:
        """Seconds of one execution at the datasheet's peaks."""
        moved, multiplied = (
            operation.bytes / self.peak_bandwidth(operation),
            operation.flops / self.peak_rate(operation),
        )
        return np.maximum(moved, multiplied)

    def once(self, operation: Operation, kernel: KernelModel) -> Array:
        """Seconds of one execution as a kernel model has it, not less than the bound."""
        form = self._form(operation, kernel)
        if kernel.measured is None or not operation.geometry:
            return form
        known = kernel.measured.find(operation.geometry)
        hidden = 0.0
        if known is not None and known.curves and operation.launches == 0:  # was measured with a launch of its own
            operation, hidden = operation.changed(launches=1.0), kernel.floor_s
        if known is None:
            return np.maximum(form * kernel.measured.factor(operation.geometry), self.bound(operation))
        rows = np.asarray(operation.rows, dtype=float)

        def at(other: ArrayLike) -> Pace:
            return self.pace(operation.at_rows(np.asarray(other, dtype=float)), kernel)

        seconds = known.seconds(rows, at) - hidden
        return np.maximum(seconds, self.bound(operation))

    def pace(self, operation: Operation, kernel: KernelModel) -> Pace:
        """One execution by the class's form, and its size: with a share of what hides behind the longest leg."""
        legs = self._legs(operation, kernel)
        form = np.asarray(self._form(operation, kernel))
        size = form + HIDDEN_SHARE * sum(legs.values(), start=np.float64(0.0))
        return Pace(form, np.maximum(size, SHORTEST_S))

    def _form(self, operation: Operation, kernel: KernelModel) -> Array:
        """Launch latency, and the longest leg."""
        legs = self._legs(operation, kernel)
        busy = np.maximum(np.maximum(legs["memory"], legs["few CTAs"]), np.maximum(legs["math"], legs["turns"]))
        return busy + legs["latency"]

    def total(self, operations: Iterable[Operation]) -> Timing:
        """Seconds of operations that run one after the other."""
        return sum((self.time(operation) for operation in operations), start=NOTHING)

    def by_class(self, operations: Iterable[Operation]) -> dict[str, Timing]:
        """Seconds of operations that run one after the other, by kernel class and implementation.

        What a class's model gets wrong it gets wrong in all of them: see `wmtp_sim.decide.ratio`.
        """
        found: dict[str, Timing] = {}
        for operation in operations:
            name = f"{operation.kernel}.{operation.variant}"
            found[name] = found.get(name, NOTHING) + self.time(operation)
        return found

    def binding_roof(self, operation: Operation) -> str:
        """What an operation mostly waits for, one of `ROOFS`: the longest leg anywhere where fields are arrays."""
        legs = self._roof_legs(operation)
        return max(legs, key=lambda name: float(np.max(legs[name])))

    def binding_roofs(self, operation: Operation) -> NDArray[np.int64]:
        """What an operation mostly waits for at each point, as places in `ROOFS`."""
        legs = self._roof_legs(operation)
        longest = np.argmax(np.stack(np.broadcast_arrays(*legs.values())), axis=0)
        places: NDArray[np.int64] = np.asarray([ROOFS.index(name) for name in legs])[longest]
        return places

    def _roof_legs(self, operation: Operation) -> dict[str, Array]:
        """Legs by the names of `ROOFS`: the bytes of a collective are the link's."""
        legs = self._legs(operation, self.profile.kernel(operation.kernel, operation.variant))
        if operation.kernel != "collective":
            return legs
        return {"link" if name == "memory" else name: seconds for name, seconds in legs.items()}

    def _legs(self, operation: Operation, kernel: KernelModel) -> dict[str, Array]:
        """Seconds of one execution if only one thing limited it."""
        moved = operation.bytes + operation.kv * (operation.rereads - 1.0)
        return {
            "memory": moved / (self.peak_bandwidth(operation) * kernel.bandwidth),
            "few CTAs": self._busiest_block(operation, kernel),
            "math": operation.flops * operation.padding / (self.peak_rate(operation) * kernel.compute),
            "latency": operation.launches * kernel.floor_s,
            "turns": operation.turns * self.profile.turn_s,
        }

    def _busiest_block(self, operation: Operation, kernel: KernelModel) -> Array:
        """Seconds of the multiprocessor that works longest: on one block, or on several that share it."""
        alone = 0.0 if kernel.cta_bytes_per_s is None else operation.serial_bytes / kernel.cta_bytes_per_s
        if self.gpu.sm_count is None:
            return alone
        if kernel.cta_compute is not None:
            rate = kernel.cta_compute * self.peak_rate(operation) / self.gpu.sm_count
            alone = np.maximum(alone, operation.serial_flops / rate)
        if kernel.cta_overlap is None:
            return alone
        each = np.ceil(operation.blocks / self.gpu.sm_count)
        return alone * np.maximum(each / kernel.cta_overlap, 1.0)

    def peak_bandwidth(self, operation: Operation) -> float:
        """Bytes per second that carry an operation at best: the memory's, or one link direction for a collective."""
        if operation.kernel == "collective":
            return self.link_bytes_per_s()
        return self.gpu.hbm_bandwidth_bytes_per_s

    def peak_rate(self, operation: Operation) -> float:
        """Dense FLOP peak for the operation's input type; a type without hardware support runs unpacked in bf16."""
        return getattr(self.gpu.peak_dense_flops, operation.math) or self.gpu.peak_dense_flops.bf16

    def multiplies_in(self, math: str) -> bool:
        """Whether the GPU has a rate of its own for an input type."""
        return getattr(self.gpu.peak_dense_flops, math) is not None

    def link_bytes_per_s(self) -> float:
        """One direction of the scale-up link, or PCIe where there is none."""
        both = self.gpu.scale_up_bidir_bytes_per_s
        one = both / 2 if both else self.gpu.pcie_unidir_bytes_per_s
        if not one:
            raise InputError("--tp", f"{self.gpu.name} has no known link between GPUs", "use --tp 1, or a GPU file")
        return one
