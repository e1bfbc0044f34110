"""The library's face: everything stated by name or number, one answer out."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from wmtp_sim.catalog.drafters import load_drafter
from wmtp_sim.catalog.engines import load_engine
from wmtp_sim.catalog.field import read_field
from wmtp_sim.catalog.field_mapping import Deployment, read_mapping
from wmtp_sim.catalog.gpus import load_gpu, named_by_driver
from wmtp_sim.catalog.models import load_model
from wmtp_sim.catalog.profiles import ELSEWHERE, IDEAL, is_of, load_profile, profile_for
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.decide.field import FieldComparison, compare_field
from wmtp_sim.decide.validation import MeasuredStep, Validation, compare, measured_overlap, read_steps
from wmtp_sim.errors import InputError
from wmtp_sim.machine.machine import Machine
from wmtp_sim.machine.profile import Profile
from wmtp_sim.spec.acceptance import Acceptance, Source, state_acceptance
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
