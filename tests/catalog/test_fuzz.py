"""Hostile configs: mutated shipped ones are refused by name, or become a model that survives its own JSON."""

from __future__ import annotations

import copy
import json
import math
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wmtp_sim.catalog.families import FAMILIES
from wmtp_sim.catalog.models import catalog_folder, import_config, load_model, model_names
from wmtp_sim.errors import InputError
from wmtp_sim.spec.model import Model

Path = tuple[str, ...]
Document = dict[str, Any]


@cache
def shipped(name: str) -> str:
    return (catalog_folder() / f"{name}.json").read_text()


def paths(document: Document, above: Path = ()) -> list[Path]:
    """Every field, nested ones included."""
    found = []
    for field, value in document.items():
        found.append((*above, field))
        if isinstance(value, dict):
            found += paths(value, (*above, field))
    return found


def holder(document: Document, path: Path) -> Document | None:
    """The object that holds a field; None where another mutation has removed it."""
    inner: Any = document
    for field in path[:-1]:
        inner = inner.get(field) if isinstance(inner, dict) else None
    return inner if isinstance(inner, dict) and path[-1] in inner else None


def imported(document: Document, name: str) -> Model | InputError:
    """The importer's answer; any other exception fails the test."""
    try:
        return import_config(document, name)
    except InputError as error:
        return error


# --- shipped configs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", model_names())
def test_import_dump_import(name: str) -> None:
    model = load_model(name)
    assert Model.model_validate_json(model.model_dump_json()) == model
    assert Model.model_validate(model.model_dump()) == model


def test_every_family_is_shipped() -> None:
    """What the fuzz below starts from covers every importer (aliases of one importer share a sample)."""
    sampled = {FAMILIES[load_model(name).family] for name in model_names()}
    assert sampled == set(FAMILIES.values())


# --- mutations ---------------------------------------------------------------------------------------------------

JUNK: list[Any] = [
    None,
    *(-1, 0, 1, 2, 7, 2**31, 2**63, 10**400, -(10**400)),
    *(0.5, 1e308, -0.0, math.nan, math.inf, -math.inf, True, False),
    *("", "x", "1", "\ud800", "\x1b[31m", "x" * 5000),
    *([], [1], [[]], ["x"], [None], ["\ud800"], {}, {"a": 1}, {"x": {}}),
]


def half(value: Any) -> Any:
    return value[: len(value) // 2] if isinstance(value, list | str) else value


def one_more(value: Any) -> Any:
    return value + value[-1:] if isinstance(value, list | str) else value


def far_too_many(value: Any) -> Any:
    return value * 500 if isinstance(value, list | str) and len(value) < 200 else value


def odd_first(value: Any) -> Any:
    return [None, *value[1:]] if isinstance(value, list) else value


def odd_last(value: Any) -> Any:
    return [*value[:-1], "\ud800"] if isinstance(value, list) else value


RESHAPED = [half, one_more, far_too_many, odd_first, odd_last]


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, Document]:
    name = draw(st.sampled_from(model_names()))
    document: Document = json.loads(shipped(name))
    fields = paths(document)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(fields))
        inner = holder(document, path)
        match draw(st.sampled_from(["delete", "junk", "junk", "junk", "reshape", "family", "borrow", "unknown"])):
            case "delete" if inner is not None:
                del inner[path[-1]]
            case "junk" if inner is not None:
                inner[path[-1]] = draw(st.sampled_from(JUNK))
            case "reshape" if inner is not None:
                inner[path[-1]] = draw(st.sampled_from(RESHAPED))(inner[path[-1]])
            case "family":
                text = next((document[s] for s in ("text_config",) if isinstance(document.get(s), dict)), document)
                text["model_type"] = draw(st.sampled_from(sorted(FAMILIES)))
            case "borrow":
                other: Document = json.loads(shipped(draw(st.sampled_from(model_names()))))
                field = draw(st.sampled_from(sorted(other)))
                document[field] = other[field]
            case "unknown":
                document[draw(st.text(max_size=8))] = draw(st.sampled_from(JUNK))
    return name, document


@settings(derandomize=True, deadline=None, max_examples=3000, suppress_health_check=list(HealthCheck), database=None)
@given(mutated())
def test_mutated_configs(case: tuple[str, Document]) -> None:
    name, document = case
    answer = imported(document, name)
    if isinstance(answer, Model):
        assert Model.model_validate_json(answer.model_dump_json()) == answer
    else:
        assert answer.field
        assert answer.problem
        assert len(str(answer)) < 2000


@pytest.mark.parametrize(
    "value", [-1, 0, 0.5, "x", [], math.nan, math.inf, True, 2**31 + 1, pytest.param(10**5000, id="huge")]
)
@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "vocab_size", "num_key_value_heads"])
def test_sizes_that_matter_are_refused_by_name(field: str, value: Any) -> None:
    document = json.loads(shipped("qwen3-8b")) | {field: value}
    with pytest.raises(InputError, match=rf"^config\.json: {field}: "):
        import_config(document, "m")


