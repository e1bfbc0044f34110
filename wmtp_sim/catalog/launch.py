"""From a deployment to the command that starts it, in the flags of one engine release; checked before it is shown."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

from wmtp_sim.catalog.by_batch import DepthsByBatch, syntax, written
from wmtp_sim.catalog.flags import Vocabulary, check_line, vocabulary
from wmtp_sim.catalog.systems import windows_drafts
from wmtp_sim.errors import InputError
from wmtp_sim.spec.deployment import ServerDeployment
from wmtp_sim.spec.engine import Engine

#: What is written whether or not tokens are drafted, in this order; the rest only where some are.
_SERVING = (
    *("tp", "dp", "dp_attention", "ep", "all_to_all", "context", "memory_fraction", "max_running", "quantization"),
    *("kv", "attention_backend", "prefill_backend", "decode_backend", "kv_splits"),
)
_DRAFTING = (
    *("method", "draft_model", "draft_tp", "depth", "topk", "verify_rows", "attention_mode"),
    *("draft_attention_backend", "window", "sink", "draft_kv", "draft_quantization", "draft_context"),
)
#: Fields of `_SERVING` that go without saying.
_PLAIN: dict[str, Any] = {"tp": 1, "dp": 1, "dp_attention": False, "ep": 1}


@dataclass(frozen=True)
class LaunchLine:
    """A command, word by word."""

    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """One line for a shell."""
        return shlex.join(self.words)


@dataclass(frozen=True)
class Launch:
    """The command that starts a choice, or why none does: what cannot be said. Neither where nothing was chosen."""

    line: str | None = None
    unsaid: str | None = None


@dataclass(frozen=True)
class LaunchByBatch:
    """The command that starts depths by batch.

    Attributes:
        line: the command.
        content: JSON in the engine's syntax: the file that SGLang's line names, vLLM's ``--speculative-config``.
        ranges: first batch, last batch and depth.
        note: what a person should know who starts it so; empty where there is nothing.
    """

    line: str
    content: str
    ranges: tuple[tuple[int, int, int], ...]
    note: str = ""


def launch_line(
    deployment: ServerDeployment,
    engine: Engine | None = None,
    by_batch: DepthsByBatch | None = None,
    vendor: str = "nvidia",
) -> LaunchLine:
    """The command that starts a deployment.

    A window without a stated draft attention backend takes one that honours it, for the release's default may not.

    Args:
        deployment: what is served. Depth 0 writes no speculation flag.
        engine: where it was loaded already; else ``deployment.engine`` names it.
        by_batch: depths that change with the batch, of which the deployment states the deepest.
        vendor: whose GPU it is started on.

    Raises:
        InputError: what this release has no flag or no word for, by the option that states it, or an engine whose
            flags are not known.
    """
    known = vocabulary(engine or deployment.engine)
    drafting = _drafting(deployment, known, vendor) if deployment.depth or not deployment.chain else {}
    stated = {name: getattr(deployment, name) for name in _SERVING} | _counted(deployment, known)
    said = {name: value for name, value in stated.items() if value not in (None, _PLAIN.get(name))}
    if deployment.depth == 0 and deployment.window is not None:
        raise InputError("--window", f"{deployment.window} without drafts", "give --depth, or no window")
    words = list(known.grammar.command)
    model_word = words[-1] in known.grammar.model_after
    words += [deployment.model] if model_word else [str(known.flag_of("model")), deployment.model]
    line = _Writer(known)
    for name, value in (said | drafting).items():
        line.put(name, value)
    if by_batch is not None:
        _put_depths(line, by_batch)
    flags = line.words()
    command = known.grammar.command
    check_line(known, words[len(command) :] + flags, command[-1])
    return LaunchLine((*words, *flags))


def _counted(deployment: ServerDeployment, known: Vocabulary) -> dict[str, Any]:
    """Ranks and running sequences as the engine counts them."""
    rules, most = known.grammar.parallel, deployment.max_running
    joined = deployment.dp_attention and rules.counts_groups
    return {
        "tp": deployment.ranks if joined else deployment.tp,
        "dp_attention": deployment.dp_attention and deployment.dp > 1 and not rules.shares_experts,
        "max_running": most if most is None or joined else -(-most // deployment.dp),
    }


def _drafting(deployment: ServerDeployment, known: Vocabulary, vendor: str) -> dict[str, Any]:
    """The speculation flags of a deployment that drafts."""
    found = {name: getattr(deployment, name) for name in _DRAFTING}
    rules = known.grammar.drafting
    if deployment.method not in known.engine.draft_tp:
        found["draft_tp"] = None
    if not rules.states_rows:
        if deployment.topk > 1:
            raise InputError("--topk", f"{known.grammar.engine} drafts chains only, not {deployment.topk} branches")
        found |= {"topk": None, "verify_rows": None}
    elif deployment.topk == 1:
        found["verify_rows"] = deployment.depth + 1
    if deployment.window is None and deployment.sink is not None:
        raise InputError("--sink", f"{deployment.sink} without a window", "give --window, for example --window 4032")
    if deployment.window is not None:
        _refuse_window(known, deployment.method)
        if deployment.method == "mtp":  # other heads make the window their own, on any backend
            found["draft_attention_backend"] = deployment.draft_attention_backend or rules.window_backend_on(vendor)
    return {name: value for name, value in found.items() if value is not None}


def _refuse_window(known: Vocabulary, method: str) -> None:
    """Raises `InputError` where no flag of a release windows such a draft head: EAGLE-3 heads had one first."""
    offered = known.flag_of("window") is not None and (method != "mtp" or windows_drafts(known.engine))
    if not offered:
        head = "an MTP head" if method == "mtp" else "a draft"
        problem = f"no flag of {known.name} windows {head}"
        raise InputError("--window", problem, "drop the window; sglang 0.5.23 has one")


def _put_depths(line: _Writer, by_batch: DepthsByBatch) -> None:
    """Depths by batch: in the line itself, or the name of their file."""
    form, value = syntax(line.known), written(line.known, by_batch)
    if form.switch is not None:
        line.say(form.switch, True)
    line.say(form.flag, value if "." in form.flag else by_batch.path)


class _Writer:
    """Collects flags; the keys of one JSON object become one word."""

    def __init__(self, known: Vocabulary) -> None:
        self.known = known
        self.values: dict[str, Any] = {}

    def put(self, name: str, value: Any) -> None:
        flag = self.known.flag_of(name)
        if flag is None:
            problem = f"{str(value)[:60]!r} has no flag in {self.known.name}"
            raise InputError(f"--{name.replace('_', '-')}", problem, "drop it")
        self.say(flag, self._word(name, value))

    def say(self, flag: str, value: Any) -> None:
        """One flag, or one key of its object, in the engine's words."""
        base, dot, key = flag.partition(".")
        if dot:
            self.values.setdefault(base, {})[key] = value
        else:
            self.values[base] = value

    def _word(self, name: str, value: Any) -> Any:
        """A value in the engine's words; what is no word of ours is taken for one of the engine's."""
        table = self.known.grammar.words.get(name.removeprefix("draft_"), {})
        theirs = {ours: word for word, ours in reversed(table.items())}
        if name == "method" and value not in theirs:
            raise InputError("--drafter", f"{value!r} has no word in {self.known.grammar.engine}", "mtp or eagle")
        return theirs.get(value, value) if isinstance(value, str) else value

    def words(self) -> list[str]:
        words: list[str] = []
        for name, value in self.values.items():
            if self.known.flags[name].kind == "switch":
                words.append(name)
            else:
                words += [name, json.dumps(value) if isinstance(value, dict) else _plain(value)]
        return words


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
