"""The shipped profile is what its own points say: fitted again from them, every model comes out as it is shipped."""

from __future__ import annotations

from pathlib import Path

import pytest

import wmtp_sim
from calibration.calibrate import build_profile
from wmtp_sim.catalog.gpus import load_gpu
from wmtp_sim.catalog.profiles import read_profile

SHIPPED = Path(wmtp_sim.__file__).parent / "data" / "profiles" / "nvidia-h200.json"


def test_the_shipped_models_are_fitted_from_the_shipped_points():
    shipped = read_profile(SHIPPED)
    again, reports = build_profile(dict(shipped.provenance), list(shipped.measurements), load_gpu("h200"))
    assert len(reports) == 24
    for name, model in again.kernels.items():
        for field in ("floor_s", "bandwidth", "compute", "spread", "spread_elsewhere", "median_error", "p90_error"):
            stated = getattr(shipped.kernels[name], field)
            assert getattr(model, field) == (stated if stated is None else pytest.approx(stated, rel=0.01)), (
                name,
                field,
            )
        assert model.points == shipped.kernels[name].points
        stated = shipped.kernels[name].cta_bytes_per_s
        assert model.cta_bytes_per_s == (stated if stated is None else pytest.approx(stated, rel=0.01)), name
        assert (model.measured is None) == (shipped.kernels[name].measured is None)
