"""Forward passes of a target and of a drafter: their layers, then final norm, lm_head and the choice of a token."""

from __future__ import annotations

from collections.abc import Iterator

from wmtp_sim.spec.drafter import Drafter
from wmtp_sim.spec.model import Model
from wmtp_sim.work.layers import ACTIVATION_BYTES, Pass, block_operations, elementwise, gemm
from wmtp_sim.work.operation import Array, Operation
from wmtp_sim.work.weights import Matrix


def target_forward(model: Model, shape: Pass) -> Iterator[Operation]:
    """One pass of the target over ``shape.rows`` rows per sequence, with logits for every row."""
    formats = model.precision.target
    yield _embedding(shape, model.hidden)
    for block in model.blocks:
        yield from block_operations(block, shape, model.hidden, formats)
    yield _final_norm(model.hidden, model.final_norms, shape)
    yield gemm(Matrix("projection", model.hidden, model.vocab, "lm_head"), shape, formats)


def draft_forward(drafter: Drafter, shape: Pass, logit_rows: Array, wide: bool = False) -> Iterator[Operation]:
    """One pass of the drafter, with an lm_head over ``logit_rows`` rows and an argmax.

    ``wide`` is the pass over the rows just verified; projections that run once per committed token are part of it.
    """
    yield _embedding(shape, drafter.hidden)
    for joined in drafter.projections:
        if wide or joined.every_step:
            yield gemm(Matrix(joined.name, joined.k, joined.n, "small", stiff=joined.n), shape, drafter.formats)
    for block in drafter.blocks:
        yield from block_operations(block, shape, drafter.hidden, drafter.formats)
    yield _final_norm(drafter.hidden, drafter.norms, shape)
    vocabulary = Matrix("projection", drafter.hidden, drafter.vocab, "lm_head")
    yield gemm(vocabulary, shape, drafter.formats, rows=logit_rows)
    yield sample(logit_rows * drafter.vocab, "sample.argmax", launches=2.0)


def sample(logits: Array, name: str, launches: float) -> Operation:
    """Kernels that read ``logits`` values (bf16) to choose or judge tokens."""
    return Operation(name=name, kernel="sample", activations=ACTIVATION_BYTES * logits, launches=launches)


def state_commit(state_bytes_per_sequence: float, batch: Array, copies: float) -> Operation:
    """The accepted snapshot copied into the persistent recurrent state: ``copies`` state reads or writes."""
    return Operation(name="state.commit", kernel="copy", state=batch * state_bytes_per_sequence * copies)


def _embedding(shape: Pass, hidden: int) -> Operation:
    return elementwise("embedding", shape, hidden)


def _final_norm(hidden: int, norms: int, shape: Pass) -> Operation:
    return elementwise("norm", shape, hidden * norms, launches=float(norms))
