"""Engine definitions: names and versions, what one takes from another, changes from the command line, and sources."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from wmtp_sim.catalog import engines
from wmtp_sim.catalog.engines import engine_names, load_engine
from wmtp_sim.errors import InputError
from wmtp_sim.render.catalog import engine_values
from wmtp_sim.spec.engine import GRADES


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("vllm", "0.33.0"),
        ("vllm@0.26", "0.26.0"),
        ("VLLM@0.26", "0.26.0"),
        ("vllm@pre-split", "pre-split"),
        ("sglang", "0.5.23"),
        ("sglang@26.06", "26.06"),
        ("sglang@pre-tiling", "pre-tiling"),
        ("trtllm", "1.3"),
        ("llama.cpp", "b10451"),
        ("ideal", "1"),
    ],
)
def test_a_name_alone_is_the_newest_version(name: str, version: str) -> None:
    """A calendar version (26.06) is a container's and no newer release."""
    assert load_engine(name).version == version


@pytest.mark.parametrize("name", engine_names())
def test_every_value_has_a_source_with_a_grade(name: str) -> None:
    values = engine_values(load_engine(name))
    assert values
    for path, _, source in values:
        assert source.split(":")[0].split(" ")[0] in set(GRADES) - {"stated"}, path


@pytest.mark.parametrize("name", engine_names())
def test_what_is_shown_can_be_typed(name: str) -> None:
    """Every value is there as a file or --engine-set takes it, and changes nothing when it is stated.

    But nobody measured an engine with stated values.
    """
    engine = load_engine(name)
    values = {path: value for path, value, _ in engine_values(engine)}
    assert {"spread", "pad_draft_rows", "host.eager", "state.resident_snapshots", "ideal"} <= values.keys()
    changes = [f"{path}={value}" for path, value in values.items() if value != "none"]
    again = load_engine(name, changes)
    apart = {"sources", "version", "measured"}
    assert again.model_dump(exclude=apart) == engine.model_dump(exclude=apart)
    assert again.measured == ()
    tomllib.loads("\n".join(f"{json.dumps(path)} = {value}" for path, value in values.items() if value != "none"))


def test_values_as_toml_spells_them() -> None:
    shown = {path: value for path, value, _ in engine_values(load_engine("vllm@0.26"))}
    assert (shown["pad_draft_rows"], shown["host.eager"], shown["weight_slowdown.int4"]) == ("true", "[]", "1.15")
    assert shown["concurrent_groups"] == '["shared_expert"]'
    assert shown["attention.Hopper.base"] == '"FLASH_ATTN"'
    assert shown["graph_batches"].startswith("[1, 2, 4, 8, ")
    assert shown["row_cost"] == "{}"
    serial = {path: value for path, value, _ in engine_values(load_engine("sglang@26.06"))}
    assert serial["index.0.tokens_per_block"] == "none"


def test_a_file_that_extends_nothing_states_its_values(tmp_path: Path) -> None:
    shipped = Path(engines.__file__).parents[1] / "data" / "engines" / "bench.toml"
    path = tmp_path / "mine.toml"
    path.write_text(shipped.read_text().partition("[sources]")[0])
    mine = load_engine(str(path))
    assert mine.source_of("host.step_s") == mine.source_of("spread") == "stated in mine.toml"
    assert mine.standing == "stated"


def test_the_nearest_source_counts() -> None:
    engine = load_engine("sglang")
    assert engine.source_of("attention_kernels.flashinfer.verify_mask_bytes").startswith("code: (not timed)")
    assert engine.source_of("attention_kernels.flashinfer.row_tile") == "code: planned splits fill the GPU"
    assert engine.source_of("elementwise.mla") == engine.sources["elementwise"]
    assert engine.source_of("pad_draft_rows") == engine.sources[""]


def test_a_definition_takes_what_it_does_not_state_from_another() -> None:
    newer, older = load_engine("sglang@0.5.23"), load_engine("sglang@26.06")
    assert older.elementwise == newer.elementwise
    assert older.state == newer.state
    assert {build.tokens_per_block for build in older.index} == {None}
    assert older.attention_on("Hopper").base == "flashinfer"
    assert newer.attention_on("Hopper").base == "fa3"
    assert older.attention_on("CDNA3") == newer.attention_on("CDNA3")
    assert older.source_of("elementwise.moe") == newer.source_of("elementwise.moe")


def test_a_file_of_ones_own_may_extend_a_shipped_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('schema = "wmtp-engine/2"\nextends = "vllm"\nversion = "mine"\n[host]\nstep_s = 0.5\n')
    mine, shipped = load_engine(str(path)), load_engine("vllm")
    assert (mine.version, mine.host.step_s, mine.host.base_s) == ("mine", 0.5, shipped.host.base_s)
    assert mine.attention_kernels == shipped.attention_kernels
    assert mine.source_of("host.step_s") == "stated in mine.toml"
    assert mine.source_of("host.base_s") == shipped.source_of("host.base_s") != ""
    path.write_text('schema = "wmtp-engine/2"\nextends = "vllm"\n[sources]\nhost = 3\n')
    with pytest.raises(InputError, match="sources"):
        load_engine(str(path))
    path.write_text('schema = "wmtp-engine/2"\nextends = "vlm"\n')
    with pytest.raises(InputError, match="extends: 'vlm' is no shipped engine; did you mean vllm"):
        load_engine(str(path))


