"""Bytes that a rank sends over its link: closed forms, and what collectives are made of one another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmtp_sim.work.collectives import all_gather, all_reduce, all_to_all, combine, dispatch, reduce_scatter

PAYLOADS, RANKS = st.floats(1.0, 1e12), st.integers(1, 72)


@given(PAYLOADS, RANKS)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(payload: float, ranks: int) -> None:
    halves = reduce_scatter(payload, ranks).bytes + all_gather(payload, ranks).bytes
    assert all_reduce(payload, ranks).bytes == pytest.approx(halves)


@given(PAYLOADS, RANKS)
def test_what_stays_at_home_crosses_no_link(payload: float, ranks: int) -> None:
    """Of an all-to-all and of a gathered whole, one part in n is the rank's own."""
    assert all_to_all(payload, ranks).bytes + payload / ranks == pytest.approx(payload)
    assert all_gather(payload, ranks).bytes + payload / ranks == pytest.approx(payload)
    assert all_reduce(payload, 1).bytes == 0


@given(st.integers(0, 4096), st.integers(1, 16), st.integers(1, 128), RANKS)
def test_deepep_sends_every_token_to_each_of_its_experts(tokens: int, top_k: int, blocks: int, ranks: int) -> None:
    """A copy goes out in fp8 with a scale for each 128 channels and 16 bytes of header, and comes back in bf16."""
    hidden, away = 128 * blocks, tokens * top_k * (ranks - 1) / ranks
    assert dispatch(tokens, top_k, hidden, ranks).bytes == pytest.approx(away * (128 * blocks + 4 * blocks + 16))
    assert combine(tokens, top_k, hidden, ranks).bytes == pytest.approx(away * 2 * hidden)


def test_a_copy_of_deepseek_v3() -> None:
    """H200, 1 token, 8 of 256 experts: 4.97808 GB/s for 11.905 us are 59,264 bytes (aiconfigurator-core 0.12.0)."""
    sent = dispatch(1, 8, 7168, 8).bytes * 8 / 7
    assert sent == pytest.approx(4.9780764384712315e9 * 11.905e-6, rel=1e-12)
    back = combine(1, 8, 7168, 8).bytes * 8 / 7
    assert back == pytest.approx(9.133391733694353e9 * 12.557e-6, rel=1e-12)


def test_a_kind_is_a_variant_and_its_geometry_the_ranks() -> None:
    kinds = {
        "": all_reduce(8.0, 4),
        "all_gather": all_gather(8.0, 4),
        "reduce_scatter": reduce_scatter(8.0, 4),
        "all_to_all": all_to_all(8.0, 4),
    }
    assert all(op.variant == name and op.geometry == (4.0,) and op.kernel == "collective" for name, op in kinds.items())
    both = dispatch(1, 8, 128, 4), combine(1, 8, 128, 4)
    assert {(op.name, op.variant) for op in both} == {
        ("collective.dispatch", "deepep"),
        ("collective.combine", "deepep"),
    }
