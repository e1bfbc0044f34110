"""Engines by name and version: the shipped definition files, or a user's own.

A file is ``NAME@VERSION.toml`` (``NAME.toml`` where there are no versions). It may state ``extends = "vllm@0.33"``: it
is then that definition with what it states put over it, table by table. ``vllm`` is the newest version known.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from wmtp_sim.catalog.fields import shipped
from wmtp_sim.catalog.toml_files import read_toml, validated
from wmtp_sim.errors import InputError
from wmtp_sim.spec.engine import TITLES, AttentionKernel, Engine, Phase, lies_under, names_of, quoted, source_among

SCHEMA = "wmtp-engine/2"
_FOLDER = shipped("engines")
#: How many definitions may extend one another.
DEEPEST = 4
#: The passes that a choice of attention backends names, and the phases that follow each.
BACKEND_FLAG = "--attention-backend"
BACKEND_OF: dict[str, tuple[Phase, ...]] = {"base": ("base",), "verify": ("verify",), "draft": ("draft", "extend")}


@cache
def engine_names() -> tuple[str, ...]:
    """Every shipped definition, ``name@version`` (or the name alone), sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def load_engine(reference: str, changes: Iterable[str] = ()) -> Engine:
    """An engine from a name, ``name@version`` or a TOML file, with ``path=value`` changes put over it.

    A path names a value of the definition (``host.step_s``, ``attention_kernels.fa3.max_splits``);
    ``attention.max_splits=128`` changes every attention kernel. Values are read as TOML.

    Raises:
        InputError: an unknown engine (with close names), a file that is none, or a change that fits nowhere.
    """
    stem = _resolved(reference.lower())
    if stem is None and not reference.endswith(".toml"):
        raise InputError("--engine", f"unknown engine {reference[:60]!r}", _known(reference.lower()))
    changes = tuple(changes)
    if stem is not None and not changes:
        return _shipped(stem)
    path = _FOLDER / f"{stem}.toml" if stem is not None else Path(reference)
    document = _document(path)
    for change in changes:
        _apply(document, change)
    if changes:
        stated = ", ".join(change[:60] for change in changes)
        document["version"] = f"{document.get('version', '')} with {stated}".strip()
        document["measured"] = []  # nobody measured it so
    return validated(document, Engine, "--engine-set" if changes else str(path))


def with_backends(engine: Engine, stated: str) -> Engine:
    """An engine with attention backends chosen by hand (see `chosen_backends`). Raises `InputError` as that does."""
    named = chosen_backends(engine, stated)
    return engine.with_attention({phase: word for name, word in named.items() for phase in BACKEND_OF[name]})


def chosen_backends(engine: Engine, stated: str) -> dict[str, str]:
    """What ``--attention-backend`` says of each pass, in the engine's own words, whose case does not matter.

    ``triton`` is for every pass; ``base=fa3,verify=triton,draft=flashinfer`` for those named, the others keep the
    release's own.

    Raises:
        InputError: ``--attention-backend``, for a pass or a backend that the engine does not have.
    """
    parts = [part.strip().partition("=") for part in stated.split(",")]
    if len(parts) == 1 and not parts[0][1]:
        return dict.fromkeys(BACKEND_OF, _backend(engine, stated))
    for name, _, _ in parts:
        if name.strip() not in BACKEND_OF:
            hint = f"one word for all, or of {', '.join(BACKEND_OF)}: base=triton,draft=flashinfer"
            raise InputError(BACKEND_FLAG, f"{name.strip()[:40]!r} is no pass", hint)
    names = [name.strip() for name, _, _ in parts]
    if len(set(names)) < len(names):
        raise InputError(BACKEND_FLAG, f"{stated[:60]!r} names a pass twice", "one backend for each pass")
    return {name: _backend(engine, word) for name, (_, _, word) in zip(names, parts, strict=True)}


def with_known_backends(engine: Engine, named: Mapping[str, str]) -> tuple[Engine, list[str]]:
    """An engine with the backends that a command states for passes, and words that its definition does not know."""
    known: dict[str, str] = {}
    unknown = []
    for name, word in named.items():
        try:
            known[name] = _backend(engine, word)
        except InputError:
            unknown.append(word)
    chosen = engine.with_attention({phase: word for name, word in known.items() for phase in BACKEND_OF[name]})
    return (chosen if known else engine), list(dict.fromkeys(unknown))


def _backend(engine: Engine, word: str) -> str:
    """A backend by the engine's own word. Raises `InputError` naming those that there are."""
    known = {name.lower(): name for name in reversed(engine.backend_names)}
    found = known.get(word.strip().lower())
    if found is None:
        release = f"{engine.name} {engine.version}"
        names = ", ".join(engine.attention_backends) or ", ".join(engine.attention_kernels)
        raise InputError(BACKEND_FLAG, f"{word.strip()[:40]!r} is no backend of {release} here", f"one of {names}")
    return found


@cache
def _shipped(stem: str) -> Engine:
    path = _FOLDER / f"{stem}.toml"
    return validated(_document(path), Engine, str(path))


