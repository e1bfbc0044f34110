"""What lies in one GPU's memory before a token is generated, and how much of a cache one rank holds.

All byte counts are per GPU of a layout's ranks. Matrices and KV heads are split; latents, what is not a
matrix, and whatever `Matrix.rank_share` calls stiff lie whole on every rank.
"""

from __future__ import annotations

from wmtp_sim.spec.drafter import Drafter
from wmtp_sim.spec.model import Attention, Block, Mixer, Model
from wmtp_sim.spec.parallel import ALONE, Layout
from wmtp_sim.spec.precision import FORMATS, GroupFormats
from wmtp_sim.work.weights import residual_mixing, weights_of

# --- weights ---------------------------------------------------------------------------------------------------


def blocks_weight_bytes(blocks: tuple[Block, ...], hidden: int, formats: GroupFormats, layout: Layout) -> float:
    """Bytes of all layers' weights, every expert and the hyper-connections included."""
    total = 0.0
    for block in blocks:
        small, layer = block.norms * hidden + block.extra_params, 0.0
        parts = (weights_of(part, hidden) for part in (*block.mixers, *block.channels))
        for weights in (residual_mixing(block, hidden), *parts):
            small += weights.small + weights.tables
            for matrix in (*weights.matrices, *weights.experts):
                share = matrix.rank_share(layout.ranks_of(matrix.group))
                layer += matrix.params * share * formats.of(matrix.group).bytes_per_weight
        total += block.count * (layer + small * formats.of("small").bytes_per_weight)
    return total


def target_weight_bytes(model: Model, layout: Layout = ALONE) -> float:
    """Bytes of the text model: embedding, layers, final norms, lm_head."""
    formats = model.precision.target
    vocabulary = _vocabulary_bytes(model.vocab, model.hidden, formats, model.tied_embeddings, layout)
    rest = (model.final_norms * model.hidden + model.extra_params) * formats.of("small").bytes_per_weight
    return vocabulary + blocks_weight_bytes(model.blocks, model.hidden, formats, layout) + rest


def vision_weight_bytes(model: Model, layout: Layout = ALONE) -> float:
    """Bytes of the vision tower. Engines load it with the text model, unquantised, and split it over ranks."""
    return model.vision_params * FORMATS["bf16"].bytes_per_weight / layout.tp


def drafter_weight_bytes(drafter: Drafter, layout: Layout = ALONE) -> float:
    """Bytes of the drafter. Vocabulary matrices count only when they are its own: both of a model, an lm_head else."""
    formats, hidden = drafter.formats, drafter.hidden
    joined = sum(projection.params for projection in drafter.projections)
    small = (joined + drafter.norms * hidden + drafter.extra_params) * formats.of("small").bytes_per_weight
    layers = blocks_weight_bytes(drafter.blocks, hidden, formats, layout)
    vocabulary = 0.0
    if drafter.kind == "model":
        vocabulary = _vocabulary_bytes(drafter.vocab, hidden, formats, drafter.tied_embeddings, layout)
    elif not drafter.shares_vocabulary:
        vocabulary = drafter.vocab * hidden * formats.of("lm_head").bytes_per_weight / layout.ranks_of("lm_head")
    return drafter.resident_copies * (layers + small + vocabulary)


def _vocabulary_bytes(vocab: int, hidden: int, formats: GroupFormats, tied: bool, layout: Layout) -> float:
    """Embedding and lm_head, which are one matrix where they are tied."""
    embedding = formats.of("embedding").bytes_per_weight / layout.tp
    lm_head = 0.0 if tied else formats.of("lm_head").bytes_per_weight / layout.ranks_of("lm_head")
    return vocab * hidden * (embedding + lm_head)


# --- caches ----------------------------------------------------------------------------------------------------


def rank_blocks(blocks: tuple[Block, ...], tp: int) -> tuple[Block, ...]:
    """These layers with the KV heads that one rank caches: split mixer by mixer, replicated where there are too few.

    Latents, the one shared head of compressed attention, and index keys lie whole on every rank.
    """
    if tp == 1:
        return blocks
    return tuple(
        block.model_copy(update={"mixers": tuple(_rank_mixer(mixer, tp) for mixer in block.mixers)}) for block in blocks
    )


def _rank_mixer(mixer: Mixer, tp: int) -> Mixer:
    if not isinstance(mixer, Attention):
        return mixer
    return mixer.model_copy(update={"kv_heads": -(-mixer.kv_heads // tp)})
