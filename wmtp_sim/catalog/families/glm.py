"""GLM-4.5, 4.6 and 4.7: GQA with q/k/v bias, MoE with a shared expert after a few dense layers.

Shapes: transformers 5.24 ``glm4_moe``; the MTP head: sglang 0.5.23 ``glm4_moe_nextn.py``.
"""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context
from wmtp_sim.catalog.families.parts import gqa, layer_count, layers, one_head
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Mlp, Moe, MtpHead


def glm4_moe(config: Fields, root: Fields) -> Architecture:
    """q/k norms only with ``use_qk_norm`` (GLM-4.5, not Air). The head's checkpoint copies embedding and lm_head."""
    attention = gqa(
        config,
        qkv_bias=config.flag("attention_bias"),
        qk_norm="per_head" if config.flag("use_qk_norm") else "none",
    )
    inner = config.size("moe_intermediate_size")
    moe = Moe(
        experts=config.size("n_routed_experts"),
        top_k=config.size("num_experts_per_tok"),
        inner=inner,
        shared_inner=config.count("n_shared_experts") * inner,
        correction_bias=True,
    )
    mlp = Mlp(inner=config.size("intermediate_size"))
    dense = config.count("first_k_dense_replace")
    channels = [mlp if layer < dense else moe for layer in range(layer_count(config))]
    mtp = None
    if one_head(config, "num_nextn_predict_layers", "num_mtp_layers"):
        mtp = MtpHead(
            blocks=layers([attention], [moe]),
            copied_params=2 * config.size("vocab_size") * config.size("hidden_size"),
        )
    blocks = layers([attention] * len(channels), channels)
    return Architecture(blocks=blocks, max_context=max_context(config), mtp=mtp)
