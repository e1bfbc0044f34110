"""What must hold whatever the model, the engine and the numbers."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import wmtp_sim
from wmtp_sim.catalog.drafters import load_drafter
from wmtp_sim.catalog.engines import engine_names, load_engine
from wmtp_sim.catalog.models import load_model, model_names

ENGINES = ("ideal", "sglang", "vllm")
WITH_HEAD = tuple(name for name in model_names() if load_model(name).mtp is not None)
#: One of each kind of draft attention and target mixer, small enough to draw from quickly.
VARIED = (
    "qwen3.5-35b-a3b",
    "nemotron-3-super-120b-a12b",
    "deepseek-v3",
    "deepseek-v3.2",
    "deepseek-v4-flash",
    "glm-4.5-air",
    "mimo-v2-flash",
    "step-3.5-flash",
    "longcat-flash",
    "ling-2.6-flash",
)

contexts = st.integers(1, 2**21)
depths = st.integers(1, 16)
windows = st.integers(1, 2**21)
batches = st.integers(1, 256)
POLICIES = ("native", "flag", "ring")


def steps(model, engine, context, depth, window=4032, sink=64, batch=1, **more):
    answer = wmtp_sim.estimate(
        model, "h200", context=context, depth=depth, window=window, sink=sink, batch=batch, engine=engine, **more
    )
    return {policy: result.cost for policy, result in answer.policies.items()} | {"base": answer.base}


@settings(max_examples=60, deadline=None)
@given(
    model=st.sampled_from(VARIED),
    engine=st.sampled_from(ENGINES),
    context=contexts,
    depth=depths,
    window=windows,
    batch=batches,
    more=st.integers(1, 2**20),
)
def test_cost_never_falls_with_more_work(model, engine, context, depth, window, batch, more):
    here = steps(model, engine, context, depth, window, batch=batch)
    longer = steps(model, engine, context + more, depth, window, batch=batch)
    deeper = steps(model, engine, context, depth + 1 + more % 7, window, batch=batch)
    wider = steps(model, engine, context, depth, window, batch=batch + more % 100)
    for name, cost in here.items():
        slack = 1 - 1e-9
        assert longer[name].step_s >= cost.step_s * slack, f"{name}: context"
        assert deeper[name].step_s >= cost.step_s * slack, f"{name}: depth"
        assert wider[name].step_s >= cost.step_s * slack, f"{name}: batch"


HYBRIDS = ("nemotron-h-8b", "falcon-h1-34b", "qwen3.6-27b", "qwen3.6-35b-a3b-nvfp4", "granite-4.0-h-small")
REAL_ENGINES = tuple(name for name in engine_names() if not load_engine(name).ideal)


@settings(max_examples=60, deadline=None)
@given(
    model=st.sampled_from((*VARIED, *HYBRIDS)),
    gpu=st.sampled_from(("h200", "b200", "rtx-3090", "mi300x")),
    engine=st.sampled_from(REAL_ENGINES),
    context=contexts,
    depth=depths,
    window=windows,
    batch=st.integers(1, 2048),
    kv=st.sampled_from(("bf16", "fp8")),
    tp=st.sampled_from((1, 2)),
)
@example("nemotron-h-8b", "b200", "vllm", 512, 1, 4032, 512, "bf16", 1)  # states are most of the step
def test_no_engine_beats_the_ideal_one(model, gpu, engine, context, depth, window, batch, kv, tp):
    """Nor its speed of light: the ideal engine charges the least that any engine does.

    Which weights groups of ranks share (``joint``) is an arrangement, not a cost: more sharing is not always less time.
    """
    drafter = "mtp" if load_model(model).mtp else "eagle"
    sizes = {"context": context, "depth": depth, "window": window, "batch": batch}
    ideal, real = (
        wmtp_sim.estimate(model, gpu, engine=name, kv=kv, drafter=drafter, tp=tp, **sizes) for name in ("ideal", engine)
    )
    assert ideal.base.step_s <= real.base.bound_s * (1 + 1e-9)
    for policy, result in real.policies.items():
        assert ideal.policies[policy].cost.step_s <= result.cost.bound_s * (1 + 1e-9)
        assert ideal.memory[policy].total_bytes <= real.memory[policy].total_bytes


def test_the_ideal_engine_handles_states_as_the_most_frugal_does():
    states = [load_engine(name).state for name in REAL_ENGINES]
    ideal = load_engine("ideal").state
    assert ideal.writes_per_row == min(state.writes_per_row for state in states)
    assert ideal.commit_copies == min(state.commit_copies for state in states)
    assert (ideal.resident_snapshots == "per_draft") == any(s.resident_snapshots == "per_draft" for s in states)


@settings(max_examples=60, deadline=None)
@given(
    model=st.sampled_from(VARIED),
    engine=st.sampled_from(ENGINES),
    depth=depths,
    batch=batches,
    overlap=st.floats(0.01, 0.99),
)
def test_experts_are_shared_among_the_rows_of_a_sequence_only(model, engine, depth, batch, overlap):
    """Base steps and narrow draft passes have one row per sequence, however far a graph or the engine pads them."""
    alone = steps(model, engine, 4096, depth, batch=batch)
    shared = steps(model, engine, 4096, depth, batch=batch, overlap=overlap)
    assert shared["base"].step_s == pytest.approx(alone["base"].step_s, rel=1e-12)
    for policy in POLICIES:
        assert shared[policy].terms["draft"] == pytest.approx(alone[policy].terms["draft"], rel=1e-12)
        assert shared[policy].step_s <= alone[policy].step_s * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(model=st.sampled_from(VARIED), engine=st.sampled_from(ENGINES), context=contexts, depth=depths, window=windows)
def test_policies_are_ordered(model, engine, context, depth, window):
    """ring <= flag <= native, and every step lies between its bound and its interval's ends."""
    costs = steps(model, engine, context, depth, window)
    slack = 1 + 1e-9
    assert costs["ring"].step_s <= costs["flag"].step_s * slack
    assert costs["flag"].step_s <= costs["native"].step_s * slack
    for cost in costs.values():
        assert cost.bound_s <= cost.step_s * slack
        assert cost.bound_s <= cost.low_s * slack
        assert cost.low_s <= cost.step_s * slack
        assert cost.step_s <= cost.high_s * slack
        assert sum(cost.terms.values()) == pytest.approx(cost.step_s, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    model=st.sampled_from(VARIED),
    engine=st.sampled_from(ENGINES),
    context=contexts,
    depth=depths,
    extra=st.integers(0, 1000),
)
def test_a_window_that_holds_the_context_changes_nothing(model, engine, context, depth, extra):
    sink = min(64, context - 1)
    costs = steps(model, engine, context, depth, window=max(context - sink, 1) + extra, sink=sink)
    assert costs["flag"].step_s == costs["native"].step_s
    assert costs["ring"].step_s == costs["native"].step_s


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", WITH_HEAD)
def test_the_flag_changes_nothing_at_depth_one(model, engine):
    costs = steps(model, engine, 2**20, 1)
    assert costs["flag"].step_s == costs["native"].step_s


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", model_names())
def test_depth_zero_is_the_base_step(model, engine):
    answer = wmtp_sim.estimate(model, "h200", context=65536, depth=0, engine=engine)
    assert not answer.policies
    mixed = wmtp_sim.estimate("qwen3.5-27b", "h200", context=65536, depth=[0, 3], engine=engine)
    for result in mixed.policies.values():
        assert result.cost.step_s[0] == mixed.base.step_s
        assert result.margin[0] == 0
        assert result.break_even_accept_length[0] == 1


