"""The break-even page in a headless Chromium, opened from disk: sliders move, and what is drawn is what Python says.

Skipped where selenium or Chromium with its driver is not installed (Debian: chromium, chromium-driver).
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wmtp_sim
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.models import load_model
from wmtp_sim.decide.choice import offered
from wmtp_sim.decide.verdict import base_over_step, speedup, verdict_of
from wmtp_sim.decide.warnings import warnings
from wmtp_sim.render.breakeven.page import breakeven_page
from wmtp_sim.render.breakeven.start import opening
from wmtp_sim.render.breakeven.table import CostTable
from wmtp_sim.render.tables import summed
from wmtp_sim.render.verdict import conclusion, named, spread, verdict
from wmtp_sim.units import gigabytes

waiting = pytest.importorskip("selenium.webdriver.support.wait")
pytestmark = pytest.mark.xdist_group("browser")

MODEL, GPU = "qwen3.5-35b-a3b", "h200"
CONTEXTS, DEPTHS, WINDOWS, BATCHES = [4096, 32768, 262144, 2**20], list(range(9)), [512, 4032, 16384], [1, 4, 32]
AXES = {"context": CONTEXTS, "depth": DEPTHS, "window": WINDOWS, "batch": BATCHES}
POLICIES = ("native", "flag", "ring")
SAME = {"rtol": 1e-6, "atol": 0.0}


def grid(model: Any = MODEL, **stated: Any) -> Any:
    context, depth, window, batch = wmtp_sim.open_grid(CONTEXTS, DEPTHS, WINDOWS, BATCHES)
    return wmtp_sim.estimate(
        model, stated.pop("gpu", GPU), context=context, depth=depth, window=window, batch=batch, **stated
    )


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

    def at(point: dict[str, int], model: Any = MODEL, engine: Any = "sglang", **stated: Any) -> Any:
        deployed = {name: stated.pop(name) for name in ("gpu", "drafter") if name in stated}
        table = CostTable(grid(model, engine=engine, **deployed))
        path = tmp_path / "report.html"
        path.write_text(breakeven_page(table, opening(table, point, **stated), "wmtp breakeven"), encoding="utf-8")
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


def check(traces: dict[str, Any], answer: Any, point: tuple[int, int, int, int], beside: str = "native") -> None:
    """Every chart against an estimate over the whole grid, at places on the four axes."""
    whole = spread_over(answer)
    for name, result in answer.policies.items():
        check_line(traces["speedup"], answer, name, point)
        check_losing(traces["losing"], answer, name, point)
        for term, seconds in result.cost.terms.items():
            bar = trace(traces["terms"], term)
            shown = bar["y"][bar["x"].index(name)]
            np.testing.assert_allclose(shown, 1e3 * whole(seconds)[point], rtol=1e-6, atol=1e-15)
        check_windows(traces, answer, name, point)
    check_best(traces["speedup"], answer, point)
    verdict = verdict_of(answer)
    gain, policy = whole(verdict.gain.expected), whole(verdict.policy).astype(int)
    needed = np.stack([whole(each.break_even_accept_length) for each in answer.policies.values()])
    of_best = np.where(policy >= 0, np.take_along_axis(needed, np.maximum(policy, 0)[np.newaxis], axis=0)[0], np.nan)
    check_maps(traces, "best", "best", gain, of_best, point)
    there, result = whole(held(answer, beside)) > 0, answer.policies[beside]
    speedups, lengths = (whole(each) for each in (result.speedup, result.break_even_accept_length))
    check_maps(traces, "policy", beside, np.where(there, speedups, np.nan), np.where(there, lengths, np.nan), point)


def spread_over(answer: Any) -> Callable[[Any], np.ndarray]:
    return lambda values: np.broadcast_to(np.asarray(values, dtype=float), answer.work.shape)


def held(answer: Any, policy: str) -> np.ndarray:
    return np.asarray(answer.memory["base"].fits & answer.memory[policy].fits)


def numbers(values: list[float | None]) -> np.ndarray:
    """NaN where the page shows none."""
    return np.array(values, dtype=float)


def check_line(chart: list[dict[str, Any]], answer: Any, name: str, point: tuple[int, int, int, int]) -> None:
    """A line where memory holds the policy, squares where it does not, a band where the release has it."""
    whole, (c, _, w, b) = spread_over(answer), point
    there, gain = whole(held(answer, name))[c, :, w, b] > 0, speedup(answer, name)
    low, expected, high = (whole(each)[c, :, w, b] for each in (gain.low, gain.expected, gain.high))
    np.testing.assert_allclose(numbers(trace(chart, name)["y"]), np.where(there, expected, np.nan), **SAME)
    squares = [each for each in chart if each["name"] == f"{name} no room"]
    assert len(squares) == (not there.all())
    for each in squares:
        np.testing.assert_allclose(numbers(each["y"]), np.where(there, np.nan, expected), **SAME)
    bands = [each["y"] for each in chart if each["name"] == f"{name} band"]
    assert len(bands) == (offered(answer, name) and there.sum() > 1)
    for band in bands:
        np.testing.assert_allclose(band, np.concatenate([high[there], low[there][::-1]]), rtol=2e-5)


def check_best(chart: list[dict[str, Any]], answer: Any, point: tuple[int, int, int, int]) -> None:
    """The star stands on the best verdict of all depths, and on none that cannot run."""
    c, _, w, b = point
    gains = spread_over(answer)(verdict_of(answer).gain.expected)[c, :, w, b]
    stars = [each["x"] for each in chart if each["name"] == "best"]
    assert stars == ([[DEPTHS[int(np.nanargmax(gains))]]] if np.isfinite(gains).any() else [])


def check_losing(chart: list[dict[str, Any]], answer: Any, name: str, point: tuple[int, int, int, int]) -> None:
    whole, (_, _, w, b) = spread_over(answer), point
    gains, there = whole(answer.policies[name].speedup), whole(held(answer, name)) > 0
    drafting = np.flatnonzero(np.asarray(DEPTHS) > 0)
    beyond = [turns_negative(gains[:, depth, w, b], there[:, depth, w, b]) for depth in drafting]
    shown = trace(chart, f"{name} beyond")["y"]
    assert [value is None for value in shown] == [value is None for value in beyond]
    np.testing.assert_allclose(
        [v for v in shown if v is not None], [v for v in beyond if v is not None], rtol=1e-4
    )  # a crossing of nearly level lines is worse conditioned than its lines


def check_windows(traces: dict[str, Any], answer: Any, name: str, point: tuple[int, int, int, int]) -> None:
    whole, (c, d, _, b) = spread_over(answer), point
    there = whole(held(answer, name))[c, d, :, b] > 0
    step, native = (whole(answer.policies[each].cost.step_s)[c, d, :, b] for each in (name, "native"))
    shown = numbers(trace(traces["window-step"], name)["y"])
    np.testing.assert_allclose(shown, np.where(there, 1e3 * step, np.nan), **SAME)
    if name != "native":
        for title, share in (("margin", native / step - 1.0), ("cancelling loss", 1.0 - step / native)):
            shown = numbers(trace(traces["window-margin"], f"{name} {title}")["y"]) / 100
            np.testing.assert_allclose(shown, np.where(there, share, np.nan), rtol=1e-6, atol=1e-6)


def check_maps(
    traces: dict[str, Any], side: str, name: str, gain: np.ndarray, needed: np.ndarray, point: tuple[int, int, int, int]
) -> None:
    """NaN where nothing has room: there the map has a grey cell over it."""
    _, d, w, b = point
    cells = {f"map-{side}": gain[:, np.asarray(DEPTHS) > 0, w, b].T, f"length-{side}": needed[:, d, w, :].T}
    for chart, expected in cells.items():
        np.testing.assert_allclose([numbers(row) for row in trace(traces[chart], name)["z"]], expected, **SAME)
        grey = [[numbers(row) for row in each["z"]] for each in traces[chart] if each["name"] == "no room"]
        assert len(grey) == np.isnan(expected).any()
        for each in grey:
            assert np.array_equal(np.isnan(each), ~np.isnan(expected))


def turns_negative(gains: np.ndarray, there: np.ndarray) -> float | None:
    """The context beyond which a policy loses at every longer one that fits, between grid points by interpolation."""
    contexts, gains = np.asarray(CONTEXTS, dtype=float)[there], gains[there]
    wins = np.flatnonzero(gains >= 1)
    if not len(wins):
        return float(contexts[0]) if len(contexts) else None
    last = int(wins[-1])
    if last == len(gains) - 1:
        return None
    share = (gains[last] - 1) / (gains[last] - gains[last + 1])
    return float(contexts[last] * (contexts[last + 1] / contexts[last]) ** share)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_every_slider_recomputes_what_python_says(opened: Callable[..., Any], engine: str) -> None:
    page, beside = opened({"depth": 3}, engine=engine, alpha=0.8), "native" if engine == "sglang" else "flag"
    check(read(page), grid(engine=engine, alpha=0.8), (3, 3, 1, 0), beside)
    check(move(page, "alpha", 0.43), grid(engine=engine, alpha=0.43), (3, 3, 1, 0), beside)
    answer = grid(engine=engine, alpha=0.43)
    check(move(page, "context", 1), answer, (1, 3, 1, 0), beside)
    check(move(page, "batch", 2), answer, (1, 3, 1, 2), beside)
    check(move(page, "context", 3), answer, (3, 3, 1, 2), beside)  # where nothing fits
    check(move(page, "context", 1), answer, (1, 3, 1, 2), beside)
    check(move(page, "window", 0), answer, (1, 3, 0, 2), beside)
    check(move(page, "depth", 8), answer, (1, 8, 0, 2), beside)
    check(move(page, "depth", 0), answer, (1, 0, 0, 2), beside)
    check(move(page, "alpha", 0), grid(engine=engine, alpha=0.0), (1, 0, 0, 2), beside)
    check(move(page, "alpha", 1), grid(engine=engine, alpha=1.0), (1, 0, 0, 2), beside)
    page.execute_script(
        "const e = document.getElementById('policy'); e.value = 'ring'; e.dispatchEvent(new Event('change'));"
    )
    check(read(page), grid(engine=engine, alpha=1.0), (1, 0, 0, 2), "ring")


# --- the verdict ---------------------------------------------------------------------------------------------------


def said(page: Any) -> dict[str, Any]:
    """What stands in the page's verdict."""
    return page.execute_script(
        "const text = (id) => document.getElementById(id).textContent;"
        "return {word: text('word'), gain: text('gain'), range: text('range'), with: text('with'),"
        " lines: [...document.getElementById('said').children].map((each) => each.textContent)};"
    )


