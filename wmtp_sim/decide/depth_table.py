"""Which depth at which batch and context, for engines that change it while they run, without flapping.

The rule: keep the current depth until another gives at least `MARGIN` more tokens/s, then take the best. After a switch
the new depth is the best there, and the old one returns only once it is `MARGIN` better again: between the two lies a
band of contexts in which nothing switches, whatever way a request walks through it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wmtp_sim.decide.choice import plainest
from wmtp_sim.decide.options import Option, OptionSpace, Priced
from wmtp_sim.decide.thresholds import held_intervals
from wmtp_sim.spec.acceptance import Acceptance
from wmtp_sim.spec.mix import Mix
from wmtp_sim.spec.workload import FloatArray

#: How much more another depth must give before an engine switches to it.
MARGIN = 0.03
#: Contexts per doubling at which bands are looked for; their ends are then found to the token.
PER_DOUBLING = 8
#: Parts that an interval is cut into while the end of a band is narrowed down.
PARTS = 16

Interval = tuple[int, int]


@dataclass(frozen=True)
class Row:
    """One batch's bands: closed intervals of context, in tokens.

    ``best``: where each depth gives most. ``keep``: where it is kept once an engine drafts so deep.
    """

    batch: int
    best: dict[int, list[Interval]]
    keep: dict[int, list[Interval]]

    def next_depth(self, current: int, context: int) -> int:
        """The depth to draft at, coming from ``current``, which stays where no band is (nothing fits there)."""
        if any(low <= context <= high for low, high in self.keep.get(current, [])):
            return current
        found = [depth for depth, bands in self.best.items() if any(low <= context <= high for low, high in bands)]
        return found[0] if found else current


@dataclass(frozen=True)
class DepthTable:
    """Depths for one draft KV, which an engine cannot change while it runs.

    Attributes:
        draft_kv: policy, window and sink, as the option of the deepest depth.
        depths: that the engine may switch between, 0 first; [K]. An idle step is what depth 0 takes.
        contexts, batches: [C], [B].
        depth: the best at each cell; [C, B].
        tokens_per_s: of the whole batch there; [C, B].
        by_batch: the one best depth of each batch, contexts mixed as stated; [B].
        switching, batch_only: tokens/s over the mix with ``depth`` and with ``by_batch``.
        rows: bands of each batch. A batch between two listed ones has the larger one's.
    """

    draft_kv: Option
    depths: tuple[int, ...]
    contexts: FloatArray
    batches: FloatArray
    depth: NDArray[np.int64]
    tokens_per_s: FloatArray
    by_batch: NDArray[np.int64]
    switching: float
    batch_only: float
    rows: tuple[Row, ...]

    @property
    def batch_only_loss(self) -> float:
        """Share of tokens/s that is lost where an engine looks up the batch alone; at least 0."""
        return 1.0 - self.batch_only / self.switching

    @property
    def ranges(self) -> tuple[tuple[int, int, int], ...]:
        """First batch, last batch and depth of ``by_batch``, from 1 without gaps, neighbours of one depth as one."""
        found: list[tuple[int, int, int]] = []
        for batch, depth in zip(self.batches.astype(int).tolist(), self.by_batch.tolist(), strict=True):
            if found and found[-1][2] == depth:
                found[-1] = (found[-1][0], batch, depth)
            else:
                found.append((found[-1][1] + 1 if found else 1, batch, depth))
        return tuple(found)

    def row(self, batch: int) -> Row:
        """The bands of a batch: those of the smallest listed one that is not below it, else of the largest."""
        return self.rows[min(int(np.searchsorted(self.batches, batch)), len(self.rows) - 1)]

    def next_depth(self, current: int, context: int, batch: int) -> int:
        """The depth to draft at, coming from ``current``."""
        return self.row(batch).next_depth(current, context)


def depth_table(
    space: OptionSpace, mix: Mix, native: Acceptance, windowed: Acceptance, ends: Interval
) -> DepthTable | None:
    """The draft KV and depths that give most where depth may change by batch and context; None where none fits.

    Memory is that of the deepest depth at every cell of the mix. ``ends`` are the contexts between which bands are
    looked for.
    """
    found: list[tuple[float, _Switching, FloatArray]] = []
    for pair in sorted(space.windows, reverse=True):
        one_window = replace(space, windows=(pair,))
        priced = one_window.priced(mix.contexts, mix.batches)
        for each in space.deployment.systems:
            switching = _Switching.of(one_window, each.name, priced, one_window.lengths(native, windowed), mix)
            if switching is not None:
                rates = switching.rates(priced)
                found.append((_over(mix, rates.max(axis=0)), switching, rates))
    if not found:
        return None
    best = int(plainest([most for most, _, _ in found]))
    most, switching, rates = found[best]
    depths = np.array(switching.depths)
    by_batch = (mix.shares / rates).sum(axis=1).argmin(axis=0)
    chosen = np.broadcast_to(by_batch, (1, *mix.shares.shape))
    return DepthTable(
        draft_kv=switching.space.options[switching.places[-1]],
        depths=switching.depths,
        contexts=mix.contexts,
        batches=mix.batches,
        depth=depths[rates.argmax(axis=0)],
        tokens_per_s=rates.max(axis=0) * mix.batches,
        by_batch=depths[by_batch],
        switching=most,
        batch_only=_over(mix, np.take_along_axis(rates, chosen, axis=0)[0]),
        rows=_rows(switching, mix.batches, ends),
    )


def _over(mix: Mix, rates: FloatArray) -> float:
    """Tokens/s over a mix of what one request gets at each cell [C, B]."""
    return float(1.0 / np.sum(mix.shares / (rates * mix.batches)))


@dataclass(frozen=True)
class _Switching:
    """Options of one draft KV: places [K - 1] in the space's options, depths, 0 first [K], and accept lengths [O]."""

    space: OptionSpace
    places: NDArray[np.int64]
    depths: tuple[int, ...]
    lengths: FloatArray

    @classmethod
    def of(cls, space: OptionSpace, policy: str, priced: Priced, lengths: FloatArray, mix: Mix) -> _Switching | None:
        """The depths whose memory fits at every cell of the mix; None where no drafter does."""
        everywhere = (priced.fits | (mix.shares == 0)).all(axis=(-2, -1))
        ours = np.array([option.policy == policy for option in space.options])
        places = np.flatnonzero(ours & space.allowed & everywhere)
        if not places.size:
            return None
        depths = (0, *(space.options[place].depth for place in places))
        return cls(space, places, depths, lengths)

    def rates(self, priced: Priced) -> FloatArray:
        """Tokens/s of one request at every depth; [..., K, C, B]."""
        drafting = (priced.lengths(self.lengths) / priced.seconds)[..., self.places, :, :]
        return np.concatenate([1.0 / priced.idle_s[..., np.newaxis, :, :], drafting], axis=-3)

    def flags(self, contexts: FloatArray, batches: FloatArray) -> NDArray[np.bool_]:
        """Whether each depth is the best, and whether it is kept; [..., 2, K, C, B]. Neither where nothing fits."""
        priced = self.space.priced(contexts, batches)
        rates = self.rates(priced)
        fits = priced.fits[..., self.places[-1:], :, :]
        best = rates.argmax(axis=-3)[..., np.newaxis, :, :] == np.arange(len(self.depths))[:, np.newaxis, np.newaxis]
        kept = rates * (1 + MARGIN) > rates.max(axis=-3, keepdims=True)
        return np.stack([best & fits, kept & fits], axis=-4)


