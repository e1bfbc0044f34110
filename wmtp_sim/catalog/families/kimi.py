"""Kimi: K2 and K2.5 (DeepSeek V3's layer), Kimi-Linear and K3 (delta attention with latent attention without rope)."""

from __future__ import annotations

import math

from wmtp_sim.catalog.families.architecture import Architecture, max_context
from wmtp_sim.catalog.families.deepseek import decoder, mla, sparse_layers
from wmtp_sim.catalog.families.parts import layer_count, layers, routed_experts
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import KimiDeltaAttention, Mlp, Moe

_NO_HEAD = "the config counts no head (num_nextn_predict_layers is 0) and Kimi's checkpoints hold none"


def kimi_k2(config: Fields, root: Fields) -> Architecture:
    """Kimi-K2; K2.5 nests the same text model beside a vision tower."""
    _no_head(config)
    count, attention = layer_count(config), mla(config)
    return Architecture(
        blocks=decoder([attention] * count, sparse_layers(config, count), config),
        max_context=max_context(config),
        mtp_note=_NO_HEAD,
        vision_params=_vision_params(root),
    )


def kimi_linear(config: Fields, root: Fields) -> Architecture:
    """Kimi-Linear, and K3 with its attention residuals, output gates and latent experts."""
    _no_head(config)
    count = layer_count(config)
    delta, latent = _delta(config), mla(config, output_gate=config.flag("mla_use_output_gate", default=False))
    dense, experts = Mlp(inner=config.size("intermediate_size")), _experts(config)
    residual = "attn_res_block_size" in config
    blocks = layers(
        [delta if is_delta else latent for is_delta in _delta_layers(config, count)],
        [experts if routes else dense for routes in sparse_layers(config, count)],
        norms=4 if residual else 2,
        # Attention residuals: one score vector (h -> 1) beside the norm, before each half of a layer.
        extra_params=2 * config.size("hidden_size") if residual else 0,
    )
    return Architecture(
        blocks=blocks,
        max_context=max_context(config),
        final_norms=2 if residual else 1,
        extra_params=config.size("hidden_size") if residual else 0,  # the last score vector
        rope=not config.flag("mla_use_nope", default=False),
        mtp_note=_NO_HEAD,
        vision_params=_vision_params(root),
    )


def _no_head(config: Fields) -> None:
    heads = config.count("num_nextn_predict_layers", default=0)  # absent or 0 in all releases
    if heads:
        raise config.error("num_nextn_predict_layers", f"{heads} heads are unknown", "Kimi's releases have none")


def _delta(config: Fields) -> KimiDeltaAttention:
    linear = config.child("linear_attn_config")
    heads, head_dim = linear.size("num_heads"), linear.size("head_dim")
    full_rank = linear.flag("use_full_rank_gate", default=False)
    return KimiDeltaAttention(
        heads=heads,
        head_dim=head_dim,
        conv_kernel=linear.size("short_conv_kernel_size"),
        full_rank_gate=full_rank,
        # K3's checkpoint stores head_dim decays for its 96 heads and its loader drops the rest (SGLang 0.5.23).
        decay_entries=head_dim if full_rank else heads,
    )


def _delta_layers(config: Fields, count: int) -> list[bool]:
    """Which layers are KDA. Both lists number the layers from 1 and together name each once."""
    linear = config.child("linear_attn_config")
    delta = linear.items("kda_layers", of=int)
    full = linear.items("full_attn_layers", of=int)
    if sorted(delta + full) != list(range(1, count + 1)):
        raise linear.error("kda_layers", f"and full_attn_layers do not name each of layers 1 to {count} once")
    named = set(delta)
    return [layer in named for layer in range(1, count + 1)]


def _experts(config: Fields) -> Moe:
    """Routed experts, in K3 inside a latent space; the shared expert works on the full width."""
    return routed_experts(
        config,
        top_k="num_experts_per_token",
        shared="num_shared_experts",
        latent=config.optional_size("routed_expert_hidden_size"),
        latent_norm=config.flag("latent_moe_use_norm", default=False),
        correction_bias=True,
    )


def _vision_params(root: Fields) -> int:
    """MoonViT-3D and its projector: attention, two-layer MLPs, a patch convolution, learned 2-D positions.

    Defaults are those of K2.5, whose config leaves them to its class: biases everywhere, LayerNorm.
    """
    if "vision_config" not in root:
        return 0
    vision = root.child("vision_config")
    width, inner = vision.size("vt_hidden_size"), vision.size("vt_intermediate_size")
    qkv = vision.size("qkv_hidden_size", default=width)
    norm = width if vision.text("norm_type", default="layernorm") == "rmsnorm" else 2 * width
    layer = 4 * width * qkv + 2 * width * inner + 2 * norm
    layer += 3 * qkv + width if vision.flag("attn_bias", default=True) else 0
    layer += inner + width if vision.flag("linear_bias", default=True) else 0
    patches = 3 * vision.size("patch_size") ** 2 * width
    patches += width if vision.flag("patch_embed_proj_bias", default=True) else 0
    positions = vision.size("init_pos_emb_height") * vision.size("init_pos_emb_width") * width
    tower = vision.size("vt_num_hidden_layers") * layer + norm + patches + positions
    merged_patches: int = math.prod(vision.items("merge_kernel_size", of=int, length=2))
    merged_width, text = vision.size("mm_hidden_size", default=width) * merged_patches, vision.size("text_hidden_size")
    projector = merged_width * (merged_width + text)
    if vision.word("mm_projector_type", "patchmerger", "patchmergerv2") == "patchmerger":
        return tower + projector + merged_width + text + 2 * width  # K2.5: biases, LayerNorm before
    return tower + projector + text  # K3: no biases, RMSNorm after
