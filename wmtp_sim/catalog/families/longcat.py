"""LongCat-Flash: every layer is two latent attentions, two dense MLPs and one MoE with zero-compute experts."""

from __future__ import annotations

from wmtp_sim.catalog.families.architecture import Architecture, max_context
from wmtp_sim.catalog.families.deepseek import mla
from wmtp_sim.catalog.families.parts import one_head, refuse
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.spec.model import Block, Mlp, Moe, MtpHead


def longcat_flash(config: Fields, root: Fields) -> Architecture:
    refuse(config, "router_bias", "nextn_use_scmoe")
    for name in ("ngram_vocab_size_ratio", "oe_vocab_size_ratio"):
        if name in config:
            raise config.error(name, "n-gram embeddings are unknown", "LongCat-Flash has none")
    kind = config.text("zero_expert_type", default="identity")  # the default of SGLang's class
    if kind != "identity":
        raise config.error("zero_expert_type", f"{kind[:40]!r} is unknown", "known: identity")
    attention = mla(config)
    dense = Mlp(inner=config.size("ffn_hidden_size"))
    experts = Moe(
        experts=config.size("n_routed_experts"),
        top_k=config.size("moe_topk"),
        inner=config.size("expert_ffn_hidden_size"),
        zero_experts=config.count("zero_expert_num"),
        correction_bias=True,
    )
    layer = Block(
        count=config.size("num_layers"),
        mixers=(attention, attention),
        channels=(dense, dense, experts),
        norms=4,
    )
    # The config does not count the head: SGLang's class defaults to one, and the checkpoint holds one, with one
    # vocabulary matrix of its own that engines replace by the target's.
    has_head = one_head(config, "num_nextn_predict_layers", default=1)
    head = MtpHead(
        blocks=(Block(mixers=(attention,), channels=(dense,), norms=2),),
        norms=3,
        copied_params=config.size("vocab_size") * config.size("hidden_size"),
    )
    return Architecture(blocks=(layer,), max_context=max_context(config), mtp=head if has_head else None)
