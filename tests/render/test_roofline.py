"""Operations on the roofline are the step's own: their FLOPs over their bytes, and over their seconds."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import wmtp_sim
from wmtp_sim.catalog.profiles import IDEAL, load_profile, uncalibrated
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.errors import InputError
from wmtp_sim.render.roofline import Roofline, class_label, roofline
from wmtp_sim.render.roofline_figure import PHASES, diameter, roofline_figure, roofline_notes

CASES: dict[str, dict[str, Any]] = {
    "hybrid": {"model": "qwen3.5-35b-a3b", "gpu": "h200", "context": 2**20, "depth": 6},
    "latent": {"model": "deepseek-v3.2", "gpu": "b200", "context": 2**17, "depth": 2, "tp": 8},
    "large batch": {"model": "qwen3-8b", "gpu": "h100", "context": 4096, "depth": 3, "batch": 256, "drafter": "eagle"},
    "transferred": {"model": "qwen3.5-27b", "gpu": "mi300x", "context": 2**15, "depth": 2},
    "ideal": {"model": "qwen3-8b", "gpu": "h200", "context": 2**15, "depth": 0, "engine": "ideal"},
}


@pytest.fixture(scope="module", params=CASES)
def answer(request: pytest.FixtureRequest) -> Estimate:
    return wmtp_sim.estimate(**CASES[request.param])


@pytest.fixture(scope="module")
def roofs(answer: Estimate) -> Roofline:
    return roofline(answer)


def hybrid(**changes: Any) -> Estimate:
    return wmtp_sim.estimate(**{**CASES["hybrid"], **changes})


def test_places_are_the_operations_own(answer: Estimate, roofs: Roofline) -> None:
    for point in roofs.points:
        step = answer.base_step if point.phase == "base" else answer.steps["native"]
        entries = [
            e
            for e in step.entries
            if e.operation.name == point.name and point.phase in ("base", e.term) and float(e.timing.seconds) > 0
        ]
        flops = sum(float(e.operation.flops * e.operation.repeats) for e in entries)
        moved = sum(float(e.operation.bytes * e.operation.repeats) for e in entries)
        seconds = sum(float(e.timing.seconds) for e in entries)
        assert point.intensity == pytest.approx(flops / moved, rel=1e-12)
        assert point.attained_flops_per_s == pytest.approx(flops / seconds, rel=1e-12)
        assert point.share == pytest.approx(seconds / float(step.seconds), rel=1e-12)


def test_no_point_is_above_its_roof(roofs: Roofline) -> None:
    peaks = {c.math: c.flops_per_s for c in roofs.ceilings}
    assert roofs.points
    for point in roofs.points:
        roof = min(peaks.get(point.math, peaks["bf16"]), roofs.bytes_per_s * point.intensity)
        assert point.roof_flops_per_s == pytest.approx(roof, rel=1e-12)
        assert point.attained_flops_per_s <= point.roof_flops_per_s * (1 + 1e-9)


def test_every_second_but_the_hosts_is_drawn_or_listed(answer: Estimate, roofs: Roofline) -> None:
    for name, seconds in roofs.steps.items():
        step = answer.base_step if name == "base" else answer.steps["native"]
        shown = [p for p in (*roofs.points, *roofs.not_drawn) if (p.phase == "base") == (name == "base")]
        kernels = seconds - float(step.host.seconds)
        assert sum(p.seconds for p in shown) == pytest.approx(kernels, rel=1e-9)


def test_ideal_kernels_lie_on_their_roofs() -> None:
    for point in roofline(wmtp_sim.estimate(**CASES["ideal"])).points:
        assert point.attained_flops_per_s == pytest.approx(point.roof_flops_per_s, rel=1e-9)
        assert point.label == "ideal"


def test_a_ring_reads_less_than_native_drafting() -> None:
    def draft(policy: str) -> float:
        found = roofline(hybrid(), policy).points
        return sum(p.bytes for p in found if p.phase == "draft" and p.name == "attention.full")

    assert draft("ring") < draft("native") / 50


def test_measured_points_are_the_profiles() -> None:
    profile = load_profile("nvidia-h200")
    series = roofline(hybrid(profile=profile)).measured
    assert {s.kernel for s in series} == {"attention.fa3", "attention.flashinfer", "gemm", "moe", "recurrent.gdn"}
    for each in series:
        measured = profile.kernels[each.kernel].measured
        assert measured is not None
        known = measured.find(each.geometry)
        assert known is not None
        (curve,) = (curve for curve in known.curves if curve.rows == each.rows)
        assert (each.size_s, each.form_s, each.seconds) == (curve.size_s, curve.form_s, curve.seconds)
        assert each.label == "measured"


def test_a_transferred_profile_has_no_points_and_says_so() -> None:
    roofs = roofline(wmtp_sim.estimate(**CASES["transferred"]))
    assert roofs.measured == ()
    assert roofs.notes == ("The profile (transferred) has no measured points of the shapes shown.",)
    assert {p.label for p in roofs.points} == {"transferred"}
    assert "no measured points of these shapes" in roofline_figure(roofs).layout.title.subtitle.text


@pytest.mark.parametrize(
    ("profile", "kernel", "variant", "label"),
    [
        ("nvidia-h200", "gemm", "", "measured"),
        ("nvidia-h200", "mla", "fa3", "measured (aiconfigurator)"),
        ("nvidia-h200", "attention", "of-another-engine", "transferred"),
        ("nvidia-h200", "index_scan", "", "assumed"),
        ("nvidia-b200-sxm-hgx", "gemm", "", "measured (aiconfigurator)"),
        ("nvidia-b200-sxm-hgx", "elementwise", "norm", "transferred"),
    ],
)
def test_labels(profile: str, kernel: str, variant: str, label: str) -> None:
    assert class_label(load_profile(profile), kernel, variant) == label
    assert class_label(uncalibrated(), kernel, variant) == "assumed"
    assert class_label(IDEAL, kernel, variant) == "ideal"


def test_ranges_and_unknown_policies_are_refused() -> None:
    with pytest.raises(InputError, match="one step, not a range"):
        roofline(hybrid(context=np.array([4096, 8192])))
    with pytest.raises(InputError, match="one of native, flag, ring"):
        roofline(hybrid(), "rings")


def test_the_document_is_strict_json(roofs: Roofline) -> None:
    document = json.loads(json.dumps(roofs.document, allow_nan=False))
    assert document["schema"] == "wmtp-roofline/1"
    assert {"model", "gpu", "engine", "profile", "label", "policy", "deployment", "steps", "bytes_per_s"} < set(
        document
    )
    assert {"bytes_per_s", "ceilings", "attainable", "points", "not_drawn", "measured", "notes"} < set(document)
    assert document["points"][0]["name"] == roofs.points[0].name


# --- the picture ---------------------------------------------------------------------------------------------------


def test_the_figure_shows_every_point(roofs: Roofline) -> None:
    figure = roofline_figure(roofs)
    for phase in PHASES:
        points = [p for p in roofs.points if p.phase == phase]
        traces = [trace for trace in figure.data if trace.name == phase]
        assert len(traces) == bool(points)
        for trace in traces:
            assert list(trace.x) == [p.intensity for p in points]
            assert list(trace.y) == [p.attained_flops_per_s for p in points]
            assert list(trace.marker.size) == [diameter(p) for p in points]
    assert figure.layout.xaxis.title.text == "arithmetic intensity, FLOP per byte"
    assert figure.layout.yaxis.title.text == "attained, FLOP/s per GPU"


def test_the_ten_largest_are_named(roofs: Roofline) -> None:
    texts = [note.text for note in roofline_figure(roofs).layout.annotations]
    for point in roofs.points[:10]:
        assert sum(text.startswith(f"{point.name}, {point.phase} ") for text in texts) == 1
    assert sum(", datasheet" in text for text in texts) == len(roofs.ceilings) + 1


def test_hostile_names_are_inert() -> None:
    name = "<a href='https://x.y'>\u202e\x1b<script>" + "x" * 10_000
    answer = hybrid()
    model = answer.model.model_copy(update={"name": name})
    figure = roofline_figure(roofline(wmtp_sim.estimate(**{**CASES["hybrid"], "model": model})))
    title = figure.layout.title.text
    assert title.count("<") == 2  # the bold of our own
    assert title.isprintable()
    assert len(title) < 300
    assert roofline_notes(roofline(answer))[0].startswith("Kernels: measured; profile NVIDIA H200")
