"""The library's face: everything stated by name or number, one answer out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from wmtp_sim.catalog.commands import Command
from wmtp_sim.catalog.drafters import load_drafter
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.field import read_field
from wmtp_sim.catalog.field_mapping import Deployment, read_mapping
from wmtp_sim.catalog.flags import Vocabulary, suggestion, vocabulary
from wmtp_sim.catalog.gpus import load_gpu, named_by_driver
from wmtp_sim.catalog.launch import LaunchLine, launch_line
from wmtp_sim.catalog.models import hub_name, load_model
from wmtp_sim.catalog.profiles import ELSEWHERE, IDEAL, is_of, load_profile, profile_for
from wmtp_sim.catalog.rules import load_rules, read_checkpoint
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.field import FieldComparison, compare_field
from wmtp_sim.decide.preflight import Case, Trap
from wmtp_sim.decide.preflight import preflight as preflight_traps
from wmtp_sim.decide.validation import MeasuredStep, Validation, compare, measured_overlap, read_steps
from wmtp_sim.errors import InputError
from wmtp_sim.machine.machine import Machine
from wmtp_sim.machine.profile import Profile
from wmtp_sim.spec.acceptance import Acceptance, Source, state_acceptance
from wmtp_sim.spec.deployment import ServerDeployment
from wmtp_sim.spec.engine import Engine
from wmtp_sim.spec.gpu import Gpu
from wmtp_sim.spec.model import Model
from wmtp_sim.spec.parallel import check_ranks
from wmtp_sim.spec.precision import KV_BYTES, Precision, override
from wmtp_sim.spec.workload import Workload

#: The window and sink of the Windowed-MTP paper (arXiv 2607.21535).
PAPER_WINDOW, PAPER_SINK = 4032, 64


def estimate(
    model: str | Model,
    gpu: str | Gpu,
    *,
    context: ArrayLike,
    depth: ArrayLike = 3,
    window: ArrayLike = PAPER_WINDOW,
    sink: ArrayLike = PAPER_SINK,
    batch: ArrayLike = 1,
    engine: str | Engine = "sglang",
    accept_length: ArrayLike | None = None,
    windowed_accept_length: ArrayLike | None = None,
    conditional: ArrayLike | None = None,
    survival: ArrayLike | None = None,
    alpha: ArrayLike | None = None,
    acceptance_source: Source = "given",
    drafter: str = "mtp",
    weights: str | None = None,
    head_weights: str | None = None,
    draft_weights: str | None = None,
    kv: str | None = None,
    draft_kv: str | None = None,
    overlap: float = 0.0,
    routing_skew: float = 0.0,
    expert_parallel: bool | int = False,
    tp: int = 1,
    profile: str | Profile | None = None,
) -> Estimate:
    """What a speculative step costs and gains, for native, flag and ring draft KV.

    Args:
        model: catalogue name, ``config.json`` path, folder, or a `Model`.
        gpu: catalogue name, GPU file, or a `Gpu`.
        context, depth, window, sink, batch: numbers, or arrays that broadcast (see `open_grid`), in tokens and
            sequences. depth 0 is the base step alone.
        engine: ``ideal``, ``sglang``, ``vllm``, or an engine file.
        accept_length, conditional, survival, alpha: at most one; tokens per step with the bonus token, rates per
            position (last axis), or one constant conditional rate.
        windowed_accept_length: tokens per step of windowed drafts; the same acceptance as native ones otherwise.
        drafter: ``mtp``, ``eagle``, ``none``, or a draft model.
        weights, head_weights, draft_weights: storage formats of the target's linear layers, of lm_head and of the
            drafter's linear layers, where the config does not state them.
        kv, draft_kv: ``bf16`` or ``fp8``; the checkpoint's own, else bf16. The draft's follows the target's.
        overlap: share of experts that consecutive rows have in common beyond the first row's.
        routing_skew: exponent of experts' popularity; 0 routes uniformly.
        expert_parallel: whether the ``tp`` ranks hold whole experts instead of a part of each; or among how many groups
            of ranks whole experts are dealt, each shared by a group's ranks (2 of ``tp=8``: TP4 x EP2).
        tp: tensor-parallel ranks, which must divide heads and inner sizes of target and drafter.
        profile: name or file of a machine profile, or a `Profile`; the GPU's own otherwise. One of another GPU is
            carried over, with wider ranges.

    Raises:
        InputError: naming the flag or config field, its value and what to type instead.
    """
    target = load_model(model) if isinstance(model, str) else model
    precision = override(target.precision, weights=weights, head_weights=head_weights, draft_weights=draft_weights)
    target = target.model_copy(update={"precision": precision})
    cache = kv or target.precision.kv
    groups = tp if expert_parallel is True else int(expert_parallel) or 1
    work = Workload(
        context,  # type: ignore[arg-type]
        depth,  # type: ignore[arg-type]
        window,  # type: ignore[arg-type]
        sink,  # type: ignore[arg-type]
        batch,  # type: ignore[arg-type]
        kv_bytes=_cache_bytes(cache, "--kv"),
        draft_kv_bytes=_cache_bytes(draft_kv or cache, "--draft-kv"),
        overlap=overlap,
        skew=routing_skew,
        tp=tp,
        expert_groups=groups,
    )
    stated: dict[str, ArrayLike | None] = {
        "accept_length": accept_length,
        "conditional": conditional,
        "survival": survival,
        "alpha": alpha,
    }
    acceptance, windowed = None, None
    if any(value is not None for value in stated.values()):
        acceptance = _acceptance(work, acceptance_source, **stated)
    if windowed_accept_length is not None:
        try:
            windowed = _acceptance(work, acceptance_source, accept_length=windowed_accept_length)
        except InputError as error:
            raise InputError("--windowed-accept-length", error.problem, error.hint) from None
    chosen = load_engine(engine) if isinstance(engine, str) else engine
    drafts = load_drafter(drafter, target, draft_weights) if (work.depth > 0).any() else None
    check_ranks(
        tp, [(d.name, d.blocks) for d in (target, drafts) if d is not None], groups if expert_parallel else None
    )
    device = load_gpu(gpu) if isinstance(gpu, str) else gpu
    return Estimate(
        model=target,
        engine=chosen,
        machine=Machine(device, _profile(chosen, device, profile)),
        work=work,
        drafter=drafts,
        acceptance=acceptance,
        windowed_acceptance=windowed,
    )


def _profile(engine: Engine, device: Gpu, stated: str | Profile | None) -> Profile:
    """The stated profile, carried over where it is another GPU's, or the one that serves the GPU."""
    if engine.ideal:
        if stated is not None:
            raise InputError("--profile", f"the {engine.name} engine runs at datasheet peaks", "drop the flag")
        return IDEAL
    if stated is None:
        return profile_for(device)
    profile = load_profile(stated) if isinstance(stated, str) else stated
    return profile if is_of(profile, device) else profile.transferred(ELSEWHERE, device.launch_slowdown)


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
    engine: str | Engine | None = None,
    profile: str | Profile | None = None,
    **acceptance: ArrayLike | None,
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
        engine: for a deployment whose engine was loaded already, with changes.
        acceptance: as `estimate` takes it: ``accept_length``, ``alpha``, ``survival``, ``conditional``.

    Raises:
        InputError: naming what cannot be looked at.
    """
    command = deployment if isinstance(deployment, Command) else None
    stated = deployment.deployment if isinstance(deployment, Command) else deployment
    known = command.known if command is not None else vocabulary(engine or stated.engine)
    target = (
        load_model(hub_name(stated.model)) if model is None else load_model(model) if isinstance(model, str) else model
    )
    device = load_gpu(gpu) if isinstance(gpu, str) else gpu
    drafter, problem = _drafter(stated, target)
    if target.precision.stated:
        weights = None
    elif weights is None and stated.quantization is not None:
        weights = known.grammar.words["quantization"].get(stated.quantization)
    memory = {} if stated.memory_fraction is None else {"memory_fraction": stated.memory_fraction}
    priced = estimate(
        target,
        device,
        context=context or stated.context or target.max_context,
        depth=stated.depth if drafter else 0,
        window=stated.window or PAPER_WINDOW,
        sink=PAPER_SINK if stated.window is None else stated.sink or 0,
        batch=batch,
        engine=known.engine.model_copy(update=memory),
        drafter=drafter or "mtp",
        weights=weights,
        kv=stated.kv,
        draft_kv=stated.draft_kv,
        tp=stated.tp,
        expert_parallel=_expert_parallel(stated),
        profile=profile,
        **(acceptance if drafter else {}),  # type: ignore[arg-type]
    )
    index = read_checkpoint(stated.model if not isinstance(model, str) else model)
    book = load_rules()
    case = Case(
        deployment=stated,
        model=target,
        gpu=device,
        engine=known.engine,
        grammar=known.grammar,
        estimate=priced,
        limits=book.limits,
        flags=command.line.values if command is not None else {},
        unknown=tuple((words, suggestion(known, words)) for words in command.line.unknown) if command else (),
        refused=tuple(command.line.refused) if command else (),
        unpriced=tuple(command.line.unpriced) if command else (),
        checkpoint=None if index is None else (index.tensors, index.head_tensors),
        unpriced_drafter=problem,
        kv_pool_tokens=kv_pool_tokens,
        random_data=random_data,
    )
    return Preflight(stated, priced, preflight_traps(case, book), None if command else _launch(stated, known))


def _expert_parallel(stated: ServerDeployment) -> bool | int:
    """Among how many groups of a replica's ranks whole experts are dealt; False where none are."""
    whole = min(stated.ep, stated.tp)
    return whole if whole > 1 else False


