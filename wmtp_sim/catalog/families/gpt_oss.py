"""gpt-oss: sinks, biases everywhere (experts and router too), every other layer sliding.

Shapes: transformers 5.24 ``gpt_oss``.
"""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context
from wmtp_sim.catalog.families.parts import gqa, layer_count, layers, per_layer
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Moe


def gpt_oss(config: Fields, root: Fields) -> Architecture:
    bias = config.flag("attention_bias")
    full = gqa(config, qkv_bias=bias, o_bias=bias, sink_logits=True)
    sliding = full.model_copy(update={"window": config.size("sliding_window")})
    moe = Moe(
        experts=config.size("num_local_experts"),
        top_k=config.size("num_experts_per_tok", "experts_per_token"),
        inner=config.size("intermediate_size"),
        router_bias=True,
        expert_bias=True,
    )
    kinds = {"full_attention": full, "sliding_attention": sliding}
    mixers = per_layer(config, "layer_types", of=kinds, length=layer_count(config))
    return Architecture(blocks=layers(mixers, [moe] * len(mixers)), max_context=max_context(config))
