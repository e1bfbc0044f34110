"""Memory, line by line, against sums written out by hand; and the largest context and batch against what they fit.

Sizes are those of each model's config.json, totals of parameters those of its checkpoint.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wmtp_sim
from wmtp_sim.catalog.drafters import load_drafter
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.gpus import load_gpu
from wmtp_sim.catalog.models import load_model, model_names
from wmtp_sim.catalog.systems import load_system
from wmtp_sim.decide.memory import Memory, memory
from wmtp_sim.spec.drafter import mtp_drafter
from wmtp_sim.spec.engine import Engine
from wmtp_sim.spec.model import Model
from wmtp_sim.spec.parallel import Layout
from wmtp_sim.spec.precision import GroupFormats
from wmtp_sim.spec.system import Speculation
from wmtp_sim.spec.workload import Workload
from wmtp_sim.units import about_tokens
from wmtp_sim.work.cache import state_bytes_per_sequence
from wmtp_sim.work.resident import drafter_weight_bytes, target_weight_bytes, vision_weight_bytes
from wmtp_sim.work.weights import checkpoint_params, target_params

M = 2**20
BF16, FP32 = 2, 4
H200, GB300 = load_gpu("h200"), load_gpu("gb300")


def engine(snapshots: str = "per_row", fraction: float = 0.8) -> Engine:
    chosen = load_engine("sglang")
    state = chosen.state.model_copy(update={"resident_snapshots": snapshots})
    return chosen.model_copy(update={"state": state, "memory_fraction": fraction})


def work(context: Any = M, depth: Any = 6, window: Any = 4032, sink: Any = 64, batch: Any = 1, **more: Any) -> Workload:
    layout = more.pop("layout", Layout(more.pop("tp", 1)))
    return Workload(context, depth, window, sink, batch, layout=layout, **more)


def drafting(model: Model, drafter: str = "mtp", ring: bool = False) -> Speculation | None:
    """The plainest chain, or that over a ring; None where nobody drafts."""
    if drafter == "none":
        return None
    return Speculation(load_system("ring" if ring else "native"), load_drafter(drafter, model))


def asked(
    name: str,
    drafter: str = "mtp",
    *,
    ring: bool = False,
    served: Engine | None = None,
    gpu: str = "h200",
    **stated: Any,
) -> Memory:
    model = load_model(name)
    return memory(model, load_gpu(gpu), served or engine(), work(**stated), drafting(model, drafter, ring))


# --- whole deployments -----------------------------------------------------------------------------------------


def test_qwen_hybrid_at_a_million_tokens() -> None:
    """30 DeltaNet and 10 attention layers in bf16; one MTP head with one attention layer and 256 experts."""
    found = asked("qwen3.5-35b-a3b")
    target = 34_660_610_688
    attention = 2048 * (2 * 16 * 256 + 2 * 2 * 256) + 16 * 256 * 2048 + 2 * 256  # q and gate, k, v; o; q and k norms
    experts = (256 + 1) * 3 * 2048 * 512 + 256 * 2048 + 2048  # routed and shared, router, shared gate
    head = 4096 * 2048 + 3 * 2048 + attention + experts + 2 * 2048
    assert found.weights_bytes == BF16 * (target + head)
    assert found.vision_bytes == BF16 * 446_571_248
    assert found.kv_bytes == M * 10 * 2 * 2 * 256 * BF16
    assert found.draft_kv_bytes == M * 1 * 2 * 2 * 256 * BF16
    assert found.draft_kv_share == pytest.approx(1 / 11)
    state = 30 * (32 * 128 * 128 * FP32 + (2 * 16 * 128 + 32 * 128) * 3 * BF16)
    assert found.state_bytes == state * (1 + 7)
    assert found.logits_bytes == 7 * 248_320 * FP32
    assert found.budget_bytes == 0.8 * H200.memory_bytes
    assert found.reserve_bytes == pytest.approx(0.2 * H200.memory_bytes)
    lines = (found.weights_bytes, found.vision_bytes, found.kv_bytes, found.draft_kv_bytes)
    assert found.total_bytes == sum(lines) + found.state_bytes + found.logits_bytes
    assert found.total_bytes / 1e9 == pytest.approx(96.0, abs=0.05)
    assert found.fits


def test_llama_with_a_small_llama() -> None:
    """The draft model's embedding and lm_head are one matrix."""
    found = asked("llama-3.1-8b", "llama-3.2-1b", context=100_000, depth=4, batch=3)
    assert found.weights_bytes == BF16 * (8_030_261_248 + 1_235_814_400)
    assert found.vision_bytes == 0
    assert found.kv_bytes == 3 * 100_000 * 32 * 2 * 8 * 128 * BF16
    assert found.draft_kv_bytes == 3 * 100_000 * 16 * 2 * 8 * 64 * BF16
    assert found.state_bytes == 0
    assert found.logits_bytes == 3 * 5 * 128_256 * FP32