def test_infinity_where_it_does_not_matter() -> None:
    """Nemotron publishes a literal Infinity in ``time_step_limit``."""
    text = shipped("nemotron-3-nano-30b-a3b").replace("{", '{"time_step_limit": [0.0, Infinity], ', 1)
    document = json.loads(text)
    assert document["time_step_limit"][1] == math.inf
    assert import_config(document, "m").blocks == load_model("nemotron-3-nano-30b-a3b").blocks


def test_contradicting_sizes_say_which_fields() -> None:
    document = json.loads(shipped("qwen3-8b")) | {"num_attention_heads": 7}
    with pytest.raises(InputError, match=r"7 query heads .* num_attention_heads must be a multiple of"):
        import_config(document, "m")


# --- deletions: a missing field is refused, or means what it means to the model's own class ---------------------

_NO_HEAD = "absent announces no trained head (transformers' NemotronHConfig: 0); the model says so, drafting is refused"
_PLAIN = "absent in every checkpoint that stores plain bf16 weights"
_NO_VISION = "absent in text-only checkpoints; sizes the checkpoint, not a step"
_CLASS = "HF class default"
_ENGINE = "absent is off, as in SGLang's and the repository's own model code"
_OURS = "the catalogue's own remark on the copy, no field of the checkpoint"
_FORMAT = "default of the quantisation format (compressed-tensors, ModelOpt)"

#: (families, last name of the field) -> why the model may change when the field is deleted.
ALLOWED: dict[tuple[str, str], str] = {
    ("deepseek_v3 deepseek_v32 deepseek_v4 glm_moe_dsa mimo nemotron_h", "num_nextn_predict_layers"): _NO_HEAD,
    ("qwen3_5 qwen3_5_moe", "mtp_num_hidden_layers"): _NO_HEAD,
    ("*", "quantization_config"): _PLAIN,
    ("*", "hf_quant_config"): _PLAIN,
    ("*", "vision_config"): _NO_VISION,
    ("*", "_unverified"): _OURS,
    ("mimo_v2_flash", "ignored_layers"): "absent: no layer of the section is excepted",
    ("deepseek_v4", "expert_dtype"): "absent: experts are as quantization_config says",
    ("gemma3", "head_dim"): _CLASS,
    ("gemma3", "num_key_value_heads"): _CLASS,
    ("gemma4", "num_global_key_value_heads"): _CLASS,
    ("granitemoehybrid llama", "tie_word_embeddings"): _CLASS,
    ("nemotron_h", "moe_latent_size"): _CLASS,
    ("kimi_k2 kimi_linear", "model_type"): "the wrapping document's model_type has the same importer: only the label",
    ("kimi_linear", "mla_use_nope"): _ENGINE,
    ("kimi_linear", "mla_use_output_gate"): _ENGINE,
    ("kimi_linear", "use_full_rank_gate"): _ENGINE,
    ("kimi_linear", "routed_expert_hidden_size"): _ENGINE,
    ("kimi_linear", "latent_moe_use_norm"): _ENGINE,
    ("kimi_linear", "attn_res_block_size"): _ENGINE,
    ("kimi_linear", "qkv_hidden_size"): _NO_VISION,
    ("kimi_linear", "norm_type"): _NO_VISION,
    ("kimi_linear", "attn_bias"): _NO_VISION,
    ("kimi_linear", "linear_bias"): _NO_VISION,
    ("kimi_linear", "patch_embed_proj_bias"): _NO_VISION,
    ("glm_moe_dsa", "index_share_for_mtp_iteration"): _ENGINE,
    ("*", "ignore"): _FORMAT,
    ("kimi_linear", "type"): _FORMAT,
    ("*", "quant_algo"): _FORMAT,
    ("*", "kv_cache_quant_algo"): _FORMAT,
    ("*", "kv_cache_scheme"): _FORMAT,
}


def reasons(family: str, field: str) -> list[tuple[str, str]]:
    return [key for key in ALLOWED if key[1] == field and (key[0] == "*" or family in key[0].split())]


def test_deleting_a_field_never_changes_a_model_unseen() -> None:
    used = set()
    unexplained = []
    for name in model_names():
        original = json.loads(shipped(name))
        whole = import_config(original, name)
        for path in paths(original):
            document = copy.deepcopy(original)
            inner = holder(document, path)
            assert inner is not None
            del inner[path[-1]]
            answer = imported(document, name)
            if isinstance(answer, Model) and answer != whole:
                found = reasons(whole.family, path[-1])
                used.update(found)
                unexplained += [] if found else [(name, whole.family, ".".join(path))]
    assert not unexplained
    assert used == ALLOWED.keys(), "an entry of the list explains nothing any more: delete it"
