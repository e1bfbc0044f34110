"""A profile's tables: what was measured, in microseconds and over the class's form."""

from __future__ import annotations

import io

from rich.console import Console

from wmtp_sim.catalog.profiles import load_profile
from wmtp_sim.machine.curves import Curve, MeasuredGeometry
from wmtp_sim.render.profiles import _curve, print_profile


def curve(rows: float, *points: tuple[float, float]) -> Curve:
    form_s, seconds = zip(*points, strict=True)
    return Curve(rows=rows, size_s=form_s, form_s=form_s, seconds=seconds)


def test_sizes_at_the_fewest_rows() -> None:
    many = curve(1, *((1e-6 * i, 2e-6 * i) for i in range(1, 12)))
    entry = MeasuredGeometry(geometry=(64.0,), log_factor=0.0, curves=(many, curve(4, (1e-6, 9e-6), (2e-6, 9e-6))))
    assert _curve(entry) == "2.0 (x2.00), 6.0 (x2.00), 10.0 (x2.00), 14.0 (x2.00), 18.0 (x2.00), 22.0 (x2.00)"


def test_rows_where_each_has_one_size() -> None:
    entry = MeasuredGeometry(geometry=(64.0,), log_factor=0.0, curves=(curve(1, (2e-6, 1e-6)), curve(8, (2e-6, 3e-6))))
    assert _curve(entry) == "1 rows 1.0 (x0.50), 8 rows 3.0 (x1.50)"


def test_every_measured_class_has_a_line() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    profile = load_profile("nvidia-h200")
    print_profile(profile, console)
    text = console.export_text()
    for name, model in profile.kernels.items():
        if model.measured is not None and any(entry.curves for entry in model.measured.geometries):
            assert sum(line.startswith(f"{name} ") for line in text.splitlines()) == 2, name
