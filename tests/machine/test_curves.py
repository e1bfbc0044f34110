"""Measured geometries over a class's form: exact where measured, rising everywhere, form or neighbours elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from wmtp_sim.machine.curves import Curve, Measured, MeasuredGeometry, Pace, distance
from wmtp_sim.machine.machine import Machine
from wmtp_sim.machine.profile import KernelModel, Profile
from wmtp_sim.spec.gpu import Gpu, PeakFlops
from wmtp_sim.work.operation import Operation

#: Rounding only: the properties are exact in real numbers.
ULPS = 1e-11
#: Round numbers: 1 TB/s and 100 TFLOP/s.
GPU = Gpu(name="round", peak_dense_flops=PeakFlops(bf16=1e14), hbm_bandwidth_bytes_per_s=1e12, memory_bytes=10**11)
HEAD = (128.0, 8.0, 2.0)


def model(measured: Measured | None = None, **more) -> KernelModel:
    numbers = {"floor_s": 1e-6, "bandwidth": 0.5, "compute": 0.25, "spread": 1.1, "source": "test"} | more
    return KernelModel(**numbers, measured=measured)


def machine(kernel: KernelModel) -> Machine:
    return Machine(GPU, Profile(name="t", status="measured", kernels={"any": kernel}, turn_s=0.0, host_spread=1.0))


def once(kernel: KernelModel, operation: Operation) -> np.ndarray:
    return np.asarray(machine(kernel).once(operation, kernel))


WIDE = {"spread_elsewhere": 1.2}


def curve(rows: float, *points: tuple[float, float]) -> Curve:
    """Points of (seconds, log ratio)."""
    seconds, _ = zip(*points, strict=True)
    form_s = tuple(s / math.exp(x) for s, x in points)
    return Curve(rows=rows, size_s=form_s, form_s=form_s, seconds=seconds)


#: Four rows of a GEMM-like class, 5 % over the form of ``model()`` at 1 and 10 MB.
LINE = curve(4.0, (3e-6 * math.exp(0.05), 0.05), (21e-6 * math.exp(0.05), 0.05))

# --- a form and curves that agree with it ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Law:
    """floor + max(bytes / bandwidth, FLOPs / rate); FLOPs are rows x (``fixed`` + ``per_byte`` x bytes)."""

    floor: float
    bandwidth: float
    rate: float
    per_byte: float
    fixed: float

    def flops(self, rows, moved):
        return rows * (self.fixed + self.per_byte * moved)

    def seconds(self, rows, moved):
        return self.floor + np.maximum(moved / self.bandwidth, self.flops(rows, moved) / self.rate)

    def size(self, rows, moved):
        """The form, and a hundredth of all legs, as the machine floor orders sizes."""
        return self.seconds(rows, moved) + 0.01 * (
            self.floor + moved / self.bandwidth + self.flops(rows, moved) / self.rate
        )

    def form(self, moved) -> Callable[[np.ndarray], Pace]:
        return lambda rows: Pace(np.asarray(self.seconds(rows, moved)), np.asarray(self.size(rows, moved)))

    def operation(self, rows, moved) -> Operation:
        return Operation("t", "attention", flops=self.flops(rows, moved), kv=moved, rows=rows, geometry=HEAD)

    def model(self, entry: MeasuredGeometry) -> KernelModel:
        return model(
            Measured(geometries=(entry,)), floor_s=self.floor, bandwidth=self.bandwidth / 1e12, compute=self.rate / 1e14
        )


@st.composite
def laws(draw, flops_grow: bool | None = None) -> Law:
    """Memory-bound, compute-bound, and with the crossover among the rows or the bytes."""
    grow = draw(st.booleans()) if flops_grow is None else flops_grow
    bandwidth, rate = draw(st.floats(1e11, 9e11)), draw(st.floats(1e13, 9e13))
    ridge = rate / bandwidth
    return Law(
        floor=draw(st.sampled_from([0.0, 1e-7, 2e-6, 2e-5])),
        bandwidth=bandwidth,
        rate=rate,
        per_byte=draw(st.floats(0.02, 2.0)) * ridge if grow else 0.0,
        fixed=0.0 if grow else draw(st.floats(0.02, 2.0)) * ridge * 10 ** draw(st.floats(4, 9)),
    )


def ascending(low: float, high: float, least: int, most: int):
    """Distinct exponents of ten, apart enough to be different numbers."""
    steps = st.lists(st.floats(low, high), min_size=least, max_size=most, unique_by=lambda x: round(x, 3))
    return steps.map(lambda found: [10.0**x for x in sorted(found)])


@st.composite
def entries(draw, law: Law, one_grid: bool = False) -> tuple[MeasuredGeometry, dict[float, list[float]]]:
    """Curves whose seconds never fall, and the bytes of their points by rows. ``one_grid``: nor do they fall over rows,
    at the same bytes for all rows. At least one has several sizes.
    """
    rows = draw(st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True).map(sorted))
    grid, least = draw(ascending(4, 9, 1, 5)), 0.0
    curves, sizes = [], {}
    for r in rows:
        moved = grid if one_grid else draw(ascending(4, 9, 1, 5))
        #: Kernels that hardly follow their form: flat stretches and jumps.
        factors = draw(st.lists(st.sampled_from([0.1, 0.5, 0.9, 1.0, 1.1, 3.0]), min_size=5, max_size=5))
        form = np.array([law.seconds(r, b) for b in moved])
        seconds = np.maximum.accumulate([f * s for f, s in zip(factors, form, strict=False)])
        seconds = np.maximum(seconds, least)
        least = seconds if one_grid else 0.0
        size = np.array([law.size(r, b) for b in moved])
        if (np.abs(np.log(seconds / form)) >= 5).any() or (np.diff(size) <= 1e-9 * size[1:]).any():
            continue
        points = {"size_s": size, "form_s": form, "seconds": seconds}
        curves.append(Curve(rows=r, **{name: tuple(values.tolist()) for name, values in points.items()}))
        sizes[float(r)] = moved
    assume(not curves or any(len(each.form_s) > 1 for each in curves))
    return MeasuredGeometry(geometry=HEAD, log_factor=0.2, curves=tuple(curves)), sizes


@st.composite
def paths(draw, law: Law) -> tuple[MeasuredGeometry, list[float]]:
    """One size for each number of rows, more bytes with more rows, and those bytes; times need not rise with them."""
    rows = draw(st.lists(st.integers(1, 1024), min_size=1, max_size=5, unique=True).map(sorted))
    moved = draw(ascending(4, 9, len(rows), len(rows)))
    factors = draw(st.lists(st.sampled_from([0.1, 0.5, 0.9, 1.0, 1.1, 3.0]), min_size=5, max_size=5))
    curves = []
    for r, b, factor in zip(rows, moved, factors, strict=False):
        curves.append(curve(r, (float(law.seconds(r, b)) * factor, math.log(factor))))
    return MeasuredGeometry(geometry=HEAD, log_factor=0.2, curves=tuple(curves)), moved


def never_falls(values: np.ndarray) -> None:
    fall = np.min(values[1:] / values[:-1])
    assert fall >= 1 - ULPS, f"falls by {1 - fall:.3g}"


def bytes_around(sizes: dict[float, list[float]]) -> np.ndarray:
    nodes = [b for moved in sizes.values() for b in moved]
    just = [b * (1 + d) for b in nodes for d in (-1e-9, 1e-9)]
    return np.sort([*np.logspace(3, 10, 150), *nodes, *just])


def rows_around(entry: MeasuredGeometry) -> np.ndarray:
    return np.unique([*np.linspace(1, 9, 33), *np.linspace(10, 80, 36), *(c.rows for c in entry.curves)])


# --- properties -------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.data())
def test_never_falls_as_a_context_grows(data):
    law = data.draw(laws(flops_grow=True))
    entry, sizes = data.draw(entries(law))
    rows = data.draw(st.floats(1, 80))
    moved = bytes_around(sizes)
    never_falls(entry.seconds(np.float64(rows), law.form(moved)))


@settings(deadline=None)
@given(st.data())
def test_never_falls_with_bytes_alone_up_to_the_most_rows_measured(data):
    law = data.draw(laws(flops_grow=False))
    entry, sizes = data.draw(entries(law))
    if not entry.curves:
        return
    rows = data.draw(st.floats(0.5, entry.curves[-1].rows))
    moved = bytes_around(sizes)
    never_falls(entry.seconds(np.float64(rows), law.form(moved)))


@settings(deadline=None)
@given(st.data())
def test_never_falls_with_rows(data):
    law = data.draw(laws())
    entry, _ = data.draw(entries(law))
    moved = 10 ** data.draw(st.floats(3, 10))
    never_falls(entry.seconds(rows_around(entry), law.form(moved)))


@settings(deadline=None)
@given(st.data())
def test_a_machine_never_predicts_less_for_more_rows_over_more_bytes(data):
    law = data.draw(laws(flops_grow=True))
    entry, _ = data.draw(entries(law))
    rows = rows_around(entry)
    moved = 10 ** data.draw(st.floats(3, 9)) * np.cumprod(
        1 + np.array(data.draw(st.lists(st.sampled_from([0, 1e-6, 0.3, 1.0]), min_size=rows.size, max_size=rows.size)))
    )
    never_falls(once(law.model(entry), law.operation(rows, moved)))


@settings(deadline=None)
@given(st.data(), st.sampled_from([1.0, 0.65, 0.01]))
def test_never_falls_along_the_rows_and_bytes_that_were_measured(data, share):
    law = data.draw(laws(flops_grow=False))
    entry, sizes = data.draw(paths(law))
    steps = [c.rows for c in entry.curves]
    rows = np.unique([*np.logspace(0, 3.2, 200), *steps])
    moved = share * np.exp(np.interp(np.log(rows), np.log(steps), np.log(sizes)))
    never_falls(np.array([entry.seconds(r, law.form(b)) for r, b in zip(rows, moved, strict=True)]))


@settings(deadline=None)
@given(st.data())
def test_one_size_per_rows_is_exact_unless_fewer_rows_took_longer(data):
    law = data.draw(laws(flops_grow=False))
    entry, sizes = data.draw(paths(law))
    longest = 0.0
    for each, moved in zip(entry.curves, sizes, strict=True):
        longest = max(longest, each.seconds[0])
        got = entry.seconds(np.float64(each.rows), law.form(moved))
        assert got == pytest.approx(longest, rel=1e-11)


def test_the_form_says_between_two_measured_rows_where_flops_begin_to_bind():
    """A perfect kernel measured at 1 and 1,024 rows only: flat to its ridge (64 rows), then proportional to rows."""
    law = Law(floor=0.0, bandwidth=1e12, rate=1e14, per_byte=0.0, fixed=1e14 * 1e-5 / 64)
    moved = 1e7
    ends = [curve(r, (float(law.seconds(r, moved)), 0.0)) for r in (1.0, 1024.0)]
    entry = MeasuredGeometry(geometry=HEAD, log_factor=0.0, curves=tuple(ends))
    rows = np.array([1.0, 8.0, 64.0, 128.0, 256.0, 512.0, 1024.0])
    got = entry.seconds(rows, law.form(moved))
    assert got == pytest.approx(1e-5 * np.array([1, 1, 1, 2, 4, 8, 16]), rel=1e-12)


@settings(deadline=None)
@given(st.data())
def test_measured_points_are_predicted_exactly(data):
    law = data.draw(laws())
    entry, sizes = data.draw(entries(law, one_grid=True))
    for each in entry.curves:
        for moved, seconds in zip(sizes[each.rows], each.seconds, strict=True):
            got = entry.seconds(np.float64(each.rows), law.form(moved))
            assert got == pytest.approx(seconds, rel=1e-11)


@settings(deadline=None)
@given(st.data())
def test_predictions_stay_between_the_measured_neighbours(data):
    law = data.draw(laws(flops_grow=False))
    entry, sizes = data.draw(entries(law, one_grid=True))
    for each in entry.curves:
        moved = np.array(sizes[each.rows])
        middle = np.sqrt(moved[1:] * moved[:-1])
        got = entry.seconds(np.float64(each.rows), law.form(middle))
        assert (got >= np.array(each.seconds[:-1]) * (1 - ULPS)).all()
        assert (got <= np.array(each.seconds[1:]) * (1 + ULPS)).all()


@settings(deadline=None)
@given(st.data())
def test_never_below_the_bound(data):
    law = data.draw(laws())
    entry, _ = data.draw(entries(law))
    rows, moved = np.meshgrid(rows_around(entry)[::6], np.logspace(3, 10, 20))
    operation = law.operation(rows, moved)
    geometry = data.draw(st.sampled_from([HEAD, (128.0, 8.0, 4.0), (1e4,)]))
    kernel = law.model(entry)
    here = replace(operation, geometry=geometry)
    bound = machine(kernel).bound(here)
    assert (once(kernel, here) >= bound).all()


@settings(deadline=None)
@given(st.data())
def test_arrays_are_loops_over_scalars(data):
    law = data.draw(laws())
    kernel = law.model(data.draw(entries(law))[0])
    rows = np.array(data.draw(st.lists(st.floats(1, 80), min_size=2, max_size=5)))
    moved = 10 ** np.array(data.draw(st.lists(st.floats(3, 10), min_size=1, max_size=5)))
    grid = once(kernel, law.operation(rows[:, None], moved[None, :]))
    assert grid.shape == (rows.size, moved.size)
    for i, r in enumerate(rows):
        for j, b in enumerate(moved):
            assert once(kernel, law.operation(float(r), float(b))) == pytest.approx(grid[i, j], rel=1e-12)
    fixed = once(kernel, law.operation(float(rows[0]), moved))
    np.testing.assert_allclose(fixed, grid[0], rtol=1e-12)


# --- closed forms -----------------------------------------------------------------------------------------------

#: 1 us + bytes at 1 TB/s: 2 us at 1 MB, 5 us at 4 MB, whatever the rows.
FLAT = Law(floor=1e-6, bandwidth=1e12, rate=1e14, per_byte=0.0, fixed=1.0)
TWICE = math.log(2.0)


def alike(law: Law, moved) -> Callable[[np.ndarray], Pace]:
    """A pace whose size is the form itself, as the curves of these examples have it."""
    return lambda rows: Pace(*(np.asarray(law.seconds(rows, moved)),) * 2)


def test_between_sizes_the_efficiency_glides_with_the_form():
    """From 1 to 4 times the form, as the form goes from 2 to 5 us; before and beyond it holds."""
    entry = MeasuredGeometry(geometry=HEAD, log_factor=0.0, curves=(curve(1, (2e-6, 0.0), (20e-6, 2 * TWICE)),))
    got = entry.seconds(np.float64(1), alike(FLAT, np.array([0.5, 1, 2, 4, 9]) * 1e6))
    between = 3e-6 * 4 ** (math.log(3 / 2) / math.log(5 / 2))
    np.testing.assert_allclose(got, [1.5e-6, 2e-6, between, 20e-6, 10e-6 * 4], rtol=1e-12)


def test_a_size_is_never_faster_than_a_smaller_one_was():
    """A slow small size: the efficiency rises at once after it, the time does not fall."""
    entry = MeasuredGeometry(geometry=HEAD, log_factor=0.0, curves=(curve(1, (5e-6, math.log(2.5)), (5e-6, 0.0)),))
    got = entry.seconds(np.float64(1), alike(FLAT, np.array([1e6, 2e6, 3e6, 4e6, 9e6])))
    np.testing.assert_allclose(got, [5e-6, 5e-6, 5e-6, 5e-6, 10e-6], rtol=1e-12)


def test_between_rows_the_time_is_interpolated_and_fewer_rows_hold():
    """Twice the form with two rows, four times with four, at 1 MB and at 10."""
    curves = (curve(2, (4e-6, TWICE), (22e-6, TWICE)), curve(4, (8e-6, 2 * TWICE), (44e-6, 2 * TWICE)))
    entry = MeasuredGeometry(geometry=HEAD, log_factor=0.0, curves=curves)
    got = entry.seconds(np.array([1.0, 2, 3, 3.5, 4, 8]), alike(FLAT, 1e6))
    np.testing.assert_allclose(got, [4e-6, 4e-6, 6e-6, 7e-6, 8e-6, 8e-6], rtol=1e-12)


def test_beyond_the_most_rows_time_grows_as_the_form_does():
    """Compute-bound: 1 us + 1 us a row; measured twice that."""
    law = Law(floor=1e-6, bandwidth=1e12, rate=1e14, per_byte=100.0, fixed=0.0)
    for points in ([(10e-6, TWICE)], [(10e-6, TWICE), (82e-6, TWICE)]):
        entry = MeasuredGeometry(geometry=HEAD, log_factor=0.0, curves=(curve(4, *points),))
        got = entry.seconds(np.array([4.0, 9, 19]), alike(law, 1e6))
        np.testing.assert_allclose(got, [10e-6, 20e-6, 40e-6], rtol=1e-12)


def test_fewer_rows_that_were_slower_count():
    curves = (curve(1, (6e-6, 0.0)), curve(4, (4e-6, math.log(2 / 3))))
    entry = MeasuredGeometry(geometry=HEAD, log_factor=0.0, curves=curves)
    law = replace(FLAT, floor=5e-6)
    assert entry.seconds(np.float64(4), law.form(1e6)) == pytest.approx(6e-6)


def test_without_curves_the_factor_is_all():
    entry = MeasuredGeometry(geometry=HEAD, log_factor=TWICE)
    moved = np.logspace(4, 9, 7)
    np.testing.assert_allclose(entry.seconds(np.float64(3), FLAT.form(moved)), 2 * FLAT.seconds(3, moved))


def test_curves_on_the_form_are_the_form():
    moved = np.logspace(4, 9, 6)
    law = Law(floor=2e-6, bandwidth=5e11, rate=2e13, per_byte=10.0, fixed=0.0)
    points = [(float(law.seconds(1, b)), 0.0) for b in moved]
    entry = MeasuredGeometry(geometry=HEAD, log_factor=0.7, curves=(curve(1, *points),))
    finer = np.logspace(3, 10, 60)
    np.testing.assert_allclose(entry.seconds(np.float64(1), alike(law, finer)), law.seconds(1, finer), rtol=1e-12)


# --- other geometries -------------------------------------------------------------------------------------------

KNOWN = (
    MeasuredGeometry(geometry=(1024.0, 1024.0), log_factor=0.4),
    MeasuredGeometry(geometry=(1024.0, 4096.0), log_factor=-0.2),
    MeasuredGeometry(geometry=(2.0**20, 2.0**20), log_factor=3.0),
    MeasuredGeometry(geometry=(1024.0, 1024.0, 2.0), log_factor=-4.0),
)
PLAIN = Operation("t", "gemm", flops=2e9, weights=2e6, rows=4.0)


def test_a_model_without_measurements_is_the_form():
    assert once(model(), replace(PLAIN, geometry=HEAD)) == pytest.approx(1e-6 + max(4e-6, 2e9 / 2.5e13))


@pytest.mark.parametrize("geometry", [(), (7.0,), (2.0**40, 2.0**40), (1024.0,) * 4, (0.0, 1024.0)])
def test_a_geometry_far_from_all_or_unknown_is_the_form(geometry):
    kernel = model(Measured(geometries=KNOWN))
    assert once(kernel, replace(PLAIN, geometry=geometry)) == pytest.approx(float(once(model(), PLAIN)), rel=1e-9)


def test_a_geometry_between_measured_ones_takes_their_mean_factor():
    measured = Measured(geometries=KNOWN, reach_octaves=0.5, doubt=0.05)
    near = math.exp(-(0.5**2) / (2 * 0.5**2))
    far = math.exp(-(1.5**2) / (2 * 0.5**2))
    expected = math.exp((0.4 * near - 0.2 * far) / (near + far + 0.05))
    between = (1024.0, 1024.0 * math.sqrt(2))
    assert measured.factor(between) == pytest.approx(expected, rel=1e-12)
    got = once(model(measured), replace(PLAIN, geometry=between))
    assert got == pytest.approx(expected * float(once(model(), PLAIN)), rel=1e-12)


def test_only_the_nearest_four_speak():
    at = [2.0 ** (10 + i / 10) for i in range(1, 7)]
    entries = tuple(MeasuredGeometry(geometry=(size,), log_factor=1.0 if i < 4 else -5.0) for i, size in enumerate(at))
    four = Measured(geometries=entries[:4])
    assert Measured(geometries=entries).factor((1024.0,)) == pytest.approx(four.factor((1024.0,)))


def test_an_unknown_geometry_is_not_faster_than_the_datasheet():
    measured = Measured(geometries=(MeasuredGeometry(geometry=(1024.0,), log_factor=-5.0),))
    operation = replace(PLAIN, geometry=(1025.0,))
    kernel = model(measured, floor_s=0.0)
    assert once(kernel, operation) == machine(kernel).bound(operation)


def test_a_known_geometry_is_found_up_to_rounding():
    measured = Measured(geometries=KNOWN)
    assert measured.find((1024.0, 4096.0)) is KNOWN[1]
    assert measured.find((1024.0 * (1 + 1e-9), 4096.0)) is KNOWN[1]
    assert measured.find((1024.0, 4097.0)) is None
    assert once(model(measured), replace(PLAIN, geometry=(1024.0, 4096.0 / 3 * 3))) == pytest.approx(
        math.exp(-0.2) * float(once(model(), PLAIN)), rel=1e-12
    )


def test_spread_is_wider_where_nothing_was_measured():
    kernel = model(Measured(geometries=KNOWN), spread_elsewhere=1.5)
    assert kernel.spread_at((1024.0, 1024.0), 1) == 1.1
    assert kernel.spread_at((1024.0, 1100.0), 1) == 1.5
    assert model(spread_elsewhere=1.5).spread_at((1024.0,), 1) == 1.1


@settings(deadline=None)
@given(*[st.lists(st.floats(1, 1e6), min_size=2, max_size=2)] * 3)
def test_distance_is_a_metric(a, b, c):
    a, b, c = map(tuple, (a, b, c))
    assert distance(a, a) == 0
    assert distance(a, b) == pytest.approx(distance(b, a))
    assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-9
    assert distance(a, (*b, 1.0)) == math.inf
    assert distance((2.0, 8.0), (16.0, 128.0)) == pytest.approx(5.0)


# --- refusals ---------------------------------------------------------------------------------------------------

GOOD = {"rows": 1.0, "size_s": (1e-6, 2e-6), "form_s": (1e-6, 2e-6), "seconds": (1e-6, 1e-6)}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"size_s": (2e-6, 1e-6)}, "sizes do not ascend"),
        ({"size_s": (1e-6, 1e-6)}, "sizes do not ascend"),
        ({"form_s": (2e-6, 1e-6)}, "times fall"),
        ({"seconds": (2e-6, 1e-6)}, "times fall"),
        ({"seconds": (1e-6,)}, "2 sizes, 2 form times, 1 times"),
        ({"size_s": (), "form_s": (), "seconds": ()}, "0 sizes"),
        ({"size_s": (0.0, 1e-6)}, "greater than 0"),
        ({"form_s": (1e-6, math.inf)}, "finite"),
        ({"seconds": (1e-6, math.nan)}, "finite"),
        ({"seconds": (-1e-6, 1e-6)}, "greater than 0"),
        ({"seconds": (1e-6, 3e-4)}, "far from the form"),
        ({"rows": 0.0}, "greater than 0"),
        ({"rows": math.inf}, "finite"),
        ({"typo": 1}, "not permitted"),
    ],
)
def test_a_curve_that_makes_no_sense_is_refused(change, says):
    Curve(**GOOD)
    with pytest.raises(ValidationError, match=says):
        Curve(**(GOOD | change))


def test_sizes_that_the_longest_leg_cannot_tell_apart_keep_their_order():
    """One block's own bytes bind: the form is the same for all three, and the measured times are not."""
    kernel = model(cta_bytes_per_s=1e9)
    operations = [Operation("t", "attention", kv=b, serial_bytes=1e4, geometry=HEAD) for b in (1e6, 2e6, 4e6)]
    paces = [machine(kernel).pace(operation, kernel) for operation in operations]
    assert len({float(pace.form_s) for pace in paces}) == 1
    points = {"size_s": [p.size_s for p in paces], "form_s": [p.form_s for p in paces], "seconds": [1e-5, 2e-5, 4e-5]}
    entry = MeasuredGeometry(
        geometry=HEAD, log_factor=0.0, curves=(Curve(rows=1, **{k: tuple(map(float, v)) for k, v in points.items()}),)
    )
    measured = kernel.model_copy(update={"measured": Measured(geometries=(entry,))})
    assert [float(once(measured, operation)) for operation in operations] == pytest.approx([1e-5, 2e-5, 4e-5])


