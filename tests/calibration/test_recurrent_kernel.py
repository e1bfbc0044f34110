"""Recurrent mixers against float64: one row in place, several rows with a snapshot after each."""

import pytest
import torch
from torch import Tensor

from calibration.kernels import recurrent, references
from calibration.kernels.references import relative_error

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BF16 = torch.bfloat16
SEEDS = (0, 1)
# A GPU rounds to bf16; the interpreter truncates, so that it writes float32 and is held to more.
OUT, TOLERANCE = (BF16, 1e-2) if DEVICE.type == "cuda" else (torch.float32, 1e-4)
STATE_TOLERANCE = 1e-4


def normal(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def poisoned(*shape: int, dtype: torch.dtype = OUT) -> Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)


def delta_inputs(rows: int, per_channel: bool, k_heads: int = 2, v_heads: int = 4, k: int = 32, v: int = 24) -> tuple:
    """q, k, v, decay, beta, state, scale for two sequences."""
    shape = (2, rows, v_heads, k) if per_channel else (2, rows, v_heads)
    decay = -torch.rand(*shape, device=DEVICE)
    beta = torch.rand(2, rows, v_heads, device=DEVICE)
    state = normal(2, v_heads, k, v, dtype=torch.float32)
    return (
        normal(2, rows, k_heads, k),
        normal(2, rows, k_heads, k),
        normal(2, rows, v_heads, v),
        decay,
        beta,
        state,
        k**-0.5,
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("per_channel", [False, True])
def test_delta_rule_updates_its_state(per_channel: bool, rows: int, seed: int) -> None:
    torch.manual_seed(seed)
    inputs = delta_inputs(rows, per_channel)
    out, states = references.delta_rule(*inputs)
    got = poisoned(*out.shape)
    recurrent.delta_rule(*inputs, got)
    assert relative_error(got, out) < TOLERANCE
    assert relative_error(inputs[5], states[:, -1]) < STATE_TOLERANCE


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("per_channel", [False, True])
def test_delta_rule_keeps_a_snapshot_per_row(per_channel: bool, seed: int) -> None:
    torch.manual_seed(seed)
    inputs = delta_inputs(4, per_channel, k_heads=4)
    before = inputs[5].clone()
    out, states = references.delta_rule(*inputs)
    got, snapshots = poisoned(*out.shape), poisoned(*states.shape, dtype=torch.float32)
    recurrent.delta_rule(*inputs, got, snapshots, block_v=16)
    assert relative_error(got, out) < TOLERANCE
    assert relative_error(snapshots, states) < STATE_TOLERANCE
    assert torch.equal(inputs[5], before)


def mamba2_inputs(rows: int) -> tuple:
    """x, dt, a_log, b, c, d, dt_bias, state for two sequences; some time steps are large."""
    heads, dim, groups, n = 4, 20, 2, 32
    dt = normal(2, rows, heads)
    dt[0, 0, 0] = 25.0
    return (
        normal(2, rows, heads, dim),
        dt,
        -torch.rand(heads, device=DEVICE),
        normal(2, rows, groups, n),
        normal(2, rows, groups, n),
        normal(heads, dtype=torch.float32),
        normal(heads, dtype=torch.float32),
        normal(2, heads, dim, n, dtype=torch.float32),
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rows", [1, 3])
def test_mamba2_updates_its_state(rows: int, seed: int) -> None:
    torch.manual_seed(seed)
    inputs = mamba2_inputs(rows)
    out, states = references.mamba2(*inputs)
    got = poisoned(*out.shape)
    recurrent.mamba2(*inputs, got)
    assert relative_error(got, out) < TOLERANCE
    assert relative_error(inputs[7], states[:, -1]) < STATE_TOLERANCE


@pytest.mark.parametrize("seed", SEEDS)
def test_mamba2_keeps_a_snapshot_per_row(seed: int) -> None:
    torch.manual_seed(seed)
    inputs = mamba2_inputs(4)
    before = inputs[7].clone()
    out, states = references.mamba2(*inputs)
    got, snapshots = poisoned(*out.shape), poisoned(*states.shape, dtype=torch.float32)
    recurrent.mamba2(*inputs, got, snapshots)
    assert relative_error(got, out) < TOLERANCE
    assert relative_error(snapshots, states) < STATE_TOLERANCE
    assert torch.equal(inputs[7], before)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("taps", [2, 4])
def test_short_conv(taps: int, rows: int, seed: int) -> None:
    torch.manual_seed(seed)
    channels = 300
    x, state = normal(2, rows, channels), normal(2, taps - 1, channels)
    weight, bias = normal(channels, taps), normal(channels)
    out, columns = references.short_conv(x, state, weight, bias)
    got, seen, before = poisoned(*out.shape), poisoned(*columns.shape), state.clone()
    recurrent.short_conv(x, state, weight, bias, got, seen)
    assert relative_error(got, out) < TOLERANCE
    assert torch.equal(seen.double(), columns)
    assert torch.equal(state, before)
    got = poisoned(*out.shape)
    recurrent.short_conv(x, state, weight, bias, got)
    assert relative_error(got, out) < TOLERANCE
    assert torch.equal(state.double(), columns[:, rows:])


if recurrent.fla_available() and DEVICE.type == "cuda":

    @pytest.mark.parametrize("per_channel", [False, True])
    def test_fla_agrees(per_channel: bool) -> None:
        torch.manual_seed(0)
        inputs = delta_inputs(3, per_channel, k_heads=4, k=64, v=64)
        out, states = references.delta_rule(*inputs)
        got, last = recurrent.fla_delta_rule(*inputs)
        assert relative_error(got, out) < TOLERANCE
        assert relative_error(last, states[:, -1]) < STATE_TOLERANCE
