"""External drafters: how their weights are stored, and where a trained head's projections are written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import wmtp_sim
from wmtp_sim.catalog.drafters import load_drafter
from wmtp_sim.catalog.models import load_model
from wmtp_sim.errors import InputError
from wmtp_sim.spec.drafter import Drafter, mtp_drafter
from wmtp_sim.spec.precision import LINEAR_GROUPS, GroupFormats
from wmtp_sim.work.resident import drafter_weight_bytes
from wmtp_sim.work.weights import mtp_params

HEAD = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "intermediate_size": 14_336,
    "draft_vocab_size": 32_000,
}


@pytest.fixture(params=["eagle", "head.json", "llama-3.2-1b"])
def reference(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param != "head.json":
        return str(request.param)
    path = tmp_path / "head.json"
    path.write_text(json.dumps(HEAD))
    return str(path)


def loaded(reference: str, target: str = "llama-3.1-8b", draft_weights: str | None = None) -> Drafter:
    drafter = load_drafter(reference, load_model(target), draft_weights)
    assert drafter is not None
    return drafter


# --- --draft-weights -------------------------------------------------------------------------------------------


def test_linear_layers_are_stored_as_asked(reference: str) -> None:
    plain, stored = loaded(reference), loaded(reference, draft_weights="int4")
    assert plain.formats == GroupFormats()
    for group in GroupFormats.model_fields:
        assert getattr(stored.formats, group) == ("int4" if group in LINEAR_GROUPS else "bf16")
    assert stored == plain.model_copy(update={"formats": stored.formats})
    assert drafter_weight_bytes(stored) < drafter_weight_bytes(plain)


def test_an_estimate_prices_them(reference: str) -> None:
    asked: dict[str, Any] = {"context": 4096, "drafter": reference, "engine": "ideal"}
    plain = wmtp_sim.estimate("llama-3.1-8b", "h200", **asked)
    stored = wmtp_sim.estimate("llama-3.1-8b", "h200", **asked, draft_weights="fp8")
    assert stored.policies["ring"].cost.terms["draft"] < plain.policies["ring"].cost.terms["draft"]
    assert stored.base.step_s == plain.base.step_s
    assert stored.memory["native"].weights_bytes < plain.memory["native"].weights_bytes


def test_a_checkpoint_that_states_its_formats_keeps_them() -> None:
    assert loaded("deepseek-v3", "deepseek-r1").formats == load_model("deepseek-v3").precision.target
    says = r"^--draft-weights: 'bf16', but the checkpoint of deepseek-v3 states its own formats; drop the flag$"
    with pytest.raises(InputError, match=says):
        loaded("deepseek-v3", "deepseek-r1", "bf16")


def test_unknown_formats_are_refused(reference: str) -> None:
    with pytest.raises(InputError, match=r"^--draft-weights: unknown weight format 'fp3'"):
        loaded(reference, draft_weights="fp3")


def test_a_trained_head_is_stored_as_the_target_says() -> None:
    drafter = wmtp_sim.estimate("qwen3.5-27b", "h200", context=4096, draft_weights="fp8").drafter
    assert drafter is not None
    assert drafter.formats == GroupFormats().with_linear("fp8")


# --- what a drafter is -----------------------------------------------------------------------------------------


def test_a_draft_model_brings_its_states_and_embeddings() -> None:
    llama, nemotron = loaded("llama-3.2-1b"), loaded("nemotron-h-8b", "nemotron-3-nano-30b-a3b")
    assert (llama.tied_embeddings, nemotron.tied_embeddings) == (True, False)
    assert nemotron.state_dtype_bytes == load_model("nemotron-h-8b").state_dtype_bytes
    assert nemotron.blocks == load_model("nemotron-h-8b").blocks


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("qwen3.5-35b-a3b", [("mtp_proj", 4096, 2048)]),
        ("deepseek-v4-pro", [("e_proj", 7168, 7168), ("h_proj", 7168, 7168)]),
    ],
)
def test_projections_are_written_down_once(name: str, shapes: list[tuple[str, int, int]]) -> None:
    """The head's parameters and the drafter's passes take them from the same place."""
    model = load_model(name)
    drafter = mtp_drafter(model)
    assert model.mtp is not None
    assert drafter is not None
    projections = model.mtp.projections(model.hidden)
    assert [(p.name, p.k, p.n) for p in projections] == shapes
    assert drafter.projections == projections
    bare = model.mtp.model_copy(update={"blocks": ()})
    rest = mtp_params(model.model_copy(update={"mtp": bare})) - bare.norms * model.hidden - bare.extra_params
    assert rest == sum(k * n for _, k, n in shapes)