def test_deepseek_on_eight_ranks() -> None:
    """fp8 with a scale per 128 x 128; heads, experts and vocabulary are split, latents and down-projections are not."""
    found = asked("deepseek-v3", context=131_072, depth=1, batch=16, tp=8)
    fp8, h = 1 + 4 / 128**2, 7168
    split = 1536 * 128 * 192 + 128 * 128 * 512 + 128 * 512 * 128 + 128 * 128 * h
    attention = fp8 * (h * (1536 + 576) + split / 8) + BF16 * (1536 + 512 + 2 * h)
    dense = fp8 * 3 * h * 18_432 / 8
    routed = fp8 * 257 * 3 * h * 2048 / 8 + BF16 * (h * 256 + 256)
    vocabulary = 2 * 129_280 * h * BF16 / 8
    target = 61 * attention + 3 * dense + 58 * routed + vocabulary + BF16 * h
    head = attention + routed + BF16 * (2 * h * h + 3 * h)
    assert found.weights_bytes == pytest.approx(target + head, rel=1e-12)
    assert found.kv_bytes == 16 * 131_072 * 61 * 576 * BF16
    assert found.draft_kv_bytes == 16 * 131_072 * 576 * BF16
    assert found.state_bytes == 0
    assert found.logits_bytes == 16 * 2 * 129_280 * FP32  # gathered: whole on every rank


def test_an_int4_model_on_a_24_gb_card() -> None:
    """A public run: Qwen3.6-27B in int4 with its MTP head and an fp8 cache, 65,536 tokens on one RTX 3090 (vLLM)."""
    answer = wmtp_sim.estimate(
        "qwen3.6-27b", "rtx-3090", context=65_536, depth=3, engine="vllm", weights="int4", kv="fp8", alpha=0.6
    )
    found = answer.memory["native"]
    assert found.budget_bytes + found.reserve_bytes == pytest.approx(24_576 * 2**20)
    assert found.fits
    assert about_tokens(float(found.max_context)) == "100K"


# --- weights ---------------------------------------------------------------------------------------------------


def in_bf16(model: Model) -> Model:
    precision = model.precision.model_copy(update={"target": GroupFormats(), "head": GroupFormats()})
    return model.model_copy(update={"precision": precision})


@pytest.mark.parametrize("name", model_names())
def test_every_parameter_lies_in_memory_once(name: str) -> None:
    """Hyper-connections, tables and experts included: all of the checkpoint but the copies that engines share."""
    model = in_bf16(load_model(name))
    target, vision = target_weight_bytes(model), vision_weight_bytes(model)
    assert target == BF16 * target_params(model)
    drafter = mtp_drafter(model)
    head = 0.0 if drafter is None else drafter_weight_bytes(drafter)
    copied = 0 if model.mtp is None else model.mtp.copied_params
    assert target + vision + head == BF16 * (checkpoint_params(model) - copied)


def test_hyper_connections_lie_on_every_rank() -> None:
    """DeepSeek-V4-Pro: in each of 61 layers two matrices from 4 streams of 7168 to 4 + 4 + 16 mixing weights."""
    model = load_model("deepseek-v4-pro")
    plain = tuple(block.model_copy(update={"residual_streams": 1}) for block in model.blocks)
    more = target_weight_bytes(model, Layout(8)) - target_weight_bytes(
        model.model_copy(update={"blocks": plain}), Layout(8)
    )
    assert more == pytest.approx(BF16 * 61 * 2 * (4 * 7168 * 24 + 24 + 3), rel=1e-9)
    assert more / 1e9 == pytest.approx(0.17, abs=0.005)


