"""Operations of single layers against closed forms and, where counting is possible, against counting."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wmtp_sim
from wmtp_sim.spec.model import (
    Attention,
    Block,
    BlockSparseIndex,
    CompressedAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    Mlp,
    Moe,
    SparseIndexer,
)
from wmtp_sim.spec.parallel import Layout
from wmtp_sim.spec.precision import GroupFormats
from wmtp_sim.work.collectives import all_reduce
from wmtp_sim.work.layers import Pass, block_operations, part_operations
from wmtp_sim.work.routing import expert_union, routed_experts

HIDDEN = 1024
BF16 = GroupFormats()
ONE = Pass(batch=1, rows=1, attended=100_000, kv_bytes=2, state_bytes=4)


def operations(part, shape=ONE, formats=BF16):
    return part_operations(part, shape, HIDDEN, formats)


def core(part, shape=ONE):
    """The attention or recurrence itself."""
    kernels = ("attention", "mla", "recurrent")
    (found,) = (op for op in operations(part, shape) if op.kernel in kernels)
    return found


def scan(part, shape=ONE):
    (found,) = (op for op in operations(part, shape) if op.kernel == "index_scan")
    return found


def summed(found, field, kernel=None):
    return sum(getattr(op, field) * op.repeats for op in found if kernel in (None, op.kernel))


# --- distinct experts ------------------------------------------------------------------------------------------


def counted_union(real: int, zero: int, top_k: int, tokens: int) -> float:
    """Mean number of distinct real experts over every possible routing of ``tokens`` rows, all equally likely."""
    choices = [set(c) for c in combinations(range(real + zero), top_k)]
    routings = product(choices, repeat=tokens)
    return float(np.mean([len(set().union(*routing) & set(range(real))) for routing in routings]))


@pytest.mark.parametrize(("real", "zero", "top_k"), [(4, 0, 1), (4, 0, 2), (5, 0, 3), (4, 0, 4), (3, 2, 2), (2, 3, 3)])
@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1)])
def test_union_by_enumeration(real, zero, top_k, batch, rows):
    moe = Moe(experts=real, top_k=top_k, inner=8, zero_experts=zero)
    assert expert_union(moe, batch, rows, 0.0) == pytest.approx(counted_union(real, zero, top_k, batch * rows))


def test_union_of_batches_of_rows_by_enumeration():
    moe = Moe(experts=4, top_k=2, inner=8)
    assert expert_union(moe, 2, 2, 0.0) == pytest.approx(counted_union(4, 0, 2, 4))


@st.composite
def routers(draw):
    experts = draw(st.integers(1, 1024))
    return Moe(experts=experts, top_k=draw(st.integers(1, experts)), inner=8)


overlaps = st.floats(0, 0.999)
counts = st.integers(1, 64)


@given(routers(), counts, counts, overlaps)
def test_union_grows_and_stays_in_bounds(moe, batch, rows, overlap):
    union = expert_union(moe, batch, rows, overlap)
    assert moe.top_k * (1 - 1e-12) <= union <= min(moe.experts, batch * rows * moe.top_k) * (1 + 1e-12)
    slack = 1e-9 * moe.experts
    assert expert_union(moe, batch + 1, rows, overlap) >= union - slack
    assert expert_union(moe, batch, rows + 1, overlap) >= union - slack
    assert expert_union(moe, batch, rows, overlap / 2) >= union - slack


@given(routers(), counts, counts)
def test_full_overlap_leaves_the_first_row_of_each_sequence(moe, batch, rows):
    """As overlap nears 1, further rows of a sequence add nothing; sequences still differ."""
    assert expert_union(moe, batch, rows, 1 - 1e-12) == pytest.approx(expert_union(moe, batch, 1, 0.0), rel=1e-6)


@given(routers(), counts)
def test_overlap_does_not_touch_single_rows(moe, batch):
    assert expert_union(moe, batch, 1, 0.5) == pytest.approx(expert_union(moe, batch, 1, 0.0))


@pytest.mark.parametrize(
    ("experts", "top_k", "rows", "measured"),
    [
        (64, 4, 2, 1.74 * 4),  # GLM-4.7-Flash, 2 tokens read 1.74 x: mlx-lm PR #1485
        (288, 8, 8, 38),  # GLM-5.3-Flash, 8 tokens: MiaAI-Lab PR #239
        (32, 4, 8, 13),  # gpt-oss-20b, 8 tokens: aws-neuron nkipy PR #63
    ],
)
def test_measured_unions_are_reached(experts, top_k, rows, measured):
    """Every direct count of architectures.md section 9 lies between overlaps of 0.2 and 0.5, as `Pass.overlap` says.

    Not among them: time ratios, which include kernel effects, and an unverified fit (10 of 512, 7 rows: 28.4 experts)
    that would take 0.67.
    """
    moe = Moe(experts=experts, top_k=top_k, inner=8)
    assert expert_union(moe, 1, rows, 0.5) < measured < expert_union(moe, 1, rows, 0.2)


def test_zero_experts_cost_nothing():
    """LongCat: 12 of 512 real and 256 identity experts."""
    moe = Moe(experts=512, top_k=12, inner=96, zero_experts=256)
    assert routed_experts(moe) == pytest.approx(8)
    found = operations(moe, replace(ONE, rows=3))
    assert summed(found, "flops", "moe") == pytest.approx(2 * 3 * 8 * 3 * HIDDEN * 96)
    assert summed(operations(moe), "weights", "moe") == pytest.approx(8 * 3 * HIDDEN * 96 * 2)


def test_expert_kernels():
    """One kernel each for up and down; bytes by union, FLOPs by pairs of row and expert."""
    moe = Moe(experts=16, top_k=4, inner=96)
    shape = replace(ONE, batch=2, rows=3)
    found = [op for op in operations(moe, shape) if op.kernel == "moe"]
    elements = 3 * HIDDEN * 96
    assert summed(found, "launches") == 2
    assert summed(found, "weights") == pytest.approx(16 * (1 - (1 - 4 / 16) ** 6) * elements * 2)
    assert summed(found, "flops") == 2 * 6 * 4 * elements
    ungated = [op for op in operations(moe.model_copy(update={"gated": False}), shape) if op.kernel == "moe"]
    assert summed(ungated, "flops") * 3 == summed(found, "flops") * 2


def test_latent_experts_work_in_their_own_space():
    """Nemotron-3 Super: two experts' matrices are latent-wide, the pair of latent projections runs once per layer."""
    moe = Moe(experts=16, top_k=4, inner=96, latent=256, gated=False)
    found = operations(moe)
    assert summed(found, "weights", "moe") == 4 * 2 * 256 * 96 * 2
    assert summed(found, "weights", "gemm") == (HIDDEN * 16 + 2 * HIDDEN * 256) * 2


