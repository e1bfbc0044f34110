"""The server that `wmtp recommend` is asked about, and the command that starts the choice, or why no command does."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import typer
from pydantic import ValidationError

from wmtp_sim.api import layout_of
from wmtp_sim.catalog.by_batch import FLAG, DepthsByBatch, in_a_file, note, syntax
from wmtp_sim.catalog.commands import read_command
from wmtp_sim.catalog.engines import chosen_backends, with_backends, with_known_backends
from wmtp_sim.catalog.flags import grammar_names, load_grammar, vocabulary
from wmtp_sim.catalog.launch import Launch, LaunchByBatch, launch_line
from wmtp_sim.catalog.models import hub_name, load_model
from wmtp_sim.cli.options import flag_of
from wmtp_sim.cli.ranges import whole
from wmtp_sim.decide.choice import windows_reach
from wmtp_sim.errors import InputError
from wmtp_sim.preflight import converted_weights
from wmtp_sim.render.layout import layout_words
from wmtp_sim.spec.deployment import ServerDeployment
from wmtp_sim.spec.parallel import Layout
from wmtp_sim.spec.precision import cache_format

if TYPE_CHECKING:
    from pathlib import Path

    from wmtp_sim.decide.depth_table import DepthTable
    from wmtp_sim.decide.options import Option
    from wmtp_sim.decide.recommend import Recommendation
    from wmtp_sim.spec.engine import Engine


@dataclass(frozen=True)
class Started:
    """A server as options or a command state it.

    Attributes:
        deployment: what is served; its depth and window are those of the command, where there is one.
        engine: the release.
        unused: words of the command that nothing here is made of, and that a line made anew carries along.
        flags: the command's own.
        unsaid: what options state and no flag of a release says, in words, first of all; empty where there is nothing.
    """

    deployment: ServerDeployment
    engine: Engine
    unused: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()
    unsaid: str = ""

    @property
    def release(self) -> str:
        """The engine and its version, for people."""
        return f"{self.engine.name} {self.engine.version}"


def of_options(model: str | None, engine: Engine, options: dict[str, Any]) -> Started:
    """The server that options state, by their flags. Raises `InputError` without a model."""
    if model is None:
        raise InputError("MODEL", "is missing", "a name of `wmtp models`, a config.json, or --from-command")
    layout = Layout(whole(options["--tp"], "--tp"), whole(options["--dp"], "--dp"), options["--dp-attention"])
    stated = {
        "model": model,
        "engine": engine.name,
        "tp": layout.tp,
        "dp": layout.dp,
        "dp_attention": layout.dp_attention,
        "ep": layout.ranks if options["--expert-parallel"] else 1,
        "all_to_all": "deepep" if options["--all-to-all"] else None,
        "draft_tp": None if options["--draft-tp"] is None else whole(options["--draft-tp"], "--draft-tp"),
        "kv": options["--kv"],
        "draft_kv": options["--draft-kv"],
    }
    if (stated_backends := options.get("--attention-backend")) is not None:
        stated |= _backend_fields(chosen_backends(engine, stated_backends))
        engine = with_backends(engine, stated_backends)
    return Started(stated_deployment(stated, "recommend"), engine)


def _backend_fields(named: dict[str, str]) -> dict[str, str | None]:
    """Attention backends by pass as the fields of a deployment; drafts follow the target unless they are named."""
    base, verify, draft = (named.get(name) for name in ("base", "verify", "draft"))
    if base == verify:
        return {"attention_backend": base, "draft_attention_backend": None if draft == base else draft}
    return {"decode_backend": base, "prefill_backend": verify, "draft_attention_backend": draft}


def stated_deployment(fields: dict[str, Any], command: str) -> ServerDeployment:
    """The deployment that a command's options state. Raises `InputError` naming the option at fault."""

    for name in ("kv", "draft_kv"):
        if (word := fields.get(name)) is not None:
            fields = fields | {name: cache_format(word, flag_of(name))}
    try:
        return ServerDeployment.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        field = "MODEL" if name == "model" else flag_of(name)
        problem = f"{str(first.get('input'))[:40]!r}: {first['msg'][0].lower()}{first['msg'][1:200]}"
        raise InputError(field, problem, f"see `wmtp {command} --help` for {field}") from None


