"""Predictions beside what people measured, at three levels that are kept apart.

0  nothing fitted: base step, speculative step and speedup from what the row states.
1  base step given: what its base step took beyond (or below) the predicted one is carried into the speculative step,
   by one rule for all rows (`with_excess`).
2  engine terms fitted on the other rows of the same source, GPU and engine (`decide.field_fit`).

A speedup needs an accept length. Where a row states none, levels 1 and 2 may take it from the other rows of its kind,
and those rows are counted apart. Rows that cannot be compared carry the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from wmtp_sim.catalog.field import Deployment, FieldRow, Mapping, Reason, deployment
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.field_fit import LengthKind, Observation, SourceKind, accept_lengths, fitted, usual_speedups
from wmtp_sim.decide.validation import Pair
from wmtp_sim.errors import InputError
from wmtp_sim.step.compose import Step

LevelNumber = Literal[0, 1, 2]
LEVELS: tuple[LevelNumber, ...] = (0, 1, 2)
#: Where the accept length that turns steps into a speedup comes from.
LengthFrom = Literal["row", "other rows"]
LENGTHS_FROM: tuple[LengthFrom, ...] = ("row", "other rows")
Figure = Literal["base step", "step", "speedup"]
#: How many of the worst kinds of rows are shown.
WORST = 10


@dataclass(frozen=True)
class StepTime:
    """A predicted step: seconds, those of kernels alone, and kernels launched."""

    seconds: float
    kernels_s: float
    launches: float

    @classmethod
    def of(cls, step: Step) -> StepTime:
        launched = (entry.operation.launches * entry.operation.repeats for entry in step.entries)
        seconds, host = float(np.asarray(step.seconds)), float(np.asarray(step.host.seconds))
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


@dataclass(frozen=True)
class ErrorShare:
    """Absolute relative errors of ``rows`` figures: median and 90th percentile. None: no such."""

    rows: int
    median: float | None = None
    p90: float | None = None

    @classmethod
    def of(cls, pairs: Iterable[Pair | None]) -> ErrorShare:
        errors = [abs(pair.error) for pair in pairs if pair is not None]
        if not errors:
            return cls(0)
        return cls(len(errors), float(np.median(errors)), float(np.quantile(errors, 0.9)))


@dataclass(frozen=True)
class LevelSummary:
    """One level over some rows. ``sign``: share of speedups that are predicted on the right side of 1."""

    level: LevelNumber
    length_from: LengthFrom
    rows: int
    sign: float | None
    speedup: ErrorShare
    step: ErrorShare
    base: ErrorShare


@dataclass(frozen=True)
class Worst:
    """The figure farthest off among the ``of`` rows of one source, model, GPU and engine."""

    row: FieldRow
    level: LevelNumber
    figure: Figure
    pair: Pair
    of: int
    cause: str


@dataclass(frozen=True)
class FieldComparison:
    """All rows, compared or not."""

    rows: tuple[ComparedRow, ...]

    @property
    def levels(self) -> tuple[LevelSummary, ...]:
        return summaries(self.rows)

    @property
    def yardstick(self) -> ErrorShare:
        """Errors of the median speedup of a row's kind, on the rows that level 2 predicts: what a fit must beat."""
        fitted_rows = [row for row in self.rows if (at := row.at(2)) is not None and at.speedup is not None]
        return ErrorShare.of(row.usual for row in fitted_rows)

    def groups(self, key: Callable[[Case], str]) -> dict[str, list[ComparedRow]]:
        """The rows that have something compared, by a property; largest groups first."""
        groups: dict[str, list[ComparedRow]] = {}
        for row in self.rows:
            if row.levels:
                groups.setdefault(key(row.case), []).append(row)
        return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])))

    def by(self, key: Callable[[Case], str]) -> dict[str, tuple[LevelSummary, ...]]:
        """Summaries of `groups`."""
        return {name: summaries(rows) for name, rows in self.groups(key).items()}

    @property
    def reasons(self) -> dict[str, int]:
        """How many rows have no speedup compared, by reason; most frequent first."""
        counts: dict[str, int] = {}
        for row in self.rows:
            if row.reason is not None:
                counts[row.reason.kind] = counts.get(row.reason.kind, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @property
    def worst(self) -> tuple[Worst, ...]:
        """The figures farthest off with at most the base step given, one of each source, model, GPU and engine."""
        kinds: dict[tuple[str | None, ...], list[Worst]] = {}
        for row in self.rows:
            if (found := _farthest(row)) is not None:
                key = (row.row.source, row.row.model, row.row.gpu, row.row.engine)
                kinds.setdefault(key, []).append(found)
        far = [max(found, key=_distance) for found in kinds.values()]
        sizes = [len(found) for found in kinds.values()]
        named = [Worst(w.row, w.level, w.figure, w.pair, of, w.cause) for w, of in zip(far, sizes, strict=True)]
        return tuple(sorted(named, key=_distance, reverse=True)[:WORST])


#: What summaries are broken down by.
BREAKDOWNS: dict[str, Callable[[Case], str]] = {
    "engine": lambda case: case.row.engine or "-",
    "gpu": lambda case: case.row.gpu or "-",
    "method": lambda case: case.row.method or "-",
}


def summaries(rows: Sequence[ComparedRow]) -> tuple[LevelSummary, ...]:
    """Every level, with accept lengths of the rows' own and of other rows apart; levels without rows are left out."""
    found = []
    for level in LEVELS:
        for length_from in LENGTHS_FROM:
            at = [c for row in rows for c in row.levels if (c.level, c.length_from) == (level, length_from)]
            if at:
                found.append(_summary(level, length_from, at))
    return tuple(found)


def pooled(rows: Iterable[ComparedRow], level: LevelNumber, figure: Figure) -> ErrorShare:
    """Errors of one figure at one level, wherever the accept lengths come from."""
    return ErrorShare.of(found.pairs.get(figure) for row in rows for found in row.levels if found.level == level)


def _summary(level: LevelNumber, length_from: LengthFrom, rows: Sequence[Compared]) -> LevelSummary:
    speedups = [row.speedup for row in rows if row.speedup is not None]
    right = [(pair.measured > 1) == (pair.predicted > 1) for pair in speedups]
    return LevelSummary(
        level=level,
        length_from=length_from,
        rows=len(rows),
        sign=float(np.mean(right)) if right else None,
        speedup=ErrorShare.of(speedups),
        step=ErrorShare.of(row.step for row in rows),
        base=ErrorShare.of(row.base for row in rows),
    )


# --- the comparison --------------------------------------------------------------------------------------------


def compare_field(
    rows: Sequence[FieldRow], mapping: Mapping, estimate_of: Callable[[Deployment], Estimate]
) -> FieldComparison:
    """Every row at every level that its figures allow."""
    cases = [_case(row, mapping, estimate_of) for row in rows]
    given = {case.row.id: step_s for case in cases if (step_s := with_base_given(case)) is not None}
    observed = [_observation(case, given.get(case.row.id)) for case in cases if case.base is not None]
    lengths, usual = accept_lengths(observed), usual_speedups(observed)
    fits = {seen.id: fit for seen in observed if (fit := fitted(seen, observed)) is not None}
    compared = []
    for case in cases:
        found = [_level_0(case)]
        if case.row.id in given:
            found.append(_level_1(case, given[case.row.id], lengths.get(case.row.id)))
        if case.row.id in fits:
            base_s, step_s, length = fits[case.row.id]
            found.append(_level_2(case, base_s, step_s, length))
        levels = tuple(each for each in found if each is not None and each.pairs)
        without_model = _pair(case.row.measured_speedup, usual.get(case.row.id))
        compared.append(ComparedRow(case, levels, _why_no_speedup(case, levels), without_model))
    return FieldComparison(tuple(compared))


def _case(row: FieldRow, mapping: Mapping, estimate_of: Callable[[Deployment], Estimate]) -> Case:
    stated, reason = deployment(row, mapping)
    if stated is None:
        return Case(row, reason=reason)
    try:
        estimate = estimate_of(stated)
        base = StepTime.of(estimate.base_step)
        step = StepTime.of(estimate.steps[stated.policy]) if stated.depth else None
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


def _level_0(case: Case) -> Compared | None:
    if case.base is None:
        return None
    row, speedup = case.row, None
    if case.step is not None and row.accept_length is not None and row.measured_speedup is not None:
        speedup = Pair(row.measured_speedup, row.accept_length * case.base.seconds / case.step.seconds)
    step_s = None if case.step is None else case.step.seconds
    return Compared(0, "row", _pair(row.base_s, case.base.seconds), _pair(row.step_s, step_s), speedup)


def _level_1(case: Case, step_s: float, from_others: float | None) -> Compared | None:
    row = case.row
    length = row.accept_length or from_others
    speedup = None
    if length is not None and row.base_s is not None:
        speedup = _pair(row.measured_speedup, length * row.base_s / step_s)
    return Compared(1, "row" if row.accept_length else "other rows", None, _pair(row.step_s, step_s), speedup)


def _level_2(case: Case, base_s: float, step_s: float | None, length: float | None) -> Compared | None:
    row, speedup = case.row, None
    if step_s is not None and length is not None:
        speedup = _pair(row.measured_speedup, length * base_s / step_s)
    length_from: LengthFrom = "row" if row.accept_length or length is None else "other rows"
    return Compared(2, length_from, _pair(row.base_s, base_s), _pair(row.step_s, step_s), speedup)


def _pair(measured: float | None, predicted: float | None) -> Pair | None:
    return None if measured is None or predicted is None else Pair(measured, predicted)


def _observation(case: Case, given_s: float | None) -> Observation:
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


def _why_no_speedup(case: Case, levels: Iterable[Compared]) -> Reason | None:
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


# --- the worst ---------------------------------------------------------------------------------------------------


def _distance(worst: Worst) -> float:
    return abs(math.log(worst.pair.predicted / worst.pair.measured))


def _farthest(row: ComparedRow) -> Worst | None:
    figures = [
        Worst(row.row, found.level, name, pair, 1, likely_cause(row, name, pair))
        for found in row.levels
        if found.level < 2
        for name, pair in found.pairs.items()
    ]
    return max(figures, key=_distance, default=None)


@dataclass(frozen=True)
class _Symptom:
    """A pattern of residuals with what usually causes it."""

    cause: str
    shows: Callable[[ComparedRow, Pair], bool] = field(repr=False)


def _base_error(row: ComparedRow) -> float:
    found = row.at(0)
    return found.base.error if found is not None and found.base is not None else 0.0


def _too_fast(pair: Pair) -> bool:
    return pair.predicted < pair.measured


#: The first that shows. Judged from the pattern, not proven.
SYMPTOMS: tuple[_Symptom, ...] = (
    _Symptom(
        "long context: attention kernels that this engine runs on this GPU (backend, splits)",
        lambda row, pair: _too_fast(pair) and (row.row.context or 0) >= 65_536,
    ),
    _Symptom(
        "the base step is already too fast: time per kernel that the engine's definition lacks (launches, all-reduces)",
        lambda row, pair: _base_error(row) < -0.15,
    ),
    _Symptom(
        "the base step is already too slow: kernels or bytes of this GPU and format",
        lambda row, pair: _base_error(row) > 0.15,
    ),
    _Symptom(
        "batch x rows of experts and attention, prefill between the steps, or a busy host",
        lambda row, pair: _too_fast(pair) and (row.row.batch or 1) > 8,
    ),
    _Symptom(
        "no base step to tell engine from GPU: launches, all-reduces and host gaps of this engine",
        lambda row, pair: _too_fast(pair) and row.row.base_s is None,
    ),
    _Symptom(
        "verified rows share more experts than independent routing has",
        lambda row, pair: not _too_fast(pair) and row.case.moe,
    ),
    _Symptom(
        "draft and verify passes cost more than a base step shows: kernels over a few rows, host between passes",
        lambda row, pair: True,
    ),
)


def likely_cause(row: ComparedRow, figure: Figure, pair: Pair) -> str:
    """What a figure's error most likely comes from, judged from the row's pattern of errors. A speedup that is
    predicted too high is a step predicted too fast."""
    as_time = Pair(pair.predicted, pair.measured) if figure == "speedup" else pair
    return next(symptom.cause for symptom in SYMPTOMS if symptom.shows(row, as_time))
