"""Which attention backends serve an estimate's passes, whether they run there, and which others would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.spec.engine import Engine, Phase
from wmtp_sim.spec.gpu import Gpu
from wmtp_sim.spec.model import Block, has_attention, has_sinks
from wmtp_sim.work.operation import Array

#: The share of a verify's time from which attention that is not split is said.
NOTICEABLE = 0.1


@dataclass(frozen=True)
class Use:
    """A backend at work: in a phase, over a cache of ``kv_bytes`` an element, for layers with ``sinks`` or without."""

    phase: Phase
    backend: str
    kv_bytes: float
    sinks: bool

    def runs(self, engine: Engine, gpu: Gpu) -> bool:
        return engine.runs(self.backend, gpu, self.kv_bytes, self.sinks)

    def why(self, gpu: Gpu) -> str:
        """What stands in its way, in words."""
        if not gpu.architecture:
            return f"may not run on {gpu.name}, whose file states no architecture"
        cache = "an fp8 cache" if self.kv_bytes <= 1 else "a bf16 cache"
        layers = " and layers with sink logits" if self.sinks else ""
        return f"does not run on {gpu.name} over {cache}{layers}"


def uses(estimate: Estimate) -> Iterator[Use]:
    """The backends of all passes over grouped-query layers; other attention is the engine's own affair."""
    work, drafter = estimate.work, estimate.drafter
    yield from _use(estimate, "base", estimate.model.blocks, work.kv_bytes)
    if drafter is not None:
        yield from _use(estimate, "verify", estimate.model.blocks, work.kv_bytes)
        yield from _use(estimate, "draft", drafter.blocks, work.draft_kv_bytes)
        yield from _use(estimate, "extend", drafter.blocks, work.draft_kv_bytes)


def _use(estimate: Estimate, phase: Phase, blocks: tuple[Block, ...], kv_bytes: float) -> Iterator[Use]:
    if has_attention(blocks):
        sinks = has_sinks(blocks)
        choice = estimate.engine.attention_on(estimate.machine.gpu.architecture, kv_bytes, sinks)
        yield Use(phase, getattr(choice, phase), kv_bytes, sinks)


def unserved(estimate: Estimate) -> list[Use]:
    """Uses of backends that do not run there."""
    return [use for use in uses(estimate) if not use.runs(estimate.engine, estimate.machine.gpu)]


def unsplit(estimate: Estimate) -> dict[str, NDArray[np.bool_]]:
    """Kernels of the verify that walk a context in one thread block, and where that is `NOTICEABLE` of its time."""
    kernels = estimate.engine.attention_kernels
    verify = next((part for step in estimate.steps.values() for part in step.parts if part.term == "verify"), None)
    seconds: dict[str, Array] = {}
    for operation in verify.operations() if verify else ():
        if operation.kernel == "attention" and kernels[operation.variant].max_splits == 1:
            taken = estimate.machine.time(operation).seconds
            seconds[operation.variant] = seconds.get(operation.variant, 0.0) + taken
    return {name: np.asarray(taken > NOTICEABLE * verify.total.seconds) for name, taken in seconds.items() if verify}
