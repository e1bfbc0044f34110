"""Medusa heads, side by side on the target's last state: one for each drafted token, no cache (arXiv 2401.10774)."""

from __future__ import annotations

from wmtp_sim.catalog.families.parts import MAX_LAYERS
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.catalog.heads.parts import same
from wmtp_sim.spec.drafter import Drafter
from wmtp_sim.spec.model import Model, Projection
from wmtp_sim.spec.precision import GroupFormats


def medusa(config: Fields, target: Model) -> Drafter:
    """Heads of residual h x h layers and a vocabulary matrix each, or all with the target's (``original_lm_head``).

    As its authors train them (``medusa_num_heads``), layers have a bias; as vLLM's checkpoints name them
    (``num_heads``), only where ``medusa_fc_bias`` says so.
    """
    plain = "num_heads" in config and "medusa_num_heads" not in config
    heads = config.size("num_heads" if plain else "medusa_num_heads")
    name = "num_hidden_layers" if plain else "medusa_num_layers"
    if (layers := config.size(name)) > MAX_LAYERS:
        raise config.error(name, f"{layers} is out of range", f"at most {MAX_LAYERS}")
    for name, size in (("hidden_size", target.hidden), ("vocab_size", target.vocab)):
        if name in config:
            same(config, name, size)
    shared = config.flag("original_lm_head", default=False)
    together = heads if shared else 1
    width = together * target.hidden
    bias = config.flag("medusa_fc_bias", default=not plain)
    return Drafter(
        kind="heads",
        name=f"{heads} Medusa heads of {target.name}",
        hidden=target.hidden,
        vocab=config.size("truncated_vocab_size", default=target.vocab),
        blocks=(),
        projections=tuple(Projection(name=f"heads_{layer}", k=target.hidden, n=width) for layer in range(layers)),
        norms=0,
        extra_params=layers * width if bias else 0,
        formats=GroupFormats(lm_head=target.precision.target.lm_head) if shared else GroupFormats(),
        own_lm_head=not shared,
        resident_copies=1 if shared else heads,
        block=heads + 1,
    )
