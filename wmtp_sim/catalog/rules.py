"""The shipped rules of preflight, and what of a checkpoint's files they ask about."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from wmtp_sim.catalog.fields import Fields, path_kind, read_json_object, shipped
from wmtp_sim.catalog.toml_files import read_spec
from wmtp_sim.spec.rules import RuleBook

SCHEMA = "wmtp-rules/1"
INDEX = "model.safetensors.index.json"


@cache
def load_rules() -> RuleBook:
    """The rules that ship."""
    return read_spec(shipped("preflight", "rules.toml"), RuleBook, SCHEMA)


def read_checkpoint(reference: str) -> tuple[int, int] | None:
    """How many tensors the index beside a model's ``config.json`` lists, and how many of them are a draft head's.

    None where there is no folder with an index.

    Raises:
        InputError: an index that is too large, no JSON, or without its map of tensors.
    """
    path = Path(reference)
    folder = path if path_kind(path) == "folder" else path.parent
    index = folder / INDEX
    if not reference.strip() or path_kind(path) == "nothing" or path_kind(index) != "file":
        return None
    names = Fields(read_json_object(index), INDEX).child("weight_map").values
    marks = load_rules().limits.head_tensors
    return len(names), sum(any(mark in name for mark in marks) for name in names)
