"""Llama 3.x: plain GQA, SwiGLU, no biases, no q/k norms."""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context
from wmtp_sim.catalog.families.parts import gqa, split_head_dim
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Block, Mlp


def llama(config: Fields, root: Fields) -> Architecture:
    bias = config.flag("attention_bias", default=False)
    attention = gqa(config, split_head_dim(config), qkv_bias=bias, o_bias=bias)
    mlp = Mlp(inner=config.size("intermediate_size"))
    block = Block(count=config.size("num_hidden_layers"), mixers=(attention,), channels=(mlp,), norms=2)
    return Architecture(blocks=(block,), max_context=max_context(config))
