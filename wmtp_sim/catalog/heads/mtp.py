"""Multi-token-prediction heads that lie apart from their target: the target's own trained head."""

from __future__ import annotations

from wmtp_sim.catalog.drafter_kinds import layer_fields
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.catalog.heads.parts import positions, same
from wmtp_sim.spec.drafter import Drafter, mtp_drafter
from wmtp_sim.spec.model import Model


def mtp(config: Fields, target: Model) -> Drafter:
    """The target's trained head, where it has one and the config is of its width and vocabulary."""
    layer = layer_fields(config)
    same(layer, "hidden_size", target.hidden)
    same(layer, "vocab_size", target.vocab)
    drafter = mtp_drafter(target)
    if drafter is None:
        field = "architectures" if "architectures" in config else "model_type"
        called = config.items(field, of=str)[0] if field == "architectures" else config.text(field)
        problem = f"{called[:60]!r} is a target's trained head, and {target.name} has none ({target.mtp_note})"
        raise config.error(field, problem, "give --drafter eagle or a draft model")
    return drafter.model_copy(update={"max_positions": positions(layer)})
