"""Fits on machines whose numbers are known: parameters, factors, held-out errors and intervals come out as planted."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from calibration import fit
from calibration.calibrate import build_profile, write_profile
from calibration.suite import operation_numbers
from wmtp_sim.catalog.profiles import uncalibrated
from wmtp_sim.machine.machine import Machine
from wmtp_sim.machine.profile import SPREAD_UNSEEN, KernelModel, Profile
from wmtp_sim.spec.gpu import Gpu, PeakFlops
from wmtp_sim.work.operation import Operation

#: Round numbers: 1 TB/s and 100 TFLOP/s.
GPU = Gpu(name="round", peak_dense_flops=PeakFlops(bf16=1e14), hbm_bandwidth_bytes_per_s=1e12, memory_bytes=10**11)
FLOOR, BANDWIDTH, COMPUTE = 3e-6, 0.8, 0.5
#: A matrix is read by rows that cross over from bytes to FLOPs at about 320.
ROWS = (1, 8, 64, 512, 4096)
MATRICES = tuple((float(k), float(n)) for k in (512, 2048, 8192) for n in (512, 1024, 4096, 16384))


def gemm(k: float, n: float, rows: float) -> Operation:
    return Operation(
        f"{k}x{n}x{rows}",
        "gemm",
        flops=2 * k * n * rows,
        weights=2 * k * n,
        activations=2 * rows * (k + n),
        rows=rows,
        geometry=(k, n),
    )


def attention(head: float, rows: float, context: float, variant: str = "packed") -> Operation:
    kv = context * head * 4
    return Operation("a", "attention", variant, flops=kv * rows, kv=kv, rows=rows, geometry=(head, 1.0))


def law(operation: Operation) -> float:
    """Seconds of the machine that the points come from."""
    busy = max(operation.bytes / (BANDWIDTH * 1e12), operation.flops / (COMPUTE * 1e14))
    return operation.launches * FLOOR + float(busy)


@dataclass
class Noisy:
    """Seconds of the law with log-normal noise and, now and then, three times as much."""

    noise: float
    outliers: float = 0.0
    factors: dict[tuple[float, ...], float] = field(default_factory=dict)
    seed: int = 1

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def point(self, operation: Operation) -> fit.Point:
        odd = 3.0 if self.random.random() < self.outliers else 1.0
        factor = self.factors.get(operation.geometry, 1.0) * odd * math.exp(self.random.normal(0, self.noise))
        return fit.Point(operation, law(operation) * factor)

    def gemms(self, rows: tuple[float, ...] = ROWS) -> list[fit.Point]:
        return [self.point(gemm(k, n, r)) for k, n in MATRICES for r in rows]

    def attentions(self) -> list[fit.Point]:
        contexts = [2.0**i for i in range(10, 21)]
        return [self.point(attention(h, r, c)) for h in (256, 512, 2048) for r in (1, 2, 4, 7) for c in contexts]


def fitted(name: str, points: list[fit.Point]) -> fit.Report:
    return fit.fit_class(name, points, GPU, 0.0, "synthetic")


def errors(model: KernelModel, points: list[fit.Point]) -> np.ndarray:
    """log(predicted / measured), by a machine with that model."""
    kernels = {"any": model}
    machine = Machine(GPU, Profile(name="t", status="measured", kernels=kernels, turn_s=0.0, host_spread=1.0))
    return np.array([math.log(float(machine.once(p.operation, model)) / p.seconds) for p in points])


# --- parameters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("outliers", [0.0, 0.05])
def test_the_parameters_come_back(noise, outliers, seed):
    report = fitted("gemm", Noisy(noise, outliers, seed=seed).gemms())
    tolerance = 1e-3 + 0.7 * noise + 0.3 * outliers
    assert report.model.floor_s == pytest.approx(FLOOR, rel=tolerance)
    assert report.model.bandwidth == pytest.approx(BANDWIDTH, rel=tolerance)
    assert report.model.compute == pytest.approx(COMPUTE, rel=tolerance)


def test_launches_share_the_floor():
    points = [
        fit.Point(o, law(o))
        for k in (1e4, 1e5, 1e6, 1e7, 1e9)
        for o in [Operation("s", "index_scan", kv=k, launches=4.0), Operation("s", "index_scan", kv=k)]
    ]
    report = fitted("index_scan", points)
    assert report.model.floor_s == pytest.approx(FLOOR, rel=1e-3)
    assert report.model.measured is None
    assert report.model.measured_bytes == (1e4, 1e9)


def test_bytes_read_again_and_padded_flops_count():
    """The fit's own quick form is the machine's."""
    random = np.random.default_rng(5)
    operations = [
        Operation(
            "x",
            "index_scan",
            kv=10 ** random.uniform(4, 9),
            flops=10 ** random.uniform(6, 13),
            padding=random.uniform(1, 4),
            rereads=random.uniform(1, 3),
            turns=float(random.integers(0, 200)),
            launches=float(random.integers(1, 4)),
        )
        for _ in range(50)
    ]
    model = KernelModel(floor_s=FLOOR, bandwidth=BANDWIDTH, compute=COMPUTE, spread=1.0, source="t")
    profile = Profile(name="t", status="measured", kernels={"any": model}, turn_s=1e-7, host_spread=1.0)
    seconds = [float(Machine(GPU, profile).once(o, model)) for o in operations]
    report = fit.fit_class("index_scan", list(map(fit.Point, operations, seconds)), GPU, 1e-7, "t")
    assert report.model.floor_s == pytest.approx(FLOOR, rel=1e-4)
    assert report.model.bandwidth == pytest.approx(BANDWIDTH, rel=1e-4)
    assert report.model.compute == pytest.approx(COMPUTE, rel=1e-4)
    assert report.model.p90_error == pytest.approx(0.0, abs=1e-3)


def test_where_flops_never_bind_the_documented_constant_stands():
    """Not wherever the search began: no point says anything of it."""
    model = fitted("gemm", Noisy(0.01).gemms((1, 8))).model
    assert model.compute == uncalibrated().kernels["gemm"].compute
    assert fitted("gemm", Noisy(0.01).gemms()).model.compute == pytest.approx(COMPUTE, rel=0.02)


def test_parameters_stay_within_the_datasheet():
    """Faster than the peaks: a cache was measured. The shares stop at 1."""
    points = [fit.Point(p.operation, p.seconds / 5) for p in Noisy(0.01).gemms()]
    model = fitted("gemm", points).model
    assert model.bandwidth <= 1
    assert model.compute <= 1


# --- factors and curves ----------------------------------------------------------------------------------------

PLANTED = {MATRICES[1]: 1.4, MATRICES[6]: 0.8, MATRICES[10]: 2.0}


def test_planted_deviations_are_recovered():
    report = fitted("gemm", Noisy(0.01, factors=PLANTED).gemms())
    found = {entry.geometry: math.exp(entry.log_factor) for entry in report.model.measured.geometries}
    assert set(found) == set(MATRICES)
    for geometry, factor in found.items():
        assert factor == pytest.approx(PLANTED.get(geometry, 1.0), rel=0.04)


def test_curves_predict_new_rows_of_a_known_geometry():
    """Mostly off by noise, nowhere by as much as the geometries deviate (0.8, 1.4 and 2)."""
    noisy = Noisy(0.01, factors=PLANTED)
    known, new = noisy.gemms(), noisy.gemms((3, 24, 200, 1500))
    off = np.abs(errors(fitted("moe", known).model, new))
    assert np.median(off) < 0.02
    assert off.max() < 0.5 * abs(math.log(0.8))


def test_measured_points_are_predicted_exactly():
    points = Noisy(0.0, factors=PLANTED).gemms()
    assert np.abs(errors(fitted("gemm", points).model, points)).max() < 1e-9


def test_where_a_kernel_falls_with_size_neighbours_are_pooled():
    """Isotonic regression of log(seconds): the geometric mean of the points that are out of order."""
    points = [fit.Point(attention(256, 1, 2.0**i), law(attention(256, 1, 2.0**i))) for i in range(10, 20)]
    points[3] = fit.Point(points[3].operation, points[6].seconds)
    expected = np.array([p.seconds for p in points])
    expected[3:6] = np.exp(np.mean(np.log(expected[3:6])))
    (entry,) = fitted("attention.packed", points).model.measured.geometries
    (curve,) = entry.curves
    np.testing.assert_allclose(curve.seconds, expected)
    predicted = [
        p.seconds * math.exp(e) for p, e in zip(points, errors(fitted("gemm", points).model, points), strict=True)
    ]
    np.testing.assert_allclose(predicted, expected, rtol=1e-9)


def test_repeated_points_count_by_their_median():
    operation = attention(256, 1, 4096)
    points = [fit.Point(attention(256, 1, 2.0**i), law(attention(256, 1, 2.0**i))) for i in (8, 16, 20)]
    points += [fit.Point(operation, law(operation) * f) for f in (1.0, 1.02, 9.0)]
    (entry,) = fitted("attention.packed", points).model.measured.geometries
    assert entry.curves[0].seconds[1] == pytest.approx(law(operation) * 1.02)


def test_a_class_without_geometries_is_the_form_alone():
    points = [fit.Point(Operation("c", "copy", state=10.0**i), FLOOR + 10.0**i / 8e11) for i in range(4, 10)]
    assert fitted("copy", points).model.measured is None


# --- held-out errors and intervals -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gemm", "moe", "index_scan"])
def test_held_out_errors_are_those_of_points_left_out(name):
    points = Noisy(0.03, factors=PLANTED).gemms((1, 64, 4096))[:12]
    report = fitted(name, points)
    by_hand = []
    for i, left in enumerate(points):
        others = fitted(name, [*points[:i], *points[i + 1 :]]).model
        by_hand.append(errors(others, [left])[0])
    np.testing.assert_allclose(report.beside, by_hand, rtol=1e-9, atol=1e-12)
    sizes = np.abs(np.expm1(by_hand))
    assert report.model.median_error == pytest.approx(np.median(sizes))
    assert report.model.p90_error == pytest.approx(np.quantile(sizes, 0.9))
    assert report.model.spread == pytest.approx(math.exp(np.quantile(np.abs(by_hand), 0.9)))


def test_errors_elsewhere_are_those_of_whole_geometries_left_out():
    points = Noisy(0.03, factors=PLANTED).gemms((1, 64, 4096))[:18]
    report = fitted("gemm", points)
    by_hand = np.zeros(len(points))
    for geometry in {p.geometry for p in points}:
        left = [i for i, p in enumerate(points) if p.geometry == geometry]
        model = fitted("gemm", [p for p in points if p.geometry != geometry]).model
        by_hand[left] = errors(model, [points[i] for i in left])
    np.testing.assert_allclose(report.elsewhere, by_hand, rtol=1e-9, atol=1e-12)
    assert report.elsewhere_median_error == pytest.approx(np.median(np.abs(np.expm1(by_hand))))
    assert report.model.spread_elsewhere >= report.model.spread


def test_the_fewest_points_do_not_vouch_for_themselves():
    """Four points of a class with curves are met exactly; their spread is that of each predicted from three."""
    clean = Noisy(0).gemms()[:4]
    points = [fit.Point(p.operation, p.seconds * f) for p, f in zip(clean, (1, 1.5, 1.6, 3), strict=True)]
    report = fitted("gemm", points)
    assert np.abs(errors(report.model, points)).max() < 1e-9
    assert report.model.spread > 1.05


def test_one_geometry_says_nothing_of_others():
    points = [p for p in Noisy(0.01).attentions() if p.geometry == (256.0, 1.0)]
    report = fitted("attention.packed", points)
    assert report.elsewhere is None
    assert report.elsewhere_median_error is None
    assert report.model.spread < 1.05
    assert report.model.spread_at((256.0, 1.0), 7) == report.model.spread
    assert report.model.spread_at((64.0, 1.0), 7) == SPREAD_UNSEEN
    assert report.model.spread_at((256.0, 1.0), [14, 15]).tolist() == [report.model.spread, SPREAD_UNSEEN]


def test_a_hopeless_fit_can_still_be_read():
    """Seconds that follow nothing: the spread stops where `KernelModel` does."""
    points = [fit.Point(gemm(k, n, 1), 10.0 ** (i % 7 - 6)) for i, (k, n) in enumerate(MATRICES)]
    model = fitted("gemm", points).model
    assert model.spread == 10
    assert KernelModel.model_validate(model.model_dump()) == model


@pytest.mark.parametrize("noise", [0.01, 0.03])
@pytest.mark.parametrize(
    ("name", "make"),
    [("attention.packed", Noisy.attentions), ("gemm", lambda noisy: noisy.gemms((1, 2, 4, 8, 16, 64)))],
)
def test_the_interval_covers_fresh_points(name, make, noise):
    """Measured again, nine in ten lie within the spread: on average over machines, as one spread is an estimate."""
    reports = [fitted(name, make(Noisy(noise, seed=seed))) for seed in range(10, 16)]
    fresh = [make(Noisy(noise, seed=seed)) for seed in range(110, 116)]
    within = [
        np.abs(errors(report.model, points)) <= math.log(report.model.spread)
        for report, points in zip(reports, fresh, strict=True)
    ]
    assert 0.8 <= np.mean(within) <= 0.98
    assert all(report.coverage == pytest.approx(0.9, abs=0.02) for report in reports)


def test_the_interval_covers_contexts_in_between():
    report = fitted("attention.packed", Noisy(0.03, seed=3).attentions())
    noisy = Noisy(0.03, seed=6)
    fresh = [
        noisy.point(attention(h, r, c * 1.4))
        for h in (256, 512, 2048)
        for r in (1, 3, 6)
        for c in (2.0**i for i in range(10, 20))
    ]
    assert 0.8 <= np.mean(np.abs(errors(report.model, fresh)) <= math.log(report.model.spread)) <= 1.0


def test_a_spread_is_never_claimed_under_one_percent():
    report = fitted("index_scan", [fit.Point(p.operation, law(p.operation)) for p in Noisy(0.0).gemms()])
    assert np.abs(report.beside).max() < 1e-3
    assert report.model.spread == 1.01
    assert report.model.spread_elsewhere == 1.01


def test_outliers_do_not_widen_the_typical_error():
    """Of a form; a curve passes through what was measured."""
    clean, odd = (fitted("index_scan", Noisy(0.02, outliers=share).gemms()).model for share in (0.0, 0.05))
    assert odd.median_error < 1.5 * clean.median_error
    assert odd.spread < 1.15


# --- records -----------------------------------------------------------------------------------------------------


def record(point: fit.Point, **more) -> dict:
    o = point.operation
    head = {"key": o.name, "kernel": o.kernel, "variant": o.variant, "seconds": point.seconds, "noisy": False}
    return head | {"operation": operation_numbers(o)} | more


def test_variants_are_classes_where_implementations_differ():
    moving = {"weights": 1e6}
    kinds = [("gemm", "cublas"), ("gemm", "cublas_fp8"), ("attention", "a"), ("attention", "b"), ("copy", "torch")]
    kinds += [("mla", "x"), ("recurrent", "gdn"), ("elementwise", "norm"), ("moe", "grouped"), ("sample", "argmax")]
    kinds += [("collective", "all_reduce"), ("collective", "all_gather")]
    records = [record(fit.Point(Operation("o", kind, variant, **moving), 1e-5)) for kind, variant in kinds]
    found = fit.measured_points(records)
    assert {name: len(points) for name, points in found.items()} == {
        "gemm": 2,
        "attention.a": 1,
        "attention.b": 1,
        "copy": 1,
        "mla.x": 1,
        "recurrent.gdn": 1,
        "elementwise.norm": 1,
        "moe": 1,
        "sample": 1,
        "collective": 1,
        "collective.all_gather": 1,
    }


def test_points_are_read_as_they_were_written():
    operation = Operation(
        "o", "gemm", math="fp8", flops=2.0, weights=3.0, kv=4.0, state=5.0, activations=6.0, metadata=7.0, launches=2.0,
        padding=1.5, rereads=2.5, serial_bytes=8.0, turns=9.0, rows=10.0, geometry=(1.0, 2.0),
    )  # fmt: skip
    text = json.dumps(record(fit.Point(operation, 1e-5)))
    assert fit.measured_points([json.loads(text)]) == {"gemm": [fit.Point(operation, 1e-5)]}


def test_noisy_points_are_left_out():
    points = Noisy(0.01).gemms()[:6]
    records = [record(p, noisy=i % 2 == 1) for i, p in enumerate(points)]
    assert fit.measured_points(records) == {"gemm": points[::2]}
    assert fit.measured_points([record(points[0], noisy=True)]) == {}


def index(variant: str, turns: float, seconds: float) -> dict:
    return record(fit.Point(Operation("i", "index_build", variant, metadata=1e5, turns=turns), seconds))


def test_turn_seconds_are_the_median_of_serial_builders():
    records = [index("serial", 100, 2e-5), index("serial", 1000, 3e-4), index("serial", 10, 9e-6)]
    assert fit.turn_seconds([*records, index("parallel", 1, 1.0)]) == pytest.approx(3e-7)
    assert fit.turn_seconds([index("parallel", 1, 1.0)]) is None
    assert fit.turn_seconds([]) is None


def test_a_class_defaults_to_its_variant_with_the_most_points():
    few, many = (KernelModel(floor_s=0, bandwidth=1, compute=1, spread=1, points=n, source=str(n)) for n in (4, 9))
    assert fit.class_defaults({"attention.a": many, "attention.b": few, "gemm": few}) == {
        "attention": many,
        "gemm": few,
    }


def test_nothing_but_all_reduces_speaks_for_collectives():
    few, many = (KernelModel(floor_s=0, bandwidth=1, compute=1, spread=1, points=n, source=str(n)) for n in (4, 9))
    assert fit.class_defaults({"collective": few, "collective.all_gather": many}) == {"collective": few}
    assert fit.class_defaults({"collective.all_gather": many}) == {}


# --- end to end --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built() -> tuple[Profile, list[fit.Report], list[fit.Point]]:
    noisy = Noisy(0.02, factors=PLANTED)
    points = [*noisy.gemms(), *noisy.attentions()]
    points += [noisy.point(attention(64, 1, c, "rare")) for c in (1e4, 1e5, 1e6)]
    points += [noisy.point(attention(64, 1, c, "other")) for c in (1e4, 1e5, 1e6, 1e7)]
    records = [record(p) for p in points] + [index("serial", 100 * i, 2e-5 * i) for i in range(1, 6)]
    profile, reports = build_profile({"gpu": "round", "date": "2026-01-01"}, records, GPU)
    return profile, reports, points


def test_a_profile_holds_every_class_with_enough_points(built):
    profile, reports, points = built
    assert [r.name for r in reports] == ["attention.other", "attention.packed", "gemm", "index_build"]
    assert profile.status == "measured"
    assert profile.gpu == "round"
    assert profile.turn_s == pytest.approx(2e-7)
    assert len(profile.measurements) == len(points) + 5
    assert profile.kernels["attention"] == profile.kernels["attention.packed"]
    assert "attention.rare" not in profile.kernels
    assert profile.kernels["gemm"].source == "fitted on round, 2026-01-01"
    assert profile.kernels["gemm"].points == len(MATRICES) * len(ROWS)
    fitted_here = {name for name, model in profile.kernels.items() if model.source.startswith("fitted on round")}
    assert fitted_here == {"attention", *(r.name for r in reports)}


def test_a_profile_read_back_predicts_the_same(built, tmp_path):
    profile, _, points = built
    path = tmp_path / "deep" / "profile.json"
    write_profile(profile, path)
    document = json.loads(path.read_text())
    assert document.pop("schema").startswith("wmtp-profile/")
    again = Profile.model_validate(document)
    assert again.kernels == profile.kernels
    new = [gemm(k, n, r) for k, n in (*MATRICES, (777.0, 4321.0)) for r in (1, 5, 100)]
    new += [attention(h, r, c, v) for h in (256, 300) for r in (1, 3, 9) for c in (5e3, 7e5) for v in ("packed", "no")]
    for operation in [p.operation for p in points] + new:
        one, other = (Machine(GPU, p).time(operation) for p in (profile, again))
        assert (one.seconds, one.low, one.high) == (other.seconds, other.low, other.high)
    assert list(path.parent.iterdir()) == [path]


def test_a_fit_is_the_same_whatever_the_order_of_points():
    points = Noisy(0.02, factors=PLANTED).gemms()
    one, other = fitted("gemm", points).model, fitted("gemm", points[::-1]).model
    assert one.floor_s == pytest.approx(other.floor_s, rel=1e-3)
    assert one.bandwidth == pytest.approx(other.bandwidth, rel=1e-3)
    assert one.compute == pytest.approx(other.compute, rel=1e-3)
    assert one.measured_bytes == other.measured_bytes


# --- what one block streams, split caps, formats ---------------------------------------------------------------------

BLOCK = 8e9


def capped(head: float, splits: float, context: float, element: float = 2.0) -> Operation:
    kv = context * head * 4
    return Operation(
        "a", "attention", kv=kv, serial_bytes=kv / splits, rows=1.0, geometry=(head, 8.0, 2.0, splits, element)
    )


def capped_seconds(operation: Operation) -> float:
    return FLOOR + float(max(operation.kv / (BANDWIDTH * 1e12), operation.serial_bytes / BLOCK))


def capped_points(heads: tuple[float, ...], element: float = 2.0) -> list[fit.Point]:
    operations = [capped(h, s, 2.0**i, element) for h in heads for s in (8.0, 64.0, 512.0) for i in range(10, 21)]
    return [fit.Point(operation, capped_seconds(operation)) for operation in operations]


def test_what_one_block_streams_is_found():
    model = fitted("attention.capped", capped_points((256.0, 512.0))).model
    assert model.cta_bytes_per_s == pytest.approx(BLOCK, rel=0.02)
    assert model.bandwidth == pytest.approx(BANDWIDTH, rel=0.02)


def test_where_blocks_never_bind_nothing_is_claimed_of_them():
    points = [fit.Point(attention(256, 1, 2.0**i), law(attention(256, 1, 2.0**i))) for i in range(10, 21)]
    assert fitted("attention.unknown", points).model.cta_bytes_per_s is None
    documented = uncalibrated().kernels["attention.fa3"].cta_bytes_per_s
    assert fitted("attention.fa3", points).model.cta_bytes_per_s == documented


def test_another_split_cap_is_no_other_head():
    """One head under three caps was never left out whole: what is said of other heads is a judgement."""
    one, two = (fitted("attention.capped", capped_points(heads)) for heads in ((256.0,), (256.0, 512.0)))
    assert one.elsewhere is None
    assert one.model.spread_elsewhere == SPREAD_UNSEEN
    assert two.elsewhere is not None
    assert len(one.model.measured.geometries) == 3


def test_a_number_after_a_variant_is_its_split_cap():
    record = {"kernel": "attention", "seconds": 1e-3, "operation": operation_numbers(capped(256.0, 8.0, 4096.0))}
    records = [record | {"key": f"k{v}", "variant": v} for v in ("mine_8", "mine_64", "mine", "mine2")]
    assert {name: len(found) for name, found in fit.measured_points(records).items()} == {
        "attention.mine": 3,
        "attention.mine2": 1,
    }


def test_narrow_formats_do_not_bend_the_form():
    plain = capped_points((256.0, 512.0))
    slow = [fit.Point(p.operation, 3 * p.seconds) for p in capped_points((256.0,), element=1.0)]
    model = fitted("attention.capped", [*plain, *slow]).model
    assert model.bandwidth == pytest.approx(BANDWIDTH, rel=0.02)
    factors = {entry.geometry[-1]: math.exp(entry.log_factor) for entry in model.measured.geometries}
    assert factors[1.0] == pytest.approx(3.0, rel=0.05)