# --- dense matrices --------------------------------------------------------------------------------------------


def test_swiglu_has_three_matrices_in_two_launches():
    found = [op for op in operations(Mlp(inner=4096), replace(ONE, rows=5)) if op.kernel == "gemm"]
    assert len(found) == summed(found, "launches") == 2
    assert summed(found, "weights") == 3 * HIDDEN * 4096 * 2
    assert summed(found, "flops") == 2 * 5 * 3 * HIDDEN * 4096


def test_ungated_mlp_has_two_matrices():
    found = operations(Mlp(inner=4096, gated=False))
    assert summed(found, "weights") == 2 * HIDDEN * 4096 * 2


def test_formats_price_their_group():
    formats = GroupFormats(mlp="fp8", attention="nvfp4", attention_out="nvfp4")
    mlp = operations(Mlp(inner=4096), formats=formats)
    assert summed(mlp, "weights") == pytest.approx(3 * HIDDEN * 4096 * (1 + 4 / 128**2))
    assert {op.math for op in mlp if op.kernel == "gemm"} == {"fp8"}
    products = [op for op in operations(GQA, formats=formats) if op.kernel == "gemm"]
    assert summed(products, "weights") == pytest.approx((2 * 16 + 2 * 2) * 256 * HIDDEN * (0.5 + 1 / 16))
    assert {op.math for op in products} == {"fp4"}


# --- attention -------------------------------------------------------------------------------------------------

GQA = Attention(q_heads=16, kv_heads=2, head_dim=256, v_head_dim=256)


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_kv_is_read_once_per_sequence(rows):
    """Rows add themselves to the read, and multiply FLOPs."""
    op = core(GQA, replace(ONE, batch=3, rows=rows))
    assert op.kv == 3 * (100_000 + rows) * 2 * 2 * 256 * 2
    assert op.flops == 3 * rows * 4 * 16 * 256 * (100_000 + rows)
    assert (op.streams, op.query_rows, op.positions) == (6, rows * 8, 100_000 + rows)


