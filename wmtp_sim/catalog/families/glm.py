"""GLM-4.5, 4.6 and 4.7: GQA with q/k/v bias, MoE with a shared expert after a few dense layers.

GLM-5, 5.1, 5.2: DeepSeek V3.2's layer at other sizes; in 5.2 most layers reuse another layer's token selection.

Shapes: transformers 5.24 ``glm4_moe``; the MTP head: sglang 0.5.23 ``glm4_moe_nextn.py``.
"""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context
from wmtp_sim.catalog.families.deepseek import decoder, dsa_indexer, mla, nextn, sparse_layers
from wmtp_sim.catalog.families.parts import chosen, gqa, layer_count, layers, one_head, per_layer, routed_experts
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Mlp, MtpHead


def glm4_moe(config: Fields, root: Fields) -> Architecture:
    """q/k norms only with ``use_qk_norm`` (GLM-4.5, not Air). The head's checkpoint copies embedding and lm_head."""
    attention = gqa(
        config,
        qkv_bias=config.flag("attention_bias"),
        qk_norm="per_head" if config.flag("use_qk_norm") else "none",
    )
    moe = routed_experts(config, "n_routed_experts", shared="n_shared_experts", correction_bias=True)
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


def glm_moe_dsa(config: Fields, root: Fields) -> Architecture:
    """The MTP layer always has an indexer of its own; embedding and lm_head are not copied in the checkpoint."""
    count = layer_count(config)
    own, reused = (mla(config, dsa_indexer(config, shared)) for shared in (False, True))
    head = nextn(config, own)
    if head and config.flag("index_share_for_mtp_iteration", default=False):
        head = head.model_copy(update={"shares_index_across_steps": True})
    attention = [reused if shared else own for shared in _shared(config, count)]
    return Architecture(
        blocks=decoder(attention, sparse_layers(config, count), config), max_context=max_context(config), mtp=head
    )


def _shared(config: Fields, count: int) -> list[bool]:
    """Which layers reuse an index: listed, or spelt as a pattern of F and S, or every so many layers after an offset.

    The frequency (1: every layer has its own) and the offset (2) default as in transformers' class.
    """
    if "indexer_types" in config:
        return per_layer(config, "indexer_types", of={"full": False, "shared": True}, length=count)
    if "index_topk_pattern" in config:
        pattern = config.text("index_topk_pattern")
        if len(pattern) != count:
            raise config.error("index_topk_pattern", f"has {len(pattern)} letters", f"expected {count}")
        return chosen(config, "index_topk_pattern", pattern, {"F": False, "S": True})
    every = config.size("index_topk_freq", default=1)
    offset = config.count("index_skip_topk_offset", default=2)
    return [max(layer - offset + 1, 0) % every != 0 for layer in range(count)]
