"""Parameters of vision towers and their projectors: weights in the checkpoint that no decode step reads.

Shapes: transformers 5.24 ``Qwen3_5VisionModel``, ``SiglipVisionModel`` with ``Gemma3MultiModalProjector``,
``Gemma4VisionModel`` with ``Gemma4MultimodalEmbedder``, ``MiniMaxM3VLVisionModel``. All agree with published
safetensors totals to the last parameter.
"""

from __future__ import annotations

from wmtp_sim.catalog.fields import Fields


def _linear(inputs: int, outputs: int) -> int:
    """A linear layer with bias."""
    return inputs * outputs + outputs


def _encoder_layer(hidden: int, inner: int) -> int:
    """A ViT layer: q, k, v, o, two LayerNorms and an ungated MLP, all with bias."""
    return 4 * _linear(hidden, hidden) + 4 * hidden + _linear(hidden, inner) + _linear(inner, hidden)


def qwen_vision(root: Fields) -> int:
    """Qwen3.5/3.6: 3D patch convolution, learned positions, a merger of ``spatial_merge_size``^2 patches."""
    if "vision_config" not in root:
        return 0
    config = root.child("vision_config")
    if config.values.get("deepstack_visual_indexes"):
        raise config.error("deepstack_visual_indexes", "deepstack mergers are not supported", "expected []")
    hidden = config.size("hidden_size")
    patch = config.size("in_channels") * config.size("temporal_patch_size") * config.size("patch_size") ** 2
    merged = hidden * config.size("spatial_merge_size") ** 2
    return (
        _linear(patch, hidden)
        + config.size("num_position_embeddings") * hidden
        + config.size("depth") * _encoder_layer(hidden, config.size("intermediate_size"))
        + 2 * hidden
        + _linear(merged, merged)
        + _linear(merged, config.size("out_hidden_size"))
    )


def gemma3_vision(root: Fields, text_hidden: int) -> int:
    """Gemma 3: SigLIP without its pooling head, then an RMSNorm and a projection without bias."""
    if "vision_config" not in root:
        return 0
    config = root.child("vision_config")
    hidden, patch = config.size("hidden_size"), config.size("patch_size")
    if config.flag("vision_use_head"):
        raise config.error("vision_use_head", "true is not supported", "Gemma 3 ships SigLIP without its head")
    return (
        # The config omits num_channels; SiglipVisionConfig has 3.
        _linear(config.size("num_channels", default=3) * patch**2, hidden)
        + (config.size("image_size") // patch) ** 2 * hidden
        + config.size("num_hidden_layers") * _encoder_layer(hidden, config.size("intermediate_size"))
        + 2 * hidden
        + hidden * text_hidden
        + hidden
    )


def gemma4_vision(root: Fields, text_hidden: int) -> int:
    """Gemma 4: no biases, q/k norms, four norms and a gated MLP per layer, x and y position tables."""
    if "vision_config" not in root:
        return 0
    config = root.child("vision_config")
    hidden, head_dim = config.size("hidden_size"), config.size("head_dim")
    heads, kv_heads = config.size("num_attention_heads"), config.size("num_key_value_heads")
    attention = 2 * (heads + kv_heads) * head_dim * hidden + 2 * head_dim
    layer = attention + 3 * hidden * config.size("intermediate_size") + 4 * hidden
    standardise = 2 * hidden if config.flag("standardize") else 0
    return (
        3 * config.size("patch_size") ** 2 * hidden
        + 2 * config.size("position_embedding_size") * hidden
        + config.size("num_hidden_layers") * layer
        + standardise
        + hidden * text_hidden
    )


def minimax_vision(root: Fields, text_hidden: int) -> int:
    """MiniMax-M3: CLIP-like tower, then a two-layer projector before and another after merging patches."""
    if "vision_config" not in root:
        return 0
    config = root.child("vision_config")
    compression = config.child("img_token_compression_config")
    hidden, inner = config.size("hidden_size"), root.size("projector_hidden_size")
    merged = text_hidden * compression.size("spatial_merge_size") ** 2
    patch = config.size("num_channels") * config.size("patch_size") ** 2 * compression.size("temporal_patch_size")
    projector = _linear(hidden, inner) + _linear(merged, inner) + 2 * _linear(inner, text_hidden)
    layers = config.size("num_hidden_layers") * _encoder_layer(hidden, config.size("intermediate_size"))
    return patch * hidden + 2 * hidden + layers + projector
