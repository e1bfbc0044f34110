"""A step as a plan of passes: what is said of each field, in closed form, and the limits in which systems are one.

Costs are those of the ideal engine where a closed form needs seconds that are proportional to bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wmtp_sim
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.models import load_model
from wmtp_sim.catalog.systems import shipped_systems
from wmtp_sim.decide.acceptance import tree_survival
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.spec.system import Cache, System
from wmtp_sim.step.compose import Step

LOOK = {"phrase": "the system of a test", "colours": ("#123456", "#abcdef")}
SELF = {"network": {"of": "target"}, "drafters": ("self",), "proposal": {"first": "own"}}


def system(name: str = "tested", **fields: Any) -> System:
    return System.model_validate({"name": name, "title": "of a test", "look": LOOK} | fields)


def asked(*systems: System, model: str = "qwen3-8b", gpu: str = "h200", **stated: Any) -> Estimate:
    stated = {"context": 32_768, "engine": "ideal", "drafter": "eagle"} | stated
    if all(each.network.of != "drafter" for each in systems):
        stated.pop("drafter")
    return wmtp_sim.estimate(model, gpu, system=systems, **stated)


def seconds(step: Step, *terms: str) -> float:
    return float(sum(step.term(term) for term in terms))  # type: ignore[arg-type]


def operations(step: Step, term: str) -> list[tuple[str, float]]:
    """Names of a term's operations that run, and how often."""
    return [
        (e.operation.name, float(e.operation.repeats)) for e in step.entries if e.term == term and e.operation.repeats
    ]


# --- the cache ---------------------------------------------------------------------------------------------------


@given(
    context=st.integers(1, 2**20),
    tokens=st.integers(0, 2**20),
    share=st.floats(0, 1),
    window=st.integers(1, 2**20),
)
def test_no_more_is_attended_than_there_is(context: int, tokens: int, share: float, window: int) -> None:
    for cache in (Cache(tokens=tokens, share=share), Cache(tokens="window", share=share)):
        found = cache.attended(float(context), float(window))
        assert 0 <= found <= context
        if (window if cache.tokens == "window" else tokens) >= context or share == 1:
            assert found == context


def test_learned_slots_attend_what_the_paper_counts() -> None:
    """Sink 64, window 960, a slot for four older tokens: 64 + 960 + (32,768 - 1,024) / 4."""
    slots = Cache(tokens=1024, share=0.25, held="attended")
    assert slots.attended(32_768.0, 4096.0) == 1024 + (32_768 - 1024) / 4 == 8960
    assert Cache(tokens=1024, share=1.0).attended(32_768.0, 4096.0) == 32_768


def test_slots_hold_what_they_attend_and_a_steps_rows() -> None:
    slots = system(cache={"tokens": 1024, "share": 0.25, "held": "attended"})
    found = asked(system("full"), slots, depth=4)
    full, bounded = found.memory["full"], found.memory["tested"]
    assert float(bounded.draft_kv_bytes / full.draft_kv_bytes) == pytest.approx((8960 + 5) / 32_768, rel=1e-12)


def test_the_longest_context_of_a_bounded_cache_fits_and_one_more_token_does_not() -> None:
    slots = system(cache={"tokens": 1024, "share": 0.25, "held": "attended"})
    longest = int(asked(slots, depth=4).memory["tested"].max_context)
    assert asked(slots, depth=4, context=longest).memory["tested"].fits
    assert not asked(slots, depth=4, context=longest + 8).memory["tested"].fits


def test_a_cache_read_in_place_holds_and_writes_nothing() -> None:
    in_place = system(cache={"of": "target", "held": "nothing"})
    found = asked(system("own"), in_place, depth=3)
    assert found.memory["tested"].draft_kv_bytes == 0
    assert found.memory["own"].draft_kv_bytes > 0
    own, other = (found.steps[name].kv_read_bytes("draft", "extend") for name in ("own", "tested"))
    written = (2 + 4) * 2 * 8 * 128 * 2  # two narrow rows and four wide ones, K and V of 8 heads of 128 in bf16
    assert float(own - other) == written