@pytest.mark.parametrize("q_heads", [2, 16, 64])
def test_query_heads_share_their_kv_head(q_heads):
    op = core(GQA.model_copy(update={"q_heads": q_heads}))
    assert op.kv == 100_001 * 2 * 2 * 256 * 2
    assert op.flops == 4 * q_heads * 256 * 100_001


def test_keys_and_values_of_different_width():
    """MiMo-V2: 192 and 128."""
    op = core(Attention(q_heads=64, kv_heads=4, head_dim=192, v_head_dim=128))
    assert op.kv == 100_001 * 4 * (192 + 128) * 2
    assert op.flops == 2 * 64 * (192 + 128) * 100_001


@pytest.mark.parametrize("kv_bytes", [1.0, 2.0])
def test_new_tokens_are_written(kv_bytes):
    shape = replace(ONE, batch=3, rows=4, kv_bytes=kv_bytes)
    assert summed(operations(GQA, shape), "kv", "elementwise") == 3 * 4 * 2 * 2 * 256 * kv_bytes


WINDOWED = [
    Attention(q_heads=64, kv_heads=8, head_dim=64, v_head_dim=64, window=128),
    CompressedAttention(
        heads=64, head_dim=512, rope_dim=64, q_lora_rank=1024, o_groups=8, o_lora_rank=1024, window=128, ratio=0
    ),
]


@pytest.mark.parametrize("mixer", WINDOWED, ids=["sliding", "compressed"])
def test_windows_stop_growing(mixer):
    """A window counts the row itself: one row attends at most 128 positions, each further row one new position."""

    def walked(rows, context):
        return core(mixer, replace(ONE, rows=rows, attended=context)).positions

    assert [walked(1, context) for context in (1, 100, 127, 128, 1_000_000)] == [2, 101, 128, 128, 128]
    assert [walked(4, context) for context in (100, 1_000_000)] == [104, 131]
    near, far = (core(mixer, replace(ONE, attended=context)) for context in (1_000, 1_000_000))
    assert (near.kv, near.flops) == (far.kv, far.flops)


