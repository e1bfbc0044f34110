"""Public measurements: what their figures are in seconds, and what their names mean in this catalogue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.field import FieldRow, read_field, read_rows
from wmtp_sim.catalog.field_mapping import Reason, deployment, read_mapping
from wmtp_sim.errors import InputError
from wmtp_sim.spec.precision import FORMATS


def row(**figures: Any) -> FieldRow:
    return FieldRow.model_validate({"id": "x", "source": "test", **figures})


def shipped(name: str) -> FieldRow:
    (found,) = [row for row in read_field() if row.id == name]
    return found


# --- units ---------------------------------------------------------------------------------------------------------


def test_aggregate_rates_are_of_all_sequences() -> None:
    """8 sequences at 400 tok/s take 20 ms a token each; 600 tok/s with 2.5 tokens a step are 33.3 ms a step."""
    found = row(batch=8, tps_base=400, tps_spec=600, tps_scope="aggregate", accept_length=2.5)
    assert found.base_s == pytest.approx(0.020)
    assert found.spec_token_s == pytest.approx(8 / 600)
    assert found.step_s == pytest.approx(2.5 * 8 / 600)
    assert found.measured_speedup == pytest.approx(1.5)


@pytest.mark.parametrize("scope", ["single stream", "per stream", "per user"])
def test_other_rates_are_of_one_sequence(scope: str) -> None:
    found = row(batch=8, tps_base=50, tps_spec=100, tps_scope=scope, accept_length=3)
    assert (found.base_s, found.step_s) == (pytest.approx(0.020), pytest.approx(0.030))


def test_a_rate_without_a_scope_is_one_sequence_s_at_batch_1_only() -> None:
    assert row(batch=1, tps_base=50).base_s == pytest.approx(0.020)
    assert row(batch=2, tps_base=50).base_s is None
    assert row(tps_base=50, tps_scope="aggregate").base_s is None


def test_stated_steps_come_before_rates() -> None:
    """Rates over a whole request hold its prefill."""
    found = row(batch=1, ms_per_step_spec=12, tpot_ms_spec=5, tps_spec=150, accept_length=3, tps_scope="aggregate")
    assert found.step_s == pytest.approx(0.012)
    assert found.spec_token_s == pytest.approx(0.005)
    assert row(tpot_ms_spec=5, accept_length=3).step_s == pytest.approx(0.015)
    assert row(ms_per_step_spec=12, accept_length=3).spec_token_s == pytest.approx(0.004)


def test_no_accept_length_no_step() -> None:
    found = row(batch=1, tps_spec=100, tps_base=50, tps_scope="single stream")
    assert found.step_s is None
    assert found.measured_speedup == pytest.approx(2.0)


def test_spoiled_figures_are_not_compared_but_the_base_step_is() -> None:
    found = row(batch=1, tps_spec=100, tps_base=50, tps_scope="per stream", accept_length=2, spoiled="queued")
    assert (found.step_s, found.measured_speedup) == (None, None)
    assert found.base_s == pytest.approx(0.020)


# --- the shipped files ---------------------------------------------------------------------------------------------


def test_every_shipped_row_has_a_name_and_a_source() -> None:
    rows = read_field()
    assert len(rows) == len({row.id for row in rows}) >= 490
    assert all(row.source for row in rows)


def test_stated_steps_and_rates_of_shipped_rows_agree() -> None:
    """Where a source states a step, an accept length and a rate of one sequence or of all, they are one fact (2 %:
    rounding, means of ratios). Rates of whole requests hold prefill: those rows state the time per token instead."""
    for row in read_field():
        if row.ms_per_step_spec and row.accept_length and row.tps_spec and row.tpot_ms_spec is None and row.batch:
            rate = row.tps_spec / (row.batch if row.tps_scope == "aggregate" else 1)
            assert row.accept_length / rate * 1e3 == pytest.approx(row.ms_per_step_spec, rel=0.02), row.id
        if row.ms_per_step_base and row.tps_base and row.batch:
            rate = row.tps_base / (row.batch if row.tps_scope == "aggregate" else 1)
            assert 1e3 / rate == pytest.approx(row.ms_per_step_base, rel=0.02), row.id
        if row.speedup and row.tps_base and row.tps_spec and not row.spoiled:
            assert row.tps_spec / row.tps_base == pytest.approx(row.speedup, rel=0.02), row.id


def test_a_row_in_this_catalogue_s_words() -> None:
    found, reason = deployment(shipped("wmtp-004"), read_mapping())
    assert found is not None
    assert reason is None
    assert (found.model.name, found.gpu, found.engine) == ("qwen3.5-122b-a10b-nvfp4", "b200", "sglang@26.06")
    assert (found.policy, found.window, found.sink, found.depth) == ("ring", 4032, 64, 6)
    assert (found.kv, found.tp, found.weights) == ("bf16", 1, None)


def test_gguf_files_store_the_draft_layer_as_the_rest() -> None:
    found, reason = deployment(shipped("q38-v100-003"), read_mapping())
    assert found is not None
    assert reason is None
    assert (found.weights, found.head_weights, found.draft_weights) == ("q4_k", "q6_k", "q4_k")
    assert (found.engine, found.gpu, found.model.name) == ("llama.cpp", "v100-32gb", "qwen3.6-27b")


def test_rows_that_a_definition_was_fitted_on_are_not_predicted() -> None:
    """What the engine files call fitted, and where from."""
    for name, source, rows in (
        ("sglang@26.06", "arXiv 2607.21535", ("wmtp-001", "wmtp-002")),
        ("llama.cpp", "sudoingX/qwen38-mtp sweep", tuple(f"q38-5090-00{i}" for i in range(1, 7))),
    ):
        fitted = [text for text in load_engine(name).sources.values() if text.startswith("fitted")]
        assert any(source in text for text in fitted)
        for row in rows:
            found, reason = deployment(shipped(row), read_mapping())
            assert found is None
            assert reason.kind == "an engine definition was fitted on it"
    assert len(read_mapping().fitted_on) == 8


def test_every_format_of_the_mapping_ships() -> None:
    """Engines and GPUs may be missing from a release; a format that is would be a slip of the mapping."""
    for stated in read_mapping().weights.values():
        assert {stated.weights, stated.head_weights, stated.draft_weights} <= {*FORMATS, None}


@pytest.mark.parametrize(
    ("stated", "tp", "groups"),
    [
        (None, 1, 1),
        ("TP4", 4, 1),
        ("TP8/EP8", 8, 8),
        ("TP8 attention, TP4EP2 / mixed MoE", 8, 2),
        ("TP4 EP DCP1", 4, 4),
        ("tensor split", 1, 1),
    ],
)
def test_experts_lie_on_the_ranks_as_stated(stated: str | None, tp: int, groups: int) -> None:
    row = shipped("rtx6k-q38-003").model_copy(update={"parallelism": stated, "n_gpu": 1})
    found, _ = deployment(row, read_mapping())
    assert found is not None
    assert (found.tp, found.expert_groups) == (tp, groups)


def test_a_prefix_that_all_share_is_streamed_once() -> None:
    row, mapping = shipped("rtx6k-nv-018"), read_mapping()
    assert mapping.caches_of(row) == ("bf16", "fp8")
    assert deployment(row, mapping)[1] == Reason("cache format not stated", "auto (bf16 default; unverified)")
    found, _ = deployment(row, mapping.taking("fp8"))
    assert found is not None
    assert (found.batch, found.context, found.tp, found.kv) == (2, 32768 // 2, 4, "fp8")
    assert found.model.precision.target.expert == "nvfp4"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"engine": "imp"}, "no engine definition"),
        ({"engine": None}, "engine not stated"),
        ({"gpu": "Apple Silicon"}, "GPU not in the catalogue"),
        ({"gpu": None}, "GPU not stated"),
        ({"model": "Inkling 1T"}, "model not in the catalogue"),
        ({"model": None}, "model not stated"),
        ({"context": None}, "context not stated"),
        ({"context_allocated": True}, "context not stated"),
        ({"batch": None}, "batch not stated"),
        ({"weight_dtype": None}, "weight format not stated"),
        ({"weight_dtype": "UD-IQ2_XXS"}, "weight format not in the catalogue"),
        ({"kv_dtype": "q4_0"}, "cache format not in the catalogue"),
        ({"parallelism": "layer split"}, "parallelism not priced"),
        ({"parallelism": "TP16 DP2", "n_gpu": 16}, "parallelism not priced"),
        ({"parallelism": "TP4 EP DCP4", "n_gpu": 4}, "parallelism not priced"),
        ({"parallelism": "tensor split", "n_gpu": None}, "parallelism not priced"),
        ({"parallelism": None, "n_gpu": None}, "number of GPUs not stated"),
        ({"parallelism": None, "n_gpu": 2}, "parallelism not stated"),
    ],
)
def test_what_has_no_counterpart_says_so(change: dict[str, Any], reason: str) -> None:
    base = shipped("rtx6k-q38-003")
    assert deployment(base, read_mapping())[1] is None
    found, why = deployment(base.model_copy(update=change), read_mapping())
    assert found is None
    assert why is not None
    assert why.kind == reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"method": "DFlash2"}, "no such drafter in the catalogue"),
        ({"depth": None}, "depth not stated"),
        ({"method": "Windowed-MTP draft (sink+window, ring pool)"}, "window not stated"),
    ],
)
def test_without_a_drafter_the_base_step_is_still_priced(change: dict[str, Any], reason: str) -> None:
    found, why = deployment(shipped("rtx6k-q38-003").model_copy(update=change), read_mapping())
    assert found is not None
    assert found.depth is None
    assert why is not None
    assert why.kind == reason


def test_a_nearest_cache_format_stands_in_while_the_context_is_short() -> None:
    short = shipped("rtx6k-q38-003").model_copy(update={"kv_dtype": "q4_0", "context": 50})
    found, why = deployment(short, read_mapping())
    assert why is None
    assert found is not None
    assert found.kv == "fp8"


def test_a_stated_attention_backend_serves_every_pass() -> None:
    """SGLang under Triton, in its own word."""
    row = shipped("rtx6k-sgl-001")
    found, _ = deployment(row, read_mapping())
    assert row.attention_backend == "triton"
    assert found is not None
    assert found.attention == "triton"
    unstated, _ = deployment(shipped("rtx6k-q38-003"), read_mapping())
    assert unstated is not None
    assert unstated.attention is None


def test_an_attention_backend_without_a_counterpart_is_not_priced() -> None:
    row = shipped("rtx6k-sgl-001").model_copy(update={"attention_backend": "wave"})
    assert deployment(row, read_mapping()) == (None, Reason("attention backend not in the catalogue", "wave"))


# --- foreign files -------------------------------------------------------------------------------------------------


def written(path: Path, rows: list[dict[str, Any]], schema: str = "wmtp-field/1") -> Path:
    file = path / "rows.json"
    file.write_text(json.dumps({"schema": schema, "rows": rows}))
    return file


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"id": "a", "source": "s", "typo": 1}], "a: typo: is not a known field"),
        ([{"id": "a", "source": "s", "tps_base": 0}], "a: tps_base"),
        ([{"id": "a", "source": "s", "accept_length": 0.5}], "a: accept_length"),
        ([{"id": "a"}], "a: source: is missing"),
        ([{"id": "a", "source": "s"}, {"id": "a", "source": "s"}], "'a' twice"),
    ],
)
def test_refuses_what_is_no_row(tmp_path: Path, rows: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(InputError) as error:
        read_rows(written(tmp_path, rows))
    assert problem in str(error.value)


def test_refuses_another_schema(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="this release reads 'wmtp-field/1'"):
        read_rows(written(tmp_path, [], schema="wmtp-field/9"))
