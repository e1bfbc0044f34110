"""``--json``: one strict document on the last line, with guaranteed members that are the library's own numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import wmtp_sim
from wmtp_sim.catalog.engines import engine_names
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.warnings import warnings

Run = Callable[..., Any]
DEMO = ("estimate", "qwen3.5-35b-a3b", "--gpu", "h200", "--window", "4032", "--sink", "64")
TERMS = ("draft", "verify", "extend", "sample", "host")

COST = {"step_s", "interval_s", "speed_of_light_s", "terms"}
POLICY = COST | {
    *("margin", "accept_length", "speedup", "max_speedup", "break_even_accept_length", "unwinnable"),
    *("tokens_per_s", "tokens_per_s_total"),
}
MEMORY = {
    *("weights_bytes", "kv_bytes", "draft_kv_bytes", "draft_kv_share", "state_bytes", "fits", "max_context"),
}
TOP = {"schema", "model", "gpu", "engine", "profile", "axes", "base", "policies", "memory", "warnings"}


def library(**stated: Any) -> Estimate:
    return wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", window=4032, sink=64, **stated)


def agrees(document: dict[str, Any], answer: Estimate, shape: tuple[int, ...]) -> None:
    """Every guaranteed number is the library's, to the last bit."""

    def same(shown: Any, number: Any) -> None:
        if number is None:
            assert shown is None
            return
        expected = np.broadcast_to(number, answer.work.shape).reshape(shape)
        assert shown == (expected.item() if shape == () else expected.tolist())

    def cost(shown: dict[str, Any], number: Any) -> None:
        same(shown["step_s"], number.step_s)
        same(shown["interval_s"][0], number.low_s)
        same(shown["interval_s"][1], number.high_s)
        same(shown["speed_of_light_s"], number.bound_s)
        assert tuple(shown["terms"]) == TERMS
        for term in TERMS:
            same(shown["terms"][term], number.terms[term])
        total = np.sum([np.asarray(shown["terms"][term]) for term in TERMS], axis=0)
        np.testing.assert_allclose(total, shown["step_s"], rtol=1e-12)
        low, high = map(np.asarray, shown["interval_s"])
        step, bound = np.asarray(shown["step_s"]), np.asarray(shown["speed_of_light_s"])
        assert np.all((bound <= low * (1 + 1e-12)) & (low <= step) & (step <= high))

    cost(document["base"], answer.base)
    same(document["base"]["tokens_per_s"], answer.base_tokens_per_s)
    assert document["policies"].keys() == answer.policies.keys()
    for name, result in answer.policies.items():
        shown = document["policies"][name]
        assert shown.keys() >= POLICY
        cost(shown, result.cost)
        for member in POLICY - COST:
            same(shown[member], getattr(result, member))
    memory = answer.memory.get("native", answer.memory["base"])
    for member in MEMORY - {"weights_bytes"}:
        same(document["memory"][member], getattr(memory, member))
    assert document["memory"]["weights_bytes"] == memory.weights_bytes
    assert document["warnings"] == [{"id": w.id, "text": w.text} for w in warnings(answer)]


def test_a_point(run: Run) -> None:
    ran = run(*DEMO, "--context", "1M", "--depth", "6", "--accept-length", "4.5", "--json")
    assert (ran.status, ran.err) == (0, "")
    assert len(ran.out.splitlines()) == 1
    document = ran.document
    assert document.keys() >= TOP
    assert document["schema"] == "wmtp-estimate/1"
    assert (document["model"], document["gpu"]) == ("qwen3.5-35b-a3b", "NVIDIA H200")
    assert document["engine"].startswith("sglang")
    assert document["profile"].keys() >= {"name", "status"}
    assert document["axes"] == {}
    assert document["base"].keys() >= {"step_s", "terms", "tokens_per_s"}
    assert list(document["policies"]) == ["native", "flag", "ring"]
    assert document["memory"].keys() >= MEMORY
    assert document["policies"]["ring"]["accept_length"] == 4.5
    agrees(document, library(context=2**20, depth=6, accept_length=4.5), ())


def test_ranges_are_nested_in_axis_order(run: Run) -> None:
    words = ("--context", "4K:32K", "--depth", "0:2", "--batch", "1,3", "--window", "1K,4K", "--alpha", "0.7")
    document = run(*DEMO, *words, "--json").document
    assert list(document["axes"]) == ["context", "depth", "window", "batch"]
    assert document["axes"] == {
        "context": [4096, 8192, 16384, 32768],
        "depth": [0, 1, 2],
        "window": [1024, 4096],
        "batch": [1, 3],
    }
    context, depth, window, batch = wmtp_sim.open_grid(*document["axes"].values())
    answer = wmtp_sim.estimate(
        "qwen3.5-35b-a3b", "h200", context=context, depth=depth, window=window, sink=64, batch=batch, alpha=0.7
    )
    agrees(document, answer, (4, 3, 2, 2))


def test_a_range_of_one_value_is_a_number(run: Run) -> None:
    document = run(*DEMO, "--context", "4K:4K", "--depth", "2:4", "--json").document
    assert document["axes"] == {"depth": [2, 3, 4]}
    agrees(document, library(context=4096, depth=np.arange(2, 5)), (3,))


