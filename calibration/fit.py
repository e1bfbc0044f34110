"""From measured points to kernel models: robust fits of the machine floor's own form, with held-out errors.

Each class (and variant) has the form seconds = launches x floor + the longest of bytes / bandwidth, FLOPs / rate,
one block's bytes / what a block streams, turns x turn,
fitted to log(seconds) by least squares with a soft loss, so that one odd shape does not bend the rest. What a class's
geometries (the sizes of a matrix, a head's shape) deviate from the form is then kept as factors, which neighbours
share. Errors are of geometries left out: the form's parameters and the factors are fitted without them.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmtp_sim.catalog.profiles import IDEAL, uncalibrated
from wmtp_sim.machine.curves import FARTHEST, Curve, MeasuredGeometry
from wmtp_sim.machine.curves import Measured as MeasuredGeometries
from wmtp_sim.machine.machine import Machine
from wmtp_sim.machine.profile import SPREAD_UNSEEN, KernelModel, Profile
from wmtp_sim.spec.gpu import Gpu
from wmtp_sim.work.operation import BYTE_KINDS, Operation

#: Classes whose geometries deviate from the form: each has a factor and curves of its own.
WITH_GEOMETRIES = ("gemm", "moe", "attention", "mla", "recurrent", "elementwise", "sample", "copy", "collective")
#: Classes whose implementations are told apart; all variants of another class are one set of points.
BY_VARIANT = ("attention", "mla", "elementwise", "recurrent", "collective")
#: Variants that are their class itself: no other of its variants speaks for it.
CLASS_ITSELF = {"collective": "all_reduce"}
#: Fewest points that a class is fitted from.
FEWEST = 4
#: Parameters are searched within these bounds: floor (s), bandwidth and compute (shares of the datasheet), and what one
#: thread block streams (bytes/s).
BOUNDS = ((1e-8, 2e-4), (0.02, 1.0), (0.005, 1.0), (1e8, 1e12))
#: Where the search for what a block streams begins: the leg binds at some points or at none, and each is a valley.
STARTS = (1e12, 1e10, 4e10)
#: Classes whose kernels elsewhere differ from ours by more than any spread found here (docs/independent.md).
FAR_FROM_OTHERS = {
    "mla.triton_packed": (3.0, "engines run their own kernels, up to 2.9 times as fast: the spread is a judgement")
}
#: What a kernel model reads of an operation, beside its type and its geometry.
READ = (*BYTE_KINDS, "flops", "launches", "padding", "rereads", "serial_bytes", "turns", "rows")
FOLDS = 8
#: Sizes of an attention's geometry where a split cap is one of them (`step.compose.split_attention`).
CAPPED = 5
#: Spreads are never claimed to be under 1 %; beyond a factor of 10 a model says nothing (`KernelModel` stops there).
SPREADS = (1.01, 10.0)


@dataclass(frozen=True)
class Point:
    """One point: what was run, and how long it took."""

    operation: Operation
    seconds: float

    @property
    def geometry(self) -> tuple[float, ...]:
        return self.operation.geometry


@dataclass(frozen=True)
class Report:
    """A fitted class, and log(predicted / measured) of held-out points and of held-out geometries."""

    name: str
    model: KernelModel
    beside: NDArray[np.float64]
    elsewhere: NDArray[np.float64] | None

    @property
    def coverage(self) -> float:
        """Share of held-out points that the 90 % interval covers."""
        return float(np.mean(np.abs(self.beside) <= math.log(self.model.spread) + 1e-12))

    @property
    def elsewhere_median_error(self) -> float | None:
        return None if self.elsewhere is None else float(np.median(np.abs(np.expm1(self.elsewhere))))


def operation_numbers(operation: Operation) -> dict[str, Any]:
    """The fields of an operation that a kernel model reads, as a point keeps them: plain numbers, type and geometry."""
    numbers: dict[str, Any] = {name: float(np.asarray(getattr(operation, name))) for name in READ}
    return numbers | {"math": operation.math, "geometry": [float(size) for size in operation.geometry]}


def operation_of(record: dict[str, Any]) -> Operation:
    """The operation that a point keeps."""
    numbers = dict(record["operation"])
    geometry = tuple(numbers.pop("geometry"))
    return Operation(record["key"], record["kernel"], record["variant"], geometry=geometry, **numbers)


def measured_points(records: list[dict[str, Any]]) -> dict[str, list[Point]]:
    """Points by ``class.variant``; noisy ones are left out.

    A variant that ends in a number is an implementation held to so many splits (``sglang_triton_8``). One form
    describes it under any cap, and the cap is in the geometry.
    """
    found: dict[str, list[Point]] = defaultdict(list)
    for record in records:
        if record.get("noisy"):
            continue
        found[_model_of(record["kernel"], record["variant"])].append(Point(operation_of(record), record["seconds"]))
    return dict(found)


def _model_of(kind: str, variant: str) -> str:
    """The name of the model that describes a point."""
    implementation = re.sub(r"_\d+$", "", variant)
    alone = kind not in BY_VARIANT or implementation == CLASS_ITSELF.get(kind)
    return kind if alone else f"{kind}.{implementation}"


def fit_classes(records: list[dict[str, Any]], gpu: Gpu, turn_s: float, source: str) -> list[Report]:
    """Every class and variant that has enough points, by name; points that are somebody else's say so in the source."""
    grouped, theirs = (
        sorted(measured_points(records).items()),
        {r["key"]: r["source"] for r in records if "source" in r},
    )
    reports = []
    for name, points in grouped:
        if len(points) >= FEWEST:
            others = dict.fromkeys(theirs[p.operation.name] for p in points if p.operation.name in theirs)
            of_others = f"; points of {', '.join(list(others)[:3])}" if others else ""
            reports.append(fit_class(name, points, gpu, turn_s, source + of_others))
    return reports


