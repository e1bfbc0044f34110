"""The split-KV attention kernel against float64: every shape it claims, every way to split, list and merge."""

from dataclasses import dataclass, replace

import pytest
import torch

from calibration.kernels import references
from calibration.kernels.attention import (
    TileConfig,
    Workspace,
    attention,
    candidate_configs,
    choose_splits,
    default_config,
    make_workspace,
)
from calibration.kernels.references import relative_error

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# The interpreter multiplies in float32; on a GPU the operands and the softmax weights are rounded to bf16.
TOLERANCE = 1e-2 if DEVICE.type == "cuda" else 1e-5
FP8 = torch.float8_e4m3fn
DEFAULT = TileConfig()


@dataclass(frozen=True)
class Shape:
    """One call: a sequence per length, `group` query heads per KV head."""

    lengths: tuple[int, ...] = (75,)
    rows: int = 1
    group: int = 2
    kv_heads: int = 1
    head_dim: int = 64
    v_dim: int = 64
    splits: int = 3
    config: TileConfig = DEFAULT
    dtype: torch.dtype = torch.bfloat16
    index: torch.dtype = torch.int32
    causal_rows: int | None = None
    max_length: int | None = None
    k_scale: float = 1.0
    v_scale: float = 1.0
    contiguous: bool = False


