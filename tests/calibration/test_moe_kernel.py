"""Routed experts against float64, and the alignment of pairs to blocks, for even, random and skewed routing."""

from dataclasses import astuple, dataclass

import pytest
import torch
from torch import Tensor

from calibration.kernels import moe, references
from calibration.kernels.references import relative_error

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BF16 = torch.bfloat16
# A GPU rounds to bf16; the interpreter truncates, so that it writes float32 and is held to more.
OUT, TOLERANCE = (BF16, 1e-2) if DEVICE.type == "cuda" else (torch.float32, 1e-4)


@dataclass(frozen=True)
class Case:
    rows: int
    top_k: int
    experts: int
    hidden: int
    inner: int
    gated: bool = True


CASES = [
    Case(rows=1, top_k=1, experts=3, hidden=128, inner=64),
    Case(rows=3, top_k=2, experts=8, hidden=160, inner=96),  # no multiple of a tile
    Case(rows=20, top_k=3, experts=5, hidden=64, inner=72),
    Case(rows=5, top_k=7, experts=40, hidden=96, inner=64, gated=False),
]


def random_routing(rows: int, top_k: int, experts: int) -> Tensor:
    """Distinct experts per row, ``[rows, top_k]`` int32."""
    return torch.rand(rows, experts, device=DEVICE).topk(top_k, dim=-1).indices.int()


def layer(case: Case, ids: Tensor) -> tuple[Tensor, ...]:
    """Inputs and a poisoned output. Experts that nobody chose are NaN: reading one shows."""
    width = 2 * case.inner if case.gated else case.inner
    x = torch.randn(case.rows, case.hidden, device=DEVICE).to(BF16)
    gate_up = (torch.randn(case.experts, width, case.hidden, device=DEVICE) * case.hidden**-0.5).to(BF16)
    down = (torch.randn(case.experts, case.hidden, case.inner, device=DEVICE) * case.inner**-0.5).to(BF16)
    idle = torch.ones(case.experts, dtype=torch.bool, device=DEVICE)
    idle[ids.unique().long()] = False
    gate_up[idle], down[idle] = float("nan"), float("nan")
    weights = torch.softmax(torch.randn(ids.shape, device=DEVICE), -1)
    out = torch.full((case.rows, case.hidden), float("nan"), dtype=OUT, device=DEVICE)
    return x, gate_up, down, ids, weights, out


def poison(workspace: moe.Workspace) -> None:
    for buffer in astuple(workspace):
        buffer.fill_(float("nan") if buffer.is_floating_point() else 123456789)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("variant", [moe.grouped, moe.paired])
@pytest.mark.parametrize("case", CASES)
def test_random_routing(case: Case, variant, seed: int) -> None:
    torch.manual_seed(seed)
    inputs = layer(case, random_routing(case.rows, case.top_k, case.experts))
    x, gate_up, down, ids, weights, out = inputs
    workspace = moe.make_workspace(case.rows, case.top_k, gate_up, down, OUT)
    poison(workspace)
    variant(*inputs, workspace)
    assert relative_error(out, references.routed_experts(x, gate_up, down, ids, weights)) < TOLERANCE


@pytest.mark.parametrize("variant", [moe.grouped, moe.paired])
def test_all_rows_on_the_same_experts(variant) -> None:
    torch.manual_seed(3)
    case = Case(rows=18, top_k=2, experts=6, hidden=64, inner=32)
    inputs = layer(case, torch.tensor([4, 1], dtype=torch.int32, device=DEVICE).repeat(case.rows, 1))
    x, gate_up, down, ids, weights, out = inputs
    workspace = moe.make_workspace(case.rows, case.top_k, gate_up, down, OUT)
    poison(workspace)
    variant(*inputs, workspace, moe.Tile(n=32, k=64))
    assert relative_error(out, references.routed_experts(x, gate_up, down, ids, weights)) < TOLERANCE


def test_a_workspace_serves_one_routing_after_another() -> None:
    torch.manual_seed(4)
    case = Case(rows=20, top_k=3, experts=12, hidden=64, inner=32)
    workspace = None
    for spread in (12, 3, 7):
        ids = random_routing(case.rows, case.top_k, spread)
        x, gate_up, down, ids, weights, out = layer(case, ids)
        workspace = workspace or moe.make_workspace(case.rows, case.top_k, gate_up, down, OUT)
        moe.grouped(x, gate_up, down, ids, weights, out, workspace)
        assert relative_error(out, references.routed_experts(x, gate_up, down, ids, weights)) < TOLERANCE


@pytest.mark.parametrize(
    ("rows", "top_k", "experts", "spread"),
    [(1, 1, 1, 1), (1, 22, 64, 64), (40, 4, 20, 20), (100, 6, 33, 7), (128, 2, 512, 2), (130, 2, 30, 30)],
)
def test_alignment_holds_every_pair_once_in_a_block_of_its_expert(
    rows: int, top_k: int, experts: int, spread: int
) -> None:
    torch.manual_seed(rows)
    ids = random_routing(rows, top_k, spread)
    one = torch.empty(experts, 2, 1, dtype=BF16, device=DEVICE)
    workspace = moe.make_workspace(rows, top_k, one, one.transpose(1, 2))
    poison(workspace)
    moe.align(ids, workspace)
    pairs, flat = rows * top_k, ids.flatten().cpu()
    expert, listed = workspace.block_expert.cpu(), workspace.block_pairs.cpu()
    active = int((expert >= 0).sum())
    needed = -(-torch.bincount(flat.long(), minlength=experts) // moe.BLOCK_ROWS)
    assert active == int(needed.sum())
    assert torch.equal(torch.bincount(expert[:active].long(), minlength=experts), needed)
    assert (expert[active:] == -1).all()
    assert (expert[:active].diff() >= 0).all()
    used = listed[:active]
    assert torch.equal(used[used != pairs].sort().values, torch.arange(pairs, dtype=torch.int32))
    for block in range(active):
        mine = used[block][used[block] != pairs]
        assert (flat[mine.long()] == expert[block]).all()


def test_no_routing_needs_more_blocks_than_allotted() -> None:
    for pairs, experts in [(8, 256), (512, 4), (100, 7), (2816, 512)]:
        fewest = min(pairs, experts)
        worst = [1 + (pairs - fewest) if e == 0 else 1 for e in range(fewest)]
        assert sum(-(-count // 16) for count in worst) <= moe.max_blocks(pairs, experts) <= pairs
