"""The kernels of one step beside the machine's roofs, as data: ``wmtp-roofline/1``. Nothing is drawn here.

An operation's place is its arithmetic intensity (FLOP per byte moved) and the FLOP/s it attains in the predicted time.
Operations of one name run in one phase are one point. Those without FLOPs, and those that a link carries, have no place
on a memory roofline: they are listed with their share of the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.errors import InputError
from wmtp_sim.machine.curves import Curve
from wmtp_sim.machine.machine import Machine
from wmtp_sim.machine.profile import KernelModel, Profile
from wmtp_sim.render.layout import layout_document
from wmtp_sim.step.compose import Entry
from wmtp_sim.work.operation import Operation

SCHEMA = "wmtp-roofline/1"
#: Whose points a measurement of ours may be fitted on: it never passes for our own.
PUBLISHED = "aiconfigurator"


@dataclass(frozen=True)
class Point:
    """All executions of one operation in one phase of a step, on one GPU.

    ``share`` is of the step that the phase belongs to, ``roof_flops_per_s`` the datasheet's at this intensity,
    ``binds`` what the profile says the operation waits for, ``measured_shape`` whether its very sizes were measured.
    """

    phase: str
    name: str
    kernel: str
    math: str
    label: str
    measured_shape: bool
    binds: str
    executions: float
    flops: float
    bytes: float
    seconds: float
    share: float
    intensity: float
    attained_flops_per_s: float
    roof_flops_per_s: float


@dataclass(frozen=True)
class Left:
    """An operation that has no place on the roofline, and why."""

    phase: str
    name: str
    seconds: float
    share: float
    why: str


@dataclass(frozen=True)
class Ceiling:
    """A dense FLOP peak of the datasheet."""

    math: str
    flops_per_s: float


@dataclass(frozen=True)
class Attainable:
    """What the profile says that a kernel class reaches at best: bytes/s and FLOP/s."""

    kernel: str
    math: str
    label: str
    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True)
class Series:
    """Measured points of one geometry at one number of rows, over the class's form; seconds, by ascending size."""

    kernel: str
    label: str
    operations: tuple[str, ...]
    geometry: tuple[float, ...]
    rows: float
    size_s: tuple[float, ...]
    form_s: tuple[float, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Roofline:
    """One deployment's roofs, operations and measured points. ``steps`` are the seconds of the two steps shown."""

    model: str
    gpu: str
    engine: str
    profile: str
    label: str
    policy: str
    deployment: dict[str, int]
    steps: dict[str, float]
    bytes_per_s: float
    ceilings: tuple[Ceiling, ...]
    attainable: tuple[Attainable, ...]
    points: tuple[Point, ...]
    not_drawn: tuple[Left, ...]
    measured: tuple[Series, ...]
    notes: tuple[str, ...]

    @property
    def document(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {"schema": SCHEMA, **asdict(self)}


def roofline(estimate: Estimate, policy: str | None = None) -> Roofline:
    """The base step and one system's step of a single point (at depth 0 the base step alone).

    Raises:
        InputError: an estimate over ranges, or an unknown policy.
    """
    if estimate.work.shape != ():
        raise InputError("--context", "a roofline shows one step, not a range", "give one context, depth and batch")
    names = list(estimate.steps)
    if policy is not None and names and policy not in names:
        raise InputError("--policy", f"no system here is called {policy[:40]!r}", f"one of {', '.join(names)}")
    policy = policy or (names[0] if names else "base")
    machine, entries = estimate.machine, list(_entries(estimate, policy))
    steps = {"base": float(estimate.base_step.seconds)}
    if estimate.steps:
        steps[policy] = float(estimate.steps[policy].seconds)
    groups = _grouped(entries)
    share_of = {phase: steps["base" if phase == "base" else policy] for phase, _ in entries}
    places = [_place(machine, phase, group, share_of[phase]) for (phase, *_), group in groups.items()]
    points = tuple(sorted((p for p in places if isinstance(p, Point)), key=lambda p: -p.share))
    left = sorted((p for p in places if isinstance(p, Left)), key=lambda p: -p.share)
    drawn = [e.operation for group in groups.values() for e in group if _why_left(e.operation) is None]
    series = tuple(_series(machine.profile, drawn))
    return Roofline(
        model=estimate.model.name,
        gpu=machine.gpu.name,
        engine=f"{estimate.engine.name}@{estimate.engine.version}",
        profile=machine.profile.name,
        label=machine.profile.label,
        policy=policy,
        deployment=_deployment(estimate),
        steps=steps,
        bytes_per_s=machine.gpu.hbm_bandwidth_bytes_per_s,
        ceilings=tuple(_ceilings(machine)),
        attainable=tuple(_attainable(machine, points)),
        points=points,
        not_drawn=tuple(left),
        measured=series,
        notes=tuple(_notes(machine.profile, drawn, series)),
    )


def class_label(profile: Profile, name: str, variant: str) -> str:
    """How sure a kernel class's numbers are: measured, measured (aiconfigurator), transferred, assumed or ideal.

    A variant that the profile does not know follows another implementation of its class: transferred.
    """
    model, known = profile.kernel(name, variant), f"{name}.{variant}" in profile.kernels
    if profile.status == "ideal":
        return "ideal"
    if profile.status == "uncalibrated" or not model.points:
        return "assumed"
    if profile.status == "transferred" or model.carried_from or (variant and not known and _differs(profile, name)):
        return "transferred"
    theirs = profile.by or (PUBLISHED if PUBLISHED in model.source else None)
    return f"measured ({theirs})" if theirs else "measured"


def _differs(profile: Profile, name: str) -> bool:
    """Whether `Profile.kernel` gives up what was measured of a class for a variant that is not there."""
    return profile.kernels[name].measured is not None


def _entries(estimate: Estimate, policy: str) -> Iterator[tuple[str, Entry]]:
    """Every operation that takes time, with its phase: ``base``, else the term of the policy's step."""
    for entry in estimate.base_step.entries:
        yield "base", entry
    if estimate.steps:
        for entry in estimate.steps[policy].entries:
            yield entry.term, entry


def _grouped(entries: Iterable[tuple[str, Entry]]) -> dict[tuple[str, ...], list[Entry]]:
    """Entries that are one point: of one phase, name, kernel and input type, as far as they take time."""
    found: dict[tuple[str, ...], list[Entry]] = {}
    for phase, entry in entries:
        operation = entry.operation
        if float(entry.timing.seconds) > 0:
            key = (phase, operation.name, operation.kernel, operation.variant, operation.math)
            found.setdefault(key, []).append(entry)
    return found


def _why_left(operation: Operation) -> str | None:
    if operation.kernel == "collective":
        return "moves bytes over the link between GPUs"
    if not float(operation.flops):
        return "has no FLOPs"
    return None if float(operation.bytes) else "moves no bytes"


def _place(machine: Machine, phase: str, group: list[Entry], step_s: float) -> Point | Left:
    operations = [entry.operation for entry in group]
    first = operations[0]
    seconds = sum(float(entry.timing.seconds) for entry in group)
    why = _why_left(first)
    if why is not None:
        return Left(phase, first.name, seconds, seconds / step_s, why)
    flops = sum(float(o.flops) * float(o.repeats) for o in operations)
    moved = sum(float(o.bytes) * float(o.repeats) for o in operations)
    longest = max(group, key=lambda entry: float(entry.timing.seconds)).operation
    model = machine.profile.kernel(first.kernel, first.variant)
    return Point(
        phase=phase,
        name=first.name,
        kernel=kernel_name(first.kernel, first.variant),
        math=first.math,
        label=class_label(machine.profile, first.kernel, first.variant),
        measured_shape=all(_curves(model, o.geometry) for o in operations),
        binds=machine.binding_roof(longest),
        executions=sum(float(o.repeats) for o in operations),
        flops=flops,
        bytes=moved,
        seconds=seconds,
        share=seconds / step_s,
        intensity=flops / moved,
        attained_flops_per_s=flops / seconds,
        roof_flops_per_s=min(machine.peak_rate(first), machine.peak_bandwidth(first) * flops / moved),
    )


def kernel_name(kernel: str, variant: str) -> str:
    """A kernel class with its variant, if it has any."""
    return f"{kernel}.{variant}" if variant else kernel


def _curves(model: KernelModel, geometry: tuple[float, ...]) -> Sequence[Curve]:
    """Points of these very sizes in the profile; none where it has a factor alone."""
    known = model.measured.find(geometry) if model.measured and geometry else None
    return known.curves if known else ()


def _ceilings(machine: Machine) -> Iterator[Ceiling]:
    for math in ("bf16", "fp8", "fp4"):
        peak = getattr(machine.gpu.peak_dense_flops, math)
        if peak:
            yield Ceiling(math, peak)


def _attainable(machine: Machine, points: Iterable[Point]) -> Iterator[Attainable]:
    """One roof for each class and input type among the points, the largest share first."""
    for kernel, math, label in dict.fromkeys((p.kernel, p.math, p.label) for p in points):
        name, _, variant = kernel.partition(".")
        model = machine.profile.kernel(name, variant)
        peak = getattr(machine.gpu.peak_dense_flops, math) or machine.gpu.peak_dense_flops.bf16
        moved = machine.gpu.hbm_bandwidth_bytes_per_s * model.bandwidth
        yield Attainable(kernel, math, label, moved, peak * model.compute)


def _series(profile: Profile, operations: list[Operation]) -> Iterator[Series]:
    """Measured points of the operations' very geometries, by class."""
    named: dict[tuple[str, str, tuple[float, ...]], list[str]] = {}
    for operation in operations:
        names = named.setdefault((operation.kernel, operation.variant, operation.geometry), [])
        if operation.name not in names:
            names.append(operation.name)
    for (kernel, variant, geometry), names in sorted(named.items()):
        full, label = kernel_name(kernel, variant), class_label(profile, kernel, variant)
        for curve in _curves(profile.kernel(kernel, variant), geometry):
            yield Series(full, label, tuple(names), geometry, curve.rows, curve.size_s, curve.form_s, curve.seconds)


def _notes(profile: Profile, operations: list[Operation], series: tuple[Series, ...]) -> Iterator[str]:
    """What of the shown operations was measured, class by class."""
    if profile.status == "ideal":
        yield "The ideal engine runs at datasheet peaks: nothing was measured."
        return
    if not series:
        yield f"The profile ({profile.label}) has no measured points of the shapes shown."
        return
    shapes: dict[str, set[tuple[float, ...]]] = {}
    for operation in operations:
        shapes.setdefault(kernel_name(operation.kernel, operation.variant), set()).add(operation.geometry)
    parts = []
    for kernel, wanted in sorted(shapes.items()):
        there = [s for s in series if s.kernel == kernel]
        points = sum(len(s.seconds) for s in there)
        counted = f" ({points} points)" if points else ""
        parts.append(f"{kernel} {len({s.geometry for s in there})} of {len(wanted)}{counted}")
    yield f"Shapes shown that the profile has measured points of: {', '.join(parts)}."


def _deployment(estimate: Estimate) -> dict[str, Any]:
    work = estimate.work
    sizes = {name: int(getattr(work, name)) for name in ("context", "depth", "window", "sink", "batch")}
    return {**sizes, **layout_document(work.layout)}
