"""Whole steps of a real engine against ``engine="vllm@0.26"``: the measured step lies inside our 90 % interval.

Measured 2026-11-29 on one NVIDIA H200 (driver 580.159.04, torch 2.11.0+cu130, triton 3.6.0): vLLM 0.26.0,
Qwen3.5-35B-A3B with dummy weights, bf16 weights and KV, fp32 DeltaNet state, TP1, batch 1, V1 runner, torch.compile,
CUDA graphs FULL_AND_PIECEWISE, FlashAttention-3 with at most 32 splits, Triton MoE, synthetic acceptance. Rows of
vllm-h200.jsonl, by id; medians of 40 engine steps, in milliseconds. KV above 128K was filled with random values.

The kernels are those of the shipped profile, measured on the same GPU apart from any engine; FlashAttention-3's points
were measured out of vLLM. The engine file's host times, small kernels and spread were chosen with these steps in sight,
so agreement here is no prediction.
"""

from dataclasses import replace

import pytest

import wmtp_sim
from wmtp_sim.catalog.engines import load_engine

K, M = 1024, 1024**2
SPREAD = load_engine("vllm@0.26").spread
#: id: (context, k, whole step). Where two rows measure one point, the first was prefilled, the second filled.
STEPS = {
    "vllm-h200-001": (4 * K, 0, 4.1725),
    "vllm-h200-004": (4 * K, 0, 4.1839),
    "vllm-h200-003": (128 * K, 0, 5.0801),
    "vllm-h200-006": (128 * K, 0, 5.0699),
    "vllm-h200-009": (M, 0, 10.9979),
    "vllm-h200-054": (4 * K, 3, 7.8387),
    "vllm-h200-057": (4 * K, 3, 7.8451),
    "vllm-h200-056": (128 * K, 3, 9.0012),
    "vllm-h200-061": (128 * K, 3, 8.9459),
    "vllm-h200-067": (M, 3, 16.6841),
}
#: Context: CUDA-event spans of the k = 3 steps 057, 061 and 067: target without lm_head, logits and sampling, draft.
SPANS = {4 * K: (5.931, 0.3446, 1.3066), 128 * K: (6.8038, 0.3447, 1.5751), M: (12.7559, 0.3439, 3.358)}
#: Microseconds of the small kernels around the experts of 40 layers, at 1.5 each.
AROUND = 40 * 4 * 1.5
#: (Context, k): microseconds of kernel classes in traces of 6 steps (kernels overlap a little). The trace counts the
#: kernels that align, activate and sum experts (four a layer, 40 layers) as small ones; our moe holds them.
TRACES = {
    (128 * K, 0): {"attention": 969 + 49, "moe": 868 + AROUND, "gemm": 2205 + 243, "recurrent": 155},
    (M, 0): {"attention": 6899 + 50, "moe": 868 + AROUND, "gemm": 2201 + 248, "recurrent": 155},
    (128 * K, 3): {"attention": 998 + 61, "moe": 2475 + AROUND, "gemm": 2107 + 245, "recurrent": 299},
    (M, 3): {"attention": 6944 + 61, "moe": 2481 + AROUND, "gemm": 2097 + 245, "recurrent": 298},
}
#: The same for the three draft passes of k = 3.
DRAFT_TRACES = {
    128 * K: {"attention": 302 + 26, "moe": 184 + 3 * AROUND / 40, "gemm": 161 + 726},
    M: {"attention": 2087 + 25, "moe": 182 + 3 * AROUND / 40, "gemm": 160 + 730},
}


def step(context: int, k: int):
    """A step of a release without a draft window: native."""
    found = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", context=context, depth=k, engine="vllm@0.26")
    return found.steps["native"] if k else found.base_step


def spans(context: int, k: int, *terms: str, kernel: str = "") -> list[float]:
    """Low, expected and high milliseconds of the kernels of some terms, as the engine's definition may be off.

    Of one kernel class, as a trace counts it: a launch that hides behind another stream's takes its time there.
    """
    found = step(context, k)
    entries = [e for e in found.entries if e.term in terms]
    timings = [e.timing for e in entries]
    if kernel:
        shown = [replace(e.operation, launches=e.operation.launches or 1.0) for e in entries]
        timings = [found.machine.time(operation) for operation in shown if operation.kernel == kernel]
    low, expected, high = (1e3 * float(sum(getattr(t, field) for t in timings)) for field in ("low", "seconds", "high"))
    return [low / SPREAD, expected, high * SPREAD]


@pytest.mark.parametrize("row", STEPS)
def test_step_is_inside_the_interval(row):
    context, k, measured = STEPS[row]
    total = step(context, k).total
    assert total.low * 1e3 < measured < total.high * 1e3


@pytest.mark.parametrize("row", STEPS)
def test_expected_step(row):
    context, k, measured = STEPS[row]
    assert step(context, k).seconds * 1e3 == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("context", SPANS)
def test_target_and_draft(context):
    """Our lm_head is part of verify: target, logits and sampling are compared together; draft with its wide pass."""
    target, logits, draft = SPANS[context]
    low, expected, high = spans(context, 3, "verify", "sample")
    assert low < target + logits < high
    assert expected == pytest.approx(target + logits, rel=0.05)
    low, expected, high = spans(context, 3, "draft", "extend")
    assert low < draft < high
    assert expected == pytest.approx(draft, rel=0.05)


@pytest.mark.parametrize(("context", "k"), TRACES)
def test_kernel_classes_of_the_target(context, k):
    """Attention with combine, dense products with lm_head, DeltaNet without its convolution (a small kernel of ours).

    Experts miss by a little more: how much of what surrounds them is theirs is our guess (`AROUND`).
    """
    near = {"attention": 0.06, "gemm": 0.06, "moe": 0.09, "recurrent": 0.1}
    for kernel, measured in TRACES[context, k].items():
        _, expected, _ = spans(context, k, "verify", kernel=kernel)
        assert expected == pytest.approx(measured / 1e3, rel=near[kernel]), kernel


@pytest.mark.parametrize("context", DRAFT_TRACES)
def test_kernel_classes_of_the_draft(context):
    """One wide and two narrow passes, which vLLM pads to four rows."""
    for kernel, measured in DRAFT_TRACES[context].items():
        _, expected, _ = spans(context, 3, "draft", "extend", kernel=kernel)
        assert expected == pytest.approx(measured / 1e3, rel=0.06), kernel


def test_what_speculation_costs():
    """Accept length from which native drafting pays: measured 1.87, 1.76 and 1.52 at 4K, 128K and 1M."""
    for context, base, drafted in ((4 * K, 4.1725, 7.8387), (128 * K, 5.0801, 9.0012), (M, 10.9979, 16.6841)):
        answer = wmtp_sim.estimate("qwen3.5-35b-a3b", "h200", context=context, depth=3, engine="vllm@0.26")
        ours = answer.policies["native"].break_even_accept_length
        assert ours == pytest.approx(drafted / base, rel=0.15)
