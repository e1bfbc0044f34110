"""Every way to run a deployment: without speculation, or with a system at a depth, window and sink."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmtp_sim.decide.acceptance import accept_length, lasting, scaled
from wmtp_sim.decide.choice import offered, ranked
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.spec.acceptance import Acceptance
from wmtp_sim.spec.system import Speculation
from wmtp_sim.spec.workload import FloatArray


@dataclass(frozen=True)
class Option:
    """What an engine is started with. ``policy`` is a system's name, None no speculation; only systems that attend the
    deployment's window have a window and sink.

    With the engine and the drafter this is all that a launch line has to know.
    """

    policy: str | None = None
    depth: int = 0
    window: int | None = None
    sink: int | None = None


@dataclass(frozen=True)
class Priced:
    """All options over contexts and batches, ``[..., O, C, B]``: seconds of a step, expected and at the slow end of its
    range, and whether it fits in memory.

    ``idle_s`` [..., C, B] is a step that drafts nothing while the engine is started to speculate. ``lasting``
    [..., O, C, 1] is the share of accepted tokens that remains at a context; None where all of them do.
    """

    seconds: FloatArray
    slow_s: FloatArray
    fits: NDArray[np.bool_]
    idle_s: FloatArray
    lasting: FloatArray | None = None

    def lengths(self, lengths: FloatArray) -> FloatArray:
        """Accept lengths [..., O] at every cell, [..., O, C, B] or broadcasting with it."""
        whole = lengths[..., np.newaxis, np.newaxis]
        return whole if self.lasting is None else 1.0 + (whole - 1.0) * self.lasting


@dataclass(frozen=True)
class OptionSpace:
    """The options of a deployment, plainest first, and what they cost.

    Attributes:
        deployment: an estimate whose model, engine, machine, drafter and formats are meant; its ranges are not.
        depths: drafted tokens, ascending, at least 1.
        windows: (window, sink) pairs of windowed drafts.
        what_if: whether systems that the engine release lacks may be chosen.
    """

    deployment: Estimate
    depths: tuple[int, ...]
    windows: tuple[tuple[int, int], ...]
    what_if: bool = False

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """Off; then by system, the plainest first, depth, and window, the widest first. ``O`` of them."""
        return (Option(), *(option for each in self.deployment.systems for option in self._of(each)))

    def _of(self, speculation: Speculation) -> Iterator[Option]:
        pairs = self._widest_first if speculation.system.window_matters else [(None, None)]
        fixed = [int(speculation.levels(1.0))] if speculation.fixed else self.depths
        for depth in fixed:
            for window, sink in pairs:
                yield Option(speculation.name, depth, window, sink)

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        """Which options the release can run with this drafter, or all where what-if is asked; [O].

        SGLang refuses a window that is smaller than the rows of a step.
        """
        point = self.deployment
        names = [each.name for each in point.systems]
        known = {n: ranked(point.systems, n) and (self.what_if or offered(point, n)) for n in names}
        return np.array([o.policy is None or (known[o.policy] and _holds_a_step(o)) for o in self.options])

    @cached_property
    def option_depths(self) -> NDArray[np.int64]:
        """Drafted tokens that can be accepted; [O]."""
        levels = {each.name: each.levels for each in self.deployment.systems}
        return np.array([int(levels[o.policy](o.depth)) if o.policy else 0 for o in self.options])

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
        took = self._by_option({name: cost.step_s for name, cost in estimate.costs.items()}, shape)
        slowest = self._by_option({name: cost.high_s for name, cost in estimate.costs.items()}, shape)
        held = self._by_option({name: memory.fits for name, memory in estimate.memory.items()}, shape)
        idle = np.broadcast_to((estimate.idle or estimate.base).step_s, shape)[..., 0, 0, :, :]
        return Priced(took, slowest, held, idle, self._lasting(estimate))

    def _lasting(self, estimate: Estimate) -> FloatArray | None:
        if not any(each.system.changes_acceptance for each in estimate.systems):
            return None
        context = estimate.work.context[..., 0, 0, :, :]
        ones = np.ones_like(context)
        systems = {each.name: each.system for each in estimate.systems}
        shares = [
            ones if o.policy is None else lasting(2.0 * ones, systems[o.policy], context) - 1.0 for o in self.options
        ]
        return np.stack(shares, axis=-3)

    def _by_option(self, values: dict[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """Values over [..., depth, window, C, B] by system, one after the other along an axis of options."""
        whole = {name: np.broadcast_to(each, shape) for name, each in values.items()}
        found = [whole["base"][..., 0, :1, :, :]]
        for each in self.deployment.systems:
            depths = whole[each.name] if each.system.window_matters else whole[each.name][..., :1, :, :]
            depths = depths[..., :1, :, :, :] if each.fixed else depths
            found.append(depths.reshape(*shape[:-4], depths.shape[-4] * depths.shape[-3], *shape[-2:]))
        return np.concatenate(found, axis=-3)

    def lengths(self, native: Acceptance, windowed: Acceptance, factor: ArrayLike = 1.0) -> FloatArray:
        """Accept lengths of all options [..., O], with every conditional rate times ``factor`` [...]."""
        factor = np.asarray(factor, dtype=float)[..., np.newaxis]
        found = [np.ones((*np.shape(factor)[:-1], 1))]
        for each in self.deployment.systems:
            ours = [option.policy == each.name for option in self.options]
            depths = self.option_depths[ours]
            stated = scaled(windowed if each.windowed else native, factor, each.system.verify.shift)
            kept = each.system.verify.rule == "none"
            length = accept_length(stated, depths)
            found.append(np.broadcast_to(each.verify_rows(depths.astype(float)), length.shape) if kept else length)
        return np.concatenate(found, axis=-1)


def _holds_a_step(option: Option) -> bool:
    return option.window is None or option.window >= option.depth + 1
