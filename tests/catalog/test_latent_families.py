"""Importers of the latent-attention families against published counts: architecture facts, sections 4, 5, 6 and 8."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from wmtp_sim.catalog.fields import read_json_object
from wmtp_sim.catalog.models import catalog_folder, import_config, load_model
from wmtp_sim.errors import InputError
from wmtp_sim.spec.model import (
    CompressedAttention,
    KimiDeltaAttention,
    LatentAttention,
    LightningAttention,
    Mixer,
    Model,
    Moe,
)
from wmtp_sim.work.weights import checkpoint_params, mtp_params, residual_mixing, target_params, weights_of

#: Safetensors totals of the released checkpoints; V3's also has 41,540,496 fp8 scales, K2's 61 x 56 rotary buffers.
CHECKPOINTS = {
    "deepseek-v3": 684_531_386_000 - 41_540_496,
    "deepseek-r1": 684_489_845_504,
    "deepseek-v3.1-nvfp4": 684_489_845_504,
    "deepseek-v3.2": 685_355_329_792,
    "deepseek-v4-flash": 290_944_616_402,
    "deepseek-v4-pro": 1_598_839_674_782,
    "glm-5": 753_864_139_008,
    "glm-5.1": 753_864_139_008,
    "glm-5.2": 753_329_940_480,
    "kimi-k2": 1_026_408_235_864 - 61 * 56,
    "kimi-k3": 2_779_931_837_184,
    "kimi-linear-48b-a3b": 49_122_681_728,
    "ling-2.5-1t": 1_012_231_160_320,
    "ring-2.5-1t": 1_012_231_160_320,
    "ling-2.6-1t": 1_025_414_425_344,
    "ling-2.6-flash": 107_494_409_216,
    "longcat-flash": 561_862_880_256,
}

HEADS = {
    "deepseek-v3": 11_610_068_224,
    "deepseek-v3.2": 11_624_027_648,
    "deepseek-v4-flash": 6_610_048_891,
    "deepseek-v4-pro": 25_840_145_979,
    "glm-5": 9_952_920_576,
    "glm-5.2": 9_952_920_576,
    "ling-2.6-1t": 13_183_265_024,
    "ling-2.6-flash": 3_307_493_632,
    "longcat-flash": 392_593_408,
}


def document(name: str) -> dict[str, Any]:
    return deepcopy(read_json_object(catalog_folder() / f"{name}.json"))


def layers_of(model: Model, kind: type) -> int:
    """How many mixers of ``kind`` all layers together hold."""
    return sum(b.count * sum(isinstance(m, kind) for m in b.mixers) for b in model.blocks)


def first_mixer(model: Model, kind: type) -> Mixer:
    return next(m for b in model.blocks for m in b.mixers if isinstance(m, kind))


def first_moe(model: Model) -> Moe:
    return next(c for b in model.blocks for c in b.channels if isinstance(c, Moe))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoint_total_is_exact(name):
    assert checkpoint_params(load_model(name)) == CHECKPOINTS[name]


@pytest.mark.parametrize("name", HEADS)
def test_head_total_is_exact(name):
    assert mtp_params(load_model(name)) == HEADS[name]


# --- per-layer counts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "attention", "expert", "shared", "router"),
    [
        ("deepseek-v3", 187_107_328, 44_040_192, 44_040_192, 1_835_264),
        ("deepseek-v3.2", 187_107_328 + 13_959_424, 44_040_192, 44_040_192, 1_835_264),
        ("glm-5", 165_022_208 + 9_371_904, 37_748_736, 37_748_736, 1_573_120),
        ("kimi-k2", 101_124_096, 44_040_192, 44_040_192, 2_752_896),
    ],
)
def test_golden_layer_counts(name, attention, expert, shared, router):
    model = load_model(name)
    moe, hidden = first_moe(model), model.hidden
    weights = weights_of(moe, hidden)
    assert weights_of(first_mixer(model, LatentAttention), hidden).params == attention
    assert sum(m.k * m.n for m in weights.experts) == expert
    assert sum(m.params for m in weights.matrices if m.group == "shared_expert") == shared
    assert sum(m.params for m in weights.matrices if m.group == "router") + weights.small == router


def test_v4_attention_by_hand():
    """Flash, a sparse layer: the terms of the modelling code, written out."""
    model = load_model("deepseek-v4-flash")
    h, heads, dim, rank = 4096, 64, 512, 1024
    window = h * rank + rank + rank * heads * dim + h * dim + dim + heads  # q, its norm; kv, its norm; sinks
    window += (heads * dim // 8) * 8 * 1024 + 8 * 1024 * h  # grouped output
    dense = window + 2 * h * dim + 128 * dim + dim
    sparse = window + 4 * h * dim + 4 * 2 * dim + dim
    sparse += rank * 64 * 128 + h * 64 + 4 * h * 128 + 4 * 2 * 128 + 128
    counts = {m.ratio: weights_of(m, h).params for b in model.blocks for m in b.mixers if hasattr(m, "ratio")}
    assert counts == {0: window, 4: sparse, 128: dense}


def test_hyper_connections_are_two_small_matrices_per_layer():
    block = load_model("deepseek-v4-flash").blocks[0]
    mixing = residual_mixing(block, 4096)
    assert [(m.k, m.n) for m in mixing.matrices] == [(4 * 4096, 24)] * 2
    assert mixing.small == 2 * (24 + 3)
    assert residual_mixing(load_model("deepseek-v3").blocks[0], 7168).params == 0


def test_one_matrix_per_launch_in_kimi_delta_attention():
    names = {}
    for name in ("kimi-linear-48b-a3b", "kimi-k3"):
        model = load_model(name)
        matrices = weights_of(first_mixer(model, KimiDeltaAttention), model.hidden).matrices
        names[name] = [m.name for m in matrices]
    assert names["kimi-linear-48b-a3b"] == ["qkvb_fg_a_proj", "fg_b_proj", "o_proj"]
    assert names["kimi-k3"] == ["qkvg_proj", "f_a_b_proj", "f_b_proj", "o_proj"]


# --- which layer is what ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("kimi-linear-48b-a3b", {KimiDeltaAttention: 20, LatentAttention: 7}),
        ("kimi-k3", {KimiDeltaAttention: 69, LatentAttention: 24}),
        ("ling-2.6-1t", {LightningAttention: 70, LatentAttention: 10}),
        ("ling-2.6-flash", {LightningAttention: 28, LatentAttention: 4}),
        ("longcat-flash", {LatentAttention: 56}),
        ("deepseek-v3", {LatentAttention: 61}),
    ],
)
def test_layer_kinds(name, kinds):
    model = load_model(name)
    assert {kind: layers_of(model, kind) for kind in kinds} == kinds


@pytest.mark.parametrize(("name", "ratios"), [("flash", {0: 2, 4: 21, 128: 20}), ("pro", {4: 30, 128: 31})])
def test_v4_compression_ratios(name, ratios):
    model = load_model(f"deepseek-v4-{name}")
    counts: dict[int, int] = {}
    for block in model.blocks:
        mixer = block.mixers[0]
        assert isinstance(mixer, CompressedAttention)
        assert (mixer.indexer is not None) == (mixer.ratio == 4)
        counts[mixer.ratio] = counts.get(mixer.ratio, 0) + block.count
    assert counts == ratios


def test_v4_first_three_layers_are_hash_routed():
    blocks = load_model("deepseek-v4-pro").blocks
    hashed = [(b.count, c) for b in blocks for c in b.channels if isinstance(c, Moe) and c.hash_vocab]
    assert sum(count for count, _ in hashed) == 3
    assert all(weights_of(moe, 7168).tables == 129_280 * 6 for _, moe in hashed)
    assert not any(moe.correction_bias for _, moe in hashed)


def test_glm_52_keeps_an_indexer_on_21_layers_and_in_its_head():
    model = load_model("glm-5.2")
    own = sum(b.count for b in model.blocks if not b.mixers[0].indexer.shared)  # type: ignore[union-attr]
    assert (own, model.layers) == (21, 78)
    assert model.mtp is not None
    assert model.mtp.shares_index_across_steps
    assert not model.mtp.blocks[0].mixers[0].indexer.shared  # type: ignore[union-attr]


def test_glm_index_schedule_without_a_list():
    listed, scheduled, spelt = (document("glm-5.2") for _ in range(3))
    del scheduled["indexer_types"]
    spelt["index_topk_pattern"] = "".join(kind[0].upper() for kind in spelt.pop("indexer_types"))
    models = [import_config(config, "glm") for config in (listed, scheduled, spelt)]
    assert models[0] == models[1] == models[2]


def test_heads_and_their_absence():
    for name in ("kimi-k2", "kimi-k2.5", "kimi-k3", "kimi-linear-48b-a3b", "ling-2.5-1t", "ring-2.5-1t"):
        model = load_model(name)
        assert model.mtp is None
        assert "num_nextn_predict_layers" in model.mtp_note
    deepseek, v4, longcat = (load_model(n).mtp for n in ("deepseek-v3", "deepseek-v4-pro", "longcat-flash"))
    assert deepseek is not None
    assert deepseek.copied_params == 2 * 129_280 * 7168
    assert longcat is not None
    assert longcat.copied_params == 131_072 * 6144
    assert v4 is not None
    assert v4.projection == "split"
    assert v4.blocks[0].mixers[0].ratio == 0  # type: ignore[union-attr]


def test_kimi_positions_and_vision():
    assert not load_model("kimi-linear-48b-a3b").rope
    assert load_model("kimi-k2").rope
    k3 = load_model("kimi-k3")
    assert k3.vision_params == 447_358_976
    assert checkpoint_params(k3) - target_params(k3) == k3.vision_params


def test_longcat_routes_to_768_of_which_512_are_real():
    model = load_model("longcat-flash")
    moe = first_moe(model)
    assert (moe.experts, moe.zero_experts, moe.top_k) == (512, 256, 12)
    assert len(model.blocks[0].mixers) == 2
    assert len(model.blocks[0].channels) == 3


def test_head_dim_is_a_decoy():
    config = document("glm-5")
    config["head_dim"] = 4096
    assert import_config(config, "glm-5") == load_model("glm-5")


# --- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("deepseek-v3", {"kv_lora_rank": None}, "kv_lora_rank"),
        ("deepseek-v3", {"attention_bias": True}, "attention_bias"),
        ("deepseek-v3", {"topk_method": "greedy"}, "topk_method"),
        ("deepseek-v3", {"first_k_dense_replace": None}, "first_k_dense_replace"),
        ("deepseek-v3", {"num_hidden_layers": 2**30}, "num_hidden_layers"),
        ("deepseek-v3", {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers"),
        ("deepseek-v3.2", {"index_topk": None}, "index_topk"),
        ("deepseek-v4-flash", {"compress_ratios": [0, 4, 128]}, "compress_ratios"),
        ("deepseek-v4-flash", {"compress_ratios": [2] * 44}, "compress_ratios"),
        ("deepseek-v4-flash", {"compress_ratios": [4] * 44}, "compress_ratios"),
        ("deepseek-v4-flash", {"num_hash_layers": None}, "num_hash_layers"),
        ("deepseek-v4-flash", {"num_key_value_heads": 2}, "num_key_value_heads"),
        ("glm-5.2", {"indexer_types": ["full"] * 77}, "indexer_types"),
        ("glm-5.2", {"indexer_types": ["none"] * 78}, "indexer_types"),
        ("glm-5.2", {"indexer_types": None, "index_topk_pattern": "FS"}, "index_topk_pattern"),
        ("glm-5.2", {"mlp_layer_types": ["moe"] * 78}, "mlp_layer_types"),
        ("kimi-linear-48b-a3b", {"num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
        ("kimi-linear-48b-a3b", {"num_hidden_layers": 28}, "kda_layers"),
        ("ling-2.6-flash", {"layer_group_size": 7}, "layer_group_size"),
        ("ling-2.6-flash", {"short_conv_kernel_size": 4}, "short_conv_kernel_size"),
        ("ling-2.6-flash", {"full_attention_type": "gqa"}, "full_attention_type"),
        ("ling-2.6-flash", {"use_qk_norm": False}, "use_qk_norm"),
        ("longcat-flash", {"zero_expert_type": "copy"}, "zero_expert_type"),
        ("longcat-flash", {"oe_vocab_size_ratio": 2.0}, "oe_vocab_size_ratio"),
    ],
)
def test_unknown_values_are_refused_by_name(name, changes, field):
    with pytest.raises(InputError) as refusal:
        import_config(document(name) | changes, name)
    assert field in refusal.value.field