def _rows(switching: _Switching, batches: FloatArray, ends: Interval) -> tuple[Row, ...]:
    """Bands of every batch: seen on a grid of contexts, their ends then found to the token."""
    count = int(np.ceil(np.log2(ends[1] / ends[0]) * PER_DOUBLING)) + 2
    contexts = np.unique(np.rint(np.geomspace(*ends, count)))
    flags = switching.flags(contexts, batches)
    edges = np.argwhere(flags[:, :, 1:] != flags[:, :, :-1])  # kind, depth, context, batch
    last = _narrowed(switching, edges, contexts, batches)
    rows = []
    for column, batch in enumerate(batches.astype(int)):
        bands: list[dict[int, list[Interval]]] = [{}, {}]
        for kind, place in np.ndindex(2, len(switching.depths)):
            mine = (edges[:, 0] == kind) & (edges[:, 1] == place) & (edges[:, 3] == column)
            stops = [int(contexts[0]) - 1, *sorted(last[mine].astype(int).tolist()), int(contexts[-1])]
            intervals = held_intervals(bool(flags[kind, place, 0, column]), stops)
            if intervals:
                bands[kind][switching.depths[place]] = intervals
        rows.append(Row(int(batch), *bands))
    return tuple(rows)


def _narrowed(switching: _Switching, edges: NDArray[np.int64], contexts: FloatArray, batches: FloatArray) -> FloatArray:
    """The last context before each edge: all intervals are cut side by side until their ends are neighbours."""
    kinds, places, at, columns = edges.T
    each = np.arange(len(edges))
    low, high = contexts[at], contexts[at + 1]
    while (high - low > 1).any():
        cuts = np.rint(low[:, np.newaxis] + (high - low)[:, np.newaxis] * np.arange(PARTS + 1) / PARTS)
        flags = switching.flags(cuts, batches[columns][:, np.newaxis])[..., 0]  # edge, kind, depth, cut
        ours = flags[each, kinds, places]
        first = (ours != ours[:, :1]).argmax(axis=1)
        low, high = cuts[each, first - 1], cuts[each, first]
    return np.asarray(low)
