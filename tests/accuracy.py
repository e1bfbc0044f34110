"""Prints the tables of docs/accuracy.md: ``python -m tests.accuracy WHICH``, one of the functions below."""

import statistics
import sys
from collections import defaultdict
from pathlib import Path

import wmtp_sim
from calibration.fit import CLASS_ITSELF
from tests.step import test_sglang_two_gpus as two
from tests.step.test_sglang_steps import STEPS as SGLANG_STEPS
from tests.step.test_sglang_steps import predicted
from tests.step.test_vllm_h200 import STEPS, step
from wmtp_sim.catalog.gpus import gpu_names, load_gpu
from wmtp_sim.catalog.profiles import ELSEWHERE, load_profile, own_calibration, profile_for
from wmtp_sim.decide.estimate import Estimate
from wmtp_sim.step.compose import Step
from wmtp_sim.validation import validate

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
        told_apart = name not in CLASS_ITSELF and any(other.startswith(f"{name}.") for other in models)
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


def sglang() -> None:
    """Whole steps of SGLang 0.5.23 on an H200, beside the estimate for engine sglang and its range."""
    print("depth  draft     window    context  batch  measured ms  predicted ms   error  range")
    errors = []
    for row in SGLANG_STEPS:
        total = predicted(row).total
        low, expected, high = (1e3 * float(value) for value in (total.low, total.seconds, total.high))
        errors.append(expected / row["median_ms"] - 1)
        asked = f"{row['depth']:>5}  {row.get('draft', '-'):<8}  {row.get('window', '-'):>6}  {row['context']:>9,}"
        seen = f"{row['batch']:>5}  {row['median_ms']:>11.2f}  {expected:>12.2f}  {errors[-1]:>+6.1%}"
        print(f"{asked}  {seen}  {low:.2f}..{high:.2f}")
    mean, worst = statistics.fmean(map(abs, errors)), max(map(abs, errors))
    print(f"mean |error| {mean:.1%}, worst {worst:.1%}")


def two_gpus() -> None:
    """Whole steps of SGLang 0.5.23 on two H200s: kernels, collectives (traced and predicted) and steps."""
    print("layout    depth    context  batch  kernels ms  predicted  collectives us  predicted  step ms  predicted")
    kernels, whole = [], []
    for row in two.STEPS:
        expected, total, step = two.kernels_ms(row), two.step_ms(row), row["median_ms"]
        ours = sum(two.collectives(row, kind)[1] for kind in two.TRACED)
        theirs = sum(us for _, _, us in row["collectives"])
        if row["layout"] != "tp-nccl":
            kernels.append(abs(expected / row["busy_ms"] - 1))
            whole += [abs(total / step - 1)] if row not in two.LATE else []
        asked = f"{row['layout']:<8}  {row['depth']:>5}  {row['context']:>9,}  {row['batch']:>5}"
        seen = f"{row['busy_ms']:>10.2f}  {expected:>9.2f}  {theirs:>14.0f}  {ours:>9.0f}"
        late = "  late host" if row in two.LATE else ""
        print(f"{asked}  {seen}  {step:>7.2f}  {total:>9.2f}  {total / step - 1:>+6.1%}{late}")
    print(f"mean |error| of kernels {statistics.fmean(kernels):.1%}, worst {max(kernels):.1%} (without tp-nccl)")
    print(f"mean |error| of steps {statistics.fmean(whole):.1%}, worst {max(whole):.1%} (without late hosts)")


def paper() -> None:
    """The Windowed-MTP paper's steps on a B200, beside engine sglang@26.06, whose terms three of them gave."""
    print("model                             step    published ms  predicted ms   error  range")
    margins = []
    for model, published in PAPER.items():
        found = on_paper(model, 1_040_000)
        costs = {"native": found.policies["native"].cost, "ring": found.policies["ring"].cost, "base": found.base}
        for (name, cost), seen in zip(costs.items(), published, strict=True):
            low, predicted, high = (1e3 * float(value) for value in (cost.low_s, cost.step_s, cost.high_s))
            fitted = " (fitted)" if model == next(iter(PAPER)) else ""
            figures = f"{seen:>12.2f}  {predicted:>12.2f}  {predicted / seen - 1:>+6.1%}"
            print(f"{model:<32}  {name:<6}  {figures}  {low:.2f}..{high:.2f}{fitted}")
        margins.append(
            (model, published[0] / published[1] - 1, float(costs["native"].step_s / costs["ring"].step_s) - 1)
        )
    print()
    print("margin of the ring                published  predicted")
    for model, seen, predicted in margins:
        print(f"{model:<32}  {seen:>9.1%}  {predicted:>9.1%}")


