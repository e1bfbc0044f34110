"""Numbers of tensor-parallel ranks that engines refuse are refused, by the size that does not split."""

from __future__ import annotations

import pytest

import wmtp_sim
from wmtp_sim.catalog.models import load_model, model_names
from wmtp_sim.errors import InputError
from wmtp_sim.spec.model import Attention, Block, CompressedAttention, KimiDeltaAttention, LightningAttention, Mlp, Moe
from wmtp_sim.spec.parallel import Layout, check_ranks


def estimate(name: str, tp: int, depth: int = 0, drafter: str = "mtp") -> None:
    wmtp_sim.estimate(name, "h200", context=4096, depth=depth, drafter=drafter, tp=tp)


@pytest.mark.parametrize(
    ("name", "tp", "says"),
    [
        ("qwen3-8b", 3, "3 ranks cannot share the 32 query heads of qwen3-8b; one of 1, 2, 4, 8, 16, 32"),
        ("qwen3-8b", 64, "64 ranks cannot share the 32 query heads of qwen3-8b"),
        ("qwen3.5-35b-a3b", 3, "3 ranks cannot share the 32 value heads of qwen3.5-35b-a3b; one of 1, 2, 4, 8, 16"),
        ("qwen3.5-35b-a3b", 32, "32 ranks cannot share the 16 key heads"),
        ("qwen2.5-7b-instruct-1m", 8, "8 ranks cannot share the 28 query heads"),
        ("qwen2.5-7b-instruct-1m", 7, "7 ranks can neither share nor replicate the 4 KV heads"),
        ("glm-4.5-air", 24, "24 ranks cannot share the 1408 inner channels of an expert of glm-4.5-air"),
        ("falcon-h1-34b", 5, "5 ranks can neither share nor replicate the 4 KV heads"),
        ("deepseek-v3", 3, "3 ranks cannot share the 128 heads"),
        ("kimi-k3", 9, "9 ranks cannot share the 96 heads of kimi-k3; one of 1, 2, "),
        ("nemotron-h-8b", 12, "12 ranks cannot share the 128 heads"),
        ("jamba-1.5-mini", 3, "3 ranks cannot share the 8192 channels"),
    ],
)
def test_targets(name: str, tp: int, says: str) -> None:
    with pytest.raises(InputError) as caught:
        estimate(name, tp)
    assert str(caught.value).startswith(f"--tp: {says}")


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (Attention(q_heads=16, kv_heads=4, head_dim=64, v_head_dim=64), "16 query heads"),
        (LightningAttention(heads=16, head_dim=64), "16 heads"),
        (KimiDeltaAttention(heads=16, head_dim=64, conv_kernel=4, decay_entries=16), "16 heads"),
        (
            CompressedAttention(
                heads=18, head_dim=64, rope_dim=8, q_lora_rank=8, o_groups=4, o_lora_rank=8, window=128, ratio=0
            ),
            "4 output groups",
        ),
        (Mlp(inner=1000), "1000 inner channels of an MLP"),
        (Moe(experts=9, top_k=3, inner=1000), "1000 inner channels of an expert"),
        (Moe(experts=9, top_k=3, inner=9, shared_inner=1000), "1000 inner channels of the shared expert"),
    ],
)
def test_parts(part: object, says: str) -> None:
    kind = "channels" if isinstance(part, Mlp | Moe) else "mixers"
    blocks = (Block.model_validate({kind: (part,), "norms": 2}),)
    check_ranks(Layout(), "mine", blocks)
    with pytest.raises(InputError, match=f"^--tp: 9 ranks cannot share the {says} of mine; one of 1"):
        check_ranks(Layout(tp=9), "mine", blocks)


def test_whole_experts() -> None:
    """Experts must divide among the ranks; their inner channels, which stay together, need not."""
    blocks = (Block.model_validate({"channels": (Moe(experts=12, top_k=3, inner=1000),), "norms": 2}),)
    check_ranks(Layout(tp=12, expert_groups=12), "mine", blocks)
    with pytest.raises(InputError, match="--tp: 8 ranks cannot share the 12 experts of mine; one of 1, 2, 3, 4, 6, 12"):
        check_ranks(Layout(tp=8, expert_groups=8), "mine", blocks)
    with pytest.raises(InputError, match="--expert-parallel: qwen3-8b has no experts; drop the flag"):
        wmtp_sim.estimate("qwen3-8b", "h200", context=4096, depth=0, tp=8, expert_parallel=True)