@pytest.mark.parametrize("tp", [1, 4])
def test_the_vision_tower_is_split_and_never_quantised(tp: int) -> None:
    served = engine(fraction=0.97)
    for name in ("qwen3.5-122b-a10b", "qwen3.5-122b-a10b-fp8", "qwen3.5-122b-a10b-nvfp4"):
        found = asked(name, context=4096, tp=tp, gpu="gb300", served=served)
        assert found.vision_bytes == BF16 * 451_290_864 / tp
        without = load_model(name).model_copy(update={"vision_params": 0})
        text = memory(without, GB300, served, work(context=4096, layout=Layout(tp)), drafting(without))
        assert found.total_bytes - text.total_bytes == found.vision_bytes
        assert text.max_context > found.max_context > 0
        assert text.max_batch >= found.max_batch


@pytest.mark.parametrize("tied", [False, True])
def test_tied_embeddings_of_a_draft_model(tied: bool) -> None:
    drafter = load_drafter("llama-3.2-1b", load_model("llama-3.1-8b"))
    assert drafter is not None
    assert not drafter.own_lm_head  # its embedding serves
    vocabulary = 0 if tied else BF16 * 128_256 * 2048
    found = drafter_weight_bytes(drafter.model_copy(update={"own_lm_head": not tied}))
    assert found == BF16 * 1_235_814_400 + vocabulary


def test_an_eagle_head_brings_an_lm_head_of_its_own() -> None:
    target = load_model("llama-3.1-8b")
    drafter = load_drafter("eagle", target)
    assert drafter is not None
    shared = drafter.model_copy(update={"own_lm_head": False})
    for tp in (1, 8):
        assert (
            drafter_weight_bytes(drafter, Layout(tp)) - drafter_weight_bytes(shared, Layout(tp))
            == BF16 * 32_000 * 4096 / tp
        )


# --- caches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tp", "full", "window"), [(1, 4, 8), (2, 2, 4), (4, 1, 2), (8, 1, 1), (16, 1, 1)])
def test_each_layer_splits_its_own_kv_heads(tp: int, full: int, window: int) -> None:
    """MiMo-V2-Flash: 9 full layers with 4 KV heads, 39 layers with 8 that keep 128 tokens; 3 heads with 8 likewise."""
    found = asked("mimo-v2-flash", context=200_000, depth=3, batch=2, tp=tp)
    wide = (192 + 128) * BF16
    assert found.kv_bytes == 2 * (200_000 * 9 * full + 39 * 128 * window) * wide
    assert found.draft_kv_bytes == 2 * 3 * 128 * window * wide


def test_index_keys_lie_on_every_rank() -> None:
    """MiniMax-M3: 4 KV heads of 128 are split; the index key of its sparse layers, one of 128 in bf16, is not."""
    model = load_model("minimax-m3-nvfp4")
    layers = sum(block.count for block in model.blocks)
    sparse = sum(block.count for block in model.blocks for mixer in block.mixers if getattr(mixer, "sparse", None))
    found = memory(model, H200, engine(), work(context=1000, depth=0, layout=Layout(4)))
    assert found.kv_bytes == 1000 * (layers * 1 * 2 * 128 + sparse * 128) * BF16


@pytest.mark.parametrize(("snapshots", "held"), [("per_row", 7), ("per_draft", 6)])
def test_snapshots_of_an_engine(snapshots: str, held: int) -> None:
    """SGLang keeps one per verify row beside the state, vLLM one slot per drafted token."""
    once = 64_389_120
    assert asked("qwen3.5-35b-a3b", served=engine(snapshots), batch=5).state_bytes == 5 * once * (1 + held)
    assert asked("qwen3.5-35b-a3b", "none", served=engine(snapshots), batch=5).state_bytes == 5 * once
    np.testing.assert_equal(
        asked("qwen3.5-35b-a3b", served=engine(snapshots), depth=[0, 6]).state_bytes, [once, once * (1 + held)]
    )


def test_shipped_engines_keep_the_snapshots_that_their_code_keeps() -> None:
    once = 64_389_120
    assert asked("qwen3.5-35b-a3b", served=load_engine("sglang")).state_bytes == once * (1 + 6 + 1)
    assert asked("qwen3.5-35b-a3b", served=load_engine("vllm")).state_bytes == once * (1 + 6)