@dataclass(frozen=True)
class Inputs:
    """Tensors of one draw, as `attention` takes them."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    slots: torch.Tensor
    lengths: torch.Tensor


def draw(shape: Shape, seed: int) -> Inputs:
    """Random inputs: scattered slots, NaN in every slot that no list names, garbage past the end of a list."""
    generator = torch.Generator().manual_seed(seed)
    batch, longest = len(shape.lengths), max(shape.lengths)
    used, spare = batch * longest, 40
    order = torch.arange(used) if shape.contiguous else torch.randperm(used + spare, generator=generator)[:used]
    lists = order.view(batch, longest)
    caches = []
    for dim in (shape.head_dim, shape.v_dim):
        cache = torch.full((used + spare, shape.kv_heads, dim), torch.nan)
        for b, length in enumerate(shape.lengths):
            cache[lists[b, :length]] = torch.randn(length, shape.kv_heads, dim, generator=generator)
        caches.append(cache.to(shape.dtype).to(DEVICE))
    q = torch.randn(batch, shape.rows, shape.group * shape.kv_heads, shape.head_dim, generator=generator)
    slots = lists[:, 0].contiguous() if shape.contiguous else lists
    return Inputs(
        q=(2 * q).bfloat16().to(DEVICE),
        k_cache=caches[0],
        v_cache=caches[1],
        slots=slots.to(shape.index).to(DEVICE),
        lengths=torch.tensor(shape.lengths, dtype=torch.int32, device=DEVICE),
    )


def poisoned(shape: Shape, inputs: Inputs) -> tuple[torch.Tensor, Workspace]:
    """Output and buffers full of NaN: whatever a kernel does not write, or reads too early, shows."""
    workspace = make_workspace(inputs.q, shape.kv_heads, shape.v_dim, shape.splits)
    workspace.partial.fill_(torch.nan)
    workspace.lse.fill_(torch.nan)
    out = torch.full((*inputs.q.shape[:-1], shape.v_dim), torch.nan, dtype=torch.float32, device=DEVICE)
    return out, workspace


def run(shape: Shape, inputs: Inputs) -> torch.Tensor:
    """Output of one call; of the second on one workspace where splits are merged by arrival, as in a replayed graph."""
    out, workspace = poisoned(shape, inputs)
    tensors = (inputs.q, inputs.k_cache, inputs.v_cache, inputs.slots, inputs.lengths)
    for _ in range(2 if shape.config.combine == "fused" else 1):
        out.fill_(torch.nan)
        attention(
            *tensors,
            scale=shape.head_dim**-0.5,
            splits=shape.splits,
            out=out,
            workspace=workspace,
            causal_rows=shape.causal_rows,
            k_scale=shape.k_scale,
            v_scale=shape.v_scale,
            max_length=shape.max_length,
            config=shape.config,
        )
    assert not workspace.arrivals.any(), "arrival counts must be left at zero for the next call"
    return out


def expected(shape: Shape, inputs: Inputs) -> torch.Tensor:
    return references.attention(
        inputs.q,
        inputs.k_cache,
        inputs.v_cache,
        inputs.slots,
        inputs.lengths,
        scale=shape.head_dim**-0.5,
        causal_rows=shape.causal_rows,
        k_scale=shape.k_scale,
        v_scale=shape.v_scale,
    )


def check(shape: Shape, seeds: tuple[int, ...] = (0, 1)) -> None:
    for seed in seeds:
        inputs = draw(shape, seed)
        assert relative_error(run(shape, inputs), expected(shape, inputs)) < TOLERANCE


@pytest.mark.parametrize(
    ("group", "kv_heads"), [(1, 1), (1, 8), (2, 2), (3, 1), (4, 8), (5, 2), (7, 1), (8, 2), (12, 1), (16, 1), (16, 2)]
)
def test_groups_of_query_heads(group: int, kv_heads: int) -> None:
    check(Shape(group=group, kv_heads=kv_heads, lengths=(45,), splits=2), seeds=(group,))


@pytest.mark.parametrize(
    ("head_dim", "v_dim"), [(64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256), (80, 112)]
)
def test_head_sizes(head_dim: int, v_dim: int) -> None:
    check(Shape(head_dim=head_dim, v_dim=v_dim, group=4, kv_heads=2))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 13, 16])
def test_rows_with_a_causal_tail(rows: int) -> None:
    check(Shape(rows=rows, group=2, kv_heads=2, lengths=(90,)), seeds=(rows,))


def test_more_packed_rows_than_a_tile_holds() -> None:
    fused = TileConfig(combine="fused", fan=2)
    check(Shape(rows=16, group=16, head_dim=256, v_dim=256, lengths=(70,), config=fused), seeds=(0,))


@pytest.mark.parametrize("combine", ["launch", "dependent", "fused"])
@pytest.mark.parametrize("splits", [1, 2, 3, 4, 5, 6, 7])
def test_splits_of_uneven_sequences(splits: int, combine: str) -> None:
    config = TileConfig(block_n=16, combine=combine, fan=2)
    check(Shape(splits=splits, lengths=(100, 1, 37), config=config))


@pytest.mark.parametrize("fan", [1, 2, 4, 8])
@pytest.mark.parametrize("rows", [1, 6])
def test_fused_merge_in_one_and_two_levels(fan: int, rows: int) -> None:
    config = TileConfig(block_n=16, combine="fused", fan=fan)
    check(Shape(splits=7, lengths=(150, 20), rows=rows, group=8, v_dim=128, config=config), seeds=(fan,))


@pytest.mark.parametrize("max_length", [None, 64, 200])
def test_host_known_length_only_moves_the_cuts(max_length: int | None) -> None:
    check(Shape(splits=4, lengths=(64, 9), max_length=max_length, rows=2))


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("block_n", [16, 32, 64, 128])
def test_tiles(block_n: int, prefetch: bool) -> None:
    check(Shape(lengths=(131, 64), rows=3, config=TileConfig(block_n=block_n, prefetch=prefetch)))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 64])
def test_lengths_about_a_tile(length: int) -> None:
    check(Shape(lengths=(length,), splits=2), seeds=(length,))


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_index_types(index: torch.dtype) -> None:
    check(Shape(index=index, lengths=(40, 70)))


@pytest.mark.parametrize("rows", [1, 4])
def test_contiguous_tokens_need_no_list(rows: int) -> None:
    check(Shape(contiguous=True, lengths=(60, 33, 60), rows=rows, kv_heads=2, config=TileConfig(block_n=16)))


@pytest.mark.parametrize("causal_rows", [1, 2, 4])
def test_own_tokens_may_be_fewer_than_rows(causal_rows: int) -> None:
    check(Shape(rows=4, causal_rows=causal_rows, lengths=(50,)))


WIDE = Shape(group=8, head_dim=256, v_dim=256, splits=4)
WARPS = TileConfig(num_warps=8)


@pytest.mark.parametrize(
    "shape",
    [
        replace(WIDE, lengths=(177, 1, 64), splits=7),
        replace(WIDE, lengths=(77, 1, 64), rows=3, splits=1),
        replace(WIDE, lengths=(277,), splits=7, config=TileConfig(combine="fused", fan=8)),
        replace(WIDE, lengths=(300,), rows=4, splits=10, config=TileConfig(combine="fused", fan=8)),
        replace(WIDE, lengths=(400,), splits=66, config=TileConfig(combine="dependent")),
        replace(WIDE, lengths=(70,), rows=16, splits=2, config=WARPS),
        replace(WIDE, lengths=(70,), rows=9, group=16, splits=2, config=WARPS),
        replace(WIDE, lengths=(79, 60), rows=7, dtype=FP8, splits=2, config=WARPS),
        replace(WIDE, lengths=(99, 60), rows=5, group=5, head_dim=96, v_dim=96, config=TileConfig(64)),
        replace(WIDE, lengths=(99, 60), rows=4, contiguous=True, config=TileConfig(prefetch=False)),
    ],
    ids=lambda shape: f"{shape.rows} rows, {shape.splits} splits, {shape.config.combine}",
)
def test_shapes_of_models(shape: Shape) -> None:
    """Heads of 256 as of Qwen3.5-35B-A3B, packed tiles that want eight warps, and merges of many splits."""
    check(shape, seeds=(0,))


@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (256, 256), (192, 128)])
def test_fp8_cache(dims: tuple[int, int]) -> None:
    head_dim, v_dim = dims
    check(Shape(dtype=FP8, head_dim=head_dim, v_dim=v_dim, rows=2, group=4, k_scale=0.5, v_scale=1.75))


def test_interleaved_keys_and_values() -> None:
    shape = Shape(kv_heads=2, rows=2)
    inputs = draw(shape, 3)
    both = torch.stack([inputs.k_cache, inputs.v_cache], dim=2)
    strided = replace(inputs, k_cache=both[:, :, 0], v_cache=both[:, :, 1])
    assert not strided.k_cache.is_contiguous()
    assert relative_error(run(shape, strided), expected(shape, inputs)) < TOLERANCE


@pytest.mark.parametrize("combine", ["launch", "fused"])
@pytest.mark.parametrize("splits", [1, 3])
def test_rows_that_see_nothing_are_zero(splits: int, combine: str) -> None:
    """A row earlier than the sequence's first token, and a sequence without tokens."""
    shape = Shape(rows=4, lengths=(2, 30), splits=splits, config=TileConfig(combine=combine))
    inputs = draw(shape, 0)
    inputs = replace(inputs, lengths=torch.tensor([2, 0], dtype=torch.int32, device=DEVICE))
    out = run(shape, inputs)
    assert not out[0, :2].any()
    assert not out[1].any()
    assert relative_error(out[0, 2:], expected(shape, inputs)[0, 2:]) < TOLERANCE


