"""Index builders against lists written out by hand: serial and parallel, full, windowed and ring."""

import pytest
import torch

from calibration.kernels import references
from calibration.kernels.index import build_lists, parallel_programs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
POISON = -7


def build(
    committed: list[int],
    *,
    steps: int = 1,
    appended: int = 1,
    out_type: torch.dtype = torch.int64,
    seed: int = 0,
    **how,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the builder on a scrambled table; returns table, requests, lists and lengths."""
    generator = torch.Generator().manual_seed(seed)
    batch, width = len(committed), max(committed) + appended + steps
    table = torch.randperm((batch + 2) * width, generator=generator).to(torch.int32).view(batch + 2, width).to(DEVICE)
    requests = torch.randperm(batch + 2, generator=generator)[:batch].to(DEVICE)
    out = torch.full((steps, batch, width), POISON, dtype=out_type, device=DEVICE)
    lengths = torch.full((steps, batch), POISON, dtype=torch.int32, device=DEVICE)
    lasting = torch.tensor(committed, dtype=torch.int32, device=DEVICE)
    build_lists(table, requests, lasting, out=out, out_lengths=lengths, appended=appended, **how)
    return table, requests, out, lengths


def check(committed: list[int], *, steps: int = 1, appended: int = 1, **how) -> None:
    window, sink, depth = how.get("window"), how.get("sink", 0), how.get("ring_depth")
    table, requests, out, lengths = build(committed, steps=steps, appended=appended, **how)
    for step in range(steps):
        for b, past in enumerate(committed):
            positions = references.listed_positions(past, appended + step, window, sink)
            if depth is not None:
                positions = [references.ring_entry(position, window, sink, depth) for position in positions]
                assert len(set(positions)) == len(positions), "a ring entry listed twice"
            count = len(positions)
            assert lengths[step, b] == count
            assert out[step, b, :count].tolist() == table[requests[b], positions].tolist()
            assert (out[step, b, count:] == POISON).all(), "wrote past the list"


@pytest.mark.parametrize("programs", [1, 2, 5])
@pytest.mark.parametrize("block", [16, 128])
@pytest.mark.parametrize("steps", [1, 3])
def test_full_lists(programs: int, block: int, steps: int) -> None:
    check([200, 1, 77], steps=steps, programs=programs, block=block, seed=block + steps)


@pytest.mark.parametrize("out_type", [torch.int32, torch.int64])
def test_list_types(out_type: torch.dtype) -> None:
    check([50, 20], out_type=out_type)


@pytest.mark.parametrize("appended", [1, 4, 7])
def test_verify_appends_its_rows(appended: int) -> None:
    check([130, 5], appended=appended)


@pytest.mark.parametrize(("window", "sink"), [(32, 0), (32, 4), (1, 0), (60, 64), (500, 8)])
@pytest.mark.parametrize("programs", [1, 3])
def test_windows_keep_sink_and_recent(window: int, sink: int, programs: int) -> None:
    check([200, 36, 3], steps=3, window=window, sink=sink, programs=programs, block=16)


@pytest.mark.parametrize("committed", [0, 3, 36, 37, 41, 42, 43, 500, 1001])
@pytest.mark.parametrize("programs", [1, 2])
def test_rings(committed: int, programs: int) -> None:
    check([committed, 7], steps=5, window=32, sink=4, ring_depth=6, programs=programs, block=32, seed=committed)


def test_a_ring_needs_a_window() -> None:
    with pytest.raises(ValueError, match="window"):
        build([5], ring_depth=3)


def test_parallel_programs_follow_the_token_block_rule() -> None:
    """SGLang's figures: 85 blocks at 1.04M tokens and six steps, one below 8,192 tokens."""
    assert parallel_programs(1_040_000, 6, 1) == 85
    assert parallel_programs(4096, 6, 1) == 1
    assert parallel_programs(1_040_000, 6, 200) == 1