def fit_class(name: str, points: list[Point], gpu: Gpu, turn_s: float, source: str) -> Report:
    """The kernel model of one class, with errors on held-out points and on held-out geometries."""
    model = _fitted(name, points, gpu, turn_s, source)
    groups = _by_head(points)
    beside = _held_out(name, points, [[i] for i in range(len(points))], gpu, turn_s, source)
    elsewhere = _held_out(name, points, groups, gpu, turn_s, source) if len(groups) > 1 else None
    moved = [float(np.asarray(p.operation.bytes)) for p in points if np.asarray(p.operation.bytes) > 0]
    absolute = np.abs(np.expm1(beside))
    complete = model.model_copy(
        update={
            "spread": _spread(beside),
            "spread_elsewhere": max(SPREAD_UNSEEN if elsewhere is None else _spread(elsewhere), _spread(beside)),
            "measured_bytes": (min(moved), max(moved)) if moved else None,
            "points": len(points),
            "median_error": float(np.median(absolute)),
            "p90_error": float(np.quantile(absolute, 0.9)),
        }
    )
    return Report(name, complete, beside, elsewhere)


def _spread(errors: NDArray[np.float64]) -> float:
    """The factor that 90 % of log errors stay within."""
    return float(np.clip(np.exp(np.quantile(np.abs(errors), 0.9)), *SPREADS))


def _by_geometry(points: list[Point]) -> dict[tuple[float, ...], list[int]]:
    groups: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for i, point in enumerate(points):
        groups[point.geometry].append(i)
    return dict(groups)


def _by_head(points: list[Point]) -> list[list[int]]:
    """As `_by_geometry`, but a head under several split caps is one: another cap is no other shape."""
    groups: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for i, point in enumerate(points):
        capped = point.operation.kernel == "attention" and len(point.geometry) == CAPPED
        groups[(*point.geometry[:3], point.geometry[-1]) if capped else point.geometry].append(i)
    return list(groups.values())


def _held_out(
    name: str, points: list[Point], parts: list[list[int]], gpu: Gpu, turn_s: float, source: str
) -> NDArray[np.float64]:
    """log(predicted / measured) of every point, predicted without any point of its part (folds of parts)."""
    errors = np.zeros(len(points))
    folds = min(len(parts), FOLDS if len(parts[0]) > 1 or len(parts) > 4 * FOLDS else len(parts))
    for fold in range(folds):
        held = [i for part in parts[fold::folds] for i in part]
        kept = [points[i] for i in range(len(points)) if i not in set(held)]
        model = _fitted(name, kept, gpu, turn_s, source)
        errors[held] = _residuals(model, [points[i] for i in held], gpu, turn_s)
    return errors


