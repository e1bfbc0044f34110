"""The committed grid of estimates: what is asked, and how an answer is written down.

``make drift`` rewrites ``grid.json``; look at the diff before committing it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import wmtp_sim
from wmtp_sim.catalog.models import load_model, model_names
from wmtp_sim.decide.verdict import WORDS, verdict_of
from wmtp_sim.render.breakeven.document import breakeven_document
from wmtp_sim.render.breakeven.start import opening
from wmtp_sim.render.breakeven.table import CostTable

PATH = Path(__file__).parent / "grid.json"
#: (GPU, engine, context, depth, batch, extra), asked of every shipped model.
ASKED = (
    ("h200", "ideal", 1_048_576, 6, 1, {}),
    ("h200", "sglang", 1_048_576, 6, 1, {}),
    ("h200", "vllm", 131_072, 3, 8, {"overlap": 0.3}),
    ("b200", "sglang", 32_768, 2, 32, {"kv": "fp8", "tp": 4}),
    ("h200", "sglang", 32_768, 2, 32, {"dp": 2, "dp_attention": True}),
    ("h200", "trtllm", 131_072, 3, 4, {}),
    ("rtx-4090", "llama.cpp", 32_768, 3, 1, {}),
)
#: (model, GPU, drafter, extra): small models that draft for large ones.
MODEL_DRAFTERS = (
    ("llama-3.1-70b", "h200", "llama-3.2-1b", {"tp": 2}),
    ("llama-3.1-70b", "a100-sxm-80gb", "llama-3.1-8b", {"tp": 4, "draft_tp": 1}),
    ("qwen3-235b-a22b", "b200", "qwen3-8b", {"tp": 8}),
    ("qwen3-8b", "rtx-4090", "qwen3-30b-a3b", {"kv": "fp8"}),
    ("nemotron-3-super-120b-a12b", "h200", "nemotron-3-nano-30b-a3b", {"tp": 2}),
)
#: (model, GPU, engine): windows, depths (0 too) and contexts as ranges, steps that draft nothing among them.
SWEPT = (
    ("qwen3.5-35b-a3b", "h200", "sglang"),
    ("qwen3.5-122b-a10b-nvfp4", "b200", "sglang@26.06"),
    ("deepseek-v3.2", "b200", "sglang@pre-tiling"),
    ("glm-4.5-air", "h200", "vllm@0.26"),
    ("mimo-7b", "rtx-4090", "vllm"),
    ("mimo-v2-flash", "h200", "sglang"),
    ("qwen3.6-27b", "rtx-3090", "vllm@pre-split"),
    ("nemotron-3-super-120b-a12b", "h100", "bench"),
)
RANGES = {"context": [4_096, 131_072, 1_048_576], "depth": [0, 1, 3, 7], "window": [256, 4_032, 262_144]}
#: (model, GPU, engine): pages of break-even.
PAGES = (("qwen3.5-35b-a3b", "h200", "sglang"), ("glm-4.5-air", "h200", "vllm"), ("step-3.5-flash", "b200", "trtllm"))
Numbers = dict[str, Any]


def points() -> list[Numbers]:
    """Every question and its answer."""
    return [*_models(), *_model_drafters(), *_swept(), *_pages()]


def _models() -> Iterator[Numbers]:
    """Every shipped model at every asked-for point; models without a head draft with an EAGLE head or not at all."""
    for name in model_names():
        for gpu, engine, context, depth, batch, more in ASKED:
            drafter = "mtp" if load_model(name).mtp else "eagle"
            asked = dict(context=context, depth=depth, batch=batch, engine=engine, drafter=drafter, alpha=0.7, **more)
            try:
                answer = wmtp_sim.estimate(name, gpu, **asked)
            except wmtp_sim.InputError:  # no attention that an EAGLE head could copy
                asked |= {"depth": 0, "drafter": "none"}
                answer = wmtp_sim.estimate(name, gpu, **asked)
            yield {"model": name, "gpu": gpu, **asked, "answer": written(answer)}


def _model_drafters() -> Iterator[Numbers]:
    for name, gpu, drafter, more in MODEL_DRAFTERS:
        for engine in ("sglang", "vllm", "ideal"):
            asked = dict(context=32_768, depth=4, batch=4, engine=engine, drafter=drafter, alpha=0.7, **more)
            answer = wmtp_sim.estimate(name, gpu, **asked)
            yield {"model": name, "gpu": gpu, **asked, "answer": written(answer)}


def _swept() -> Iterator[Numbers]:
    context, depth, window = wmtp_sim.open_grid(*RANGES.values())
    for name, gpu, engine in SWEPT:
        answer = wmtp_sim.estimate(
            name, gpu, context=context, depth=depth, window=window, batch=2, engine=engine, alpha=0.7
        )
        yield {"model": name, "gpu": gpu, "engine": engine, "swept": True, "answer": written(answer)}


def _pages() -> Iterator[Numbers]:
    axes = wmtp_sim.open_grid([8_192, 524_288], [1, 4], [1_024, 4_032], [1, 16])
    for name, gpu, engine in PAGES:
        context, depth, window, batch = axes
        grid = wmtp_sim.estimate(name, gpu, context=context, depth=depth, window=window, batch=batch, engine=engine)
        table = CostTable(grid)
        document = breakeven_document(table, opening(table, {"depth": 4}, accept_length=3.0))
        yield {"model": name, "gpu": gpu, "engine": engine, "page": True, "answer": dict(_flat(document))}


def written(answer: wmtp_sim.Estimate) -> Numbers:
    """The numbers that must not drift unnoticed."""
    numbers = {"base.step_s": answer.base.step_s}
    if answer.idle is not None:
        numbers["idle.step_s"] = answer.idle.step_s
    for policy, result in answer.policies.items():
        numbers |= {f"{policy}.{term}_s": seconds for term, seconds in result.cost.terms.items()}
        numbers[f"{policy}.high_s"] = result.cost.high_s
        numbers[f"{policy}.bound_s"] = result.cost.bound_s
        numbers[f"{policy}.speedup"] = result.speedup
    for name, memory in answer.memory.items():
        numbers[f"memory.{name}.total_bytes"] = memory.total_bytes
        numbers[f"memory.{name}.max_context"] = memory.max_context
    if answer.policies:
        verdict = verdict_of(answer)
        numbers["verdict.low"], numbers["verdict.high"] = verdict.gain.low, verdict.gain.high
        numbers["verdict.word"] = np.where(verdict.word < 0, len(WORDS), verdict.word)
    return {name: _digits(values) for name, values in numbers.items()}


def _digits(values: Any) -> Any:
    """Ten digits of a number, or of every number of an array; what is not finite as a word."""
    rounded = [float(f"{value:.10g}") if np.isfinite(value) else str(value) for value in np.ravel(values).tolist()]
    return rounded if np.ndim(values) else rounded[0]


def _flat(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a document by its path; words stay as they are."""
    if isinstance(document, dict):
        for name, value in document.items():
            yield from _flat(value, f"{path}.{name}" if path else name)
    elif isinstance(document, list) and any(isinstance(value, dict | str) for value in document):
        for place, value in enumerate(document):
            yield from _flat(value, f"{path}.{place}")
    elif isinstance(document, list):
        yield path, _digits(np.array(document, dtype=float))
    else:
        yield path, _digits(document) if isinstance(document, float) else document


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(point) for point in points())
    PATH.write_text(f"[\n{lines}\n]\n")
