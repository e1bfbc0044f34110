"""Predicted steps beside measured ones (``wmtp-steps/1``, as the whole-step bench writes it): errors term by term.

A margin is what a windowed policy saves against native drafting at the same point; the speedup is against the base
step, at one accept length for all (half of the drafts accepted, and the bonus token), so that only costs differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from wmtp_sim.catalog.fields import Fields, read_json_object
from wmtp_sim.catalog.systems import load_system, standard_systems
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.errors import InputError
from wmtp_sim.machine.machine import NOTHING, Timing
from wmtp_sim.spec.model import Block, Model, Moe
from wmtp_sim.spec.system import Cache
from wmtp_sim.step.plan import Term
from wmtp_sim.work.routing import expert_union, overlap_of

#: More experts than any layer has.
MOST_EXPERTS = 4096
SCHEMA = "wmtp-steps/1"
#: Phases of a speculative step, by the names that predictions give them.
PHASES: tuple[Term, ...] = ("draft", "verify", "extend", "sample")
MOST_POINTS = 4096


@dataclass(frozen=True)
class MeasuredStep:
    """One measured point, in seconds. ``terms`` is empty at depth 0; ``experts`` are mean distinct experts a layer."""

    context: int
    depth: int
    batch: int
    window: int
    sink: int
    policy: str
    base_s: float | None
    terms: dict[Term, float]
    experts: dict[str, float]

    @property
    def step_s(self) -> float | None:
        return sum(self.terms.values()) if self.terms else None

    @property
    def differs_from_native(self) -> bool:
        """Whether any of its passes reads less than native drafting would."""
        if self.context <= self.window + self.sink:
            return False
        return self.cache.bounded_everywhere or (self.cache.bounded and self.depth > 1)

    @property
    def cache(self) -> Cache:
        """The draft cache of its system."""
        return load_system(self.policy).cache

    @property
    def label(self) -> str:
        return f"context {self.context}, depth {self.depth}, batch {self.batch}, {self.policy}"


@dataclass(frozen=True)
class MeasuredSteps:
    """A file of measured points. ``left_out`` says which points have no figures, and why."""

    model: str
    gpu: str
    environment: dict[str, Any]
    built: dict[str, Any]
    notes: tuple[str, ...]
    points: tuple[MeasuredStep, ...]
    left_out: tuple[tuple[str, str], ...]


def read_steps(path: Path) -> MeasuredSteps:
    """The measured points of a file.

    Raises:
        InputError: another schema, or a field that is missing, mistyped or out of range.
    """
    document = Fields(read_json_object(path), str(path))
    if document.values.get("schema") != SCHEMA:
        stated = repr(document.values.get("schema"))[:60]
        raise InputError(f"{path}: schema", f"is {stated}", f"this release reads {SCHEMA!r}")
    rows = document.items("points", of=dict)
    if len(rows) > MOST_POINTS:
        raise document.error("points", f"has {len(rows):,} entries", f"at most {MOST_POINTS:,} are compared")
    points, left_out = [], []
    for i, row in enumerate(rows):
        fields = Fields(row, f"{path}: points[{i}]")
        point = _point(fields)
        why = row.get("error") or row.get("skipped")
        if why or (point.base_s is None and not point.terms):
            left_out.append((point.label, str(why or "nothing was measured")[:200]))
        elif point.depth and point.terms and "verify" not in point.terms:  # what is left is no step
            left_out.append((point.label, "verify was not measured"))
        else:
            points.append(point)
    if not points:
        raise document.error("points", "holds no measured step", "run wmtp validate --run on a GPU")
    environment = document.child("environment")
    return MeasuredSteps(
        model=document.text("model"),
        gpu=environment.text("gpu"),
        environment=dict(environment.values),
        built=dict(document.child("built").values) if "built" in document else {},
        notes=tuple(note[:300] for note in document.items("notes", of=str)) if "notes" in document else (),
        points=tuple(points),
        left_out=tuple(left_out),
    )


def _point(row: Fields) -> MeasuredStep:
    names = [each.name for each in standard_systems("mtp")]
    policy = row.text("policy", default=names[0])
    if policy not in names:
        raise row.error("policy", f"{policy[:40]!r} is no draft policy", f"of {', '.join(names)}")
    phases = row.child("phases") if "phases" in row else Fields({}, row.where)
    depth = row.count("depth")
    terms = {name: seconds for name in PHASES if (seconds := _seconds(phases, name)) is not None} if depth else {}
    return MeasuredStep(
        context=row.size("context"),
        depth=depth,
        batch=row.size("batch", default=1),
        window=row.size("window", default=4032),
        sink=row.count("sink", default=64),
        policy=policy,
        base_s=_seconds(phases, "base"),
        terms=terms,
        experts=_experts(row.child("experts")) if "experts" in row else {},
    )


def _seconds(phases: Fields, name: str) -> float | None:
    if name not in phases:
        return None
    phase = phases.child(name)
    seconds = phase.number("seconds")
    empty_draft = name == "draft" and seconds == 0
    if not (1e-9 <= seconds < 1e5 or empty_draft):
        raise phase.error("seconds", f"{seconds:g} is no measured time", "seconds, from 1e-9")
    return seconds


def _experts(found: Fields) -> dict[str, float]:
    lists = {name: found.items(name, of=int) for name in found.values if name in ("base", *PHASES)}
    for name, counts in lists.items():
        if counts and not 1 <= min(counts) <= max(counts) <= MOST_EXPERTS:
            wrong = min(counts) if min(counts) < 1 else max(counts)
            problem = f"{str(wrong)[:20]} experts cannot be touched"
            raise found.error(name, problem, f"1 to {MOST_EXPERTS} in each layer")
    return {name: fmean(counts) for name, counts in lists.items() if counts}


# --- the comparison --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A measured figure and its prediction."""

    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """predicted / measured - 1; NaN where nothing was measured."""
        return self.predicted / self.measured - 1.0 if self.measured else math.nan

    @property
    def difference(self) -> float:
        return self.predicted - self.measured


