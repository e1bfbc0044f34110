"""Every shipped config against published safetensors totals and hand-checked parts, to the last parameter."""

import json

import pytest

from wmtp_sim.catalog.models import catalog_folder, load_model, model_names
from wmtp_sim.spec.model import (
    Attention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    Mlp,
    Model,
    Moe,
)
from wmtp_sim.work.weights import (
    active_params,
    checkpoint_params,
    mtp_active_params,
    mtp_params,
    target_params,
    weights_of,
)

_DOCUMENTS = {name: json.loads((catalog_folder() / f"{name}.json").read_text()) for name in model_names()}
CHECKS = {name: d["_param_check"] for name, d in _DOCUMENTS.items() if "_param_check" in d}
TEXT_ONLY = [name for name, check in CHECKS.items() if check["explanation"].startswith("text only")]

#: Fields of `_param_check` -> what the model says.
PARTS = {
    "target_total": target_params,
    "target_text_total": target_params,
    "mtp_layer": mtp_params,
    "mtp_head": mtp_params,
    "mtp_block": mtp_params,
    "mtp_layer_active": mtp_active_params,
    "mtp_active": mtp_active_params,
    "mtp_in_checkpoint": lambda m: checkpoint_params(m) - target_params(m) - m.vision_params,
    "vision": lambda m: m.vision_params,
    "lm_head": lambda m: m.vocab * m.hidden,
}

#: What `active_without_embedding` leaves out although every token touches it: the read-out of DeepSeek-V4's residual
#: streams; Kimi-K3's hidden-wide norm and score vectors, and the decays that its checkpoint pads to head_dim.
ACTIVE_LEFT_OUT = {"deepseek-v4-flash": 65_541, "deepseek-v4-pro": 114_693, "kimi-k3": 4_023_456}

#: What Kimi-K3's computed text total leaves out: its attention residuals and those padded decays.
TEXT_LEFT_OUT = {"kimi-k3": 2_683_040}


def _stated_parts():
    for name, check in CHECKS.items():
        # Kimi-K2's MTP numbers describe the layer it would have: the checkpoint holds none.
        absent = check.get("mtp_in_checkpoint") == 0
        yield from ((name, key) for key in PARTS if key in check and not (absent and key.startswith("mtp_layer")))


def test_most_configs_are_checked():
    assert len(CHECKS) >= 50


@pytest.mark.parametrize("name", CHECKS)
def test_checkpoint_total(name):
    """Where the computed total is the text model's alone, the vision tower must close the gap to the published one."""
    total = CHECKS[name]["hf_safetensors_total" if name in TEXT_ONLY else "computed_total"]
    assert checkpoint_params(load_model(name)) == total


@pytest.mark.parametrize("name", TEXT_ONLY)
def test_text_total(name):
    assert target_params(load_model(name)) == CHECKS[name]["computed_total"] + TEXT_LEFT_OUT.get(name, 0)


@pytest.mark.parametrize(("name", "key"), list(_stated_parts()))
def test_part(name, key):
    assert PARTS[key](load_model(name)) == CHECKS[name][key]


@pytest.mark.parametrize("name", [n for n, check in CHECKS.items() if "active_without_embedding" in check])
def test_active(name):
    stated = CHECKS[name]["active_without_embedding"] + ACTIVE_LEFT_OUT.get(name, 0)
    assert active_params(load_model(name)) == stated


@pytest.mark.parametrize(
    ("quantised", "sibling"),
    [
        ("nemotron-3-super-120b-a12b-nvfp4", "nemotron-3-super-120b-a12b"),
        ("qwen3.5-122b-a10b-fp8", "qwen3.5-122b-a10b"),
        ("qwen3.5-122b-a10b-nvfp4", "qwen3.5-122b-a10b"),
        ("qwen3.6-27b-nvfp4", "qwen3.6-27b"),
        ("qwen3.6-35b-a3b-nvfp4", "qwen3.6-35b-a3b"),
        ("deepseek-v3.1-nvfp4", "deepseek-v3"),
    ],
)
def test_quantised_config_describes_the_same_model(quantised, sibling):
    apart = {"name", "precision"}
    assert load_model(quantised).model_dump(exclude=apart) == load_model(sibling).model_dump(exclude=apart)


