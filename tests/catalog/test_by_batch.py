"""Depths by batch in the engines' own syntax, read again by what the engines do with them.

The two readers below do what the releases' own code does, written anew from it:

* vLLM 0.26.0 and 0.33.0: ``v1/spec_decode/dynamic/utils.py``, the same file in both (ranges of whole numbers of at
  least 1, the first from 1, none overlapping, depths of at least 0; a gap and the tail keep the depth before; no depth
  is above ``num_speculative_tokens``).
* SGLang 0.5.23 and 0.5.13: ``speculative/adaptive_spec_params.py`` (keys that are digits are slots; ``candidate_steps``
  is a list of whole numbers of at least 0, in 0.5.13 of at least 1; a batch has the largest slot that is not above it,
  else the first) and ``arg_groups/speculative_hook.py`` (``--speculative-num-steps`` must be one of the steps).
"""

from __future__ import annotations

import bisect
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmtp_sim.catalog.by_batch import DepthsByBatch, in_a_file
from wmtp_sim.catalog.commands import read_command
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.flags import load_grammar, read_line, vocabulary
from wmtp_sim.catalog.launch import launch_line
from wmtp_sim.errors import InputError
from wmtp_sim.spec.deployment import ServerDeployment

SGLANG, VLLM = ("sglang@0.5.23", "sglang@26.06"), ("vllm@0.33", "vllm@0.26")


def vllm_lookup(config: dict[str, Any], largest: int) -> list[int]:
    """The depth at batches 1 to ``largest``."""
    schedule, most = config["num_speculative_tokens_per_batch_size"], config["num_speculative_tokens"]
    assert isinstance(schedule, list)
    assert schedule
    assert most > 0
    end = 0
    for entry in sorted(schedule):
        first, last, depth = entry
        assert all(type(number) is int for number in entry)
        assert 0 < first <= last
        assert depth >= 0
        assert first > end
        end = last
    assert min(schedule)[0] == 1
    found, depth = [], 0
    for batch in range(1, largest + 1):
        depth = next((d for first, last, d in schedule if first <= batch <= last), depth)
        found.append(min(depth, most))
    return found


def sglang_lookup(config: dict[str, Any], steps: int, largest: int, least: int) -> list[int]:
    """The depth at batches 1 to ``largest``; slots with one depth never leave it, whatever is accepted."""
    slots = {int(key): entry["candidate_steps"] for key, entry in config.items() if key.isdigit()}
    assert slots
    for candidates in slots.values():
        assert isinstance(candidates, list)
        assert candidates
        assert all(type(step) is int and step >= least for step in candidates)
        assert len(candidates) == 1
    assert steps in {step for candidates in slots.values() for step in candidates}
    keys = sorted(slots)
    return [slots[keys[max(0, bisect.bisect_right(keys, batch) - 1)]][0] for batch in range(1, largest + 1)]


def served(engine: str, depths: DepthsByBatch) -> tuple[str, str]:
    """The line and the file."""
    stated = ServerDeployment(model="m", engine=engine, depth=depths.deepest)
    line = launch_line(stated, by_batch=depths)
    return line.text, in_a_file(load_engine(engine), depths, line.words)


@st.composite
def ranges(draw: st.DrawFn, least: int = 0) -> tuple[tuple[int, int, int], ...]:
    """From batch 1 without gaps, one depth at least above 0."""
    ends = sorted(draw(st.sets(st.integers(1, 300), min_size=1, max_size=6)))
    depths = draw(st.lists(st.integers(least, 16), min_size=len(ends), max_size=len(ends)).filter(any))
    return tuple((first + 1, last, d) for first, last, d in zip([0, *ends], ends, depths, strict=False))


def meant(depths: tuple[tuple[int, int, int], ...], largest: int) -> list[int]:
    return [next((d for _, last, d in depths if batch <= last), depths[-1][2]) for batch in range(1, largest + 1)]


@pytest.mark.parametrize("engine", VLLM)
@given(ranges())
def test_vllm_looks_up_what_was_meant(engine: str, stated: tuple[tuple[int, int, int], ...]) -> None:
    depths = DepthsByBatch(stated, "unused.json")
    line, content = served(engine, depths)
    read = read_command(line, engine)
    assert (read.line.unknown, read.line.refused) == ([], [])
    assert read.deployment.depth == depths.deepest
    config = read.line.value("--speculative-config")
    assert config == json.loads(content)
    assert vllm_lookup(config, 320) == meant(stated, 320)


@pytest.mark.parametrize("engine", SGLANG)
@given(st.data())
def test_sglang_looks_up_what_was_meant(engine: str, data: st.DataObject) -> None:
    least = 0 if engine == "sglang@0.5.23" else 1
    stated = data.draw(ranges(least))
    depths = DepthsByBatch(stated, "a folder/depths.json")
    line, content = served(engine, depths)
    read = read_command(line, engine)
    assert (read.line.unknown, read.line.refused) == ([], [])
    assert read.line.values["--speculative-adaptive"] is True
    assert read.line.values["--speculative-adaptive-config"] == "a folder/depths.json"
    assert (read.deployment.topk, read.deployment.rows) == (1, depths.deepest + 1)
    assert sglang_lookup(json.loads(content), read.deployment.depth, 320, least) == meant(stated, 320)


def test_a_release_that_refuses_depth_0_is_not_given_one() -> None:
    with pytest.raises(InputError, match=r"sglang 26\.06 takes no depth 0 by batch, which is best at 5 to 9"):
        served("sglang@26.06", DepthsByBatch(((1, 4, 3), (5, 9, 0)), "d.json"))


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_grammar_knows_what_it_names_in_every_release(engine: str) -> None:
    form = load_grammar(engine).by_batch
    assert form is not None
    for release in load_grammar(engine).releases:
        assert vocabulary(f"{engine}@{release}").flag_takes(form.flag)
    for name in form.unless:
        assert name in load_grammar(engine).flags


def test_vllm_reads_the_keys_of_an_object_as_written() -> None:
    read = read_line(vocabulary("vllm"), ["--speculative-config.num_speculative_tokens_per_batch_size", "[[1, 4, 2]]"])
    assert read.value("--speculative-config.num_speculative_tokens_per_batch_size") == [[1, 4, 2]]
    assert read.refused == []


# --- the engines' own code, where it is installed ----------------------------------------------------------------


@given(ranges())
def test_vllms_own_lookup(stated: tuple[tuple[int, int, int], ...]) -> None:
    theirs = pytest.importorskip("vllm.v1.spec_decode.dynamic.utils")
    depths = DepthsByBatch(stated, "unused.json")
    config = json.loads(served("vllm", depths)[1])
    found = theirs.build_dynamic_sd_schedule_lookup(
        config["num_speculative_tokens_per_batch_size"], 320, config["num_speculative_tokens"]
    )
    assert found[1:] == meant(stated, 320)


def test_a_replica_looks_up_its_own_batch() -> None:
    """Of 64 sequences on four replicas each has 16: what is best at 1 to 8, 9 to 16 and more of all."""
    whole = DepthsByBatch(((1, 8, 5), (9, 16, 3), (17, 64, 1)), "")
    assert whole.of_a_group(4).ranges == ((1, 2, 5), (3, 4, 3), (5, 16, 1))
    assert whole.of_a_group(1).ranges == whole.ranges
    assert whole.of_a_group(64).ranges == ((1, 1, 1),)