def of_command(command: str, engine: Engine | None, options: dict[str, Any]) -> Started:
    """The server that a command starts. What it has no word for is told on stderr.

    Raises:
        InputError: a command that cannot be read or priced, or one of the ``options`` that it states itself.
    """
    if said := next((name for name, value in options.items() if value not in (None, False, "1")), None):
        raise InputError("--from-command", f"says {said} itself", f"drop {said}, or put it into the command")
    read = read_command(command, engine)
    for words in (*read.line.unknown, *read.line.unpriced, *read.shared_otherwise):
        typer.echo(f"wmtp: --from-command: kept, but not priced: {words[:120]}", err=True)
    served = read.deployment
    if not served.chain or (served.depth and (served.method != "mtp" or served.topk > 1)):
        raise InputError("--from-command", "drafts otherwise than a chain of the model's own head", "state the options")
    memory = {} if served.memory_fraction is None else {"memory_fraction": served.memory_fraction}
    release, unknown = with_known_backends(read.engine, _kept_backends(served, read.engine))
    for word in unknown:
        typer.echo(f"wmtp: --from-command: kept, but not priced: attention on {word[:60]}", err=True)
    return Started(served, release.model_copy(update=memory), read.unused, frozenset(read.line.values))


def _kept_backends(served: ServerDeployment, engine: Engine) -> dict[str, str]:
    """The attention backends of a command that a choice keeps: a window is given drafts that honour it."""
    named = served.backends
    if engine.window_backends and named.get("draft") not in engine.window_backends:
        named.pop("draft", None)
    return named


def with_formats(
    started: Started, weights: str | None, head_weights: str | None, draft_weights: str | None, drafter: str | None
) -> Started:
    """A server with the formats and the drafter that options state, said as far as flags can say them."""
    head = {"--head-weights": head_weights, "--draft-weights": draft_weights}
    word = None if weights is None else _converting(started, weights)
    if word is not None:
        started = replace(started, deployment=started.deployment.model_copy(update={"quantization": word}))
    unsaid = [f"no flag says {flag} {stated}: the checkpoint does" for flag, stated in head.items() if stated]
    if weights is not None and word is None:
        unsaid.insert(0, f"no flag of {started.release} converts this checkpoint's weights to {weights} (--weights)")
    if drafter not in (None, "mtp", "none"):
        unsaid.append(f"where the checkpoint of --drafter {drafter} lies is not stated")
    return replace(started, unsaid=unsaid[0] if unsaid else "")


def _converting(started: Started, weights: str) -> str | None:
    """The engine's word for converting weights on loading; a checkpoint that states a format of its own keeps it."""
    if started.engine.name not in grammar_names() or load_model(hub_name(started.deployment.model)).precision.stated:
        return None
    words = {ours: word for word, ours in load_grammar(started.engine.name).words["quantization"].items()}
    return words.get(weights)


def converted(started: Started) -> str | None:
    """The format that a server's engine converts weights to on loading."""
    if started.deployment.quantization is None:
        return None

    target = load_model(hub_name(started.deployment.model))
    return converted_weights(started.deployment, vocabulary(started.engine), target)


def launch(found: Recommendation, started: Started) -> Launch:
    """The command that starts what was chosen, all else as it was stated; or what cannot be said."""
    if found.choice is None or found.mix is None:
        return Launch()
    unsaid = _unsaid(found, started, found.choice)
    if unsaid:
        return Launch(unsaid=unsaid)
    try:
        line = _line(found, started, found.choice)
        return Launch(unsaid=other) if (other := _other_layout(found, started, line)) else Launch(line=line)
    except InputError as error:
        return Launch(unsaid=error.problem if error.field == "--engine" else f"{error.field}: {error.problem}")


def _other_layout(found: Recommendation, started: Started, line: str) -> str:
    """How a line's engine would share the model, if otherwise than was priced; empty where it would not."""
    priced = found.space.deployment
    read = layout_of(priced.model, started.engine, **read_command(line, started.engine).deployment.layout)
    if read == priced.work.layout:
        return ""
    asked, would = (", ".join(layout_words(each)) or "one GPU" for each in (priced.work.layout, read))
    return f"{started.release} would run {would}, not {asked}"


