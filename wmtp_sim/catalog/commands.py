"""From a command or a file of arguments to the deployment that it starts. Text is read, never run.

A command is split as a shell would, without expanding anything. Words before the launcher (variables, ``docker run``)
are kept aside. A file is a JSON object, YAML of the plain kind that engines' ``--config`` files are, or a shell script
with one launch line.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.fields import read_json_object, read_text
from wmtp_sim.catalog.flags import Line, Vocabulary, grammar_names, load_grammar, read_line, vocabulary
from wmtp_sim.catalog.scripts import statements
from wmtp_sim.catalog.toml_files import complaint
from wmtp_sim.errors import InputError
from wmtp_sim.spec.deployment import CHAINS, ServerDeployment
from wmtp_sim.spec.engine import Engine

#: Characters and words of a command. A long real one has 3,000 and 100.
LONGEST_COMMAND, MOST_WORDS = 65_536, 4096
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)")
#: Words that end a command or send its output elsewhere: what follows is not the server's.
_SHELL = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1", "&>", ")", "}"})
#: A redirection that is written without a space.
_REDIRECTION = re.compile(r"\d?>{1,2}(&?\d|[^=].*)|&>{1,2}.*")
#: What a shell would put other words in place of, somewhere in a word; and what it would put several in place of.
_EXPANDED = re.compile(r"\$[A-Za-z_{(0-9@*]|`")
_SEVERAL = re.compile(r"\$\{?[@*]|\$\{\w+\[[@*]\]")
#: Commands that say words and start nothing.
_SAYING = frozenset({"echo", "printf", ":", "alias"})
#: A file's name, after what would run it.
_FILE = re.compile(r"(?:(?:bash|sh|source|\.)[ \t]+)?(?P<path>[^\n]{1,4096}\.(?:json|ya?ml|sh))")
_EXAMPLE = 'for example --from-command "vllm serve MODEL --tensor-parallel-size 8"'


@dataclass(frozen=True)
class Command:
    """A command as read.

    Attributes:
        deployment: what it starts.
        known: the release whose flags it was read with.
        line: every flag and its value, and what was not understood.
        before: words before the launcher, and after a shell operator.
    """

    deployment: ServerDeployment
    known: Vocabulary
    line: Line
    aside: tuple[str, ...] = ()

    @property
    def engine(self) -> Engine:
        return self.known.engine

    @property
    def unpriced(self) -> dict[str, str]:
        """Fields whose word this project has none for, each with what is said of it."""
        return dict(_unpriced(self.known, self.line))

    @property
    def shared_otherwise(self) -> tuple[str, ...]:
        """Flags that share the model among its ranks in a way that is not priced."""
        return tuple(self.known.grammar.parallel.otherwise(self.line.values, self.deployment.ranks))

    @property
    def unused(self) -> tuple[str, ...]:
        """Flags that no field of a deployment states, and words of no flag: what a line made anew carries along."""
        known = {name.partition(".")[0] for names in self.known.grammar.fields.values() for name in names}
        kept: list[str] = []
        for name, value in self.line.values.items():
            if name not in known:
                switch = self.known.flags[name].kind == "switch"
                values = [] if switch else value if isinstance(value, list) else [value]
                kept += [name, *(json.dumps(each) if isinstance(each, dict) else str(each) for each in values)]
        return (*kept, *(word for words in self.line.unknown for word in words.split()))


def read_command(text: str, engine: str | Engine | None = None) -> Command:
    """A deployment from a command line, or from the file that ``text`` names (``.json``, ``.yaml``, ``.yml``, ``.sh``).

    Args:
        text: the command, or the file's path.
        engine: whose flags a file states; for a command or a script, whose launcher says which engine it is, the
            release.

    Raises:
        InputError: no launcher of a known engine, text that no shell would take, a file that cannot be read.
    """
    named = _FILE.fullmatch(text.strip())
    if named is None or _launchers(text.split()):
        return _of_words(_split(text), engine, f"starts neither {_starts()}: {text[:60]!r}")
    path = Path(named["path"])
    return _of_script(path, engine) if path.suffix == ".sh" else _of_file(path, engine)


def _starts() -> str:
    """How commands of the known engines begin."""
    return " or ".join(" ".join(load_grammar(name).launchers[0]) for name in grammar_names())


def _of_words(words: list[str], engine: str | Engine | None, otherwise: str) -> Command:
    """Raises `InputError` with what is ``otherwise`` wrong where no launcher is among the words."""
    found = _launchers(words)
    if not found:
        raise InputError("--from-command", otherwise, _EXAMPLE)
    name, start, end = found[0]
    known = vocabulary(_agreeing(name, engine))
    stop = next((at for at, word in enumerate(words[end:], end) if _leaves(word)), len(words))
    for word in filter(_SEVERAL.match, words[end:stop]):
        raise _hidden(word)
    line = read_line(known, words[end:stop], words[end - 1])
    return Command(_deployment(known, line), known, line, (*words[:start], *words[stop:]))


def _leaves(word: str) -> bool:
    """Whether a word is the shell's and not the server's."""
    return word in _SHELL or _REDIRECTION.fullmatch(word) is not None


def _of_script(path: Path, engine: str | Engine | None) -> Command:
    """The one launch line of a script, with the variables that the script exports before it."""
    text = _sound(read_text(path), path.name[:60])
    exported: list[str] = []
    found: list[tuple[int, list[str]]] = []
    for statement in statements(text):
        if statement.text.startswith("export "):
            exported += [] if found else [word for word in _split(statement.text)[1:] if "=" in word]
        elif any(launcher[-1] in statement.text for launcher in _all_launchers()):
            words = _split(statement.text, comments=False)
            if _launchers(words) and words[0] not in _SAYING:
                found.append((statement.line, words))
    if len(found) != 1:
        lines = " and ".join(str(line) for line, _ in found[:4])
        problem = f"{path.name[:60]} starts {len(found)} servers, in lines {lines}"
        if not found:
            problem = f"{path.name[:60]} starts neither {_starts()}"
        raise InputError("--from-command", problem, "give the one launch command as text")
    read = _of_words(found[0][1], engine, "")
    return replace(read, aside=(*exported, *read.aside))


def _all_launchers() -> Iterator[tuple[str, ...]]:
    for name in grammar_names():
        yield from load_grammar(name).launchers


def _sound(text: str, name: str = "") -> str:
    """Text that is short and plain enough to be looked at. Raises `InputError` naming the file that it is from."""
    if len(text) > LONGEST_COMMAND:
        problem = f"{name} has {len(text):,} characters; at most {LONGEST_COMMAND:,} are read"
        raise InputError("--from-command", problem.strip(), "give the launch command alone")
    if _CONTROL.search(text):
        raise InputError("--from-command", f"{name} holds control characters".strip(), "give plain text")
    return text


def _split(text: str, comments: bool = True) -> list[str]:
    _sound(text)
    try:
        words = shlex.split(re.sub(r"\\\r?\n", " ", text), comments=comments)
    except ValueError as error:
        problem = f"cannot be split into words ({str(error).lower()})"
        raise InputError("--from-command", problem, "close every quote, as for a shell") from None
    if len(words) > MOST_WORDS:
        raise InputError("--from-command", f"has {len(words):,} words", f"at most {MOST_WORDS:,} are read")
    return words


def _launchers(words: list[str]) -> list[tuple[str, int, int]]:
    """Engines whose launcher occurs: name, first word, first word after; the earliest first."""
    found = []
    for name in grammar_names():
        for launcher in load_grammar(name).launchers:
            size = len(launcher)
            for at in range(len(words) - size + 1):
                first = words[at].rpartition("/")[2]  # /usr/bin/vllm serve
                if (first, *words[at + 1 : at + size]) == launcher:
                    found.append((name, at, at + size))
    return sorted(found, key=lambda each: each[1])


def _agreeing(name: str, engine: str | Engine | None) -> Engine:
    """The release to read a launcher's flags with: the stated one, which must be of that engine."""
    chosen = engine if isinstance(engine, Engine) else load_engine(engine or name)
    if chosen.name != name:
        raise InputError("--engine", f"{chosen.name}, but the command starts {name}", f"give --engine {name}")
    return chosen


