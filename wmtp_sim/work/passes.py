"""Forward passes of a target and of a drafter: their layers, then final norm, lm_head and the choice of a token."""

from __future__ import annotations

from collections.abc import Iterator

from wmtp_sim.spec.drafter import Drafter
from wmtp_sim.spec.model import Model
from wmtp_sim.work.collectives import all_gather, all_reduce
from wmtp_sim.work.layers import ACTIVATION_BYTES, Pass, block_operations, elementwise, gemm
from wmtp_sim.work.operation import Array, Operation
from wmtp_sim.work.weights import Matrix, projection_matrix

#: A rank's best logit and its token, fp32 and int32.
WINNER_BYTES = 8.0


def target_forward(model: Model, shape: Pass) -> Iterator[Operation]:
    """One pass of the target over ``shape.rows`` rows per sequence, with logits for every row.

    Across ranks, every rank gathers the logits of the whole vocabulary.
    """
    formats = model.precision.target
    yield from _embedding(shape, model.hidden)
    for block in model.blocks:
        yield from block_operations(block, shape, model.hidden, formats)
    yield _final_norm(model.hidden, model.final_norms, shape)
    yield gemm(Matrix("projection", model.hidden, model.vocab, "lm_head"), shape, formats)
    if shape.tp > 1:
        yield all_gather(shape.tokens * model.vocab * ACTIVATION_BYTES, shape.tp)


def draft_forward(drafter: Drafter, shape: Pass, logit_rows: Array, wide: bool = False) -> Iterator[Operation]:
    """One pass of the drafter, with an lm_head over ``logit_rows`` rows and an argmax.

    ``wide`` is the pass over the rows just verified; projections that run once per committed token are part of it.
    Across ranks, each takes the argmax of its own part of the vocabulary, and only the winners are gathered.
    """
    yield from _embedding(shape, drafter.hidden)
    for joined in drafter.projections:
        if wide or joined.every_step:
            yield gemm(projection_matrix(joined), shape, drafter.formats)
    for block in drafter.blocks:
        yield from block_operations(block, shape, drafter.hidden, drafter.formats)
    yield _final_norm(drafter.hidden, drafter.norms, shape)
    vocabulary = Matrix("projection", drafter.hidden, drafter.vocab, "lm_head")
    yield gemm(vocabulary, shape, drafter.formats, rows=logit_rows)
    yield sample(logit_rows, drafter.vocab / shape.tp, "sample.argmax", launches=2.0)
    if shape.tp > 1:
        yield all_gather(logit_rows * shape.tp * WINNER_BYTES, shape.tp)


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
    if shape.tp > 1:
        yield all_reduce(shape.tokens * hidden * ACTIVATION_BYTES, shape.tp)


def _final_norm(hidden: int, norms: int, shape: Pass) -> Operation:
    return elementwise("norm", shape, hidden * norms, launches=float(norms))
