"""Dense products against float64: fresh inputs, poisoned outputs."""

import pytest
import torch

from calibration.kernels import gemm, references
from calibration.kernels.references import relative_error

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BF16 = torch.bfloat16
SEEDS = (0, 1, 2)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).to(BF16)


def poisoned(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 48, 64), (7, 33, 100), (64, 128, 256)])
def test_dense(seed: int, rows: int, n: int, k: int) -> None:
    torch.manual_seed(seed)
    x, weight = normal(rows, k), normal(n, k)
    out = gemm.dense(x, weight, poisoned(rows, n))
    assert relative_error(out, references.dense(x, weight)) < 1e-2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rows", [1, 4, 17])
def test_fp8_dense(seed: int, rows: int) -> None:
    torch.manual_seed(seed)
    x, scale_x = gemm.quantize(3 * normal(rows, 128))
    weight, scale_weight = gemm.quantize(0.1 * normal(64, 128))
    out = poisoned(gemm.padded_rows(rows), 64)
    gemm.fp8_dense(x, weight, scale_x, scale_weight, out)
    expected = references.fp8_dense(x, weight, scale_x, scale_weight)
    assert relative_error(out[:rows], expected[:rows]) < 1e-2
    assert not out[rows:].any()


@pytest.mark.parametrize("seed", SEEDS)
def test_quantized_values_are_close(seed: int) -> None:
    torch.manual_seed(seed)
    x = normal(5, 64)
    quantized, scale = gemm.quantize(x)
    assert quantized.shape == (16, 64)
    assert relative_error(quantized[:5].double() * scale, x) < 0.04


@pytest.mark.parametrize("seed", SEEDS)
def test_batched_writes_through_transposed_views(seed: int) -> None:
    torch.manual_seed(seed)
    rows, heads, k, n = 3, 4, 16, 64
    x, weight = normal(rows, heads, k), normal(heads, k, n)
    out = poisoned(rows, heads, n)
    gemm.batched(x.transpose(0, 1), weight, out.transpose(0, 1))
    assert relative_error(out.transpose(0, 1), references.batched(x.transpose(0, 1), weight)) < 1e-2


@pytest.mark.parametrize("seed", SEEDS)
def test_lm_head_picks_the_largest_of_its_logits(seed: int) -> None:
    torch.manual_seed(seed)
    x, weight = normal(4, 64), normal(1000, 64)
    logits, best = poisoned(4, 1000), torch.full((4,), -1, dtype=torch.int64, device=DEVICE)
    gemm.lm_head(x, weight, logits, best)
    assert relative_error(logits, references.dense(x, weight)) < 1e-2
    assert torch.equal(logits.gather(1, best[:, None])[:, 0], logits.amax(1))
