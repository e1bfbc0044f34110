"""Nemotron-H and Nemotron 3: one mixer or one MLP per layer, each behind a single norm; attention without rope.

Shapes: transformers 5.24 ``nemotron_h``; the MTP head: sglang 0.5.23 ``nemotron_h_mtp.py``.
"""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context, merged
from wmtp_sim.catalog.families.parts import chosen, gqa, one_head, refuse, routed_experts, state_bytes
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Block, Mamba2, Mlp, MtpHead


def nemotron_h(config: Fields, root: Fields) -> Architecture:
    """Layers from ``hybrid_override_pattern`` or ``layers_block_type``; the head is an attention and a MoE block."""
    refuse(config, "attention_bias", "mamba_proj_bias", "mlp_bias", "use_bias")
    blocks = _layers(config, "layers_block_type", "hybrid_override_pattern")
    if "num_hidden_layers" in config and config.size("num_hidden_layers") != len(blocks):
        raise config.error("num_hidden_layers", f"the layer pattern has {len(blocks)} entries", "they must agree")
    mtp = None
    if one_head(config, "num_nextn_predict_layers", default=0):
        mtp = MtpHead(blocks=merged(_layers(config, "mtp_layers_block_type", "mtp_hybrid_override_pattern")))
    return Architecture(
        blocks=merged(blocks),
        max_context=max_context(config),
        rope=False,
        state_dtype_bytes=state_bytes(config),
        mtp=mtp,
    )


def _layers(config: Fields, types: str, pattern: str) -> list[Block]:
    """The new schema's list of block types wins over the old schema's pattern string, as in the class."""
    if types in config or pattern not in config:
        builders = chosen(config, types, config.items(types, pattern, of=str), _BUILDERS)
    else:
        builders = chosen(config, pattern, config.text(pattern), _BUILDERS)
    built = {builder: builder(config) for builder in builders}
    return [built[builder] for builder in builders]


def _mamba(config: Fields) -> Block:
    mixer = Mamba2(
        heads=config.size("mamba_num_heads"),
        head_dim=config.size("mamba_head_dim"),
        groups=config.size("n_groups"),
        state_dim=config.size("ssm_state_size"),
        conv_kernel=config.size("conv_kernel"),
        conv_bias=config.flag("use_conv_bias"),
    )
    return Block(mixers=(mixer,), norms=1)


def _attention(config: Fields) -> Block:
    return Block(mixers=(gqa(config, head_dim=config.size("head_dim", "attention_head_dim")),), norms=1)


def _moe(config: Fields) -> Block:
    """relu squared experts, in a latent space where ``moe_latent_size`` is set; the shared expert never is."""
    moe = routed_experts(
        config,
        "n_routed_experts",
        shared="n_shared_experts",
        shared_inner="moe_shared_expert_intermediate_size",
        gated=False,
        latent=config.optional_size("moe_latent_size"),
        correction_bias=True,
    )
    return Block(channels=(moe,), norms=1)


def _mlp(config: Fields) -> Block:
    return Block(channels=(Mlp(inner=config.size("intermediate_size"), gated=False),), norms=1)


#: Letters of the pattern string, names of the list schema, and the names transformers 5.24 saves.
_BUILDERS = {
    "M": _mamba,
    "*": _attention,
    "E": _moe,
    "-": _mlp,
    "mamba": _mamba,
    "attention": _attention,
    "moe": _moe,
    "mlp": _mlp,
    "linear_attention": _mamba,
    "full_attention": _attention,
}
