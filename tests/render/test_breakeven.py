"""The break-even page without a browser: its table is `estimate`'s, its data is inert, and it is one whole file."""

from __future__ import annotations

import base64
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wmtp_sim
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.models import load_model
from wmtp_sim.decide.verdict import base_over_step, speedup, verdict_of
from wmtp_sim.errors import InputError
from wmtp_sim.render.breakeven.document import breakeven_document, packed_document
from wmtp_sim.render.breakeven.figure import breakeven_figure
from wmtp_sim.render.breakeven.pack import Packer
from wmtp_sim.render.breakeven.page import MAX_BYTES, breakeven_page
from wmtp_sim.render.breakeven.start import as_rates, opening
from wmtp_sim.render.breakeven.table import CostTable
from wmtp_sim.render.document import estimate_document
from wmtp_sim.render.offline import embedded
from wmtp_sim.render.verdict import conclusion
from wmtp_sim.spec.acceptance import AcceptLength, ConstantRate, SurvivalRates

CONTEXTS, DEPTHS, WINDOWS, BATCHES = [2048, 65536, 2**20], [0, 1, 6], [512, 4032, 2**17], [1, 8]
HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "\"'`&amp;/*SCRIPT*/",
    "\u202egnp.exe\u2066",
    "a\u2028b\u2029c",
    "x" * 10_000,
]


def table(model: Any = "qwen3.5-35b-a3b", axes: Any = (CONTEXTS, DEPTHS, WINDOWS, BATCHES), **stated: Any) -> CostTable:
    context, depth, window, batch = wmtp_sim.open_grid(*axes)
    sizes = {"context": context, "depth": depth, "window": window, "batch": batch}
    return CostTable(wmtp_sim.estimate(model, stated.pop("gpu", "h200"), **sizes, **stated))


@pytest.fixture(scope="module")
def usual() -> CostTable:
    return table()


def unpacked(document: dict[str, Any], packed: dict[str, Any]) -> np.ndarray:
    """An array as the page reads it, over the whole grid."""
    shape = tuple(len(document["axes"][name]) for name in ("context", "depth", "window", "batch"))
    content = base64.b64decode(document["blobs"][packed["blob"]])
    values = np.frombuffer(content, "<u2" if "step" in packed else "<f4").reshape(packed["shape"])
    if "step" in packed:
        values = packed["least"] + packed["step"] * values
    if packed["folded"]:
        values = np.moveaxis(values[np.asarray(document["fold"])], 1, 2)
    return np.broadcast_to(values.astype(float), shape)


@pytest.mark.parametrize(("model", "engine"), [("qwen3.5-35b-a3b", "sglang"), ("deepseek-v3.2", "llama.cpp")])
def test_the_embedded_table_is_estimates(model: str, engine: str) -> None:
    costs = table(model, engine=engine, gpu="b200")
    document = packed_document(costs, opening(costs, {}))
    seen = {
        (name, term): unpacked(document, packed)
        for name, terms in document["costs"].items()
        for term, packed in terms.items()
    }
    ends = {
        (name, end): unpacked(document, packed)
        for name, each in document["ranges"].items()
        for end, packed in each.items()
    }
    for at in itertools.product(*(range(len(axis)) for axis in (CONTEXTS, DEPTHS, WINDOWS, BATCHES))):
        c, d, w, b = at
        sizes = {"context": CONTEXTS[c], "depth": DEPTHS[d], "window": WINDOWS[w], "batch": BATCHES[b]}
        answer = wmtp_sim.estimate(model, "b200", engine=engine, **sizes)
        named = {"base": answer.base} | {name: each.cost for name, each in answer.policies.items()}
        for name, cost in named.items() if DEPTHS[d] else [("base", answer.base), ("ring", answer.base)]:
            for term, seconds in cost.terms.items():
                assert seen[name, term][at] == pytest.approx(float(seconds), rel=1e-6)
        for policy in answer.policies:
            found = base_over_step(answer, policy)
            assert ends[policy, "low"][at] == pytest.approx(float(found.low / found.expected), rel=2e-5)
            assert ends[policy, "high"][at] == pytest.approx(float(found.high / found.expected), rel=2e-5)
        if not DEPTHS[d]:
            assert [ends[policy, end][at] for policy in costs.policies for end in ("low", "high")] == pytest.approx(
                [1.0] * 6
            )