def _launch(stated: ServerDeployment, known: Vocabulary) -> LaunchLine | None:
    """The line that starts a deployment, where the release can be told all of it: else a trap says why not."""
    try:
        return launch_line(stated, known.engine)
    except InputError as error:
        if error.field in ("--window", "--sink"):
            return None
        raise


def _drafter(stated: ServerDeployment, target: Model) -> tuple[str, str]:
    """What ``--drafter`` would say of a deployment, and why nothing where its drafter cannot be priced."""
    if stated.depth == 0:
        return "", ""
    if stated.method == "mtp" and stated.draft_model in (None, stated.model):
        return ("mtp", "") if target.mtp is not None else ("", "")
    if stated.method == "eagle" and stated.draft_model is None:
        return "", ""
    if stated.draft_model is None:
        return "", "neither an MTP head, an EAGLE head nor a draft model"
    try:
        load_drafter(hub_name(stated.draft_model), target)
    except InputError as error:
        return ("eagle", "") if stated.method == "eagle" and error.field == "--drafter" else ("", error.problem)
    return hub_name(stated.draft_model), ""


def validate(steps: str | Path, *, profile: str | Profile | None = None, gpu: str | Gpu | None = None) -> Validation:
    """Predicted steps beside measured ones (``wmtp-steps/1``).

    The bench measures random bf16 weights and caches and float32 states, whatever the checkpoint holds: so it is
    predicted. How many experts the verified rows touched was counted, and is an input like an acceptance.

    Args:
        steps: a file of measured steps.
        profile: as `estimate` takes it.
        gpu: where the steps were measured, if the catalogue does not know its driver's name.

    Raises:
        InputError: naming the file's field, or the flag.
    """
    measured = read_steps(Path(steps))
    device = gpu if gpu is not None else named_by_driver(measured.gpu)
    if device is None:
        raise InputError(
            "--gpu", f"the catalogue has no {measured.gpu[:60]!r}", "describe it in a TOML file: --gpu FILE"
        )
    target = load_model(measured.model, f"{str(steps)[-80:]}: model")
    target = target.model_copy(update={"precision": Precision(), "state_dtype_bytes": 4})
    drafter = "mtp" if target.mtp is not None else "eagle"  # verify and sample do not depend on it

    def estimate_of(point: MeasuredStep) -> Estimate:
        sizes = {name: getattr(point, name) for name in ("context", "depth", "window", "sink", "batch")}
        overlap = measured_overlap(target, point)
        return estimate(
            target, device, **sizes, engine="bench", drafter=drafter, kv="bf16", overlap=overlap, profile=profile
        )

    return compare(measured, estimate_of)


