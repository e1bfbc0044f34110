"""The break-even page in a headless Chromium, opened from disk: sliders move, and what is drawn is what Python says.

Skipped where selenium or Chromium with its driver is not installed (Debian: chromium, chromium-driver).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wmtp_sim
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.models import load_model
from wmtp_sim.decide.warnings import warnings
from wmtp_sim.render.breakeven.page import breakeven_page
from wmtp_sim.render.breakeven.start import opening
from wmtp_sim.render.breakeven.table import CostTable
from wmtp_sim.render.tables import summed

waiting = pytest.importorskip("selenium.webdriver.support.wait")
pytestmark = pytest.mark.xdist_group("browser")

MODEL, GPU = "qwen3.5-35b-a3b", "h200"
CONTEXTS, DEPTHS, WINDOWS, BATCHES = [4096, 32768, 262144, 2**20], list(range(9)), [512, 4032, 16384], [1, 4, 32]
POLICIES = ("native", "flag", "ring")
SAME = {"rtol": 1e-6, "atol": 0.0}


def grid(model: Any = MODEL, **stated: Any) -> Any:
    context, depth, window, batch = wmtp_sim.open_grid(CONTEXTS, DEPTHS, WINDOWS, BATCHES)
    return wmtp_sim.estimate(model, GPU, context=context, depth=depth, window=window, batch=batch, **stated)


@pytest.fixture
def browser(browser: Any) -> Any:
    """Selenium's own driver of the session's window."""
    browser.driver.set_window_size(1300, 1000)
    return browser.driver


def load(browser: Any, path: Path) -> None:
    """Open a page from disk; the driver may come back while a busy machine still reads the page's last script."""
    browser.get(path.as_uri())
    ready = "return location.href === arguments[0] && document.readyState === 'complete' && Boolean(window.wmtp)"
    waiting.WebDriverWait(browser, 60).until(lambda page: page.execute_script(ready, path.as_uri()))


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """``opened(named, alpha=0.8)`` opens a page from disk; at the end no error may be on the console."""

    def at(named: dict[str, int], model: Any = MODEL, engine: Any = "sglang", **stated: Any) -> Any:
        table = CostTable(grid(model, engine=engine))
        path = tmp_path / "report.html"
        path.write_text(breakeven_page(table, opening(table, named, **stated), "wmtp breakeven"), encoding="utf-8")
        load(browser, path)
        return browser

    yield at
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def move(browser: Any, name: str, value: float) -> dict[str, list[dict[str, Any]]]:
    """Move a slider as a hand does, and read back every chart's traces."""
    browser.execute_script(
        "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
        "e.dispatchEvent(new Event('input', {bubbles: true}));",
        name,
        value,
    )
    return read(browser)


def read(browser: Any) -> dict[str, list[dict[str, Any]]]:
    """Traces by chart, plain: Plotly's typed arrays become lists, its own fields are left out."""
    return browser.execute_script(
        "const plain = (v) => v === undefined ? null : Array.from(v, (e) => ArrayBuffer.isView(e) || Array.isArray(e)"
        " ? Array.from(e) : e);"
        "return Object.fromEntries(Object.entries(window.wmtp.traces()).map(([id, traces]) => [id, traces.map((t) =>"
        " ({name: t.name, x: plain(t.x), y: plain(t.y), z: plain(t.z)}))]));"
    )


