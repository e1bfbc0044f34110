"""Prints the tables of docs/accuracy.md: ``python -m tests.accuracy kernels``, ``steps``, ``vllm`` or ``paper``."""

import sys
from pathlib import Path

import wmtp_sim
from tests.step.test_vllm_h200 import STEPS, step
from wmtp_sim.api import validate
from wmtp_sim.catalog.profiles import load_profile

#: Published steps, ms (S: second-hand, R: the reproduction package's README): native, ring, and dense from the TPOTs.
PAPER = {
    "qwen3.6-35b-a3b-nvfp4": (26.7, 18.4, 9.92),
    "qwen3.5-122b-a10b-nvfp4": (33.9, 25.9, 9.55),
    "nemotron-3-super-120b-a12b-nvfp4": (32.8, 25.8, 11.3),
}


def kernels() -> None:
    """Held-out errors of the shipped H200 profile's kernel models."""
    print("class                    points  median   p90  90 % spread  elsewhere")
    models = load_profile("nvidia-h200").kernels
    for name, model in models.items():
        told_apart = any(other.startswith(f"{name}.") for other in models)
        if told_apart or model.median_error is None or model.p90_error is None:
            continue
        elsewhere = f"{model.spread_elsewhere:.2f}" if model.spread_elsewhere else "-"
        errors = f"{model.median_error:>6.1%} {model.p90_error:>6.1%}"
        print(f"{name:<24} {model.points:>5}  {errors}  {model.spread:>11.2f}  {elsewhere:>9}")


def steps() -> None:
    """Whole steps of the bench on an H200: mean absolute errors by run."""
    print("run                            points   base   step  margin (points)  speedup  inside")
    for path in sorted((Path(wmtp_sim.__file__).parent / "data" / "steps").glob("*.json")):
        found = validate(path).summary
        errors = f"{found.base_error:>6.1%} {found.step_error:>6.1%} {found.margin_error_points:>16.2f}"
        print(f"{path.stem:<30} {found.points:>6} {errors}  {found.speedup_error:>7.1%}  {found.coverage:>6.0%}")


def vllm() -> None:
    """Whole steps of vLLM 0.26.0 on an H200, beside the estimate for engine vllm and its range."""
    print("row             context  k  measured ms  predicted ms   error  range")
    for row, (context, k, measured) in STEPS.items():
        total = step(context, k).total
        low, predicted, high = (1e3 * float(value) for value in (total.low, total.seconds, total.high))
        error = f"{predicted / measured - 1:+.1%}"
        print(f"{row}  {context:>8,}  {k}  {measured:>11.2f}  {predicted:>12.2f}  {error:>6}  {low:.2f}..{high:.2f}")


def paper() -> None:
    """The Windowed-MTP paper's steps on a B200, beside the estimate for engine sglang and its range."""
    print("model                             step    published ms  predicted ms  range")
    for model, published in PAPER.items():
        found = wmtp_sim.estimate(model, "b200", context=1_040_000, depth=6, engine="sglang", kv="bf16")
        costs = {"native": found.policies["native"].cost, "ring": found.policies["ring"].cost, "base": found.base}
        for (name, cost), seen in zip(costs.items(), published, strict=True):
            low, predicted, high = (1e3 * float(value) for value in (cost.low_s, cost.step_s, cost.high_s))
            print(f"{model:<32}  {name:<6}  {seen:>12.2f}  {predicted:>12.2f}  {low:.2f}..{high:.2f}")


if __name__ == "__main__":
    {"kernels": kernels, "steps": steps, "vllm": vllm, "paper": paper}[sys.argv[1]]()
