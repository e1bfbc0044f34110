"""An estimate as one JSON document, ``wmtp-estimate/1``: seconds, bytes, tokens; arrays where ranges were asked for.

Arrays have one axis per ranged input, in the order of ``axes``. Infinity is not JSON: unbounded counts are null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmtp_sim.decide.choice import offered
from wmtp_sim.decide.estimate import Estimate, StepCost
from wmtp_sim.decide.memory import Memory
from wmtp_sim.decide.verdict import WORDS, speedup, verdict_of
from wmtp_sim.decide.warnings import warnings
from wmtp_sim.machine.profile import Profile
from wmtp_sim.render.layout import layout_document
from wmtp_sim.render.roofline import kernel_name
from wmtp_sim.step.compose import Entry
from wmtp_sim.step.plan import TERMS

SCHEMA = "wmtp-estimate/1"
#: Figures of a policy's result.
POLICY_FIGURES = ("max_speedup", "break_even_accept_length", "unwinnable", "tokens_per_s", "tokens_per_s_total")
#: Of memory, what is the same at every point, and what each point has for itself.
MEMORY_OF_ALL_POINTS = ("budget_bytes", "reserve_bytes", "weights_bytes", "vision_bytes")
MEMORY_OF_A_POINT = (
    *("kv_bytes", "draft_kv_bytes", "draft_kv_share", "state_bytes", "logits_bytes", "total_bytes", "fits"),
    *("max_context", "max_batch"),
)
#: What may be a range.
INPUTS = ("context", "depth", "window", "sink", "batch")


def estimate_document(estimate: Estimate, operations: bool = False) -> dict[str, Any]:
    """Everything an estimate knows. ``operations`` adds each step's operations (single points only)."""
    show = _Shower(estimate)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "model": estimate.model.name,
        "gpu": estimate.machine.gpu.name,
        "engine": f"{estimate.engine.name}@{estimate.engine.version}",
        "profile": _profile(estimate.machine.profile),
        "drafter": estimate.drafter.name if estimate.drafter else None,
        "deployment": _deployment(estimate),
        "axes": _axes(estimate),
        "acceptance": _acceptance(estimate, show),
        "base": _base(estimate, show),
        "idle": None if estimate.idle is None else _cost(estimate.idle, show),
        "policies": {name: _policy(estimate, name, show) for name in estimate.policies},
        "verdict": verdict_document(estimate),
        "native_loses": _losing(estimate, show),
        "memory": _memory(estimate, show),
        "warnings": [{"id": w.id, "text": w.text} for w in warnings(estimate)],
    }
    if operations and show.full == ():
        document["operations"] = {
            name: [_operation(e, estimate) for e in step.entries] for name, step in estimate.all_steps.items()
        }
    return document


def _profile(profile: Profile) -> dict[str, str]:
    """Which profile, how sure it is, and who measured it where that was not `wmtp calibrate`."""
    return {"name": profile.name, "status": profile.status} | ({"by": profile.by} if profile.by else {})


class _Shower:
    """Turns arrays into JSON values: a number for a single point, nested lists of the whole grid otherwise.

    The grid is that of all points: the workload's and the acceptance's.
    """

    def __init__(self, estimate: Estimate) -> None:
        lengths = estimate.accept_length
        self.full = np.broadcast_shapes(estimate.work.shape, () if lengths is None else lengths.shape)
        self.shape = tuple(length for length in self.full if length != 1)

    def __call__(self, values: ArrayLike | None) -> Any:
        if values is None:
            return None
        whole = np.broadcast_to(np.asarray(values), self.full).reshape(self.shape)
        if whole.dtype in (bool, object) or np.isfinite(whole).all():
            return whole.tolist()
        bounded = whole.astype(object)
        bounded[~np.isfinite(whole)] = None
        return bounded.tolist()


def _deployment(estimate: Estimate) -> dict[str, Any]:
    work = estimate.work
    return {
        **{name: _range(getattr(work, name)) for name in INPUTS},
        "kv_element_bytes": work.kv_bytes,
        "draft_kv_element_bytes": work.draft_kv_bytes,
        "overlap": work.overlap,
        "routing_skew": work.skew,
        **layout_document(work.layout),
    }


def _range(array: np.ndarray) -> Any:
    whole = array.astype(np.int64).ravel().tolist()
    return whole[0] if len(whole) == 1 else whole


def _axes(estimate: Estimate) -> dict[str, list[int]]:
    """Ranged inputs in axis order, as far as each has an axis of its own."""
    ranged = [(name, getattr(estimate.work, name)) for name in INPUTS]
    found = [(np.argmax(array.shape), name, array) for name, array in ranged if array.size > 1]
    return {name: _range(array) for _, name, array in sorted(found, key=lambda item: item[0])}


