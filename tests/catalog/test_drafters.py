"""External drafters: how their weights are stored, and where a trained head's projections are written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import wmtp_sim
from wmtp_sim.catalog.drafter_kinds import drafter_kinds, reading
from wmtp_sim.catalog.drafters import load_drafter
from wmtp_sim.catalog.fields import Fields
from wmtp_sim.catalog.models import catalog_folder, load_model, model_names
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
    assert (llama.own_lm_head, nemotron.own_lm_head) == (False, True)
    assert (llama.embedding_rows, nemotron.embedding_rows) == (128_256, 131_072)
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


# --- heads in circulation --------------------------------------------------------------------------------------

#: The format of vllm-project/speculators: sizes of the layer in an object of their own, the verifier by name.
SPECULATORS: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "draft_vocab_size": 32_000,
    "norm_before_residual": True,
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "Qwen/Qwen3-8B"}},
    "transformer_layer_config": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 1,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
    },
}
#: A head of 6144 for a target of 8192 (sglang PR 4716).
NARROWER: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 6144,
    "target_hidden_size": 8192,
    "intermediate_size": 16_384,
    "num_hidden_layers": 1,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "draft_vocab_size": 32_000,
}
#: Published EAGLE-1 heads call themselves what their target does.
EAGLE1: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "bias": True,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


def head(config: dict[str, Any], target: str, folder: Path) -> Drafter:
    path = folder / "head.json"
    path.write_text(json.dumps(config))
    return loaded(str(path), target)


def test_a_head_in_the_speculators_format(tmp_path: Path) -> None:
    """The target's embedding is shared; three of its hidden states come in; q, k and v read [embedding, hidden]."""
    drafter = head(SPECULATORS, "qwen3-8b", tmp_path)
    h, q, kv = 4096, 32 * 128, 8 * 128
    layer = 2 * h * (q + 2 * kv) + q * h + 3 * h * 12_288 + 3 * h
    params = 3 * h * h + layer + h + 32_000 * h
    assert params == 399_523_840
    assert drafter_weight_bytes(drafter) == 2 * params
    assert (drafter.kind, drafter.vocab, drafter.embedding_rows) == ("eagle", 32_000, 0)


def test_a_head_narrower_than_its_target(tmp_path: Path) -> None:
    """Embeddings 8192 wide do not fit a head of 6144: it brings its own, over the target's whole vocabulary."""
    drafter = head(NARROWER, "llama-3.1-70b", tmp_path)
    h, q, kv = 6144, 48 * 128, 8 * 128
    layer = 2 * h * (q + 2 * kv) + q * h + 3 * h * 16_384 + 3 * h
    params = 3 * 8192 * h + layer + h + 32_000 * h + 128_256 * h
    assert params == 1_576_034_304
    assert drafter_weight_bytes(drafter) == 2 * params
    assert drafter.hidden == h


def test_an_eagle_1_head(tmp_path: Path) -> None:
    """Embedding and lm_head are the target's; 2h are joined to h with a bias; no norm but the one before the MLP."""
    drafter = head(EAGLE1, "llama-3.1-8b", tmp_path)
    h, q, kv = 4096, 32 * 128, 8 * 128
    layer = h * (q + 2 * kv) + q * h + 3 * h * 14_336 + h
    params = (2 * h + 1) * h + layer
    assert params == 251_666_432  # 0.5 GB, where a whole model of one layer has 1.27e9
    assert drafter_weight_bytes(drafter) == 2 * params
    assert (drafter.kind, drafter.vocab) == ("eagle", 128_256)
    named = EAGLE1 | {"architectures": ["EagleLlamaForCausalLM"]}
    assert head(named, "llama-3.1-8b", tmp_path) == drafter
    unbiased = head({key: value for key, value in named.items() if key != "bias"}, "llama-3.1-8b", tmp_path)
    assert drafter_weight_bytes(unbiased) == 2 * (params - h)


def test_an_eagle_1_pass_reads_what_it_should(tmp_path: Path) -> None:
    """A narrow pass: fc, the layer, and the target's lm_head over the whole vocabulary."""
    path = tmp_path / "head.json"
    path.write_text(json.dumps(EAGLE1))
    answer = wmtp_sim.estimate("llama-3.1-8b", "h100", context=2048, depth=2, drafter=str(path), engine="ideal")
    read = sum(float(e.operation.weights) for e in answer.steps["native"].entries if e.term == "draft")
    h = 4096
    assert read == 2 * (2 * h * h + h * (h + 2048) + h * h + 3 * h * 14_336 + 128_256 * h)