@pytest.mark.parametrize("changes", [["host.step_work_s=0.02"], ["host.step_work_s=0.005", "host.base_work_s=0.004"]])
def test_host_time_that_no_kernel_hides_is_carried(changes: list[str]) -> None:
    costs = table(engine=load_engine("vllm", changes))
    document = packed_document(costs, opening(costs, {}))
    for name, cost in costs.costs.items():
        for term, seconds in cost.terms.items():
            found = unpacked(document, document["costs"][name][term])
            np.testing.assert_allclose(found, np.broadcast_to(seconds, costs.shape), rtol=1e-6)


def test_memory_is_carried(usual: CostTable) -> None:
    document = packed_document(usual, opening(usual, {}))
    for name, memory in usual.estimate.memory.items():
        carried = document["memory"][name]
        needed = np.broadcast_to(memory.total_bytes, usual.shape)
        np.testing.assert_allclose(unpacked(document, carried["needed"]), needed, rtol=1e-6)
        assert carried["usable"] == memory.budget_bytes
        packed = carried["fits"]
        bits = np.unpackbits(np.frombuffer(base64.b64decode(document["blobs"][packed["blob"]]), np.uint8))
        flags = bits[: np.prod(packed["shape"])].reshape(packed["shape"])
        assert np.array_equal(np.broadcast_to(flags, usual.shape), np.broadcast_to(memory.fits, usual.shape))


def test_arrays_that_do_not_fold_are_kept_whole() -> None:
    attended = np.minimum(np.reshape([10.0, 20.0], (2, 1, 1, 1)), np.reshape([5.0, 15.0], (1, 1, 2, 1)))
    packer = Packer(attended)
    unruly = np.arange(8.0).reshape(2, 1, 2, 2)
    assert packer.pack(unruly) == {"blob": 0, "shape": [2, 1, 2, 2], "folded": False}
    assert packer.pack(attended)["folded"]
    assert packer.pack(np.full((2, 3, 2, 2), 7.0))["shape"] == [1, 1, 1, 1]
    assert packer.pack(7.0)["blob"] == 2  # equal arrays are stored once
    assert packer.pack_near(np.ones((2, 3, 2, 2)))["shape"] == [1, 1, 1, 1]


def test_the_document_for_programs(usual: CostTable) -> None:
    document = json.loads(json.dumps(breakeven_document(usual, opening(usual, {}, alpha=0.7)), allow_nan=False))
    assert document["schema"] == "wmtp-breakeven/1"
    assert document["axes"] == dict(
        zip(("context", "depth", "window", "batch"), (CONTEXTS, DEPTHS, WINDOWS, BATCHES), strict=True)
    )
    ring = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", context=2**20, depth=6, window=4032, batch=8).policies["ring"]
    costs = document["costs"]["ring"]
    assert costs["step_s"][2][2][1][1] == pytest.approx(float(ring.cost.step_s), rel=1e-12)
    assert costs["margin"][2][2][1][1] == pytest.approx(float(ring.margin), rel=1e-9)
    seen = costs["break_even_accept_length"][2][2][1][1]
    assert seen == pytest.approx(float(ring.break_even_accept_length), rel=1e-12)
    assert [document["costs"][name].get("in_engine") for name in ("base", "native", "flag", "ring")] == [
        None,
        True,
        True,
        False,
    ]
    assert all(len(listed) <= 10 for listed in document["operations"].values())
    assert {each["known"] for each in document["operations"]["native"]} <= {"measured", "fitted", "assumed"}


@pytest.mark.parametrize("engine", ["sglang", "vllm", "vllm@0.26"])
def test_the_document_says_what_the_verdict_is(engine: str) -> None:
    costs = table(engine=engine)
    start = opening(costs, {"depth": 6}, accept_length=4.5)
    document = json.loads(json.dumps(breakeven_document(costs, start), allow_nan=False))
    answer = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", **start.point, engine=engine, accept_length=4.5)
    assert document["verdict"] == estimate_document(answer)["verdict"]
    assert document["verdict"]["policy"] == verdict_of(answer).only_policy
    for policy in answer.policies:
        found, ends = base_over_step(answer, policy), document["costs"][policy]["base_over_step_interval"]
        assert [np.broadcast_to(end, costs.shape)[2, 2, 1, 0] for end in ends] == pytest.approx(
            [float(found.low), float(found.high)], rel=1e-9
        )


def test_the_document_without_an_acceptance_has_no_verdict(usual: CostTable) -> None:
    assert breakeven_document(usual, opening(usual, {}))["verdict"] is None