def test_a_cache_read_in_place_has_the_targets_elements() -> None:
    """An fp8 target read in place is half of a bf16 one, whatever the draft's own caches are."""
    in_place = system(cache={"of": "target", "held": "nothing"})
    read = {
        kv: float(asked(in_place, depth=3, kv=kv, draft_kv="bf16").steps["tested"].kv_read_bytes("draft", "extend"))
        for kv in ("bf16", "fp8")
    }
    assert read["fp8"] == read["bf16"] / 2


@pytest.mark.parametrize(
    ("model", "share"), [("qwen3.6-35b-a3b", 11), ("qwen3.5-122b-a10b", 13), ("nemotron-3-super-120b-a12b", 9)]
)
def test_a_ring_gives_back_one_of_so_many_caches(model: str, share: int) -> None:
    """One draft layer beside 10, 12 or 8 full-attention layers."""
    found = wmtp_sim.estimate(model, "b300", context=2**20, depth=6, tp=2)
    assert float(found.memory["native"].draft_kv_share) == pytest.approx(1 / share)
    assert float(found.memory["ring"].draft_kv_share) < 1e-3


def test_a_smaller_element_is_read_and_held_in_proportion() -> None:
    found = asked(system("whole"), system(cache={"element_bytes": 0.5}), depth=4, context=2**20)
    whole, quarter = (float(found.memory[name].draft_kv_bytes) for name in ("whole", "tested"))
    assert quarter * 4 == whole
    whole, quarter = (float(found.steps[n].kv_read_bytes("draft", "extend")) for n in ("whole", "tested"))
    assert quarter * 4 == pytest.approx(whole, rel=1e-12)


def test_rebuilding_what_is_read_takes_arithmetic() -> None:
    plain, rebuilt = (system(n, cache={"unpack_flops": flops}) for n, flops in (("plain", 0.0), ("tested", 100.0)))
    found = asked(plain, rebuilt, depth=4)
    flops = {
        n: sum(float(e.operation.flops * e.operation.repeats) for e in found.steps[n].entries) for n in found.steps
    }
    read = float(found.steps["plain"].kv_read_bytes("draft", "extend"))
    assert flops["tested"] - flops["plain"] == pytest.approx(100 * read / 2, rel=0.02)
    assert seconds(found.steps["tested"], "draft") < seconds(found.steps["plain"], "draft") + 100 * read / 2 / 100e12


# --- the proposal --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["ideal", "sglang", "vllm"])
def test_a_tree_of_single_nodes_is_the_chain(engine: str) -> None:
    tree = system("tree", proposal={"kind": "tree", "widths": (1, 1, 1)})
    found = asked(system("chain"), tree, depth=3, engine=engine)
    chain, other = found.policies["chain"].cost, found.policies["tree"].cost
    assert other.terms == chain.terms
    assert found.memory["chain"].total_bytes == found.memory["tree"].total_bytes


def test_a_tree_runs_a_pass_a_level_and_verifies_every_node() -> None:
    tree = system(proposal={"kind": "tree", "widths": (4, 8, 8, 2)})
    found = asked(tree, depth=9)  # a tree has its own depth
    rows = {
        float(np.asarray(p.planned.rows)): float(p.planned.times)
        for p in found.steps["tested"].parts
        if p.term == "draft"
    }
    assert rows == {4.0: 1.0, 8.0: 2.0}
    verify = next(part for part in found.steps["tested"].parts if part.term == "verify")
    assert verify.planned is not None
    assert float(verify.planned.rows) == 4 + 8 + 8 + 2 + 1
    assert float(found.policies["tested"].depth) == 4
    most = found.policies["tested"].max_speedup * found.policies["tested"].break_even_accept_length
    assert float(most) == pytest.approx(5)