@dataclass(frozen=True)
class ComparedStep:
    """One point: times in seconds, the predicted step's 90 % interval, and what follows from the times.

    ``margin`` is None without a native point beside this one, ``speedup`` without a base step. ``experts`` are distinct
    experts per MoE layer, measured on average and expected.
    """

    point: MeasuredStep
    base: Pair | None
    terms: dict[Term, Pair]
    step: Pair | None
    low_s: float | None
    high_s: float | None
    speedup: Pair | None
    experts: dict[str, Pair]
    margin: Pair | None = None

    @property
    def covered(self) -> bool | None:
        """Whether the measured step lies inside the interval."""
        if self.step is None or self.low_s is None or self.high_s is None:
            return None
        return self.low_s <= self.step.measured <= self.high_s


@dataclass(frozen=True)
class Summary:
    """Means of absolute errors: shares of the measured time or speedup, percentage points of margins. None: no such.

    Margins count where the policy does something: not where the window holds the context, nor of the flag at depth 1.
    """

    points: int
    base_error: float | None
    step_error: float | None
    margin_error_points: float | None
    speedup_error: float | None
    coverage: float | None
    term_errors: dict[Term, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Validation:
    """A whole comparison, and the profile that it holds for."""

    steps: MeasuredSteps
    profile: str
    profile_status: str
    gpu: str
    rows: tuple[ComparedStep, ...]

    @property
    def summary(self) -> Summary:
        rows, steps = self.rows, [row for row in self.rows if row.step]
        margins = [row for row in rows if row.point.differs_from_native]
        bases = {(row.point.context, row.point.batch): row.base for row in rows if row.base}
        by_term = {name: _mean(row.terms[name].error for row in rows if name in row.terms) for name in PHASES}
        covered = [float(row.covered) for row in steps if row.covered is not None]
        return Summary(
            points=len(rows),
            base_error=_mean(pair.error for pair in bases.values()),
            step_error=_mean(row.step.error for row in steps if row.step),
            margin_error_points=_mean(100 * row.margin.difference for row in margins if row.margin),
            speedup_error=_mean(row.speedup.error for row in rows if row.speedup),
            coverage=fmean(covered) if covered else None,
            term_errors={name: error for name, error in by_term.items() if error is not None},
        )


def _mean(errors: Iterable[float]) -> float | None:
    found = [abs(error) for error in errors if not math.isnan(error)]
    return fmean(found) if found else None


def compare(steps: MeasuredSteps, estimate_of: Callable[[MeasuredStep], Estimate]) -> Validation:
    """Every point against its estimate, margins against the native point beside it."""
    estimates = [estimate_of(point) for point in steps.points]
    rows = [_compared(point, estimate) for point, estimate in zip(steps.points, estimates, strict=True)]
    natives = {_shape(row.point): row for row in rows if not row.point.cache.bounded and row.step}
    rows = [_with_margin(row, natives.get(_shape(row.point))) for row in rows]
    machine = estimates[0].machine
    return Validation(steps, machine.profile.name, machine.profile.label, machine.gpu.name, tuple(rows))


def _shape(point: MeasuredStep) -> tuple[int, int, int]:
    """What a windowed point shares with its native one, which has no window."""
    return point.context, point.depth, point.batch


def _compared(point: MeasuredStep, estimate: Estimate) -> ComparedStep:
    base = None if point.base_s is None else Pair(point.base_s, float(estimate.base.step_s))
    experts = {phase: Pair(mean, _expected(estimate, point, phase)) for phase, mean in point.experts.items()}
    experts = {phase: pair for phase, pair in experts.items() if pair.predicted}
    if not point.terms or not estimate.steps:
        return ComparedStep(point, base, {}, None, None, None, None, experts)
    step = estimate.steps[point.policy]
    terms = {name: Pair(seconds, float(step.term(name))) for name, seconds in point.terms.items()}
    timed: Timing = sum((part.total for part in step.parts if part.term in terms), start=NOTHING)
    whole = Pair(sum(point.terms.values()), float(timed.seconds))
    length = point.depth / 2 + 1
    speedup = None
    if base is not None and whole.measured > 0:
        speedup = Pair(length * base.measured / whole.measured, length * base.predicted / whole.predicted)
    low, high = float(timed.low), float(timed.high)
    return ComparedStep(point, base, terms, whole, low, high, speedup, experts)


def _with_margin(row: ComparedStep, native: ComparedStep | None) -> ComparedStep:
    if not row.point.cache.bounded or native is None or native.step is None or row.step is None:
        return row
    if not {"draft", "extend"} & row.terms.keys():  # nothing in it depends on the policy
        return row
    if row.terms.keys() != native.terms.keys() or not row.step.measured > 0:
        return row
    measured = native.step.measured / row.step.measured - 1.0
    predicted = native.step.predicted / row.step.predicted - 1.0
    return replace(row, margin=Pair(measured, predicted))


def measured_overlap(model: Model, point: MeasuredStep) -> float:
    """The overlap at which verified rows touch as many experts as were counted; 0 where none were."""
    moe, union = _routed(model.blocks), point.experts.get("verify")
    if moe is None or union is None:
        return 0.0
    return overlap_of(moe, float(point.batch), point.depth + 1.0, union)


def _routed(blocks: tuple[Block, ...]) -> Moe | None:
    return next((part for block in blocks for part in block.channels if isinstance(part, Moe)), None)


def _expected(estimate: Estimate, point: MeasuredStep, phase: str) -> float:
    """Distinct experts of a layer if rows chose independently; 0 where the pass has no experts."""
    head = estimate.model.mtp.blocks if estimate.model.mtp else ()
    moe = _routed(head if phase in ("draft", "extend") else estimate.model.blocks)
    rows = point.depth + 1.0 if phase in ("verify", "extend") else 1.0
    return 0.0 if moe is None else float(expert_union(moe, float(point.batch), rows, 0.0))
