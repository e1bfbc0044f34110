"""How many experts some rows touch: routing independent or skewed, rows that share experts, experts over ranks."""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np

from wmtp_sim.spec.model import Moe
from wmtp_sim.work.operation import Array


def routed_experts(moe: Moe) -> float:
    """Real experts that one row touches (all of top-k unless the router may pick identity experts)."""
    return moe.top_k * moe.experts / (moe.experts + moe.zero_experts)


def expert_union(moe: Moe, batch: Array, rows: Array, overlap: float, skew: float = 0.0) -> Array:
    """Expected distinct routed experts of ``batch`` sequences with ``rows`` rows each.

    One row touches k experts; independent uniform rows touch E(1 - (1 - k/E)^rows). Consecutive tokens of one text
    share experts, so a sequence's extra experts shrink by ``overlap``; sequences are independent of one another.
    With zero experts k is the expected number of real ones.

    ``skew`` is the exponent s of experts' popularity, which goes as rank^-s: popular experts are hit more than once, so
    that fewer are touched. A row touches expert e with chance 1 - exp(-c p_e), with c such that the chances sum to k.
    """
    total, first = float(moe.experts), routed_experts(moe)
    if not skew:
        sequence = first + (1.0 - overlap) * (total * (1.0 - (1.0 - first / total) ** rows) - first)
        return total * (1.0 - (1.0 - sequence / total) ** batch)
    touched: Array = np.float64(0.0)
    for chance in _chances(moe.experts, first, skew):
        sequence = chance + (1.0 - overlap) * ((1.0 - (1.0 - chance) ** rows) - chance)
        touched = touched + (1.0 - (1.0 - sequence) ** batch)
    return touched


@cache
def _chances(experts: int, per_row: float, skew: float) -> tuple[float, ...]:
    """Chance that a row touches each expert, by popularity."""
    popularity = np.arange(1, experts + 1, dtype=float) ** -skew
    low, high = 0.0, 1e12
    for _ in range(200):  # bisection: the expected number of experts a row rises with the scale
        scale = (low + high) / 2.0
        low, high = (scale, high) if float(np.sum(-np.expm1(-scale * popularity))) < per_row else (low, scale)
    return tuple((-np.expm1(-scale * popularity)).tolist())


def overlap_of(moe: Moe, batch: float, rows: float, union: float) -> float:
    """The overlap at which ``batch`` sequences of ``rows`` rows touch ``union`` experts: inverts `expert_union`.

    0 where rows touch as many as independent ones or more, at most 0.99.
    """
    total, first = float(moe.experts), routed_experts(moe)
    sequence = total * (1.0 - max(1.0 - union / total, 0.0) ** (1.0 / batch))
    independent = total * (1.0 - (1.0 - first / total) ** rows)
    if independent <= first:
        return 0.0
    return float(min(max(1.0 - (sequence - first) / (independent - first), 0.0), 0.99))


def busiest_rank(union: Array, experts: int, ranks: int) -> Array:
    """Expected experts that the busiest of ``ranks`` reads, where each holds experts/ranks whole ones at random.

    A rank's share of ``union`` distinct experts is hypergeometric; the largest of ``ranks`` such shares lies about
    Blom's normal score above their mean. Never more than the rank holds, nor than there are.
    """
    if ranks == 1:
        return union
    share = 1.0 / ranks
    spread = union * share * (1.0 - share) * np.maximum(experts - union, 0.0) / max(experts - 1.0, 1.0)
    score = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    return np.minimum(union * share + score * np.sqrt(spread), np.minimum(union, experts * share))
