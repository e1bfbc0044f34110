"""Preflight from Python: a deployment or a command in, its traps out. Not in `api`, whose cold start it would slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wmtp_sim.api import PAPER_SINK, PAPER_WINDOW, estimate
from wmtp_sim.catalog.commands import Command
from wmtp_sim.catalog.drafters import load_drafter
from wmtp_sim.catalog.engines import with_known_backends
from wmtp_sim.catalog.flags import Line, Vocabulary, suggestion, vocabulary
from wmtp_sim.catalog.gpus import load_gpu
from wmtp_sim.catalog.launch import LaunchLine, launch_line
from wmtp_sim.catalog.models import hub_name, load_model
from wmtp_sim.catalog.rules import load_rules, read_checkpoint
from wmtp_sim.catalog.systems import load_system, shipped_systems
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.preflight import Case, Trap, traps
from wmtp_sim.errors import InputError
from wmtp_sim.machine.profile import Profile
from wmtp_sim.spec.deployment import ServerDeployment
from wmtp_sim.spec.engine import Engine
from wmtp_sim.spec.gpu import Gpu
from wmtp_sim.spec.model import Model


@dataclass(frozen=True)
class Preflight:
    """A deployment, the estimate of it that was looked at, and the traps found.

    ``launch`` is the command that starts it; None where it was read from a command.
    """

    deployment: ServerDeployment
    estimate: Estimate
    traps: list[Trap]
    launch: LaunchLine | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing found is an error."""
        return not any(trap.severity == "error" for trap in self.traps)


def preflight(
    deployment: ServerDeployment | Command,
    gpu: str | Gpu,
    *,
    model: str | Model | None = None,
    context: int | None = None,
    batch: int = 1,
    weights: str | None = None,
    kv_pool_tokens: int | None = None,
    random_data: bool = False,
    system: Sequence[str] = (),
    engine: str | Engine | None = None,
    profile: str | Profile | None = None,
    **acceptance: Any,
) -> Preflight:
    """Every trap of a deployment that its config, its flags and its GPU show before it is started.

    Args:
        deployment: what is served, or a command that `catalog.commands.read_command` read.
        gpu, profile: as `estimate` takes them.
        model: whose config to look at; by default what the deployment names, a hub name by its last part.
        context: tokens asked about; the longest served by default, else the model's limit.
        batch: sequences decoded together.
        weights: as `estimate` takes it; by default what the deployment's quantisation converts to.
        kv_pool_tokens: what the engine logged as its KV pool.
        random_data: whether the acceptance was measured on random tokens.
        system: as `estimate` takes it; by default what the deployment's method is here.
        engine: for a deployment whose engine was loaded already, with changes.
        acceptance: as `estimate` takes it: ``accept_length``, ``alpha``, ``survival``, ``conditional``.

    Raises:
        InputError: naming what cannot be looked at.
    """
    if isinstance(deployment, Command):
        stated, known, line = deployment.deployment, deployment.known, deployment.line
        aside, unpriced = deployment.aside, deployment.unpriced
    else:
        stated, known, line = deployment, vocabulary(engine or deployment.engine), Line()
        aside, unpriced = (), {}
    if kv_pool_tokens is not None and kv_pool_tokens < 1:
        raise InputError("--kv-pool-tokens", f"{kv_pool_tokens} is no pool", "the engine's max_total_num_tokens")
    reference = stated.model if model is None else model
    reference = hub_name(reference) if isinstance(reference, str) else reference
    target = load_model(reference) if isinstance(reference, str) else reference
    device = load_gpu(gpu) if isinstance(gpu, str) else gpu
    drafter, named, problem = _drafter(stated, target)
    asked = list(system) or named
    drafting = bool(drafter or asked)
    if own := next((each for each in map(load_system, asked) if not each.plain_chain), None):
        stated = stated.model_copy(update={"method": own.name})
    priced = estimate(
        target,
        device,
        context=context if context is not None else stated.context or target.max_context,
        batch=batch,
        weights=weights or converted_weights(stated, known, target),
        drafter=drafter or None,
        system=asked if drafting else (),
        profile=profile,
        **_stated_sizes(stated, known.engine, drafting),
        **(acceptance if drafting else {}),
    )
    book = load_rules()
    case = Case(
        deployment=stated,
        model=target,
        gpu=device,
        engine=known.engine,
        grammar=known.grammar,
        estimate=priced,
        limits=book.limits,
        flags=line.values,
        said=known.grammar.said(line.values, known.release),
        aside=aside,
        unknown=tuple((words, suggestion(known, words)) for words in line.unknown),
        refused=tuple(line.refused),
        unpriced=unpriced,
        checkpoint=read_checkpoint(reference if isinstance(reference, str) else stated.model),
        unpriced_drafter="" if asked else problem,
        unpriced_backends=tuple(with_known_backends(known.engine, stated.backends)[1]),
        kv_pool_tokens=kv_pool_tokens,
        random_data=random_data,
    )
    chains = all(each.system.plain_chain for each in priced.systems)
    launch = _launch(stated, known, device) if chains and not isinstance(deployment, Command) else None
    return Preflight(stated, priced, traps(case, book), launch)