def test_the_target_as_its_own_drafter_costs_a_base_pass_a_token_and_no_extend() -> None:
    """Pass i stands i tokens further on; the mean of the passes is that of their contexts, seconds being linear."""
    found = asked(system(**SELF), depth=5)
    step = found.steps["tested"]
    assert step.term("extend") == 0
    alone = [asked(system(**SELF), depth=5, context=32_768 + i).base_step.term("verify") for i in range(5)]
    heads = 5 * float(next(e.timing.seconds for e in step.entries if e.operation.name == "sample.argmax")) / 5
    assert float(step.term("draft")) == pytest.approx(float(sum(alone)) + heads, rel=1e-9)


def test_self_drafting_counts_no_weights_twice() -> None:
    own_cache = system("window", **(SELF | {"cache": {"tokens": 512, "share": 0, "held": "attended"}}))
    found = asked(own_cache, depth=3)
    assert found.memory["window"].weights_bytes == found.memory["base"].weights_bytes
    copied = system("copied", **(SELF | {"network": {"of": "target", "format": "int4"}}))
    assert asked(copied, depth=3).memory["copied"].weights_bytes > found.memory["base"].weights_bytes


@settings(max_examples=20)
@given(kept=st.floats(0.1, 1.0))
def test_fewer_layers_of_the_target_cost_their_share(kept: float) -> None:
    whole = seconds(asked(system(**SELF), depth=1).steps["tested"], "draft")
    found = asked(system(**(SELF | {"network": {"of": "target", "kept": kept}})), depth=1).steps["tested"]
    head = sum(
        float(e.timing.seconds)
        for e in found.entries
        if e.term == "draft" and e.operation.name in ("lm_head.projection", "sample.argmax", "elementwise.embedding")
    )
    norm = [
        float(e.timing.seconds) for e in found.entries if e.term == "draft" and e.operation.name == "elementwise.norm"
    ]
    assert seconds(found, "draft") - head - norm[-1] == pytest.approx(kept * (whole - head - norm[-1]), rel=1e-9)


def block(depth: int = 15, **fields: Any) -> System:
    own = {"of": "own", "layers": 5, "fuses": 5}
    return system(
        drafters=("block",), network=own, proposal={"kind": "block", "depth": depth, "first": "own"}, **fields
    )


def test_a_block_is_one_pass_whatever_its_size() -> None:
    found = asked(block())
    drafts = [part for part in found.steps["tested"].parts if part.term == "draft"]
    assert len(drafts) == 1
    planned = drafts[0].planned
    assert planned is not None
    assert (float(planned.rows), float(planned.logit_rows), planned.times) == (16, 15, 1.0)
    assert float(found.policies["tested"].depth) == 15
    shallow, deep = (seconds(asked(block(d)).steps["tested"], "draft") for d in (3, 15))
    assert deep < 1.1 * shallow  # weights and cache are read once; a chain of 15 reads them five times as often


def test_a_block_fills_its_cache_from_the_targets_states() -> None:
    """20,480 bytes a token: five layers of 8 KV heads of 128, K and V in bf16."""
    found = asked(block())
    assert float(found.memory["tested"].draft_kv_bytes) == 32_768 * 20_480
    names = [name for name, _ in operations(found.steps["tested"], "extend")]
    assert "small.fuse_proj" in names
    assert "attention.full" not in names  # its layers do not run


def test_a_stated_depth_holds_for_a_block() -> None:
    assert float(asked(block(), depth=7).policies["tested"].depth) == 7


def test_matrices_behind_a_block_run_once_a_token() -> None:
    micro = {"of": "own", "layers": 5, "fuses": 5, "micro": [{"k": "hidden", "n": 256}, {"k": 256, "n": "vocab"}]}
    found = asked(
        block(),
        system("micro", drafters=("block",), network=micro, proposal={"kind": "block", "depth": 15, "first": "own"}),
    )
    ran = dict(operations(found.steps["micro"], "draft"))
    assert ran["small.micro_0"] == ran["small.micro_1"] == 15
    assert found.steps["micro"].term("draft") > found.steps["tested"].term("draft")