def test_without_acceptance(run: Run) -> None:
    document = run(*DEMO, "--context", "1M", "--json").document
    for policy in document["policies"].values():
        assert policy["accept_length"] is policy["speedup"] is policy["tokens_per_s"] is None
        assert policy["max_speedup"] > 1
    assert "no-acceptance" in {warning["id"] for warning in document["warnings"]}


def test_explanations_are_the_same_sum(run: Run) -> None:
    document = run(*DEMO, "--context", "1M", "--depth", "6", "--explain", "--json").document
    for name, operations in document["operations"].items():
        step = document["base"] if name == "base" else document["policies"][name]
        seconds = sum(operation["seconds"] for operation in operations) + step["terms"]["host"]
        assert seconds == pytest.approx(step["step_s"], rel=1e-12)


def test_beyond_the_limit_is_an_answer_with_its_consequence(run: Run) -> None:
    ran = run(*DEMO, "--context", "1M", "--json")
    assert ran.status == 0
    [text] = [w["text"] for w in ran.document["warnings"] if w["id"] == "beyond-model-limit"]
    assert "YaRN" in text
    assert "262,144" in text
    nope = run("estimate", "nemotron-h-8b", "--gpu", "h200", "--context", "1M", "--depth", "0", "--json").document
    assert "beyond-config-limit" in {warning["id"] for warning in nope["warnings"]}


def test_depth_0_is_an_answer(run: Run) -> None:
    document = run("estimate", "qwen3-8b", "--gpu", "h200", "--context", "1K", "--depth", "0", "--json").document
    assert document["policies"] == {}
    assert document["base"]["step_s"] > 0
    within = run(*DEMO, "--context", "1K", "--depth", "0,1", "--json").document
    for policy in within["policies"].values():
        assert policy["step_s"][0] == within["base"]["step_s"][0]
        assert policy["break_even_accept_length"][0] == 1


def test_what_does_not_fit_is_an_answer(run: Run) -> None:
    ran = run("estimate", "deepseek-v3", "--gpu", "4090", "--context", "128K", "--accept-length", "2", "--json")
    assert ran.status == 0
    assert ran.document["memory"]["fits"] is False
    assert ran.document["memory"]["max_context"] == 0
    assert "does-not-fit-base" in {warning["id"] for warning in ran.document["warnings"]}


@pytest.mark.parametrize("name", wmtp_sim.model_names())
def test_every_model_is_strict_json(run: Run, name: str) -> None:
    depth = "2" if wmtp_sim.load_model(name).mtp else "0"
    ran = run("estimate", name, "--gpu", "b200", "--context", "8K:32K", "--depth", depth, "--json")
    assert (ran.status, ran.err) == (0, "")
    assert ran.document["model"] == name


@pytest.mark.parametrize("engine", engine_names())
def test_absurd_but_possible_numbers_are_strict_json(run: Run, engine: str) -> None:
    words = ("--context", "1,999G", "--depth", "0,1,1G", "--batch", "1,999G", "--window", "1,999G", "--tp", "16")
    document = run(*DEMO, *words, "--engine", engine, "--json").document
    assert np.isfinite(document["policies"]["ring"]["step_s"]).all()


# --- the catalogue -----------------------------------------------------------------------------------------------


def test_models_show(run: Run) -> None:
    document = run("models", "show", "qwen3.5-35b-a3b", "--json").document
    assert document["schema"] == "wmtp-model/1"
    assert document["params"]["target"] == 34_660_610_688
    assert document["params"].keys() >= {"target", "active", "checkpoint"}
    assert document["kv_bytes_per_token"] == 2 * 10 * 2 * 256 * 2  # K and V, layers, KV heads, width, bf16
    assert document["draft_head"]["kv_bytes_per_token"] == document["kv_bytes_per_token"] / 10
    assert document["draft_head"]["params"] > 0
    assert document["state_bytes_per_sequence"] > 0


def test_json_may_stand_before_show(run: Run) -> None:
    assert run("models", "--json", "show", "qwen3-8b").document == run("models", "show", "qwen3-8b", "--json").document


@pytest.mark.parametrize("what", ["models", "gpus", "engines"])
def test_lists(run: Run, what: str) -> None:
    document = run(what, "--json").document
    assert document["schema"] == f"wmtp-{what}/1"
    entries = document[what]
    assert len(entries) >= 3
    if what == "models":
        assert [entry["name"] for entry in entries] == list(wmtp_sim.model_names())


@pytest.mark.parametrize("name", wmtp_sim.model_names())
def test_every_model_is_shown(run: Run, name: str) -> None:
    document = run("models", "show", name, "--json").document
    assert document["params"]["target"] > 10**9
    assert (document["draft_head"] is None) == bool(document["draft_head_note"])


@pytest.mark.parametrize("tp", [8, 16])
@pytest.mark.parametrize(
    "command",
    [("estimate", "--depth", "1"), ("breakeven", "--depth", "1", "--batch", "1", "--window", "4032", "--alpha", "0.7")],
)
def test_more_gpus_than_a_host_holds_are_said_not_to_be_priced(run: Run, command: tuple[str, ...], tp: int) -> None:
    verb, *more = command
    asked = (verb, "deepseek-v3", "--gpu", "h200", "--context", "4K", "--tp", str(tp), *more, "--json")
    told = [warning["id"] for warning in run(*asked).document["warnings"]]
    assert ("hosts-not-priced" in told) == (tp == 16)
