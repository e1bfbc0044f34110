"""What a rank does under each layout: nothing is computed twice that is shared, nothing is lost, rows travel as stated.

Batches divide among groups, so that no group waits for another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wmtp_sim
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.models import load_model
from wmtp_sim.decide.warnings import warnings
from wmtp_sim.spec.parallel import ALONE, Layout
from wmtp_sim.work.layers import Pass
from wmtp_sim.work.operation import Operation
from wmtp_sim.work.passes import target_forward
from wmtp_sim.work.resident import target_weight_bytes

QWEN = load_model("qwen3-235b-a22b")
HIDDEN, LAYERS, VOCAB, TOP_K = 4096, 94, 151_936, 8
SGLANG = ("router", "expert", "shared_expert", "mlp", "lm_head")


def forward(layout: Layout, batch: float, rows: float = 4.0) -> list[Operation]:
    """The target over a group's part of a batch."""
    shape = Pass(batch / layout.dp, rows, attended=1000.0, kv_bytes=2.0, state_bytes=4.0, layout=layout)
    return list(target_forward(QWEN, shape))


def flops(operations: Iterable[Operation], *groups: str) -> float:
    named = (op for op in operations if op.name.split(".")[0] in groups)
    return sum(float(op.flops * op.repeats) for op in named)


def sent(operations: Iterable[Operation]) -> Counter[str]:
    """Bytes that a rank sends, by collective, all layers together."""
    found: Counter[str] = Counter()
    for op in operations:
        if op.kernel == "collective":
            found[op.name.partition(".")[2]] += float(op.bytes * op.repeats)  # type: ignore[assignment]
    return found


@given(
    tp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([1, 2, 4]),
    whole=st.booleans(),
    joint=st.sampled_from([("expert",), SGLANG]),
    each=st.integers(1, 9),
)
def test_ranks_together_multiply_what_one_would(
    tp: int, dp: int, whole: bool, joint: tuple[str, ...], each: int
) -> None:
    """Attention of all sequences and experts of all rows, once each, over the ranks of all groups."""
    batch = float(each * dp)
    groups = tp * dp if whole else 1
    layout = Layout(tp, dp, dp_attention=True, joint=joint, expert_groups=groups)  # type: ignore[arg-type]
    alone, rank = forward(ALONE, batch), forward(layout, batch)
    for groups_of_names in (("attention",), ("moe",), ("attention_out",)):
        assert tp * dp * flops(rank, *groups_of_names) == pytest.approx(flops(alone, *groups_of_names), rel=1e-12)


@pytest.mark.parametrize("joint", [("expert",), SGLANG])
def test_every_expert_is_held_once_and_attention_by_each_group(joint: tuple[str, ...]) -> None:
    """Bytes of eight GPUs: one set of experts, eight of attention where each GPU is a group of its own."""
    one = target_weight_bytes(QWEN)
    eight = 8 * target_weight_bytes(QWEN, Layout(1, 8, dp_attention=True, joint=joint))  # type: ignore[arg-type]
    head, kv_heads = 128, 4
    attention = LAYERS * (HIDDEN * (64 + 2 * kv_heads) * head + 64 * head * HIDDEN + 2 * head + 2 * HIDDEN)
    router = LAYERS * 128 * HIDDEN
    repeated = attention + router + VOCAB * HIDDEN + HIDDEN + (0 if "lm_head" in joint else VOCAB * HIDDEN)
    assert eight - one == pytest.approx(7 * 2 * repeated, rel=1e-12)


def test_groups_gather_rows_before_experts_and_scatter_them_after() -> None:
    """SGLang 0.5.23 with speculation, eight groups of one: 32 rows of all, (8-1)/8 of them sent each way, per layer;
    lm_head adds up rows that are zero elsewhere (an all-reduce) and every rank gathers all logits."""
    found = sent(forward(Layout(1, 8, dp_attention=True, joint=SGLANG), batch=8.0))  # type: ignore[arg-type]
    rows = 8 * 4
    assert found["reduce_scatter"] == pytest.approx(LAYERS * 7 / 8 * rows * HIDDEN * 2)
    assert found["all_gather"] == pytest.approx(found["reduce_scatter"] + 7 / 8 * rows * VOCAB * 2)
    assert found["all_reduce"] == pytest.approx(2 * 7 / 8 * rows * HIDDEN * 2)


def test_groups_of_several_ranks_reduce_within_them() -> None:
    """vLLM 0.33, two groups of four: two all-reduces of a group's rows a layer, one gather and scatter between groups;
    the vocabulary is a group's own."""
    found = sent(forward(Layout(4, 2, dp_attention=True), batch=8.0))
    own = 4 * 4 * HIDDEN * 2
    assert found["all_reduce"] == pytest.approx((2 * LAYERS + 1) * 2 * 3 / 4 * own)
    assert found["reduce_scatter"] == pytest.approx(LAYERS * 1 / 2 * 2 * own)
    assert found["all_gather"] == pytest.approx(LAYERS * 1 / 2 * 2 * own + 3 / 4 * 4 * 4 * VOCAB * 2)