def test_an_inner_drafter_makes_passes_of_the_drafter_verifications() -> None:
    """Six tokens by an inner drafter of which 3 a pass hold: two passes of the outer one, over four rows each."""
    tiny = {
        "of": "own",
        "layers": 2,
        "hidden": 768,
        "inner": 3072,
        "attention": {"q_heads": 12, "kv_heads": 12, "head_dim": 64},
        "shares": (),
    }
    inner = {"network": tiny, "cache": {"tokens": 256, "share": 0}, "depth": 3, "accept_length": 3.0}
    two = system(**(SELF | {"proposal": {"first": "own", "depth": 6, "inner": inner}}))
    drafts = [p.planned for p in asked(two).steps["tested"].parts if p.term == "draft"]
    assert [(float(d.rows), float(d.times)) for d in drafts if d is not None] == [(1.0, 6.0), (4.0, 2.0)]


# --- verification, experts, upkeep, generation -----------------------------------------------------------------


def test_one_tier_of_all_layers_is_exact_verification() -> None:
    tiers = system(
        "tiers", verify={"rule": "tiered", "tiers": [{"kept": 1.0, "of_rounds": 0.5}, {"kept": 1.0, "of_rounds": 0.5}]}
    )
    found = asked(system("exact"), tiers, depth=3)
    assert float(found.steps["tiers"].term("verify")) == pytest.approx(
        float(found.steps["exact"].term("verify")), rel=1e-12
    )
    with pytest.raises(ValueError, match="tiers"):
        system(verify={"rule": "tiered"})


def test_a_block_of_one_row_is_verified_as_a_base_step() -> None:
    one = system(verify={"rows": 1.0})
    found = asked(one, depth=3)
    assert float(found.steps["tested"].term("verify")) == pytest.approx(
        float(found.base_step.term("verify")), rel=1e-12
    )


def test_a_rule_that_changes_the_output_is_never_ranked_with_one_that_keeps_it() -> None:
    relaxed = system("relaxed", verify={"rule": "relaxed", "shift": 0.3})
    exact = system("exact")
    assert (exact.lossless, relaxed.lossless) == (True, False)
    engine = load_engine("sglang").model_copy(update={"offers": ("exact", "relaxed")})
    from wmtp_sim.decide.verdict import verdict_of

    both = asked(exact, relaxed, depth=3, alpha=0.5, engine=engine)
    assert both.policies["relaxed"].speedup > both.policies["exact"].speedup  # type: ignore[operator]
    assert verdict_of(both).only_policy == "exact"
    assert verdict_of(asked(relaxed, depth=3, alpha=0.5, engine=engine)).only_policy == "relaxed"


def test_what_is_not_verified_is_kept() -> None:
    span = system(verify={"rule": "none", "rows": 1.3}, drafters=("eagle",))
    found = asked(span, depth=2, alpha=0.9)
    assert float(found.policies["tested"].accept_length) == 1.3  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mean rows"):
        system(verify={"rule": "none"})


def test_memory_holds_what_the_target_keeps_on_the_gpu() -> None:
    plain, eighth = asked(system(), depth=3), asked(system(generation={"kv_share": 1 / 8}), depth=3)
    for name in ("base", "tested"):
        assert float(eighth.memory[name].kv_bytes) == pytest.approx(float(plain.memory[name].kv_bytes) / 8)
    halved = asked(system(verify={"kv_share": 0.5}), depth=3)
    assert float(halved.memory["tested"].kv_bytes) == pytest.approx(float(plain.memory["tested"].kv_bytes) / 2)
    away = asked(system(generation={"offload": {"link_bytes_per_s": 25e9, "weights": 1.0}}), depth=3)
    assert away.memory["base"].weights_bytes == 0


