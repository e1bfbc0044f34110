"""Cache sizes against the tables of the architecture facts, sections 4 and 6."""

from __future__ import annotations

from fractions import Fraction

import pytest

from wmtp_sim.catalog.models import load_model
from wmtp_sim.spec.model import Attention, CompressedAttention, LatentAttention, SparseIndexer
from wmtp_sim.work.cache import (
    conv_bytes,
    index_key_bytes,
    kv_bytes_per_token,
    kv_token_bytes,
    latent_token_bytes,
    mtp_kv_bytes_per_token,
    recurrent_bytes,
    state_bytes,
    state_bytes_per_sequence,
    window_bytes,
    window_bytes_per_sequence,
    window_slots,
)

MIB = 2**20

#: Section 4: bytes per token in bf16, and MiB of state where there is one.
GROWING = {
    "qwen3.5-35b-a3b": (20_480, 61.4),
    "qwen3.6-35b-a3b": (20_480, 61.4),
    "qwen3.5-122b-a10b": (24_576, 146.5),
    "qwen3.5-397b-a17b": (30_720, 183.2),
    "qwen3.5-27b": (65_536, 146.8),
    "qwen3.6-27b": (65_536, 146.8),
    "qwen3-next-80b-a3b": (24_576, 73.7),
    "nemotron-3-super-120b-a12b": (8_192, 162.3),
    "nemotron-3-ultra-550b-a55b": (12_288, 389.1),
    "nemotron-3-nano-30b-a3b": (6_144, 46.8),
    "nemotron-3.5-lightning-30b-a3b": (6_144, 46.8),
    "nemotron-h-8b": (16_384, 97.4),
    "nemotron-h-56b": (40_960, 870.3),
    "deepseek-v3": (70_272, 0.0),
    "deepseek-r1": (70_272, 0.0),
    "deepseek-v3.1-nvfp4": (70_272, 0.0),
    # The table leaves index keys out; each is 132 bytes. 5.2 has them on 21 layers.
    "glm-5": (89_856 + 78 * 132, 0.0),
    "glm-5.1": (89_856 + 78 * 132, 0.0),
    "glm-5.2": (89_856 + 21 * 132, 0.0),
    "glm-4.5": (376_832, 0.0),
    "glm-4.5-air": (188_416, 0.0),
    "mimo-7b": (147_456, 0.0),
    "mimo-v2-flash": (23_040, 0.0),
    "step-3.5-flash": (49_152, 0.0),
    "longcat-flash": (64_512, 0.0),
    "ling-2.6-1t": (11_520, 280.0),
    "ling-2.6-flash": (4_608, 56.0),
    "kimi-linear-48b-a3b": (8_064, 41.4),
    # 69 states of 6.0 MiB, and three convolutions of 3 x 12288 bf16 inputs each.
    "kimi-k3": (27_648, 69 * (6.0 + 9 * 12_288 * 2 / MIB)),
    # The table leaves the index keys of the 57 block-sparse layers out: 128 bf16 values each.
    "minimax-m3-nvfp4": (122_880 + 57 * 256, 0.0),
    "kimi-k2": (70_272, 0.0),
    "kimi-k2.5": (70_272, 0.0),
    "minimax-m2": (253_952, 0.0),
    "llama-3.1-8b": (131_072, 0.0),
    "llama-3.1-70b": (327_680, 0.0),
    "qwen3-8b": (147_456, 0.0),
    "qwen3-30b-a3b": (98_304, 0.0),
    "qwen3-235b-a22b": (192_512, 0.0),
}


@pytest.mark.parametrize("name", GROWING)
def test_growing_bytes_and_state(name):
    model = load_model(name)
    per_token, state = GROWING[name]
    assert kv_bytes_per_token(model, 2.0) == per_token
    assert state_bytes_per_sequence(model) / MIB == pytest.approx(state, abs=0.05)


def test_deepseek_v32_fp8_pool():
    """656 bytes of latent and 132 of index key in each of 61 layers."""
    assert kv_bytes_per_token(load_model("deepseek-v3.2"), 1.0) == 61 * (656 + 132) == 48_068


@pytest.mark.parametrize(("name", "per_token"), [("flash", 6_229), ("pro", 8_918)])
def test_deepseek_v4_grows_by_compressed_keys_only(name, per_token):
    model = load_model(f"deepseek-v4-{name}")
    assert kv_bytes_per_token(model, 2.0) == per_token
    assert window_bytes_per_sequence(model, 2.0) == model.layers * 128 * 512 * 2


def test_windows_of_hybrids():
    """39 layers x 128 slots x 8 heads x (192 + 128), and 33 x 512 x 8 x (128 + 128), in bf16."""
    assert window_bytes_per_sequence(load_model("mimo-v2-flash"), 2.0) == 39 * 128 * 8 * 320 * 2
    assert window_bytes_per_sequence(load_model("step-3.5-flash"), 2.0) == 33 * 512 * 8 * 256 * 2
    assert window_bytes_per_sequence(load_model("llama-3.1-8b"), 2.0) == 0


