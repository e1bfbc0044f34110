"""The roofline page in a real browser: opened from disk, nothing fetched, every operation where the library puts it."""

from __future__ import annotations

from pathlib import Path

import pytest

import wmtp_sim
from tests.browser.conftest import Browser
from wmtp_sim.render.files import write_figure
from wmtp_sim.render.roofline import Roofline, roofline
from wmtp_sim.render.roofline_figure import PHASES, roofline_figure, roofline_notes, roofline_rows

WebDriverWait = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait
# One worker drives the browser.
pytestmark = pytest.mark.xdist_group("browser")
HOSTILE = "<script>document.title='taken'</script><b>\"' \u202eabc " + "x" * 10_000


def written(path: Path, name: str | None = None) -> Roofline:
    answer = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", context=2**20, depth=6)
    if name is not None:
        model = answer.model.model_copy(update={"name": name})
        answer = wmtp_sim.estimate(model, "h200", context=2**20, depth=6)
    roofs = roofline(answer)
    write_figure(roofline_figure(roofs), path, roofs.model, roofline_notes(roofs), roofline_rows(roofs))
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


def test_dark_mode_recolours_the_figure_at_once(browser: Browser, tmp_path: Path) -> None:
    written(tmp_path / "roofline.html")
    browser.open(tmp_path / "roofline.html")
    seen = (
        "return [getComputedStyle(document.body).backgroundColor, chart.layout.paper_bgcolor, chart.data.at(-1).name]"
    )
    light = browser.run(seen)
    assert light[:2] == ["rgb(255, 255, 255)", "#ffffff"]
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
    try:
        WebDriverWait(browser.driver, 20).until(lambda _: browser.run(seen)[1] != "#ffffff")
        assert browser.run(seen) == ["rgb(20, 23, 26)", "#14171a", light[2]]
        assert browser.run("return chart.layout.font.color") == "#e6e9ec"
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert browser.errors() == []


def test_the_keyboard_reaches_the_buttons_and_the_table(browser: Browser, tmp_path: Path) -> None:
    roofs = written(tmp_path / "roofline.html")
    browser.open(tmp_path / "roofline.html")
    button = browser.run("return [...document.querySelectorAll('.modebar-btn')].find((b) => b.dataset.val === 'in')")
    before = browser.run("return chart.layout.xaxis.range")
    assert button.accessible_name == "Zoom in"
    button.send_keys("\ue007")
    WebDriverWait(browser.driver, 20).until(lambda _: browser.run("return chart.layout.xaxis.range") != before)
    browser.driver.find_element("tag name", "summary").send_keys("\ue007")
    rows = (
        "return [...document.querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    expected = [[p.phase, p.name] for p in (*roofs.points, *roofs.not_drawn)]
    assert [row[:2] for row in browser.run(rows)] == expected


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