def _resolved(name: str) -> str | None:
    """The file of a name; of several versions the newest, which a name without version means."""
    if name in engine_names():
        return name
    versions = [stem for stem in engine_names() if stem.startswith(f"{name}@")]
    return max(versions, key=_version) if versions else None


def _version(stem: str) -> tuple[int, ...]:
    """Numbers of a version, for comparison. A calendar version (26.06) is a container's, and older than any release."""
    parts = stem.partition("@")[2].lstrip("b").split(".")
    numbers = [int(part) if part.isdecimal() else 0 for part in parts]
    return (0 if 20 <= numbers[0] < 100 else 1, *numbers)


def _known(name: str) -> str:
    spoken = sorted({stem.partition("@")[0] for stem in engine_names()} | set(engine_names()))
    close = difflib.get_close_matches(name, spoken, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"{hint}one of {', '.join(engine_names())}, or an engine file that ends in .toml"


def _document(path: Path, depth: int = 0) -> dict[str, Any]:
    """A definition file's content over what it extends; the schema line is checked and taken off."""
    document = read_toml(path)
    stated = document.pop("schema", None)
    if stated != SCHEMA:
        raise InputError(f"{path}: schema", f"is {stated!r}", f"this release reads {SCHEMA!r}")
    base = document.pop("extends", None)
    own = document.get("sources", {})
    if base is None:
        return document | {"sources": {"": f"stated in {path.name}"} | own if isinstance(own, dict) else own}
    stem = _resolved(str(base).lower())
    if stem is None or depth >= DEEPEST:
        raise InputError(f"{path}: extends", f"{str(base)[:60]!r} is no shipped engine", _known(str(base)))
    below = _document(_FOLDER / f"{stem}.toml", depth + 1)
    below.pop("measured", None)  # steps of another release
    merged = _over(below, document)
    merged["sources"] = _sources_over(below.get("sources", {}), document, path.name)
    return merged


def _sources_over(below: dict[str, str], document: dict[str, Any], file: str) -> Any:
    """The sources of an extended definition: none of them speaks for a value that the extending file states."""
    own = document.get("sources", {})
    if not (isinstance(own, dict) and all(isinstance(source, str) for source in own.values())):
        return own  # for validation to refuse
    said = [path for name in sorted(document.keys() - TITLES - {"sources"}) for path in _paths(document[name], name)]
    kept = {known: source for known, source in below.items() if not any(lies_under(known, path) for path in said)}
    return kept | {path: source_among(own, path) or f"stated in {file}" for path in said} | own


def _paths(value: Any, path: str) -> list[str]:
    """The paths of the values in a table; a list is one value, for it replaces the other list as a whole."""
    if not isinstance(value, dict):
        return [path]
    return [found for name, inner in value.items() for found in _paths(inner, f"{path}.{quoted(name)}")]


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """``above`` put over ``below``: tables merge, anything else is replaced."""
    merged = dict(below)
    for name, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = _over(merged[name], value) if both else value
    return merged


def _apply(document: dict[str, Any], change: str) -> None:
    """One ``path=value`` change, in place."""
    path, equals, text = change.partition("=")
    if not equals or not path.strip():
        raise InputError("--engine-set", f"{change[:60]!r} is no change", "for example host.step_s=0.001")
    names = names_of(path)
    value = _value(text.strip())
    if names[0] == "attention" and len(names) == 2 and names[1] in AttentionKernel.model_fields:
        for name, kernel in document.get("attention_kernels", {}).items():
            kernel[names[1]] = value
            _say_whose(document, f"attention_kernels.{name}.{names[1]}")
        return
    table: Any = document
    for name in names[:-1]:
        table = _entry(table, name, path, document)
        if not isinstance(table, dict | list):
            problem = f"{path[:60]!r} goes through {name!r}, which is a value"
            raise InputError("--engine-set", problem, _tables(document))
    if not names[-1] or names[0] not in Engine.model_fields or isinstance(table, list):
        raise InputError("--engine-set", f"{path[:60]!r} is not a value of an engine", _tables(document))
    table[names[-1]] = value
    _say_whose(document, ".".join(map(quoted, names)))


def _entry(table: Any, name: str, path: str, document: dict[str, Any]) -> Any:
    """What a path goes through: a table, made where there is none, or an entry of a list by its number."""
    if isinstance(table, dict):
        return table.setdefault(name, {})
    if not name.isdecimal() or int(name) >= len(table):
        raise InputError("--engine-set", f"{path[:60]!r}: there is no entry {name[:20]!r}", _tables(document))
    return table[int(name)]


def _value(text: str) -> Any:
    """A TOML value; a bare word is a string."""
    if len(text) > 1000:
        raise InputError("--engine-set", "has a value of more than 1,000 characters", "is this the right option?")
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return text


def _say_whose(document: dict[str, Any], path: str) -> None:
    sources = document.get("sources")
    document["sources"] = {**(sources if isinstance(sources, dict) else {}), path: "stated with --engine-set"}


def _tables(document: dict[str, Any]) -> str:
    return f"paths begin with one of {', '.join(name for name in document if name != 'sources')}; see wmtp engines show"
