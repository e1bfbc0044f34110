"""Qwen 2.5, 3 and 3-MoE: plain GQA. Qwen3-Next, 3.5 and 3.6: gated attention every 4th layer, DeltaNet between.

Shapes: transformers 5.24 ``qwen2``, ``qwen3``, ``qwen3_moe``, ``qwen3_next``, ``qwen3_5`` and ``qwen3_5_moe``; the
MTP head: sglang 0.5.23 ``qwen3_next_mtp.py`` and ``qwen3_5_mtp.py``.
"""

from __future__ import annotations

from typing import Literal

from wmtp_sim.catalog.families.architecture import Architecture, max_context
from wmtp_sim.catalog.families.parts import (
    gqa,
    layer_count,
    layers,
    one_head,
    per_layer,
    refuse,
    routed_experts,
    split_head_dim,
    state_bytes,
)
from wmtp_sim.catalog.families.vision import qwen_vision
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Attention, GatedDeltaNet, Mlp, Moe, MtpHead


def qwen2(config: Fields, root: Fields) -> Architecture:
    """Bias on q, k and v: no field says so, the class hard-codes it."""
    return _dense(config, gqa(config, split_head_dim(config), qkv_bias=True))


def qwen3(config: Fields, root: Fields) -> Architecture:
    """q_norm and k_norm instead of biases."""
    return _dense(config, _normed(config))


def qwen3_moe(config: Fields, root: Fields) -> Architecture:
    """Qwen3 attention, no shared expert."""
    refuse(config, "use_sliding_window")
    channels = _sparse_channels(config, _moe(config))
    blocks = layers([_normed(config)] * len(channels), channels)
    return Architecture(blocks=blocks, max_context=max_context(config))


def qwen3_next(config: Fields, root: Fields) -> Architecture:
    """Its checkpoint has one MTP layer although no field says so; sglang builds it unconditionally."""
    moe = _moe(config, shared=True)
    return _hybrid(config, root, _sparse_channels(config, moe), moe, mtp=True)


def qwen3_5_moe(config: Fields, root: Fields) -> Architecture:
    moe = _moe(config, shared=True)
    return _hybrid(config, root, _sparse_channels(config, moe), moe, mtp=_announces_head(config))


def qwen3_5(config: Fields, root: Fields) -> Architecture:
    mlp = Mlp(inner=config.size("intermediate_size"))
    return _hybrid(config, root, [mlp] * layer_count(config), mlp, mtp=_announces_head(config))


def _normed(config: Fields, output_gate: Literal["none", "elementwise"] = "none") -> Attention:
    """Qwen3 attention. ``attention_bias`` is false in the class; Qwen3-Next's config omits it."""
    bias = config.flag("attention_bias", default=False)
    return gqa(config, qk_norm="per_head", qkv_bias=bias, o_bias=bias, output_gate=output_gate)


def _dense(config: Fields, attention: Attention) -> Architecture:
    """One MLP per layer; with ``use_sliding_window`` the layers from ``max_window_layers`` on are sliding."""
    mlp = Mlp(inner=config.size("intermediate_size"))
    count = layer_count(config)
    window = config.size("sliding_window") if config.flag("use_sliding_window", default=False) else None
    if "layer_types" in config:
        kinds = {"full_attention": None, "sliding_attention": window}
        windows = per_layer(config, "layer_types", of=kinds, length=count)
    else:
        first = config.count("max_window_layers") if window else 0
        windows = [window if layer >= first else None for layer in range(count)]
    mixers = [attention.model_copy(update={"window": w}) for w in windows]
    return Architecture(blocks=layers(mixers, [mlp] * count), max_context=max_context(config))


def _moe(config: Fields, shared: bool = False) -> Moe:
    """Softmax router; Next and 3.5 add a shared expert behind a sigmoid gate of one output."""
    width = "shared_expert_intermediate_size" if shared else None
    return routed_experts(config, shared_inner=width, shared_gate=shared)


def _sparse_channels(config: Fields, moe: Moe) -> list[Mlp | Moe]:
    """MoE in every ``decoder_sparse_step``-th layer but ``mlp_only_layers``; 3.5 has neither: MoE everywhere."""
    step = config.size("decoder_sparse_step", default=1)
    dense = set(config.items("mlp_only_layers", of=int)) if "mlp_only_layers" in config else set()
    sparse = [i not in dense and (i + 1) % step == 0 for i in range(layer_count(config))]
    mlp = None if all(sparse) else Mlp(inner=config.size("intermediate_size"))
    return [moe if mlp is None or is_sparse else mlp for is_sparse in sparse]


def _announces_head(config: Fields) -> bool:
    """3.5 and 3.6 say ``mtp_num_hidden_layers`` 1; the head shares the target's embedding and lm_head."""
    refuse(config, "mtp_use_dedicated_embeddings")
    return one_head(config, "mtp_num_hidden_layers", default=0)


def _hybrid(
    config: Fields, root: Fields, channels: list[Mlp] | list[Mlp | Moe], head_channel: Mlp | Moe, mtp: bool
) -> Architecture:
    """Gated attention (q_proj is doubled) or Gated DeltaNet, then MoE or MLP; the head is an attention layer."""
    gated = config.flag("attn_output_gate", default=True)  # Next has no such field and is always gated
    attention = _normed(config, output_gate="elementwise" if gated else "none")
    delta_net = GatedDeltaNet(
        k_heads=config.size("linear_num_key_heads"),
        v_heads=config.size("linear_num_value_heads"),
        k_dim=config.size("linear_key_head_dim"),
        v_dim=config.size("linear_value_head_dim"),
        conv_kernel=config.size("linear_conv_kernel_dim"),
    )
    kinds: dict[str, Attention | GatedDeltaNet] = {"full_attention": attention, "linear_attention": delta_net}
    if "layer_types" in config:
        mixers = per_layer(config, "layer_types", of=kinds, length=len(channels))
    else:
        interval = config.size("full_attention_interval")
        mixers = [delta_net if (i + 1) % interval else attention for i in range(len(channels))]
    head = MtpHead(blocks=layers([attention], [head_channel]))
    return Architecture(
        blocks=layers(mixers, channels),
        max_context=max_context(config),
        state_dtype_bytes=state_bytes(config),
        mtp=head if mtp else None,
        vision_params=qwen_vision(root),
    )
