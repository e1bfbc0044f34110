"""The dump of an engine's argparse: a toy parser's options become what our strict reader makes of its command lines."""

from __future__ import annotations

import argparse
import json
import shlex
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flags.dump import FOLDER, MAKERS, PARSERS, flags_of, installed_flags, main, merged, real_parser, rewritten
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.flags import Vocabulary, grammar_names, load_grammar, read_line
from wmtp_sim.spec.flags import Flag, Grammar


def size(text: str) -> int:
    return int(text[:-1]) * 1024 if text.endswith("K") else int(text)


def si_size(text: str) -> int:
    return int(text[:-2]) * 1024 if text.endswith("Ki") else int(text[:-1]) * 1000 if text.endswith("k") else int(text)


def optional(convert: Any) -> Any:
    """Engines wrap their types so."""
    return lambda text: None if text == "None" else convert(text)


def objects(text: str) -> Any:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("no object")
    return found


def settings(text: str) -> Any:
    """Some become objects of their own, which know their keys."""
    found = objects(text)
    if found.keys() - {"known"}:
        raise ValueError("no such key")
    return argparse.Namespace(**found)


class Deprecated(argparse.Action):
    """Engines have actions of their own, which may refuse or end."""

    def __init__(self, option_strings: list[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **more)

    def __call__(self, *_: Any) -> None:
        raise SystemExit(2)


class Paired(argparse.BooleanOptionalAction):
    """Engines have switches that take more names than they list, which keeps those out of help."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, not str(option_string).startswith("--no-"))


def toy() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("toy")
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--version", action="version", version="1")
    parser.add_argument("--tensor-parallel-size", "--tp-size", "-tp", dest="tp_size", type=int, default=1)
    parser.add_argument("--context-length", type=optional(size))
    parser.add_argument("--prefill", type=si_size)
    parser.add_argument("--mem-fraction", type=optional(float))
    parser.add_argument("--config-overrides", "-co", type=optional(objects))
    parser.add_argument("--settings", type=settings)
    parser.add_argument("--either", type=lambda text: json.loads(text) if text.startswith("{") else text)
    parser.add_argument("--buckets", type=json.loads)
    parser.add_argument("--backend", choices=["triton", None, "fa3"])
    parser.add_argument("--level", type=int, choices=[2, 1])
    parser.add_argument("--names", nargs="+")
    parser.add_argument("--layers", nargs="*", type=int)
    parser.add_argument("--pair", nargs=2)
    parser.add_argument("--maybe", nargs="?", const="x")
    parser.add_argument("--eager", action=argparse.BooleanOptionalAction)
    reuse = parser.add_argument("--enable-reuse", action=Paired)
    reuse.option_strings = ["--enable-reuse"]
    parser.add_argument("--fast", "-f", action="store_true")
    parser.add_argument("--no-graphs", dest="graphs", action="store_false")
    parser.add_argument("--hidden", help=argparse.SUPPRESS)
    parser.add_argument("--old", "--older", action=Deprecated)
    parser.add_argument("--model", type=str)
    return parser


TOY = {
    "--backend": Flag(kind="text", choices=("fa3", "triton")),
    "--buckets": Flag(kind="json"),
    "--config-overrides": Flag(kind="json", also=("-co",)),
    "--context-length": Flag(kind="size"),
    "--eager": Flag(kind="switch", off=("--no-eager",)),
    "--enable-reuse": Flag(kind="switch", off=("--no-enable-reuse",)),
    "--fast": Flag(kind="switch", also=("-f",)),
    "--hidden": Flag(kind="text"),
    "--layers": Flag(kind="integer", many=True, bare=True),
    "--level": Flag(kind="integer", choices=("1", "2")),
    "--maybe": Flag(kind="text", bare=True),
    "--mem-fraction": Flag(kind="number"),
    "--model": Flag(kind="text"),
    "--names": Flag(kind="text", many=True),
    "--no-graphs": Flag(kind="switch"),
    "--old": Flag(kind="switch", also=("--older",)),
    "--pair": Flag(kind="text", many=True),
    "--prefill": Flag(kind="si_size"),
    "--settings": Flag(kind="json"),
    "--either": Flag(kind="text"),
    "--tp-size": Flag(kind="integer", also=("--tensor-parallel-size", "-tp")),
}


def test_a_toy_parsers_options() -> None:
    assert flags_of(toy()) == TOY


def grammar(releases: tuple[str, ...], flags: dict[str, Any]) -> Grammar:
    return Grammar(
        engine="toy",
        releases=releases,
        command=("toy", "serve"),
        launchers=(("toy", "serve"),),
        model_after=("serve",),
        sources={"fields": "code: toy"},
        fields={"model": ("--model",)},
        words={},
        flags=flags,
    )


@pytest.mark.parametrize(
    "line",
    [
        *("--tp-size 4", "-tp 4", "--tensor-parallel-size=4", "--tp-size four", "--context-length 128K", "--nothing 1"),
        *("--prefill 2Ki", "--prefill 2k", "--prefill 2K", "--prefill 2"),
        *("--context-length many", "--mem-fraction 0.5", "--mem-fraction half", "-co '{\"a\": [1]}'", "-co {"),
        *(
            "--backend fa3",
            "--backend fa9",
            "--level 2",
            "--level 3",
            "--names a b",
            "--names",
            "--layers",
            "--layers 1 2",
        ),
        *("--enable-reuse", "--enable-reu", "--no-enable-reuse", "--no-en", "--disable-reuse"),
        *("--eager", "--no-eager", "--fast", "-f", "--no-graphs", "--maybe", "--maybe y", "--fast=1", "--buckets [1]"),
    ],
)
def test_our_reader_takes_what_the_parser_takes(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same lines are taken and refused, with the same values."""
    parser = toy()
    known = Vocabulary(
        load_engine("ideal"),
        grammar(("1",), TOY),
        "1",
        TOY,
        {name: main for main, flag in TOY.items() for name in (main, *flag.also, *flag.off)},
    )
    read = read_line(known, shlex.split(line))
    try:
        theirs = vars(parser.parse_args(shlex.split(line)))
    except SystemExit:
        assert read.refused or read.unknown
        capsys.readouterr()
        return
    assert (read.refused, read.unknown) == ([], [])
    for name, value in read.values.items():
        stated = theirs[{"--no-graphs": "graphs"}.get(name, name[2:].replace("-", "_"))]
        if TOY[name].bare and value in (None, []):
            continue  # what stands for no value is the parser's own
        assert stated == (not value if name == "--no-graphs" else value)


# --- the file ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", grammar_names())
def test_dumping_what_the_file_holds_changes_nothing(engine: str) -> None:
    """For every release that it holds: to the letter."""
    text, held = (FOLDER / f"{engine}.toml").read_text(encoding="utf-8"), load_grammar(engine)
    for release in held.releases:
        assert rewritten(text, held, release, "", held.taken(held.flags, release)) == text


@pytest.mark.parametrize("engine", grammar_names())
def test_a_new_release_is_put_behind_the_others(engine: str) -> None:
    text, held = (FOLDER / f"{engine}.toml").read_text(encoding="utf-8"), load_grammar(engine)
    newest = held.taken(held.flags, held.releases[-1])
    first, *rest = newest
    flags = {name: newest[name] for name in rest} | {"--brand-new": Flag(kind="integer", also=("-bn",))}
    document = tomllib.loads(rewritten(text, held, "99.1", "code: toy 99.1 release", flags))
    assert document["releases"] == [*held.releases, "99.1"]
    assert document["sources"]["99.1"] == "code: toy 99.1 release"
    assert document["flags"]["--brand-new"] == {"kind": "integer", "also": ["-bn"], "since": "99.1"}
    document.pop("schema")
    found = Grammar.model_validate(document)
    assert {name: _plain(flag) for name, flag in found.taken(found.flags, "99.1").items()} == {
        name: _plain(flag) for name, flag in flags.items()
    }
    assert first not in found.taken(found.flags, "99.1")
    for release in held.releases:
        ours, theirs = (each.taken(each.flags, release) for each in (found, held))
        assert {name: _plain(flag) for name, flag in ours.items()} == {n: _plain(f) for n, f in theirs.items()}


def _plain(flag: Flag) -> Flag:
    return flag.model_copy(update={"since": None, "until": None})


KINDS = st.sampled_from([None, Flag(kind="text"), Flag(kind="integer"), Flag(kind="text", many=True)])


@given(st.lists(st.dictionaries(st.sampled_from(["--a", "--b", "--c"]), KINDS), min_size=1, max_size=5), st.data())
def test_releases_keep_their_flags_whatever_is_put_in(
    tables: list[dict[str, Flag | None]], data: st.DataObject
) -> None:
    """Built up release by release and then one of them replaced, each takes what was dumped of it."""
    model = {"--model": Flag(kind="text")}
    stated = [model | {name: flag for name, flag in table.items() if flag} for table in tables]
    held = grammar(("r0",), {name: (flag,) for name, flag in stated[0].items()})
    for place, flags in enumerate(stated[1:], 1):
        held = grammar((*held.releases, f"r{place}"), merged(held, f"r{place}", flags))
    again = data.draw(st.integers(0, len(stated) - 1))
    stated[again] = model | {"--d": Flag(kind="size")}
    held = grammar(held.releases, merged(held, f"r{again}", stated[again]))
    for place, flags in enumerate(stated):
        assert {n: _plain(f) for n, f in held.taken(held.flags, f"r{place}").items()} == flags


# --- installed engines --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", sorted(MAKERS))
def test_an_installed_engine_is_dumped_as_its_file_says(engine: str) -> None:
    """Where one is installed in a release that the file knows: no flag is missing, none is of another kind."""
    installed = pytest.importorskip(engine).__version__
    held = load_grammar(engine)
    release = next((each for each in held.releases if f"{installed}.".startswith(f"{each}.")), None)
    if release is None:
        pytest.skip(f"{engine} {installed}")
    known, found = held.taken(held.flags, release), installed_flags(engine)
    assert {name: _plain(flag) for name, flag in known.items()} == found


def test_an_engine_that_is_not_there_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAKERS, "toy", ("tests.flags.test_dump:gone", "no.such.module:parser"))
    with pytest.raises(ImportError, match="toy makes its parser in none of"):
        real_parser("toy")


