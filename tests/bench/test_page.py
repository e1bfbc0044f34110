"""How fast the break-even page is: written for a large grid, and redrawn when a slider moves.

Benchmarks measure, they do not judge: `make bench` prints each figure and its ratio to what it should stay below. The
browser draws without a GPU here, so the paint is its slowest.
"""

import statistics

import numpy as np
import pytest

import wmtp_sim
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.render.breakeven.page import MAX_BYTES, breakeven_page
from wmtp_sim.render.breakeven.start import opening
from wmtp_sim.render.breakeven.table import CostTable

#: Seconds that a page of the large grid, and a move of a slider, should stay below.
WRITTEN_S, MOVED_S = 3.0, 0.050
LARGE = (
    np.unique(np.round(np.geomspace(4096, 2**20, 60))),
    range(16),
    np.geomspace(256, 16384, 12).round(),
    2 ** np.arange(8),
)
USUAL = (4096 * 2 ** np.arange(9), range(13), (256, 512, 1024, 2048, 4032, 8192, 16384), 2 ** np.arange(7))
MOVES = {
    "alpha": [0.5 + 0.01 * i for i in range(20)],
    "context": [i % 9 for i in range(20)],
    "depth": [1 + i % 12 for i in range(20)],
    "window": [i % 7 for i in range(20)],
    "batch": [i % 7 for i in range(20)],
}
#: What a move costs: its script, until the next frame is painted, and until every chart on the screen is drawn.
MOVE = """
const [id, value, done] = arguments, slider = document.getElementById(id);
slider.value = value;
const began = performance.now(), since = () => performance.now() - began, found = [];
slider.dispatchEvent(new Event("input", { bubbles: true }));
found.push(since());
const drawn = () => window.wmtp.waiting() ? setTimeout(drawn) : done([...found, since()]);
requestAnimationFrame(() => {
  const painted = new MessageChannel();
  painted.port1.onmessage = () => { found.push(since()); drawn(); };
  painted.port2.postMessage(0);
});
"""


def page(axes, engine="sglang", changes=()):
    context, depth, window, batch = wmtp_sim.open_grid(*axes)
    sizes = {"context": context, "depth": depth, "window": window, "batch": batch}
    table = CostTable(wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", **sizes, engine=load_engine(engine, changes)))
    return breakeven_page(table, opening(table, {"depth": 6}, accept_length=4.5))


@pytest.mark.parametrize("changes", [(), ("host.step_work_s=0.012",)], ids=["usual", "host-bound"])
def test_a_large_page(benchmark, changes):
    text = benchmark.pedantic(page, (LARGE, "vllm", changes), rounds=3)
    size = len(text.encode())
    if benchmark.stats is not None:
        median = benchmark.stats.stats.median
        print(f"\n60 x 16 x 12 x 8: {size / 1e6:.1f} MB, {size / MAX_BYTES:.2f} of the limit; ", end="")
        print(f"{median:.2f} s, {median / WRITTEN_S:.2f} of {WRITTEN_S:g} s")


@pytest.mark.parametrize("axes", [USUAL, LARGE], ids=["usual", "large"])
@pytest.mark.parametrize("scrolled", [0, 900])
def test_a_move(benchmark, browser, tmp_path, axes, scrolled):
    path = tmp_path / "report.html"
    path.write_text(page(axes), encoding="utf-8")
    browser.driver.set_window_size(1400, 1000)
    browser.open(path)
    browser.run("window.scrollTo(0, arguments[0])", scrolled)
    measured = benchmark.pedantic(all_moves, (browser,), rounds=1, warmup_rounds=1)
    for name, times in measured.items():
        script, painted, drawn = (statistics.median(each) for each in zip(*times, strict=True))
        if benchmark.stats is not None:
            ratio = painted / 1e3 / MOVED_S
            print(f"\n{name}: script {script:.0f} ms, painted after {painted:.0f} ms, {ratio:.2f} of 50 ms; ", end="")
            print(f"all charts on the screen after {drawn:.0f} ms", end="")


def all_moves(browser):
    return {name: [browser.driver.execute_async_script(MOVE, name, value) for value in MOVES[name]] for name in MOVES}
