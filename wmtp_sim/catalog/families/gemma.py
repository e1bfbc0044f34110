"""Gemma 3 and 4: sliding layers with a global one in between, norms before and after each part, tied embeddings.

Shapes: transformers 5.24 ``gemma3`` and ``gemma4``.
"""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context, merged
from wmtp_sim.catalog.families.parts import gqa, layer_count, layers, per_layer, refuse, routed_experts
from wmtp_sim.catalog.families.vision import gemma3_vision, gemma4_vision
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Attention, Block, Mlp, Moe

_GEMMA4_NOTE = "Gemma 4's assistant drafter is a separate model that reads the target's KV cache"


def gemma3(config: Fields, root: Fields) -> Architecture:
    """Five sliding layers, one global.

    Published multimodal configs omit what equals ``Gemma3TextConfig``'s defaults (27B: vocabulary, positions, layer
    pattern, tying; 12B and 4B also head_dim and heads), so those defaults, and no others, are stated here.
    """
    heads = config.size("num_attention_heads", default=8)
    head_dim = config.size("head_dim", default=256)
    bias = config.flag("attention_bias", default=False)
    sliding = Attention(
        q_heads=heads,
        kv_heads=config.size("num_key_value_heads", default=4),
        head_dim=head_dim,
        v_head_dim=head_dim,
        window=config.size("sliding_window"),
        qk_norm="per_head",
        qkv_bias=bias,
        o_bias=bias,
    )
    full = sliding.model_copy(update={"window": None})
    count = layer_count(config)
    if "layer_types" in config:
        kinds = {"full_attention": full, "sliding_attention": sliding}
        mixers = per_layer(config, "layer_types", of=kinds, length=count)
    else:
        pattern = config.size("sliding_window_pattern", default=6)
        mixers = [sliding if (i + 1) % pattern else full for i in range(count)]
    mlp = Mlp(inner=config.size("intermediate_size"))
    return Architecture(
        blocks=layers(mixers, [mlp] * count, norms=4),
        max_context=config.size("max_position_embeddings", default=131_072),
        vision_params=gemma3_vision(root, config.size("hidden_size")),
        vocab=config.size("vocab_size", default=262_208),
        tied_embeddings=_tied(config, root),
    )


def gemma4(config: Fields, root: Fields) -> Architecture:
    """Global layers have heads of their own size and, with ``attention_k_eq_v``, no v_proj.

    ``layer_scalar`` is one more element per layer. Per-layer embeddings and shared KV (E2B, E4B) are refused.
    """
    refuse(config, "use_double_wide_mlp")
    for name in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        if config.count(name):
            raise config.error(name, f"{config.count(name)} is not supported", "only models with 0 are")
    bias = config.flag("attention_bias")
    window = config.size("sliding_window")
    sliding = gqa(config, window=window, qk_norm="per_head", qkv_bias=bias, o_bias=bias)
    full = Attention(
        q_heads=sliding.q_heads,
        kv_heads=config.optional_size("num_global_key_value_heads") or sliding.kv_heads,
        head_dim=config.size("global_head_dim"),
        v_head_dim=config.size("global_head_dim"),
        qk_norm="per_head",
        qkv_bias=bias,
        o_bias=bias,
        value_from_key=config.flag("attention_k_eq_v"),
    )
    mlp = Mlp(inner=config.size("intermediate_size"))
    channels = (mlp, _gemma4_moe(config)) if config.flag("enable_moe_block") else (mlp,)
    kinds = {"full_attention": full, "sliding_attention": sliding}
    mixers = per_layer(config, "layer_types", of=kinds, length=layer_count(config))
    norms = 4 if len(channels) == 1 else 7
    blocks = [Block(mixers=(mixer,), channels=channels, norms=norms, extra_params=1) for mixer in mixers]
    return Architecture(
        blocks=merged(blocks),
        max_context=max_context(config),
        mtp_note=_GEMMA4_NOTE,
        vision_params=gemma4_vision(root, config.size("hidden_size")),
        tied_embeddings=_tied(config, root),
    )


def _gemma4_moe(config: Fields) -> Moe:
    """Beside the dense MLP, not instead of it. The router scales its input [hidden] and its experts [experts]."""
    scales = config.size("hidden_size") + config.size("num_experts")
    return routed_experts(config, top_k="top_k_experts", extra_params=scales)


def _tied(config: Fields, root: Fields) -> bool:
    """Tied unless stated: the class default, which Gemma 3's published config relies on."""
    return config.flag("tie_word_embeddings", default=root.flag("tie_word_embeddings", default=True))
