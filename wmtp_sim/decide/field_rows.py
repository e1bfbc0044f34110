"""One public measurement: its case in this catalogue, and what each level predicts of it (see `decide.field`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from wmtp_sim.catalog.field import FieldRow
from wmtp_sim.catalog.field_mapping import Deployment, Mapping, Reason, deployment
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.field_fit import LengthKind, Observation, SourceKind
from wmtp_sim.decide.validation import Pair
from wmtp_sim.errors import InputError
from wmtp_sim.step.compose import Step

LevelNumber = Literal[0, 1, 2]
LEVELS: tuple[LevelNumber, ...] = (0, 1, 2)
#: Where the accept length that turns steps into a speedup comes from.
LengthFrom = Literal["row", "other rows"]
LENGTHS_FROM: tuple[LengthFrom, ...] = ("row", "other rows")
Figure = Literal["base step", "step", "speedup"]


@dataclass(frozen=True)
class StepTime:
    """A predicted step: seconds, those of kernels alone, and kernels launched."""

    seconds: float
    kernels_s: float
    launches: float

    @classmethod
    def of(cls, step: Step) -> StepTime:
        launched = (entry.operation.launches * entry.operation.repeats for entry in step.entries)
        seconds, host = float(step.seconds), float(step.host.seconds)
        return cls(seconds, seconds - host, float(sum(np.sum(np.asarray(count)) for count in launched)))


@dataclass(frozen=True)
class Case:
    """One row with its deployment and predictions, as far as they go, and why not further."""

    row: FieldRow
    deployment: Deployment | None = None
    base: StepTime | None = None
    step: StepTime | None = None
    moe: bool = False
    reason: Reason | None = None


@dataclass(frozen=True)
class Compared:
    """Measured and predicted seconds and speedup of one row at one level; None where one of the two is missing."""

    level: LevelNumber
    length_from: LengthFrom
    base: Pair | None = None
    step: Pair | None = None
    speedup: Pair | None = None

    @property
    def pairs(self) -> dict[Figure, Pair]:
        found: dict[Figure, Pair | None] = {"base step": self.base, "step": self.step, "speedup": self.speedup}
        return {name: pair for name, pair in found.items() if pair is not None}


@dataclass(frozen=True)
class ComparedRow:
    """A row with what was compared of it. ``reason``: why no speedup was, at any level. ``usual``: its speedup beside
    the median of the other rows of its kind, which needs no model."""

    case: Case
    levels: tuple[Compared, ...]
    reason: Reason | None
    usual: Pair | None = None

    @property
    def row(self) -> FieldRow:
        return self.case.row

    def at(self, level: LevelNumber) -> Compared | None:
        return next((found for found in self.levels if found.level == level), None)


def case_of(row: FieldRow, mapping: Mapping, estimate_of: Callable[[Deployment], Estimate]) -> Case:
    stated, reason = deployment(row, mapping)
    if stated is None:
        return Case(row, reason=reason)
    try:
        estimate = estimate_of(stated)
        base = StepTime.of(estimate.base_step)
        step = StepTime.of(estimate.steps[stated.policy or estimate.systems[0].name]) if stated.depth else None
    except InputError as error:
        return Case(row, stated, reason=Reason("refused by the estimate", str(error)[:200]))
    moe = any(part.kind == "moe" for block in estimate.model.blocks for part in block.channels)
    return Case(row, stated, base, step, moe, reason)


def with_excess(base: StepTime, step: StepTime, measured_base_s: float) -> float:
    """Seconds of the speculative step, given what the base step took.

    A base step that took longer than its kernels explain waited for something with every kernel (launches, all-reduces,
    the gaps between them): the excess is divided by the base step's kernels, and every kernel of the speculative step
    carries one share, which is what the target's pass over more rows and short draft passes would. A base step that was
    faster than predicted shows kernels faster than the profile's: every kernel is then faster in that proportion.
    """
    excess = measured_base_s - base.seconds
    if excess < 0 or base.launches == 0:
        return step.seconds * measured_base_s / base.seconds
    return step.seconds + excess * step.launches / base.launches


def with_base_given(case: Case) -> float | None:
    """Seconds of the row's speculative step at level 1; None where it has no base step, or no prediction."""
    if case.base is None or case.step is None or case.row.base_s is None:
        return None
    return with_excess(case.base, case.step, case.row.base_s)


def level_0(case: Case) -> Compared | None:
    if case.base is None:
        return None
    row, base_s = case.row, case.base.seconds
    step_s = None if case.step is None else case.step.seconds
    speedup = _speedup(row, row.accept_length, base_s, step_s)
    return Compared(0, "row", pair_of(row.base_s, base_s), pair_of(row.step_s, step_s), speedup)


def level_1(case: Case, step_s: float, from_others: float | None) -> Compared | None:
    row = case.row
    speedup = _speedup(row, row.accept_length or from_others, row.base_s, step_s)
    return Compared(1, "row" if row.accept_length else "other rows", None, pair_of(row.step_s, step_s), speedup)


def level_2(case: Case, base_s: float, step_s: float | None, length: float | None) -> Compared | None:
    row, speedup = case.row, _speedup(case.row, length, base_s, step_s)
    length_from: LengthFrom = "row" if row.accept_length or length is None else "other rows"
    return Compared(2, length_from, pair_of(row.base_s, base_s), pair_of(row.step_s, step_s), speedup)


def _speedup(row: FieldRow, length: float | None, base_s: float | None, step_s: float | None) -> Pair | None:
    """What an accept length makes of two steps, beside what was measured; None where one of them is missing."""
    if length is None or base_s is None or step_s is None:
        return None
    return pair_of(row.measured_speedup, length * base_s / step_s)


def pair_of(measured: float | None, predicted: float | None) -> Pair | None:
    return None if measured is None or predicted is None else Pair(measured, predicted)


def observation(case: Case, given_s: float | None) -> Observation:
    """A case as the fits see it: figures, kernel seconds, and which rows it may be fitted with."""
    row, base, step = case.row, case.base, case.step
    assert base is not None
    source = SourceKind(row.source, row.gpu or "", row.engine or "")
    return Observation(
        id=row.id,
        source=source,
        kind=LengthKind(source, row.model or "", row.weight_dtype or "", row.method or ""),
        base_s=row.base_s,
        token_s=None if row.spoiled else row.spec_token_s,
        speedup=row.measured_speedup,
        accept_length=row.accept_length,
        depth=row.depth,
        base_kernels_s=base.kernels_s,
        step_kernels_s=None if step is None else step.kernels_s,
        step_given_base_s=given_s,
    )


def why_no_speedup(case: Case, levels: Iterable[Compared]) -> Reason | None:
    """None where some level compared one."""
    if any(found.speedup is not None for found in levels):
        return None
    row = case.row
    if case.reason is not None:
        return case.reason
    if row.spoiled:
        return Reason("not a decode step against none", row.spoiled)
    if row.measured_speedup is None:
        missing = "no base step measured" if row.step_s or row.spec_token_s else "no figure of a step or a speedup"
        return Reason(missing)
    return Reason("accept length not stated")
