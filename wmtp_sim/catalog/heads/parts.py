"""Pieces of draft heads' configs that several families read from the same fields."""

from __future__ import annotations

from pydantic import ValidationError

from wmtp_sim.catalog.drafter_kinds import layer_fields
from wmtp_sim.catalog.families.parts import gqa, layer_count, per_layer, split_head_dim
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.catalog.toml_files import complaint
from wmtp_sim.spec.model import Attention, Model

#: Fields of layers that are not plain attention and one MLP.
_OTHER_LAYERS = ("kv_lora_rank", "n_routed_experts", "num_experts", "num_local_experts")


def same(fields: Fields, name: str, expected: int, hint: str = "another target's head?") -> None:
    """Refuses a size of the head that is not its target's."""
    if (stated := fields.size(name)) != expected:
        raise fields.error(name, f"{stated} differs from the target's {expected}", hint)


def same_target(config: Fields, layer: Fields, target: Model) -> int:
    """The head's width; it may be narrower than its target, and then says how wide that is."""
    wide = next((fields for fields in (config, layer) if "target_hidden_size" in fields), None)
    stated, name = (layer, "hidden_size") if wide is None else (wide, "target_hidden_size")
    same(stated, name, target.hidden, "a head narrower than its target states target_hidden_size")
    return layer.size("hidden_size")


def attention(layer: Fields, normed: bool, sinks: bool = False) -> Attention:
    """A layer's attention over the whole context; ``normed`` layers have Qwen3's norms of q and k, per head."""
    bias, norms = layer.flag("attention_bias", default=False), "per_head" if normed else "none"
    head_dim = split_head_dim(layer)
    try:
        return gqa(layer, head_dim, qkv_bias=bias, o_bias=bias, qk_norm=norms, sink_logits=sinks)
    except ValidationError as error:
        raise complaint(error, f"{layer.where}: num_attention_heads") from None


def windows(layer: Fields) -> list[int | None]:
    """The sliding window of every layer, None where it attends the whole context.

    Layers slide as ``layer_types`` says, or from ``max_window_layers`` on where ``use_sliding_window`` is true.
    """
    count = layer_count(layer)
    slides = layer.flag("use_sliding_window", default=False)
    if "layer_types" not in layer:
        first = layer.count("max_window_layers") if slides else count
        return [layer.size("sliding_window") if i >= first else None for i in range(count)]
    kinds = {"full_attention": False, "sliding_attention": True}
    sliding = per_layer(layer, "layer_types", of=kinds, length=count)
    if any(sliding) and "use_sliding_window" in layer and not slides:
        problem = "false, but layer_types has sliding layers"
        raise layer.error("use_sliding_window", problem, "engines read such a config differently")
    return [layer.size("sliding_window") if each else None for each in sliding]


def plain_layers(layer: Fields) -> None:
    """Refuses layers of another shape than attention and one MLP."""
    for name in _OTHER_LAYERS:
        if layer.values.get(name) not in (None, 0):
            raise layer.error(name, "heads with such layers are not priced yet", "give --drafter eagle or mtp")


def positions(layer: Fields) -> int:
    """Positions up to which a head was built; 0 where its config states none."""
    return layer.count("max_position_embeddings", default=0)


class Places:
    """Where a head's own fields may stand: in a section of their own, beside it, or with its layer's sizes."""

    def __init__(self, config: Fields, *sections: str) -> None:
        self.config = config
        self.all = [config.child(name) for name in sections if name in config] + [config, layer_fields(config)]

    def first(self, *names: str) -> tuple[Fields, str] | None:
        """The first place that states one of some fields, and which; None where none does."""
        return next(((fields, name) for fields in self.all for name in names if name in fields), None)

    def stating(self, name: str) -> Fields:
        """Where a field is stated; the document itself where it is missing."""
        found = self.first(name)
        return self.config if found is None else found[0]

    def flag(self, *names: str, default: bool = False) -> bool:
        found = self.first(*names)
        return default if found is None else found[0].flag(found[1])

    def vocab(self, target: Model) -> int | None:
        """Draft tokens of a head with a vocabulary of its own, at most the target's; None where it has the target's.

        The speculators format must state them.
        """
        place = self.stating("draft_vocab_size")
        if "draft_vocab_size" not in place and "transformer_layer_config" not in self.config:
            return None
        vocab, most = place.size("draft_vocab_size"), target.vocab
        if vocab > most:
            raise place.error("draft_vocab_size", f"{vocab} is more than the target's {most}", "another target's?")
        return vocab
