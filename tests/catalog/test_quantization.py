"""Quantisation sections: every shipped one, each method on a small config, and sections that are wrong or hostile."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from wmtp_sim.catalog import models
from wmtp_sim.catalog.fields import MAX_SIZE, Fields, read_json_object
from wmtp_sim.catalog.models import import_config, load_model, model_names
from wmtp_sim.catalog.module_names import _END, NameList, _expanded, _Unsupported
from wmtp_sim.errors import InputError
from wmtp_sim.spec.precision import FORMATS, GROUPS, GroupFormats, Precision, override, weight_format

DEEPSEEK = {"attention": "fp8", "mlp": "fp8", "expert": "fp8", "shared_expert": "fp8"}
DEEPSEEK_HEAD = {"attention": "fp8", "expert": "fp8", "shared_expert": "fp8"}
V4 = {"attention": "fp8", "expert": "mxfp4-a8", "shared_expert": "fp8"}

#: Shipped config -> groups of the target and of the head that are not bf16, and the cache.
SHIPPED: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "deepseek-r1": (DEEPSEEK, DEEPSEEK_HEAD, "bf16"),
    "deepseek-v3": (DEEPSEEK, DEEPSEEK_HEAD, "bf16"),
    "deepseek-v3.2": (DEEPSEEK, DEEPSEEK_HEAD, "bf16"),
    "deepseek-v4-flash": (V4, V4, "bf16"),
    "deepseek-v4-pro": (V4, V4, "bf16"),
    "gpt-oss-120b": ({"expert": "mxfp4"}, {}, "bf16"),
    "gpt-oss-20b": ({"expert": "mxfp4"}, {}, "bf16"),
    "kimi-k2": (DEEPSEEK, {}, "bf16"),
    "kimi-k2.5": ({"expert": "int4-g32"}, {}, "bf16"),
    "kimi-k3": ({"expert": "mxfp4"}, {}, "bf16"),
    "mimo-v2-flash": ({"attention": "fp8", "mlp": "fp8", "expert": "fp8"}, {"attention": "fp8", "mlp": "fp8"}, "bf16"),
    "minimax-m2": ({"attention": "fp8", "expert": "fp8"}, {}, "bf16"),
    "minimax-m2.7": ({"attention": "fp8", "expert": "fp8"}, {}, "bf16"),
    "minimax-m3-nvfp4": (
        {"attention": "fp8", "mlp": "nvfp4", "expert": "nvfp4", "shared_expert": "fp8"},
        {},
        "bf16",
    ),
    "qwen3.5-122b-a10b-fp8": (
        {"attention": "fp8", "linear_mixer": "fp8", "expert": "fp8", "shared_expert": "fp8"},
        {"attention": "fp8", "expert": "fp8", "shared_expert": "fp8"},
        "bf16",
    ),
    "qwen3.5-122b-a10b-nvfp4": ({"attention": "nvfp4", "expert": "nvfp4"}, {}, "fp8"),
    "qwen3.6-27b-nvfp4": ({"attention": "fp8", "linear_mixer": "fp8", "mlp": "nvfp4"}, {}, "fp8"),
    "qwen3.6-35b-a3b-nvfp4": (
        {"attention": "fp8", "linear_mixer": "fp8", "expert": "nvfp4", "shared_expert": "fp8"},
        {},
        "bf16",
    ),
}


def stored(formats: GroupFormats) -> dict[str, str]:
    """The groups that are not bf16. An output projection stored as the rest of its attention goes without saying."""
    found = {group: fmt for group, fmt in formats.model_dump().items() if fmt != "bf16"}
    if formats.attention_out == formats.attention:
        found.pop("attention_out", None)
    return found


def llama(section: Any = None, layers: int = 4, **extra: Any) -> Precision:
    """The precision of a small Llama with a quantisation section."""
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "max_position_embeddings": 512,
    }
    if section is not None:
        config["quantization_config"] = section
    return import_config(config | extra, "small").precision


def qwen(section: dict[str, Any], name: str = "qwen3.6-35b-a3b") -> Precision:
    """The precision of a shipped hybrid (30 linear, 10 attention layers) under another section."""
    document = read_json_object(models.catalog_folder() / f"{name}.json")
    return import_config(document | {"quantization_config": section}, name).precision


def fp8(*ignored: str) -> dict[str, Any]:
    return {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": list(ignored)}


def compressed(*ignored: str, targets: list[str] | None = None, **weights: Any) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "int", "group_size": 128, "strategy": "group"} | weights
    group = {"targets": targets or ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": list(ignored),
    }


# --- shipped ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_shipped_sections(name: str) -> None:
    target, head, kv = SHIPPED[name]
    precision = load_model(name).precision
    assert stored(precision.target) == target
    assert stored(precision.head) == head
    assert precision.kv == kv
    assert precision.stated


@pytest.mark.parametrize("name", model_names())
def test_configs_without_a_section_state_nothing(name: str) -> None:
    document = read_json_object(models.catalog_folder() / f"{name}.json")
    sections = [part for part in (document, *document.values()) if isinstance(part, dict)]
    has = any("quantization_config" in part or "hf_quant_config" in part for part in sections)
    if not has:
        assert load_model(name).precision == Precision()
    elif "hf_quant_config" not in document:
        assert name in SHIPPED


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("qwen3.6-35b-a3b-nvfp4", "per-layer list that this config lacks"),
        ("minimax-m3-nvfp4", "per-layer list that this config lacks"),
        ("qwen3.5-122b-a10b-nvfp4", "shortened"),
        ("deepseek-v4-flash", "ue8m0"),
    ],
)
def test_what_is_taken_for_granted_is_said(name: str, said: str) -> None:
    assert said in load_model(name).precision.note


def block_scales(rows: int, columns: int) -> int:
    """Scales of one matrix, one per 128x128 block."""
    return -(-rows // 128) * -(-columns // 128)


def test_deepseek_v3_ships_exactly_the_scales_of_an_fp8_head() -> None:
    """The release has 41,540,496 parameters more than its matrices: scales of 61 layers and of the MTP layer."""
    attention = sum(
        block_scales(rows, columns)
        for rows, columns in ((1536, 7168), (24576, 1536), (576, 7168), (32768, 512), (7168, 16384))
    )
    expert, dense = 3 * block_scales(2048, 7168), 3 * block_scales(18432, 7168)
    moe_layer = attention + 257 * expert
    target = 58 * moe_layer + 3 * (attention + dense)
    assert target + moe_layer == 41_540_496


def test_mimo_v2_flash_ships_exactly_the_scales_of_fp8_heads() -> None:
    """18,717,312 = scales of target and of three heads without any o_proj, and 9 x 64 sink logits."""
    full = block_scales(64 * 192, 4096) + block_scales(4 * 192, 4096) + block_scales(4 * 128, 4096)
    window = block_scales(64 * 192, 4096) + block_scales(8 * 192, 4096) + block_scales(8 * 128, 4096)
    dense, expert = 3 * block_scales(16384, 4096), 3 * block_scales(2048, 4096)
    target = 9 * full + 39 * window + dense + 47 * 256 * expert
    assert target + 3 * (window + dense) + 9 * 64 == 18_717_312


# --- methods ---------------------------------------------------------------------------------------------------------


def test_no_section() -> None:
    assert llama() == Precision()
    assert llama(quantization_config=None) == Precision()


def test_fp8_in_blocks_or_per_tensor() -> None:
    for section in (fp8(), {"quant_method": "fp8"}, fp8() | {"weight_block_size": None}):
        precision = llama(section)
        assert stored(precision.target) == {"attention": "fp8", "mlp": "fp8"}
        assert stored(precision.head) == {}  # there is no head
        assert precision.stated


def test_awq() -> None:
    section = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    assert stored(llama(section).target) == {"attention": "int4", "mlp": "int4"}
    section["modules_to_not_convert"] = ["self_attn"]
    assert stored(llama(section).target) == {"mlp": "int4"}


@pytest.mark.parametrize(
    ("bits", "group_size", "fmt"),
    [(4, 128, "int4"), (4, 64, "int4-g64"), (4, 32, "int4-g32"), (4, -1, "int4-channel"), (8, 128, "int8")],
)
def test_gptq(bits: int, group_size: int, fmt: str) -> None:
    section = {"quant_method": "gptq", "bits": bits, "group_size": group_size, "desc_act": False, "sym": True}
    assert stored(llama(section).target) == {"attention": fmt, "mlp": fmt}
    assert stored(llama(section | {"lm_head": True}).target) == {"attention": fmt, "mlp": fmt, "lm_head": fmt}


def test_gptq_exceptions() -> None:
    section = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    excepted = section | {"dynamic": {r"-:.*self_attn.*": {}}}
    assert stored(llama(excepted).target) == {"mlp": "int4"}
    with pytest.raises(InputError, match=r"dynamic.*changes a module's bits"):
        llama(section | {"dynamic": {r"+:.*self_attn.*": {"bits": 8}}})


def test_gptq_of_some_modules() -> None:
    section = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    some = section | {"modules_in_block_to_quantize": [["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]]}
    assert stored(llama(some).target) == {"mlp": "int4"}
    with pytest.raises(InputError, match="modules_in_block_to_quantize: element 1 is not str"):
        llama(section | {"modules_in_block_to_quantize": [["mlp.gate_proj", 1]]})


@pytest.mark.parametrize(
    ("weights", "activations", "fmt"),
    [
        ({}, False, "int4"),
        ({"group_size": 32}, False, "int4-g32"),
        ({"group_size": None, "strategy": "channel"}, False, "int4-channel"),
        ({"num_bits": 8, "group_size": None, "strategy": "channel"}, True, "int8"),
        ({"num_bits": 8, "type": "float", "group_size": None, "strategy": "channel"}, True, "fp8"),
        ({"num_bits": 8, "type": "float", "group_size": None, "strategy": "tensor"}, False, "fp8-a16"),
        ({"num_bits": 8, "type": "float", "group_size": 32}, True, "mxfp8"),
        ({"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}, True, "nvfp4"),
        ({"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}, False, "nvfp4-a16"),
        ({"num_bits": 4, "type": "float", "group_size": 32}, False, "mxfp4"),
    ],
)
def test_compressed_tensors(weights: dict[str, Any], activations: bool, fmt: str) -> None:
    section = compressed("lm_head", **weights)
    if activations:
        section["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8}
    assert stored(llama(section).target) == {"attention": fmt, "mlp": fmt}


def test_compressed_tensors_targets_by_name_come_first() -> None:
    section = compressed("re:^mtp.*", num_bits=8, type="float", group_size=None, strategy="tensor")
    experts = compressed(targets=["re:.*mlp\\.experts\\..*"], type="float", group_size=16)["config_groups"]["group_0"]
    for name, group in (("group_1", experts), ("a_first", experts)):
        groups = dict(sorted((section["config_groups"] | {name: group}).items()))
        found = stored(qwen(section | {"config_groups": groups, "format": "mixed-precision"}).target)
        expected = dict.fromkeys(("attention", "linear_mixer", "shared_expert"), "fp8-a16")
        assert found == expected | {"expert": "nvfp4-a16"}


def test_lm_head_is_converted_only_by_name() -> None:
    assert stored(llama(compressed()).target) == {"attention": "int4", "mlp": "int4"}
    named = compressed(targets=["Linear", "lm_head"])
    assert stored(llama(named).target) == {"attention": "int4", "mlp": "int4", "lm_head": "int4"}


@pytest.mark.parametrize(
    ("algorithm", "fmt"),
    [
        ("FP8", "fp8"),
        ("FP8_PB_WO", "fp8"),
        ("NVFP4", "nvfp4"),
        ("NVFP4_AWQ", "nvfp4"),
        ("W4A16_NVFP4", "nvfp4-a16"),
        ("W4A16_AWQ", "int4"),
        ("W4A16", "int4"),
        ("W8A16", "int8"),
        ("MXFP8", "mxfp8"),
    ],
)
def test_modelopt(algorithm: str, fmt: str) -> None:
    section = {"quant_method": "modelopt", "quant_algo": algorithm, "exclude_modules": ["lm_head", "*self_attn*"]}
    precision = llama(section)
    assert stored(precision.target) == {"mlp": fmt}
    assert precision.kv == "bf16"


def test_hf_quant_config_beside_the_config() -> None:
    quantization = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    for companion in ({"producer": {"name": "modelopt"}, "quantization": quantization}, quantization):
        precision = llama(hf_quant_config=companion)
        assert stored(precision.target) == {"attention": "nvfp4", "mlp": "nvfp4"}
        assert precision.kv == "fp8"
        assert precision.stated


def test_nemotrons_module_names() -> None:
    quantization = {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["lm_head", "backbone.layers.*.mixer.in_proj", "backbone.layers.*.mixer.q_proj", "mtp*"],
    }
    name = "nemotron-3-super-120b-a12b"
    document = read_json_object(models.catalog_folder() / f"{name}.json")
    precision = import_config(document | {"hf_quant_config": {"quantization": quantization}}, name).precision
    assert stored(precision.target) == {"attention_out": "nvfp4", "expert": "nvfp4", "shared_expert": "nvfp4"}
    assert stored(precision.head) == {}


def test_only_the_cache_is_converted() -> None:
    scheme = {"num_bits": 8, "type": "float", "dynamic": False}
    for section in (
        {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"},
        {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": scheme},
    ):
        precision = llama(section)
        assert stored(precision.target) == {}
        assert precision.kv == "fp8"


def test_mixed_precision_with_its_list() -> None:
    layers = {f"model.language_model.layers.{i}.mlp.experts": {"quant_algo": "NVFP4"} for i in range(40)}
    layers |= {f"model.language_model.layers.{i}.self_attn.q_proj": {"quant_algo": "FP8"} for i in range(3, 40, 4)}
    layers["lm_head"] = {"quant_algo": "FP8"}
    section = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    precision = qwen(section)
    assert stored(precision.target) == {"expert": "nvfp4", "attention": "fp8", "lm_head": "fp8"}
    assert stored(precision.head) == {}
    assert precision.note == ""


def test_experts_of_deepseek_v4_may_be_stated_in_the_section() -> None:
    document = read_json_object(models.catalog_folder() / "deepseek-v4-flash.json")
    del document["expert_dtype"]
    section = document["quantization_config"]
    assert import_config(document, "v4").precision.target.expert == "fp8"
    document["quantization_config"] = section | {"expert_dtype": "fp4"}
    assert import_config(document, "v4").precision.target.expert == "mxfp4-a8"


# --- exceptions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry",
    [
        "self_attn",
        "*self_attn*",
        "model.layers.*.self_attn",
        "model.layers.*.self_attn.*",
        "re:.*self_attn.*",
        r"re:model\.layers\.\d+\.self_attn\.(q|k|v|o)_proj",
        r"re:^model\.layers\.[0-9]+\.self_attn.*$",
        "re:.*layers.*self_attn",
    ],
)
def test_spellings_of_one_exception(entry: str) -> None:
    assert stored(llama(fp8(entry)).target) == {"mlp": "fp8"}


@pytest.mark.parametrize("entry", ["*.o_proj", "o_proj", r"re:.*self_attn\.o_proj$"])
def test_the_output_projection_is_a_group_of_its_own(entry: str) -> None:
    formats = llama(fp8(entry)).target
    assert (formats.attention, formats.attention_out, formats.mlp) == ("fp8", "bf16", "fp8")


@pytest.mark.parametrize("entry", ["gate", "attn", "model.layers.1", "mtp*", "self_attn*", "re:self_attn"])
def test_exceptions_that_are_none_of_the_groups(entry: str) -> None:
    assert stored(llama(fp8(entry)).target) == {"attention": "fp8", "mlp": "fp8"}


@pytest.mark.parametrize(("left", "fmt"), [(1, "fp8"), (3, "fp8"), (4, "bf16"), (8, "bf16")])
def test_the_larger_half_of_the_layers_decides(left: int, fmt: str) -> None:
    """A full list that excepts the first layers, as many recipes do, does not except the group."""
    for section in (
        fp8(*(f"model.layers.{i}.self_attn.q_proj" for i in range(left))),
        fp8(*(f"model.layers.{i}.self_attn*" for i in range(left))),
        fp8(rf"re:.*layers\.({'|'.join(map(str, range(left)))})\.self_attn.*"),
    ):
        precision = llama(section, layers=8)
        assert precision.target.attention == fmt
        assert precision.target.mlp == "fp8"
        assert (f"{left} of 8 attention layers stay bf16" in precision.note) == (left < 8)


def test_a_hybrids_full_list_names_only_the_layers_that_have_the_group() -> None:
    """10 of 40 layers have attention: naming those 10 is naming all."""
    ignored = [f"model.language_model.layers.{i}.self_attn*" for i in range(3, 40, 4)]
    precision = qwen({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignored})
    assert stored(precision.target) == {"linear_mixer": "nvfp4", "expert": "nvfp4", "shared_expert": "nvfp4"}
    assert precision.note == ""


def test_one_layer_stands_for_all_only_in_a_shortened_copy() -> None:
    section = fp8("model.layers.0.self_attn*")
    assert llama(section).target.attention == "fp8"
    said = ["quantization_config.modules_to_not_convert (shortened from 99 entries to 1)"]
    precision = llama(section, _unverified=said)
    assert stored(precision.target) == {"mlp": "fp8"}
    assert "shortened" in precision.note


def test_fp8_head_follows_unless_named() -> None:
    assert stored(qwen(fp8()).head) == {"attention": "fp8", "expert": "fp8", "shared_expert": "fp8"}
    for entry in ("mtp*", "mtp", "mtp.layers.0*", "re:^mtp.*", r"re:.*mtp\..*"):
        assert stored(qwen(fp8(entry)).head) == {}, entry
    named = fp8("model.layers.61.self_attn", "model.layers.61.mlp.shared_experts")
    document = read_json_object(models.catalog_folder() / "deepseek-v3.json") | {"quantization_config": named}
    assert stored(import_config(document, "v3").precision.head) == {"expert": "fp8"}


@pytest.mark.parametrize(
    "section",
    [
        compressed(),
        compressed(type="float", group_size=16),
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        {"quant_method": "mxfp4"},
        {"quant_method": "awq", "bits": 4, "group_size": 128},
    ],
)
def test_quantisers_to_four_bits_leave_the_head(section: dict[str, Any]) -> None:
    assert stored(qwen(section).head) == {}


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ({}, "quant_method: is missing; supported: fp8, mxfp4"),
        ({"quant_method": "bitsandbytes"}, "quant_method: 'bitsandbytes' is not a known.*supported: fp8"),
        ({"quant_method": 8}, "quant_method: 8 is not text"),
        ("fp8", "quantization_config: 'fp8' is not an object"),
        ([], r"quantization_config: \[\] is not an object"),
        (fp8() | {"weight_block_size": [64, 64]}, r"weight_block_size: \[64, 64\].*\[128, 128\]"),
        (fp8() | {"weight_block_size": 128}, "weight_block_size: 128 is not a list"),
        (fp8() | {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert: 'lm_head' is not a list"),
        (fp8() | {"modules_to_not_convert": [1]}, "modules_to_not_convert: element 1 is not str"),
        (fp8() | {"kv_cache_quant_algo": "NVFP4"}, "kv_cache_quant_algo: 'NVFP4' is not known"),
        (fp8() | {"kv_cache_scheme": {"num_bits": 4, "type": "int"}}, "kv_cache_scheme: 4-bit 'int'"),
        (fp8() | {"kv_cache_scheme": []}, r"kv_cache_scheme: \[\] is not an object"),
        ({"quant_method": "modelopt", "quant_algo": "W2A2"}, "quant_algo: 'W2A2' is not known; supported: FP8"),
        ({"quant_method": "modelopt"}, "quant_algo: is missing"),
        ({"quant_method": "awq", "group_size": 128}, "bits or w_bit: is missing"),
        ({"quant_method": "awq", "bits": 3, "group_size": 128}, "bits: 3 bits are not known; supported: 4, 8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 48}, "group_size: 48 is not known"),
        ({"quant_method": "gptq", "bits": "4", "group_size": 128}, "bits: '4' is not a whole number"),
        (compressed(num_bits=3), "num_bits: 3 bits are not known"),
        (compressed(type="complex"), "type: 'complex' with 4 bits"),
        (compressed(strategy="magic"), "strategy: 'magic' is not known"),
        (compressed() | {"format": "marlin-24"}, "format: 'marlin-24' is not known; supported: pack-quantized"),
        (compressed() | {"config_groups": {"a": 1}}, "config_groups: a: 1 is not an object"),
        (compressed() | {"config_groups": {}}, "config_groups: no group converts"),
        (compressed(targets=["SomeModule"]), "config_groups: no group converts"),
        ({"quant_method": "compressed-tensors"}, "config_groups: is missing"),
        (
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": "FP8"}},
            "quantized_layers: a: 'FP8' is not an object",
        ),
    ],
)
def test_refused_sections_name_the_field(section: Any, names: str) -> None:
    with pytest.raises(InputError, match=names):
        llama(section)


def test_unknown_expert_dtype_is_refused() -> None:
    with pytest.raises(InputError, match="expert_dtype: 'fp3' is not known; supported: fp4, fp8"):
        llama(fp8(), expert_dtype="fp3")


@pytest.mark.parametrize(
    "entry",
    [
        "re:" + "a" * 10_000,
        "a" * 10_000,
        "re:(a+)+$",
        "re:(.*)*",
        "re:((((((((((a?)?)?)?)?)?)?)?)?)?)?",
        "re:" + "(a|b)" * 20,
        "re:" + "a?" * 400,
        r"re:(a)\1",
        "re:(?!mtp).*",
        "re:(",
        "re:)",
        "re:[",
        "re:a{1,1000000}",
        "re:a$b",
        "re:\\",
        "re:*",
    ],
)
def test_expressions_that_are_refused(entry: str) -> None:
    start = time.perf_counter()
    with pytest.raises(InputError, match="modules_to_not_convert: the entry") as caught:
        llama(fp8(entry), layers=100)
    assert time.perf_counter() - start < 1
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "entries",
    [
        ["re:" + ".*a" * 300 + "b"],
        ["*a" * 400 + "b"],
        ["re:" + ".*.+" * 200],
        ["*?" * 400],
        [f"model.layers.{i}.self_attn.q_proj" for i in range(50_000)],
        [f"*{i}*" for i in range(100)],
    ],
    ids=["expression", "glob", "any", "one", "many plain", "many globs"],
)
def test_lists_that_must_not_hang(entries: list[str]) -> None:
    start = time.perf_counter()
    llama(fp8(*entries), layers=MAX_SIZE)
    assert time.perf_counter() - start < 5


def test_too_many_patterns_are_refused() -> None:
    with pytest.raises(InputError, match="is one of more than 129 patterns"):
        llama(fp8(*(f"*{i}*" for i in range(1000))))
    with pytest.raises(InputError, match="is one of more than 1024 patterns"):
        llama(fp8(*(f"model.layers.{i}.*" for i in range(5000))))


# --- name lists ------------------------------------------------------------------------------------------------------

NAMES = [
    "lm_head",
    "mtp.layers.0.self_attn.q_proj",
    "model.layers.7.mlp.gate",
    "model.layers.7.mlp.gate_proj",
    "model.layers.17.mlp.experts.3.gate_proj",
    "model.layers.107.self_attn.q_proj",
    "model.language_model.layers.0.linear_attn.in_proj_qkv",
    "vision_tower.blocks.1.attn",
]


@pytest.mark.parametrize(
    "expression",
    [
        ".*self_attn.*",
        r".*mlp\.(gate|up|gate_up|down)_proj.*",
        r"model\.layers\.\d+\.mlp\.gate$",
        r"^model\.layers\.(7|17)\..*",
        r"(?:model\.)?(language_model\.)?layers.*",
        r"model\.(language_model\.)?layers\.[0-9]+\.(self_attn|linear_attn).*",
        r".*\.experts\.\d\.",
        ".+head",
        ".*?lm_head.*?",
        r"lm_head|mtp",
        "model.layers.7.mlp.gate",
        "",
    ],
)
def test_expressions_match_as_python_does(expression: str) -> None:
    if "|" in expression and "(" not in expression:
        with pytest.raises(_Unsupported):
            _expanded(expression)
        return
    section = Fields({"ignore": [f"re:{expression}"]}, "section")
    listed = NameList(section, "ignore")
    for name in NAMES:
        assert listed.has(name) == bool(re.match(expression, name)), name


def test_an_expression_stands_for_globs() -> None:
    assert _expanded(r"a\.(b|c?)d$") == [f"a.{middle}d{_END}" for middle in ("b", "", "c")]
    assert _expanded(r"x\d+") == ["x[0-9]", "x[0-9][0-9]", "x[0-9][0-9][0-9]"]


# --- overrides and formats -------------------------------------------------------------------------------------------


def test_weights_rewrite_the_targets_linear_layers() -> None:
    found = override(Precision(), weights="nvfp4", head_weights=None, draft_weights=None)
    linear = ("attention", "linear_mixer", "mlp", "expert", "shared_expert")
    assert stored(found.target) == dict.fromkeys(linear, "nvfp4")
    assert stored(found.head) == {}
    assert not found.stated


def test_head_and_draft_weights() -> None:
    found = override(llama(fp8()), weights=None, head_weights="fp8", draft_weights="int4")
    assert stored(found.target) == {"attention": "fp8", "mlp": "fp8", "lm_head": "fp8"}
    assert found.head.lm_head == "fp8"
    assert found.head.attention == found.head.expert == "int4"
    assert found.head.small == found.head.router == "bf16"


def test_nothing_to_override() -> None:
    precision = llama(fp8())
    assert override(precision, weights=None, head_weights=None, draft_weights=None) == precision


def test_weights_are_refused_where_the_checkpoint_states_its_own() -> None:
    with pytest.raises(InputError, match=r"--weights: .*states its own formats.*drop the flag"):
        override(llama(fp8()), weights="fp8", head_weights=None, draft_weights=None)


@pytest.mark.parametrize("flag", ["weights", "head_weights", "draft_weights"])
def test_unknown_formats_are_refused(flag: str) -> None:
    chosen = {"weights": None, "head_weights": None, "draft_weights": None} | {flag: "fp7"}
    with pytest.raises(InputError, match=f"--{flag.replace('_', '-')}: unknown weight format 'fp7'.*fp8"):
        override(Precision(), **chosen)


def test_bytes_per_weight_count_the_scales() -> None:
    assert FORMATS["fp8"].bytes_per_weight == (128 * 128 + 4) / (128 * 128)
    assert FORMATS["nvfp4"].bytes_per_weight == (16 * 0.5 + 1) / 16
    assert FORMATS["mxfp4"].bytes_per_weight == FORMATS["mxfp4-a8"].bytes_per_weight == (32 * 0.5 + 1) / 32
    assert FORMATS["int4"].bytes_per_weight == (128 * 0.5 + 2 + 0.5) / 128
    assert FORMATS["int4-g32"].bytes_per_weight == (32 * 0.5 + 2) / 32
    for name, fmt in FORMATS.items():
        assert weight_format(name, "--weights") is fmt


def test_every_group_has_a_format() -> None:
    formats = load_model("deepseek-v3").precision.target
    assert {group: formats.of(group).name for group in GROUPS} == formats.model_dump()


def test_read_precision_takes_the_text_models_section() -> None:
    """Kimi-K2.5 nests its section in ``text_config``."""
    document = read_json_object(models.catalog_folder() / "kimi-k2.5.json")
    assert "quantization_config" not in document
    assert load_model("kimi-k2.5").precision.stated
