"""What a whole pass runs besides its layers, on one rank and on several."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from wmtp_sim.catalog.drafters import load_drafter
from wmtp_sim.catalog.models import load_model
from wmtp_sim.spec.drafter import Drafter
from wmtp_sim.spec.parallel import Layout
from wmtp_sim.work.collectives import all_gather, all_reduce
from wmtp_sim.work.layers import Pass, block_operations
from wmtp_sim.work.operation import Operation
from wmtp_sim.work.passes import draft_forward, target_forward

QWEN = load_model("qwen3-8b")
HIDDEN, VOCAB = 4096, 151_936


def shape(tp: int, rows: int = 5, batch: int = 2) -> Pass:
    return Pass(batch=batch, rows=rows, attended=1000, kv_bytes=2, state_bytes=4, layout=Layout(tp))


def eagle() -> Drafter:
    drafter = load_drafter("eagle", QWEN)
    assert drafter is not None
    return drafter


def collectives(operations: Iterable[Operation]) -> list[tuple[str, float, float]]:
    found = [op for op in operations if op.kernel == "collective"]
    return [(op.name, float(op.bytes), float(op.repeats)) for op in found]


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_a_target_adds_up_its_embedding_and_gathers_its_logits(tp: int) -> None:
    """A part of the vocabulary on each rank: rows x hidden are added up, rows x vocabulary gathered, in bf16."""
    first, *layers, last = collectives(target_forward(QWEN, shape(tp)))
    rows = 2 * 5
    assert first == ("collective.all_reduce", pytest.approx(2 * (tp - 1) / tp * rows * HIDDEN * 2), 1)
    assert last == ("collective.all_gather", pytest.approx((tp - 1) / tp * rows * VOCAB * 2), 1)
    assert sum(repeats for _, _, repeats in layers) == 2 * 36
    assert {name for name, _, _ in layers} == {"collective.all_reduce"}


@pytest.mark.parametrize("tp", [2, 8])
@pytest.mark.parametrize("wide", [True, False])
def test_a_draft_pass_gathers_all_logits(tp: int, wide: bool) -> None:
    """Neither engine takes the argmax of a rank's own part of the vocabulary unless asked to."""
    head = eagle()
    first, *layers, last = collectives(draft_forward(head, shape(tp), logit_rows=2.0, wide=wide))
    inside = collectives(op for block in head.blocks for op in block_operations(block, shape(tp), HIDDEN, head.formats))
    assert layers == inside
    assert first == ("collective.all_reduce", pytest.approx(2 * (tp - 1) / tp * 10 * HIDDEN * 2), 1)
    assert last == ("collective.all_gather", pytest.approx((tp - 1) / tp * 2 * 32_000 * 2), 1)


@pytest.mark.parametrize("tp", [1, 8])
def test_a_rank_draws_from_all_logits(tp: int) -> None:
    (argmax,) = (op for op in draft_forward(eagle(), shape(tp), logit_rows=2.0) if op.kernel == "sample")
    assert argmax.activations == 2 * 32_000 * 2


def test_one_rank_talks_to_nobody() -> None:
    assert not collectives(target_forward(QWEN, shape(1)))
    assert not collectives(draft_forward(eagle(), shape(1), logit_rows=2.0, wide=True))


def test_a_gather_is_half_a_reduction() -> None:
    """A ring all-reduce is a reduce-scatter and an all-gather."""
    for ranks in (2, 8):
        assert 2 * all_gather(1000.0, ranks).bytes == all_reduce(1000.0, ranks).bytes
        assert all_gather(1000.0, ranks).launches == 1
