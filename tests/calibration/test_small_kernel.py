"""Norms, activations, rope, routing, copies and acceptance against float64 or against what must be equal."""

import pytest
import torch
from torch import Tensor

from calibration.bench import fused
from calibration.kernels import references, small
from calibration.kernels.references import relative_error

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BF16 = torch.bfloat16
# A GPU rounds to bf16; the interpreter truncates, so that it writes float32 and is held to more.
OUT, TOLERANCE = (BF16, 1e-2) if DEVICE.type == "cuda" else (torch.float32, 1e-4)
SEEDS = (0, 1)


def normal(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def poisoned(*shape: int, dtype: torch.dtype = OUT) -> Tensor:
    value = float("nan") if dtype.is_floating_point else -99
    return torch.full(shape, value, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("hidden", [64, 100])
def test_rms_norm(hidden: int, seed: int) -> None:
    torch.manual_seed(seed)
    x, weight = normal(3, hidden), normal(hidden)
    out = small.rms_norm(x, weight, poisoned(3, hidden))
    assert relative_error(out, references.rms_norm(x, weight, 1e-6)) < TOLERANCE


@pytest.mark.parametrize("seed", SEEDS)
def test_add_rms_norm(seed: int) -> None:
    torch.manual_seed(seed)
    x, residual, weight = normal(3, 100), normal(3, 100, dtype=OUT), normal(100)
    total = x.double() + residual.double()
    out = small.add_rms_norm(x, residual, weight, poisoned(3, 100))
    assert relative_error(residual, total) < TOLERANCE
    assert relative_error(out, references.rms_norm(total, weight, 1e-6)) < TOLERANCE


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("inner", [48, 1100])
def test_silu_mul(inner: int, seed: int) -> None:
    torch.manual_seed(seed)
    gate_up = normal(3, 2 * inner)
    assert relative_error(small.silu_mul(gate_up, poisoned(3, inner)), references.silu_mul(gate_up)) < TOLERANCE


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("head_dim", "v_dim", "rotary"), [(32, 32, 32), (64, 32, 16), (48, 24, 32)])
def test_rope_and_cache(head_dim: int, v_dim: int, rotary: int, seed: int) -> None:
    torch.manual_seed(seed)
    rows, q_heads, kv_heads, slots = 3, 4, 2, 7
    q, k, v = normal(rows, q_heads, head_dim), normal(rows, kv_heads, head_dim), normal(rows, kv_heads, v_dim)
    cos_sin = normal(50, rotary, dtype=torch.float32)
    positions = torch.randint(0, 50, (rows,), device=DEVICE)
    where = torch.randperm(slots, device=DEVICE)[:rows].int()
    q_out, k_cache, v_cache = poisoned(*q.shape), poisoned(slots, *k.shape[1:]), poisoned(slots, *v.shape[1:])
    small.rope_and_cache(q, k, v, cos_sin, positions, where, q_out, k_cache, v_cache)
    assert relative_error(q_out, references.rope(q, cos_sin, positions)) < TOLERANCE
    assert relative_error(k_cache[where.long()], references.rope(k, cos_sin, positions)) < TOLERANCE
    assert torch.equal(v_cache[where.long()], v.to(OUT))
    untouched = torch.ones(slots, dtype=torch.bool, device=DEVICE)
    untouched[where.long()] = False
    assert k_cache[untouched].isnan().all()
    assert v_cache[untouched].isnan().all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("experts", "top_k"), [(8, 1), (20, 8), (64, 22)])
def test_router(experts: int, top_k: int, seed: int) -> None:
    torch.manual_seed(seed)
    logits = normal(3, experts, dtype=torch.float32)
    ids, weights = poisoned(3, top_k, dtype=torch.int32), poisoned(3, top_k, dtype=torch.float32)
    small.router(logits, ids, weights)
    expected_ids, expected = references.router(logits, top_k)
    assert torch.equal(ids.long(), expected_ids)
    assert relative_error(weights, expected) < 1e-4


def test_router_sends_ties_to_the_lower_expert() -> None:
    logits = torch.zeros(2, 12, dtype=BF16, device=DEVICE)
    ids, weights = poisoned(2, 3, dtype=torch.int32), poisoned(2, 3, dtype=torch.float32)
    small.router(logits, ids, weights)
    assert ids.tolist() == [[0, 1, 2]] * 2
    assert torch.allclose(weights, torch.full_like(weights, 1 / 3))


def test_empty_runs() -> None:
    small.empty(programs=3)


@pytest.mark.parametrize("size", [1, 1000])
def test_copy(size: int) -> None:
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=DEVICE)
    assert torch.equal(small.copy(source, torch.zeros_like(source)), source)


@pytest.mark.parametrize("seed", SEEDS)
def test_argmax(seed: int) -> None:
    torch.manual_seed(seed)
    logits = normal(4, 5000)
    best = small.argmax(logits, poisoned(4, dtype=torch.int64))
    assert torch.equal(logits.gather(1, best[:, None])[:, 0], logits.amax(1))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("depth", [1, 3, 6])
def test_accept(depth: int, seed: int) -> None:
    torch.manual_seed(seed)
    sequences = depth + 2
    best = torch.randint(0, 3, (sequences, depth + 1), device=DEVICE)
    draft = best[:, :depth].clone()
    for sequence in range(1, sequences - 1):  # first and last agree everywhere, the others up to some row
        draft[sequence, sequence - 1] += 1
    accepted, tokens = poisoned(sequences, dtype=torch.int32), poisoned(*best.shape, dtype=torch.int64)
    small.accept(draft, best, accepted, tokens)
    expected, expected_tokens = references.accept(draft, best)
    assert accepted.tolist() == expected.tolist() == [depth, *range(depth), depth]
    assert torch.equal(tokens, expected_tokens)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_commit(dtype: torch.dtype) -> None:
    layers, sequences, rows, n, past, channels = 2, 3, 4, 5000, 3, 1500
    snapshots = normal(layers, sequences, rows, n, dtype=dtype)
    columns = normal(layers, sequences, past + rows, channels)
    accepted = torch.tensor([3, 0, 2], dtype=torch.int32, device=DEVICE)
    state, conv = poisoned(layers, sequences, n, dtype=dtype), poisoned(layers, sequences, past, channels, dtype=BF16)
    fused.commit(snapshots, columns, accepted, state, conv)
    assert torch.equal(state.double(), references.commit(snapshots, accepted))
    for sequence, row in enumerate(accepted.tolist()):
        assert torch.equal(conv[:, sequence], columns[:, sequence, row + 1 : row + 1 + past])