def test_the_document_says_where_it_fits() -> None:
    costs = table(axes=([2048, 2**20], [3], [4032], [1, 64]))
    document = breakeven_document(costs, opening(costs, {}, alpha=0.7))
    for name in ("base", "native", "flag", "ring"):
        assert np.asarray(document["costs"][name]["fits"]).reshape(2, 2).tolist() == [[True, True], [True, False]]


# --- the page --------------------------------------------------------------------------------------------------


class Skeleton(HTMLParser):
    """Elements that are opened and never closed, every address, and the text of each script."""

    VOID = ("meta", "input", "link", "br", "img")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data


def named(name: str) -> CostTable:
    return table(load_model("qwen3.5-35b-a3b").model_copy(update={"name": name}))


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name)[:20])
def test_hostile_names_are_inert(name: str) -> None:
    costs = named(name)
    page = breakeven_page(costs, opening(costs, {}), command=f"wmtp breakeven {name}")
    skeleton = Skeleton(page)
    assert page.startswith("<!DOCTYPE html>")
    assert skeleton.open == []
    assert skeleton.addresses == []  # nothing is loaded from anywhere
    assert len(skeleton.ids) == len(set(skeleton.ids))
    assert len(skeleton.scripts) == 3
    data = skeleton.scripts[1]
    assert data.isascii()
    assert not set(data) & set("<>&")
    assert json.loads(data)["model"] == (name if len(name) <= 200 else name[:199] + "…")
    for text in (page[: page.index("<script>")], skeleton.scripts[2]):
        assert name not in text


def test_the_page_fetches_nothing() -> None:
    folder = Path(wmtp_sim.__file__).parent / "render" / "breakeven"
    for name in ("page.html", "page.css", "page.js"):
        text = (folder / name).read_text(encoding="utf-8")
        assert re.search(r"https?:|//cdn|@import|fetch\(|XMLHttpRequest|innerHTML|document\.write|eval\(", text) is None
    assert "default-src 'none'" in (folder / "page.html").read_text(encoding="utf-8")


def test_script_data_is_escaped() -> None:
    assert embedded({"a": "</script>&\u2028"}) == '{"a":"\\u003c/script\\u003e\\u0026\\u2028"}'


@pytest.mark.parametrize("engine", ["sglang", "llama.cpp", "vllm with a slow host"])
def test_a_large_grid_is_small(engine: str) -> None:
    """Also where host work binds almost everywhere: host time is then what no kernel hides, and folds on no axis."""
    slow = ["host.step_work_s=0.012"] if "slow" in engine else []
    contexts = np.unique(np.round(np.geomspace(4096, 2**20, 60)))
    windows = np.unique(np.round(np.geomspace(256, 16384, 12)))
    costs = table(axes=(contexts, range(16), windows, 2 ** np.arange(8)), engine=load_engine(engine.split()[0], slow))
    page = breakeven_page(costs, opening(costs, {"depth": 6}, accept_length=4.5))
    assert costs.shape == (60, 16, 12, 8)
    assert len(page.encode()) <= MAX_BYTES


# --- the picture -----------------------------------------------------------------------------------------------


def test_the_picture_shows_what_the_page_opens_with(usual: CostTable) -> None:
    start = opening(usual, {"context": 65536, "depth": 6}, accept_length=4.5, windowed_accept_length=4.2)
    figure = breakeven_figure(usual, start)
    traces = {each.name: each for each in figure.data}
    sizes = {"context": 65536, "depth": 6, "window": 4032, "batch": 1}
    stated = {"accept_length": 4.5, "windowed_accept_length": 4.2}
    answer = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", **sizes, **stated)
    for name, result in answer.policies.items():
        (line,) = [each for title, each in traces.items() if re.match(f"{name}.*: best", title)]
        assert line.x[2] == 6
        assert line.y[2] == pytest.approx(float(result.speedup), rel=1e-9)
        best = max(range(len(DEPTHS)), key=lambda place: line.y[place])
        assert line.name.endswith(f": best {line.y[best]:.2f}x at depth {DEPTHS[best]}")
        gain, place = speedup(answer, name), list(traces["draft"].x).index(name)
        if name != "ring":  # which the release lacks
            assert traces[f"{name} band"].y[2:4] == pytest.approx([float(gain.high), float(gain.low)], rel=1e-9)
        assert sum(traces[term].y[place] for term in result.cost.terms) == pytest.approx(
            1e3 * float(result.cost.step_s)
        )
    assert "ring band" not in traces
    assert any(title.startswith("ring, not in this release") for title in traces)
    verdict = verdict_of(answer)
    assert traces["best"].z[1][1] == pytest.approx(float(verdict.gain.expected), rel=1e-9)
    assert traces["native"].z[1][1] == pytest.approx(float(answer.policies["native"].speedup), rel=1e-9)
    assert (list(traces["native"].x), list(traces["native"].y)) == (CONTEXTS, DEPTHS[1:])
    assert conclusion(answer)[0] in figure.layout.title.subtitle.text


