"""GLM-5, 5.1, 5.2: DeepSeek V3.2's layer at other sizes; in 5.2 most layers reuse another layer's token selection."""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context
from wmtp_sim.catalog.families.deepseek import decoder, dsa_indexer, mla, nextn, sparse_layers
from wmtp_sim.catalog.families.parts import chosen, layer_count, per_layer
from wmtp_sim.catalog.fields import Fields


def glm_moe_dsa(config: Fields, root: Fields) -> Architecture:
    """The MTP layer always has an indexer of its own; embedding and lm_head are not copied in the checkpoint."""
    layers = layer_count(config)
    own, reused = (mla(config, dsa_indexer(config, shared)) for shared in (False, True))
    head = nextn(config, own)
    if head and config.flag("index_share_for_mtp_iteration", default=False):
        head = head.model_copy(update={"shares_index_across_steps": True})
    attention = [reused if shared else own for shared in _shared(config, layers)]
    return Architecture(
        blocks=decoder(attention, sparse_layers(config, layers), config), max_context=max_context(config), mtp=head
    )


def _shared(config: Fields, layers: int) -> list[bool]:
    """Which layers reuse an index: listed, or spelt as a pattern of F and S, or every so many layers after an offset.

    The frequency (1: every layer has its own) and the offset (2) default as in transformers' class.
    """
    if "indexer_types" in config:
        return per_layer(config, "indexer_types", of={"full": False, "shared": True}, length=layers)
    if "index_topk_pattern" in config:
        pattern = config.text("index_topk_pattern")
        if len(pattern) != layers:
            raise config.error("index_topk_pattern", f"has {len(pattern)} letters", f"expected {layers}")
        return chosen(config, "index_topk_pattern", pattern, {"F": False, "S": True})
    every = config.size("index_topk_freq", default=1)
    offset = config.count("index_skip_topk_offset", default=2)
    return [max(layer - offset + 1, 0) % every != 0 for layer in range(layers)]
