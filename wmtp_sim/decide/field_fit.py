"""Terms of an engine, and accept lengths, from the other rows of a source.

Leave-one-out: what is predicted of a row comes from rows other than it. Of the row itself come its kernels (predicted)
and its accept length, where it states one.

    base step = a x kernels + b
    step      = a x kernels + b + c + d x depth

with a (share of the kernels' speed), b (per iteration), c and d (per speculative iteration, per drafted token) at least
0: non-negative least squares of relative errors, reweighted so that single outliers count less (Huber). Where rows
state no accept length, one conditional acceptance rate for all depths of the same model, format and method joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

#: Fewest other rows with both figures: four terms and a rate need more equations than unknowns.
FEWEST = 4
#: Fewest other rows for an accept length alone.
FEWEST_LENGTHS = 3
#: Conditional acceptance rates that are tried.
RATES = np.linspace(0.0, 1.0, 51)
#: Relative residual from which a row counts less.
HUBER = 0.05
REWEIGHTS = 4


class SourceKind(NamedTuple):
    """Rows that one engine's terms are fitted on."""

    source: str
    gpu: str
    engine: str


class LengthKind(NamedTuple):
    """Rows that are taken to accept alike."""

    source: SourceKind
    model: str
    weights: str
    method: str


@dataclass(frozen=True)
class Observation:
    """One row: seconds measured (a base step, a sequence's token with speculation), seconds of kernels predicted, and
    the speculative step that follows from its base step (level 1)."""

    id: str
    source: SourceKind
    kind: LengthKind
    base_s: float | None
    token_s: float | None
    speedup: float | None
    accept_length: float | None
    depth: int | None
    base_kernels_s: float
    step_kernels_s: float | None
    step_given_base_s: float | None = None

    @property
    def complete(self) -> bool:
        return None not in (self.base_s, self.token_s, self.depth, self.step_kernels_s)


def length_of(rate: float, depth: int) -> float:
    """Accept length of one conditional acceptance rate: 1 + r + .. + r^depth."""
    return float(sum(rate**j for j in range(depth + 1)))


def rate_of(length: float, depth: int) -> float:
    """The rate that accepts ``length`` tokens at a depth, by bisection; 0 and 1 where none does."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if length_of(middle, depth) < length else (low, middle)
    return (low + high) / 2


def accept_lengths(rows: Sequence[Observation]) -> dict[str, float]:
    """For rows that state none: the accept length at which the other rows of their kind, each with its base step given,
    show their speedups (the median rate)."""
    found = {}
    for row in rows:
        if row.accept_length is not None or row.depth is None or row.step_given_base_s is None:
            continue
        rates = _of_others(row, rows, _shown)
        if len(rates) >= FEWEST_LENGTHS:
            found[row.id] = length_of(float(np.median(rates)), row.depth)
    return found


def _of_others(
    row: Observation, rows: Sequence[Observation], value: Callable[[Observation], float | None]
) -> list[float]:
    """A value of the other rows of a row's kind, as far as they have it."""
    others = [value(other) for other in rows if other.id != row.id and other.kind == row.kind]
    return [each for each in others if each is not None]


def _shown(row: Observation) -> float | None:
    """The acceptance rate that a row's speedup shows, if it has one."""
    if row.speedup is None or row.step_given_base_s is None or row.base_s is None or row.depth is None:
        return None
    return rate_of(row.speedup * row.step_given_base_s / row.base_s, row.depth)


def usual_speedups(rows: Sequence[Observation]) -> dict[str, float]:
    """What needs no model: the median speedup of the other rows of a row's kind, where there are `FEWEST_LENGTHS`."""
    found = {}
    for row in rows:
        others = _of_others(row, rows, lambda other: other.speedup)
        if len(others) >= FEWEST_LENGTHS:
            found[row.id] = float(np.median(others))
    return found


class Terms(NamedTuple):
    """Fitted terms: a (no unit), b, c, d (seconds)."""

    a: float
    b: float
    c: float
    d: float

    def base_s(self, kernels_s: float) -> float:
        return self.a * kernels_s + self.b

    def step_s(self, kernels_s: float, depth: int) -> float:
        return self.a * kernels_s + self.b + self.c + self.d * depth


def fitted(row: Observation, rows: Sequence[Observation]) -> tuple[float, float | None, float | None] | None:
    """Base step, speculative step and accept length of a row by its source's other rows.

    None where fewer than `FEWEST` of them have both figures and an accept length of their own or of the row's kind.
    """
    others = [other for other in rows if other.id != row.id and other.source == row.source]
    found = fit(others, row.kind)
    if found is None:
        return None
    terms, rate = found
    base_s = terms.base_s(row.base_kernels_s)
    if row.step_kernels_s is None or row.depth is None:
        return base_s, None, None
    length = row.accept_length
    if length is None and rate is not None:
        length = length_of(rate, row.depth)
    return base_s, terms.step_s(row.step_kernels_s, row.depth), length


def fit(rows: Sequence[Observation], kind: LengthKind) -> tuple[Terms, float | None] | None:
    """Terms of some rows, and the acceptance rate of those of one kind that state no accept length."""
    stated = [row for row in rows if row.complete and row.accept_length is not None]
    unstated = [row for row in rows if row.complete and row.accept_length is None and row.kind == kind]
    if len(stated) + len(unstated) < FEWEST:
        return None
    bases = [row for row in rows if row.base_s is not None]
    trials = []
    for rate in RATES if unstated else [None]:
        lengths = [row.accept_length or length_of(float(rate or 0.0), row.depth or 0) for row in (*stated, *unstated)]
        terms, loss = _solve(bases, [*stated, *unstated], lengths)
        trials.append((loss, terms, None if rate is None else float(rate)))
    loss, terms, best = min(trials, key=lambda trial: trial[0])
    return terms, best


def _solve(bases: list[Observation], steps: list[Observation], lengths: list[float]) -> tuple[Terms, float]:
    """Terms for given accept lengths, and the summed robust loss of relative residuals."""
    from scipy.optimize import nnls

    matrix = [[row.base_kernels_s, 1.0, 0.0, 0.0] for row in bases]
    matrix += [[row.step_kernels_s or 0.0, 1.0, 1.0, float(row.depth or 0)] for row in steps]
    seconds = [row.base_s or 0.0 for row in bases]
    seconds += [(row.token_s or 0.0) * length for row, length in zip(steps, lengths, strict=True)]
    measured = np.asarray(seconds)
    if len({row.depth for row in steps}) < 2:  # what each drafted token takes is then part of what each step does
        matrix = [[*line[:3], 0.0] for line in matrix]
    relative = np.asarray(matrix) / measured[:, None]
    weights: FloatArray = np.ones(len(measured))
    for _ in range(REWEIGHTS):
        solution, _ = nnls(relative * weights[:, None], weights)
        residuals = np.abs(relative @ solution - 1.0)
        weights = np.sqrt(np.minimum(1.0, HUBER / np.maximum(residuals, 1e-12)))
    loss = np.where(residuals < HUBER, residuals**2, HUBER * (2 * residuals - HUBER))
    return Terms(*map(float, solution)), float(np.sum(loss))