def _acceptance(estimate: Estimate, show: _Shower) -> dict[str, Any] | None:
    if estimate.acceptance is None:
        return None
    return {
        "stated_as": estimate.acceptance.kind,
        "source": estimate.acceptance.source,
        "accept_length": show(estimate.accept_length),
    }


def _cost(cost: StepCost, show: _Shower) -> dict[str, Any]:
    return {
        "step_s": show(cost.step_s),
        "interval_s": [show(cost.low_s), show(cost.high_s)],
        "speed_of_light_s": show(cost.bound_s),
        "terms": {name: show(cost.terms[name]) for name in TERMS},
    }


def _base(estimate: Estimate, show: _Shower) -> dict[str, Any]:
    rate = estimate.base_tokens_per_s
    total = rate * estimate.work.batch
    return {**_cost(estimate.base, show), "tokens_per_s": show(rate), "tokens_per_s_total": show(total)}


def verdict_document(estimate: Estimate) -> dict[str, Any] | None:
    """Of the best policy that the release has and memory holds, at each point; null without an acceptance."""
    if estimate.accept_length is None or not estimate.policies:
        return None
    found, show = verdict_of(estimate), _Shower(estimate)
    return {
        "word": show(_named(found.word, WORDS, found.word >= 0)),
        "policy": show(_named(found.policy, found.names, found.word >= 0)),
        "speedup": show(found.gain.expected),
        "speedup_interval": [show(found.gain.low), show(found.gain.high)],
        "never_measured": list(found.unmeasured),
    }


def _named(places: NDArray[np.int64], names: Sequence[str], there: NDArray[np.bool_]) -> NDArray[Any]:
    """Names by their places; None where there is none."""
    return np.asarray(np.array([*names, None], dtype=object)[np.where(there, places, -1)], dtype=object)


def _policy(estimate: Estimate, policy: str, show: _Shower) -> dict[str, Any]:
    result, gain = estimate.policies[policy], speedup(estimate, policy)
    own_depth = np.any(result.depth != estimate.work.depth)  # then the deployment's depth is not this system's
    return {
        "in_engine": offered(estimate, policy),
        **({"drafted_tokens": show(result.depth)} if own_depth else {}),
        **_cost(result.cost, show),
        **{name: show(getattr(result, name)) for name in ("margin", "accept_length", "speedup")},
        "speedup_interval": None if gain is None else [show(gain.low), show(gain.high)],
        **{name: show(getattr(result, name)) for name in POLICY_FIGURES},
    }


def _losing(estimate: Estimate, show: _Shower) -> dict[str, Any] | None:
    """The depth from which the plainest system loses (null: at none searched), for one stated depth and acceptance."""
    lengths = estimate.accept_length
    if not estimate.systems or estimate.work.depth.size > 1 or (lengths is not None and lengths.size > 1):
        return None
    losing = estimate.losing_depth()
    found = np.where(losing.depth > 0, losing.depth, np.inf)
    whole = np.broadcast_to(found, show.full)
    from_depth = show(whole if not np.isfinite(whole).all() else whole.astype(np.int64))
    return {"from_depth": from_depth, "searched_to_depth": losing.searched, "acceptance": losing.basis}


def _memory(estimate: Estimate, show: _Shower) -> dict[str, Any]:
    """The plainest system's arrangement, or the target's alone, then every arrangement."""
    plainest = estimate.systems[0].name if estimate.systems else "base"
    asked = estimate.memory[plainest]
    every = {name: _arrangement(memory, show) for name, memory in estimate.memory.items()}
    return {**_arrangement(asked, show), "arrangements": every}


def _arrangement(memory: Memory, show: _Shower) -> dict[str, Any]:
    everywhere = {name: getattr(memory, name) for name in MEMORY_OF_ALL_POINTS}
    return everywhere | {name: show(getattr(memory, name)) for name in MEMORY_OF_A_POINT}


def _operation(entry: Entry, estimate: Estimate) -> dict[str, Any]:
    operation = entry.operation
    repeats = float(operation.repeats)
    return {
        "term": entry.term,
        "name": operation.name,
        "kernel": kernel_name(operation.kernel, operation.variant),
        "executions": repeats,
        "seconds": float(entry.timing.seconds),
        "bytes": float(operation.bytes) * repeats,
        "flops": float(operation.flops) * repeats,
        "roof": estimate.machine.binding_roof(operation),
    }