def test_base_steps_of_sglang_reduce_rows_of_all_groups() -> None:
    """Without speculation two all-reduces over all ranks a layer do everything (DpPaddingMode.SUM_LEN)."""
    layout = Layout(2, 4, dp_attention=True, joint=SGLANG, by_reduction=True)  # type: ignore[arg-type]
    found = sent(forward(layout, batch=8.0, rows=1.0))
    rows = 8 * HIDDEN * 2
    assert found["all_reduce"] == pytest.approx(
        LAYERS * 2 * 2 * 7 / 8 * rows  # around experts
        + 2 * 1 / 2 * rows / 4  # embedding, within a group
        + 2 * 7 / 8 * rows  # before lm_head
    )
    assert found["reduce_scatter"] == 0


def test_rows_travel_to_their_experts_and_back() -> None:
    """DeepEP over 2 x 4 ranks: each sends half of its group's eight rows, a copy per expert: fp8 with scales there,
    bf16 back; the reductions of attention stay."""
    layout = Layout(2, 4, dp_attention=True, expert_groups=8, all_to_all=True)
    found = sent(forward(layout, batch=8.0))
    copies = 4 * TOP_K * 7 / 8
    assert found["dispatch"] == pytest.approx(LAYERS * copies * (HIDDEN * (1 + 4 / 128) + 16))
    assert found["combine"] == pytest.approx(LAYERS * copies * HIDDEN * 2)
    assert found["all_reduce"] == pytest.approx((LAYERS + 1) * 2 * 1 / 2 * 8 * HIDDEN * 2)
    assert found["reduce_scatter"] == 0


def test_experts_of_all_groups_serve_the_rows_of_all() -> None:
    """Eight groups of one GPU read, with 64 sequences, the experts that eight tensor-parallel ranks read with 64."""
    split = {op.name: op for op in forward(Layout(8, expert_groups=8), batch=64.0)}
    joined = {op.name: op for op in forward(Layout(1, 8, dp_attention=True, expert_groups=8), batch=64.0)}
    assert joined["moe.experts"] == split["moe.experts"]


# --- whole estimates ---------------------------------------------------------------------------------------------


def test_replicas_are_their_own_servers() -> None:
    """Four replicas with 32 sequences take the step that one takes with 8, and decode four times as many tokens."""
    asked = {"context": 32_768, "depth": 3, "tp": 2, "accept_length": 2.5}
    four = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", batch=32, dp=4, **asked).policies["native"]
    one = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", batch=8, **asked).policies["native"]
    assert four.cost.step_s == one.cost.step_s
    assert four.tokens_per_s_total == pytest.approx(4 * one.tokens_per_s_total)


def test_the_fullest_group_is_waited_for() -> None:
    """Nine sequences on eight groups are two on one of them."""
    asked = {"context": 32_768, "depth": 3, "dp": 8, "dp_attention": True}
    nine, sixteen = (wmtp_sim.estimate("deepseek-v3", "b200", batch=b, **asked).base_step.seconds for b in (9, 16))
    assert nine == sixteen


def test_one_group_is_plain_tensor_parallelism() -> None:
    plain, joined = (
        wmtp_sim.estimate("deepseek-v3", "h200", context=8192, depth=1, tp=8, dp_attention=flag)
        for flag in (False, True)
    )
    assert joined.steps["native"].seconds == plain.steps["native"].seconds
    assert joined.memory["native"].total_bytes == plain.memory["native"].total_bytes


def test_attention_data_parallelism_keeps_more_latents() -> None:
    """Eight ranks hold the same MLA latents under tensor parallelism; eight groups hold eight times as many tokens."""
    asked = {"context": 32_768, "depth": 1, "batch": 64}
    plain = wmtp_sim.estimate("deepseek-v3", "b200", tp=8, **asked).memory["native"]
    joined = wmtp_sim.estimate("deepseek-v3", "b200", dp=8, dp_attention=True, **asked).memory["native"]
    assert plain.kv_bytes == pytest.approx(8 * joined.kv_bytes)
    assert joined.max_batch > 2 * plain.max_batch


def test_a_dense_model_has_nothing_to_share_in_vllm() -> None:
    asked = {"context": 32_768, "depth": 0, "batch": 8, "dp": 4, "engine": "vllm"}
    joined, replicas = (
        wmtp_sim.estimate("qwen3-8b", "h200", dp_attention=flag, **asked).base_step.total for flag in (True, False)
    )
    assert (joined.seconds, joined.high) == (replicas.seconds, replicas.high)


