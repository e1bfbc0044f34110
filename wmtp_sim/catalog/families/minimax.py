"""MiniMax-M2 (full attention, MoE) and M3 (block-sparse attention, MoE with a shared expert, vision tower).

Shapes: transformers 5.24 ``minimax_m2`` and ``minimax_m3_vl``; fields that those classes drop: sglang 0.5.23
``minimax_m2.py`` and ``minimax_m3.py``.
"""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context
from wmtp_sim.catalog.families.parts import gqa, layer_count, layers, per_layer, refuse
from wmtp_sim.catalog.families.vision import minimax_vision
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Attention, BlockSparseIndex, Mlp, Moe

_MTP_NOTE = "the config announces MTP modules, but the published checkpoint holds no weights for them"


def minimax_m2(config: Fields, root: Fields) -> Architecture:
    """q and k norms over the full width of all heads; every entry of ``attn_type_list`` is 1, softmax attention."""
    attention = _attention(config)
    mixers = per_layer(config, "attn_type_list", of={1: attention}, length=layer_count(config))
    moe = _moe(config, shared_inner=config.count("shared_intermediate_size"))
    return Architecture(layers(mixers, [moe] * len(mixers)), max_context(config), mtp_note=_MTP_NOTE)


def minimax_m3(config: Fields, root: Fields) -> Architecture:
    """Index heads pick the best key blocks in all layers but the first few, which are also dense in their MLP."""
    refuse(config, "attention_output_gate")
    full = _attention(config)
    sparse = full.model_copy(update={"sparse": _block_index(config)})
    mlp = Mlp(inner=config.size("dense_intermediate_size"))
    moe = _moe(config, config.count("n_shared_experts") * config.size("shared_intermediate_size"))
    count = layer_count(config)
    index = config.child("sparse_attention_config")
    mixers = per_layer(index, "sparse_attention_freq", of={0: full, 1: sparse}, length=count)
    channels: list[Mlp | Moe] = per_layer(config, "moe_layer_freq", of={0: mlp, 1: moe}, length=count)
    return Architecture(
        blocks=layers(mixers, channels),
        max_context=max_context(config),
        mtp_note=_MTP_NOTE,
        vision_params=minimax_vision(root, config.size("hidden_size")),
    )


def _attention(config: Fields) -> Attention:
    norms = {"per_layer": "full_width", "per_head": "per_head"}
    kind = config.text("qk_norm_type")
    if kind not in norms:
        raise config.error("qk_norm_type", f"{kind[:40]!r} is unknown", f"one of {', '.join(norms)}")
    return gqa(config, qk_norm=norms[kind] if config.flag("use_qk_norm") else "none")


def _moe(config: Fields, shared_inner: int) -> Moe:
    return Moe(
        experts=config.size("num_local_experts"),
        top_k=config.size("num_experts_per_tok"),
        inner=config.size("intermediate_size"),
        shared_inner=shared_inner,
        correction_bias=config.flag("use_routing_bias"),
    )


def _block_index(config: Fields) -> BlockSparseIndex:
    """Index queries and one index key, with norms. An index value (and its output projection) is never used."""
    index = config.child("sparse_attention_config")
    count = layer_count(config)
    valueless = per_layer(index, "sparse_disable_index_value", of={0: False, 1: True}, length=count)
    used = per_layer(index, "sparse_attention_freq", of={0: False, 1: True}, length=count)
    if any(sparse and not off for sparse, off in zip(used, valueless, strict=True)):
        raise index.error("sparse_disable_index_value", "0 in a sparse layer is not supported", "expected 1")
    return BlockSparseIndex(
        heads=index.size("sparse_num_index_heads"),
        head_dim=index.size("sparse_index_dim"),
        top_blocks=index.size("sparse_topk_blocks"),
        block_tokens=index.size("sparse_block_size"),
    )