def latent(indexer=None, **more):
    sizes = {"heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    return LatentAttention(**sizes, v_head_dim=128, indexer=indexer, **more)


INDEXER = SparseIndexer(heads=64, head_dim=128, top_k=2048)


def test_one_latent_serves_all_heads():
    """512 + 64 values a token, whatever the heads; about 242 FLOPs per byte with 128 heads in bf16."""
    op = core(latent(), replace(ONE, rows=3))
    assert op.kv == 100_003 * 576 * 2
    assert op.flops == 3 * 2 * 128 * 100_003 * (2 * 512 + 64)
    assert core(latent()).flops / core(latent()).kv == pytest.approx(242, rel=0.002)


def test_absorbed_latent_reads_kv_b_in_halves():
    found = {op.name: op for op in operations(latent()) if op.kernel == "gemm"}
    halves = found["attention.k_up"].weights + found["attention.v_up"].weights
    assert halves == 512 * 128 * (128 + 128) * 2


def test_sparse_latents():
    """Index keys grow linearly, latents stop at rows x top-k; a row multiplies its own top-k only."""
    contexts = (1_000, 100_000, 1_000_000)
    for rows in (1, 4):
        shapes = [replace(ONE, rows=rows, attended=context) for context in contexts]
        assert [scan(latent(INDEXER), s).kv for s in shapes] == [132 * context for context in contexts]
        assert [scan(latent(INDEXER), s).flops for s in shapes] == [rows * 2 * 64 * 128 * c for c in contexts]
        cores = [core(latent(INDEXER), s) for s in shapes]
        assert [op.positions for op in cores] == [1_000 + rows, *[rows * 2048 + rows] * 2]
        assert [op.flops / (rows * 2 * 128 * 1088) for op in cores] == [1_000 + rows, *[2048 + rows] * 2]


def test_shared_selection_is_not_scanned_again():
    shared = operations(latent(INDEXER.model_copy(update={"shared": True})))
    assert not [op for op in shared if op.kernel == "index_scan" or "index" in op.name]
    assert core(latent(INDEXER.model_copy(update={"shared": True}))).kv == core(latent(INDEXER)).kv


def compressed(ratio, indexer=None):
    return WINDOWED[1].model_copy(update={"ratio": ratio, "indexer": indexer})


def test_compressed_attention_is_dense_or_sparse_over_pooled_keys():
    """DeepSeek-V4 at ratio 128 and, with an indexer, 4: the sparse rows' FLOPs do not multiply with one another."""
    shape = replace(ONE, rows=4, attended=128_000)
    dense = core(compressed(128), shape)
    assert dense.positions == 127 + 4 + 1_000
    assert dense.flops == 4 * 4 * 64 * 512 * dense.positions
    indexer = SparseIndexer(heads=64, head_dim=128, top_k=512)
    sparse = core(compressed(4, indexer), shape)
    assert sparse.kv == (127 + 4 + 4 * 512) * 512 * 2
    assert sparse.flops == 4 * 4 * 64 * 512 * (127 + 4 + 512)
    assert scan(compressed(4, indexer), shape).kv == 32_000 * 132
    short = core(compressed(4, indexer), replace(shape, attended=800))
    assert short.positions == 127 + 4 + 200
    assert short.flops == 4 * 4 * 64 * 512 * short.positions


def test_block_sparse_attention():
    """MiniMax-M3: 4 index heads pick 16 blocks of 128 tokens for each row."""
    mixer = Attention(
        q_heads=64,
        kv_heads=4,
        head_dim=128,
        v_head_dim=128,
        sparse=BlockSparseIndex(heads=4, head_dim=128, top_blocks=16, block_tokens=128),
    )
    shape = replace(ONE, rows=3, attended=1_000_000)
    assert core(mixer, shape).kv == (3 * 2048 + 3) * 4 * 256 * 2
    assert core(mixer, shape).flops == 3 * 4 * 64 * 128 * (2048 + 3)
    assert scan(mixer, shape).kv == 1_000_000 * 128 * 2
    assert core(mixer, replace(shape, attended=1_000)).positions == 1_003


# --- recurrences -----------------------------------------------------------------------------------------------

#: Mixer -> elements of its state, channels of its convolution times kept inputs.
RECURRENT = [
    (GatedDeltaNet(k_heads=16, v_heads=32, k_dim=128, v_dim=64, conv_kernel=4), 32 * 128 * 64, (4096 + 2048) * 3),
    (KimiDeltaAttention(heads=32, head_dim=128, conv_kernel=4, decay_entries=32), 32 * 128 * 128, 3 * 4096 * 3),
    (
        Mamba2(heads=128, head_dim=64, groups=8, state_dim=128, conv_kernel=4),
        128 * 64 * 128,
        (8192 + 2 * 8 * 128) * 3,
    ),
    (Mamba1(inner=8192, state_dim=16, dt_rank=256, conv_kernel=4), 8192 * 16, 8192 * 3),
    (LightningAttention(heads=32, head_dim=128), 32 * 128 * 128, 0),
]


@pytest.mark.parametrize(("mixer", "elements", "inputs"), RECURRENT, ids=lambda value: getattr(value, "kind", ""))
def test_state_is_read_once_and_written_as_asked(mixer, elements, inputs):
    """Also: nothing of it depends on the context, and none of it is KV."""
    size = elements * 4 + inputs * 2
    assert core(mixer, replace(ONE, batch=5)).state == 5 * size * 2
    assert core(mixer, replace(ONE, batch=5, rows=4, state_writes=4.0)).state == 5 * size * (1 + 4)
    assert core(mixer, replace(ONE, rows=4)).flops == 4 * core(mixer).flops
    assert core(mixer, replace(ONE, attended=1)) == core(mixer)
    assert core(mixer, replace(ONE, state_bytes=2.0)).state == 2 * (elements * 2 + inputs * 2)
    assert summed(operations(mixer), "kv") == 0


# --- tensor parallelism ----------------------------------------------------------------------------------------

PARTS = [GQA, latent(), Mlp(inner=4096), Moe(experts=16, top_k=4, inner=96), RECURRENT[0][0], RECURRENT[2][0]]


@pytest.mark.parametrize("tp", [2, 8])
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.kind)
def test_ranks_share_weights(part, tp):
    """Evenly, but for what a rank holds whole (routers, latent down-projections) or in part (K and V of 2 heads)."""
    whole, shard = operations(part), operations(part, replace(ONE, layout=Layout(tp)))
    for before, after in zip(whole, shard, strict=False):
        if before.name in ("router.router", "attention.qkv_a_proj"):
            assert after.weights == before.weights
        elif before.name == "attention.qkv_proj":
            q, kv = 2 * HIDDEN * 16 * 256, 2 * HIDDEN * 2 * 2 * 256
            assert before.weights == q + kv
            assert after.weights == pytest.approx(q / tp + kv / 2)
        else:
            assert after.weights == pytest.approx(before.weights / tp)
    for kernel in ("moe", "attention", "mla", "recurrent"):
        assert summed(shard, "flops", kernel) == pytest.approx(summed(whole, "flops", kernel) / tp)
    assert summed(shard, "state") == pytest.approx(summed(whole, "state") / tp)


