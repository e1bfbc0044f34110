"""Where a page opens: the point that the command named, and the stated acceptance as rates that reach every depth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wmtp_sim.decide.acceptance import accept_length, accepted, alpha_from_accept_length, conditional_from_survival
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.errors import InputError
from wmtp_sim.render.breakeven.table import AXES, CostTable, FloatArray
from wmtp_sim.spec.acceptance import (
    Acceptance,
    AcceptLength,
    ConditionalRates,
    ConstantRate,
    Source,
    SurvivalRates,
    state_acceptance,
)
from wmtp_sim.spec.system import Speculation

#: Where the slider stands when no acceptance was stated.
ALPHA_UNSTATED = 0.8
#: The depth and the window a page opens at, where the grid has them: `wmtp estimate`'s own defaults.
USUAL = {"depth": 3, "window": 4032}


@dataclass(frozen=True)
class Start:
    """The opening point and acceptance of a page.

    Attributes:
        point: the value of each axis, one of the grid's.
        drafted: tokens that the plainest system drafts there, which an accept length is of.
        acceptance: as stated; None where none was.
        windowed: as stated for windowed drafts; None where they accept as native ones do.
    """

    point: Mapping[str, int]
    drafted: int
    acceptance: Acceptance | None
    windowed: Acceptance | None = None

    def index(self, table: CostTable) -> dict[str, int]:
        """The point's place on each axis."""
        return {name: table.axes[name].index(self.point[name]) for name in AXES}

    def lengths(self, table: CostTable, policy: str) -> FloatArray:
        """Mean tokens per step, bonus included, as the page has them when it opens; [context, depth, 1, 1]."""
        speculation, work = table.estimate.system(policy), table.estimate.work
        own = self.windowed is not None and speculation.windowed
        stated = as_rates(self.windowed if own else self.acceptance, self.drafted)
        if speculation.system.verify.rule == "none":
            return np.asarray(speculation.verify_rows(work.depth))
        rates = ConditionalRates(stated["rates"]) if stated["rates"] else ConstantRate(stated["alpha"])
        return accepted(rates, speculation, work.depth, work.context)

    def at_point(self, table: CostTable) -> Estimate:
        """The estimate of the opening point alone, with its acceptance."""
        values: dict[str, Any] = {name: np.asarray(float(self.point[name])) for name in AXES}
        work = replace(table.estimate.work, sink=table.estimate.work.sink.reshape(()), **values)
        return replace(table.estimate, work=work, acceptance=self.acceptance, windowed_acceptance=self.windowed)


def opening_point(table: CostTable, named: Mapping[str, int]) -> dict[str, int]:
    """The named values; of axes not named the usual depth and window, the smallest batch, the longest held context.

    Raises:
        InputError: ``--at``, for an unknown axis, a value that is not on it, or depth 0, which drafts nothing.
    """
    for name, value in named.items():
        if name not in AXES:
            raise InputError("--at", f"{name[:40]!r} is no axis", f"one of {', '.join(AXES)}: --at depth=3")
        if value not in table.axes[name]:
            raise InputError("--at", f"{name} {value} is not in --{name}", f"one of {_some(table.axes[name])}")
    if named.get("depth") == 0:
        raise InputError("--at", "depth 0 drafts nothing", "a depth of at least 1")
    depths = [depth for depth in table.axes["depth"] if depth > 0]
    usual = {
        "depth": _nearest(depths, USUAL["depth"]),
        "window": _nearest(table.axes["window"], USUAL["window"]),
        "batch": table.axes["batch"][0],
    }
    beside = usual | dict(named)
    return {"context": _longest(table, beside)} | beside


def opening(
    table: CostTable,
    named: Mapping[str, int],
    *,
    source: Source = "given",
    windowed_accept_length: float | None = None,
    **stated: Any,
) -> Start:
    """The start that a command names: ``stated`` holds at most one of `state_acceptance`'s four ways.

    An accept length is one sum, true at the depth of the opening point; rates must cover every depth of the grid.

    Raises:
        InputError: by the flag at fault.
    """
    point = opening_point(table, named)
    lengths = {name for name in ("accept_length", "windowed_accept_length") if stated.get(name) is not None}
    drafting = [depth for depth in table.axes["depth"] if depth > 0]
    if (lengths or windowed_accept_length is not None) and "depth" not in named and len(drafting) > 1:
        flag = "--accept-length" if lengths else "--windowed-accept-length"
        raise InputError(flag, "holds at one depth, and --depth has several", f"name it: --at depth={point['depth']}")
    drafted = _drafted(table.estimate.systems[0], point["depth"])
    acceptance, windowed = None, None
    if any(value is not None for value in stated.values()):
        covered = drafted if lengths else max(_drafted(each, max(drafting)) for each in table.estimate.systems)
        acceptance = state_acceptance(depth=covered, source=source, **stated)
    if windowed_accept_length is not None:
        try:
            windowed = state_acceptance(depth=drafted, accept_length=windowed_accept_length, source=source)
        except InputError as error:
            raise InputError("--windowed-accept-length", error.problem, error.hint) from None
    return Start(point, drafted, acceptance, windowed)


def _drafted(speculation: Speculation, depth: int) -> int:
    return int(speculation.levels(float(depth)))


def as_rates(acceptance: Acceptance | None, depth: int) -> dict[str, Any]:
    """An acceptance as the page moves it: one ``alpha``, conditional ``rates`` per position where stated, its label.

    ``label`` says where the numbers come from, and what of them is assumed.
    """
    if acceptance is None:
        unstated = {"label": "assumed: none was stated", "source": "assumed", "kind": None}
        return {"alpha": ALPHA_UNSTATED, "rates": None, **unstated}
    length = float(accept_length(acceptance, depth))
    alpha = float(alpha_from_accept_length(length, depth))
    rates, label = None, str(acceptance.source)
    match acceptance:
        case ConstantRate():
            alpha = float(acceptance.alpha)
        case AcceptLength():
            label = f"{acceptance.source}: AL {length:.4g} at depth {depth}; one rate at all positions is assumed"
        case ConditionalRates():
            rates = acceptance.rates.tolist()
        case SurvivalRates():
            rates = conditional_from_survival(acceptance.rates).tolist()
    return {"alpha": alpha, "rates": rates, "label": label, "source": acceptance.source, "kind": acceptance.kind}


def _longest(table: CostTable, beside: Mapping[str, int]) -> int:
    """The longest context at which the plainest system fits with the other axes as given; the last where none does."""
    depth, window, batch = (table.axes[name].index(beside[name]) for name in AXES[1:])
    fits = np.broadcast_to(table.fits(table.policies[0]), table.shape)[:, depth, window, batch]
    return table.axes["context"][int(np.flatnonzero(fits)[-1]) if fits.any() else -1]


def _nearest(values: list[int], wanted: int) -> int:
    return min(values, key=lambda value: abs(value - wanted))


def _some(values: list[int]) -> str:
    shown = ", ".join(map(str, values[:12]))
    return shown + (", ..." if len(values) > 12 else "")
