"""The flags that engine releases take (``data/flags``), and a strict reader of command lines written in them.

It reads as argparse does: ``--flag value`` and ``--flag=value``, names cut short where one flag alone begins so, the
last of a repeated flag; and where an engine's parser does, ``--flag.key value`` for a key of a JSON object. Nothing is
run, and nothing is dropped: words that no flag explains are returned.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from typing import Any

from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.fields import shipped
from wmtp_sim.catalog.toml_files import read_spec
from wmtp_sim.errors import InputError
from wmtp_sim.spec.engine import Engine
from wmtp_sim.spec.flags import Flag, Grammar, stated

SCHEMA = "wmtp-flags/1"
_FOLDER = shipped("flags")
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)([kKmMgGtT])")
_SI_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)([kMGT]|[KMGT]i)")
_SI_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_WHOLE = re.compile(r"[+-]?\d{1,18}")
#: First words of a flag's name, and whether they turn the meaning of the rest round.
_TURNS = {"enable": False, "disable": True, "no": True, "noenable": True, "nodisable": False}
#: A variable of a shell, or a substitution, at a value's start.
_VARIABLE = re.compile(r"\$[A-Za-z_{(0-9]|`")
#: A value that begins with a dash, as argparse tells it from a flag.
_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")


@cache
def grammar_names() -> tuple[str, ...]:
    """Engines whose flags are known, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@cache
def load_grammar(engine: str) -> Grammar:
    """The flags of an engine by its plain name (``sglang``). Raises `InputError` for one whose flags nobody noted."""
    if engine not in grammar_names():
        raise InputError("--engine", f"no flags are known of {engine[:60]!r}", f"one of {', '.join(grammar_names())}")
    return read_spec(_FOLDER / f"{engine}.toml", Grammar, SCHEMA)


@dataclass(frozen=True)
class Vocabulary:
    """What one release's command line takes: each name of a flag, and the flag's own name."""

    engine: Engine
    grammar: Grammar
    release: str
    flags: dict[str, Flag]
    names: dict[str, str]

    @property
    def name(self) -> str:
        """The engine and its release, for people."""
        return f"{self.grammar.engine} {self.release}"

    def flag_of(self, field_name: str) -> str | None:
        """The flag that writes a field of a deployment, or None where this release has none."""
        return next(iter(self.flags_of(field_name)), None)

    def flags_of(self, field_name: str) -> list[str]:
        """Every flag of this release that states a field."""
        return [name for name in self.grammar.fields.get(field_name, ()) if self.flag_takes(name)]

    def flag_takes(self, name: str) -> bool:
        """Whether this release has a flag, or ``--flag.key``."""
        base, dot, key = name.partition(".")
        return base in self.flags and (not dot or base not in self.grammar.keys or key in self.keys(base))

    def keys(self, flag: str) -> dict[str, Flag]:
        """Keys of a flag's JSON object in this release; empty where the file does not list them."""
        return self.grammar.taken(self.grammar.keys.get(flag, {}), self.release)

    def resolve(self, name: str) -> str | list[str] | None:
        """The name of ``names`` that a typed one means, several where it is cut too short, None where there is none."""
        if self.grammar.underscores and name.startswith("--"):
            name = name.replace("_", "-")
        if name in self.names:
            return name
        if not name.startswith("--") or len(name) < 4:
            return None
        begun = [known for known in self.names if known.startswith(name)]
        return begun[0] if len(begun) == 1 else begun or None

    def other_releases(self, name: str) -> list[str]:
        """Releases of this engine that take a flag which this one does not."""
        return [r for r in self.grammar.releases if name in names_of(self.grammar.taken(self.grammar.flags, r))]


def vocabulary(reference: str | Engine) -> Vocabulary:
    """The command line of an engine release: ``sglang``, ``vllm@0.26``, or a loaded `Engine`.

    Raises:
        InputError: an engine or a release whose flags are not known.
    """
    engine = load_engine(reference) if isinstance(reference, str) else reference
    grammar = load_grammar(engine.name)
    found = [r for r in grammar.releases if re.match(rf"{re.escape(r)}($|[. ])", engine.version)]
    if not found:
        known = ", ".join(f"{engine.name}@{release}" for release in grammar.releases)
        raise InputError("--engine", f"no flags are known of {engine.name} {engine.version[:60]}", f"one of {known}")
    flags = grammar.taken(grammar.flags, found[0])
    return Vocabulary(engine, grammar, found[0], flags, names_of(flags))