@pytest.mark.parametrize("maker", ["toy_fills", "toy"])
def test_a_run_writes_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, maker: str) -> None:
    """The whole command, with a toy in an engine's place, in either way in which engines make parsers."""
    path = tmp_path / "vllm.toml"
    path.write_text((FOLDER / "vllm.toml").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr("tests.flags.dump.FOLDER", tmp_path)
    monkeypatch.setattr("tests.flags.dump.version", lambda engine: "0.77.3")
    monkeypatch.setitem(MAKERS, "vllm", (f"tests.flags.test_dump:{maker}",))
    monkeypatch.delitem(PARSERS, "vllm")
    monkeypatch.setattr("tests.flags.dump._without_a_gpu", lambda engine: None)
    if maker == "toy":
        monkeypatch.setattr("tests.flags.test_dump.toy", lambda parser, made=toy: made())
    said = main("vllm")
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    assert said.startswith(f"vllm.toml: 0.77 has {len(TOY)} flags, ")
    assert document["releases"][-1] == "0.77"
    assert document["sources"]["0.77"] == f"code: vllm 0.77.3 release, {maker}"
    assert document["flags"]["--tp-size"] == {
        "kind": "integer",
        "also": ["--tensor-parallel-size", "-tp"],
        "since": "0.77",
    }


def toy_fills(parser: argparse.ArgumentParser) -> None:
    made = toy()
    for action in made._actions:
        if action.dest != "help":
            parser._add_action(action)
    parser._option_string_actions |= made._option_string_actions
