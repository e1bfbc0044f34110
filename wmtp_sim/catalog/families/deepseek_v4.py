"""DeepSeek-V4: compressed attention, hyper-connected residual streams, hash-routed first layers."""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context, merged
from wmtp_sim.catalog.families.deepseek import dsa_indexer, routed
from wmtp_sim.catalog.families.parts import layer_count, one_head, refuse
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Block, CompressedAttention, Moe, MtpHead

#: ``compress_ratios``: window only, sparse over compressed keys (with an indexer), dense over compressed keys.
_WINDOW_ONLY, _SPARSE, _DENSE = 0, 4, 128


def deepseek_v4(config: Fields, root: Fields) -> Architecture:
    refuse(config, "mlp_bias")
    layers = layer_count(config)
    has_head = one_head(config, "num_nextn_predict_layers", default=0)
    ratios = config.items("compress_ratios", of=int, length=layers + has_head)
    learned = routed(config)
    hashed = learned.model_copy(update={"correction_bias": False, "hash_vocab": config.size("vocab_size")})
    hash_layers = config.count("num_hash_layers")
    blocks = [
        _block(config, ratio, hashed if layer < hash_layers else learned) for layer, ratio in enumerate(ratios[:layers])
    ]
    return Architecture(
        blocks=merged(blocks),
        max_context=max_context(config),
        extra_params=_stream_readout(config),
        mtp=_head(config, ratios[-1], learned) if has_head else None,
    )


def _block(config: Fields, ratio: int, channel: Moe) -> Block:
    mixers, streams = (_attention(config, ratio),), config.size("hc_mult")
    return Block(mixers=mixers, channels=(channel,), norms=2, residual_streams=streams)


def _attention(config: Fields, ratio: int) -> CompressedAttention:
    refuse(config, "attention_bias")
    if ratio not in (_WINDOW_ONLY, _SPARSE, _DENSE):
        raise config.error("compress_ratios", f"{ratio} is unknown", "known: 0, 4 and 128")
    if config.size("num_key_value_heads") != 1:
        raise config.error("num_key_value_heads", "is not 1", "keys and values are one shared head")
    return CompressedAttention(
        heads=config.size("num_attention_heads"),
        head_dim=config.size("head_dim"),
        rope_dim=config.size("qk_rope_head_dim"),
        q_lora_rank=config.size("q_lora_rank"),
        o_groups=config.size("o_groups"),
        o_lora_rank=config.size("o_lora_rank"),
        window=config.size("sliding_window"),
        ratio=ratio,
        indexer=dsa_indexer(config) if ratio == _SPARSE else None,
    )


def _head(config: Fields, ratio: int, channel: Moe) -> MtpHead:
    """enorm, hnorm, e_proj, h_proj, one window-only layer, a stream readout, shared_head.norm (SGLang 0.5.23)."""
    if ratio != _WINDOW_ONLY:
        raise config.error("compress_ratios", f"the last entry, the MTP layer's, is {ratio}", "only 0 is known")
    return MtpHead(
        blocks=(_block(config, _WINDOW_ONLY, channel),),
        projection="split",
        norms=3,
        extra_params=_stream_readout(config),
    )


def _stream_readout(config: Fields) -> int:
    """Parameters that collapse the residual streams before the final norm: a matrix, a bias and one scale."""
    streams = config.size("hc_mult")
    return streams * (streams * config.size("hidden_size")) + streams + 1