def test_output_in_bf16() -> None:
    shape = Shape(lengths=(66,), rows=2)
    inputs = draw(shape, 5)
    out = attention(*vars(inputs).values(), scale=0.125, splits=2)
    assert out.dtype == torch.bfloat16
    assert relative_error(out, expected(shape, inputs)) < 5e-3


def test_large_scores_do_not_overflow() -> None:
    shape = Shape(lengths=(80,), rows=2, splits=4)
    inputs = draw(shape, 6)
    inputs = replace(inputs, q=inputs.q * 40)
    assert relative_error(run(shape, inputs), expected(shape, inputs)) < 3 * TOLERANCE


def windowed(inputs: Inputs, window: int, sink: int, appended: int) -> Inputs:
    """The same sequences through shorter lists."""
    lists = []
    for b, length in enumerate(inputs.lengths.tolist()):
        positions = references.listed_positions(length - appended, appended, window, sink)
        lists.append(inputs.slots[b, positions])
    slots = torch.nn.utils.rnn.pad_sequence(lists, batch_first=True)
    lengths = torch.tensor([len(entries) for entries in lists], dtype=torch.int32, device=DEVICE)
    return replace(inputs, slots=slots, lengths=lengths)


@pytest.mark.parametrize(("window", "sink"), [(16, 0), (24, 4), (1, 1), (40, 8)])
@pytest.mark.parametrize("rows", [1, 4])
def test_window_is_a_shorter_list(window: int, sink: int, rows: int) -> None:
    shape = Shape(lengths=(100, 61), rows=rows, kv_heads=2)
    inputs = windowed(draw(shape, window), window, sink, appended=rows)
    assert inputs.lengths.tolist() == [window + sink + rows] * 2
    assert relative_error(run(shape, inputs), expected(shape, inputs)) < TOLERANCE