# --- one layer -------------------------------------------------------------------------------------------------

_LINEAR = (GatedDeltaNet, KimiDeltaAttention, LightningAttention, Mamba1, Mamba2)


def _first(model: Model, kinds: type | tuple[type, ...]) -> tuple[Attention, ...]:
    parts = [p for block in model.blocks for p in (*block.mixers, *block.channels) if isinstance(p, kinds)]
    return parts[0]


def _layer_parts(model: Model) -> dict[str, int]:
    """Parameters of the first attention, linear mixer, dense MLP and MoE of a model, layer norms apart."""
    found = {}
    for label, kinds in (("attention", (Attention, LatentAttention)), ("linear", _LINEAR), ("mlp", (Mlp,))):
        if any(isinstance(p, kinds) for block in model.blocks for p in (*block.mixers, *block.channels)):
            found[label] = weights_of(_first(model, kinds), model.hidden).params
    if any(isinstance(p, Moe) for block in model.blocks for p in block.channels):
        moe = weights_of(_first(model, Moe), model.hidden)
        found["expert"] = sum(m.copy_params for m in moe.experts)
        for label in ("router", "latent", "shared"):
            found[label] = sum(m.params for m in moe.matrices if m.name.startswith(label))
        found["router"] += moe.small
    return found


@pytest.mark.parametrize(
    ("name", "golden"),
    [
        (
            "qwen3.6-35b-a3b",
            {
                "attention": 27_263_488,
                "linear": 33_718_464,
                "expert": 3_145_728,
                "shared": 3_147_776,
                "router": 524_288,
            },
        ),
        (
            "qwen3.5-122b-a10b",
            {
                "attention": 78_643_712,
                "linear": 88_523_008,
                "expert": 9_437_184,
                "shared": 9_440_256,
                "router": 786_432,
            },
        ),
        (
            "qwen3.5-397b-a17b",
            {
                "attention": 104_858_112,
                "linear": 118_014_208,
                "expert": 12_582_912,
                "shared": 12_587_008,
                "router": 2_097_152,
            },
        ),
        ("qwen3.6-27b", {"attention": 104_858_112, "linear": 115_876_064, "mlp": 267_386_880}),
        (
            "nemotron-3-super-120b-a12b",
            {
                "attention": 35_651_584,
                "linear": 109_635_968,
                "expert": 5_505_024,
                "latent": 8_388_608,
                "shared": 44_040_192,
                "router": 2_097_664,
            },
        ),
        (
            "nemotron-3-ultra-550b-a55b",
            {
                "attention": 138_412_032,
                "linear": 421_636_864,
                "expert": 20_971_520,
                "latent": 33_554_432,
                "shared": 167_772_160,
                "router": 4_194_816,
            },
        ),
        *(
            (
                name,
                {
                    "attention": 23_396_352,
                    "linear": 38_742_208,
                    "expert": 9_977_856,
                    "latent": 0,
                    "shared": 19_955_712,
                    "router": 344_192,
                },
            )
            for name in ("nemotron-3-nano-30b-a3b", "nemotron-3.5-lightning-30b-a3b")
        ),
        (
            "deepseek-v3",
            {"attention": 187_107_328, "expert": 44_040_192, "shared": 44_040_192, "router": 1_835_264},
        ),
        ("deepseek-v3.2", {"attention": 187_107_328 + 13_959_424}),
        (
            "glm-5",
            {
                "attention": 165_022_208 + 9_371_904,
                "expert": 37_748_736,
                "shared": 37_748_736,
                "router": 1_573_120,
            },
        ),
        (
            "kimi-k2",
            {"attention": 101_124_096, "expert": 44_040_192, "shared": 44_040_192, "router": 2_752_896},
        ),
        ("glm-4.5", {"attention": 136_329_472, "expert": 23_592_960, "shared": 23_592_960}),
        ("glm-4.5-air", {"attention": 109_066_240, "expert": 17_301_504, "shared": 17_301_504}),
    ],
)
def test_one_layer(name, golden):
    found = _layer_parts(load_model(name))
    assert {part: found[part] for part in golden} == golden