def test_the_picture_has_no_star_and_no_colour_where_there_is_no_room() -> None:
    costs = table(axes=([2048, 2**20], [1, 3], [4032], [1, 64]))
    figure = breakeven_figure(costs, opening(costs, {"context": 2**20, "depth": 3, "batch": 64}, accept_length=2.5))
    traces = {(each.type, each.name): each for each in figure.data}
    assert ("scatter", "best") not in traces
    assert np.isnan(traces["heatmap", "best"].z).tolist() == [[False, True], [False, True]]
    assert traces["heatmap", "no room"].text.tolist() == [["", "×"], ["", "×"]]
    assert "Does not fit" in figure.layout.title.subtitle.text


def test_a_picture_of_one_point_and_a_hostile_name() -> None:
    model = load_model("qwen3.5-35b-a3b").model_copy(update={"name": HOSTILE[1]})
    costs = table(model, axes=([2**17], [2], [4032], [1]))
    figure = breakeven_figure(costs, opening(costs, {}))
    assert "<img" not in figure.layout.title.text
    assert [each.type for each in figure.data].count("contour") == 0


# --- where it opens --------------------------------------------------------------------------------------------


def test_acceptance_reaches_every_depth(usual: CostTable) -> None:
    length = as_rates(AcceptLength(4.5, 6, "measured"), 6)
    assert 1 + sum(length["alpha"] ** j for j in range(1, 7)) == pytest.approx(4.5, rel=1e-12)
    assert length["label"] == "measured: AL 4.5 at depth 6; one rate at all positions is assumed"
    assert as_rates(ConstantRate(0.7), 3) | {"label": ""} == {
        "alpha": 0.7,
        "rates": None,
        "label": "",
        "source": "given",
        "kind": "alpha",
    }
    assert as_rates(SurvivalRates([0.8, 0.4]), 2)["rates"] == pytest.approx([0.8, 0.5])
    assert as_rates(None, 3)["label"].startswith("assumed")
    assert opening(usual, {}).point == {"context": 2**20, "depth": 1, "window": 4032, "batch": 1}


def test_it_opens_at_the_longest_context_that_fits() -> None:
    costs = table(axes=([4096, 65536, 2**20], [3], [4032], [8, 64]))
    assert opening(costs, {}).point["context"] == 65536
    assert opening(costs, {"batch": 64}).point["context"] == 4096
    assert opening(costs, {"context": 2**20}).point["context"] == 2**20
    small = table(axes=([2**19, 2**20], [3], [4032], [64]))
    assert opening(small, {}).point["context"] == 2**20


@pytest.mark.parametrize(
    ("named_values", "stated", "field"),
    [
        ({"depth": 5}, {}, "--at"),
        ({"depth": 0}, {}, "--at"),
        ({"speed": 5}, {}, "--at"),
        ({}, {"accept_length": 3.0}, "--accept-length"),
        ({}, {"windowed_accept_length": 3.0}, "--windowed-accept-length"),
        ({"depth": 1}, {"windowed_accept_length": 3.0}, "--windowed-accept-length"),
        ({"depth": 1}, {"accept_length": 3.0}, "--accept-length"),
        ({}, {"alpha": 1.5}, "--alpha"),
        ({}, {"survival": [0.9]}, "--survival"),
        ({}, {"survival": [0.9], "alpha": 0.5}, "--survival and --alpha"),
    ],
)
def test_starts_that_cannot_be(
    usual: CostTable, named_values: dict[str, int], stated: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError) as refused:
        opening(usual, named_values, **stated)
    assert refused.value.field == field


def test_nothing_drafted_is_refused() -> None:
    with pytest.raises(InputError, match="--depth"):
        table(axes=(CONTEXTS, [0], WINDOWS, BATCHES))
    with pytest.raises(InputError, match="--drafter"):
        table(drafter="none")


# --- files -----------------------------------------------------------------------------------------------------
