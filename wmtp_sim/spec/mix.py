"""Which contexts and batches a deployment serves, and how often."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmtp_sim.errors import InputError
from wmtp_sim.spec.workload import FloatArray


@dataclass(frozen=True, eq=False)
class Mix:
    """Contexts and batches, each with its share of the tokens that are generated; the two are independent.

    Attributes:
        contexts, batches: ascending, no value twice; shapes [C] and [B], in tokens and sequences.
        shares: [C, B], at least 0, sum 1.
    """

    contexts: FloatArray
    batches: FloatArray
    shares: FloatArray

    @classmethod
    def of(
        cls,
        context: ArrayLike,
        batch: ArrayLike = 1,
        context_shares: ArrayLike | None = None,
        batch_shares: ArrayLike | None = None,
    ) -> Mix:
        """Shares may be any positive numbers (0.5, or 50); without them all values are equally frequent.

        Raises:
            InputError: ``--context`` or ``--batch``, for a value given twice or shares that are none.
        """
        contexts, of_contexts = _weighted("--context", context, context_shares)
        batches, of_batches = _weighted("--batch", batch, batch_shares)
        return cls(contexts, batches, of_contexts[:, np.newaxis] * of_batches)

    def within(self, usable: NDArray[np.bool_]) -> Mix | None:
        """The mix without the cells [C, B] that cannot be used, the others in their proportions; None if none can."""
        kept = np.where(usable, self.shares, 0.0)
        rows, columns = kept.any(axis=1), kept.any(axis=0)
        if not rows.any():
            return None
        return Mix(self.contexts[rows], self.batches[columns], kept[np.ix_(rows, columns)] / kept.sum())

    def contexts_up_to(self, longest: ArrayLike) -> FloatArray:
        """All contexts scaled alike, so that the longest becomes ``longest`` [...]: whole tokens [..., C]."""
        return _scaled(self.contexts, longest)

    def batches_up_to(self, largest: ArrayLike) -> FloatArray:
        """All batches scaled alike, so that the largest becomes ``largest`` [...]: whole sequences [..., B]."""
        return _scaled(self.batches, largest)


def _scaled(values: FloatArray, largest: ArrayLike) -> FloatArray:
    factor = np.asarray(largest, dtype=float)[..., np.newaxis] / values[-1]
    return np.asarray(np.maximum(np.rint(values * factor), 1.0))


def _weighted(flag: str, values: ArrayLike, shares: ArrayLike | None) -> tuple[FloatArray, FloatArray]:
    found = np.atleast_1d(np.asarray(values, dtype=float))
    weights = np.ones_like(found) if shares is None else np.atleast_1d(np.asarray(shares, dtype=float))
    if found.ndim != 1 or weights.shape != found.shape:
        raise InputError(flag, f"{weights.size} shares for {found.size} values", f"one each: {flag} 8K:0.5,64K:0.5")
    good = np.isfinite(weights) & (weights > 0)
    if not good.all():
        raise InputError(flag, f"{weights[~good][0]:g} is not a share", "positive numbers; they need not sum to 1")
    order = np.argsort(found)
    found, weights = found[order], weights[order]
    if (found[1:] == found[:-1]).any():
        raise InputError(flag, f"{found[1:][found[1:] == found[:-1]][0]:g} is given twice", "add its shares up")
    return found, weights / weights.sum()
