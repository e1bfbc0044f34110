"""Llama 3.x: plain GQA, SwiGLU, no biases, no q/k norms."""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Attention, Block, Mlp


def llama(config: Fields, root: Fields) -> Architecture:
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    head_dim = config.size("head_dim", default=hidden // heads)
    bias = config.flag("attention_bias", default=False)
    attention = Attention(
        q_heads=heads,
        kv_heads=config.size("num_key_value_heads"),
        head_dim=head_dim,
        v_head_dim=head_dim,
        qkv_bias=bias,
        o_bias=bias,
    )
    mlp = Mlp(inner=config.size("intermediate_size"))
    block = Block(count=config.size("num_hidden_layers"), mixers=(attention,), channels=(mlp,), norms=2)
    return Architecture(blocks=(block,), max_context=max_context(config))