def test_a_relaxed_rule_shifts_conditional_rates() -> None:
    found = asked(system(verify={"rule": "relaxed", "shift": 0.2}), depth=2, alpha=0.5)
    assert float(found.policies["tested"].accept_length) == pytest.approx(1 + 0.7 + 0.49)  # type: ignore[arg-type]


def test_a_budget_of_experts_bounds_what_a_verify_reads() -> None:
    moe = {"model": "qwen3-30b-a3b", "depth": 7, "batch": 8}
    free, held = system("free"), system("held", experts={"budget": 32})
    found = asked(free, held, **moe)
    read = {
        name: next(
            float(e.operation.weights)
            for e in found.steps[name].entries
            if e.operation.name == "moe.experts" and e.term == "verify"
        )
        for name in ("free", "held")
    }
    one = 3 * 2048 * 768 * 2  # gate, up and down of one expert in bf16
    assert read["held"] == 32 * one < read["free"]


def test_upkeep_is_charged_by_round_and_by_token() -> None:
    beside = [
        {"name": "a-copy", "per": "token", "every": 4, "bytes": 1e9},
        {"name": "a-gate", "products": [{"k": "hidden", "n": 1}]},
    ]
    found = asked(system("plain"), system(upkeep=beside), depth=3)
    ran = dict(operations(found.steps["tested"], "extend"))
    assert ran["upkeep.a-copy"] == 4 / 4  # depth 3 commits at most 4 tokens, one copy for every 4
    assert ran["small.a-gate"] == 1
    assert found.steps["tested"].term("extend") > found.steps["plain"].term("extend")


def test_a_pass_for_the_caches_alone_runs_as_often_as_it_is_needed() -> None:
    found = asked(system(upkeep=[{"name": "slot", "per": "token", "every": 8, "rows": 8}]), depth=3)
    extends = [part.planned for part in found.steps["tested"].parts if part.term == "extend" and part.planned]
    assert [(float(each.rows), float(each.times)) for each in extends] == [(4.0, 1.0), (8.0, 0.5)]


def test_a_target_that_needs_several_passes_for_several_tokens() -> None:
    """A block of 4 tokens in 8 passes of 4 rows: two passes a token."""
    diffusion = system(generation={"rows": 4, "passes": 8, "tokens": 4})
    plain = asked(system(), depth=3)
    found = asked(diffusion, depth=3)
    verify = found.base_step.parts[0].planned
    assert verify is not None
    assert (float(verify.rows), float(verify.times)) == (4.0, 2.0)
    assert float(found.base.step_s) > 2 * float(plain.base.step_s) * 0.99


def test_a_smaller_cache_of_the_target_is_read_by_base_and_verify() -> None:
    plain, eighth = asked(system(), depth=3), asked(system(generation={"kv_share": 1 / 8}), depth=3)
    for one, other in ((plain.base_step, eighth.base_step), (plain.steps["tested"], eighth.steps["tested"])):
        read = [
            sum(float(e.operation.kv) for e in s.entries if e.operation.name == "attention.full" and e.term == "verify")
            for s in (one, other)
        ]
        assert read[1] == pytest.approx(read[0] / 8, rel=1e-12)


def test_what_lies_outside_the_gpu_crosses_a_link_in_every_pass() -> None:
    """All 16.4 GB of weights over 25 GB/s: two thirds of a second, whatever else there is to do."""
    target = load_model("qwen3-8b")
    away = system(generation={"offload": {"link_bytes_per_s": 25e9, "weights": 1.0}})
    found = asked(away, depth=3)
    layers = sum(float(e.operation.weights * e.operation.repeats) for e in found.base_step.entries)
    assert layers > 1.8 * target.hidden * target.hidden
    assert float(found.base.step_s) == pytest.approx(layers / 25e9, rel=0.01)


# --- what an engine does to a plan -----------------------------------------------------------------------------------


def stepped(*changes: str, **stated: Any) -> Estimate:
    engine = load_engine("sglang", changes)
    return wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", **({"context": 2**17, "depth": 5, "engine": engine} | stated))