def names_of(flags: dict[str, Flag]) -> dict[str, str]:
    """Every name that flags may be given by, and the flag's own."""
    return {name: main for main, flag in flags.items() for name in (main, *flag.also, *flag.off)}


@dataclass
class Line:
    """A command line as read.

    Attributes:
        values: by the flags' own names; lists where a flag takes several words.
        unknown: words that belong to no flag of the release, each flag with the words after it.
        refused: what the engine's parser would refuse, in words.
        unpriced: what the engine takes and this project has no word for.
        variables: flags whose value is a variable of a shell, which is not expanded, where they take no text.
    """

    values: dict[str, Any] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    unpriced: list[str] = field(default_factory=list)
    variables: list[tuple[str, str]] = field(default_factory=list)

    def value(self, name: str) -> Any:
        """What a flag, or ``--flag.key``, was given; None where it was not."""
        return stated(self.values, name)


def read_line(known: Vocabulary, words: Sequence[str], launcher: str = "") -> Line:
    """Read the words after a launcher, of which ``launcher`` is the last. What cannot be used is noted in the answer,
    and nothing is dropped."""
    line, at = Line(), 0
    if launcher in known.grammar.model_after and words and not _is_flag(words[0]):
        line.values[known.grammar.fields["model"][0]] = words[0]
        at = 1
    while at < len(words):
        at = _read_one(known, words, at, line)
    return line


def check_line(known: Vocabulary, words: Sequence[str], launcher: str = "") -> Line:
    """As `read_line`, but strict. Raises `InputError` with the first word that the release would refuse."""
    line = read_line(known, words, launcher)
    if line.unknown:
        raise InputError(line.unknown[0][:80], f"is no flag of {known.name}", suggestion(known, line.unknown[0]))
    if line.refused:
        raise InputError(known.name, line.refused[0], "see the engine's --help")
    return line


def suggestion(known: Vocabulary, words: str) -> str:
    """What may have been meant by a flag that is none: never a flag that does the opposite."""
    name = re.split(r"[ =]", words, maxsplit=1)[0][:80]
    about, off = _meaning(name)
    same = [each for each in known.names if _meaning(each) == (about, off)]
    releases = [] if same else known.other_releases(name)
    if releases:
        return f"{known.grammar.engine} {' and '.join(releases)} has it"
    close = same or difflib.get_close_matches(name, known.names, n=1, cutoff=0.75)
    meant = close[0] if close and _meaning(close[0])[1] is off else None
    return f"did you mean {meant}?" if meant else "drop it, or check its spelling"


def _meaning(name: str) -> tuple[str, bool]:
    """What a flag's name is about, and whether it switches that off: ``--no-disable-x`` is about x, and does not.

    A first word that is nearly one of `_TURNS` is taken for it.
    """
    words, off = name.lstrip("-").replace("_", "-").split("-"), False
    while len(words) > 1 and (near := difflib.get_close_matches(words[0], _TURNS, n=1, cutoff=0.75)):
        off ^= _TURNS[near[0]]
        words = words[1:]
    return "-".join(words), off


def _read_one(known: Vocabulary, words: Sequence[str], at: int, line: Line) -> int:
    """Read the flag, or the stray word, at one place; where the next begins."""
    word = words[at]
    if not _is_flag(word):
        line.unknown.append(word)
        return at + 1
    typed, equals, glued = word.partition("=")
    if word[1] != "-" and word[:2] in known.names and typed not in known.names:  # -O3
        typed, equals, glued = word[:2], "=", word[2:].removeprefix("=")
    typed, dot, key = typed.partition(".") if known.grammar.dotted else (typed, "", "")
    meant = known.resolve(typed)
    if isinstance(meant, list):
        line.refused.append(f"{typed[:60]} may mean {' or '.join(meant[:4])}")
    if not isinstance(meant, str):
        return _pass_over(words, at, line, keep=meant is None)
    name = known.names[meant]
    flag = known.flags[name]
    if dot and flag.kind != "json":
        line.refused.append(f"{name} holds no keys: {word[:60]!r}")
        return at + 1
    if flag.kind == "switch":
        if equals:
            line.refused.append(f"{name} takes no value: {word[:60]!r}")
        line.values[name] = meant not in flag.off
        return at + 1
    following = [glued] if equals else list(_following(words, at + 1))
    given = following if flag.many else following[:1]
    if not given and not flag.bare:
        line.refused.append(f"{name} lacks its value")
    elif dot:
        _put_key(known, name, key.replace("-", "_"), given[0], line)
    else:
        _put(known, name, flag, given, line)
    return at + 1 if equals else at + 1 + len(given)


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not _NEGATIVE.fullmatch(word) and " " not in word.partition("=")[0]