def _stated_sizes(stated: ServerDeployment, engine: Engine, drafting: bool) -> dict[str, Any]:
    """What a deployment states of an estimate's inputs; the paper's window where it states none, which changes nothing
    that is looked at."""
    memory = {} if stated.memory_fraction is None else {"memory_fraction": stated.memory_fraction}
    return {
        "depth": (stated.depth or None) if drafting else 0,
        "window": stated.window or PAPER_WINDOW,
        "sink": PAPER_SINK if stated.window is None else stated.sink or 0,
        "engine": with_known_backends(engine, stated.backends)[0].model_copy(update=memory),
        "kv": stated.kv,
        "draft_kv": stated.draft_kv,
        **stated.layout,
    }


def converted_weights(stated: ServerDeployment, known: Vocabulary, target: Model) -> str | None:
    """The format that weights are converted to on loading; a checkpoint that states its own keeps it."""
    if target.precision.stated or stated.quantization is None:
        return None
    return known.grammar.words["quantization"].get(stated.quantization)


def _launch(stated: ServerDeployment, known: Vocabulary, gpu: Gpu) -> LaunchLine | None:
    """The line that starts a deployment, where the release can be told all of it: else a trap says why not."""
    try:
        return launch_line(stated, known.engine, vendor=gpu.vendor)
    except InputError as error:
        if error.field in ("--window", "--sink"):
            return None
        raise


def _drafter(stated: ServerDeployment, target: Model) -> tuple[str, list[str], str]:
    """What ``--drafter`` and ``--system`` would say of a deployment, and why nothing where it cannot be priced."""
    if not stated.chain:
        return _other_system(stated, target)
    if stated.depth == 0:
        return "", [], ""
    if stated.method == "mtp" and stated.draft_model in (None, stated.model):
        return ("mtp" if target.mtp is not None else ""), [], ""
    if stated.method == "eagle" and stated.draft_model is None:
        return "", [], ""
    if stated.draft_model is None:
        return "", [], "a draft model that is not named"
    try:
        load_drafter(hub_name(stated.draft_model), target)
    except InputError as error:
        unread = stated.method == "eagle" and error.field == "--drafter"
        return ("eagle", [], "") if unread else ("", [], error.problem)
    return hub_name(stated.draft_model), [], ""


def _other_system(stated: ServerDeployment, target: Model) -> tuple[str, list[str], str]:
    """A way to draft that is a system here: with the head's config where it can be read, else as published."""
    name = stated.method.lower().replace("_", "-")
    known = shipped_systems()
    if name not in known:
        return "", [], stated.method
    if stated.window is not None:  # the same drafter over a window
        alike = (each for each in known.values() if each.standard and each.drafters == known[name].drafters)
        name = next((each.name for each in alike if each.window_matters), name)
    try:
        load_drafter(hub_name(stated.draft_model or ""), target)
    except InputError:
        return "", [name], ""
    return hub_name(stated.draft_model or ""), [name], ""