def _of_file(path: Path, engine: str | Engine | None) -> Command:
    if engine is None:
        raise InputError("--engine", f"is needed to read {path.name[:60]!r}", "for example --engine vllm")
    known = vocabulary(engine)
    document = read_json_object(path) if path.suffix == ".json" else _plain_yaml(read_text(path), str(path))
    line = read_line(known, list(_words_of(document, str(path))))
    return Command(_deployment(known, line), known, line)


def _words_of(document: dict[str, Any], where: str) -> Iterator[str]:
    """The command line that a file of arguments stands for."""
    for name, value in document.items():
        if value is None or value is False:
            continue
        flag = "--" + str(name).lstrip("-").replace("_", "-")
        yield flag
        if value is True:
            continue
        if isinstance(value, dict):
            yield json.dumps(value)
        elif isinstance(value, list):
            if any(isinstance(each, dict | list) for each in value):
                raise InputError(f"{where}: {str(name)[:60]}", "holds lists in a list", "give words or numbers")
            yield from map(str, value)
        else:
            yield str(value)


# --- YAML of --config files --------------------------------------------------------------------------------------

_YAML_LINE = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z0-9_][A-Za-z0-9_.-]{0,120}):(?: +(?P<value>.*))?")
_YAML_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "~": None, "": None}


