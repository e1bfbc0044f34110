"""What the parameter totals do not prove: heads, windows, positions, state widths, and refusals by name."""

import json

import pytest

from wmtp_sim.catalog.models import catalog_folder, import_config, load_model
from wmtp_sim.errors import InputError
from wmtp_sim.spec.model import Attention, Mamba1, Mamba2, Mlp, Moe


def _document(name):
    return json.loads((catalog_folder() / f"{name}.json").read_text())


def _windows(blocks):
    """(window, query heads) of attention -> number of layers."""
    found = {}
    for block in blocks:
        for mixer in block.mixers:
            if isinstance(mixer, Attention):
                key = (mixer.window, mixer.q_heads)
                found[key] = found.get(key, 0) + block.count
    return found


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("mimo-v2-flash", {(None, 64): 9, (128, 64): 39}),
        ("step-3.5-flash", {(None, 64): 12, (512, 96): 33}),
        ("gpt-oss-20b", {(128, 64): 12, (None, 64): 12}),
        ("gemma-3-27b", {(1024, 32): 52, (None, 32): 10}),
        ("gemma-4-26b-a4b", {(1024, 16): 25, (None, 16): 5}),
        ("qwen2.5-7b-instruct-1m", {(None, 28): 28}),
    ],
)
def test_native_windows(name, windows):
    assert _windows(load_model(name).blocks) == windows


@pytest.mark.parametrize(
    ("name", "heads", "window", "channel", "own_lm_head"),
    [
        ("qwen3-next-80b-a3b", 1, None, Moe, False),
        ("qwen3.5-35b-a3b", 1, None, Moe, False),
        ("qwen3.6-27b", 1, None, Mlp, False),
        ("nemotron-3-super-120b-a12b", 1, None, Moe, False),
        ("nemotron-3-ultra-550b-a55b", 1, None, Moe, False),
        ("nemotron-3.5-lightning-30b-a3b", 1, None, Moe, False),
        ("glm-4.5", 1, None, Moe, False),
        ("mimo-7b", 1, None, Mlp, False),
        ("mimo-v2-flash", 3, 128, Mlp, False),
        ("step-3.5-flash", 3, 512, Mlp, True),
    ],
)
def test_trained_heads(name, heads, window, channel, own_lm_head):
    mtp = load_model(name).mtp
    mixers = [m for block in mtp.blocks for m in block.mixers]
    channels = [c for block in mtp.blocks for c in block.channels]
    assert (mtp.heads, mtp.own_lm_head) == (heads, own_lm_head)
    assert [(type(m), m.window) for m in mixers] == [(Attention, window)]
    assert [type(c) for c in channels] == [channel]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nemotron-3-nano-30b-a3b", "names no"),
        ("minimax-m2", "no weights"),
        ("minimax-m3-nvfp4", "no weights"),
        ("gemma-4-31b-it", "separate model"),
        ("granite-4.0-h-small", "names no"),
    ],
)
def test_models_without_a_head_say_why(name, reason):
    model = load_model(name)
    assert model.mtp is None
    assert reason in model.mtp_note


def test_positions():
    nope = ("nemotron-3-nano-30b-a3b", "nemotron-h-8b", "granite-4.0-h-small", "jamba-1.5-mini")
    assert not any(load_model(name).rope for name in nope)
    assert load_model("falcon-h1-34b").rope
    assert load_model("gemma-3-27b").max_context == 131_072


def test_recurrent_layers():
    [falcon] = load_model("falcon-h1-34b").blocks
    assert [type(m) for m in falcon.mixers] == [Attention, Mamba2]
    jamba = [m for block in load_model("jamba-1.5-mini").blocks for m in block.mixers if isinstance(m, Mamba1)]
    assert {(m.inner, m.state_dim) for m in jamba} == {(8192, 16)}


def test_state_width():
    document = _document("nemotron-3-super-120b-a12b")
    assert import_config(document, "m").state_dtype_bytes == 4
    assert import_config(document | {"mamba_ssm_cache_dtype": "bfloat16"}, "m").state_dtype_bytes == 2


def test_gemma3_class_defaults_are_overridden_by_stated_fields():
    text = {"vocab_size": 262_144, "tie_word_embeddings": False, "max_position_embeddings": 8192}
    document = _document("gemma-3-27b")
    document["text_config"] |= text
    model = import_config(document, "m")
    assert (model.vocab, model.tied_embeddings, model.max_context) == (262_144, False, 8192)


