"""Rewrites the flags of ``wmtp_sim/data/flags/ENGINE.toml`` from the argparse of the installed engine, without a GPU.

``python -m tests.flags.dump sglang`` adds the installed release to the file, or replaces what it holds of it; other
releases stay as they are, and so does what no parser says: which flag states what of a deployment, words, backends,
and the keys of JSON objects. Read the diff before committing it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from wmtp_sim.catalog.flags import load_grammar
from wmtp_sim.spec.flags import Flag, Grammar, Kind

FOLDER = Path(__file__).resolve().parents[2] / "wmtp_sim" / "data" / "flags"
#: Where engines make their parsers, the newest place first: a function that returns one, or that fills one in.
MAKERS: dict[str, tuple[str, ...]] = {
    "sglang": ("sglang.srt.server_args:ServerArgs.add_cli_args",),
    "vllm": (
        "vllm.entrypoints.common.cli_args:make_arg_parser",
        "vllm.entrypoints.openai.cli_args:make_arg_parser",
    ),
}
#: What parsers are made of where it is not argparse's own.
PARSERS = {"vllm": "vllm.utils.argparse_utils:FlexibleArgumentParser"}
#: What argparse does not know, by engine and flag: ``-O3`` and ``--flag.key`` are read before it.
READ_BEFORE: dict[str, dict[str, dict[str, Any]]] = {
    "vllm": {"--optimization-level": {"also": ("-O",)}, "--hf-overrides": {"kind": "json"}}
}
#: Values by which a type shows what it takes, in this order, and what it must make of them.
PROBES: tuple[tuple[Kind, str, Callable[[Any], bool]], ...] = (
    ("si_size", "1Ki", lambda made: made == 1024),
    ("size", "1K", lambda made: made == 1024),
    ("text", "plain words", lambda made: True),
    ("json", "{}", lambda made: made != "{}"),
    ("json", "[1]", lambda made: made == [1]),
    ("number", "1.5", lambda made: isinstance(made, float)),
    ("integer", "7", lambda made: type(made) is int),
)


def real_parser(engine: str) -> argparse.ArgumentParser:
    """The parser of the installed engine. Raises ImportError where it is not installed or keeps it elsewhere."""
    kind: Any = _found(PARSERS[engine]) if engine in PARSERS else argparse.ArgumentParser
    _without_a_gpu(engine)
    wrong = []
    for place in MAKERS[engine]:
        try:
            make = _found(place)
        except (ImportError, AttributeError) as error:  # another place, or something that the engine needs is missing
            wrong.append(f"{place} ({error})")
            continue
        parser = kind()
        return make(parser) or parser
    raise ImportError(f"{engine} makes its parser in none of {', '.join(wrong)}")


def installed_flags(engine: str) -> dict[str, Flag]:
    """What the installed engine takes. Raises ImportError as `real_parser` does."""
    found = flags_of(real_parser(engine))
    known = {name: more for name, more in READ_BEFORE.get(engine, {}).items() if name in found}
    return found | {name: found[name].model_copy(update=more) for name, more in known.items()}


def _without_a_gpu(engine: str) -> None:
    """vLLM refuses to make a parser where it sees no device: any name of one will do."""
    if engine == "vllm":
        platform = _found("vllm.platforms:current_platform")
        platform.device_type = platform.device_type or "cuda"


def _found(place: str) -> Any:
    module, _, path = place.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


# --- what a parser takes ------------------------------------------------------------------------------------------


def flags_of(parser: argparse.ArgumentParser) -> dict[str, Flag]:
    """Every option of a parser by its own name: the one that is spelled as its destination, else its first long one."""
    found = {}
    for action, names in _taken(parser):
        if not isinstance(action, argparse._HelpAction | argparse._VersionAction):
            name = _name(action, names)
            found[name] = _flag(parser, action, name, names)
    return dict(sorted(found.items()))


def _taken(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.Action, list[str]]]:
    """Each option with every name that the parser takes for it: an option's own list may leave out what help hides."""
    taken = parser._option_string_actions  # argparse has no public way to list them
    for action in dict.fromkeys(taken.values()):
        yield action, [name for name, taker in taken.items() if taker is action]


def _name(action: argparse.Action, names: list[str]) -> str:
    spelled = "--" + action.dest.replace("_", "-")
    long = [name for name in names if name.startswith("--")]
    return spelled if spelled in long else (long or names)[0]


def _flag(parser: argparse.ArgumentParser, action: argparse.Action, name: str, names: list[str]) -> Flag:
    off = _off(parser, action, names)
    also = tuple(sorted(other for other in names if other != name and other not in off))
    if action.nargs == 0:
        return Flag(kind="switch", also=also, off=off)
    many = action.nargs in ("+", "*", argparse.REMAINDER) or (isinstance(action.nargs, int) and action.nargs > 1)
    choices = tuple(sorted({str(choice) for choice in action.choices or ()} - {"None"}))
    return Flag(kind=_kind(action.type), also=also, many=many, bare=action.nargs in ("?", "*"), choices=choices)


