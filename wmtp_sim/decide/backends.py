"""Whether a deployment would do better on another of its engine's attention backends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from wmtp_sim.decide.attention import Use, uses
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.options import Option
from wmtp_sim.decide.recommend import Recommendation
from wmtp_sim.spec.engine import Engine, Phase

#: What another backend must give more, as a share: its own planning on the host is not priced.
WORTH_SAYING = 0.05
TARGET: tuple[Phase, ...] = ("base", "verify")
DRAFTS: tuple[Phase, ...] = ("draft", "extend")


@dataclass(frozen=True)
class OtherBackend:
    """A backend for the target's passes, and for drafts where they follow it: what it would be chosen with, and give.

    ``more`` is the share of tokens/s over the present choice.
    """

    backend: str
    option: Option
    more: float


def better_backend(found: Recommendation) -> OtherBackend | None:
    """The backend with which a recommendation would give most, where that is worth saying; None otherwise.

    Backends that run on the GPU, over the cache and for the layers, and whose kernels the profile knows by name.
    """
    if found.place is None or found.judged is None:
        return None
    rate = found.judged.rate[found.place]
    others = []
    for backend, estimate in _instead(found.space.deployment):
        other = replace(found, space=replace(found.space, deployment=estimate))
        if other.place is not None and other.judged is not None:
            more = float(other.judged.rate[other.place] / rate) - 1.0
            others.append(OtherBackend(backend, other.space.options[other.place], more))
    best = max(others, key=lambda each: each.more, default=None)
    return best if best is not None and best.more > WORTH_SAYING else None


def _instead(estimate: Estimate) -> Iterator[tuple[str, Estimate]]:
    """The deployment on each other backend."""
    engine, gpu = estimate.engine, estimate.machine.gpu
    target = next((use for use in uses(estimate) if use.phase == "verify"), None)
    if target is None:
        return
    choice = engine.attention_on(gpu.architecture, target.kv_bytes, target.sinks)
    phases = TARGET + (DRAFTS if choice.draft == choice.base else ())
    for backend in engine.backends_on(gpu, target.kv_bytes, target.sinks):
        if (backend, backend) != (choice.base, choice.verify) and _known(engine, backend, estimate, target):
            yield backend, replace(estimate, engine=engine.with_attention(dict.fromkeys(phases, backend)))


def _known(engine: Engine, backend: str, estimate: Estimate, target: Use) -> bool:
    """Whether the profile has every kernel of a backend by its own name."""
    kernels = estimate.machine.profile.kernels
    entries = engine.kernels_of(backend, estimate.machine.gpu, target.kv_bytes, target.sinks)
    found = (kernels.get(f"attention.{entry.kernel}") for entry in entries)
    return all(kernel is not None and kernel.points > 0 for kernel in found)
