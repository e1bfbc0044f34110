"""Step-3.5: every 4th layer full attention, the others a 512-token window with more heads; MoE; three MTP heads.

Shapes: sglang 0.5.23 ``step3p5.py`` and ``step3p5_mtp.py``.
"""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context
from wmtp_sim.catalog.families.parts import layer_count, layers, per_layer, routed_experts
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Attention, Mlp, Moe, MtpHead


def step3p5(config: Fields, root: Fields) -> Architecture:
    """``layer_types`` lists the layers, then the heads: dense sliding layers that each own an lm_head."""
    count, heads = layer_count(config), config.count("num_nextn_predict_layers")
    full = _attention(config, config, window=None)
    other = config.child("attention_other_setting")
    if other.text("attention_type") != "sliding_attention":
        raise other.error("attention_type", "is not sliding_attention", "no other pattern is known")
    sliding = _attention(config, other, window=config.size("sliding_window"))
    kinds = {"full_attention": full, "sliding_attention": sliding}
    mixers = per_layer(config, "layer_types", of=kinds, length=count + heads)
    mlp, moe = Mlp(inner=config.size("intermediate_size")), _moe(config)
    sparse = _moe_layers(config)
    blocks = layers(mixers[:count], [moe if layer in sparse else mlp for layer in range(count)])
    if len(set(mixers[count:])) > 1:
        raise config.error("layer_types", f"its last {heads} entries, the MTP heads, differ", "expected one kind")
    mtp = MtpHead(blocks=layers(mixers[-1:], [mlp]), heads=heads, own_lm_head=True) if heads else None
    return Architecture(blocks=blocks, max_context=max_context(config), mtp=mtp)


def _attention(config: Fields, sizes: Fields, window: int | None) -> Attention:
    """KV heads are called attention groups; a gate of one value per head scales the output."""
    return Attention(
        q_heads=sizes.size("num_attention_heads"),
        kv_heads=sizes.size("num_attention_groups"),
        head_dim=sizes.size("head_dim"),
        v_head_dim=sizes.size("head_dim"),
        window=window,
        output_gate="per_head" if config.flag("use_head_wise_attn_gate") else "none",
        qk_norm="per_head" if config.flag("use_qk_norm") else "none",
    )


def _moe(config: Fields) -> Moe:
    bias = config.flag("use_moe_router_bias")
    return routed_experts(config, "moe_num_experts", "moe_top_k", shared_inner="share_expert_dim", correction_bias=bias)


def _moe_layers(config: Fields) -> set[int]:
    """``moe_layers_enum``: layer numbers separated by commas."""
    numbers = config.text("moe_layers_enum").split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise config.error("moe_layers_enum", "is not a list of layer numbers", "expected 3,4,5,...")
    return {int(number) for number in numbers}