def _off(parser: argparse.ArgumentParser, action: argparse.Action, names: list[str]) -> tuple[str, ...]:
    """Names of a switch that switch it off, where others switch it on: found by using each of them."""
    if action.nargs != 0 or len(names) < 2:
        return ()
    values = {}
    for name in names:
        given = argparse.Namespace()
        try:
            action(parser, given, [], name)
        except (Exception, SystemExit):  # an engine's own action may do anything
            return ()
        values[name] = getattr(given, action.dest, None)
    off = tuple(sorted(name for name, value in values.items() if value is False))
    return off if len(off) < len(values) else ()


def _kind(convert: Any) -> Kind:
    """What a type takes, seen from what it makes of a few values."""
    if convert is None or isinstance(convert, argparse.FileType):
        return "text"
    return next((kind for kind, text, fits in PROBES if _makes(convert, text, fits)), "text")


def _makes(convert: Callable[[str], Any], text: str, fits: Callable[[Any], bool]) -> bool:
    try:
        return fits(convert(text))
    except Exception:  # whatever a type raises, it does not take the value
        return False


# --- the file ------------------------------------------------------------------------------------------------------


def merged(grammar: Grammar, release: str, flags: dict[str, Flag]) -> dict[str, tuple[Flag, ...]]:
    """All releases' flags with one release's put in, or put behind as the newest: one entry for each grammar."""
    releases = _releases(grammar, release)
    by_release = {old: grammar.taken(grammar.flags, old) for old in grammar.releases} | {release: flags}
    names = sorted({name for table in by_release.values() for name in table})
    return {name: tuple(_entries([by_release[each].get(name) for each in releases], releases)) for name in names}


def _releases(grammar: Grammar, release: str) -> tuple[str, ...]:
    return grammar.releases if release in grammar.releases else (*grammar.releases, release)


def _entries(over: list[Flag | None], releases: tuple[str, ...]) -> Iterator[Flag]:
    """A flag over the releases as entries, each for the releases that follow one another and take it so."""
    plain = [None if flag is None else flag.model_copy(update={"since": None, "until": None}) for flag in over]
    first = 0
    for place in range(1, len(plain) + 1):
        if place < len(plain) and plain[place] == plain[first]:
            continue
        held = plain[first]
        if held is not None:
            since = releases[first] if first else None
            yield held.model_copy(update={"since": since, "until": releases[place - 1] if place < len(plain) else None})
        first = place


def rewritten(text: str, grammar: Grammar, release: str, source: str, flags: dict[str, Flag]) -> str:
    """A grammar file with one release's flags; above ``[flags]`` only the releases and the new one's source change."""
    head, mark, _ = text.partition("[flags]\n")
    if not mark:
        raise ValueError("the file has no table [flags]")
    if release not in grammar.releases:
        listed = ", ".join(map(json.dumps, _releases(grammar, release)))
        head = re.sub(r"^releases = .*$", f"releases = [{listed}]", head, count=1, flags=re.MULTILINE)
        last = f'"{grammar.releases[-1]}" = '
        head = re.sub(
            rf"^{re.escape(last)}.*$", lambda m: f'{m[0]}\n"{release}" = "{source}"', head, count=1, flags=re.MULTILINE
        )
    rows = (f"{json.dumps(name)} = {_table(entries)}\n" for name, entries in merged(grammar, release, flags).items())
    return head + mark + "".join(rows)


def _table(entries: Iterable[Flag]) -> str:
    written = [_inline(flag) for flag in entries]
    return written[0] if len(written) == 1 else f"[{', '.join(written)}]"


def _inline(flag: Flag) -> str:
    stated = flag.model_dump(exclude_defaults=True)
    pairs = (f"{key} = {json.dumps(stated[key])}" for key in Flag.model_fields if key in stated)
    return f"{{ {', '.join(pairs)} }}"


def main(engine: str, release: str | None = None) -> str:
    """Rewrite an engine's file; what changed, in a line."""
    grammar = load_grammar(engine)
    installed = version(engine)
    name = release or ".".join(installed.split(".")[: grammar.releases[-1].count(".") + 1])
    path, flags = FOLDER / f"{engine}.toml", installed_flags(engine)
    source = f"code: {engine} {installed} release, {MAKERS[engine][0].rpartition(':')[2]}"
    path.write_text(rewritten(path.read_text(encoding="utf-8"), grammar, name, source, flags), encoding="utf-8")
    before = grammar.taken(grammar.flags, name if name in grammar.releases else grammar.releases[-1])
    added, gone = len(flags.keys() - before.keys()), len(before.keys() - flags.keys())
    return (
        f"{path.name}: {name} has {len(flags)} flags, {added} that were not there and {gone} fewer of those that were"
    )


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
