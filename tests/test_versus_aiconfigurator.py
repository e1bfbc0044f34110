"""The side-by-side with aiconfigurator: what its file says, how errors are taken, and that ours are computed."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

import wmtp_sim
from tests import versus_aiconfigurator as versus

DOCUMENT = versus.recorded()
ENTRIES = DOCUMENT["rows"]
#: Their name of each GPU that the rows use.
SYSTEMS = {"b200": "b200_sxm", "h200": "h200_sxm"}
each_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["id"])


def calls() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(entry, entry["theirs"]["call"]) for entry in ENTRIES if "call" in entry["theirs"]]


def answers(entry: dict[str, Any]) -> list[dict[str, Any]]:
    theirs = entry["theirs"]
    return [theirs, *theirs.get("elsewhere", [])] if "call" in theirs else []


def test_the_file_says_whose_the_estimates_are() -> None:
    attribution = DOCUMENT["attribution"]
    assert attribution["licence"] == "Apache-2.0"
    assert set(attribution["versions"]) == set(versus.PACKAGES)
    assert attribution["recorded"]
    assert {"measured_ms", "step_ms", "context"} <= set(DOCUMENT["units"])


def test_a_row_appears_once_and_is_either_compared_or_left_out_with_a_reason() -> None:
    names = [entry["id"] for entry in ENTRIES] + [entry["id"] for entry in DOCUMENT["left_out"]]
    assert len(names) == len(set(names))
    assert all(entry["why"] for entry in DOCUMENT["left_out"])


@each_entry
def test_a_row_states_its_source_and_a_measured_step(entry: dict[str, Any]) -> None:
    assert entry["source"]
    assert entry["how"]
    assert 5 < entry["measured_ms"] < 200
    assert 1 <= entry["accept_length"] <= entry["ours"]["depth"] + 1


@pytest.mark.parametrize(("entry", "call"), calls(), ids=lambda found: found.get("id", ""))
def test_both_tools_are_asked_the_same(entry: dict[str, Any], call: dict[str, Any]) -> None:
    ours = entry["ours"]
    assert call["mode"] == "static_gen"
    assert call["system_name"] == SYSTEMS[ours["gpu"]]
    assert (call["batch_size"], call["nextn"], call["tp_size"]) == (ours["batch"], ours["depth"], ours.get("tp", 1))
    assert call["moe_tp_size"] * call["moe_ep_size"] == call["tp_size"]
    assert 1 + call["nextn_accepted"] == pytest.approx(entry["accept_length"])
    middle = call["isl"] + call["osl"] / 2
    assert ours["context"] == pytest.approx(middle, abs=1)


@each_entry
def test_their_step_is_their_time_per_token_by_the_accept_length(entry: dict[str, Any]) -> None:
    for answer in answers(entry):
        assert answer["step_ms"] == pytest.approx(answer["tpot_ms"] * entry["accept_length"], abs=1e-3)
        assert answer["database"] in versus.DATABASES
        assert ("SILICON" in answer.get("refused", {})) == (answer["database"] == "HYBRID")
        assert all(reason and "/" not in reason for reason in answer.get("refused", {}).values())


@each_entry
def test_the_first_of_their_tables_is_the_one_of_the_row(entry: dict[str, Any]) -> None:
    tables = entry["theirs"].get("elsewhere", [])
    assert bool(tables) == (entry["set"] == "paper, native")
    for first in tables[:1]:
        assert not first["change"]
        assert first["step_ms"] == entry["theirs"]["step_ms"]


def test_they_read_the_cache_for_every_verified_row() -> None:
    """Verifying seven rows of Qwen costs them 1.7 to 5 plain steps at 1M, where one read serves all rows."""
    qwen = [entry for entry in ENTRIES if "elsewhere" in entry["theirs"] and entry["ours"]["model"].startswith("qwen")]
    assert len(qwen) == 2
    for entry in qwen:
        assert all(1.7 < answer["step_ms"] / answer["plain_ms"] < 5 for answer in entry["theirs"]["elsewhere"])
        assert all(answer["share"] > 0.75 for answer in entry["theirs"]["elsewhere"])


@each_entry
def test_what_they_cannot_express_is_the_window(entry: dict[str, Any]) -> None:
    windowed = entry["policy"] != "native"
    assert windowed == ("cannot" in entry["theirs"])
    assert windowed == ("window" in entry["ours"])


def test_the_papers_six_cells_are_all_there() -> None:
    cells = {
        (entry["ours"]["model"], entry["policy"])
        for entry in ENTRIES
        if entry["ours"]["context"] == 1_040_000 and entry["ours"]["depth"] == 6
    }
    assert len(cells) == 6
    assert {policy for _, policy in cells} == {"native", "ring"}


@pytest.mark.parametrize(("predicted", "measured", "expected"), [(15, 10, 0.5), (5, 10, -0.5), (10, 10, 0.0)])
def test_an_error_is_relative_to_what_was_measured(predicted: float, measured: float, expected: float) -> None:
    assert versus.error(predicted, measured) == expected


def test_a_set_is_summed_up_by_mean_absolute_errors_over_the_rows_that_a_tool_answers() -> None:
    entry = {"set": "a"}
    found = [versus.Row(entry, 10.0, 12.0, 5.0), versus.Row(entry, 10.0, 6.0, None)]
    _, line = versus.summary(found)
    assert line.split() == ["a", "2", "30%", "50%", "-40%", "-50%"]


@each_entry
def test_ours_is_an_input_and_holds_no_result(entry: dict[str, Any]) -> None:
    known = {"model", "gpu", "context", "depth", "batch", "engine", "tp", "kv", "window", "sink", "formats"}
    assert set(entry["ours"]) <= known | {"weights", "draft_weights", "expert_parallel"}


def test_ours_follows_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of ours is what `wmtp_sim.estimate` says now: asked about twice the batch, it changes with it."""
    plain = wmtp_sim.estimate
    before = [row.ours for row in versus.rows()]

    def doubled(*names: Any, batch: int, **more: Any) -> Any:
        return plain(*names, batch=2 * batch, **more)

    monkeypatch.setattr(wmtp_sim, "estimate", doubled)
    assert all(now.ours > then for now, then in zip(versus.rows(), before, strict=True))


def test_formats_by_group_replace_the_checkpoints() -> None:
    entry = next(entry for entry in ENTRIES if "formats" in entry["ours"])
    as_shipped = entry | {"ours": {name: value for name, value in entry["ours"].items() if name != "formats"}}
    assert versus.our_step(entry) != versus.our_step(as_shipped)


def test_the_table_has_a_line_for_each_row_and_a_dash_where_they_cannot() -> None:
    lines = list(versus.table(versus.rows()))
    assert len(lines) == 1 + len(ENTRIES)
    for entry, line in zip(ENTRIES, lines[1:], strict=True):
        assert line.startswith(entry["id"])
        assert (line.split()[-2:] == ["-", "-"]) == ("cannot" in entry["theirs"])


def test_recording_without_their_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = versus.RECORDED.read_bytes()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert versus.main(["--record"]) == 2
    printed = capsys.readouterr()
    assert "pip install aiconfigurator==0.12.0" in printed.err
    assert not printed.out
    assert versus.RECORDED.read_bytes() == before


def test_recorded_messages_hold_no_paths() -> None:
    assert versus._without_paths("no table at /home/a/b.parquet; try") == "no table try"


def test_the_largest_operator_is_the_one_that_takes_most() -> None:
    assert versus.largest_operator({"a": 1.0, "b": 3.0}) == {"largest_operator": "b", "share": 0.75}