def test_experts_dealt_to_groups_of_ranks() -> None:
    """Experts divide among the groups, their inner channels among a group's ranks."""
    blocks = (Block.model_validate({"channels": (Moe(experts=12, top_k=3, inner=50),), "norms": 2}),)
    check_ranks(Layout(tp=20, expert_groups=4), "mine", blocks)
    with pytest.raises(
        InputError, match=r"--tp: 3 ranks cannot share the 50 inner.* of mine; one of 4, 8, 20, 40, 100,"
    ):
        check_ranks(Layout(tp=12, expert_groups=4), "mine", blocks)
    with pytest.raises(
        InputError, match="--expert-parallel: 3 groups cannot share 8 ranks; a number that divides --tp"
    ):
        wmtp_sim.estimate("deepseek-r1", "h200", context=4096, depth=0, tp=8, expert_parallel=3)
    with pytest.raises(InputError, match="--expert-parallel: -2 groups"):
        wmtp_sim.estimate("deepseek-r1", "h200", context=4096, depth=0, tp=8, expert_parallel=-2)
    all_groups, flag = (
        wmtp_sim.estimate("deepseek-r1", "h200", context=4096, depth=0, tp=8, expert_parallel=parallel).base_step
        for parallel in (8, True)
    )
    assert all_groups.seconds == flag.seconds


def test_few_kv_heads_are_replicated() -> None:
    """As many ranks as query heads, whatever the KV heads; but not three halves of a KV head each."""
    blocks = (Block(mixers=(Attention(q_heads=24, kv_heads=4, head_dim=64, v_head_dim=64),), norms=2),)
    for ranks in (1, 2, 4, 8, 12, 24):
        check_ranks(Layout(ranks), "mine", blocks)
    for ranks in (3, 6):
        with pytest.raises(InputError, match="the 4 KV heads of mine; one of 1, 2, 4, 8, 12, 24"):
            check_ranks(Layout(ranks), "mine", blocks)


def test_drafters_share_the_ranks() -> None:
    """A drafter with fewer heads than the target limits the ranks, as long as it drafts."""
    estimate("llama-3.1-70b", 64)
    with pytest.raises(
        InputError, match=r"cannot share the 32 query heads of llama-3\.2-1b; one of 1, 2, 4, 8, 16, 32$"
    ):
        estimate("llama-3.1-70b", 64, depth=3, drafter="llama-3.2-1b")
    estimate("llama-3.1-70b", 64, drafter="llama-3.2-1b")


@pytest.mark.parametrize("name", model_names())
def test_ordinary_numbers_serve_every_model(name: str) -> None:
    for tp in (1, 2, 4):
        estimate(name, tp, depth=1 if load_model(name).mtp else 0)


# --- layouts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"tp": 0}, "--tp: 0 ranks; a whole number from 1 to 1024"),
        ({"dp": 0}, "--dp: 0 groups; a whole number from 1 to 1024"),
        ({"tp": 64, "dp": 32}, "--tp times --dp: 2048 ranks; a whole number from 1 to 1024"),
        ({"tp": 2, "dp": 2, "expert_groups": 4}, "--expert-parallel: 4 groups cannot share 2 ranks"),
        ({"tp": 2, "all_to_all": True}, "--all-to-all: sends rows to ranks that hold whole experts"),
        ({"dp": 2, "all_to_all": True}, "--all-to-all: sends rows to other ranks, and there are none"),
        ({"tp": 4, "draft_tp": 3}, "--draft-tp: 3 ranks of 4; a number that divides --tp"),
        ({"hosts": 0}, "hosts: 0 hosts; a whole number from 1 to 1024"),
        ({"pp": 0}, "pp: 0 pipeline stages; a whole number from 1 to 1024"),
    ],
)
def test_layouts_that_nobody_can_start(stated: dict[str, int], says: str) -> None:
    with pytest.raises(InputError) as caught:
        Layout(**stated)  # type: ignore[arg-type]
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(
    ("layout", "hosts"),
    [
        (Layout(), 1),
        (Layout(8), 1),
        (Layout(9), 2),
        (Layout(8, pp=2), 2),
        (Layout(8, hosts=2), 2),
        (Layout(8, 2, hosts=2), 1),  # a replica in each
        (Layout(8, 2), 1),
        (Layout(8, 2, dp_attention=True), 2),
        (Layout(8, 3, hosts=4), 2),
        (Layout(8, 2, dp_attention=True, hosts=4), 4),
    ],
)
def test_hosts_whose_gpus_work_on_one_step(layout: Layout, hosts: int) -> None:
    assert layout.hosts_of_a_step(8) == hosts
    assert layout.hosts_of_a_step(1) == max(layout.ranks * layout.pp, hosts)