def _following(words: Sequence[str], start: int) -> Iterator[str]:
    for word in words[start:]:
        if _is_flag(word):
            return
        yield word


def _pass_over(words: Sequence[str], at: int, line: Line, keep: bool) -> int:
    """Step over a flag that is none and the words after it, which are taken for its values."""
    after = [] if "=" in words[at] else list(_following(words, at + 1))
    if keep:
        line.unknown.append(" ".join((words[at], *after)))
    return at + 1 + len(after)


def _put(known: Vocabulary, name: str, flag: Flag, given: list[str], line: Line) -> None:
    values = []
    for text in given:
        try:
            values.append(converted(flag, text))
        except ValueError as error:
            if _VARIABLE.match(text):
                line.variables.append((name, text))
            else:
                line.refused.append(f"{name}: {error}")
            return
    if flag.kind == "json" and values and isinstance(values[0], dict):
        line.refused += [f"{name}.{problem}" for problem in _key_problems(known, name, values[0])]
    line.values[name] = values if flag.many else (values[0] if values else None)


def _put_key(known: Vocabulary, name: str, path: str, text: str, line: Line) -> None:
    """One ``--flag.key value``, or ``--flag.key.key value``: merged into the object, as vLLM's parser does."""
    *outer, key = path.split(".")
    value = _json_or_size(text)
    top = {key: value} if not outer else {outer[0]: {}}
    line.refused += [f"{name}.{problem}" for problem in _key_problems(known, name, top)]
    held = line.values.setdefault(name, {})
    for each in outer:
        held = held.setdefault(each, {}) if isinstance(held, dict) else None
    if isinstance(held, dict):
        held[key] = value


def _json_or_size(text: str) -> Any:
    """What vLLM makes of a key's value: JSON, else a whole number with a unit, else text."""
    for read in (_strict_json, _size):
        with contextlib.suppress(ValueError):
            return read(text)
    return text


def _key_problems(known: Vocabulary, name: str, values: dict[str, Any]) -> Iterator[str]:
    keys = known.keys(name)
    for key, value in values.items() if keys else ():
        if key not in keys:
            yield f"{key[:60]} is no key of {known.name}"
        elif not _fits(keys[key], value):
            yield f"{key}: {str(value)[:40]!r} is not {_ARTICLES[keys[key].kind]}"
        elif keys[key].choices and value not in (*keys[key].choices, None):
            yield f"{key}: {str(value)[:40]!r} is none of {', '.join(keys[key].choices)}"


_ARTICLES = {
    "text": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "json": "an object or a list",
    "size": "a whole number",
    "si_size": "a whole number",
    "switch": "a switch",
}
_TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "json": (dict, list),
}


def _fits(flag: Flag, value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, _TYPES[flag.kind]) and (flag.kind == "boolean" or not isinstance(value, bool))


def converted(flag: Flag, text: str) -> Any:
    """A flag's word as a value. Raises ValueError in words where the engine's parser would refuse it."""
    if flag.choices and text not in flag.choices:
        raise ValueError(f"{text[:60]!r} is none of {', '.join(flag.choices)}")
    if flag.kind == "integer":
        return _whole(text)
    if flag.kind == "size":
        return -1 if text.lower() == "auto" else _size(text)
    if flag.kind == "si_size":
        return _si_size(text)
    if flag.kind == "number":
        return _number(text)
    return _strict_json(text) if flag.kind == "json" else text


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is not a whole number")
    return int(text)


def _size(text: str) -> int:
    """A whole number with an optional unit, as vLLM reads it."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return _whole(text)
    size = float(match[1]) * _UNITS[match[2]]
    if match[2].isupper() and "." in match[1]:
        raise ValueError(f"{text[:60]!r}: whole numbers alone stand before {match[2]}")
    return int(size)


def _si_size(text: str) -> int:
    """A whole number with an optional unit, as SGLang reads it: decimal without an i, binary with one."""
    match = _SI_SIZE.fullmatch(text.strip())
    if match is None:
        return _whole(text)
    if match[2].endswith("i") and "." in match[1]:
        raise ValueError(f"{text[:60]!r}: whole numbers alone stand before {match[2]}")
    return int(Decimal(match[1]) * _SI_UNITS[match[2]])


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text[:60]!r} is not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{text[:60]!r} is not a finite number")
    return value


def _strict_json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda constant: text)
    except (ValueError, RecursionError):
        raise ValueError(f"{text[:60]!r} is not JSON") from None
