"""The hand-made "Priority-1/2 cost table" of the architecture facts, reproduced by summing operations.

Source of every figure: architectures.md, section 6, worked out by hand from config fields (bf16 KV, batch 1, experts
routed independently). Tolerance is half of the last printed digit. One figure differs from the print: Nemotron-3
Ultra's fp8 verify, 169.2 GB here, is 169.3 there, the half of a figure that was already rounded (338.497 to 338.5).

Operations hold matrices only. The table also counts vectors (norms, biases, convolutions, decays), which `_vectors`
adds here from formulas of its own. The table's fp8 column halves everything, while ``--weights fp8`` leaves router,
lm_head and vectors in bf16 and adds block scales: `test_fp8_weights` halves what stayed before it compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest

import wmtp_sim

MILLION_TOKENS = 1_048_576
FP8_SCALES = 4 / 128**2


@dataclass(frozen=True)
class Row:
    """One row of the table. Strings, because their digits are the tolerance; "" where the table has none."""

    target_kv: int
    weights: str
    weights_fp8: str
    verify: str
    verify_fp8: str
    active: str
    lm_head: str
    draft_kv: int = 0
    share: str = ""
    draft_gb: str = ""
    mtp: str = ""
    draft_step: str = ""
    lm_head_share: str = ""
    distinct: tuple[str, str, int] | None = None


TABLE = {
    "qwen3.5-35b-a3b": Row(
        20_480, "5.89", "2.95", "16.72", "8.36", "2.946", "508.6",
        2_048, "9.09", "2.15", "64.5", "1.146", "89", ("30.5", "51.0", 256),
    ),
    "qwen3.5-122b-a10b": Row(
        24_576, "18.02", "9.01", "56.99", "28.49", "9.008", "762.8",
        2_048, "7.69", "2.15", "183.3", "1.892", "81", ("30.5", "51.0", 256),
    ),
    "qwen3.5-397b-a17b": Row(
        30_720, "32.66", "16.33", "117.27", "58.63", "16.332", "1017.1",
        2_048, "6.25", "2.15", "278.9", "2.592", "78", ("38.8", "66.0", 512),
    ),
    "qwen3.5-27b": Row(
        65_536, "51.25", "25.62", "51.25", "25.62", "25.625", "1271.4",
        4_096, "5.88", "4.29", "424.7", "3.392", "75",
    ),
    "qwen3-next-80b-a3b": Row(
        24_576, "7.13", "3.56", "24.05", "12.02", "3.564", "311.2",
        2_048, "7.69", "2.15", "71.3", "0.765", "81", ("38.8", "66.0", 512),
    ),
    "nemotron-3-super-120b-a12b": Row(
        8_192, "24.47", "12.23", "74.46", "37.23", "12.233", "536.9",
        1_024, "11.11", "1.07", "244.9", "1.563", "69", ("82.5", "135.5", 512),
    ),
    "nemotron-3-ultra-550b-a55b": Row(
        12_288, "109.97", "54.99", "338.5", "169.2", "54.985", "1073.7",
        1_024, "7.69", "1.07", "939.6", "4.027", "53", ("82.5", "135.5", 512),
    ),
    "nemotron-3.5-lightning-30b-a3b": Row(
        6_144, "6.46", "3.23", "20.47", "10.24", "3.228", "352.3",
        1_024, "14.29", "1.07", "118.0", "0.941", "75", ("22.4", "36.5", 128),
    ),
    "nemotron-3-nano-30b-a3b": Row(
        6_144, "6.46", "3.23", "20.47", "10.24", "3.228", "352.3", distinct=("22.4", "36.5", 128)
    ),
    "nemotron-h-8b": Row(16_384, "15.13", "7.56", "15.13", "7.56", "7.564", "536.9"),
    "nemotron-h-56b": Row(40_960, "110.5", "55.25", "110.5", "55.25", "55.251", "1073.7"),
}  # fmt: skip
#: Same text models under another name.
TABLE["qwen3.6-35b-a3b"], TABLE["qwen3.6-27b"] = TABLE["qwen3.5-35b-a3b"], TABLE["qwen3.5-27b"]
WITH_HEAD = [name for name, row in TABLE.items() if row.mtp]
WITH_EXPERTS = [name for name, row in TABLE.items() if row.distinct]


def printed(figure: str, scale: float = 1.0):
    """Whatever rounds to the printed figure."""
    digits = len(figure.partition(".")[2])
    return pytest.approx(float(figure) * scale, abs=0.5000001 * 10**-digits * scale, rel=0)


# --- our side --------------------------------------------------------------------------------------------------


@cache
def ideal(name: str, depth: int, context: int = MILLION_TOKENS, weights: str | None = None) -> wmtp_sim.Estimate:
    """The byte roofline. A model without a head drafts with an assumed EAGLE head: its verify is all we look at."""
    drafter = "mtp" if name in WITH_HEAD else "eagle"
    return wmtp_sim.estimate(
        name, "h200", context=context, depth=depth, engine="ideal", drafter=drafter, weights=weights, kv="bf16"
    )


def summed(step, term: str, kind: str, name: str = "") -> float:
    entries = [e.operation for e in step.entries if e.term == term and e.operation.name.startswith(name)]
    return float(sum(getattr(op, kind) * op.repeats for op in entries))


def base_weights(name: str, **more) -> float:
    return summed(ideal(name, 1, **more).base_step, "verify", "weights")


def verify_weights(name: str, rows: int, **more) -> float:
    return summed(ideal(name, rows - 1, **more).steps["native"], "verify", "weights")


def narrow_weights(name: str, operation: str = "") -> float:
    """The one narrow pass of a depth-2 draft."""
    return summed(ideal(name, 2).steps["native"], "draft", "weights", operation)


def growth(name: str, term: str) -> float:
    """KV bytes that one more cached token adds to a term of a step."""
    spans = (MILLION_TOKENS, 2 * MILLION_TOKENS)
    steps = [ideal(name, 1, context=s) for s in spans]
    chosen = [e.base_step if term == "base" else e.steps["native"] for e in steps]
    small, large = (summed(step, "verify" if term == "base" else term, "kv") for step in chosen)
    return (large - small) / MILLION_TOKENS


# --- vectors, from formulas of our own -------------------------------------------------------------------------


def _vectors_of(part) -> int:
    """Qwen3.5 and Nemotron-H only."""
    if part.kind == "attention":  # q_norm and k_norm of head_dim in Qwen, none in Nemotron
        return 2 * part.head_dim if part.qk_norm == "per_head" else 0
    if part.kind == "gdn":  # four taps for every channel of q, k, v; A_log and dt_bias; gated norm
        channels = 2 * part.k_heads * part.k_dim + part.v_heads * part.v_dim
        return 4 * channels + 2 * part.v_heads + part.v_dim
    if part.kind == "mamba2":  # four taps and a bias; A_log, D and dt_bias; gated norm
        channels = part.heads * part.head_dim + 2 * part.groups * part.state_dim
        return 5 * channels + 3 * part.heads + part.heads * part.head_dim
    if part.kind == "moe":  # Nemotron's correction bias
        return part.experts if part.correction_bias else 0
    return 0


def _block_vectors(blocks, hidden: int, norms: int) -> int:
    """``norms`` per layer: two in Qwen, one in Nemotron's one-mixer layers."""
    parts = sum(b.count * sum(_vectors_of(p) for p in (*b.mixers, *b.channels)) for b in blocks)
    return parts + hidden * norms * sum(b.count for b in blocks)