def test_a_kernel_that_is_planned_costs_the_host_before_each_of_its_passes() -> None:
    """Four narrow passes and the wide one draft on FlashInfer; verify runs on FlashAttention-3, which plans nothing."""
    plain, planned = stepped(), stepped("attention_kernels.flashinfer.plan_s=0.0001")
    for name in ("native", "flag", "ring"):
        more = float(planned.steps[name].term("host") - plain.steps[name].term("host"))
        assert more == pytest.approx(5 * 0.0001, rel=1e-9)
    assert planned.base.step_s == plain.base.step_s


def test_windowed_drafts_may_run_on_a_backend_of_their_own() -> None:
    found = stepped("attention.Hopper.draft=fa3", "attention.Hopper.windowed=triton")
    used = {
        name: {e.operation.variant for e in step.entries if e.operation.kernel == "attention" and e.term == "draft"}
        for name, step in found.steps.items()
    }
    assert used == {"native": {"fa3"}, "flag": {"sglang_triton"}, "ring": {"sglang_triton"}}
    extends = {
        e.operation.variant
        for e in found.steps["flag"].entries
        if e.operation.kernel == "attention" and e.term == "extend"
    }
    assert extends == {"fa3"}  # the flag leaves the wide pass as it is


def test_a_worker_may_cost_the_host_for_every_sequence() -> None:
    engine = load_engine("sglang", ("host.per_sequence_s=0.0001",))
    batch = np.array([1, 8, 32])
    stated = {"context": 4096, "batch": batch, "depth": 3}
    more = [
        np.asarray(wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", engine=each, **stated).steps["native"].term("host"))
        for each in ("sglang", engine)
    ]
    assert more[1] - more[0] == pytest.approx(0.0001 * batch)


def test_a_kind_of_drafter_may_have_a_worker_of_its_own() -> None:
    engine = load_engine("sglang", ("drafter_hosts.block={step_s=0.002}",))
    assert float(asked(block(), engine=engine).steps["tested"].term("host")) == pytest.approx(0.002)
    assert float(asked(system(), engine=engine, depth=3).steps["tested"].term("host")) == pytest.approx(0.00024)


# --- acceptance ----------------------------------------------------------------------------------------------------


def test_a_trees_accept_length_is_the_sum_over_its_nodes() -> None:
    """Two levels of two best of p = .6, .3: S_1 = .9; the best pairs are .36 and .18: 1 + .9 + .54."""
    assert tree_survival([0.6, 0.3], [2, 2]).tolist() == pytest.approx([0.9, 0.54])
    assert tree_survival([0.7], [1, 1, 1]).tolist() == pytest.approx([0.7, 0.49, 0.343])
    ranked = system(proposal={"kind": "tree", "widths": (2, 2)}, acceptance={"rank": (0.6, 0.3)})
    assert float(asked(ranked).policies["tested"].accept_length) == pytest.approx(2.44)  # type: ignore[arg-type]


def test_acceptance_falls_beyond_what_a_drafter_was_trained_for() -> None:
    short = system("short", acceptance={"trained": {"half": 8192, "power": 3}})
    broken = system("broken", acceptance={"limit": 16_384})
    found = asked(short, broken, depth=3, alpha=0.8, context=[4096, 8192, 32_768])
    whole = 1 + 0.8 + 0.64 + 0.512
    lengths = np.asarray(found.policies["short"].accept_length)
    assert lengths == pytest.approx(1 + (whole - 1) / (1 + (np.array([4096, 8192, 32_768]) / 8192) ** 3))
    assert np.asarray(found.policies["broken"].accept_length) == pytest.approx([whole, whole, 1.0])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"name": "base"}, "another name"),
        ({"proposal": {"depth": 70_000}}, "proposal.depth"),
        ({"proposal": {"kind": "tree"}}, "widths"),
        ({"cache": {"of": "target"}}, "held"),
        ({"cache": {"tokenz": 3}}, "tokenz"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        system(**fields)


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