def validate_field() -> FieldComparison:
    """Predictions beside the shipped public measurements, at three levels: nothing fitted, base step given, engine
    terms of the same source's other rows (see `wmtp_sim.decide.field`)."""

    def estimate_of(stated: Deployment) -> Estimate:
        return estimate(
            stated.model,
            stated.gpu,
            context=stated.context,
            depth=stated.depth or 0,
            batch=stated.batch,
            engine=stated.engine,
            drafter=stated.drafter or "none",
            weights=stated.weights,
            head_weights=stated.head_weights,
            draft_weights=stated.draft_weights,
            kv=stated.kv,
            tp=stated.tp,
            expert_parallel=stated.expert_groups if stated.expert_groups > 1 else False,
            window=PAPER_WINDOW if stated.window is None else stated.window,
            sink=PAPER_SINK if stated.sink is None else stated.sink,
        )

    return compare_field(read_field(), read_mapping(), estimate_of)


def _acceptance(work: Workload, source: Source, **stated: ArrayLike | None) -> Acceptance:
    """The one statement of acceptance; an array of accept lengths is one for each point of depth's shape."""
    depths, length = work.depth.astype(np.int64), stated.get("accept_length")
    if length is not None and np.ndim(length):
        stated["accept_length"], depths = np.broadcast_arrays(length, depths)
    return state_acceptance(depth=depths, source=source, **stated)


def _cache_bytes(name: str, flag: str) -> float:
    if name not in KV_BYTES:
        raise InputError(flag, f"unknown cache format {name[:40]!r}", f"one of {', '.join(KV_BYTES)}")
    return KV_BYTES[cast(Literal["bf16", "fp8"], name)]