def test_a_drafter_on_one_rank_is_drafted_as_on_one_gpu() -> None:
    """It reads all of its weights, and talks to nobody."""
    asked = {"context": 32_768, "depth": 3, "drafter": "eagle"}
    eight, one = (
        wmtp_sim.estimate("qwen3-235b-a22b", "h200", tp=tp, draft_tp=1, **asked).steps["native"] for tp in (8, 1)
    )
    for term in ("draft", "extend"):
        assert eight.term(term) == one.term(term)
    assert eight.term("verify") < one.term("verify")
    shared = wmtp_sim.estimate("qwen3-235b-a22b", "h200", tp=8, **asked).steps["native"]
    assert "collective" in {entry.operation.kernel for entry in shared.entries if entry.term == "draft"}


def test_a_pass_is_not_changed_by_naming_one_gpu() -> None:
    shape = Pass(3.0, 4.0, attended=1000.0, kv_bytes=2.0, state_bytes=4.0)
    assert list(target_forward(QWEN, shape)) == list(target_forward(QWEN, replace(shape, layout=Layout(1, 1))))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"tp": 8, "draft_tp": 1}, {"draft-tp-not-in-engine"}),
        ({"tp": 8, "draft_tp": 1, "engine": "vllm"}, {"draft-tp-not-in-engine"}),
        ({"tp": 8, "draft_tp": 8}, set()),
        ({"tp": 8, "draft_tp": 1, "depth": 0}, set()),
        ({"dp": 8, "batch": 4}, {"idle-groups"}),
        ({"dp": 8, "batch": 8, "dp_attention": True}, set()),
    ],
)
def test_layouts_are_warned_of(asked: dict[str, object], says: set[str]) -> None:
    found = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", **{"context": 8192, "depth": 3, **asked})  # type: ignore[arg-type]
    assert {warning.id for warning in warnings(found)} & {"draft-tp-not-in-engine", "idle-groups"} == says


def test_a_draft_model_of_vllm_may_have_fewer_ranks() -> None:
    found = wmtp_sim.estimate(
        "llama-3.1-8b", "h200", context=8192, depth=3, tp=8, draft_tp=1, drafter="llama-3.2-1b", engine="vllm"
    )
    assert "draft-tp-not-in-engine" not in {warning.id for warning in warnings(found)}


def test_rows_that_travel_leave_attention_its_reductions() -> None:
    """A base step of SGLang, two groups of two: nothing gathers rows by all-reduces where rows go to their experts."""
    asked = {"context": 8192, "depth": 1, "batch": 8, "tp": 2, "dp": 2, "dp_attention": True}
    found = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", expert_parallel=True, all_to_all=True, **asked)
    reduced = ("collective.all_reduce", "verify")
    counted = [
        sum(float(e.operation.repeats) for e in step.entries if (e.operation.name, e.term) == reduced)
        for step in (found.base_step, found.steps["native"])
    ]
    assert counted == [40 + 1 + 1, 40 + 1 + 1]  # attention and GDN, embedding, rows before lm_head


def test_an_mlp_of_its_own_group_is_reduced_within_it() -> None:
    """Where groups share experts alone, SGLang's all-reduces of base steps are not there for dense layers."""
    layout = Layout(2, 2, dp_attention=True, by_reduction=True)
    shape = Pass(4.0, 1.0, attended=1000.0, kv_bytes=2.0, state_bytes=4.0, layout=layout)
    dense = sent(target_forward(load_model("qwen3-8b"), shape))
    assert dense["all_reduce"] == pytest.approx((2 * 36 + 1) * 4 * 4096 * 2)


def test_idle_servers_exchange_rows_as_they_do_while_they_draft() -> None:
    found = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", context=8192, depth=1, batch=8, dp=2, dp_attention=True)
    idle = [
        e.operation.name
        for e in found._composer.idle_step(found.systems[0]).entries
        if e.operation.kernel == "collective"
    ]
    assert "collective.reduce_scatter" in idle
    assert "collective.reduce_scatter" not in [e.operation.name for e in found.base_step.entries]


def test_the_longer_host_counts_where_groups_share_experts() -> None:
    engine, joined = load_engine("sglang@26.06"), Layout(1, 2, dp_attention=True)
    assert engine.joined_host is not None
    assert engine.host_of(Layout(2)) == engine.host_of(Layout(1, 2)) == engine.host
    assert engine.host_of(joined).step_s == engine.host.step_s > engine.joined_host.step_s
    stated = load_engine("sglang@0.5.23", ("host.step_s=0.009",))
    assert stated.host_of(joined).step_s == 0.009