def on_paper(model: str, context: int) -> Estimate:
    return wmtp_sim.estimate(model, "b200", context=context, depth=6, engine="sglang@26.06", kv="bf16")


def saving() -> None:
    """Where the ring's saving comes from, by context, for the paper's first model: milliseconds of a step."""
    print("  context  margin  saved ms  bytes at 7.7 TB/s  attention  slot lists  other")
    for context in (32_768, 131_072, 262_144, 524_288, 1_040_000):
        steps = on_paper("qwen3.6-35b-a3b-nvfp4", context).steps
        native, ring = (_by_kernel(steps[name]) for name in ("native", "ring"))
        saved = {kernel: native[kernel] - ring[kernel] for kernel in native}
        total, moved = sum(saved.values()), _kv_seconds(steps["native"]) - _kv_seconds(steps["ring"])
        attention, lists = saved.pop("attention"), saved.pop("index_build")
        figures = (total * 1e3, moved * 1e3, attention * 1e3, lists * 1e3, sum(saved.values()) * 1e3)
        margin = float(steps["native"].seconds / steps["ring"].seconds) - 1
        shown = "{:>8.2f}  {:>17.2f}  {:>9.2f}  {:>10.2f}  {:>5.2f}".format(*figures)
        print(f"{context:>9,}  {margin:>6.1%}  {shown}")


def _by_kernel(step: Step) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for entry in step.entries:
        found[entry.operation.kernel] += float(entry.timing.seconds)
    return found


def _kv_seconds(step: Step) -> float:
    return float(step.kv_read_bytes("draft", "extend")) / load_gpu("b200").hbm_bandwidth_bytes_per_s


def published(*gpus: str) -> None:
    """Held-out errors of the profiles that were fitted on published tables, class by class; of all GPUs, or of some."""
    print("gpu                            class                        points  median   p90  90 % spread  elsewhere")
    for name in gpus or gpu_names():
        profile = profile_for(load_gpu(name))
        if not profile.by or profile.status != "measured":
            continue
        for kind, model in sorted(profile.kernels.items()):
            told_apart = kind not in CLASS_ITSELF and any(other.startswith(f"{kind}.") for other in profile.kernels)
            if model.points and not model.carried_from and not told_apart:
                errors = f"{model.median_error:>6.1%} {model.p90_error:>6.1%}"
                spreads = f"{model.spread:>11.2f}  {model.spread_elsewhere:>9.2f}"
                print(f"{name:<30} {kind:<28} {model.points:>5}  {errors}  {spreads}")


#: Models whose base steps are compared; they are priced on one GPU whether they fit it or not.
SAMPLED = (
    "llama-3.1-8b",
    "qwen3-30b-a3b",
    "qwen3.5-27b",
    "qwen3.6-35b-a3b-nvfp4",
    "qwen3.5-122b-a10b-nvfp4",
    "gpt-oss-120b",
    "deepseek-v3.1-nvfp4",
)


def transfer() -> None:
    """Base steps on a GPU's published kernels, over those of the H200 profile carried to it: median and extremes."""
    print("gpu                            base step, transferred / own    inside the transferred range")
    for name in gpu_names():
        gpu = load_gpu(name)
        own, carried = profile_for(gpu), own_calibration().transferred(ELSEWHERE)
        if own.status != "measured" or not own.by:
            continue
        ratios, inside = [], []
        for model in SAMPLED:
            for context in (4096, 131_072):
                asked = {"context": context, "depth": 0, "drafter": "none", "engine": "sglang"}
                mine, theirs = (wmtp_sim.estimate(model, gpu, profile=p, **asked).base for p in (own, carried))
                ratios.append(float(theirs.step_s / mine.step_s))
                inside.append(bool(theirs.low_s <= mine.step_s <= theirs.high_s))
        spread = f"{statistics.median(ratios):.2f}  ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{name:<30} {spread:<30} {sum(inside):>3} of {len(inside)}")


WHICH = {
    "kernels": kernels,
    "steps": steps,
    "vllm": vllm,
    "sglang": sglang,
    "two-gpus": two_gpus,
    "paper": paper,
    "saving": saving,
    "published": published,
    "transfer": transfer,
}

if __name__ == "__main__":
    WHICH[sys.argv[1]](*sys.argv[2:])
