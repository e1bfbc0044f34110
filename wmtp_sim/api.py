"""The library's face: everything stated by name or number, one answer out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from wmtp_sim.catalog.engines import BACKEND_FLAG, load_engine, with_backends
from wmtp_sim.catalog.gpus import load_gpu
from wmtp_sim.catalog.models import load_model
from wmtp_sim.catalog.profiles import ELSEWHERE, IDEAL, is_of, load_profile, profile_for
from wmtp_sim.catalog.systems import USUAL_DEPTH, speculations
from wmtp_sim.decide.acceptance import tree_survival
from wmtp_sim.decide.attention import unserved
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.errors import InputError
from wmtp_sim.machine.machine import Machine
from wmtp_sim.machine.profile import Profile
from wmtp_sim.spec.acceptance import MAX_DEPTH, Acceptance, Source, as_depth, state_acceptance
from wmtp_sim.spec.engine import Engine
from wmtp_sim.spec.gpu import Gpu
from wmtp_sim.spec.mix import Mix
from wmtp_sim.spec.model import Model, has_attention
from wmtp_sim.spec.parallel import Layout, can_join, check_ranks, has_experts
from wmtp_sim.spec.precision import KV_BYTES, cache_format, override
from wmtp_sim.spec.system import Speculation, System
from wmtp_sim.spec.workload import FloatArray, Workload

if TYPE_CHECKING:
    from wmtp_sim.decide.recommend import Recommendation

#: The window and sink of the Windowed-MTP paper (arXiv 2607.21535).
PAPER_WINDOW, PAPER_SINK = 4032, 64
#: The deepest draft that is considered where neither depths nor rates say how deep.
DEEPEST = 8


def estimate(
    model: str | Model,
    gpu: str | Gpu,
    *,
    context: ArrayLike,
    depth: ArrayLike | None = None,
    window: ArrayLike = PAPER_WINDOW,
    sink: ArrayLike = PAPER_SINK,
    batch: ArrayLike = 1,
    system: str | System | Sequence[str | System] = (),
    engine: str | Engine = "sglang",
    attention_backend: str | None = None,
    accept_length: ArrayLike | Mapping[str, float] | None = None,
    windowed_accept_length: ArrayLike | None = None,
    conditional: ArrayLike | None = None,
    survival: ArrayLike | None = None,
    alpha: ArrayLike | None = None,
    acceptance_source: Source = "given",
    drafter: str | None = None,
    weights: str | None = None,
    head_weights: str | None = None,
    draft_weights: str | None = None,
    kv: str | None = None,
    draft_kv: str | None = None,
    overlap: float = 0.0,
    routing_skew: float = 0.0,
    expert_parallel: bool | int = False,
    all_to_all: bool = False,
    tp: int = 1,
    dp: int = 1,
    dp_attention: bool = False,
    draft_tp: int | None = None,
    pp: int = 1,
    hosts: int = 1,
    profile: str | Profile | None = None,
) -> Estimate:
    """What a speculative step costs and gains, system by system.

    Args:
        model: catalogue name, ``config.json`` path, folder, or a `Model`.
        gpu: catalogue name, GPU file, or a `Gpu`.
        context, depth, window, sink, batch: numbers, or arrays that broadcast (see `open_grid`), in tokens and
            sequences. depth 0 is the base step alone; without one, systems and drafters that are made for a depth have
            that, others `USUAL_DEPTH`.
        system: names of systems (``wmtp systems``), their files, or `System`; without any, those that are usual for the
            drafter: the plainest first, which others are compared with.
        engine: ``ideal``, ``sglang``, ``vllm``, or an engine file.
        attention_backend: the engine's own word, for every pass or by pass (``base=fa3,verify=triton,draft=triton``);
            what the release picks on the GPU otherwise.
        accept_length, conditional, survival, alpha: at most one; tokens per step with the bonus token (also by system:
            ``{"native": 2.9, "dflash": 6.5}``), rates per position (last axis), or one constant conditional rate.
        windowed_accept_length: tokens per step of windowed drafts; the same acceptance as native ones otherwise.
        drafter: ``mtp``, ``eagle``, ``none``, a draft model, or a head's config; a system's own, else ``mtp``.
        weights, head_weights, draft_weights: storage formats of the target's linear layers, of lm_head and of the
            drafter's linear layers, where the config does not state them.
        kv, draft_kv: ``bf16`` or ``fp8``, or an engine's word for it (``fp8_e4m3``); the checkpoint's own, else bf16.
            The draft's follows the target's.
        overlap: share of experts that consecutive rows have in common beyond the first row's.
        routing_skew: exponent of experts' popularity; 0 routes uniformly.
        expert_parallel: whether the ranks hold whole experts instead of a part of each; or among how many groups
            of ranks whole experts are dealt, each shared by a group's ranks (2 of ``tp=8``: TP4 x EP2).
        all_to_all: whether rows are sent to the ranks of their experts and back (DeepEP's low-latency kernels), which
            takes ``expert_parallel``; else all ranks see all rows.
        tp: ranks that share a sequence's attention, which must divide heads and inner sizes of target and drafter.
        dp: groups of ``tp`` ranks, each with its part of ``batch``.
        dp_attention: whether the groups share experts, and what else the engine's definition says; else they are
            replicas of the whole model.
        draft_tp: ranks that share the drafter, where not all of a group do.
        pp, hosts: pipeline stages, and hosts that all GPUs stand in. They are not priced: where a step needs GPUs of
            several hosts, by these or by how many GPUs a host holds, a warning says so.
        profile: name or file of a machine profile, or a `Profile`; the GPU's own otherwise. One of another GPU is
            carried over, with wider ranges.

    Raises:
        InputError: naming the flag or config field, its value and what to type instead.
    """
    target = load_model(model) if isinstance(model, str) else model
    precision = override(target.precision, weights=weights, head_weights=head_weights, draft_weights=draft_weights)
    target = target.model_copy(update={"precision": precision})
    cache = target.precision.kv if kv is None else kv
    chosen = load_engine(engine) if isinstance(engine, str) else engine
    chosen = chosen if attention_backend is None else with_backends(chosen, attention_backend)
    layout = layout_of(target, chosen, tp, dp, dp_attention, expert_parallel, all_to_all, draft_tp, pp, hosts)
    work = Workload(
        context,  # type: ignore[arg-type]
        USUAL_DEPTH if depth is None else depth,  # type: ignore[arg-type]
        window,  # type: ignore[arg-type]
        sink,  # type: ignore[arg-type]
        batch,  # type: ignore[arg-type]
        kv_bytes=KV_BYTES[cache_format(cache, "--kv")],
        draft_kv_bytes=KV_BYTES[cache_format(cache if draft_kv is None else draft_kv, "--draft-kv")],
        overlap=overlap,
        skew=routing_skew,
        layout=layout,
    )
    asked = [system] if isinstance(system, str | System) else list(system)
    drafting = bool((work.depth > 0).any())
    systems = speculations(asked, target, drafter, draft_weights, deep=depth is not None) if drafting else ()
    if depth is None and systems:
        work = replace(work, depth=systems[0].levels(1.0))  # type: ignore[arg-type]
    by_system = accept_length if isinstance(accept_length, Mapping) else None
    stated: dict[str, ArrayLike | None] = {
        "accept_length": _of_first(by_system, systems) if by_system is not None else accept_length,  # type: ignore[dict-item]
        "conditional": conditional,
        "survival": survival,
        "alpha": alpha,
    }
    acceptance, windowed = None, None
    if any(value is not None for value in stated.values()):
        acceptance = _acceptance(_levels(systems[:1], work), acceptance_source, **stated)
    if windowed_accept_length is not None:
        windowed = _windowed(work.depth, acceptance_source, windowed_accept_length)
    check_ranks(layout, target.name, target.blocks)
    for drafts in {id(each): each for s in systems for each in s.drafters}.values():
        check_ranks(layout.for_draft(drafts.kind), drafts.name, drafts.blocks)
    _refuse_depths(systems, work)
    device = load_gpu(gpu) if isinstance(gpu, str) else gpu
    found = Estimate(
        model=target,
        engine=chosen,
        machine=Machine(device, _profile(chosen, device, profile)),
        work=work,
        systems=systems,
        acceptance=acceptance,
        windowed_acceptance=windowed,
        stated_for=frozenset(by_system or ()),
        own_acceptance=_own_acceptance(systems, work, acceptance_source, stated, by_system or {}),
    )
    if attention_backend is not None:
        _refuse_idle_backends(found)
    for each in systems if accept_length is not None else ():
        _refuse_length(found, each)
    return found


def _refuse_idle_backends(found: Estimate) -> None:
    """Raises `InputError` for a stated backend that does not run on the GPU, over the cache, or for the layers."""
    if not has_attention(found.model.blocks):
        problem = f"{found.model.name} has no grouped-query attention that it would serve"
        raise InputError(BACKEND_FLAG, problem, "drop the flag")
    for use in unserved(found):
        there = found.engine.backends_on(found.machine.gpu, use.kv_bytes, use.sinks)
        instead = f"one of {', '.join(there)}" if there else "another engine"
        raise InputError(BACKEND_FLAG, f"{use.backend} {use.why(found.machine.gpu)}", instead)


def layout_of(
    target: Model,
    engine: Engine,
    tp: int,
    dp: int,
    dp_attention: bool,
    expert_parallel: bool | int,
    all_to_all: bool,
    draft_tp: int | None,
    pp: int = 1,
    hosts: int = 1,
) -> Layout:
    """How GPUs share a target in an engine. Groups with nothing to share are replicas.

    Raises:
        InputError: naming the flag of what the model has no experts for, or the engine no way.
    """
    for flag, asked in (("--expert-parallel", expert_parallel), ("--all-to-all", all_to_all)):
        if asked and not has_experts(target.blocks):
            raise InputError(flag, f"{target.name} has no experts", "drop the flag")
    release = f"{engine.name} {engine.version}"
    if dp_attention and not engine.joint:
        raise InputError("--dp-attention", f"groups share nothing in {release}", "drop the flag: they are replicas")
    if all_to_all and not engine.all_to_all:
        raise InputError("--all-to-all", f"{release} sends no rows to their experts", "drop the flag")
    joined = dp_attention and can_join(target.blocks, engine.joint)
    ranks = tp * dp if joined else tp
    return Layout(
        tp=tp,
        dp=dp,
        dp_attention=joined,
        joint=engine.joint,
        expert_groups=ranks if expert_parallel is True else int(expert_parallel) or 1,
        all_to_all=all_to_all,
        draft_tp=draft_tp,
        pp=pp,
        hosts=hosts,
    )


def recommend(
    model: str | Model,
    gpu: str | Gpu,
    *,
    context: ArrayLike,
    context_shares: ArrayLike | None = None,
    batch: ArrayLike = 1,
    batch_shares: ArrayLike | None = None,
    depth: ArrayLike | None = None,
    window: ArrayLike = PAPER_WINDOW,
    sink: ArrayLike = PAPER_SINK,
    accept_length: float | None = None,
    windowed_accept_length: float | None = None,
    at_depth: int | None = None,
    conditional: ArrayLike | None = None,
    survival: ArrayLike | None = None,
    alpha: float | None = None,
    acceptance_source: Source = "given",
    slo_itl_s: float | None = None,
    slo_certain: bool = False,
    need: float = 1.0,
    what_if: bool = False,
    **deployment: Any,
) -> Recommendation:
    """The depth, draft KV policy, window and sink that give most tokens/s over a mix of contexts and batches, or off.

    Args:
        model, gpu, deployment: as `estimate` takes them: engine, drafter, formats, tp, profile.
        context, context_shares, batch, batch_shares: as `Mix.of` takes them, in tokens and sequences.
        depth: depths to choose from; 1 to `DEEPEST` otherwise and what systems are made for, as far as rates go. Off
            is always considered.
        window, sink: every pair of them is considered for windowed drafts.
        accept_length, conditional, survival, alpha: at most one, as `estimate` takes them. An accept length is carried
            from ``at_depth`` to the other depths by one constant conditional rate, which is an assumption. Without
            any, only what each option needs is answered.
        windowed_accept_length: of windowed drafts at ``at_depth``.
        slo_itl_s: the longest mean time between two tokens of a request, in seconds, at every context and batch.
        slo_certain: whether the slow end of each step's range must meet it too, and not the expected step alone.
        need: the speedup that the needed accept lengths are for.
        what_if: also choose policies that the engine release lacks.

    Raises:
        InputError: naming the flag or config field, its value and what to type instead.
    """
    from wmtp_sim.decide.options import OptionSpace
    from wmtp_sim.decide.recommend import Recommendation, Target

    mix = Mix.of(context, batch, context_shares, batch_shares)
    rates = conditional if conditional is not None else survival
    positions = None if rates is None else np.shape(np.atleast_1d(rates))[-1]
    systems = () if depth is not None else estimate(model, gpu, context=mix.contexts[0], **deployment).systems
    depths = _drafting(depth, positions, systems)
    for flag, value in (("--slo-itl-ms", slo_itl_s), ("--need", need)):
        if value is not None and not 0 < value < float("inf"):
            raise InputError(flag, f"{value:g} is not a number above 0", f"for example {flag} {_EXAMPLES[flag]}")
    if slo_certain and slo_itl_s is None:
        raise InputError("--slo-certain", "is given without a target", "for example --slo-itl-ms 20 --slo-certain")
    lengths = {"--accept-length": accept_length, "--windowed-accept-length": windowed_accept_length}
    stated_at = _stated_at(depths, at_depth, [flag for flag, value in lengths.items() if value is not None])
    known = stated_at if accept_length is not None else max(depths)
    stated = {"accept_length": accept_length, "conditional": conditional, "survival": survival, "alpha": alpha}
    acceptance, windowed = None, None
    if any(value is not None for value in stated.values()):
        acceptance = state_acceptance(depth=known, source=acceptance_source, **stated)
    if windowed_accept_length is not None:
        if acceptance is None:
            hint = "state --accept-length, --alpha, --survival or --conditional too"
            raise InputError("--windowed-accept-length", "says nothing of native drafts", hint)
        windowed = _windowed(np.asarray(stated_at), acceptance_source, windowed_accept_length)
    pairs = [(int(w), int(s)) for w in np.unique(window) for s in np.unique(sink)]
    point = estimate(
        model, gpu, context=mix.contexts[0], depth=depths[0], window=pairs[0][0], sink=pairs[0][1], **deployment
    )
    if not point.systems:
        problem = "none drafts nothing, so there is nothing to choose"
        raise InputError("--drafter", problem, "mtp, eagle or a draft model")
    space = OptionSpace(point, depths, tuple(pairs), what_if)
    target = Target() if slo_itl_s is None else Target(slo_itl_s, slo_certain)
    return Recommendation(space, mix, acceptance, windowed, target, need)


_EXAMPLES = {"--slo-itl-ms": "20", "--need": "1.2"}


def _drafting(depth: ArrayLike | None, positions: int | None, systems: Sequence[Speculation]) -> tuple[int, ...]:
    """Depths that draft, ascending; where none were named, those that systems are made for too, as far as rates go."""
    if depth is None:
        made_for = {each.depth for each in systems if each.depth is not None}
        heads = [each.depth for each in systems if each.drafter and each.drafter.kind == "heads" and each.depth]
        deepest = min([positions or MAX_DEPTH, *heads])
        return tuple(sorted(each for each in made_for | {*range(1, DEEPEST + 1)} if each <= deepest))
    found = tuple(int(each) for each in np.unique(as_depth(depth)) if each > 0)
    if not found:
        raise InputError("--depth", "0 drafts nothing, and off is always considered", "for example --depth 1:8")
    return found


def _stated_at(depths: tuple[int, ...], at_depth: int | None, flags: list[str]) -> int:
    """The depth that accept lengths were measured at; it must be named where there are several."""
    if at_depth is not None:
        if at_depth < 1:
            raise InputError("--at", f"depth {at_depth} drafts nothing", "the depth of the accept length: --at depth=3")
        if not flags:
            raise InputError("--at", "names the depth of an accept length, and none is stated", "drop it")
        return at_depth
    if flags and len(depths) > 1:
        raise InputError(flags[0], "holds at the depth it was measured at, which is not named", "--at depth=3")
    return depths[0]


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


def _refuse_depths(systems: tuple[Speculation, ...], work: Workload) -> None:
    """Raises `InputError` for more tokens than there are heads, and for the target's own layers on fewer ranks."""
    for each in systems:
        drafter, deepest = each.drafter, float(np.max(each.levels(work.depth)))
        if drafter is None:
            continue
        heads = drafter.block - 1 if drafter.block else drafter.resident_copies
        if drafter.kind == "heads" and heads > 1 and deepest > heads:
            raise InputError("--depth", f"{deepest:.0f} tokens of {heads} heads", f"at most {heads} for {each.name}")
        if drafter.of_target and work.layout.draft_tp not in (None, work.layout.tp):
            raise InputError("--draft-tp", f"{each.name} drafts with the target's own layers", "drop the flag")


def _refuse_length(found: Estimate, speculation: Speculation) -> None:
    """Raises `InputError` for an accept length above the mean rows that a system verifies."""
    most = speculation.system.verify.rows
    if most is None:
        return
    length = found.policies[speculation.name].accept_length
    if length is not None and np.any(length > most):
        problem = f"{float(np.max(length)):.4g} exceeds {most:g}, the rows that {speculation.name} verifies in the mean"
        raise InputError("--accept-length", problem, "a smaller one, or other rows in a copy of its file")


def _of_first(by_system: Mapping[str, float], systems: tuple[Speculation, ...]) -> float | None:
    """The plainest system's accept length. Raises `InputError` (``--accept-length``) where some system has none."""
    names = [each.name for each in systems]
    lacking = [name for name in names if name not in by_system]
    others = [name for name in by_system if name not in names]
    if lacking or others:
        problem = f"{others[0][:40]!r} is no system of this answer" if others else f"none for {lacking[0]}"
        raise InputError("--accept-length", problem, f"one for each of {', '.join(names)}")
    if unjudged := next((each.name for each in systems if each.system.verify.rule == "none"), None):
        raise InputError("--accept-length", f"{unjudged} verifies nothing", "its file says what it keeps: verify.rows")
    return by_system[names[0]] if names else None


def _levels(systems: tuple[Speculation, ...], work: Workload) -> FloatArray:
    """Drafted tokens that a statement of acceptance is about."""
    return np.asarray(systems[0].levels(work.depth) if systems else work.depth, dtype=float)


def _own_acceptance(
    systems: tuple[Speculation, ...],
    work: Workload,
    source: Source,
    stated: dict[str, ArrayLike | None],
    by_system: Mapping[str, float],
) -> dict[str, Acceptance]:
    """The same statement for systems of another depth than the first; published rates of trees without one."""
    found: dict[str, Acceptance] = {}
    for each in systems:
        widths, rank = each.system.proposal.widths, each.system.acceptance.rank
        if each.name in by_system:
            levels = _levels((each,), work)
            found[each.name] = _acceptance(levels, source, accept_length=by_system[each.name])
        elif any(value is not None for value in stated.values()):
            if np.any(each.levels(work.depth) != _levels(systems[:1], work)):
                found[each.name] = _acceptance(_levels((each,), work), source, **stated)
        elif rank and widths:
            found[each.name] = state_acceptance(
                survival=tree_survival(rank, widths), depth=len(widths), source="published"
            )
    return found


def _acceptance(depth: FloatArray, source: Source, **stated: ArrayLike | None) -> Acceptance:
    """The one statement of acceptance; an array of accept lengths is one for each point of depth's shape."""
    depths, length = depth.astype(np.int64), stated.get("accept_length")
    if length is not None and np.ndim(length):
        stated["accept_length"], depths = np.broadcast_arrays(length, depths)
    return state_acceptance(depth=depths, source=source, **stated)


def _windowed(depth: FloatArray, source: Source, length: ArrayLike) -> Acceptance:
    """The acceptance of windowed drafts. Raises `InputError` (``--windowed-accept-length``)."""
    try:
        return _acceptance(depth, source, accept_length=length)
    except InputError as error:
        raise InputError("--windowed-accept-length", error.problem, error.hint) from None
