"""Forward passes of a target and of a drafter: their layers, then final norm, lm_head and the choice of a token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wmtp_sim.spec.drafter import Drafter
from wmtp_sim.spec.model import Attention, Model
from wmtp_sim.spec.system import Upkeep
from wmtp_sim.work.cache import written_token_bytes
from wmtp_sim.work.collectives import all_gather, all_reduce
from wmtp_sim.work.layers import ACTIVATION_BYTES, Pass, block_operations, elementwise, gemm
from wmtp_sim.work.operation import Array, Operation
from wmtp_sim.work.weights import Matrix, product_sizes, projection_matrix


def target_forward(model: Model, shape: Pass, kept: float = 1.0) -> Iterator[Operation]:
    """One pass of the target over ``shape.rows`` rows per sequence, with logits for every row.

    ``kept`` is the share of its layers that run.

    Across ranks, every rank gathers the logits of the whole vocabulary. Groups that share lm_head gather rows first, by
    an all-reduce of rows that are zero where a group has none (SGLang 0.5.23, ``LogitsProcessor``).
    """
    formats = model.precision.target
    yield from _embedding(shape, model.hidden)
    for block in model.blocks:
        yield from (each.times(kept) for each in block_operations(block, shape, model.hidden, formats))
    yield _final_norm(model.hidden, model.final_norms, shape)
    rows, groups = shape.tokens_of("lm_head"), shape.layout.groups_of("lm_head")
    if groups > 1:
        yield all_reduce(rows * model.hidden * ACTIVATION_BYTES, shape.layout.ranks)
    yield gemm(Matrix("projection", model.hidden, model.vocab, "lm_head"), shape, formats)
    if (ranks := shape.layout.ranks_of("lm_head")) > 1:
        yield all_gather(rows * model.vocab * ACTIVATION_BYTES, ranks)


def draft_forward(drafter: Drafter, shape: Pass, logit_rows: Array, wide: bool = False) -> Iterator[Operation]:
    """One pass of the drafter, with an lm_head over ``logit_rows`` rows and an argmax, or without where there are none.

    ``wide`` is the pass over the rows just verified; projections that run once per committed token are part of it.
    Across ranks, every rank gathers the logits of the whole vocabulary and takes the argmax of its group's rows: so do
    SGLang 0.5.23 (``LogitsProcessor``) and vLLM 0.33 (``use_local_argmax_reduction`` is off unless asked for).
    """
    yield from _embedding(shape, drafter.hidden)
    for joined in drafter.projections:
        if wide or joined.every_step:
            yield gemm(projection_matrix(joined), shape, drafter.formats)
    for block in drafter.blocks:
        yield from (
            each.times(drafter.kept) for each in block_operations(block, shape, drafter.hidden, drafter.formats)
        )
    yield _final_norm(drafter.hidden, drafter.norms, shape)
    if not np.any(logit_rows):  # a pass for the caches alone
        return
    ranks, groups = shape.layout.ranks_of("lm_head"), shape.layout.groups_of("lm_head")
    rows = logit_rows * groups
    if groups > 1:
        yield all_reduce(rows * drafter.hidden * ACTIVATION_BYTES, shape.layout.ranks)
    vocabulary = Matrix("projection", drafter.hidden, drafter.vocab, "lm_head")
    yield gemm(vocabulary, shape, drafter.formats, rows=rows)
    if ranks > 1:
        yield all_gather(rows * drafter.vocab * ACTIVATION_BYTES, ranks)
    yield sample(logit_rows, drafter.vocab, "sample.argmax", launches=2.0)


def cache_fill(drafter: Drafter, shape: Pass) -> Iterator[Operation]:
    """What brings a block drafter's caches up to ``shape.rows`` rows: the target's states fused, then K and V by layer.

    The layers themselves do not run. The matrices of K and V are parts of those that the next block reads, too.
    """
    for joined in drafter.projections:
        yield gemm(projection_matrix(joined), shape, drafter.formats)
    for block in drafter.blocks:
        for mixer in block.mixers:
            if isinstance(mixer, Attention):
                width = mixer.kv_heads * (mixer.head_dim + mixer.v_head_dim)
                matrix = Matrix("kv_proj", drafter.hidden, width, "attention", stiff=width, ways=mixer.kv_heads)
                yield gemm(matrix, shape, drafter.formats).times(block.count)
            written = shape.tokens * written_token_bytes(mixer, shape.kv_bytes)
            yield elementwise(mixer.kind, shape, drafter.hidden, written=written).times(block.count)


def micro_forward(drafter: Drafter, shape: Pass) -> Iterator[Operation]:
    """A block drafter's micro-network over one token of every sequence: matrix after matrix, and an argmax."""
    for each in drafter.micro:
        yield gemm(projection_matrix(each), shape, drafter.formats)
    yield sample(shape.batch, drafter.vocab, "sample.argmax", launches=2.0)


def upkeep(item: Upkeep, model: Model, shape: Pass, times: Array) -> Iterator[Operation]:
    """Work that a system does beside its passes, ``times`` a round: matrices over one row, and bytes moved."""
    for k, n in (product_sizes(each, model) for each in item.products):
        yield gemm(Matrix(item.name, k, n, "small", stiff=n), shape, model.precision.target).times(times)
    moved = shape.batch * (item.bytes + item.context_bytes * shape.attended)
    if item.bytes or item.context_bytes or item.launches:
        yield Operation(f"upkeep.{item.name}", "copy", metadata=moved, launches=max(item.launches, 1.0)).times(times)


def sample(rows: Array, vocab: float, name: str, launches: float) -> Operation:
    """Kernels that read ``rows`` rows of ``vocab`` logits (bf16) to choose or judge tokens."""
    read = ACTIVATION_BYTES * rows * vocab
    return Operation(name=name, kernel="sample", activations=read, launches=launches, rows=rows, geometry=(vocab,))


def state_commit(state_bytes_per_sequence: float, batch: Array, copies: float) -> Operation:
    """The accepted snapshot copied into the persistent recurrent state: ``copies`` state reads or writes."""
    return Operation(name="state.commit", kernel="copy", state=batch * state_bytes_per_sequence * copies)


def _embedding(shape: Pass, hidden: int) -> Iterator[Operation]:
    """The look-up of every row's token. Ranks hold a part of the vocabulary each, and add up what they found."""
    yield elementwise("embedding", shape, hidden)
    if shape.layout.tp > 1:
        yield all_reduce(shape.tokens * hidden * ACTIVATION_BYTES, shape.layout.tp)


def _final_norm(hidden: int, norms: int, shape: Pass) -> Operation:
    return elementwise("norm", shape, hidden * norms, launches=float(norms))