def test_groups_that_share_experts_are_joined_by_them() -> None:
    """Two groups of four: attention over four ranks, what is joint over eight, twice where they are replicas."""
    shared = Layout(4, 2, dp_attention=True, joint=("expert", "mlp"))
    assert (shared.gpus, shared.ranks) == (8, 8)
    assert [shared.ranks_of(group) for group in ("attention", "expert", "mlp", "lm_head")] == [4, 8, 8, 4]
    replicas = Layout(4, 2, joint=("expert", "mlp"))
    assert (replicas.gpus, replicas.ranks) == (8, 4)
    assert [replicas.ranks_of(group) for group in ("attention", "expert", "mlp", "lm_head")] == [4, 4, 4, 4]


def test_experts_must_divide_among_the_ranks_of_all_groups() -> None:
    """40 inner channels of an expert split over the four ranks of a group, and not over the sixteen of all."""
    blocks = (Block.model_validate({"channels": (Moe(experts=12, top_k=3, inner=40),), "norms": 2}),)
    check_ranks(Layout(4, 4), "mine", blocks)
    check_ranks(Layout(2, 4, dp_attention=True), "mine", blocks)
    with pytest.raises(InputError, match="--tp: 16 ranks cannot share the 40 inner channels of an expert of mine; one"):
        check_ranks(Layout(4, 4, dp_attention=True), "mine", blocks)


def test_a_head_lies_as_its_target_and_other_drafters_in_one_group() -> None:
    layout = Layout(4, 2, dp_attention=True, expert_groups=8)
    assert layout.for_draft("mtp") == layout
    assert layout.for_draft("eagle") == Layout(4)
    assert Layout(4, draft_tp=1).for_draft("mtp") == Layout(1)


@pytest.mark.parametrize(
    ("engine", "asked", "says"),
    [
        ("llama.cpp", {"dp": 2, "dp_attention": True}, "--dp-attention: groups share nothing in llama.cpp"),
        (
            "llama.cpp",
            {"tp": 2, "expert_parallel": True, "all_to_all": True},
            "--all-to-all: llama.cpp b10451 sends no",
        ),
        (
            "sglang",
            {"dp": 3, "dp_attention": True},
            "--tp: 3 ranks cannot share the 256 experts of qwen3.5-35b-a3b; an",
        ),
    ],
)
def test_layouts_that_an_engine_or_a_model_has_not(engine: str, asked: dict[str, int], says: str) -> None:
    parallel = {"expert_parallel": True, **asked}
    with pytest.raises(InputError) as caught:
        wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", context=4096, depth=0, engine=engine, **parallel)
    assert str(caught.value).startswith(says)


def test_a_head_without_experts_may_draft_for_a_target_with_some() -> None:
    """Rows of the target travel to their experts; the head's own MLP stays where it is."""
    asked = {"dp": 8, "dp_attention": True, "expert_parallel": True, "all_to_all": True}
    step = wmtp_sim.estimate("mimo-v2-flash", "h200", context=4096, depth=1, batch=8, **asked).steps["native"]
    sends = {e.term for e in step.entries if e.operation.name == "collective.dispatch"}
    assert sends == {"verify"}