@pytest.mark.parametrize("rows", [(2.0, 1.0), (1.0, 1.0), (1.0, 4.0, 2.0)])
def test_rows_must_ascend(rows):
    with pytest.raises(ValidationError, match="rows do not ascend"):
        MeasuredGeometry(geometry=HEAD, log_factor=0.0, curves=tuple(Curve(**(GOOD | {"rows": r})) for r in rows))


@pytest.mark.parametrize(
    ("kind", "numbers", "says"),
    [
        (MeasuredGeometry, {"geometry": (0.0,), "log_factor": 0.0}, "greater than 0"),
        (MeasuredGeometry, {"geometry": (math.nan,), "log_factor": 0.0}, "finite|greater"),
        (MeasuredGeometry, {"geometry": HEAD, "log_factor": math.inf}, "finite|less"),
        (MeasuredGeometry, {"geometry": HEAD, "log_factor": -6.0}, "greater than or equal to -5"),
        (Measured, {"geometries": (), "reach_octaves": 0.0}, "greater than 0"),
        (Measured, {"geometries": (), "doubt": 0.0}, "greater than 0"),
    ],
)
def test_numbers_out_of_range_are_refused(kind, numbers, says):
    with pytest.raises(ValidationError, match=says):
        kind(**numbers)


def test_spread_is_wider_beyond_measured_rows_and_formats():
    kernel = model(Measured(geometries=(MeasuredGeometry(geometry=(64.0, 2.0), log_factor=0, curves=(LINE,)),)), **WIDE)
    assert kernel.spread_at((64.0, 2.0), [LINE.rows, 2 * LINE.rows, 2.1 * LINE.rows]).tolist() == [1.1, 1.1, 1.5]
    assert kernel.spread_at((70.0, 2.0), 1) == 1.2
    assert kernel.spread_at((70.0, 1.0), 1) == 1.5


def test_another_implementation_does_not_inherit_what_was_measured():
    kernel = model(Measured(geometries=KNOWN), **WIDE)
    known = {"attention": kernel, "attention.ours": kernel}
    profile = Profile(name="t", status="measured", kernels=known, turn_s=0.0, host_spread=1.0)
    assert profile.kernel("attention", "ours") is kernel
    assert profile.kernel("attention", "") is kernel
    other = profile.kernel("attention", "theirs")
    assert other.measured is None
    assert other.spread_at((1024.0, 1024.0), 1) == 1.5


def test_a_hidden_launch_costs_its_floor_less_at_measured_shapes():
    """What a curve holds was measured with a launch: beside other kernels that launch hides, as in the form."""
    kernel = model(Measured(geometries=(MeasuredGeometry(geometry=(64.0, 2.0), log_factor=0, curves=(LINE,)),)))
    shown = Operation("g", "gemm", weights=1e7, rows=LINE.rows, geometry=(64.0, 2.0))
    saved = once(kernel, shown) - once(kernel, replace(shown, launches=0.0))
    assert once(kernel, shown) == pytest.approx(LINE.seconds[-1])
    assert saved == pytest.approx(kernel.floor_s)