def _plain_yaml(text: str, where: str) -> dict[str, Any]:
    """Keys with plain values, with lists (``- item`` or ``[...]``), or with one level of keys below; nothing else."""
    document: dict[str, Any] = {}
    table, key, indent = document, "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.rstrip()
        if not line.strip() or line.lstrip().startswith("#") or line == "---":
            continue
        item = re.fullmatch(r" *- +(.*)", line)
        if item and key:
            held = table[key] if isinstance(table.get(key), list) else []
            table[key] = [*held, _scalar(item[1], f"{where}: line {number}")]
            continue
        match = _YAML_LINE.fullmatch(line)
        depth = len(match["indent"]) if match else 0
        if match is None or (depth and (not document or (table is document and document.get(key) is not None))):
            problem = f"{line.strip()[:60]!r} is not KEY: VALUE"
            raise InputError(f"{where}: line {number}", problem, "plain YAML or JSON is read: one argument a line")
        if depth and table is document:
            document[key] = table = {}
            indent = depth
        elif not depth:
            table = document
        elif depth != indent:
            raise InputError(f"{where}: line {number}", "is indented unlike the line above", "two levels are read")
        key = match["key"]
        if key in table:
            raise InputError(f"{where}: line {number}", f"{key!r} is stated twice", "keep one")
        table[key] = _scalar(match["value"] or "", f"{where}: line {number}")
    return document


def _scalar(text: str, where: str) -> Any:
    text = text.strip()
    if text[:1] not in ("'", '"', "[", "{"):
        text = text.partition(" #")[0].strip()
    if text.lower() in _YAML_WORDS:
        return _YAML_WORDS[text.lower()]
    if text[0] == "'" and text[-1] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    if text[0] in "&*!|>%@`":
        raise InputError(where, f"{text[:40]!r} is YAML that is not read here", "write the value itself")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if text[0] in "\"'[{":
            raise InputError(where, f"{text[:40]!r} is neither JSON nor plain text", "quote as JSON does") from None
        return text


# --- what the flags say -------------------------------------------------------------------------------------------


def _deployment(known: Vocabulary, line: Line) -> ServerDeployment:
    """The fields that a line states, in our words; a word that we have none for is left out and noted."""
    stated: dict[str, Any] = {"engine": f"{known.grammar.engine}@{known.release}"}
    for name in known.grammar.fields:
        value = _first(known, line, name)
        if value is not None:
            stated[name] = value
    line.unpriced += [words for _, words in _unpriced(known, line)]
    _refuse_variables(known, line)
    if "model" not in stated:
        raise InputError("--from-command", "names no model", f"add {known.grammar.fields['model'][0]} MODEL")
    _say_ranks(known, line, stated)
    _say_hosts(known, line, stated)
    if isinstance(stated.get("config_overrides"), dict):
        stated["config_overrides"] = json.dumps(stated["config_overrides"])
    _say_speculation(known, line, stated)
    if stated.get("context", 1) < 1:  # vLLM's auto
        del stated["context"]
    try:
        return ServerDeployment.model_validate(stated)
    except ValidationError as error:
        raise complaint(error, "--from-command", "the engine would refuse it too") from None


def _refuse_variables(known: Vocabulary, line: Line) -> None:
    """Raises `InputError` where a flag that decides about the deployment holds a variable, whose value is not known,
    and where one stands in place of flags."""
    deciding = {flag.partition(".")[0] for flags in known.grammar.fields.values() for flag in flags}
    deciding.update(known.grammar.parallel.names)
    for name, word in line.variables:
        if name in deciding:
            raise InputError("--from-command", f"{name} is {word[:60]}, which is not expanded here", "write its value")
    for words in line.unknown:
        if _EXPANDED.search(re.split(r"[ =]", words, maxsplit=1)[0]):
            raise _hidden(words)


def _hidden(word: str) -> InputError:
    return InputError("--from-command", f"{word[:60]} is not expanded here", "write the flags that it stands for")


def _first(known: Vocabulary, line: Line, name: str) -> Any:
    """What a line states of a field, in our words; None where it is the engine's default, or no word of ours."""
    value, table = _stated(known, line, name), _table(known, name)
    if not isinstance(value, str) or table is None:
        return value
    return (_method(table, value) if name == "method" else table.get(value)) or None


def _method(table: dict[str, str], word: str) -> str:
    """Who drafts, in our words; the engine's own where we have none."""
    return table.get(word.upper(), table.get(word, word))


def _stated(known: Vocabulary, line: Line, name: str) -> Any:
    found = (line.value(flag) for flag in known.flags_of(name))
    return next((each for each in found if each is not None), None)


