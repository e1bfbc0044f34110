"""A step as a plan of passes: what is said of each field, in closed form, and the limits in which systems are one.

Costs are those of the ideal engine where a closed form needs seconds that are proportional to bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wmtp_sim
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.models import load_model
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