def test_gemm_launches_of_a_decode_step():
    """Qwen3.5-35B: 40 x (router, shared up, shared down, shared gate) + 10 x (qkv, o) + 30 x (qkvz, ba, out)."""
    model = load_model("qwen3.5-35b-a3b")
    dense = experts = 0
    for block in model.blocks:
        for part in (*block.mixers, *block.channels):
            weights = weights_of(part, model.hidden)
            dense += block.count * len(weights.matrices)
            experts += block.count * len(weights.experts)
    assert (dense, experts) == (270, 80)


# --- KV cache --------------------------------------------------------------------------------------------------


def _growing(model: Model) -> tuple[int, int]:
    """Layers whose cache grows with the context, and their cached elements per token."""
    layers = elements = 0
    for block in model.blocks:
        for mixer in block.mixers:
            if isinstance(mixer, Attention) and mixer.window is None:
                layers += block.count
                elements += block.count * mixer.kv_heads * (mixer.head_dim + mixer.v_head_dim)
            elif isinstance(mixer, LatentAttention):
                layers += block.count
                elements += block.count * mixer.latent_dim
    return layers, elements


@pytest.mark.parametrize(
    ("name", "layers", "bf16_bytes_per_token"),
    [
        ("qwen3.5-35b-a3b", 10, 20_480),
        ("qwen3.6-35b-a3b", 10, 20_480),
        ("qwen3.5-122b-a10b", 12, 24_576),
        ("qwen3.5-397b-a17b", 15, 30_720),
        ("qwen3.5-27b", 16, 65_536),
        ("qwen3.6-27b", 16, 65_536),
        ("qwen3-next-80b-a3b", 12, 24_576),
        ("nemotron-3-super-120b-a12b", 8, 8_192),
        ("nemotron-3-ultra-550b-a55b", 12, 12_288),
        ("nemotron-3-nano-30b-a3b", 6, 6_144),
        ("nemotron-3.5-lightning-30b-a3b", 6, 6_144),
        ("nemotron-h-8b", 4, 16_384),
        ("nemotron-h-56b", 10, 40_960),
        ("deepseek-v3", 61, 70_272),
        ("glm-5", 78, 89_856),
        ("glm-4.5", 92, 376_832),
        ("glm-4.5-air", 46, 188_416),
        ("mimo-7b", 36, 147_456),
        ("mimo-v2-flash", 9, 23_040),
        ("step-3.5-flash", 12, 49_152),
        ("longcat-flash", 56, 64_512),
        ("ling-2.6-1t", 10, 11_520),
        ("ling-2.6-flash", 4, 4_608),
        ("kimi-linear-48b-a3b", 7, 8_064),
        ("kimi-k3", 24, 27_648),
        ("minimax-m3-nvfp4", 60, 122_880),
        ("kimi-k2", 61, 70_272),
        ("minimax-m2", 62, 253_952),
        ("llama-3.1-8b", 32, 131_072),
        ("llama-3.1-70b", 80, 327_680),
        ("qwen3-8b", 36, 147_456),
        ("qwen3-30b-a3b", 48, 98_304),
        ("qwen3-235b-a22b", 94, 192_512),
        ("granite-4.0-h-small", 4, 16_384),
        ("jamba-1.5-mini", 4, 16_384),
        ("falcon-h1-34b", 72, 147_456),
        ("gpt-oss-120b", 18, 36_864),
        ("gemma-3-27b", 10, 81_920),
        ("gemma-4-31b-it", 10, 81_920),
        ("gemma-4-26b-a4b", 5, 20_480),
    ],
)
def test_layers_whose_cache_grows(name, layers, bf16_bytes_per_token):
    found, elements = _growing(load_model(name))
    assert (found, 2 * elements) == (layers, bf16_bytes_per_token)