@pytest.mark.parametrize("tp", [1, 4])
def test_a_hybrid_draft_model_holds_states(tp: int) -> None:
    draft = load_model("nemotron-h-8b")
    found = asked("nemotron-3-nano-30b-a3b", "nemotron-h-8b", depth=2, batch=3, tp=tp)
    target = state_bytes_per_sequence(load_model("nemotron-3-nano-30b-a3b"))
    assert state_bytes_per_sequence(draft) > 0
    assert found.state_bytes == 3 * (target * 4 + state_bytes_per_sequence(draft)) / tp


@pytest.mark.parametrize(("depth", "window", "sink"), [(1, 4032, 64), (6, 4032, 64), (6, 1, 0), (3, 512, 4)])
def test_a_ring(depth: int, window: int, sink: int) -> None:
    """Sink, window and the rows of one step: nothing else, however long the context; never more than the context."""
    stated: dict[str, Any] = {"depth": depth, "window": window, "sink": sink, "batch": 2}
    slots = sink + window + depth + 1
    found = asked("qwen3.5-35b-a3b", ring=True, context=[slots - 1, slots, slots + 1, 50_000, M], **stated)
    np.testing.assert_equal(found.draft_kv_bytes, 2 * 2048 * np.minimum([slots - 1, M, M, M, M], slots))
    native = asked("qwen3.5-35b-a3b", context=M, **stated)
    assert native.draft_kv_bytes == 2 * 2048 * M
    assert native.kv_bytes == np.asarray(found.kv_bytes)[-1]


# --- how far ---------------------------------------------------------------------------------------------------

DEPLOYMENTS = (
    ("qwen3.5-35b-a3b", "mtp"),
    ("qwen3.5-27b", "none"),
    ("deepseek-v4-flash", "mtp"),
    ("mimo-v2-flash", "mtp"),
    ("step-3.5-flash", "mtp"),
    ("gemma-3-27b", "none"),
    ("llama-3.1-8b", "llama-3.2-1b"),
    ("nemotron-3-nano-30b-a3b", "nemotron-h-8b"),
)


@settings(max_examples=150, deadline=None)
@given(
    deployment=st.sampled_from(DEPLOYMENTS),
    context=st.integers(1, 2**22),
    depth=st.integers(0, 8),
    window=st.sampled_from([1, 128, 4032, 2**18]),
    batch=st.integers(1, 300),
    tp=st.sampled_from([1, 2, 4]),
    ring=st.booleans(),
    snapshots=st.sampled_from(["per_row", "per_draft"]),
)
def test_the_largest_fit_and_one_more_does_not(
    deployment: tuple[str, str],
    context: int,
    depth: int,
    window: int,
    batch: int,
    tp: int,
    ring: bool,
    snapshots: str,
) -> None:
    """``max_context`` and ``max_batch`` are the inverse of ``total_bytes``, up to the rounding of a sum of bytes."""
    name, drafter = deployment
    slack = 1 + 1e-12

    def found(context: float, batch: float) -> Memory:
        stated: dict[str, Any] = {"context": context, "batch": batch, "depth": depth, "window": window, "tp": tp}
        return asked(name, drafter, ring=ring, served=engine(snapshots), gpu="b200", **stated)

    here = found(context, batch)
    for ranged, largest in (("context", float(here.max_context)), ("batch", float(here.max_batch))):
        assert np.isfinite(largest)

        def at(value: float, ranged: str = ranged) -> Memory:
            return found(value, batch) if ranged == "context" else found(context, value)

        if largest:
            assert at(largest).total_bytes <= here.budget_bytes * slack
        assert at(largest + 1).total_bytes * slack > here.budget_bytes
    assert bool(here.fits) == (context <= here.max_context) == (batch <= here.max_batch)


def test_nothing_grows_without_attention() -> None:
    """Only windows and states: any context fits, or none."""
    model = load_model("mimo-v2-flash")
    windowed = tuple(block for block in model.blocks if all(getattr(m, "window", None) for m in block.mixers))
    model = model.model_copy(update={"blocks": windowed})
    fits = memory(model, load_gpu("b300"), engine(fraction=0.9), work(context=4096, layout=Layout(4)))
    assert fits.max_context == np.inf
    assert memory(model, load_gpu("rtx-4090"), engine(), work(context=4096)).max_context == 0
