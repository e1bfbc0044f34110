"""Acceptance as arithmetic: the accept length at any depth, and the rate that explains one. Everything broadcasts.

Rates and accept lengths are pure numbers, depths are tokens drafted per step. The closed forms are those of
Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding", arXiv 2211.17192.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from wmtp_sim.errors import InputError
from wmtp_sim.spec.acceptance import (
    Acceptance,
    AcceptLength,
    ConditionalRates,
    ConstantRate,
    FloatArray,
    IntArray,
    SurvivalRates,
    as_accept_length,
    as_depth,
    as_numbers,
    as_positions,
    as_rates,
    as_survival,
)
from wmtp_sim.spec.system import Speculation, System

#: Halvings of a bracket within [0, 1]: alpha is found to 2**-53, half the spacing of floats just below 1.
_BISECTIONS = 53


def accept_length(acceptance: Acceptance, depth: ArrayLike) -> FloatArray:
    """Mean tokens committed per step at each depth, bonus token included: AL = 1 + S_1 + ... + S_depth.

    Its shape is the depths' broadcast with the acceptance's (for rates, their shape less the last axis).

    Raises:
        InputError: by the acceptance's flag, where it does not cover a depth; an accept length covers the depth
            it was stated for, and 0.
    """
    wanted = as_depth(depth)
    acceptance.require_depth(wanted)
    match acceptance:
        case AcceptLength():
            return np.asarray(np.where(wanted == 0, 1.0, acceptance.accept_length))
        case ConditionalRates():
            return _first_survivors(survival_from_conditional(acceptance.rates), wanted)
        case SurvivalRates():
            return _first_survivors(acceptance.rates, wanted)
        case ConstantRate():
            return expected_length_constant(acceptance.alpha, wanted)


def accepted(acceptance: Acceptance, speculation: Speculation, depth: ArrayLike, context: ArrayLike) -> FloatArray:
    """Accept length of a system where the deployment's depth and context are these: what its rules make of acceptance.

    Raises `InputError` as `accept_length` does.
    """
    rule = speculation.system
    stated = scaled(acceptance, 1.0, rule.verify.shift) if rule.verify.shift else acceptance
    length = accept_length(stated, np.asarray(speculation.levels(np.asarray(depth, dtype=float))).astype(np.int64))
    return lasting(length, rule, context)


def lasting(length: ArrayLike, system: System, context: ArrayLike) -> FloatArray:
    """An accept length at a context, and less what a choice by experts costs: 1 + (AL - 1) times what remains."""
    length = np.asarray(length, dtype=float)
    if not system.changes_acceptance:
        return length
    kept = system.acceptance.lasting(np.asarray(context, dtype=float)) * (1.0 - system.experts.accept_cost)
    return np.asarray(1.0 + (length - 1.0) * kept)


def tree_survival(rank: Sequence[float], widths: Sequence[int]) -> FloatArray:
    """P(some node of a level is accepted), by level, of a tree whose levels hold the most probable nodes.

    ``rank`` holds P(the r-th best token is right). The sum over levels is the sum over nodes of the product of the
    rates along their paths (Sequoia, arXiv 2402.12374), and the accept length is that and 1.
    """
    paths = np.ones(1)
    found: list[float] = []
    for width in widths:
        paths = np.sort(np.outer(paths, rank).ravel())[::-1][:width]
        found.append(min(float(paths.sum()), found[-1] if found else 1.0))
    return np.array(found)


def at_depth(acceptance: Acceptance, depth: ArrayLike) -> Acceptance:
    """An acceptance that answers at ``depth``, deriving an accept length stated at another depth.

    A sum does not tell its terms. The derivation ASSUMES one constant conditional rate: the alpha that explains
    the stated accept length, read off at the new depth. Where real rates fall with position, a deeper reading is
    optimistic and a shallower one pessimistic; where they rise, the reverse. The result is marked ``assumed``,
    whatever the source of the statement, and keeps the stated value at the stated depth.

    Rates, and an accept length already known at every ``depth``, come back as they are.

    Raises:
        InputError: rates that do not cover ``depth``, or an accept length stated at depth 0, which says nothing.
    """
    wanted = as_depth(depth)
    if not isinstance(acceptance, AcceptLength):
        acceptance.require_depth(wanted)
        return acceptance
    if acceptance.known_at(wanted).all():
        return acceptance
    alpha = alpha_from_accept_length(acceptance.accept_length, acceptance.depth)
    curve = expected_length_constant(alpha, wanted)
    length = np.where(wanted == acceptance.depth, acceptance.accept_length, curve)
    return AcceptLength(length, np.broadcast_to(wanted, length.shape), source="assumed")


def scaled(acceptance: Acceptance, factor: ArrayLike, shift: float = 0.0) -> ConstantRate | ConditionalRates:
    """Every conditional rate times ``factor`` [...] and ``shift`` more, at most 1: right less or more often.

    With factor 1 it is the acceptance itself, as rates, that answer at any depth they cover. An accept length becomes
    one constant rate, which is ASSUMED as in `at_depth`. Rates [..., positions] follow the factor's shape.

    Raises:
        InputError: an accept length stated at depth 0, which says nothing.
    """
    times = np.asarray(factor, dtype=np.float64)
    match acceptance:
        case AcceptLength():
            alpha = alpha_from_accept_length(acceptance.accept_length, acceptance.depth)
            return ConstantRate(np.minimum(alpha * times + shift, 1.0), source="assumed")
        case ConstantRate():
            return ConstantRate(np.minimum(acceptance.alpha * times + shift, 1.0), acceptance.source)
        case ConditionalRates():
            rates = acceptance.rates
        case SurvivalRates():
            rates = conditional_from_survival(acceptance.rates)
    return ConditionalRates(np.minimum(rates * times[..., np.newaxis] + shift, 1.0), acceptance.source)


def survival_from_conditional(conditional: ArrayLike) -> FloatArray:
    """S_j = a_1 ... a_j along the last axis [..., positions]. Raises `InputError` (``--conditional``)."""
    return np.asarray(np.cumprod(as_positions(ConditionalRates.flag, conditional), axis=-1), dtype=np.float64)


def conditional_from_survival(survival: ArrayLike) -> FloatArray:
    """a_j = S_j / S_(j-1) along the last axis [..., positions]. Raises `InputError` (``--survival``).

    A position that is never reached (S_(j-1) = 0) has no conditional rate; it reads 0, which keeps S_j = 0.
    """
    after = as_survival(SurvivalRates.flag, survival)
    before = np.concatenate([np.ones_like(after[..., :1]), after[..., :-1]], axis=-1)
    reached = before > 0
    return np.asarray(np.where(reached, after / np.where(reached, before, 1.0), 0.0))


def expected_length_constant(alpha: ArrayLike, depth: ArrayLike) -> FloatArray:
    """(1 - alpha^(depth+1)) / (1 - alpha): AL when every position is accepted at rate alpha. Broadcasts.

    Exactly 1 at alpha 0 or depth 0, exactly depth + 1 at alpha 1, and accurate to a few ulp between. Raises
    `InputError` (``--alpha``, ``--depth``).
    """
    return _geometric_sum(as_rates(ConstantRate.flag, alpha), as_depth(depth))


def alpha_from_accept_length(accept_length: ArrayLike, depth: ArrayLike) -> FloatArray:
    """The constant rate whose AL at ``depth`` is ``accept_length``: inverts `expected_length_constant`. Broadcasts.

    AL rises with alpha and 1 - 1/AL <= alpha <= AL - 1, so bisection from there finds it to within 2**-53 (and the
    rounding of AL itself); exactly 0 at AL 1, exactly 1 at AL depth + 1.

    Raises:
        InputError: ``--accept-length`` unless 1 <= AL <= depth + 1; ``--depth`` for 0, where any alpha gives AL 1.
    """
    drafted = as_depth(depth)
    if np.any(drafted == 0):
        raise InputError("--depth", "0 drafts nothing, and AL 1 there fits any alpha", "a depth of at least 1")
    length = as_accept_length(accept_length, drafted)
    low, high = 1 - 1 / length, np.minimum(length - 1, 1.0)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        short = _geometric_sum(middle, drafted) < length
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    inside = np.where(length == 1, 0.0, (low + high) / 2)
    return np.asarray(np.where(length == drafted + 1, 1.0, inside))


def speedup_closed_form(alpha: ArrayLike, depth: ArrayLike, draft_cost_ratio: ArrayLike) -> FloatArray:
    """Leviathan's wall-time factor (1 - alpha^(g+1)) / ((1 - alpha)(g c + 1)). Broadcasts.

    ``depth`` is g, ``draft_cost_ratio`` c: the time of one draft forward over that of one base step. It supposes that
    verifying depth + 1 rows takes as long as one base step, and that nothing else takes time.

    Raises:
        InputError: ``--alpha``, ``--depth``, or ``draft_cost_ratio`` unless finite and at least 0.
    """
    drafted = as_depth(depth)
    ratio = as_numbers("draft_cost_ratio", draft_cost_ratio)
    possible = np.isfinite(ratio) & (ratio >= 0)
    if not possible.all():
        hint = "draft time over base-step time, at least 0"
        raise InputError("draft_cost_ratio", f"{ratio[~possible][0]} is not a ratio of times", hint)
    return np.asarray(expected_length_constant(alpha, drafted) / (drafted * ratio + 1))


def _first_survivors(survival: FloatArray, depth: IntArray) -> FloatArray:
    """1 + the first ``depth`` survivals [..., positions]: one running sum, one look-up per grid point."""
    start = np.ones_like(survival[..., :1])
    lengths = np.cumsum(np.concatenate([start, survival], axis=-1), axis=-1)
    shape = np.broadcast_shapes(lengths.shape[:-1], depth.shape)
    table = np.broadcast_to(lengths, (*shape, lengths.shape[-1]))
    index = np.broadcast_to(depth, shape)[..., np.newaxis]
    return np.take_along_axis(table, index, axis=-1)[..., 0]


def _geometric_sum(alpha: FloatArray, depth: IntArray) -> FloatArray:
    """Sum of alpha^j for j = 0..depth. expm1 keeps the digits that 1 - alpha^(depth+1) loses near alpha 1."""
    terms = depth + 1.0
    inside = (alpha > 0) & (alpha < 1)
    rate = np.where(inside, alpha, 0.5)
    total = -np.expm1(terms * np.log(rate)) / (1 - rate)
    ends = np.where(alpha > 0, terms, 1.0)
    return np.asarray(np.clip(np.where(inside, total, ends), 1.0, terms))