def trace(chart: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = [each for each in chart if each["name"] == name]
    return found


def check(traces: dict[str, Any], answer: Any, point: tuple[int, int, int, int], windowed: str = "flag") -> None:
    """Every chart against an estimate over the whole grid, at places on the four axes."""
    c, d, w, b = point
    shape = answer.work.shape

    def whole(values: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(values, dtype=float), shape)

    base = whole(answer.base.step_s)
    native = whole(answer.policies["native"].cost.step_s)
    drafting = np.asarray(DEPTHS) > 0
    for name in POLICIES:
        result = answer.policies[name]
        step, speedup = whole(result.cost.step_s), whole(result.speedup)
        length = whole(result.accept_length)
        line = trace(traces["speedup"], name)
        np.testing.assert_allclose(line["y"], speedup[c, :, w, b], **SAME)
        ends = (length * base / whole(each) for each in (result.cost.low_s, result.cost.high_s))
        upper, lower = (np.where(whole(answer.work.depth) > 0, end, 1.0) for end in ends)
        band = np.concatenate([upper[c, :, w, b], lower[c, ::-1, w, b]])
        np.testing.assert_allclose(trace(traces["speedup"], f"{name} band")["y"], band, **SAME)
        assert trace(traces["speedup"], f"{name} best")["x"] == [DEPTHS[int(np.argmax(speedup[c, :, w, b]))]]
        for term, seconds in result.cost.terms.items():
            bar = trace(traces["terms"], term)
            shown = bar["y"][bar["x"].index(name)]
            np.testing.assert_allclose(shown, 1e3 * whole(seconds)[point], rtol=1e-6, atol=1e-15)
        if name != "native":
            np.testing.assert_allclose(trace(traces["window-step"], name)["y"], 1e3 * step[c, d, :, b], **SAME)
            margin = native[c, d, :, b] / step[c, d, :, b] - 1.0
            shown = trace(traces["window-margin"], f"{name} margin")["y"]
            np.testing.assert_allclose(np.asarray(shown) / 100, margin, rtol=1e-6, atol=1e-6)
            shown = trace(traces["window-margin"], f"{name} cancelling loss")["y"]
            cancels = 1.0 - step[c, d, :, b] / native[c, d, :, b]
            np.testing.assert_allclose(np.asarray(shown) / 100, cancels, rtol=1e-6, atol=1e-6)
        beyond = [turns_negative(speedup[:, depth, w, b]) for depth in np.flatnonzero(drafting)]
        shown = trace(traces["losing"], f"{name} beyond")["y"]
        assert [value is None for value in shown] == [value is None for value in beyond]
        np.testing.assert_allclose(
            [v for v in shown if v is not None], [v for v in beyond if v is not None], rtol=1e-4
        )  # a crossing of nearly level lines is worse conditioned than its lines
    for side, name in (("native", "native"), ("windowed", windowed)):
        result = answer.policies[name]
        speedup = whole(result.speedup)[:, drafting, w, b].T
        np.testing.assert_allclose(trace(traces[f"map-{side}"], name)["z"], speedup, **SAME)
        needed = whole(result.break_even_accept_length)[:, d, w, :].T
        np.testing.assert_allclose(trace(traces[f"length-{side}"], name)["z"], needed, **SAME)


def turns_negative(speedup: np.ndarray) -> float | None:
    """The context beyond which a policy loses at every longer one, between grid points by interpolation."""
    wins = np.flatnonzero(speedup >= 1)
    if not len(wins):
        return CONTEXTS[0]
    last = int(wins[-1])
    if last == len(speedup) - 1:
        return None
    share = (speedup[last] - 1) / (speedup[last] - speedup[last + 1])
    return CONTEXTS[last] * (CONTEXTS[last + 1] / CONTEXTS[last]) ** share


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_every_slider_recomputes_what_python_says(opened: Callable[..., Any], engine: str) -> None:
    page = opened({"depth": 3}, engine=engine, alpha=0.8)
    check(read(page), grid(engine=engine, alpha=0.8), (3, 3, 1, 0))
    check(move(page, "alpha", 0.43), grid(engine=engine, alpha=0.43), (3, 3, 1, 0))
    answer = grid(engine=engine, alpha=0.43)
    check(move(page, "context", 1), answer, (1, 3, 1, 0))
    check(move(page, "batch", 2), answer, (1, 3, 1, 2))
    check(move(page, "window", 0), answer, (1, 3, 0, 2))
    check(move(page, "depth", 8), answer, (1, 8, 0, 2))
    check(move(page, "depth", 0), answer, (1, 0, 0, 2))
    check(move(page, "alpha", 0), grid(engine=engine, alpha=0.0), (1, 0, 0, 2))
    check(move(page, "alpha", 1), grid(engine=engine, alpha=1.0), (1, 0, 0, 2))
    page.execute_script(
        "const e = document.getElementById('windowed'); e.value = 'ring'; e.dispatchEvent(new Event('change'));"
    )
    check(read(page), grid(engine=engine, alpha=1.0), (1, 0, 0, 2), windowed="ring")


AXES = {"context": CONTEXTS, "depth": DEPTHS, "window": WINDOWS, "batch": BATCHES}


@pytest.mark.parametrize(("model", "engine"), [(MODEL, "sglang"), ("deepseek-v3.2", "vllm")])
def test_operations_and_warnings_follow_the_sliders(opened: Callable[..., Any], model: str, engine: str) -> None:
    page = opened({"depth": 3}, model=model, engine=engine, alpha=0.8)
    places = {"context": 3, "depth": 3, "window": 1, "batch": 0}
    for moves in ({}, {"context": 0, "window": 2}, {"context": 2, "batch": 2, "depth": 8}, {"depth": 1}, {"depth": 0}):
        for name, place in moves.items():
            move(page, name, place)
        places |= moves
        sizes = {name: values[places[name]] for name, values in AXES.items()}
        answer = wmtp_sim.estimate(model, GPU, **sizes, engine=engine, alpha=0.8)
        assert page.execute_script("return window.wmtp.warnings()") == [
            {"id": each.id, "text": each.text} for each in warnings(answer)
        ]
        for step in ("base", *POLICIES):
            page.execute_script("window.wmtp.state.step = arguments[0]", step)
            check_largest(page.execute_script("return window.wmtp.largest()"), answer, step)
    shown = page.execute_script("return document.getElementById('warnings').children.length")
    assert shown == len(warnings(answer))


def check_largest(shown: list[dict[str, Any]], answer: Any, step: str) -> None:
    """The page's list of operations against one point's estimate; at depth 0 every step is the base step."""
    chosen = answer.all_steps[step if answer.work.depth > 0 else "base"]
    expected = sorted(summed(chosen.entries), key=lambda each: -float(each.seconds))[:10]
    assert [(each["term"], each["name"]) for each in shown] == [
        (each.example.term, each.example.operation.name) for each in expected
    ]
    assert [each["roof"] for each in shown] == [
        answer.machine.binding_roof(each.example.operation) for each in expected
    ]
    for name in ("seconds", "bytes", "flops", "runs"):
        wanted = [float(getattr(each, name)) for each in expected]
        np.testing.assert_allclose([each[name] for each in shown], wanted, **SAME)
    shares = [float(each.seconds) / float(chosen.seconds) for each in expected]
    np.testing.assert_allclose([each["share"] for each in shown], shares, **SAME)


def test_warnings_about_acceptance_follow_the_sliders(opened: Callable[..., Any]) -> None:
    page = opened({"depth": 3})
    sizes = {"context": 2**20, "depth": 3, "window": 4032, "batch": 1}
    ids = "return window.wmtp.warnings().map((each) => each.id)"
    unstated = page.execute_script(ids)
    assert unstated[unstated.index("same-acceptance") - 1] == "no-acceptance"  # the page still assumes one
    for alpha in (0.8, 0.0):
        move(page, "alpha", alpha)
        answer = wmtp_sim.estimate(MODEL, GPU, **sizes, alpha=alpha, acceptance_source="assumed")
        assert page.execute_script(ids) == [each.id for each in warnings(answer)]
        assert set(unstated) - {"no-acceptance"} <= set(page.execute_script(ids))
    move(page, "windowed-alpha", 0.0)
    assert "same-acceptance" not in page.execute_script(ids)


def test_rates_per_position(opened: Callable[..., Any]) -> None:
    rates = [0.95, 0.9, 0.8, 0.7, 0.7, 0.6, 0.5, 0.4]
    page = opened({"depth": 4}, conditional=rates)
    check(read(page), grid(conditional=rates), (3, 4, 1, 0))
    rates[1] = 0.31
    check(move(page, "rate-2", 0.31), grid(conditional=rates), (3, 4, 1, 0))
    check(move(page, "alpha", 0.6), grid(alpha=0.6), (3, 4, 1, 0))
    assert not page.execute_script("return document.getElementById('per-position').checked")


def test_depths_that_cannot_win_are_greyed(opened: Callable[..., Any]) -> None:
    engine = load_engine("sglang", ["host.step_s=0.03"])
    answer = grid(engine=engine, alpha=0.8)
    page = opened({"depth": 3}, engine=engine, alpha=0.8)
    read(page)
    lost = np.broadcast_to(answer.policies["native"].unwinnable, answer.work.shape)[3, :, 1, 0]
    assert 0 < lost.sum() < len(DEPTHS)
    symbols = page.execute_script(
        "return document.getElementById('speedup').data.find((t) => t.name === 'native').marker.symbol"
    )
    assert symbols == ["x" if is_lost else "circle" for is_lost in lost]
    shapes = page.execute_script("return document.getElementById('speedup').layout.shapes.map((s) => [s.x0, s.x1])")
    everywhere = np.all(
        [np.broadcast_to(each.unwinnable, answer.work.shape)[3, :, 1, 0] for each in answer.policies.values()], axis=0
    )
    for depth, is_lost in zip(DEPTHS, everywhere, strict=True):
        assert ([depth - 0.5, depth + 0.5] in shapes) == is_lost


def test_an_accept_length_keeps_its_value(opened: Callable[..., Any]) -> None:
    page = opened({"depth": 6}, accept_length=4.5, windowed_accept_length=4.2)
    chart = read(page)["speedup"]
    for name, length in (("native", 4.5), ("ring", 4.2)):
        answer = wmtp_sim.estimate(MODEL, GPU, context=2**20, depth=6, accept_length=length)
        assert trace(chart, name)["y"][6] == pytest.approx(float(answer.policies[name].speedup), rel=1e-6)
    moved = move(page, "windowed-alpha", 0.5)["speedup"]
    answer = wmtp_sim.estimate(MODEL, GPU, context=2**20, depth=6, alpha=0.5)
    assert trace(moved, "ring")["y"][6] == pytest.approx(float(answer.policies["ring"].speedup), rel=1e-6)
    assert trace(moved, "native")["y"] == trace(chart, "native")["y"]


def test_keys_move_sliders_that_say_what_they_hold(opened: Callable[..., Any]) -> None:
    page = opened({"depth": 3}, alpha=0.8)
    slider = page.find_element("id", "context")
    slider.send_keys("\ue012")  # arrow left
    assert page.execute_script("return window.wmtp.state.context") == 2
    assert slider.get_attribute("aria-valuetext") == "256K tokens"
    for name in ("alpha", "depth", "context", "window", "batch", "windowed-alpha"):
        found = page.find_element("id", name)
        assert (found.get_attribute("type"), found.accessible_name != "") == ("range", True)


def test_the_csv_is_the_table(opened: Callable[..., Any]) -> None:
    page = opened({"depth": 3}, alpha=0.8)
    rows = list(csv.DictReader(io.StringIO(page.execute_script("return window.wmtp.csv()"))))
    assert len(rows) == len(POLICIES) * len(CONTEXTS) * len(DEPTHS) * len(WINDOWS) * len(BATCHES)
    sizes = {"context": 262144, "depth": 5, "window": 16384, "batch": 4}
    wanted = {name: str(value) for name, value in sizes.items()} | {"policy": "flag"}
    (row,) = [row for row in rows if wanted.items() <= row.items()]
    flag = wmtp_sim.estimate(MODEL, GPU, **sizes).policies["flag"]
    expected = {"step_s": flag.cost.step_s, "low_s": flag.cost.low_s, "high_s": flag.cost.high_s}
    expected |= {f"{term}_s": seconds for term, seconds in flag.cost.terms.items()}
    expected |= {"base_step_s": flag.base.step_s, "break_even_accept_length": flag.break_even_accept_length}
    for name, value in expected.items():
        assert float(row[name]) == pytest.approx(float(value), rel=1e-6)
    assert list(row) == ["context", "depth", "window", "batch", "policy", *expected]


@pytest.mark.parametrize(
    "name", ["<img src=x onerror=alert(1)>", "</script><script>window.hit=1</script>", "\u202eabc"]
)
def test_hostile_names_are_text(opened: Callable[..., Any], name: str) -> None:
    page = opened({"depth": 3}, model=load_model(MODEL).model_copy(update={"name": name}))
    assert page.execute_script("return document.getElementById('model').textContent") == name
    assert page.execute_script("return [window.hit === undefined, document.images.length]") == [True, 0]


def test_a_phone_needs_no_sideways_scrolling(opened: Callable[..., Any]) -> None:
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    page = opened({"depth": 3})
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        page = opened({"depth": 3})
        assert page.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_dark_mode_follows_the_system(opened: Callable[..., Any]) -> None:
    page = opened({"depth": 3})
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = page.execute_script(ground)
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    assert page.execute_script(ground) != light
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.parametrize(
    "axes", [([2**17], [2], [4032], [1]), ([2**16, 2**17], [2], [512, 4032], [1]), ([2**17], [1, 2], [4032], [1, 2])]
)
def test_axes_of_one_value_are_drawn(browser: Any, tmp_path: Path, axes: Any) -> None:
    context, depth, window, batch = wmtp_sim.open_grid(*axes)
    table = CostTable(wmtp_sim.estimate(MODEL, GPU, context=context, depth=depth, window=window, batch=batch))
    path = tmp_path / "report.html"
    path.write_text(breakeven_page(table, opening(table, {})), encoding="utf-8")
    load(browser, path)
    assert set(read(browser)) >= {"speedup", "map-native", "window-step"}
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