@settings(max_examples=25, deadline=None)
@given(
    model=st.sampled_from(VARIED),
    engine=st.sampled_from(ENGINES),
    context=st.lists(contexts, min_size=1, max_size=3),
    depth=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    window=st.lists(windows, min_size=1, max_size=2),
    batch=st.lists(batches, min_size=1, max_size=2),
    alpha=st.floats(0, 1),
)
def test_broadcasting_equals_a_loop(model, engine, context, depth, window, batch, alpha):
    if not any(depth):
        depth = [*depth, 1]
    axes = wmtp_sim.open_grid(context, depth, window, batch)
    names = ("context", "depth", "window", "batch")
    grid = wmtp_sim.estimate(model, "h200", **dict(zip(names, axes, strict=True)), engine=engine, alpha=alpha)
    shape = grid.work.shape
    for index in np.ndindex(shape):
        point = {name: float(axis.ravel()[i]) for name, axis, i in zip(names, axes, index, strict=True)}
        one = wmtp_sim.estimate(model, "h200", **point, engine=engine, alpha=alpha)
        assert np.broadcast_to(grid.base.step_s, shape)[index] == pytest.approx(float(one.base.step_s), rel=1e-12)
        for policy, result in one.policies.items():
            many = grid.policies[policy]
            assert np.broadcast_to(many.cost.step_s, shape)[index] == pytest.approx(
                float(result.cost.step_s), rel=1e-12
            )
            assert np.broadcast_to(many.speedup, shape)[index] == pytest.approx(float(result.speedup), rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(model=st.sampled_from(VARIED), context=contexts, depth=depths, batch=batches, window=windows)
def test_the_ring_frees_memory_and_the_flag_none(model, context, depth, batch, window):
    answer = wmtp_sim.estimate(model, "h200", context=context, depth=depth, window=window, batch=batch)
    found = answer.memory
    assert found["flag"].total_bytes == found["native"].total_bytes
    assert found["ring"].total_bytes <= found["native"].total_bytes
    assert found["base"].total_bytes <= found["ring"].total_bytes


@settings(max_examples=40, deadline=None)
@given(
    model=st.sampled_from(("qwen3.5-35b-a3b", "nemotron-3.5-lightning-30b-a3b", "mimo-7b", "ling-2.6-flash")),
    batch=st.integers(1, 32),
    depth=depths,
)
def test_the_largest_context_fits_and_one_more_token_does_not(model, batch, depth):
    first = wmtp_sim.estimate(model, "h200", context=1024, depth=depth, batch=batch)
    for name in ("base", "native", "ring"):
        largest = float(first.memory[name].max_context)
        if largest < 8192:  # a ring holds fewer slots when the context is smaller than the window
            continue
        here = wmtp_sim.estimate(model, "h200", context=largest, depth=depth, batch=batch).memory[name]
        above = wmtp_sim.estimate(model, "h200", context=largest + 1, depth=depth, batch=batch).memory[name]
        assert here.fits
        assert not above.fits


@settings(max_examples=40, deadline=None)
@given(
    model=st.sampled_from(VARIED),
    engine=st.sampled_from(ENGINES),
    context=contexts,
    depth=depths,
    alpha=st.floats(0, 1),
)
def test_speedup_is_one_at_break_even_and_largest_at_full_acceptance(model, engine, context, depth, alpha):
    answer = wmtp_sim.estimate(model, "h200", context=context, depth=depth, engine=engine, alpha=alpha)
    full = wmtp_sim.estimate(model, "h200", context=context, depth=depth, engine=engine, accept_length=depth + 1)
    for policy, result in answer.policies.items():
        needed = result.break_even_accept_length
        assert result.unwinnable == (needed > depth + 1)
        assert result.speedup == pytest.approx(result.accept_length / needed)
        assert result.speedup <= result.max_speedup * (1 + 1e-12)
        assert full.policies[policy].speedup == pytest.approx(float(result.max_speedup), rel=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_losing_depth_agrees_with_trying_every_depth(engine):
    """Llama 3.1 8B with an EAGLE head at a poor acceptance: deep drafts lose."""
    found = wmtp_sim.estimate(
        "llama-3.1-8b", "h200", context=131072, depth=3, drafter="eagle", engine=engine, alpha=0.3
    ).losing_depth()
    tried = [
        float(
            wmtp_sim.estimate(
                "llama-3.1-8b", "h200", context=131072, depth=d, drafter="eagle", engine=engine, alpha=0.3
            )
            .policies["native"]
            .speedup
        )
        for d in range(1, 17)
    ]
    losing = [d for d in range(1, 17) if all(gain < 1 for gain in tried[d - 1 :])]
    assert found.depth == (losing[0] if losing else 0)
    assert (found.searched, found.basis) == (16, "stated")


def test_drafts_of_tensor_parallel_groups_read_less_per_gpu_but_pay_links():
    alone = wmtp_sim.estimate("qwen3-235b-a22b", "h200", context=131072, depth=0, engine="ideal")
    four = wmtp_sim.estimate("qwen3-235b-a22b", "h200", context=131072, depth=0, engine="ideal", tp=4)
    assert four.base.step_s < alone.base.step_s
    assert four.base.step_s > alone.base.step_s / 4
    assert four.memory["base"].kv_bytes == pytest.approx(float(alone.memory["base"].kv_bytes) / 4)


def test_every_model_with_a_head_has_a_drafter():
    for name in model_names():
        model = load_model(name)
        if model.mtp is None:
            assert model.mtp_note, name
            with pytest.raises(wmtp_sim.InputError, match="no trained draft head"):
                load_drafter("mtp", model)
        else:
            assert load_drafter("mtp", model).kind == "mtp"
