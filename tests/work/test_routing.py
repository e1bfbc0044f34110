"""Distinct experts under skewed popularity and over ranks, against draws."""

from __future__ import annotations

import numpy as np
import pytest

import wmtp_sim
from wmtp_sim.errors import InputError
from wmtp_sim.spec.model import Moe
from wmtp_sim.spec.parallel import Layout
from wmtp_sim.spec.precision import GroupFormats
from wmtp_sim.work.layers import Pass, experts
from wmtp_sim.work.routing import _chances, busiest_rank, expert_union

MOE = Moe(experts=256, top_k=8, inner=512, gated=True)


def drawn(skew: float, rows: int, draws: int = 400) -> float:
    """Mean distinct experts of rows that draw 8 distinct ones each, popular ones first (Gumbel top-k)."""
    rng = np.random.default_rng(7)
    weights = -skew * np.log(np.arange(1, 257))
    scores = weights + rng.gumbel(size=(draws, rows, 256))
    chosen = np.argpartition(-scores, 8, axis=-1)[..., :8]
    return float(np.mean([len(np.unique(one)) for one in chosen]))


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_popular_experts_are_hit_more_than_once(skew: float, rows: int) -> None:
    assert expert_union(MOE, 1, rows, 0.0, skew) == pytest.approx(drawn(skew, rows), rel=0.05)


def test_skew_only_takes_away() -> None:
    unions = [float(expert_union(MOE, 4, 7, 0.3, skew)) for skew in (0.0, 0.3, 0.6, 1.0, 2.0)]
    assert unions == sorted(unions, reverse=True)
    assert expert_union(MOE, 1, 1, 0.0, 1.2) == pytest.approx(8.0)
    assert sum(_chances(256, 8.0, 1.5)) == pytest.approx(8.0)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("union", [16, 60, 200])
def test_the_busiest_of_several_ranks(ranks: int, union: int) -> None:
    rng = np.random.default_rng(3)
    placed = [np.bincount(rng.permutation(256)[:union] % ranks, minlength=ranks).max() for _ in range(2000)]
    assert busiest_rank(float(union), 256, ranks) == pytest.approx(np.mean(placed), rel=0.08)


def test_the_busiest_rank_holds_no_more_than_there_is() -> None:
    assert busiest_rank(256.0, 256, 8) == 32
    assert busiest_rank(1.0, 256, 8) <= 1
    assert busiest_rank(50.0, 256, 1) == 50


def test_whole_experts_read_more_than_parts_of_each() -> None:
    shapes = [
        Pass(batch=4.0, rows=4.0, attended=0.0, kv_bytes=2.0, state_bytes=4.0, layout=Layout(8, expert_groups=groups))
        for groups in (1, 2, 8)
    ]
    parts, mixed, whole = (experts(MOE, shape, 2048, GroupFormats()) for shape in shapes)
    assert float(parts.weights) < float(mixed.weights) < float(whole.weights) < 2 * float(parts.weights)
    union = float(expert_union(MOE, 4.0, 4.0, 0.0))
    assert float(mixed.weights) / float(parts.weights) == pytest.approx(busiest_rank(union, 256, 2) / (union / 2))
    assert mixed.geometry == (2048, MOE.inner / 4, MOE.experts / 2, 2.0)
    assert parts.geometry == (2048, MOE.inner / 8, MOE.experts, 2.0)
    assert whole.geometry == (2048, MOE.inner, MOE.experts / 8, 2.0)


def test_refusals() -> None:
    with pytest.raises(InputError, match="--routing-skew: 5 is not in"):
        wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", context=4096, routing_skew=5)


def test_stated_routing_changes_the_step() -> None:
    common = {"context": 4096, "depth": 6, "engine": "vllm"}
    plain = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", **common)
    skewed = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", routing_skew=1.0, **common)
    assert skewed.steps["native"].seconds < plain.steps["native"].seconds
    assert skewed.base_step.seconds == pytest.approx(plain.base_step.seconds)


@pytest.mark.parametrize(
    ("stated", "terms"),
    [
        ({"routing_skew": 1.0}, ("draft", "verify", "extend")),
        ({"overlap": 0.5}, ("verify", "extend")),
        ({"expert_parallel": True}, ("draft", "verify", "extend")),
    ],
)
def test_routing_is_the_drafters_too(stated: dict[str, float | bool], terms: tuple[str, ...]) -> None:
    """The draft head of this model has experts of its own: 256, like a layer of the target."""
    common = {"context": 4096, "depth": 3, "batch": 8, "tp": 4, "engine": "ideal"}
    plain, routed = (
        wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", **common, **more).steps["native"] for more in ({}, stated)
    )
    moved = {
        entry.term
        for entry, other in zip(plain.entries, routed.entries, strict=True)
        if entry.operation.kernel == "moe" and entry.operation.weights != pytest.approx(other.operation.weights)
    }
    assert moved == set(terms)