def _fitted(name: str, points: list[Point], gpu: Gpu, turn_s: float, source: str) -> KernelModel:
    """The form's parameters, and the factor and curves of each geometry on top."""
    form = _form(name, _in_plain_format(points), gpu, turn_s, source)
    if name.split(".")[0] not in WITH_GEOMETRIES:
        return form
    residuals = _residuals(form, points, gpu, turn_s)
    entries = [
        MeasuredGeometry(
            geometry=geometry,
            log_factor=float(np.clip(-np.median(residuals[members]), -FARTHEST, FARTHEST)),
            curves=_curves([points[i] for i in members], form, gpu, turn_s),
        )
        for geometry, members in _by_geometry(points).items()
        if geometry
    ]
    return form.model_copy(update={"measured": MeasuredGeometries(geometries=tuple(entries))} if entries else {})


def _in_plain_format(points: list[Point]) -> list[Point]:
    """Points of two bytes an element and more: what unpacking narrower formats costs is told by their geometries."""
    plain = [p for p in points if len(p.geometry) < 2 or p.geometry[-1] >= 2.0]
    return plain if len(plain) >= FEWEST else points


def _form(name: str, points: list[Point], gpu: Gpu, turn_s: float, source: str) -> KernelModel:
    """Floor, bandwidth, FLOP rate and what a block streams, by least squares on log(seconds)."""
    from scipy.optimize import least_squares

    seconds = np.log([p.seconds for p in points])
    legs = _Legs.of([p.operation for p in points], gpu, turn_s)
    smallest = min(p.seconds / p.operation.launches for p in points)
    floor_s = min(max(smallest, BOUNDS[0][0] * 2), BOUNDS[0][1] / 2)
    low, high = (np.log([pair[i] for pair in BOUNDS]) for i in (0, 1))
    tries = [
        least_squares(
            lambda x: np.log(legs.seconds(*np.exp(x))) - seconds,
            np.log([floor_s, 0.7, 0.3, block]),
            bounds=(low, high),
            loss="soft_l1",
            f_scale=0.05,
        )
        for block in (STARTS if np.any(legs.serial) else STARTS[:1])
    ]
    found = min(tries, key=lambda tried: tried.cost)
    floor, bandwidth, compute, block = np.exp(found.x)
    busy = legs.longest(*np.exp(found.x[1:]))
    if not np.any(legs.math / compute >= busy):
        compute = _assumed(name).compute
    return KernelModel(
        floor_s=floor,
        bandwidth=min(bandwidth, 1.0),
        compute=min(compute, 1.0),
        cta_bytes_per_s=block if np.any((legs.serial > 0) & (legs.serial / block >= busy)) else _assumed_block(name),
        spread=1.0,
        source=source,
    )


def _assumed(name: str) -> KernelModel:
    """What points cannot tell where a leg never binds: the documented constants, not wherever a search began."""
    kernels = uncalibrated().kernels
    return kernels.get(name) or kernels[name.split(".")[0]]


def _assumed_block(name: str) -> float | None:
    """What one block streams, where the class has a documented constant of its own."""
    documented = uncalibrated().kernels.get(name)
    return None if documented is None else documented.cta_bytes_per_s