@pytest.mark.parametrize(("tp", "held"), [(1, 2), (2, 1), (4, 1), (8, 1)])
def test_few_kv_heads_are_replicated(tp, held):
    """2 KV heads: a rank never holds less than one; its query heads are still 16 / tp."""
    op = core(GQA, replace(ONE, layout=Layout(tp)))
    assert op.kv == 100_001 * held * 2 * 256 * 2
    assert op.streams == held
    assert op.query_rows * op.streams == 16 / tp


def test_every_rank_holds_all_latents():
    op = core(latent(INDEXER), replace(ONE, layout=Layout(8)))
    assert op.kv == core(latent(INDEXER)).kv
    assert scan(latent(INDEXER), replace(ONE, layout=Layout(8))).kv == scan(latent(INDEXER)).kv
    assert op.query_rows == 128 / 8


def test_every_rank_commits_its_own_states():
    asked = {"context": 4096, "depth": 3, "engine": "sglang"}
    one, four = (wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", tp=tp, **asked).steps["native"] for tp in (1, 4))
    for term in ("verify", "sample"):
        whole, shard = ([e.operation for e in step.entries if e.term == term] for step in (one, four))
        assert summed(shard, "state") == pytest.approx(summed(whole, "state") / 4) != 0


def test_all_reduces():
    """One after each mixer and MLP, of two bytes a value: a ring sends 2 (n - 1) / n of them over each link."""
    block = Block(count=3, mixers=(GQA,), channels=(Mlp(inner=4096),), norms=2)
    shape = replace(ONE, batch=2, rows=4, layout=Layout(4))
    found = [op for op in block_operations(block, shape, HIDDEN, BF16) if op.kernel == "collective"]
    assert summed(found, "launches") == 3 * 2
    assert summed(found, "bytes") == 3 * 2 * 1.5 * (8 * HIDDEN * 2)
    assert all_reduce(1000.0, 2).bytes == 1000
    alone = block_operations(block, replace(shape, layout=Layout()), HIDDEN, BF16)
    assert not [op for op in alone if op.kernel == "collective"]


# --- launches --------------------------------------------------------------------------------------------------


def test_launches_of_a_traced_base_step():
    """Qwen3.5-35B-A3B in vLLM 0.26 (vllm-h200.md): 270 dense GEMMs, 1 lm_head, 80 expert kernels, 10 attentions.

    Of its 1109 kernels, 60 are DeltaNet's and 11 combine and prepare attention. The other 677 (norms, routing, copies,
    shared-expert gate) are our small kernels and the four around each layer's experts, which belong to the class moe:
    within 10 %.
    """
    step = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", context=131_072, depth=0, engine="vllm").base_step
    found = [e.operation for e in step.entries if e.term == "verify"]
    lm_head = [op for op in found if op.name.startswith("lm_head")]
    assert summed(lm_head, "launches") == 1
    assert sum(op.repeats for op in found if op.kernel == "gemm") == 270 + 1  # the shared experts' run beside others
    assert sum(op.launches * op.repeats for op in found if op.kernel == "moe") == 80
    assert sum(op.launches * op.repeats for op in found if op.kernel == "attention") == 10
    assert sum(op.launches * op.repeats for op in found if op.kernel == "recurrent") == 60
    small = sum(op.launches * op.repeats for op in found if op.kernel == "elementwise")
    assert small + 40 * 4 == pytest.approx(677, rel=0.1)


def test_repeats_multiply():
    assert core(GQA).times(3).times(2).repeats == 6
    block = Block(count=7, mixers=(GQA,), norms=1)
    assert {op.repeats for op in block_operations(block, ONE, HIDDEN, BF16)} == {7}
