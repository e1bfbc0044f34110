"""Ling and Ring 2.5 and 2.6: lightning linear attention with a latent-attention layer at the end of every group."""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context
from wmtp_sim.catalog.families.deepseek import mla
from wmtp_sim.catalog.families.parts import layer_count, layers, one_head, refuse, routed_experts
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import LightningAttention, Mlp, MtpHead


def bailing_hybrid(config: Fields, root: Fields) -> Architecture:
    refuse(config, "use_bias", "use_qkv_bias", "multi_gate")
    if "short_conv_kernel_size" in config:
        raise config.error("short_conv_kernel_size", "Kimi delta attention in a Ling model is unknown")
    config.word("full_attention_type", "mla", default="mla")  # the default of SGLang's model
    if not config.flag("use_qk_norm"):
        raise config.error("use_qk_norm", "false is unknown", "released checkpoints normalise q and k")
    count, group = layer_count(config), config.size("layer_group_size")
    if count % group:
        raise config.error("layer_group_size", f"{group} does not divide the {count} layers")
    attention = mla(config)
    lightning = LightningAttention(heads=config.size("num_attention_heads"), head_dim=config.size("head_dim"))
    bias = config.flag("moe_router_enable_expert_bias")
    experts = routed_experts(config, shared="num_shared_experts", correction_bias=bias)
    dense, first_routed = Mlp(inner=config.size("intermediate_size")), config.count("first_k_dense_replace")
    mixers = [attention if (layer + 1) % group == 0 else lightning for layer in range(count)]
    channels = [experts if layer >= first_routed else dense for layer in range(count)]
    # The head's layer is latent attention, never lightning: enorm, hnorm, eh_proj, the layer, final_layernorm.
    head = MtpHead(blocks=layers([attention], [experts]), norms=3)
    return Architecture(
        blocks=layers(mixers, channels),
        max_context=max_context(config),
        mtp=head if one_head(config, "num_nextn_predict_layers") else None,
        mtp_note="the config counts no head (num_nextn_predict_layers is 0) and the checkpoint holds none",
    )
