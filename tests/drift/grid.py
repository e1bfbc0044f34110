"""The committed grid of estimates: what is asked, and how an answer is written down.

``make drift`` rewrites ``grid.json``; look at the diff before committing it.
"""

import json
from pathlib import Path

import wmtp_sim
from wmtp_sim.catalog.models import load_model, model_names

PATH = Path(__file__).parent / "grid.json"
#: (GPU, engine, context, depth, batch, extra): one deep long-context point, one shallow batched one.
ASKED = (
    ("h200", "ideal", 1_048_576, 6, 1, {}),
    ("h200", "sglang", 1_048_576, 6, 1, {}),
    ("h200", "vllm", 131_072, 3, 8, {"overlap": 0.3}),
    ("b200", "sglang", 32_768, 2, 32, {"kv": "fp8", "tp": 4}),
    ("h200", "sglang", 32_768, 2, 32, {"dp": 2, "dp_attention": True}),
)


def points() -> list[dict]:
    """Every shipped model at every asked-for point; models without a head draft with an EAGLE head or not at all."""
    found = []
    for name in model_names():
        for gpu, engine, context, depth, batch, more in ASKED:
            drafter = "mtp" if load_model(name).mtp else "eagle"
            asked = dict(context=context, depth=depth, batch=batch, engine=engine, drafter=drafter, alpha=0.7, **more)
            try:
                answer = wmtp_sim.estimate(name, gpu, **asked)
            except wmtp_sim.InputError:  # no attention that an EAGLE head could copy
                asked |= {"depth": 0, "drafter": "none"}
                answer = wmtp_sim.estimate(name, gpu, **asked)
            found.append({"model": name, "gpu": gpu, **asked, "answer": written(answer)})
    return found


def written(answer: wmtp_sim.Estimate) -> dict[str, float]:
    """The numbers that must not drift unnoticed."""
    numbers = {"base.step_s": float(answer.base.step_s)}
    for policy, result in answer.policies.items():
        numbers |= {f"{policy}.{term}_s": float(seconds) for term, seconds in result.cost.terms.items()}
        numbers[f"{policy}.high_s"] = float(result.cost.high_s)
        numbers[f"{policy}.bound_s"] = float(result.cost.bound_s)
        numbers[f"{policy}.speedup"] = float(result.speedup)
    for name, memory in answer.memory.items():
        numbers[f"memory.{name}.total_bytes"] = float(memory.total_bytes)
        numbers[f"memory.{name}.max_context"] = float(memory.max_context)
    return {key: float(f"{value:.10g}") for key, value in numbers.items()}


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(point) for point in points())
    PATH.write_text(f"[\n{lines}\n]\n")