def check_said(page: Any, answer: Any) -> None:
    """The page's verdict against the terminal's on one point: the same sentences, speedup and range."""
    shown, found = said(page), verdict_of(answer) if answer.policies else None
    lines = verdict(answer)
    assert shown["lines"] == conclusion(answer) == lines[: len(shown["lines"])]
    if found is None or found.only_word is None:
        expected = "nothing drafted" if answer.memory["base"].fits and not answer.work.depth else "no room"
        assert (shown["word"], shown["gain"], shown["range"]) == (expected, "", "")
    else:
        gain = f"{float(found.gain.expected):.2f}x"
        assert (shown["word"], shown["gain"], shown["range"]) == (found.only_word, gain, spread(found.gain))
        assert f"with {named(answer, found.only_policy)} at depth {int(answer.work.depth)}" in shown["with"]


SLOW = load_engine("sglang", ["host.step_s=0.03"])
#: A point, how it is asked for, and the word that is due.
VERDICTS = [
    ({"context": 2**20}, {"accept_length": 4.5}, "pays"),
    ({"context": 2**20}, {"accept_length": 1.75}, "probably pays"),
    ({"context": 2**20}, {"accept_length": 1.05}, "loses"),
    ({"context": 2**20}, {"accept_length": 4.5, "windowed_accept_length": 1.5}, "pays"),
    ({"context": 2**20}, {"accept_length": 1.926, "engine": "vllm@0.26"}, "even"),
    ({"context": 2**20}, {"accept_length": 1.6, "engine": "vllm"}, "probably loses"),
    ({"context": 2**20, "batch": 32}, {"accept_length": 4.5}, None),
    ({"context": 2**20, "depth": 1}, {"accept_length": 1.5, "engine": SLOW}, "probably loses"),
    ({"context": 32768}, {"accept_length": 4.5, "drafter": "eagle"}, "probably pays"),
    ({"context": 32768}, {"accept_length": 4.5, "gpu": "b200"}, "probably pays"),
]