def test_qwen_sliding_layers():
    document = _document("qwen3-8b") | {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 30}
    assert _windows(import_config(document, "m").blocks) == {(None, 32): 30, (4096, 32): 6}


def test_granite_without_experts_is_dense():
    document = _document("granite-4.0-h-small") | {"num_local_experts": 0}
    channels = {c for block in import_config(document, "m").blocks for c in block.channels}
    assert channels == {Mlp(inner=1536)}


@pytest.mark.parametrize(
    ("name", "changes", "field", "problem"),
    [
        ("nemotron-3-super-120b-a12b", {"hybrid_override_pattern": "MEX"}, "hybrid_override_pattern", "'X'"),
        ("nemotron-3-super-120b-a12b", {"hybrid_override_pattern": "ME"}, "num_hidden_layers", "2 entries"),
        ("nemotron-3-super-120b-a12b", {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers", "2 heads"),
        ("nemotron-3-super-120b-a12b", {"mlp_bias": True}, "mlp_bias", "not supported"),
        ("nemotron-3-super-120b-a12b", {"mamba_ssm_cache_dtype": "int3"}, "mamba_ssm_cache_dtype", "'int3'"),
        ("nemotron-3-ultra-550b-a55b", {"layers_block_type": []}, "layers_block_type", "0 entries"),
        ("nemotron-3-ultra-550b-a55b", {"layers_block_type": None}, "layers_block_type", "is missing"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "layer_types", "1 entries"),
        ("gpt-oss-20b", {"layer_types": ["swirling"] * 24}, "layer_types", "'swirling'"),
        ("qwen3-next-80b-a3b", {"num_hidden_layers": 10**9}, "num_hidden_layers", "out of range"),
        ("mimo-v2-flash", {"hybrid_layer_pattern": [2] * 48}, "hybrid_layer_pattern", "'2'"),
        ("mimo-v2-flash", {"moe_layer_freq": 1}, "moe_layer_freq", "not a list"),
        ("minimax-m2", {"attn_type_list": [0] * 62}, "attn_type_list", "'0'"),
        ("minimax-m2", {"qk_norm_type": "odd"}, "qk_norm_type", "'odd'"),
        ("step-3.5-flash", {"num_nextn_predict_layers": 2}, "layer_types", "48 entries"),
        ("step-3.5-flash", {"moe_layers_enum": "3,x"}, "moe_layers_enum", "layer numbers"),
        ("granite-4.0-h-small", {"position_embedding_type": "alibi"}, "position_embedding_type", "'alibi'"),
        ("granite-4.0-h-small", {"mamba_d_head": 65}, "mamba_d_head", "65"),
        ("falcon-h1-34b", {"attn_layer_indices": [1]}, "attn_layer_indices", "not supported"),
        ("glm-4.5", {"use_qk_norm": None}, "use_qk_norm", "is missing"),
        ("qwen3-next-80b-a3b", {"head_dim": None}, "head_dim", "is missing"),
        ("granite-4.0-h-small", {"num_attention_heads": 8192}, "head_dim", "0 is out of range"),
        ("qwen3-8b", {"num_key_value_heads": 5}, "config", "not a multiple"),
        ("qwen3-30b-a3b", {"num_experts_per_tok": 500}, "config", "exceeds"),
    ],
)
def test_refusals_name_the_field(name, changes, field, problem):
    with pytest.raises(InputError) as raised:
        import_config(_document(name) | changes, "m")
    assert field in raised.value.field
    assert problem in raised.value.problem


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("gemma-4-31b-it", {"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input"),
        ("gemma-4-31b-it", {"num_kv_shared_layers": 20}, "num_kv_shared_layers"),
        ("qwen3.5-35b-a3b", {"mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers"),
        ("qwen3.5-35b-a3b", {"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings"),
    ],
)
def test_refusals_in_nested_text_models(name, changes, field):
    document = _document(name)
    document["text_config"] |= changes
    with pytest.raises(InputError, match=field):
        import_config(document, "m")


def test_without_a_vision_section_there_is_no_tower():
    for name in ("qwen3.5-35b-a3b", "gemma-3-27b", "gemma-4-31b-it", "minimax-m3-nvfp4"):
        document = _document(name)
        del document["vision_config"]
        assert import_config(document, "m").vision_params == 0
