"""The roofline page in a real browser: opened from disk, nothing fetched, every operation where the library puts it."""

from __future__ import annotations

from pathlib import Path

import pytest

import wmtp_sim
from tests.browser.conftest import Browser
from wmtp_sim.render.files import write_figure
from wmtp_sim.render.roofline import Roofline, roofline
from wmtp_sim.render.roofline_figure import PHASES, roofline_figure, roofline_notes

# One worker drives the browser.
pytestmark = pytest.mark.xdist_group("browser")
HOSTILE = "<script>document.title='taken'</script><b>\"' \u202eabc " + "x" * 10_000


def written(path: Path, name: str | None = None) -> Roofline:
    answer = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", context=2**20, depth=6)
    if name is not None:
        model = answer.model.model_copy(update={"name": name})
        answer = wmtp_sim.estimate(model, "h200", context=2**20, depth=6)
    roofs = roofline(answer)
    write_figure(roofline_figure(roofs), path, roofs.model, roofline_notes(roofs))
    return roofs


def test_traces_are_the_librarys(browser: Browser, tmp_path: Path) -> None:
    roofs = written(tmp_path / "roofline.html")
    browser.open(tmp_path / "roofline.html")
    traces = {trace["name"]: trace for trace in browser.traces()}
    for phase in {p.phase for p in roofs.points} & set(PHASES):
        points = [p for p in roofs.points if p.phase == phase]
        assert traces[phase]["x"] == pytest.approx([p.intensity for p in points], rel=1e-9)
        assert traces[phase]["y"] == pytest.approx([p.attained_flops_per_s for p in points], rel=1e-9)
    for kernel in {s.kernel for s in roofs.measured}:
        measured = [s for series in roofs.measured if series.kernel == kernel for s in series.seconds]
        assert sorted(traces[f"{kernel}, measured"]["y"]) == pytest.approx(sorted(s * 1e6 for s in measured), rel=1e-9)
    assert browser.errors() == []
    assert browser.run("return performance.getEntriesByType('resource').length") == 0


def test_hostile_names_are_inert(browser: Browser, tmp_path: Path) -> None:
    written(tmp_path / "roofline.html", HOSTILE)
    browser.open(tmp_path / "roofline.html")
    assert browser.driver.title.startswith("<script>document.title='taken'</script>")
    assert "<script>document" in browser.run("return document.querySelector('.gtitle').textContent")
    assert browser.errors() == []


def test_a_phone_scrolls_the_figure_and_not_the_page(browser: Browser, tmp_path: Path) -> None:
    written(tmp_path / "roofline.html")
    browser.driver.set_window_size(500, 900)
    try:
        browser.open(tmp_path / "roofline.html")
        assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
        assert browser.run("return document.querySelector('.js-plotly-plot').clientWidth") >= 800
    finally:
        browser.driver.set_window_size(1200, 1400)
