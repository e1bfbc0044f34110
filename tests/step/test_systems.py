"""Systems held against what was published and measured of them, and on every face that shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wmtp_sim
from tests.step.test_plan import SELF, asked, block, system
from wmtp_sim.catalog.systems import shipped_systems

# --- one file, every face -----------------------------------------------------------------------------------------


def test_a_policy_of_one_file_appears_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tables, page, memory, warnings, recommendation and JSON, by its own name and phrase."""
    from rich.console import Console

    from wmtp_sim.render.breakeven.document import breakeven_document, packed_document
    from wmtp_sim.render.breakeven.start import opening
    from wmtp_sim.render.breakeven.table import CostTable
    from wmtp_sim.render.document import estimate_document
    from wmtp_sim.render.recommend import print_recommendation
    from wmtp_sim.render.tables import print_estimate

    path = tmp_path / "eighth.toml"
    path.write_text(
        'schema = "wmtp-system/1"\nname = "eighth"\ntitle = "every eighth token"\nassumed = ["an eighth will do"]\n'
        'look = { phrase = "the eighth", colours = ["#112233", "#445566"] }\n'
        '[cache]\nshare = 0.125\nheld = "attended"\n'
    )
    stated = {"context": 2**20, "depth": 6, "system": ("native", str(path)), "alpha": 0.8}
    answer = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", **stated)
    assert {*answer.memory} == {"base", "native", "eighth"}
    console = Console(record=True, width=200)
    print_estimate(answer, console)
    said = console.export_text()
    assert "eighth" in said
    assert "the eighth would give" in said
    assert "an eighth will do" in said
    document = estimate_document(answer)
    assert {*document["policies"]} == {"native", "eighth"}
    grid = wmtp_sim.open_grid([2**18, 2**20], [3, 6], [4032], [1, 2])
    sizes = dict(zip(("context", "depth", "window", "batch"), grid, strict=True))
    table = CostTable(wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", system=stated["system"], **sizes))
    start = opening(table, {"depth": 6}, alpha=0.8)
    assert "eighth" in breakeven_document(table, start)["costs"]
    assert packed_document(table, start)["words"]["names"]["eighth"] == "the eighth"
    found = wmtp_sim.recommend(
        "qwen3.5-35b-a3b", "h200", context=2**20, depth=[3, 6], alpha=0.8, what_if=True, system=stated["system"]
    )
    print_recommendation(found, console := Console(record=True, width=200))
    assert "the eighth" in console.export_text()
    assert found.choice is not None
    assert found.choice.policy == "eighth"


# --- a measured round ----------------------------------------------------------------------------------------------

ROUNDS = json.loads((Path(__file__).parents[1] / "data" / "block-rounds-h200.json").read_text())["points"]


@pytest.mark.parametrize("point", ROUNDS, ids=lambda p: f"{p['context']}-{p['depth']}-{p['batch']}")
def test_a_block_round_as_the_bench_ran_it(point: dict[str, Any]) -> None:
    """Every pass of a block of 8 is within 6 %, none of them used in a fit.

    A block of 16 has 64 packed query rows on each KV head, more than the bench's kernel was calibrated over: it takes
    up to 22 % longer than priced where attention is most of a pass, and is within 13 % elsewhere.
    """
    sizes = {name: point[name] for name in ("context", "depth", "batch")}
    step = (found := asked(block(), engine="bench", **sizes)).steps["tested"]
    argmax = next(e.timing.seconds for e in step.entries if e.operation.name == "sample.argmax")
    priced = {
        "base_s": float(found.base_step.term("verify")),
        "verify_s": float(step.term("verify")),
        "draft_s": float(step.term("draft") - argmax),
    }
    long = point["context"] * point["batch"] >= 8 * 32_768
    room = 0.06 if point["depth"] == 7 else 0.23 if long else 0.13
    for name, seconds_of in priced.items():
        assert seconds_of == pytest.approx(point[name], rel=0.06 if name == "base_s" else room)


# --- a published table ---------------------------------------------------------------------------------------------


def test_rounds_of_a_block_drafter_that_were_published() -> None:
    """DFlash, arXiv 2602.06036, Qwen3-8B on one B200 under SGLang, 1 to 32 requests: accept length over rate.

    The older worker's host is fitted on MATH500; HumanEval, another day's run of the same, was not used. Today's worker
    is a prediction: a round is at least as quick as then, and takes the published multiple of a base step or less.
    """
    batch = np.array([1, 4, 8, 16, 32])
    rates, length = np.array([955, 3092, 6010, 9919, 13_116]), 6.50
    stated = {"context": 1024, "batch": batch, "system": "dflash", "accept_length": length}
    then = wmtp_sim.estimate("qwen3-8b", "b200", engine="sglang@pre-overlap", **stated)
    assert np.asarray(then.policies["dflash"].tokens_per_s_total) == pytest.approx(rates, rel=0.09)
    now = wmtp_sim.estimate("qwen3-8b", "b200", engine="sglang", **stated)
    published = np.array([1.57, 1.78, 1.78, 2.05, 2.84])
    ratio = np.asarray(now.policies["dflash"].break_even_accept_length)
    assert (ratio < published).all()
    assert (ratio > 0.7 * published).all()
    assert (np.diff(ratio) > 0).all()


# --- every shipped system, on every face -----------------------------------------------------------------------------

TARGETS = {"mtp": ("llama-3.1-8b", "eagle"), "model": ("llama-3.1-8b", "llama-3.2-1b"), "eagle": ("qwen3-8b", "eagle")}


@pytest.mark.parametrize("stated", [{"accept_length": 1.2}, {"alpha": 0.6}, {}], ids=["length", "alpha", "none"])
@pytest.mark.parametrize("name", shipped_systems())
def test_every_system_is_answered_for_on_every_face(name: str, stated: dict[str, float]) -> None:
    """Text and JSON of a single point, and the page's document, agree on step and accept length."""
    from rich.console import Console

    from wmtp_sim.render.breakeven.document import breakeven_document
    from wmtp_sim.render.breakeven.start import opening
    from wmtp_sim.render.breakeven.table import CostTable
    from wmtp_sim.render.document import estimate_document
    from wmtp_sim.render.tables import print_estimate

    shipped = shipped_systems()[name]
    model, drafter = TARGETS.get(shipped.drafters[0], ("qwen3-8b", None))
    sizes = {"system": name, "drafter": drafter if shipped.network.of == "drafter" else None}
    if shipped.verify.rule == "none" and "accept_length" in stated:
        stated = {}
    answer = wmtp_sim.estimate(model, "h200", context=8192, **sizes, **stated)
    print_estimate(answer, console := Console(record=True, width=200))
    assert name in console.export_text()
    document = estimate_document(answer)["policies"][name]
    depth = int(answer.work.depth)
    grid = wmtp_sim.open_grid([8192], [depth], [4032], [1])
    axes = dict(zip(("context", "depth", "window", "batch"), grid, strict=True))
    table = CostTable(wmtp_sim.estimate(model, "h200", **axes, **sizes))
    page = breakeven_document(table, start := opening(table, {"depth": depth}, **stated))
    assert np.ravel(page["costs"][name]["step_s"])[0] == pytest.approx(document["step_s"], rel=1e-12)
    if stated and document["accept_length"] is not None:
        opened = float(start.lengths(table, name).ravel()[0])
        assert opened == pytest.approx(document["accept_length"], rel=1e-6)


@pytest.mark.parametrize(
    "fields",
    [
        {"verify": {"tiers": [], "rule": "tiered"}},
        {"verify": {"tiers": [{"kept": 0.5}], "rule": "tiered"}},
        {"proposal": {"kind": "tree", "widths": [4, 4], "nodes": 100}},
        {"proposal": {"kind": "tree", "widths": [4, 4], "depth": 9}},
        {"proposal": {"nodes": 2, "depth": 5}},
        {"acceptance": {"rank": [0.6, 0.9]}},
        {"cache": {"held": "nothing"}},
        {"cache": {"held": "attended", "wide": "all", "share": 0}},
        {"network": {"of": "target"}},
        {"network": {"hidden": 512}},
        {"network": {"of": "own", "mixers": []}},
        {"network": {"of": "own", "attention": {"q_heads": 3, "kv_heads": 2, "head_dim": 64}}},
        {"network": {"of": "own", "heads": 4}},
        {"drafters": []},
    ],
    ids=str,
)
def test_a_system_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        system(**fields)


def test_a_systems_depth_is_its_own_whatever_its_place() -> None:
    first, second = (
        {name: float(result.depth) for name, result in asked(*order, context=8192).policies.items()}
        for order in ((block(), system("chain")), (system("chain"), block()))
    )
    assert first == second == {"tested": 15, "chain": 3}
    from wmtp_sim.render.document import estimate_document

    told = estimate_document(asked(system("chain"), block(), context=8192))["policies"]
    assert (told["tested"]["drafted_tokens"], "drafted_tokens" in told["chain"]) == (15, False)


def test_an_accept_length_stated_for_a_system_is_final() -> None:
    relaxed = system("relaxed", verify={"rule": "relaxed", "shift": 0.2})
    found = asked(relaxed, system("exact"), depth=3, accept_length={"relaxed": 3.0, "exact": 3.0})
    assert {name: float(result.accept_length) for name, result in found.policies.items()} == {  # type: ignore[arg-type]
        "relaxed": 3.0,
        "exact": 3.0,
    }


def test_no_more_is_accepted_than_is_verified() -> None:
    shortened = block(verify={"rows": 11.0})
    assert float(asked(shortened, accept_length=10.5).policies["tested"].most) == 11
    with pytest.raises(wmtp_sim.InputError, match="exceeds 11"):
        asked(shortened, accept_length=14.0)


def test_an_idle_step_runs_the_wide_pass_alone_and_only_where_there_is_one() -> None:
    chain = asked(system(), depth=3, engine="sglang")
    assert float(chain.idle.step_s) > float(chain.base.step_s)  # type: ignore[union-attr]
    assert float(asked(system(**SELF), depth=3, engine="sglang").idle.step_s) == float(chain.base.step_s)  # type: ignore[union-attr]


def test_drafts_by_the_targets_own_weights_cross_its_link_too() -> None:
    offload = {"offload": {"link_bytes_per_s": 25e9, "weights": 1.0}}
    found = asked(system(**(SELF | {"generation": offload})), depth=3)
    assert float(found.steps["tested"].seconds) == pytest.approx(4 * float(found.base.step_s), rel=0.02)
