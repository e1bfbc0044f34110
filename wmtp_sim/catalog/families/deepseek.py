"""DeepSeek V3, R1, V3.1, V3.2: latent attention, a few dense layers, then routed experts with one shared expert.

The pieces (`mla`, `routed`, `sparse_layers`, `decoder`, `nextn`) serve every family built on the same layer.
"""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context
from wmtp_sim.catalog.families.parts import layer_count, layers, one_head, per_layer, refuse, routed_experts
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Block, LatentAttention, Mlp, Moe, MtpHead, SparseIndexer


def deepseek_v3(config: Fields, root: Fields) -> Architecture:
    """DeepSeek V3, R1, V3.1. The checkpoint's MTP layer carries copies of embedding and lm_head."""
    return _deepseek(config, mla(config))


def deepseek_v32(config: Fields, root: Fields) -> Architecture:
    """DeepSeek V3.2: V3 with a sparse-attention indexer in every layer, the MTP layer included."""
    return _deepseek(config, mla(config, dsa_indexer(config)))


def _deepseek(config: Fields, attention: LatentAttention) -> Architecture:
    count, vocabulary = layer_count(config), config.size("vocab_size") * config.size("hidden_size")
    return Architecture(
        blocks=decoder([attention] * count, sparse_layers(config, count), config),
        max_context=max_context(config),
        mtp=nextn(config, attention, copied_params=2 * vocabulary),
    )


def mla(config: Fields, indexer: SparseIndexer | None = None, output_gate: bool = False) -> LatentAttention:
    """Latent attention by its usual field names. ``head_dim``, where present, is a decoy."""
    refuse(config, "attention_bias")
    return LatentAttention(
        heads=config.size("num_attention_heads"),
        q_lora_rank=config.nullable_size("q_lora_rank"),
        kv_lora_rank=config.size("kv_lora_rank"),
        qk_nope_head_dim=config.size("qk_nope_head_dim"),
        qk_rope_head_dim=config.size("qk_rope_head_dim"),
        v_head_dim=config.size("v_head_dim"),
        output_gate=output_gate,
        indexer=indexer,
    )


def dsa_indexer(config: Fields, shared: bool = False) -> SparseIndexer:
    """The lightning indexer of DeepSeek sparse attention."""
    return SparseIndexer(
        heads=config.size("index_n_heads"),
        head_dim=config.size("index_head_dim"),
        top_k=config.size("index_topk"),
        shared=shared,
    )


def routed(config: Fields) -> Moe:
    """Experts by DeepSeek's field names, with the correction bias of its ``noaux_tc`` routing."""
    config.word("topk_method", "noaux_tc", default="noaux_tc")  # the only one that the transformers class knows
    return routed_experts(config, "n_routed_experts", shared="n_shared_experts", correction_bias=True)


def sparse_layers(config: Fields, count: int) -> list[bool]:
    """Which layers are routed: as listed, or after the first ``first_k_dense_replace`` every ``moe_layer_freq``-th."""
    if "mlp_layer_types" in config:
        return per_layer(config, "mlp_layer_types", of={"dense": False, "sparse": True}, length=count)
    dense = config.count("first_k_dense_replace")
    every = config.size("moe_layer_freq", default=1)  # absent from the transformers class, 1 in all releases
    return [layer >= dense and layer % every == 0 for layer in range(count)]


def decoder(attention: list[LatentAttention], sparse: list[bool], config: Fields) -> tuple[Block, ...]:
    """Layers of one mixer, one MLP or MoE, two norms."""
    dense, experts = Mlp(inner=config.size("intermediate_size")), routed(config)
    return layers(attention, [experts if routes else dense for routes in sparse])


def nextn(config: Fields, attention: LatentAttention, copied_params: int = 0) -> MtpHead | None:
    """The NEXTN layer: enorm, hnorm, eh_proj, one routed layer, shared_head.norm. None when the config counts none."""
    if not one_head(config, "num_nextn_predict_layers", default=0):
        return None
    return MtpHead(blocks=layers([attention], [routed(config)]), norms=3, copied_params=copied_params)
