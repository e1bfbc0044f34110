"""What a drafter's ``config.json`` is, by the names that it gives itself and by fields that only such a config has.

A draft head often carries the ``model_type`` of an ordinary model. So what is not known by name is refused, never
priced as something that it resembles. The words are data: ``data/drafters.toml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from typing import Literal

from wmtp_sim.catalog.fields import Fields, shipped
from wmtp_sim.catalog.toml_files import read_spec
from wmtp_sim.spec.base import Spec
from wmtp_sim.spec.model import Model

Reading = Literal["dflash", "dspark", "domino", "medusa", "eagle-moe", "eagle3", "eagle1", "mtp", "pard", "model"]
SCHEMA = "wmtp-drafters/1"
#: Objects that hold the sizes of a head's layer, in configs that wrap them (speculators; vLLM's EAGLEModel).
_LAYER_SECTIONS = ("transformer_layer_config", "model", "text_config")
_UNPRICED = "it is not priced yet, and as any other kind it would be priced wrongly"
_INSTEAD = "give --drafter mtp, eagle or a draft model; --depth 0 prices the base step alone"


class DrafterKind(Spec):
    """A kind of drafter, the words that tell it, and how its config is read; None where it cannot be priced."""

    reads: Reading | None = None
    what: str = ""
    architectures: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    knows: tuple[str, ...] = ()


class DrafterKinds(Spec):
    """Every known kind, in the order in which they are tried, and what fields about a drafter are called."""

    words: tuple[str, ...]
    closed: tuple[str, ...]
    anywhere: tuple[str, ...]
    kinds: tuple[DrafterKind, ...]


@cache
def _shipped() -> DrafterKinds:
    return read_spec(shipped("drafters.toml"), DrafterKinds, SCHEMA)


def drafter_kinds() -> tuple[DrafterKind, ...]:
    """The kinds that ship."""
    return _shipped().kinds


def layer_fields(config: Fields) -> Fields:
    """Where a head's config states the sizes of its layer."""
    for section in _LAYER_SECTIONS:
        if section in config:
            return config.child(section)
    return config


def reading(config: Fields, target: Model) -> Reading:
    """How a drafter's config is read.

    Raises:
        InputError: naming the field and the word of a kind that is not known, or that cannot be priced, or a field
            about a drafter that the kind does not know.
    """
    found = _told(config)
    if found is None:
        _refuse_unknown_names(config)
        read = _head_or_model(config, target)
        found = next(kind for kind in drafter_kinds() if kind.reads == read)
    _refuse_unknown_fields(config, found)
    assert found.reads is not None
    return found.reads


def _told(config: Fields) -> DrafterKind | None:
    """The kind that a config's names tell, else its markers; None for ordinary models and unknown names."""
    for told_by in (_name_of, _marker_of):
        for kind in drafter_kinds():
            told = None if kind.reads == "model" else told_by(kind, config)
            if told is not None and kind.reads is None:
                field, value = told
                raise config.error(field, f"{value[:60]} means {kind.what}; {_UNPRICED}", _INSTEAD)
            if told is not None:
                return kind
    return None


def _name_of(kind: DrafterKind, config: Fields) -> tuple[str, str] | None:
    """The field whose name tells a kind and that name as shown, or None."""
    for field, value in _names(config):
        known = {"architectures": kind.architectures, "model_type": kind.model_types}.get(field, kind.algorithms)
        if any(fnmatchcase(value, name) for name in known):
            return field, repr(value)
    return None


def _marker_of(kind: DrafterKind, config: Fields) -> tuple[str, str] | None:
    """The marker that tells a kind and its value as shown, or None."""
    for marker in kind.markers:
        if config.values.get(marker) not in (None, False):
            return marker, repr(config.values[marker])
    return None


def _names(config: Fields) -> list[tuple[str, str]]:
    """What a config calls itself: its architectures, its algorithm in the speculators format, its model_type."""
    found = []
    if "architectures" in config:
        found += [("architectures", name) for name in config.items("architectures", of=str)]
    if "speculators_model_type" in config:
        found.append(("speculators_model_type", config.text("speculators_model_type")))
    if "speculators_config" in config and "algorithm" in (stated := config.child("speculators_config")):
        found.append(("speculators_config", stated.text("algorithm")))
    if "model_type" in config:
        found.append(("model_type", config.text("model_type")))
    return found


def _refuse_unknown_names(config: Fields) -> None:
    for field, value in _names(config):
        if field != "model_type" and not any(value in kind.architectures for kind in drafter_kinds()):
            raise config.error(field, f"{value[:60]!r} is no drafter that is known", _INSTEAD)


def _refuse_unknown_fields(config: Fields, kind: DrafterKind) -> None:
    """Refuses fields about a drafter that nobody reads: what they add would be missing from the price."""
    shipped = _shipped()
    known = {*shipped.anywhere, *kind.markers, *kind.knows}
    about = re.compile(rf"(?:^|_)(?:{'|'.join(map(re.escape, shipped.words))})")
    for part, closed in _parts(config):
        for name, value in part.values.items():
            if value not in (None, False) and name not in known and (closed or about.search(name)):
                problem = "is a field of a drafter that is not known, and what it adds would not be priced"
                raise part.error(name[:60], problem, _INSTEAD)


def _parts(config: Fields) -> Iterator[tuple[Fields, bool]]:
    """A config, its objects that hold a layer's or a drafter's fields, and whether all of such an object is known."""
    yield config, False
    for section in (*_LAYER_SECTIONS, "eagle_config", *_shipped().closed):
        if isinstance(config.values.get(section), dict):
            yield config.child(section), section in _shipped().closed


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