def _vectors(name: str, head: bool = False) -> int:
    """Elements of everything that is not a matrix, in the target or in its MTP head (three norms of its own)."""
    model = wmtp_sim.load_model(name)
    norms = 1 if name.startswith("nemotron") else 2
    if head:
        return _block_vectors(model.mtp.blocks, model.hidden, norms) + 3 * model.hidden
    return _block_vectors(model.blocks, model.hidden, norms) + model.hidden


# --- columns ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLE)
def test_target_kv(name):
    assert growth(name, "base") == growth(name, "verify") == TABLE[name].target_kv


@pytest.mark.parametrize("name", WITH_HEAD)
def test_draft_kv(name):
    row = TABLE[name]
    draft = growth(name, "extend")
    assert draft == row.draft_kv
    assert 100 * draft / (draft + growth(name, "base")) == printed(row.share)
    read = summed(ideal(name, 1).steps["native"], "extend", "kv", "attention")
    assert read == printed(row.draft_gb, 1e9)


@pytest.mark.parametrize("name", TABLE)
def test_active_parameters_and_weights_per_step(name):
    """bf16: two bytes a parameter, so that both columns are one sum."""
    row = TABLE[name]
    total = base_weights(name) + 2 * _vectors(name)
    assert total / 2 == printed(row.active, 1e9)
    assert total == printed(row.weights, 1e9)


@pytest.mark.parametrize("name", TABLE)
def test_verify_of_seven(name):
    assert verify_weights(name, 7) + 2 * _vectors(name) == printed(TABLE[name].verify, 1e9)


@pytest.mark.parametrize("name", TABLE)
def test_fp8_weights(name):
    """Less the second byte of what stays in bf16, and the scales, ``--weights fp8`` is the table's half."""
    row, step = TABLE[name], ideal(name, 1).base_step
    kept = sum(summed(step, "verify", "weights", group) for group in ("router", "lm_head", "small"))
    for ours, figure in (
        (base_weights(name, weights="fp8"), row.weights_fp8),
        (verify_weights(name, 7, weights="fp8"), row.verify_fp8),
    ):
        linear = (ours - kept) / (1 + FP8_SCALES)
        assert linear + kept / 2 + _vectors(name) == printed(figure, 1e9)


@pytest.mark.parametrize("name", TABLE)
def test_lm_head(name):
    assert summed(ideal(name, 1).base_step, "verify", "weights", "lm_head") / 2 == printed(TABLE[name].lm_head, 1e6)


@pytest.mark.parametrize("name", WITH_HEAD)
def test_draft_step(name):
    row = TABLE[name]
    total, lm_head = narrow_weights(name), narrow_weights(name, "lm_head")
    vectors = 2 * _vectors(name, head=True)
    assert (total - lm_head + vectors) / 2 == printed(row.mtp, 1e6)
    assert total + vectors == printed(row.draft_step, 1e9)
    assert 100 * lm_head / (total + vectors) == printed(row.lm_head_share)


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_distinct_experts(name):
    """The bytes of the expert kernels of a verify, over those of a base step, which touch top-k experts."""
    four, seven, experts = TABLE[name].distinct
    moe = next(c for b in wmtp_sim.load_model(name).blocks for c in b.channels if c.kind == "moe")
    assert moe.experts == experts
    one_row = summed(ideal(name, 1).base_step, "verify", "weights", "moe")
    for rows, figure in ((4, four), (7, seven)):
        touched = summed(ideal(name, rows - 1).steps["native"], "verify", "weights", "moe")
        assert moe.top_k * touched / one_row == printed(figure)