def test_the_target_s_own_lm_head_keeps_its_format(tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    path.write_text(json.dumps(EAGLE1))
    stored = {"weights": "fp8", "head_weights": "fp8"}
    answer = wmtp_sim.estimate("llama-3.1-8b", "h100", context=2048, drafter=str(path), **stored)
    assert answer.drafter is not None
    assert answer.drafter.formats == GroupFormats(lm_head="fp8")


@pytest.mark.parametrize(
    ("config", "target", "says"),
    [
        (
            NARROWER | {"target_hidden_size": 4096},
            "llama-3.1-70b",
            "target_hidden_size: 4096 differs from the target's",
        ),
        (
            {k: v for k, v in NARROWER.items() if k != "target_hidden_size"},
            "llama-3.1-70b",
            "states target_hidden_size",
        ),
        (SPECULATORS, "llama-3.1-8b", "transformer_layer_config: vocab_size: 151936 differs from the target's 128256"),
        (EAGLE1 | {"architectures": ["EagleSpeculator"], "layernorms": True}, "llama-3.1-8b", "layernorms: true"),
        ({k: v for k, v in EAGLE1.items() if k != "bias"}, "llama-3.1-8b", "may be an EAGLE-1 head or a draft model"),
    ],
)
def test_heads_that_do_not_fit(config: dict[str, Any], target: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"head\.json: ") as refused:
        head(config, target, tmp_path)
    assert says in str(refused.value)
    assert refused.value.hint


# --- what is not priced ----------------------------------------------------------------------------------------

BLOCK: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "block_size": 16,
    "dflash_config": {"mask_token_id": 151_669, "target_layer_ids": [1, 9, 17, 25, 33]},
    "num_target_layers": 36,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
}


@pytest.mark.parametrize("kind", [kind for kind in drafter_kinds() if kind.reads is None], ids=lambda kind: kind.what)
def test_every_word_of_an_unpriced_kind_refuses(kind: Any) -> None:
    plain = json.loads((catalog_folder() / "qwen3-8b.json").read_text())
    words = [("architectures", {"architectures": [name]}) for name in kind.architectures]
    words += [("speculators_model_type", {"speculators_model_type": name}) for name in kind.algorithms]
    words += [("speculators_config", {"speculators_config": {"algorithm": name}}) for name in kind.algorithms]
    words += [("model_type", {"architectures": None, "model_type": name}) for name in kind.model_types]
    words += [(name, {name: 16}) for name in kind.markers]
    assert words
    for field, change in words:
        with pytest.raises(InputError) as refused:
            reading(Fields(plain | change, "head.json"), load_model("qwen3-8b"))
        assert refused.value.field == f"head.json: {field}"
        assert kind.what in refused.value.problem


def test_a_marker_that_says_no_is_none() -> None:
    plain = json.loads((catalog_folder() / "qwen3-8b.json").read_text())
    for no in (None, False):
        assert reading(Fields(plain | {"block_size": no}, "draft.json"), load_model("qwen3-8b")) == "model"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"architectures": ["Qwen3ForCausalLMEagle9"]}, "architectures"),
        ({"architectures": ["Qwen3ForCausalLM", "NewDraftModel"]}, "architectures"),
        ({"speculators_model_type": "oracle"}, "speculators_model_type"),
    ],
)
def test_what_nobody_knows_is_refused_by_name(change: dict[str, Any], field: str) -> None:
    plain = json.loads((catalog_folder() / "qwen3-8b.json").read_text())
    with pytest.raises(InputError, match="is no drafter that is known; give --drafter mtp") as refused:
        reading(Fields(plain | change, "head.json"), load_model("qwen3-8b"))
    assert refused.value.field == f"head.json: {field}"


@pytest.mark.parametrize("name", model_names())
def test_every_shipped_model_may_draft(name: str) -> None:
    """As a file: by its own architectures, without one marker of a head."""
    document = json.loads((catalog_folder() / f"{name}.json").read_text())
    assert reading(Fields(document, "config.json"), load_model("llama-3.1-8b")) == "model"
