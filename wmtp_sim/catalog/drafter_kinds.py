"""What a drafter's ``config.json`` is, by its architectures and by fields that only such a config has.

A draft head often carries the ``model_type`` of an ordinary model. So what is not known by name is refused, never
priced as something that it resembles. The words are data: ``data/drafters.toml``.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

from wmtp_sim.catalog.fields import Fields
from wmtp_sim.catalog.toml_files import read_spec
from wmtp_sim.spec.base import Spec
from wmtp_sim.spec.model import Model

Reading = Literal["eagle1", "eagle3", "model"]
SCHEMA = "wmtp-drafters/1"
#: Objects that hold the sizes of a head's layer, in configs that wrap them (speculators; vLLM's EAGLEModel).
_LAYER_SECTIONS = ("transformer_layer_config", "model")
_UNPRICED = "it is not priced yet, and as any other kind it would be priced wrongly"
_INSTEAD = "give --drafter mtp, eagle or a draft model; --depth 0 prices the base step alone"


class DrafterKind(Spec):
    """A kind of drafter, the words that tell it, and how its config is read; None where it cannot be priced."""

    reads: Reading | None = None
    what: str = ""
    architectures: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()


class DrafterKinds(Spec):
    """Every known kind, in the order in which they are tried."""

    kinds: tuple[DrafterKind, ...]


@cache
def drafter_kinds() -> tuple[DrafterKind, ...]:
    """The kinds that ship."""
    path = Path(str(resources.files("wmtp_sim") / "data" / "drafters.toml"))
    return read_spec(path, DrafterKinds, SCHEMA).kinds


def layer_fields(config: Fields) -> Fields:
    """Where a head's config states the sizes of its layer."""
    for section in _LAYER_SECTIONS:
        if section in config:
            return config.child(section)
    return config


def reading(config: Fields, target: Model) -> Reading:
    """How a drafter's config is read.

    Raises:
        InputError: naming the field and the word of a kind that is not known, or that cannot be priced.
    """
    for kind in drafter_kinds():
        told = _told_by(kind, config)
        if told is None or kind.reads == "model":
            continue
        if kind.reads is None:
            field, value = told
            raise config.error(field, f"{value[:60]} means {kind.what}; {_UNPRICED}", _INSTEAD)
        return kind.reads
    for field, value in _words(config):
        if not any(value in kind.architectures for kind in drafter_kinds()):
            raise config.error(field, f"{value[:60]!r} is no drafter that is known", _INSTEAD)
    return _head_or_model(config, target)


def _told_by(kind: DrafterKind, config: Fields) -> tuple[str, str] | None:
    """The field that tells a kind and its value as shown, or None."""
    for field, value in _words(config):
        if value in (kind.architectures if field == "architectures" else kind.algorithms):
            return field, repr(value)
    for marker in kind.markers:
        if config.values.get(marker) not in (None, False):
            return marker, repr(config.values[marker])
    return None


def _words(config: Fields) -> list[tuple[str, str]]:
    """What a config calls itself: its architectures, and its algorithm in the speculators format."""
    found = []
    if "architectures" in config:
        found += [("architectures", name) for name in config.items("architectures", of=str)]
    if "speculators_model_type" in config:
        found.append(("speculators_model_type", config.text("speculators_model_type")))
    if "speculators_config" in config and "algorithm" in (stated := config.child("speculators_config")):
        found.append(("speculators_config", stated.text("algorithm")))
    return found


def _head_or_model(config: Fields, target: Model) -> Reading:
    """EAGLE-1 heads call themselves what their target does: one layer of its width over its vocabulary, and ``bias``.

    Without ``bias`` nothing tells such a head from a model of one layer.
    """
    alike = {"num_hidden_layers": 1, "hidden_size": target.hidden, "vocab_size": target.vocab}
    if any(config.values.get(name) != value for name, value in alike.items()):
        return "model"
    if "bias" in config:
        return "eagle1"
    problem = f"one layer as wide as {target.name} may be an EAGLE-1 head or a draft model"
    hint = 'for a head, state "architectures": ["EagleLlamaForCausalLM"]'
    raise config.error("num_hidden_layers", problem, hint)
