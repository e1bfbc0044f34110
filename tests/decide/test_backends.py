"""Another attention backend: named where it gives more, and one that runs there."""

from __future__ import annotations

import pytest

import wmtp_sim
from wmtp_sim.catalog.gpus import load_gpu
from wmtp_sim.decide.backends import WORTH_SAYING, OtherBackend, better_backend


def better(gpu: str, engine: str = "vllm", **more) -> OtherBackend | None:
    asked = {"context": 32_768, "alpha": 0.75, "kv": "bf16"} | more
    return better_backend(wmtp_sim.recommend("qwen3.6-27b", gpu, engine=engine, **asked))


def test_flashinfer_splits_what_flash_attention_2_does_not() -> None:
    found = better("rtx-3090", tp=2, weights="int4")
    assert found is not None
    assert found.backend == "FLASHINFER"
    assert found.option.depth > 0
    assert found.more > 1 / 3


def test_none_is_named_where_the_default_splits() -> None:
    assert better("h200") is None


@pytest.mark.parametrize("kv", ["bf16", "fp8"])
@pytest.mark.parametrize("gpu", ["rtx-3090", "a100-sxm-80gb", "l40s", "rtx-5090", "h100-sxm", "b200", "mi300x"])
def test_what_is_named_runs_there_and_is_worth_saying(gpu: str, kv: str) -> None:
    found = better(gpu, tp=2, kv=kv)
    if found is not None:
        engine = wmtp_sim.recommend(
            "qwen3.6-27b", gpu, engine="vllm", context=32_768, alpha=0.75
        ).space.deployment.engine
        kv_bytes = {"bf16": 2.0, "fp8": 1.0}[kv]
        assert engine.runs(found.backend, load_gpu(gpu), kv_bytes, sinks=False)
        assert found.more > WORTH_SAYING