# --- trained heads, section 6 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "draft"),
    [
        ("qwen3.5-35b-a3b", 2_048),
        ("qwen3.5-122b-a10b", 2_048),
        ("qwen3.5-397b-a17b", 2_048),
        ("qwen3.5-27b", 4_096),
        ("qwen3-next-80b-a3b", 2_048),
        ("nemotron-3-super-120b-a12b", 1_024),
        ("nemotron-3-ultra-550b-a55b", 1_024),
        ("nemotron-3.5-lightning-30b-a3b", 1_024),
        ("nemotron-3-nano-30b-a3b", 0),
        ("nemotron-h-8b", 0),
        ("nemotron-h-56b", 0),
        ("deepseek-v4-flash", 0),
        ("step-3.5-flash", 0),
        ("mimo-v2-flash", 0),
    ],
)
def test_draft_bytes_per_token(name, draft):
    assert mtp_kv_bytes_per_token(load_model(name), 2.0) == draft


@pytest.mark.parametrize(
    ("name", "growing_layers", "percent"),
    [
        ("qwen3.5-35b-a3b", 10, 9.09),
        ("qwen3.5-122b-a10b", 12, 7.69),
        ("qwen3.5-397b-a17b", 15, 6.25),
        ("qwen3.5-27b", 16, 5.88),
        ("qwen3-next-80b-a3b", 12, 7.69),
        ("nemotron-3-super-120b-a12b", 8, 11.11),
        ("nemotron-3-ultra-550b-a55b", 12, 7.69),
        ("nemotron-3.5-lightning-30b-a3b", 6, 14.29),
        ("deepseek-v3", 61, 1.61),
        ("glm-4.5", 92, 1.08),
        ("glm-4.5-air", 46, 2.13),
        ("glm-5", 78, 1.27),
        ("mimo-7b", 36, 2.70),
        ("longcat-flash", 56, 1.75),
        ("ling-2.6-1t", 10, 9.09),
        ("ling-2.6-flash", 4, 20.0),
    ],
)
@pytest.mark.parametrize("kv_bytes", [1.0, 2.0])
def test_draft_share_is_one_in_growing_layers_plus_one(name, growing_layers, percent, kv_bytes):
    model = load_model(name)
    draft, target = mtp_kv_bytes_per_token(model, kv_bytes), kv_bytes_per_token(model, kv_bytes)
    share = Fraction(draft) / (Fraction(draft) + Fraction(target))
    assert share == Fraction(1, growing_layers + 1)
    assert 100 * share == pytest.approx(percent, abs=0.005)


# --- single mixers ---------------------------------------------------------------------------------------------


def test_windowed_attention_does_not_grow():
    full = Attention(q_heads=8, kv_heads=2, head_dim=192, v_head_dim=128)
    windowed = full.model_copy(update={"window": 128})
    assert (kv_token_bytes(full, 2.0), window_slots(full), window_bytes(full, 2.0)) == (1_280, 0, 0)
    assert (kv_token_bytes(windowed, 2.0), window_slots(windowed)) == (0, 128)
    assert window_bytes(windowed, 1.0) == 128 * 640


def latent(indexer: SparseIndexer | None = None) -> LatentAttention:
    return LatentAttention(
        heads=128,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        indexer=indexer,
    )


def test_only_sparse_latents_carry_scales_in_fp8():
    own = SparseIndexer(heads=64, head_dim=128, top_k=2048)
    reused = own.model_copy(update={"shared": True})
    assert [latent_token_bytes(latent(i), 1.0) for i in (None, own, reused)] == [576, 656, 656]
    assert [latent_token_bytes(latent(i), 2.0) for i in (None, own, reused)] == [1_152] * 3
    assert [index_key_bytes(i) for i in (None, own, reused)] == [0, 132, 0]
    assert [kv_token_bytes(latent(i), 1.0) for i in (None, own, reused)] == [576, 788, 656]


def test_attention_has_no_state_and_recurrences_do_not_grow():
    for name in ("qwen3.5-35b-a3b", "kimi-linear-48b-a3b", "jamba-1.5-mini", "ling-2.6-flash"):
        model = load_model(name)
        for mixer in (m for block in model.blocks for m in block.mixers):
            stores = (kv_token_bytes(mixer, 2.0) > 0, state_bytes(mixer, 4) > 0)
            assert stores in ((True, False), (False, True))
            assert state_bytes(mixer, 4) == recurrent_bytes(mixer, 4) + conv_bytes(mixer)
            assert recurrent_bytes(mixer, 4) == 2 * recurrent_bytes(mixer, 2)


def test_jamba_state():
    """Section 2.4: [8192, 16] in fp32 and three bf16 inputs of 8192 channels, in each Mamba layer."""
    model = load_model("jamba-1.5-mini")
    mamba = next(m for block in model.blocks for m in block.mixers if m.kind == "mamba1")
    assert state_bytes(mamba, 4) == 8192 * 16 * 4 + 8192 * 3 * 2


def test_window_only_compressed_layer():
    mixer = CompressedAttention(
        heads=64, head_dim=512, rope_dim=64, q_lora_rank=1024, o_groups=8, o_lora_rank=1024, window=128, ratio=0
    )
    assert kv_token_bytes(mixer, 2.0) == 0
    assert window_bytes(mixer, 2.0) == 128 * 512 * 2
