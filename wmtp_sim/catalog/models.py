"""Models by name, by path, or by folder: all through the one importer of ``config.json``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wmtp_sim.catalog.families import FAMILIES
from wmtp_sim.catalog.fields import Fields, path_kind, read_json_object, shipped
from wmtp_sim.catalog.quantization import read_precision
from wmtp_sim.catalog.toml_files import complaint
from wmtp_sim.errors import InputError
from wmtp_sim.spec.model import Model

#: Objects that wrap a text model's fields in multimodal configs.
_TEXT_SECTIONS = ("text_config", "llm_config", "language_config")


#: Which fields to look at when the sizes of a part contradict each other.
_IMPOSSIBLE = {
    "Attention": "num_attention_heads must be a multiple of num_key_value_heads",
    "Moe": "num_experts_per_tok must not exceed the number of experts",
}


def catalog_folder() -> Path:
    """Where the shipped config files lie."""
    return shipped("models")


@cache
def model_names() -> tuple[str, ...]:
    """Names of the shipped models, sorted."""
    return tuple(sorted(path.stem for path in catalog_folder().glob("*.json")))


def hub_name(reference: str) -> str:
    """The catalogue's name for a model of a hub (``Qwen/Qwen3.5-35B-A3B``); the reference itself where it has none."""
    last = reference.rstrip("/").rpartition("/")[2].lower()
    known = path_kind(Path(reference)) == "nothing" and last in model_names()
    return last if known else reference


def load_model(reference: str, field: str = "MODEL") -> Model:
    """A model from a catalogue name, a ``config.json`` path, or a folder that holds one.

    Raises `InputError` (by ``field``, what the reference was given for) for an unknown name, with close names, and for
    whatever the importer does not know.
    """
    path = Path(reference)
    kind = path_kind(path) if reference.strip() else "nothing"
    if kind == "folder":
        path = path / "config.json"
        inside = path_kind(path)
    if reference.lower() in model_names() and (kind == "nothing" or (kind == "folder" and inside != "file")):
        return _shipped(reference.lower())
    if kind == "folder" and inside != "file":
        raise InputError(field, f"the folder {reference[:120]!r} holds no config.json", "name the file itself")
    if kind == "nothing":
        raise InputError(field, f"no catalogue model or file is called {reference[:120]!r}", _suggestion(reference))
    name = path.absolute().parent.name if path.name == "config.json" else path.stem
    name = name.encode("utf-8", "replace").decode()  # a file name may be no text
    return import_config(read_json_object(path), name or "config", where=path.name)


@cache
def _shipped(name: str) -> Model:
    return import_config(read_json_object(catalog_folder() / f"{name}.json"), name, where=f"{name}.json")


def _suggestion(reference: str) -> str:
    close = difflib.get_close_matches(reference.lower(), model_names(), n=3, cutoff=0.5)
    listed = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{listed}`wmtp models` lists the catalogue; or give the path of a config.json"


def import_config(document: Mapping[str, Any], name: str, where: str = "config.json") -> Model:
    """A `Model` from the content of a ``config.json``.

    Args:
        document: the parsed JSON object.
        name: what outputs call the model.
        where: the document's name in errors.

    Raises:
        InputError: naming the field that is missing, mistyped, impossible, or of an unknown architecture.
    """
    root = Fields(document, where)
    text = root
    for section in _TEXT_SECTIONS:
        if section in root:
            text = root.child(section)
            break
    family = _family(text, root)
    try:
        architecture = FAMILIES[family](text, root)
        tied = architecture.tied_embeddings
        if tied is None:
            tied = text.flag("tie_word_embeddings", default=root.flag("tie_word_embeddings", default=False))
        return Model(
            name=name,
            family=family,
            hidden=text.size("hidden_size"),
            vocab=architecture.vocab or text.size("vocab_size"),
            blocks=architecture.blocks,
            final_norms=architecture.final_norms,
            extra_params=architecture.extra_params,
            tied_embeddings=tied,
            max_context=architecture.max_context,
            rope=architecture.rope,
            state_dtype_bytes=architecture.state_dtype_bytes,
            mtp=architecture.mtp,
            mtp_note="" if architecture.mtp else architecture.mtp_note,
            vision_params=architecture.vision_params,
            precision=read_precision(text, root, architecture),
        )
    except ValidationError as error:
        hint = _IMPOSSIBLE.get(error.title, "is this a config of that model family?")
        raise complaint(error, f"{where}: {error.title}", hint) from None


def _family(text: Fields, root: Fields) -> str:
    """The importer's key: the text model's ``model_type``, or the document's."""
    for fields in (text, root):
        if "model_type" in fields:
            family = fields.text("model_type").removesuffix("_text")
            if family in FAMILIES:
                return family
    stated = (text if "model_type" in text else root).text("model_type")
    raise root.error(
        "model_type", f"{stated[:60]!r} is not a known architecture", f"known: {', '.join(sorted(FAMILIES))}"
    )