def _line(found: Recommendation, started: Started, option: Option) -> str:
    """Raises `InputError` for what the release has no flag or no word for."""
    vendor = found.space.deployment.machine.gpu.vendor
    line = launch_line(_deployment(found, started.deployment, option), started.engine, vendor=vendor)
    return shlex.join((*line.words, *started.unused))


def launch_by_batch(found: Recommendation, started: Started, path: Path) -> LaunchByBatch:
    """The command that starts depths by batch, and the file that it is to name.

    Raises:
        InputError: naming what is in the way of such a command.
    """
    table = depth_table(found, FLAG)
    depths = DepthsByBatch(table.ranges, str(path)).of_a_group(started.deployment.dp)
    if depths.deepest == 0:
        raise InputError(FLAG, "no depth pays at any batch of the mix", "start without speculation")
    option = replace(table.draft_kv, depth=depths.deepest)
    unsaid = _unsaid(found, started, option) or _drops_depths(found, started)
    if unsaid:
        raise InputError(FLAG, unsaid, "--table has the depths for a router of your own")
    vendor = found.space.deployment.machine.gpu.vendor
    line = launch_line(_deployment(found, started.deployment, option), started.engine, depths, vendor)
    content = in_a_file(started.engine, depths, line.words)
    return LaunchByBatch(shlex.join((*line.words, *started.unused)), content, depths.ranges, note(started.engine))


def _drops_depths(found: Recommendation, started: Started) -> str:
    """Why an engine would keep one depth whatever it is told by batch; empty where it would not."""
    form, drafter = syntax(vocabulary(started.engine)), found.space.deployment.drafter
    dropping = sorted(started.flags & set(form.unless))
    if dropping:
        return f"{started.release} keeps one depth with {dropping[0]}"
    layout = found.space.deployment.work.layout
    if layout.dp > 1 and not (form.replicas and not layout.dp_attention):
        groups = "groups that share experts" if layout.dp_attention else "data-parallel replicas"
        return f"{started.release} keeps one depth with {layout.dp} {groups}"
    if drafter is not None and drafter.resident_copies > 1 and not form.several_heads:
        return f"{started.release} keeps one depth for a drafter of {drafter.resident_copies} heads"
    return ""


def depth_table(found: Recommendation, flag: str) -> DepthTable:
    """The depths that a flag asks for. Raises `InputError` naming the flag where there are none."""
    if found.depth_table is not None:
        return found.depth_table
    if found.acceptance is None:
        raise InputError(flag, "a table of depths needs an acceptance", "state --alpha or --survival")
    raise InputError(flag, "no depth's memory fits at every cell", "a smaller --batch or --context")


def _unsaid(found: Recommendation, started: Started, option: Option) -> str:
    """What of the choice, or of what was stated, is more than flags can say; empty where nothing is."""
    if started.unsaid:
        return started.unsaid
    stated = started.deployment
    own_ranks = option.depth and stated.draft_tp not in (None, stated.tp)
    if own_ranks and stated.method not in started.engine.draft_tp:
        return f"no flag of {started.release} gives such a drafter ranks of its own"
    system = found.space.deployment.system(option.policy).system if option.policy else None
    if system is not None and system.cache.held == "attended":
        return f"no flag of {started.release} gives drafts {system.look.phrase}"
    if system is not None and not system.plain_chain:
        return f"no flags of {started.release} for {system.name} are known here"
    if option.window is not None and not windows_reach(found.space.deployment.drafter):
        return f"no flag of {started.release} windows a draft head of this attention"
    return ""


def _deployment(found: Recommendation, started: ServerDeployment, option: Option) -> ServerDeployment:
    """A deployment as it was stated, but for what a choice decides."""
    assert found.mix is not None
    chosen: dict[str, Any] = {
        "depth": option.depth,
        "verify_rows": None,
        "window": option.window,
        "sink": option.sink if option.window is not None else None,
        "context": started.context or int(found.mix.contexts.max()),
        "max_running": started.max_running or int(found.mix.batches.max()),
        "draft_kv": started.draft_kv if option.depth else None,
    }
    honours = started.draft_attention_backend in found.space.deployment.engine.window_backends
    if option.window is not None and not honours:  # a backend that does is written instead
        chosen["draft_attention_backend"] = None
    return started.model_copy(update=chosen)
