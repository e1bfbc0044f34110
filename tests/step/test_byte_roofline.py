"""The ideal engine against byte arithmetic done by hand elsewhere: Qwen3.5-35B-A3B, batch 1, 4.8 TB/s.

The reference is a table worked out by hand (bytes over 4.8 TB/s, no FLOPs, no latency). It counts norms and the
router at the linear layers' width, and no activations; both stay below 1 %. It commits accepted states as SGLang does.
"""

import numpy as np
import pytest

import wmtp_sim
from wmtp_sim.catalog.engines import load_engine

BANDWIDTH = 4.8e12
MODEL = "qwen3.5-35b-a3b"
COPYING = load_engine("ideal", ["state.commit_copies=2"])


def ideal(context, depth, weights=None, **more):
    formats = {"weights": weights, "draft_weights": weights} if weights else {}
    return wmtp_sim.estimate(MODEL, "h200", context=context, depth=depth, engine=COPYING, **formats, **more)


def gigabytes(step, *terms):
    return sum(float(e.operation.bytes * e.operation.repeats) for e in step.entries if e.term in terms) / 1e9


@pytest.mark.parametrize(
    ("weights", "base", "verify_4", "verify_7"),
    [(None, 27.3, 33.3, 38.65), ("fp8", 24.9, 28.0, 30.8)],
)
def test_target_gigabytes(weights, base, verify_4, verify_7):
    """Verify includes the snapshots and the commit of the recurrent states."""
    deep = ideal(1_040_000, 6, weights)
    assert gigabytes(deep.base_step, "verify") == pytest.approx(base, rel=0.01)
    assert gigabytes(deep.steps["native"], "verify", "sample") == pytest.approx(verify_7, rel=0.01)
    shallow = ideal(1_040_000, 3, weights)
    assert gigabytes(shallow.steps["native"], "verify", "sample") == pytest.approx(verify_4, rel=0.01)


@pytest.mark.parametrize(
    ("policy", "decode", "extend"), [("native", 16.1, 3.36), ("flag", 5.49, 3.36), ("ring", 5.49, 1.23)]
)
def test_draft_gigabytes(policy, decode, extend):
    """fp8 head with a bf16 projection and lm_head; five narrow passes and one wide one at depth 6."""
    step = ideal(1_040_000, 6, "fp8").steps[policy]
    assert gigabytes(step, "draft") == pytest.approx(decode, rel=0.01)
    assert gigabytes(step, "extend") == pytest.approx(extend, rel=0.01)


#: Percent margins over native (flag, ring) by weights, depth and context; None where the table prints none.
MARGINS = {
    ("fp8", 3): {131_072: (4.0, 6.1), 262_144: (6.6, 10.3), 524_288: (9.7, 15.3), 1_040_000: (12.7, 20.3)},
    ("fp8", 6): {
        32_768: (1.7, 2.1),
        131_072: (6.8, 8.3),
        262_144: (11.9, 14.7),
        524_288: (19.0, 23.7),
        1_040_000: (26.8, 33.9),
    },
    (None, 3): {262_144: (4.9, 7.6), 524_288: (7.8, 12.1), 1_040_000: (10.9, 17.2)},
    (None, 6): {131_072: (4.7, 5.7), 262_144: (8.7, 10.6), 524_288: (14.7, 18.1), 1_040_000: (22.1, 27.8)},
}


@pytest.mark.parametrize(
    ("weights", "depth", "context", "flag", "ring"),
    [(w, d, s, *pair) for (w, d), row in MARGINS.items() for s, pair in row.items()],
)
def test_margins(weights, depth, context, flag, ring):
    """A margin printed to 0.1 point; 1 % of the step it is made of moves it by at most 0.3 points here."""
    answer = ideal(context, depth, weights)
    assert 100 * answer.policies["flag"].margin == pytest.approx(flag, abs=0.3)
    assert 100 * answer.policies["ring"].margin == pytest.approx(ring, abs=0.3)


@pytest.mark.parametrize(
    ("weights", "depth", "native", "ring"),
    [("fp8", 3, 1.52, 1.26), ("fp8", 6, 2.02, 1.51), (None, 3, 1.58, 1.35), (None, 6, 2.14, 1.68)],
)
def test_break_even_accept_lengths(weights, depth, native, ring):
    answer = ideal(1_040_000, depth, weights)
    assert answer.policies["native"].break_even_accept_length == pytest.approx(native, rel=0.01)
    assert answer.policies["ring"].break_even_accept_length == pytest.approx(ring, rel=0.01)


@pytest.mark.parametrize(("weights", "ring"), [("fp8", 7.8), (None, 6.9)])
def test_depth_one(weights, ring):
    """No narrow pass at depth 1: the flag changes nothing, the ring still windows the wide pass."""
    answer = ideal(1_040_000, 1, weights)
    assert answer.policies["flag"].margin == 0
    assert 100 * answer.policies["ring"].margin == pytest.approx(ring, abs=0.3)


def test_b200_nvfp4_target():
    """NVFP4 target, bf16 head, 8 TB/s: dense 3.0, native 5.9, ring 4.3 ms."""
    b200 = wmtp_sim.load_gpu("b200").model_copy(update={"hbm_bandwidth_bytes_per_s": 8e12})
    answer = wmtp_sim.estimate(MODEL, b200, context=1_040_000, depth=6, weights="nvfp4", engine=COPYING)
    got = [answer.base.step_s, answer.policies["native"].cost.step_s, answer.policies["ring"].cost.step_s]
    assert np.array(got) * 1e3 == pytest.approx([3.0, 5.9, 4.3], abs=0.06)


def test_ideal_is_its_own_speed_of_light():
    answer = ideal(1_040_000, 6)
    for result in answer.policies.values():
        assert result.cost.bound_s == pytest.approx(result.cost.step_s, rel=1e-12)
        assert result.cost.low_s == pytest.approx(result.cost.high_s, rel=1e-12)
