"""GPUs by name, alias, or from a person's own small TOML or JSON file."""

from __future__ import annotations

import difflib
import re
from functools import cache
from pathlib import Path
from typing import Any

from wmtp_sim.catalog.fields import read_json_object, shipped
from wmtp_sim.catalog.toml_files import read_toml, validated
from wmtp_sim.errors import InputError
from wmtp_sim.spec.gpu import Gpu

_SUFFIXES = (".toml", ".json")


@cache
def _catalog() -> dict[str, dict[str, Any]]:
    """The shipped document: ``gpus`` by name, and ``aliases`` to those names."""
    return read_json_object(shipped("gpus.json"))


@cache
def gpu_names() -> tuple[str, ...]:
    """Names of the shipped GPUs, sorted."""
    return tuple(sorted(_catalog()["gpus"]))


@cache
def _known() -> dict[str, str]:
    """What a person may type, without case and separators -> name."""
    names = {_plain(name): name for name in gpu_names()}
    return names | {_plain(alias): name for alias, name in _catalog()["aliases"].items()}


def _plain(reference: str) -> str:
    return re.sub(r"[\s_-]", "", reference.lower())


def load_gpu(reference: str) -> Gpu:
    """A GPU from a catalogue name or alias (case and separators do not matter), or from a ``.toml`` or ``.json`` file.

    A file holds the fields of `Gpu`; ``name``, ``hbm_bandwidth_bytes_per_s``, ``memory_bytes`` and
    ``peak_dense_flops.bf16`` are required.

    Raises:
        InputError: for an unknown name (close names are suggested), an unreadable file, or a field that is missing,
            unknown, mistyped or out of range.
    """
    name = _known().get(_plain(reference))
    if name is not None:
        return _shipped(name)
    path = Path(reference)
    if path.suffix.lower() in _SUFFIXES:
        return _from_file(path)
    raise InputError("--gpu", f"no catalogue GPU is called {reference[:120]!r}", _suggestion(reference))


def named_by_driver(name: str) -> Gpu | None:
    """The catalogue's GPU that a driver calls ``name``, which may be shorter or longer than the catalogue's own name.

    ``NVIDIA H100 80GB HBM3`` is ``NVIDIA H100 80GB HBM3 (SXM5)``. None where none or several fit.
    """
    asked, known = _words(name), {key: _words(_shipped(key).name) for key in gpu_names()}
    exact = [key for key, words in known.items() if words == asked]
    longer = [key for key, words in known.items() if words[: len(asked)] == asked]
    shorter = [key for key, words in known.items() if asked[: len(words)] == words]
    for found in (exact, longer, shorter):
        if found:
            return _shipped(found[0]) if len(found) == 1 else None
    return None


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


@cache
def _shipped(name: str) -> Gpu:
    return validated(_catalog()["gpus"][name], Gpu, f"gpus.json: {name}")


def _suggestion(reference: str) -> str:
    close = difflib.get_close_matches(_plain(reference[:120]), _known(), n=5, cutoff=0.5)
    names = list(dict.fromkeys(_known()[match] for match in close))[:3]
    listed = f"did you mean {' or '.join(names)}? " if names else f"known: {', '.join(gpu_names())}; "
    return f"{listed}`wmtp gpus` lists the catalogue; or give the path of a .toml or .json file"


def _from_file(path: Path) -> Gpu:
    document = read_toml(path) if path.suffix.lower() == ".toml" else read_json_object(path)
    return validated(document, Gpu, str(path))
