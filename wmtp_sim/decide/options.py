"""Every way to run a deployment: without speculation, or with a draft KV policy at a depth, window and sink."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmtp_sim.decide.acceptance import accept_length, scaled
from wmtp_sim.decide.choice import offered
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.spec.acceptance import Acceptance
from wmtp_sim.spec.workload import FloatArray
from wmtp_sim.step.compose import POLICIES, Policy


@dataclass(frozen=True)
class Option:
    """What an engine is started with. ``policy`` None is no speculation; only windowed drafts have a window and sink.

    With the engine and the drafter this is all that a launch line has to know.
    """

    policy: Policy | None = None
    depth: int = 0
    window: int | None = None
    sink: int | None = None


@dataclass(frozen=True)
class Priced:
    """All options over contexts and batches, ``[..., O, C, B]``: seconds of a step, expected and at the slow end of its
    range, and whether it fits in memory.

    ``idle_s`` [..., C, B] is a step that drafts nothing while the engine is started to speculate.
    """

    seconds: FloatArray
    slow_s: FloatArray
    fits: NDArray[np.bool_]
    idle_s: FloatArray


@dataclass(frozen=True)
class OptionSpace:
    """The options of a deployment, plainest first, and what they cost.

    Attributes:
        deployment: an estimate whose model, engine, machine, drafter and formats are meant; its ranges are not.
        depths: drafted tokens, ascending, at least 1.
        windows: (window, sink) pairs of windowed drafts.
        what_if: whether policies that the engine release lacks may be chosen.
    """

    deployment: Estimate
    depths: tuple[int, ...]
    windows: tuple[tuple[int, int], ...]
    what_if: bool = False

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """Off; then by policy (`POLICIES`), depth, and window, the widest first. ``O`` of them."""
        windowed = [
            Option(policy, depth, window, sink)
            for policy in POLICIES[1:]
            for depth in self.depths
            for window, sink in self._widest_first
        ]
        return (Option(), *(Option("native", depth) for depth in self.depths), *windowed)

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        """Which options the release can run with this drafter, or all where what-if is asked; [O].

        SGLang refuses a window that is smaller than the rows of a step.
        """
        known = {policy: self.what_if or offered(self.deployment, policy) for policy in POLICIES}
        return np.array([o.policy is None or (known[o.policy] and _holds_a_step(o)) for o in self.options])

    @cached_property
    def option_depths(self) -> NDArray[np.int64]:
        """[O]"""
        return np.array([option.depth for option in self.options])

    @property
    def _widest_first(self) -> list[tuple[int, int]]:
        return sorted(self.windows, reverse=True)

    def at(self, contexts: ArrayLike, batches: ArrayLike) -> Estimate:
        """The estimate over ``[..., depth, window, C, B]`` for contexts [..., C] and batches [..., B]."""
        windows, sinks = np.array(self._widest_first, dtype=float).T[:, :, np.newaxis, np.newaxis]
        return self._estimate(
            np.asarray(contexts, dtype=float)[..., np.newaxis, np.newaxis, :, np.newaxis],
            np.asarray(batches, dtype=float)[..., np.newaxis, np.newaxis, np.newaxis, :],
            np.array(self.depths, dtype=float).reshape(-1, 1, 1, 1),
            windows,
            sinks,
        )

    def of(self, option: Option, contexts: FloatArray, batches: FloatArray) -> Estimate:
        """The estimate of one option over [C, B]. Off is priced beside the shallowest draft."""
        window, sink = self._widest_first[0] if option.window is None else (option.window, option.sink or 0)
        depth = float(option.depth or self.depths[0])
        return self._estimate(contexts[:, np.newaxis], batches, depth, window, sink)

    def _estimate(
        self, context: ArrayLike, batch: ArrayLike, depth: ArrayLike, window: ArrayLike, sink: ArrayLike
    ) -> Estimate:
        point = {"context": context, "batch": batch, "depth": depth, "window": window, "sink": sink}
        work = replace(self.deployment.work, **point)  # type: ignore[arg-type]
        return replace(self.deployment, work=work, acceptance=None, windowed_acceptance=None)

    def priced(self, contexts: ArrayLike, batches: ArrayLike) -> Priced:
        """What every option costs at contexts [..., C] and batches [..., B]."""
        estimate = self.at(contexts, batches)
        shape = estimate.work.shape
        costs = {"base": estimate.base} | {policy: result.cost for policy, result in estimate.policies.items()}
        seconds = {name: cost.step_s for name, cost in costs.items()}
        slow = {name: cost.high_s for name, cost in costs.items()}
        fits = {name: memory.fits for name, memory in estimate.memory.items()}
        idle = np.broadcast_to((estimate.idle or estimate.base).step_s, shape)[..., 0, 0, :, :]
        return Priced(_by_option(seconds, shape), _by_option(slow, shape), _by_option(fits, shape), idle)

    def lengths(self, native: Acceptance, windowed: Acceptance, factor: ArrayLike = 1.0) -> FloatArray:
        """Accept lengths of all options [..., O], with every conditional rate times ``factor`` [...]."""
        factor = np.asarray(factor, dtype=float)[..., np.newaxis]
        own, other = (accept_length(scaled(each, factor), self.option_depths) for each in (native, windowed))
        plain = np.array([option.policy in (None, "native") for option in self.options])
        return np.where(plain, own, other)


def _holds_a_step(option: Option) -> bool:
    return option.window is None or option.window >= option.depth + 1


def _by_option(values: dict[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Values over [..., depth, window, C, B] by policy, one after the other along an axis of options."""
    whole = {name: np.broadcast_to(each, shape) for name, each in values.items()}
    one_axis = (*shape[:-4], shape[-4] * shape[-3], *shape[-2:])
    windowed = [whole[policy].reshape(one_axis) for policy in POLICIES[1:]]
    return np.concatenate([whole["base"][..., 0, :1, :, :], whole["native"][..., 0, :, :], *windowed], axis=-3)
