"""LongCat-Flash: every layer is two latent attentions, two dense MLPs and one MoE with zero-compute experts."""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context
from wmtp_sim.catalog.families.deepseek import mla
from wmtp_sim.catalog.families.parts import layers, one_head, refuse, routed_experts
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Block, Mlp, MtpHead


def longcat_flash(config: Fields, root: Fields) -> Architecture:
    refuse(config, "router_bias", "nextn_use_scmoe")
    for name in ("ngram_vocab_size_ratio", "oe_vocab_size_ratio"):
        if name in config:
            raise config.error(name, "n-gram embeddings are unknown", "LongCat-Flash has none")
    config.word("zero_expert_type", "identity", default="identity")  # the default of SGLang's class
    attention = mla(config)
    dense = Mlp(inner=config.size("ffn_hidden_size"))
    zero = config.count("zero_expert_num")
    names = ("n_routed_experts", "moe_topk", "expert_ffn_hidden_size")
    experts = routed_experts(config, *names, zero_experts=zero, correction_bias=True)
    count = config.size("num_layers")
    layer = Block(count=count, mixers=(attention, attention), channels=(dense, dense, experts), norms=4)
    # The config does not count the head: SGLang's class defaults to one, and the checkpoint holds one, with one
    # vocabulary matrix of its own that engines replace by the target's.
    has_head = one_head(config, "num_nextn_predict_layers", default=1)
    head = MtpHead(
        blocks=layers([attention], [dense]),
        norms=3,
        copied_params=config.size("vocab_size") * config.size("hidden_size"),
    )
    return Architecture(blocks=(layer,), max_context=max_context(config), mtp=head if has_head else None)
