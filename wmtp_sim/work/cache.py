"""Cache memory: what a sequence stores per cached token, per sliding window, and as recurrent state.

Three kinds, all in bytes: what grows with context (`kv_token_bytes`), what a sliding window bounds (`window_bytes`),
and what has a fixed size from the first token (`state_bytes`). Sizes are those of SGLang 0.5.23's pools, whole, that
is before tensor parallelism splits them. ``kv_bytes`` is the width of one cached element: 2 for bf16, 1 for fp8.
"""

from __future__ import annotations

from wmtp_sim.spec.model import (
    Attention,
    Block,
    CompressedAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    Mixer,
    Model,
    SparseIndexer,
)

#: Convolution states and MiniMax-M3's index keys stay in the model's dtype, bf16.
_BF16_BYTES = 2
#: fp8 caches of latents and of index keys carry one fp32 scale per 128 values.
_SCALED_VALUES, _SCALE_BYTES = 128, 4


# --- growing with context --------------------------------------------------------------------------------------


def kv_token_bytes(mixer: Mixer, kv_bytes: float) -> float:
    """Bytes per token that grow with context: K and V or latents, and index keys. 0 for windows and recurrences."""
    if isinstance(mixer, Attention):
        if mixer.window is not None:
            return 0.0
        index = mixer.sparse.head_dim * _BF16_BYTES if mixer.sparse else 0
        return _attention_slot_bytes(mixer, kv_bytes) + index
    if isinstance(mixer, LatentAttention):
        return latent_token_bytes(mixer, kv_bytes) + index_key_bytes(mixer.indexer)
    if isinstance(mixer, CompressedAttention) and mixer.ratio:
        return (mixer.head_dim * kv_bytes + index_key_bytes(mixer.indexer)) / mixer.ratio
    return 0.0


def latent_token_bytes(a: LatentAttention, kv_bytes: float) -> float:
    """Bytes of one cached latent. Sparse-attention models in fp8 keep scales beside it and its rotary part in bf16."""
    if a.indexer is not None and kv_bytes == 1:
        return _fp8_with_scales(a.kv_lora_rank) + a.qk_rope_head_dim * _BF16_BYTES
    return a.latent_dim * kv_bytes


def index_key_bytes(indexer: SparseIndexer | None) -> int:
    """Bytes of one lightning-indexer key, fp8 whatever the cache's dtype. 0 where another layer's choice is reused."""
    if indexer is None or indexer.shared:
        return 0
    return _fp8_with_scales(indexer.head_dim)


def _fp8_with_scales(values: int) -> int:
    return values + -(-values // _SCALED_VALUES) * _SCALE_BYTES


def _attention_slot_bytes(a: Attention, kv_bytes: float) -> float:
    return a.kv_heads * (a.head_dim + a.v_head_dim) * kv_bytes


# --- bounded by a window ---------------------------------------------------------------------------------------


def window_slots(mixer: Mixer) -> int:
    """Tokens that the model's own sliding window keeps per sequence, 0 without one."""
    if isinstance(mixer, Attention | CompressedAttention):
        return mixer.window or 0
    return 0


def window_bytes(mixer: Mixer, kv_bytes: float) -> float:
    """Bytes of a full sliding window per sequence. DeepSeek-V4's key and value are the same vector."""
    if isinstance(mixer, Attention):
        return window_slots(mixer) * _attention_slot_bytes(mixer, kv_bytes)
    if isinstance(mixer, CompressedAttention):
        return window_slots(mixer) * mixer.head_dim * kv_bytes
    return 0.0


def written_token_bytes(mixer: Mixer, kv_bytes: float) -> float:
    """Bytes that one new token writes: its growing part, and its slot of a sliding window."""
    slots = window_slots(mixer)
    return kv_token_bytes(mixer, kv_bytes) + (window_bytes(mixer, kv_bytes) / slots if slots else 0.0)


# --- fixed per sequence ----------------------------------------------------------------------------------------


def state_bytes(mixer: Mixer, state_dtype_bytes: int) -> int:
    """Bytes of one sequence's recurrent state (in its own dtype) and convolution state (bf16). 0 for attention."""
    return recurrent_bytes(mixer, state_dtype_bytes) + conv_bytes(mixer)


def recurrent_bytes(mixer: Mixer, state_dtype_bytes: int) -> int:
    """Bytes of one sequence's recurrent state, its convolutions not included."""
    elements = 0
    if isinstance(mixer, GatedDeltaNet):
        elements = mixer.v_heads * mixer.k_dim * mixer.v_dim
    elif isinstance(mixer, KimiDeltaAttention | LightningAttention):
        elements = mixer.heads * mixer.head_dim**2
    elif isinstance(mixer, Mamba1 | Mamba2):
        elements = mixer.inner * mixer.state_dim
    return elements * state_dtype_bytes


def conv_bytes(mixer: Mixer) -> int:
    """Bytes of one sequence's convolution state: the last kernel - 1 inputs of every channel, in bf16."""
    if isinstance(mixer, GatedDeltaNet):
        channels = 2 * mixer.k_heads * mixer.k_dim + mixer.v_heads * mixer.v_dim
    elif isinstance(mixer, KimiDeltaAttention):
        channels = 3 * mixer.heads * mixer.head_dim
    elif isinstance(mixer, Mamba2):
        channels = mixer.conv_dim
    elif isinstance(mixer, Mamba1):
        channels = mixer.inner
    else:
        return 0
    return channels * (mixer.conv_kernel - 1) * _BF16_BYTES


# --- models ----------------------------------------------------------------------------------------------------


def blocks_kv_token_bytes(blocks: tuple[Block, ...], kv_bytes: float) -> float:
    """Bytes that one more token of context adds to the cache of these layers."""
    return sum(block.count * kv_token_bytes(mixer, kv_bytes) for block in blocks for mixer in block.mixers)


def blocks_window_bytes(blocks: tuple[Block, ...], kv_bytes: float) -> float:
    """Bytes of these layers' full sliding windows, per sequence."""
    return sum(block.count * window_bytes(mixer, kv_bytes) for block in blocks for mixer in block.mixers)


def blocks_state_bytes(blocks: tuple[Block, ...], state_dtype_bytes: int) -> int:
    """Bytes of these layers' recurrent and convolution states, per sequence."""
    return sum(block.count * state_bytes(mixer, state_dtype_bytes) for block in blocks for mixer in block.mixers)


def kv_bytes_per_token(model: Model, kv_bytes: float) -> float:
    """Bytes that one more token of context adds to the target's cache, all layers."""
    return blocks_kv_token_bytes(model.blocks, kv_bytes)


def mtp_kv_bytes_per_token(model: Model, kv_bytes: float) -> float:
    """Bytes that one more token of context adds to the trained heads' caches. 0 without a head or with windows only."""
    if model.mtp is None:
        return 0.0
    return model.mtp.heads * blocks_kv_token_bytes(model.mtp.blocks, kv_bytes)


def window_bytes_per_sequence(model: Model, kv_bytes: float) -> float:
    """Bytes of the target's full sliding windows, all layers, per sequence."""
    return blocks_window_bytes(model.blocks, kv_bytes)


def state_bytes_per_sequence(model: Model) -> int:
    """Bytes of the target's recurrent and convolution states, all layers, per sequence."""
    return blocks_state_bytes(model.blocks, model.state_dtype_bytes)
