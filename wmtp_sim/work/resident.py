"""What lies in one GPU's memory before a token is generated, and how much of a cache one rank holds.

All byte counts are per GPU of a layout's ranks. Matrices and KV heads are split; latents, what is not a
matrix, and whatever `Matrix.rank_share` calls stiff lie whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable

from wmtp_sim.spec.drafter import Drafter
from wmtp_sim.spec.model import Attention, Block, Mixer, Model
from wmtp_sim.spec.parallel import ALONE, Layout
from wmtp_sim.spec.precision import FORMATS, GroupFormats
from wmtp_sim.spec.system import Upkeep
from wmtp_sim.work.weights import product_sizes, residual_mixing, weights_of

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
    lm_head_rows = 0 if model.tied_embeddings else model.vocab
    vocabulary = _vocabulary_bytes(model.vocab, lm_head_rows, model.hidden, formats, layout)
    rest = (model.final_norms * model.hidden + model.extra_params) * formats.of("small").bytes_per_weight
    return vocabulary + blocks_weight_bytes(model.blocks, model.hidden, formats, layout) + rest


def vision_weight_bytes(model: Model, layout: Layout = ALONE) -> float:
    """Bytes of the vision tower. Engines load it with the text model, unquantised, and split it over ranks."""
    return model.vision_params * FORMATS["bf16"].bytes_per_weight / layout.tp


def drafter_weight_bytes(drafter: Drafter, layout: Layout = ALONE) -> float:
    """Bytes of the drafter. Of embedding and lm_head, what is its own counts; the target's layers are there already."""
    if drafter.of_target:
        return 0.0
    formats, hidden = drafter.formats, drafter.hidden
    joined = sum(each.params for each in (*drafter.projections, *drafter.micro))
    small = (joined + drafter.norms * hidden + drafter.extra_params) * formats.of("small").bytes_per_weight
    layers = blocks_weight_bytes(drafter.blocks, hidden, formats, layout)
    lm_head_rows = drafter.vocab if drafter.own_lm_head else 0
    vocabulary = _vocabulary_bytes(drafter.embedding_rows, lm_head_rows, hidden, formats, layout)
    return drafter.resident_copies * (layers + small + vocabulary)


def upkeep_weight_bytes(upkeep: Iterable[Upkeep], model: Model) -> float:
    """Bytes of the matrices that a system multiplies beside its passes, unquantised and whole on every rank."""
    sizes = (product_sizes(product, model) for item in upkeep for product in item.products)
    return sum(k * n for k, n in sizes) * FORMATS["bf16"].bytes_per_weight


def _vocabulary_bytes(
    embedding_rows: int, lm_head_rows: int, hidden: int, formats: GroupFormats, layout: Layout
) -> float:
    """Embedding and lm_head; where they are one matrix, lm_head has no rows."""
    embedding = embedding_rows * formats.of("embedding").bytes_per_weight / layout.tp
    lm_head = lm_head_rows * formats.of("lm_head").bytes_per_weight / layout.ranks_of("lm_head")
    return hidden * (embedding + lm_head)


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