def _table(known: Vocabulary, name: str) -> dict[str, str] | None:
    """The engine's words for a field, and ours; None where its words are kept as they are."""
    return None if name.endswith("quantization") else known.grammar.words.get(name.removeprefix("draft_"))


def _unpriced(known: Vocabulary, line: Line) -> Iterator[tuple[str, str]]:
    """Fields that hold a word of the engine which we have none for, each with what is said of it."""
    for name, flags in known.grammar.fields.items():
        value, table = _stated(known, line, name), _table(known, name)
        if name != "method" and table is not None and isinstance(value, str) and value not in table:
            yield name, f"{flags[0]} {value[:40]!r} ({_ours(table)} priced)"


def _ours(table: dict[str, str]) -> str:
    words = sorted({word for word in table.values() if word})
    return f"{' and '.join(words)} {'is' if len(words) == 1 else 'are'}"


def _say_ranks(known: Vocabulary, line: Line, stated: dict[str, Any]) -> None:
    """Ranks of one group and sequences of all, however the engine counts them.

    vLLM's switch deals experts to all ranks; SGLang states how many.
    """
    rules, groups = known.grammar.parallel, stated.pop("attention_dp", 1)
    if groups > 1:
        if stated.get("dp", 1) > 1:
            raise InputError("--from-command", _both_sizes(known, stated["dp"], groups), "drop one of the two")
        stated |= {"dp": groups, "dp_attention": True}
    tp, dp = stated.get("tp", 1), stated.get("dp", 1)
    joined = dp > 1 and (rules.shares_experts or bool(stated.get("dp_attention")))
    if joined and rules.counts_groups:
        if tp % dp:
            raise InputError("--from-command", f"{dp} groups cannot share {tp} ranks", "the engine would refuse it too")
        tp //= dp
    if "max_running" in stated and not (joined and rules.counts_groups):
        stated["max_running"] *= dp
    ranks = tp * dp if joined else tp
    if isinstance(stated.get("ep"), bool):
        stated["ep"] = tp * dp if stated["ep"] else 1
    if stated.get("all_to_all") and rules.whole_by_all_to_all:
        stated["ep"] = ranks
    if stated.get("ep", 1) < ranks or (not joined and rules.shares_experts):
        stated.pop("all_to_all", None)  # rows are sent between groups that hold whole experts, or nowhere
    stated |= {"tp": tp, "dp": dp, "dp_attention": joined}


def _say_hosts(known: Vocabulary, line: Line, stated: dict[str, Any]) -> None:
    """Pipeline stages, and the hosts that are stated or that data-parallel groups are dealt to."""
    rules, groups = known.grammar.parallel, stated.get("dp", 1)
    pp, hosts, local = (flag and line.value(flag) for flag in (rules.pp, rules.hosts, rules.local_groups))
    dealt = -(-groups // local) if local and local > 0 else 1
    stated |= {"pp": 1 if pp is None else pp, "hosts": max(1 if hosts is None else hosts, dealt)}


def _both_sizes(known: Vocabulary, dp: int, groups: int) -> str:
    replicas, attention = (known.grammar.fields[name][0] for name in ("dp", "attention_dp"))
    return f"states {replicas} {dp} and {attention} {groups}, which {known.grammar.engine} refuses together"


def _say_speculation(known: Vocabulary, line: Line, stated: dict[str, Any]) -> None:
    """Depth and method, where one follows from the other."""
    drafting = known.grammar.drafting
    asked = {"method"} if drafting.states_rows else {"method", "depth", "draft_model"}
    if not asked & stated.keys():
        for name in ("depth", "topk", "verify_rows", "draft_tp"):
            stated.pop(name, None)
        return
    stated["method"] = _who_drafts(known, line, stated)
    if stated["method"] not in known.engine.draft_tp:
        stated.pop("draft_tp", None)
    if stated["method"] not in CHAINS:
        if drafting.states_rows:
            stated.pop("depth", None)
    elif "depth" not in stated and drafting.unset_depth is not None:
        stated["depth"] = drafting.unset_depth


def _who_drafts(known: Vocabulary, line: Line, stated: dict[str, Any]) -> str:
    """The stated method, what the drafter's name makes of it, or how all tokens are drafted at once."""
    unpriced = known.grammar.said(line.values, known.release).get("drafter-not-priced")
    if unpriced is not None:
        return unpriced
    drafter = stated.get("draft_model")
    own = drafter in (None, stated["model"])
    method: str = stated.get("method", "mtp" if own else "model")
    named = known.grammar.drafting.method_by_name(drafter) if drafter and method in ("mtp", "model") else None
    return method if named is None else _method(known.grammar.words["method"], named)
