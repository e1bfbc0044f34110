"""One verdict: its range by brute force, its word by sign and evidence, and the same on every face."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wmtp_sim
from tests.step import test_sglang_steps as sglang
from wmtp_sim.catalog.engines import engine_names, load_engine
from wmtp_sim.decide.choice import INDIFFERENT
from wmtp_sim.decide.evidence import off_by, unmeasured
from wmtp_sim.decide.ratio import Range, ratio
from wmtp_sim.decide.verdict import WORDS, speedup, verdict_of, words
from wmtp_sim.machine.machine import NOTHING, Timing
from wmtp_sim.render.document import estimate_document
from wmtp_sim.render.recommend_document import recommend_document

MODEL = "qwen3.5-35b-a3b"
seconds = st.floats(1e-6, 1.0)
spreads = st.floats(1.0, 3.0)


def timing(middle: float, spread: float) -> Timing:
    return Timing(*(np.float64(x) for x in (middle, middle / spread, middle * spread, 0.0)))


classes = st.dictionaries(st.sampled_from("abcde"), st.builds(timing, seconds, spreads), min_size=1, max_size=5)


# --- the range of a ratio ----------------------------------------------------------------------------------------


@given(classes, classes)
def test_the_ends_are_those_of_every_combination(above: dict, below: dict) -> None:
    """Each class slow or fast in both times: the extremes over all 2^n combinations."""
    names = sorted(above.keys() | below.keys())
    found = ratio(above, below)
    every = []
    for ends in itertools.product(("low", "high"), repeat=len(names)):
        sums = [
            sum(float(getattr(side.get(name, NOTHING), end)) for name, end in zip(names, ends, strict=True))
            for side in (above, below)
        ]
        every.append(sums[0] / sums[1])
    assert float(found.low) == pytest.approx(min(every), rel=1e-9)
    assert float(found.high) == pytest.approx(max(every), rel=1e-9)
    assert found.low <= found.expected * (1 + 1e-12)
    assert found.expected <= found.high * (1 + 1e-12)


@given(classes)
def test_what_both_have_in_common_cancels(both: dict) -> None:
    found = ratio(both, both)
    assert (float(found.low), float(found.high)) == pytest.approx((1.0, 1.0))


def test_a_grid_is_its_points() -> None:
    slow = Timing(*(np.array(x) for x in ([1.0, 2.0], [0.5, 1.0], [2.0, 4.0], [0.0, 0.0])))
    plain = timing(3.0, 1.5)
    grid = ratio({"a": slow, "b": plain}, {"a": plain})
    for i in range(2):
        one = Timing(*(np.float64(each[i]) for each in (slow.seconds, slow.low, slow.high, slow.bound)))
        point = ratio({"a": one, "b": plain}, {"a": plain})
        assert (grid.low[i], grid.high[i]) == pytest.approx((float(point.low), float(point.high)))


# --- the word ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "expected", "high", "sure", "unsure"),
    [
        (1.1, 1.3, 1.5, "pays", "probably pays"),
        (0.9, 1.3, 1.5, "probably pays", "probably pays"),
        (0.9, 1.0 + INDIFFERENT / 2, 1.2, "even", "even"),
        (0.8, 0.9, 1.1, "probably loses", "probably loses"),
        (0.5, 0.7, 0.9, "loses", "probably loses"),
    ],
)
def test_words_follow_sign_range_and_evidence(low: float, expected: float, high: float, sure: str, unsure: str) -> None:
    gain = Range(*(np.asarray(x) for x in (low, expected, high)))
    assert WORDS[int(words(gain, True))] == sure
    assert WORDS[int(words(gain, False))] == unsure


def estimated(**more):
    return wmtp_sim.estimate(MODEL, more.pop("gpu", "h200"), **({"context": 2**20, "depth": 6} | more))


def test_the_word_turns_with_acceptance() -> None:
    said = [verdict_of(estimated(accept_length=length)).only_word for length in (1.05, 1.6, 1.71, 1.85, 4.5)]
    assert said == ["loses", "probably loses", "even", "probably pays", "pays"]


def test_what_the_release_lacks_decides_nothing() -> None:
    """vLLM has no draft window: where only a window would pay, speculation loses."""
    found = estimated(engine="vllm@0.26", accept_length=1.6)
    ring, native = (float(found.policies[p].speedup) for p in ("ring", "native"))
    assert ring > 1 > native
    assert verdict_of(found).only_policy == "native"
    assert verdict_of(found).only_word in ("loses", "probably loses")


def test_where_nothing_fits_there_is_no_verdict() -> None:
    found = verdict_of(estimated(batch=np.array([1, 64]), depth=3, accept_length=2.5))
    assert found.word.tolist() == [0, -1]
    assert found.policy.tolist() == [1, -1]
    assert np.isnan(found.gain.expected[1])


def test_depth_0_drafts_nothing() -> None:
    found = verdict_of(estimated(depth=np.array([0, 3]), alpha=0.7))
    assert found.word.tolist() == [-1, 0]


def test_a_stated_host_time_has_no_guessed_spread() -> None:
    found = estimated(engine=load_engine("sglang", ["host.step_s=0.0003", "host.base_s=0.0001"]), accept_length=4.5)
    for step in (found.base_step, found.steps["native"]):
        assert float(step.host.low) == float(step.host.high) == float(step.host.seconds) > 0
    plain = estimated(accept_length=4.5).steps["native"].host
    assert plain.low < plain.seconds < plain.high


# --- evidence ------------------------------------------------------------------------------------------------------


def test_what_was_measured_is_sure_and_nothing_else() -> None:
    here = {"accept_length": 4.5}
    assert unmeasured(estimated(**here)) == ()
    assert unmeasured(estimated(engine="vllm@0.26", **here)) == ("a step of vllm 0.26.0",)
    assert unmeasured(estimated(engine="vllm", **here)) == ("a step of vllm 0.33.0",)
    assert unmeasured(estimated(tp=2, **here)) == ()
    assert unmeasured(estimated(tp=4, **here)) == ("a step of sglang 0.5.23 over 4 GPUs",)
    assert unmeasured(estimated(drafter="eagle", **here)) == (
        "a step of sglang 0.5.23 with an EAGLE head, with layers of mlp",
    )
    assert any("H100" in each for each in unmeasured(estimated(gpu="h100-sxm", **here)))
    both = unmeasured(estimated(gpu="h100-sxm", tp=4, **here))[0]
    assert both == "a step of sglang 0.5.23 on NVIDIA H100 80GB HBM3 (SXM5), over 4 GPUs"
    assert "a kernel on NVIDIA GeForce RTX 3090" in unmeasured(estimated(gpu="rtx-3090", **here))


@pytest.mark.parametrize(
    ("more", "apart"),
    [
        ({"kv": "fp8"}, "with an fp8 cache"),
        ({"weights": "int4"}, "with int4"),
        ({"attention_backend": "flashinfer"}, "with attention on flashinfer"),
    ],
)
def test_other_formats_and_backends_were_not_measured(more: dict[str, str], apart: str) -> None:
    assert unmeasured(estimated(accept_length=4.5, **more)) == (f"a step of sglang 0.5.23 {apart}",)


def test_an_engine_with_stated_values_was_not_measured() -> None:
    assert load_engine("sglang", ["spread=1.2"]).measured == ()


def test_a_step_that_spans_hosts_is_never_sure() -> None:
    across = wmtp_sim.estimate("deepseek-v3", "h200", context=4096, depth=3, tp=16, alpha=0.9)
    assert "links between hosts, which are not priced either" in unmeasured(across)
    assert verdict_of(across).only_word != "pays"


@pytest.mark.parametrize("name", [name for name in engine_names() if load_engine(name).measured])
def test_every_evidence_has_a_source(name: str) -> None:
    engine = load_engine(name)
    assert engine.source_of("measured").startswith("measured:")
    assert all(1.0 < 1.0 + each.off <= 1.5 for each in engine.measured)


def test_an_engine_that_extends_another_is_not_measured_with_it() -> None:
    assert load_engine("sglang@26.06").measured == load_engine("sglang@pre-tiling").measured == ()
    assert load_engine("vllm@0.33").measured == load_engine("vllm@pre-split").measured == ()


def test_sglangs_measured_ratios_are_off_by_no_more_than_is_said() -> None:
    """Base step over speculative step, predicted over measured, on one H200."""
    rows = sglang.STEPS
    bases = [row for row in rows if not row["depth"]]
    off = []
    for row in (row for row in rows if row["depth"]):
        alike = (b for b in bases if b["batch"] == row["batch"] and abs(b["context"] - row["context"]) < 64)
        base = next(alike)
        predicted = float(sglang.predicted(base).seconds / sglang.predicted(row).seconds)
        off.append(abs(predicted / (base["median_ms"] / row["median_ms"]) - 1))
    assert len(off) == 10
    (one,) = (each for each in load_engine("sglang").measured if each.ranks == (1,))
    assert max(off) <= one.off <= max(off) + 0.02
    assert one.steps == len(rows)


def test_what_speaks_for_an_estimate_sets_the_width() -> None:
    assert off_by(estimated()) == pytest.approx(1.11)
    assert off_by(estimated(tp=2)) == pytest.approx(1.14)
    assert off_by(estimated(drafter="eagle")) == pytest.approx(load_engine("sglang").spread)


# --- the same on every face ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1.5, 1.75, 4.5])
@pytest.mark.parametrize("engine", ["sglang", "vllm", "vllm@0.26"])
def test_terminal_recommend_and_json_agree(engine: str, length: float) -> None:
    point = estimated(engine=engine, accept_length=length)
    verdict = verdict_of(point)
    document = json.loads(json.dumps(estimate_document(point)))["verdict"]
    assert document["word"] == verdict.only_word
    assert document["policy"] == verdict.only_policy
    assert document["speedup_interval"] == pytest.approx([float(verdict.gain.low), float(verdict.gain.high)])
    asked = {"context": 2**20, "depth": 6, "engine": engine, "accept_length": length, "at_depth": 6}
    chosen = wmtp_sim.recommend(MODEL, "h200", **asked)
    assert chosen.speculation is not None
    assert chosen.speculation.word == verdict.only_word == recommend_document(chosen)["speculation"]
    ends = (1 + chosen.speculation.low, 1 + chosen.speculation.high)
    assert ends == pytest.approx((float(verdict.gain.low), float(verdict.gain.high)), rel=1e-9)


def test_eagle3_moe_over_two_h100_is_not_sure(tmp_path: Path) -> None:
    """SpecForge issue 339: 0.72x was measured where +4.8 to +39.6 % was once called sure."""
    head = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 12288,
        "num_hidden_layers": 1,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "draft_vocab_size": 32000,
        "max_position_embeddings": 40960,
    }
    path = tmp_path / "head.json"
    path.write_text(json.dumps(head))
    asked = {"context": 1024, "tp": 2, "depth": 3, "accept_length": 1.86, "drafter": str(path)}
    found = wmtp_sim.estimate("qwen3-30b-a3b", "h100", **asked)
    verdict = verdict_of(found)
    assert verdict.only_word == "probably pays"
    assert verdict.gain.low < 0.85
    assert "with an EAGLE head" in " ".join(verdict.unmeasured)
    assert "H100" in " ".join(verdict.unmeasured)
    again = wmtp_sim.recommend("qwen3-30b-a3b", "h100", **asked, at_depth=3)
    assert not again.over(0).sure


def test_without_an_acceptance_there_is_none() -> None:
    bare = estimated()
    assert speedup(bare, "native") is None
    with pytest.raises(ValueError, match="no acceptance"):
        verdict_of(replace(bare, acceptance=None))
    assert estimate_document(bare)["verdict"] is None
