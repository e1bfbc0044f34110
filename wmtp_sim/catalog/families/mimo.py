"""Xiaomi MiMo: 7B (Qwen2-like) and V2-Flash (9 full layers, the rest a 128-token window with sinks; MoE).

Shapes: transformers 5.24 ``mimo_v2_flash``, sglang 0.5.23 ``mimo.py``; heads: ``mimo_mtp.py``, ``mimo_v2_nextn.py``.
"""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context
from wmtp_sim.catalog.families.parts import gqa, layer_count, layers, one_head, per_layer, refuse, routed_experts
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Attention, Block, Mlp, Moe, MtpHead

#: MTP blocks of MiMo-V2-Flash: no field says so; the checkpoint's total fits 3, and sglang runs 3.
_V2_HEADS = 3


def mimo(config: Fields, root: Fields) -> Architecture:
    """Bias on q, k and v; the head is one more such layer (token_layernorm, hidden_layernorm, input_proj)."""
    refuse(config, "use_sliding_window")
    attention = gqa(config, qkv_bias=config.flag("attention_bias"))
    mlp = Mlp(inner=config.size("intermediate_size"))
    layer = Block(mixers=(attention,), channels=(mlp,), norms=2)
    return Architecture(
        blocks=(layer.model_copy(update={"count": config.size("num_hidden_layers")}),),
        max_context=max_context(config),
        mtp=MtpHead(blocks=(layer,)) if one_head(config, "num_nextn_predict_layers", default=0) else None,
    )


def mimo_v2_flash(config: Fields, root: Fields) -> Architecture:
    """``hybrid_layer_pattern``: 1 slides, 0 is full. ``moe_layer_freq``: 1 is MoE. Heads slide and are dense."""
    full = _v2_attention(config, "", sinks=config.flag("add_full_attention_sink_bias"))
    sliding = _v2_attention(config, "swa_", sinks=config.flag("add_swa_attention_sink_bias"))
    sliding = sliding.model_copy(update={"window": config.size("sliding_window")})
    mlp = Mlp(inner=config.size("intermediate_size"))
    moe = routed_experts(
        config,
        "n_routed_experts",
        shared="n_shared_experts" if "n_shared_experts" in config else None,
        correction_bias=config.text("topk_method") == "noaux_tc",
    )
    count = layer_count(config)
    mixers = per_layer(config, "hybrid_layer_pattern", of={0: full, 1: sliding}, length=count)
    channels: list[Mlp | Moe] = per_layer(config, "moe_layer_freq", of={0: mlp, 1: moe}, length=count)
    return Architecture(
        blocks=layers(mixers, channels),
        max_context=max_context(config),
        mtp=MtpHead(blocks=layers([sliding], [mlp]), heads=_V2_HEADS),
    )


def _v2_attention(config: Fields, prefix: str, sinks: bool) -> Attention:
    """Keys of 192 and values of 128; sliding layers state their own sizes with the prefix ``swa_``."""
    return Attention(
        q_heads=config.size(f"{prefix}num_attention_heads"),
        kv_heads=config.size(f"{prefix}num_key_value_heads"),
        head_dim=config.size(f"{prefix}head_dim"),
        v_head_dim=config.size(f"{prefix}v_head_dim"),
        qkv_bias=config.flag("attention_bias"),
        sink_logits=sinks,
    )
