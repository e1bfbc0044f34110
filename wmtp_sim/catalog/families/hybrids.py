"""Attention and state-space hybrids: Granite 4 and Falcon-H1 (Mamba-2), Jamba (Mamba-1).

Shapes: transformers 5.24 ``granitemoehybrid``, ``falcon_h1`` and ``jamba``.
"""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context
from wmtp_sim.catalog.families.parts import gqa, layer_count, layers, per_layer, refuse, split_head_dim, state_bytes
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Attention, Block, Mamba1, Mamba2, Mlp, Moe


def granitemoehybrid(config: Fields, root: Fields) -> Architecture:
    """Mamba-2 or attention, then MoE and an always-on shared MLP. Dense models have 0 experts: that MLP alone."""
    refuse(config, "mamba_proj_bias")
    bias = config.flag("attention_bias")
    attention = gqa(config, split_head_dim(config), qkv_bias=bias, o_bias=bias)
    mamba = _mamba2(config, config.size("mamba_expand") * config.size("hidden_size"), gated_norm=True)
    shared = config.size("shared_intermediate_size")
    channel: Mlp | Moe = Mlp(inner=shared)
    if experts := config.count("num_local_experts"):
        channel = Moe(
            experts=experts,
            top_k=config.size("num_experts_per_tok"),
            inner=config.size("intermediate_size"),
            shared_inner=shared,
        )
    kinds: dict[str, Attention | Mamba2] = {"attention": attention, "mamba": mamba}
    kinds |= {"full_attention": attention, "linear_attention": mamba}  # the names transformers 5 saves
    mixers = per_layer(config, "layer_types", "layers_block_type", of=kinds, length=layer_count(config))
    return Architecture(
        blocks=layers(mixers, [channel] * len(mixers)),
        max_context=max_context(config),
        rope=_granite_rope(config),
        state_dtype_bytes=state_bytes(config),
    )


def jamba(config: Fields, root: Fields) -> Architecture:
    """Mamba-1 with one attention layer per ``attn_layer_period``, MoE per ``expert_layer_period``, no rope."""
    refuse(config, "mamba_proj_bias")
    hidden = config.size("hidden_size")
    attention = gqa(config, split_head_dim(config))
    automatic = config.values.get("mamba_dt_rank") == "auto"
    mamba = Mamba1(
        inner=config.size("mamba_expand") * hidden,
        state_dim=config.size("mamba_d_state"),
        dt_rank=-(-hidden // 16) if automatic else config.size("mamba_dt_rank"),
        conv_kernel=config.size("mamba_d_conv"),
        conv_bias=config.flag("mamba_conv_bias"),
    )
    mlp = Mlp(inner=config.size("intermediate_size"))
    moe = Moe(experts=config.size("num_experts"), top_k=config.size("num_experts_per_tok"), inner=mlp.inner)
    attention_period, attention_offset = config.size("attn_layer_period"), config.count("attn_layer_offset")
    expert_period, expert_offset = config.size("expert_layer_period"), config.count("expert_layer_offset")
    numbers = range(layer_count(config))
    mixers = [attention if i % attention_period == attention_offset else mamba for i in numbers]
    channels = [moe if moe.experts > 1 and i % expert_period == expert_offset else mlp for i in numbers]
    return Architecture(
        blocks=layers(mixers, channels),
        max_context=max_context(config),
        rope=False,
        state_dtype_bytes=state_bytes(config),
    )


def falcon_h1(config: Fields, root: Fields) -> Architecture:
    """Attention and Mamba-2 side by side in every layer, so that every layer has both a KV cache and a state."""
    refuse(config, "mamba_proj_bias", "projectors_bias", "mlp_bias")
    if config.values.get("attn_layer_indices") is not None:
        raise config.error("attn_layer_indices", "is not supported", "expected null: attention in every layer")
    bias = config.flag("attention_bias")
    inner = config.optional_size("mamba_d_ssm") or config.size("mamba_expand") * config.size("hidden_size")
    block = Block(
        count=config.size("num_hidden_layers"),
        mixers=(
            gqa(config, qkv_bias=bias, o_bias=bias),
            _mamba2(config, inner, gated_norm=config.flag("mamba_rms_norm")),
        ),
        channels=(Mlp(inner=config.size("intermediate_size")),),
        norms=2,
    )
    return Architecture((block,), max_context(config), state_dtype_bytes=state_bytes(config))


def _mamba2(config: Fields, inner: int, gated_norm: bool) -> Mamba2:
    """``mamba_d_head`` is ``inner`` divided among the heads, whether written out or "auto"."""
    heads = config.size("mamba_n_heads")
    head_dim = config.values.get("mamba_d_head")
    if heads * (inner // heads) != inner or head_dim not in (None, "auto", inner // heads):
        raise config.error("mamba_d_head", f"{head_dim!r} x {heads} heads is not the inner size {inner}")
    return Mamba2(
        heads=heads,
        head_dim=inner // heads,
        groups=config.size("mamba_n_groups"),
        state_dim=config.size("mamba_d_state"),
        conv_kernel=config.size("mamba_d_conv"),
        conv_bias=config.flag("mamba_conv_bias"),
        gated_norm=gated_norm,
    )


def _granite_rope(config: Fields) -> bool:
    """Granite 4 hybrids say "nope"; the class takes an absent field as no rotary embedding too."""
    kind = config.text("position_embedding_type", default="nope")
    if kind not in ("nope", "rope"):
        raise config.error("position_embedding_type", f"{kind[:40]!r} is unknown", "nope or rope")
    return kind == "rope"