@pytest.mark.parametrize(("sizes", "stated", "word"), VERDICTS)
def test_the_page_says_what_the_terminal_says(
    opened: Callable[..., Any], sizes: dict[str, int], stated: dict[str, Any], word: str | None
) -> None:
    point = {"depth": 6, "window": 4032, "batch": 1} | sizes
    page = opened(point, **stated)
    answer = wmtp_sim.estimate(MODEL, **({"gpu": GPU} | point | stated))
    assert verdict_of(answer).only_word == word
    check_said(page, answer)


@pytest.mark.parametrize("engine", ["sglang", "vllm", "vllm@0.26"])
def test_the_verdict_follows_the_sliders(opened: Callable[..., Any], engine: str) -> None:
    """Every corner of the grid, at three acceptances: also depth 0, and where nothing fits."""
    page = opened({"depth": 3}, engine=engine, alpha=0.8)
    for alpha in (0.2, 0.5, 0.9):
        move(page, "alpha", alpha)
        for places in itertools.product((0, 3), (0, 1, 8), (1,), (0, 2)):
            sizes = {name: values[at] for (name, values), at in zip(AXES.items(), places, strict=True)}
            script = "Object.assign(window.wmtp.state, arguments[0]); window.wmtp.say();"
            page.execute_script(script, dict(zip(AXES, places, strict=True)))
            check_said(page, wmtp_sim.estimate(MODEL, GPU, **sizes, engine=engine, alpha=alpha))


