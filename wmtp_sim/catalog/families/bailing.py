"""Ling and Ring 2.5 and 2.6: lightning linear attention with a latent-attention layer at the end of every group."""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context, merged
from wmtp_sim.catalog.families.deepseek import mla
from wmtp_sim.catalog.families.parts import layer_count, one_head, refuse
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Block, LightningAttention, Mlp, Moe, MtpHead


def bailing_hybrid(config: Fields, root: Fields) -> Architecture:
    refuse(config, "use_bias", "use_qkv_bias", "multi_gate")
    if "short_conv_kernel_size" in config:
        raise config.error("short_conv_kernel_size", "Kimi delta attention in a Ling model is unknown")
    kind = config.text("full_attention_type", default="mla")  # the default of SGLang's model
    if kind != "mla":
        raise config.error("full_attention_type", f"{kind[:40]!r} is unknown", "known: mla")
    if not config.flag("use_qk_norm"):
        raise config.error("use_qk_norm", "false is unknown", "released checkpoints normalise q and k")
    layers, group = layer_count(config), config.size("layer_group_size")
    if layers % group:
        raise config.error("layer_group_size", f"{group} does not divide the {layers} layers")
    attention = mla(config)
    lightning = LightningAttention(heads=config.size("num_attention_heads"), head_dim=config.size("head_dim"))
    dense, experts = Mlp(inner=config.size("intermediate_size")), _experts(config)
    first_routed = config.count("first_k_dense_replace")
    blocks = [
        Block(
            mixers=(attention if (layer + 1) % group == 0 else lightning,),
            channels=(experts if layer >= first_routed else dense,),
            norms=2,
        )
        for layer in range(layers)
    ]
    # The head's layer is latent attention, never lightning: enorm, hnorm, eh_proj, the layer, final_layernorm.
    head = MtpHead(blocks=(Block(mixers=(attention,), channels=(experts,), norms=2),), norms=3)
    return Architecture(
        blocks=merged(blocks),
        max_context=max_context(config),
        mtp=head if one_head(config, "num_nextn_predict_layers") else None,
        mtp_note="the config counts no head (num_nextn_predict_layers is 0) and the checkpoint holds none",
    )


def _experts(config: Fields) -> Moe:
    inner = config.size("moe_intermediate_size")
    return Moe(
        experts=config.size("num_experts"),
        top_k=config.size("num_experts_per_tok"),
        inner=inner,
        shared_inner=inner * config.count("num_shared_experts"),
        correction_bias=config.flag("moe_router_enable_expert_bias"),
    )