def test_window_beyond_the_context_is_full_attention() -> None:
    shape = Shape(lengths=(70, 33), rows=3, splits=2)
    full = draw(shape, 2)
    short = windowed(full, window=80, sink=4, appended=3)
    torch.testing.assert_close(run(shape, short), run(shape, full), rtol=0, atol=0)


@pytest.mark.parametrize("rows", [1, 3])
def test_ring_holds_what_the_window_lists(rows: int) -> None:
    """Writing tokens in order into a ring, the window's list through the ring reads the same keys and values."""
    window, sink, depth, length = 20, 4, 5, 97
    shape = Shape(lengths=(length,), rows=rows, kv_heads=2)
    full = draw(shape, 8)
    ring_k, ring_v = (
        full.k_cache[: sink + window + depth + 1].clone(),
        full.v_cache[: sink + window + depth + 1].clone(),
    )
    for position, slot in enumerate(full.slots[0].tolist()):
        entry = references.ring_entry(position, window, sink, depth)
        ring_k[entry], ring_v[entry] = full.k_cache[slot], full.v_cache[slot]
    positions = references.listed_positions(length - rows, rows, window, sink)
    entries = [references.ring_entry(position, window, sink, depth) for position in positions]
    ring = replace(
        windowed(full, window, sink, rows),
        k_cache=ring_k,
        v_cache=ring_v,
        slots=torch.tensor([entries], dtype=torch.int32, device=DEVICE),
    )
    torch.testing.assert_close(run(shape, ring), run(shape, windowed(full, window, sink, rows)), rtol=0, atol=0)


def test_inputs_that_would_be_misread_are_refused() -> None:
    inputs = draw(Shape(), 0)
    strided = replace(inputs, q=inputs.q.repeat(1, 1, 1, 2)[..., ::2])
    with pytest.raises(ValueError, match="dense"):
        attention(*vars(strided).values(), scale=1.0, splits=1)
    with pytest.raises(ValueError, match="workspace"):
        attention(*vars(inputs).values(), scale=1.0, splits=2, workspace=make_workspace(inputs.q, 1, 64, 3))


@pytest.mark.parametrize("context", [1, 4096, 32_768, 131_072, 1_048_576])
@pytest.mark.parametrize("streams", [1, 2, 8, 512])
@pytest.mark.parametrize("rows", [8, 56])
def test_splits_fill_the_gpu_but_no_more(context: int, streams: int, rows: int) -> None:
    splits = choose_splits(context, streams, 132, 256, rows)
    assert 1 <= splits <= max(1, context // 64)
    assert splits == 1 or splits * streams <= 2 * 132


def test_measured_splits() -> None:
    """The H200's best at a million tokens, per head: 132 with two programs a multiprocessor."""
    assert choose_splits(1_048_576, 2, 132, 256, 8) == 132
    assert choose_splits(1_048_576, 2, 132, 128, 16) == 132


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("rows", [8, 56, 112])
def test_candidates_are_distinct(head_dim: int, rows: int) -> None:
    candidates = candidate_configs(head_dim, rows)
    assert len(candidates) == len(set(candidates))
    assert default_config(head_dim, rows) in candidates