def _curves(points: list[Point], form: KernelModel, gpu: Gpu, turn_s: float) -> tuple[Curve, ...]:
    """Points by rows and size; where a measured kernel falls with size, neighbours are pooled.

    Pooling is the least-squares fit of a rising curve to log(seconds) (isotonic regression).
    """
    from scipy.optimize import isotonic_regression

    machine = _machine(form, gpu, turn_s)
    found: dict[float, dict[float, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        pace = machine.pace(point.operation, form)
        size_s = float(f"{float(pace.size_s):.12g}")  # rounding must not make two sizes of one
        found[float(np.asarray(point.operation.rows))][size_s].append((float(pace.form_s), point.seconds))
    curves = []
    for rows, sizes in sorted(found.items()):
        size_s = sorted(sizes)
        form_s, seconds = np.log([np.median(sizes[size], axis=0) for size in size_s]).T
        form_s = np.maximum.accumulate(form_s)
        near = form_s[:, None] + np.array([-1.0, 1.0]) * (FARTHEST - 1e-9)
        risen = np.maximum.accumulate(np.exp(np.clip(isotonic_regression(seconds).x, *near.T)))
        points_s = {"size_s": size_s, "form_s": np.exp(form_s).tolist(), "seconds": risen.tolist()}
        curves.append(Curve(rows=rows, **{name: tuple(values) for name, values in points_s.items()}))
    return tuple(curves)


def _machine(model: KernelModel, gpu: Gpu, turn_s: float) -> Machine:
    return Machine(gpu, Profile(name="fit", status="measured", kernels={"any": model}, turn_s=turn_s, host_spread=1.0))


def _residuals(model: KernelModel, points: list[Point], gpu: Gpu, turn_s: float) -> NDArray[np.float64]:
    """log(predicted / measured), by the machine floor itself."""
    machine = _machine(model, gpu, turn_s)
    return np.array([math.log(float(np.asarray(machine.once(p.operation, model))) / p.seconds) for p in points])


@dataclass(frozen=True)
class _Legs:
    """The form's ingredients as arrays, so that a fit evaluates it quickly."""

    launches: NDArray[np.float64]
    memory: NDArray[np.float64]
    math: NDArray[np.float64]
    serial: NDArray[np.float64]
    turns: NDArray[np.float64]

    @classmethod
    def of(cls, operations: list[Operation], gpu: Gpu, turn_s: float) -> _Legs:
        peak = gpu.peak_dense_flops
        rates = {"bf16": peak.bf16, "fp8": peak.fp8 or peak.bf16, "fp4": peak.fp4 or peak.bf16}
        machine = Machine(gpu, IDEAL)  # a collective's bytes go over the link
        memory = [float(np.asarray(o.bytes + o.kv * (o.rereads - 1))) / machine.peak_bandwidth(o) for o in operations]
        return cls(
            launches=np.array([o.launches for o in operations], dtype=float),
            memory=np.array(memory),
            math=np.array([float(np.asarray(o.flops * o.padding)) / rates[o.math] for o in operations]),
            serial=np.array([float(np.asarray(o.serial_bytes)) for o in operations]),
            turns=np.array([float(np.asarray(o.turns)) for o in operations]) * turn_s,
        )

    def longest(self, bandwidth: float, compute: float, block: float) -> NDArray[np.float64]:
        moved, multiplied = self.memory / bandwidth, self.math / compute
        return np.asarray(np.maximum.reduce([moved, multiplied, self.serial / block, self.turns]))

    def seconds(self, floor: float, bandwidth: float, compute: float, block: float) -> NDArray[np.float64]:
        return self.launches * floor + self.longest(bandwidth, compute, block)


def turn_seconds(records: list[dict[str, Any]]) -> float | None:
    """One dependent loop turn, from serial index builders."""
    serial = [r for r in records if r["kernel"] == "index_build" and r["variant"] == "serial"]
    return float(np.median([r["seconds"] / r["operation"]["turns"] for r in serial])) if serial else None


def class_defaults(fitted: dict[str, KernelModel]) -> dict[str, KernelModel]:
    """A model for each class itself: its only variant's, or the one with the most points.

    A class of `CLASS_ITSELF` has one only where it was fitted itself. Where the model is that of a kernel of ours
    that is known to be far from others, the form alone, with a judged spread.
    """
    found: dict[str, KernelModel] = {}
    for name, model in sorted(fitted.items(), key=lambda item: item[1].points):
        if name in FAR_FROM_OTHERS:
            spread, why = FAR_FROM_OTHERS[name]
            judged = {"measured": None, "spread": spread, "spread_elsewhere": None}
            model = model.model_copy(update=judged | {"source": f"{model.source}; {why}"})
        kind = name.split(".")[0]
        if kind not in CLASS_ITSELF or name == kind:
            found[kind] = model
    return found