def test_changes() -> None:
    changed = load_engine("vllm@0.26", ["attention_kernels.fa3.max_splits=128", "host.step_s = 0.001", "spread=2"])
    assert (changed.attention_kernels["fa3"].max_splits, changed.host.step_s, changed.spread) == (128, 0.001, 2)
    assert changed.source_of("attention_kernels.fa3.max_splits") == "stated with --engine-set"
    assert changed.version == "0.26.0 with attention_kernels.fa3.max_splits=128, host.step_s = 0.001, spread=2"
    assert load_engine("vllm@0.26").attention_kernels["fa3"].max_splits == 32
    every = load_engine("sglang", ["attention.max_splits=64"])
    assert {kernel.max_splits for kernel in every.attention_kernels.values()} == {64}
    assert every.source_of("attention_kernels.sglang_triton.max_splits") == "stated with --engine-set"
    triton = load_engine("sglang", ["attention.Hopper.draft=sglang_triton"])
    assert triton.attention_on("Hopper").draft == "sglang_triton"
    slower = load_engine("sglang@26.06", ["index.3.turn_slowdown=2"])
    assert [build.turn_slowdown for build in slower.index][:4] == [3.3, 3.3, 3.3, 2]
    quoted = load_engine("sglang", ['attention."Blackwell Ultra".draft="sglang_triton"'])
    assert quoted.attention_on("Blackwell Ultra").draft == "sglang_triton"


def test_slot_lists_are_those_of_the_architecture_or_else_of_all_others() -> None:
    engine, measured = load_engine("sglang@26.06"), load_engine("sglang@pre-tiling")
    for phase in ("base", "verify", "extend", "draft"):
        assert engine.index_on("Hopper", phase) == engine.index_on("Ada", phase) == measured.index_on("Hopper", phase)
        (fitted,) = engine.index_on("Blackwell", phase)
        assert fitted.turn_slowdown == {"draft": 2.1}.get(phase, 3.3)
        assert (fitted,) == engine.index_on("Blackwell Ultra", phase)


@pytest.mark.parametrize("name", ["sglang@26.06", "sglang@pre-tiling"])
def test_what_code_says_of_slot_lists_is_not_shown_as_fitted_or_measured(name: str) -> None:
    engine = load_engine(name)
    for i, build in enumerate(engine.index):
        for value in ("phase", "tokens_per_turn", "per_depth"):
            assert engine.source_of(f"index.{i}.{value}").startswith("code"), (i, value)
        for value in ("turn_slowdown", "crowded_slowdown", "crowded_bytes")[: 3 if build.per_depth else 1]:
            assert engine.source_of(f"index.{i}.{value}").startswith(("fitted", "measured")), (i, value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("host.step_s", "is no change"),
        ("=3", "is no change"),
        ("nope=3", "is not a value of an engine"),
        ("host.step=3", "host.step: is not a known field"),
        ("host.step_s=-3", "greater than or equal to 0"),
        ("host.step_s=fast", "valid number"),
        ("host.step_s.more=3", "goes through 'step_s', which is a value"),
        ("index.9.phase=draft", "there is no entry '9'"),
        ("index.0=draft", "is not a value of an engine"),
        ("attention.Hopper.draft=fa9", "which neither attention_backends nor attention_kernels defines"),
        ("weight_slowdown.int5=2", "is no weight format"),
        ("graph_batches=[4, 2]", "do not ascend"),
        ("sources.spread=guess", "begins with none of"),
        ("spread=" + "9" * 2000, "more than 1,000 characters"),
    ],
)
def test_changes_that_fit_nowhere(change: str, says: str) -> None:
    with pytest.raises(InputError, match="--engine-set") as caught:
        load_engine("sglang", [change])
    assert says in str(caught.value)


def test_further_rows_of_packed_weights_cost_by_architecture() -> None:
    engine = load_engine("llama.cpp")
    assert engine.further_row("Apple GPU", "q4_k") == 0.79
    assert engine.further_row("Ampere", "q8_0") == 0.2
    assert engine.further_row("Ampere", "bf16") == engine.further_row("Hopper", "fp8") == 0.0
    assert load_engine("vllm").further_row("Ampere", "int4") == 0.0


@pytest.mark.parametrize(
    ("name", "changes", "standing"),
    [
        ("bench", [], "as defined"),
        ("bench", ["host.step_s=0.001"], "stated"),
        ("sglang@pre-tiling", [], "judged"),
        ("sglang", ["spread=1"], "stated"),
        ("sglang", ["spread=2"], "stated"),
    ],
)
def test_a_stated_value_makes_no_definition_surer(name: str, changes: list[str], standing: str) -> None:
    assert load_engine(name, changes).standing == standing


def test_batches_are_padded_to_the_next_graph() -> None:
    engine = load_engine("vllm")
    np.testing.assert_array_equal(engine.slots_for([1, 3, 5, 8, 9, 256, 257]), [1, 4, 8, 8, 16, 256, 257])
    assert load_engine("bench").slots_for(5) == 5
