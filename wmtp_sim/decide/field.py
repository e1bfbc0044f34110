"""Predictions beside what people measured, at three levels that are kept apart.

0  nothing fitted: base step, speculative step and speedup from what the row states.
1  base step given: what its base step took beyond (or below) the predicted one is carried into the speculative step,
   by one rule for all rows (`field_rows.with_excess`).
2  engine terms fitted on the other rows of the same source, GPU and engine (`decide.field_fit`).

A speedup needs an accept length. Where a row states none, levels 1 and 2 may take it from the other rows of its kind,
and those rows are counted apart. Rows that cannot be compared carry the reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from wmtp_sim.catalog.field import FieldRow
from wmtp_sim.catalog.field_mapping import Deployment, Mapping
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.field_fit import accept_lengths, fitted, usual_speedups
from wmtp_sim.decide.field_rows import (
    LENGTHS_FROM,
    LEVELS,
    Case,
    Compared,
    ComparedRow,
    Figure,
    LengthFrom,
    LevelNumber,
    case_of,
    level_0,
    level_1,
    level_2,
    observation,
    pair_of,
    why_no_speedup,
    with_base_given,
)
from wmtp_sim.decide.validation import Pair

#: How many of the worst kinds of rows are shown.
WORST = 10


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
    """All rows, compared or not. ``either``: rows that do not say their cache's format, under each it may have been."""

    rows: tuple[ComparedRow, ...]
    either: dict[str, FieldComparison] = field(default_factory=dict)

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
        counts = Counter(row.reason.kind for row in self.rows if row.reason is not None)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @property
    def worst(self) -> tuple[Worst, ...]:
        """The figures farthest off with at most the base step given, one of each source, model, GPU and engine."""
        kinds: dict[tuple[str | None, ...], list[Worst]] = {}
        for row in self.rows:
            if (found := _farthest(row)) is not None:
                key = (row.row.source, row.row.model, row.row.gpu, row.row.engine)
                kinds.setdefault(key, []).append(found)
        far = [replace(max(found, key=_distance), of=len(found)) for found in kinds.values()]
        return tuple(sorted(far, key=_distance, reverse=True)[:WORST])


#: What summaries are broken down by.
BREAKDOWNS: dict[str, Callable[[Case], str]] = {
    "engine": lambda case: case.row.engine or "-",
    "gpu": lambda case: case.row.gpu or "-",
    "method": lambda case: case.row.method or "-",
}


def summaries(rows: Sequence[ComparedRow]) -> tuple[LevelSummary, ...]:
    """Every level, with accept lengths of the rows' own and of other rows apart; levels without rows are left out."""
    kinds = product(LEVELS, LENGTHS_FROM)
    found = {kind: [c for row in rows for c in row.levels if (c.level, c.length_from) == kind] for kind in kinds}
    return tuple(_summary(*kind, at) for kind, at in found.items() if at)


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
    settled = [row for row in rows if not mapping.caches_of(row)]
    formats = sorted({cache for row in rows for cache in mapping.caches_of(row)})
    either: dict[str, FieldComparison] = {
        cache: _compared([row for row in rows if cache in mapping.caches_of(row)], mapping.taking(cache), estimate_of)
        for cache in formats
    }
    return replace(_compared(settled, mapping, estimate_of), either=either)


def _compared(
    rows: Sequence[FieldRow], mapping: Mapping, estimate_of: Callable[[Deployment], Estimate]
) -> FieldComparison:
    cases = [case_of(row, mapping, estimate_of) for row in rows]
    given = {case.row.id: step_s for case in cases if (step_s := with_base_given(case)) is not None}
    observed = [observation(case, given.get(case.row.id)) for case in cases if case.base is not None]
    lengths, usual = accept_lengths(observed), usual_speedups(observed)
    fits = {seen.id: fit for seen in observed if (fit := fitted(seen, observed)) is not None}
    compared = []
    for case in cases:
        found = [level_0(case)]
        if case.row.id in given:
            found.append(level_1(case, given[case.row.id], lengths.get(case.row.id)))
        if case.row.id in fits:
            base_s, step_s, length = fits[case.row.id]
            found.append(level_2(case, base_s, step_s, length))
        levels = tuple(each for each in found if each is not None and each.pairs)
        without_model = pair_of(case.row.measured_speedup, usual.get(case.row.id))
        compared.append(ComparedRow(case, levels, why_no_speedup(case, levels), without_model))
    return FieldComparison(tuple(compared))


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


def _base_error(row: ComparedRow) -> float:
    found = row.at(0)
    return found.base.error if found is not None and found.base is not None else 0.0


def _too_fast(pair: Pair) -> bool:
    return pair.predicted < pair.measured


#: What usually causes an error, and the rows and figures that show it: the first that does. Judged, not proven.
SYMPTOMS: dict[str, Callable[[ComparedRow, Pair], bool]] = {
    "long context: the engine's attention kernels (backend, splits)": (
        lambda row, pair: _too_fast(pair) and (row.row.context or 0) >= 65_536
    ),
    "base step too: launches and all-reduces cost more": (
        lambda row, pair: _too_fast(pair) and _base_error(row) < -0.15
    ),
    "base step too: kernels or bytes of this GPU and format": (
        lambda row, pair: not _too_fast(pair) and _base_error(row) > 0.15
    ),
    "batch: experts and attention over many rows, prefill between": (
        lambda row, pair: _too_fast(pair) and (row.row.batch or 1) > 8
    ),
    "launches, all-reduces and host gaps; no base step to tell": (
        lambda row, pair: _too_fast(pair) and row.row.base_s is None
    ),
    "verified rows share experts: fewer bytes than independent": (
        lambda row, pair: not _too_fast(pair) and row.case.moe
    ),
    "kernels over a few rows, host between draft passes": lambda row, pair: True,
}


def likely_cause(row: ComparedRow, figure: Figure, pair: Pair) -> str:
    """What a figure's error most likely comes from, judged from the row's pattern of errors. A speedup that is
    predicted too high is a step predicted too fast."""
    as_time = Pair(pair.predicted, pair.measured) if figure == "speedup" else pair
    return next(cause for cause, shows in SYMPTOMS.items() if shows(row, as_time))