def test_a_policy_that_the_release_lacks_is_no_verdict(opened: Callable[..., Any]) -> None:
    """The ring would pay here; the release has native drafts alone, which lose."""
    page = opened({"context": 2**20, "depth": 6}, engine="vllm@0.26", accept_length=1.75)
    traces = read(page)
    ring, native = (trace(traces["speedup"], name)["y"][6] for name in ("ring", "native"))
    assert ring > 1 > native
    assert said(page)["word"] in ("loses", "probably loses")
    assert [option.text for option in page.find_elements("css selector", "#policy option")] == [
        "native",
        "flag, not in this release",
        "ring, not in this release",
    ]


def test_cells_without_room_say_what_they_need(opened: Callable[..., Any]) -> None:
    page = opened({"context": 2**20, "depth": 3, "batch": 32}, alpha=0.8)
    answer = wmtp_sim.estimate(MODEL, GPU, context=2**20, depth=3, batch=32)
    memory = answer.memory["base"]
    words = f"no room: needs {gigabytes(float(memory.total_bytes))} of {gigabytes(memory.budget_bytes)}"
    read(page)
    grey = "return document.getElementById(arguments[0]).data.find((t) => t.name === arguments[1])"
    for chart in ("map-best", "map-policy"):
        assert page.execute_script(f"{grey}.hovertext", chart, "no room")[2][3] == words
    assert page.execute_script(f"{grey}.text", "speedup", "native no room")[3] == f"native, {words}"
    assert page.execute_script(f"{grey}.marker.pattern.shape", "terms", "verify") == ["/"] * 4
    assert words.endswith(said(page)["with"].removeprefix("needs "))


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
    ends = base_over_step(wmtp_sim.estimate(MODEL, GPU, **sizes), "flag")
    expected = {"step_s": flag.cost.step_s} | {f"{term}_s": seconds for term, seconds in flag.cost.terms.items()}
    expected |= {"base_step_s": flag.base.step_s, "break_even_accept_length": flag.break_even_accept_length}
    expected |= {"base_over_step_low": ends.low, "base_over_step_high": ends.high}
    for name, value in expected.items():
        assert float(row[name]) == pytest.approx(float(value), rel=2e-5 if name.startswith("base_over") else 1e-6)
    assert list(row) == ["context", "depth", "window", "batch", "policy", "in_engine", "fits", *expected]
    assert {row["in_engine"] for row in rows if row["policy"] == "ring"} == {"false"}
    assert {row["fits"] for row in rows if row["context"] == str(2**20) and row["batch"] == "32"} == {"false"}


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
    assert set(read(browser)) >= {"speedup", "map-best", "window-step"}
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
