"""A catalogue model on the GPU: embedding, blocks, lm_head, MTP head, caches and states; and the passes of one step.

A model that does not fit is built with fewer repeats of its layers: see `Layout`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from calibration.bench import fused
from calibration.bench.layers import Moe, Part, Recurrent, UnsupportedError, build, random_matrix, refuse, rotary_width
from calibration.bench.passes import Pass, Place, Scratch, States
from calibration.kernels import gemm, small
from calibration.kernels.index import build_lists, parallel_programs
from wmtp_sim.spec.model import Attention, Block, LatentAttention, Model, MtpHead
from wmtp_sim.work.cache import blocks_kv_token_bytes, blocks_state_bytes
from wmtp_sim.work.weights import block_params, mtp_params, projection_matrix

#: Tokens per loop turn of the index builder.
INDEX_BLOCK = 512
#: Memory beside weights, caches and states: CUDA, compiled kernels, workspaces, logits, lists.
SLACK_BYTES = 4e9
INT32, INT64, FLOAT32 = torch.int32, torch.int64, torch.float32

# --- what is built ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """A model's blocks as ``fixed`` ones and ``repeats`` times a ``unit``.

    Kinds of blocks with a common divisor repeat (30 GDN and 10 attention layers are 10 units of 3 and 1); the rarest
    kinds are kept whole where there is none (DeepSeek-V3's 3 dense layers beside 58 units of one).
    """

    fixed: tuple[Block, ...]
    unit: tuple[Block, ...]
    repeats: int


def layout(blocks: tuple[Block, ...]) -> Layout:
    """The smallest unit, with as few kinds as possible kept whole."""
    by_count = sorted(blocks, key=lambda block: block.count)
    for kept in range(len(blocks)):
        repeats = math.gcd(*(block.count for block in by_count[kept:]))
        if repeats > 1:
            fixed = by_count[:kept]
            unit = tuple(b.model_copy(update={"count": b.count // repeats}) for b in blocks if b not in fixed)
            return Layout(tuple(b for b in blocks if b in fixed), unit, repeats)
    return Layout((), blocks, 1)


@dataclass(frozen=True)
class Demand:
    """What all points together ask of the build: the widest batch x context, and the (batch, rows) of their passes."""

    slots: int
    positions: int
    shapes: frozenset[tuple[int, int]]


def bytes_needed(model: Model, plan: Layout, repeats: int, demand: Demand, dtype_bytes: int) -> float:
    """Memory of a build with that many repeats."""
    vocabulary = model.vocab * model.hidden * (1 if model.tied_embeddings else 2)
    blocks = [*plan.fixed, *(b.model_copy(update={"count": b.count * repeats}) for b in plan.unit if repeats)]
    weights = vocabulary + sum(block_params(block, model.hidden) for block in blocks) + mtp_params(model)
    cached = (*blocks, *(model.mtp.blocks if model.mtp else ()))
    kv = demand.slots * (blocks_kv_token_bytes(cached, dtype_bytes) + 4)
    state = blocks_state_bytes(tuple(blocks), 4)
    copies = sum(batch * (rows + 1) for batch, rows in demand.shapes)
    return weights * dtype_bytes + kv + state * copies + demand.positions * 64 * 4 + SLACK_BYTES


def fitting_repeats(model: Model, demand: Demand, memory_bytes: float, dtype_bytes: int) -> int:
    """The most repeats of the model's unit that fit. Raises `UnsupportedError` where not even one does."""
    plan = layout(model.blocks)
    for repeats in range(plan.repeats, 0, -1):
        if bytes_needed(model, plan, repeats, demand, dtype_bytes) <= memory_bytes:
            return repeats
    needed = bytes_needed(model, plan, 1, demand, dtype_bytes)
    raise UnsupportedError(
        f"one unit of {model.name}'s layers with these contexts takes {needed / 1e9:.0f} GB of {memory_bytes / 1e9:.0f}"
    )


class Residual:
    """One residual layer: each part behind a norm of its own."""

    def __init__(self, block: Block, hidden: int, place: Place, skew: float) -> None:
        parts = (*block.mixers, *block.channels)
        refuse(block, residual_streams=block.residual_streams > 1 and block.residual_streams)
        if block.norms != len(parts):
            raise UnsupportedError(f"the bench builds no layer with {block.norms} norms around {len(parts)} parts")
        self.parts = [(place.ones(hidden), build(part, hidden, place, skew)) for part in parts]


def parts_of(blocks: Iterable[Residual]) -> list[Part]:
    return [part for block in blocks for _, part in block.parts]


def run(blocks: Iterable[Residual], residual: Tensor, state: Pass) -> Tensor | None:
    """Runs ``residual [tokens, hidden]`` through the blocks, in place; what the last part adds to it is returned."""
    delta: Tensor | None = None
    for block in blocks:
        for norm, part in block.parts:
            x = add_and_norm(delta, residual, norm, state.buffer("normed", *residual.shape))
            delta = part.forward(x, state)
    return delta


def add_and_norm(delta: Tensor | None, residual: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """Adds a part's output to the residual and norms the sum: one kernel."""
    if delta is None:
        return small.rms_norm(residual, weight, out)
    return small.add_rms_norm(delta, residual, weight, out)


class Head:
    """The MTP head: norms of the next token's embedding and of a hidden state, their projection, blocks, a norm."""

    def __init__(self, head: MtpHead, hidden: int, place: Place, skew: float) -> None:
        refuse(
            head,
            several_heads=head.heads > 1 and head.heads,
            split_projection=head.projection == "split",
            own_lm_head=head.own_lm_head,
        )
        if head.norms != 3:
            raise UnsupportedError(f"the bench builds no draft head with {head.norms} norms")
        self.projection = random_matrix(projection_matrix(head.projections(hidden)[0]), place)
        self.embed_norm, self.hidden_norm, self.final_norm = (place.ones(hidden) for _ in range(3))
        self.blocks = [Residual(block, hidden, place, skew) for block in head.blocks for _ in range(block.count)]
        if any(isinstance(part, Recurrent) for part in parts_of(self.blocks)):
            raise UnsupportedError("the bench builds no draft head with recurrent layers")

    def forward(self, embedded: Tensor, hidden: Tensor, out: Tensor, picked: Tensor | None, state: Pass) -> Tensor:
        """Normed outputs of ``embedded`` and ``hidden [tokens, hidden]``, of the picked row of each sequence if given.

        picked: ``[sequences]`` int32. out: ``[sequences or tokens, hidden]``, written.
        """
        tokens, width = embedded.shape
        joined = state.buffer("joined", tokens, 2 * width)
        small.rms_norm(embedded, self.embed_norm, joined[:, :width])
        small.rms_norm(hidden, self.hidden_norm, joined[:, width:])
        residual = gemm.dense(joined, self.projection, state.buffer("residual", tokens, width))
        delta = run(self.blocks, residual, state)
        return small.rms_norm(residual, self.final_norm, out, residual=delta, picked=picked)


class Stack:
    """Weights, caches and rotary tables.

    Args:
        model: any model of supported kinds; weights are random, of ``place``'s type whatever the checkpoint says.
        place: device and type.
        demand: how large the caches are.
        repeats: units of the model's `Layout` to build; None builds all.
        skew: of the routing; 0 leaves it to the routers.
    """

    def __init__(
        self, model: Model, place: Place, demand: Demand, repeats: int | None = None, skew: float = 0.0
    ) -> None:
        if model.final_norms != 1:
            raise UnsupportedError(f"the bench builds no model with {model.final_norms} final norms")
        self.model, self.place, self.demand = model, place, demand
        self.layout = layout(model.blocks)
        self.repeats = self.layout.repeats if repeats is None else min(repeats, self.layout.repeats)
        self.embedding = place.normal(model.vocab, model.hidden)
        std = model.hidden**-0.5
        self.vocabulary = self.embedding if model.tied_embeddings else place.normal(model.vocab, model.hidden, std=std)
        self.final_norm = place.ones(model.hidden)
        self.fixed = self._residuals(self.layout.fixed, skew)
        self.units = [self._residuals(self.layout.unit, skew) for _ in range(self.repeats)]
        self.head = Head(model.mtp, model.hidden, place, skew) if model.mtp else None
        self.recurrent = self._numbered_recurrences()
        for part in (*parts_of(self.blocks()), *parts_of(self.head.blocks if self.head else ())):
            part.allocate(demand.slots)
        self.scratch = Scratch(place)
        self.table = torch.arange(demand.slots, dtype=INT32, device=place.device)
        self.cos_sin = self._rotary_tables()

    def _residuals(self, blocks: tuple[Block, ...], skew: float) -> list[Residual]:
        model = self.model
        return [Residual(block, model.hidden, self.place, skew) for block in blocks for _ in range(block.count)]

    def blocks(self, repeats: int | None = None) -> list[Residual]:
        """The blocks of the first so many units, after the fixed ones."""
        units = self.units[: self.repeats if repeats is None else repeats]
        return [*self.fixed, *(block for unit in units for block in unit)]

    def _numbered_recurrences(self) -> list[Recurrent]:
        layers = [part for part in parts_of(self.blocks()) if isinstance(part, Recurrent)]
        for number, layer in enumerate(layers):
            layer.layer = number
        if len({(layer.state_shape, layer.channels, layer.taps) for layer in layers}) > 1:
            raise UnsupportedError("the bench builds no model with recurrent layers of several sizes")
        return layers

    def _rotary_tables(self) -> dict[int, Tensor]:
        """Cosines and sines of every position by rotary width; a model without positions turns by nothing."""
        mtp = self.model.mtp.blocks if self.model.mtp else ()
        mixers = [mixer for block in (*self.model.blocks, *mtp) for mixer in block.mixers]
        widths = {rotary_width(mixer) for mixer in mixers if isinstance(mixer, Attention | LatentAttention)}
        positions = torch.arange(self.demand.positions, dtype=FLOAT32, device=self.place.device)
        if not self.model.rope:
            positions.zero_()
        tables = {}
        for width in widths:
            steps = torch.arange(0, width, 2, dtype=FLOAT32, device=self.place.device)
            angles = positions[:, None] * 1e6 ** (-steps / width)
            tables[width] = torch.cat([angles.cos(), angles.sin()], 1)
        return tables

    def states(self, batch: int, rows: int, layers: int) -> States | None:
        """States of the first ``layers`` recurrent layers, with room for ``rows`` snapshots if more than one."""
        if not layers:
            return None
        first, count, keep = self.recurrent[0], len(self.recurrent), self.scratch.keep
        shape, past = first.state_shape, first.taps - 1
        recurrent = keep(("state", batch), lambda: self.place.normal(count, batch, *shape, std=0.1, dtype=FLOAT32))
        conv = keep(("conv", batch), lambda: self.place.normal(count, batch, past, first.channels))
        if rows == 1:
            return States(recurrent[:layers], conv[:layers])
        snapshots = self.scratch.tensor("snapshots", count, batch, rows, *shape, dtype=FLOAT32)
        columns = self.scratch.tensor("columns", count, batch, past + rows, first.channels)
        return States(recurrent[:layers], conv[:layers], snapshots[:layers], columns[:layers])

    def touched(self, blocks: Iterable[Residual], tokens: int) -> list[int]:
        """Distinct experts that each MoE layer's last pass of so many rows chose."""
        return [part.touched(tokens) for part in parts_of(blocks) if isinstance(part, Moe) and tokens in part.chosen]


# --- passes of one step ----------------------------------------------------------------------------------------


class Lists:
    """Slot lists of ``steps`` passes side by side, and the passes that attend them.

    Step i appends ``appended + i`` tokens to those committed, and its ``rows`` are the last of them.
    """

    def __init__(
        self,
        stack: Stack,
        batch: int,
        committed: int,
        rows: int,
        steps: int = 1,
        window: tuple[int, int] | None = None,
        states: States | None = None,
    ) -> None:
        place, scratch = stack.place, stack.scratch
        self.window = None if window is None else window[0]
        self.sink = 0 if window is None else window[1]
        kept = committed if window is None else min(committed, sum(window))
        width = kept + rows + steps - 1
        self.rows = rows
        self.table = stack.table[: stack.demand.slots // batch * batch].view(batch, -1)
        self.requests = torch.arange(batch, dtype=INT32, device=place.device)
        self.committed = torch.full((batch,), committed, dtype=INT32, device=place.device)
        self.listed = scratch.tensor("listed", steps, batch, width, dtype=INT32)
        self.lengths = torch.zeros(steps, batch, dtype=INT32, device=place.device)
        self.programs = parallel_programs(width, steps, batch)
        self.passes = [self._pass(stack, committed + step, step, states) for step in range(steps)]

    def _pass(self, stack: Stack, first: int, step: int, states: States | None) -> Pass:
        batch, rows = self.requests.shape[0], self.rows
        positions = torch.arange(first, first + rows, dtype=INT32, device=stack.place.device)
        return Pass(
            sequences=batch,
            rows=rows,
            positions=positions.repeat(batch),
            slots=self.table[:, first : first + rows].flatten().contiguous(),
            listed=self.listed[step],
            lengths=self.lengths[step],
            cos_sin=stack.cos_sin,
            scratch=stack.scratch,
            states=states,
        )

    def build(self) -> None:
        """Writes all lists: one launch."""
        build_lists(
            self.table,
            self.requests,
            self.committed,
            out=self.listed,
            out_lengths=self.lengths,
            appended=self.rows,
            window=self.window,
            sink=self.sink,
            block=INDEX_BLOCK,
            programs=self.programs,
        )


class Phases:
    """The phases of one step: each is a fixed sequence of launches.

    Args:
        stack: the model.
        context, batch, depth: depth 0 is the base step, whose states are updated in place.
        narrow, wide: (window, sink) of the narrow draft passes and of draft-extend; None attends the whole context.
        repeats: units of the stack's layout to run; None runs all that were built.
    """

    def __init__(
        self,
        stack: Stack,
        context: int,
        batch: int = 1,
        depth: int = 0,
        narrow: tuple[int, int] | None = None,
        wide: tuple[int, int] | None = None,
        repeats: int | None = None,
    ) -> None:
        model, scratch, rows = stack.model, stack.scratch, depth + 1
        self.stack, self.context, self.batch, self.depth, self.rows = stack, context, batch, depth, rows
        self.blocks = stack.blocks(repeats)
        layers = sum(isinstance(part, Recurrent) for part in parts_of(self.blocks))
        self.states = stack.states(batch, rows, layers)
        self.target = Lists(stack, batch, context, rows, states=self.states)
        self.drafts = self._random_tokens("drafts", batch, depth)
        self.bonus = self._random_tokens("bonus", batch)
        self.best = self._random_tokens("best", batch, rows)
        self.tokens = self._random_tokens("tokens", batch, rows)
        self.accepted = scratch.keep(("accepted", batch, depth), lambda: torch.zeros_like(self.bonus, dtype=INT32))
        self.next_committed = scratch.tensor("next_committed", batch, dtype=INT32)
        self.hidden = scratch.tensor("hidden", batch * rows, model.hidden)
        self.logits = scratch.tensor("logits", batch * rows, model.vocab)
        self.draft_hidden = scratch.keep(("draft_hidden", batch), lambda: stack.place.normal(batch, model.hidden))
        self.draft_logits = scratch.tensor("draft_logits", batch, model.vocab)
        self.narrow = Lists(stack, batch, context, 1, depth - 1, narrow) if stack.head and depth > 1 else None
        self.wide = Lists(stack, batch, context, rows, 1, wide) if stack.head and depth else None

    def _random_tokens(self, name: str, *shape: int) -> Tensor:
        vocab, device = self.stack.model.vocab, self.stack.place.device
        return self.stack.scratch.keep((name, shape), lambda: torch.randint(vocab, shape, device=device))

    def embed(self, first: Tensor, rest: Tensor | None, name: str) -> Tensor:
        rows = 1 if rest is None else 1 + rest.shape[1]
        out = self.stack.scratch.tensor(name, self.batch * rows, self.stack.model.hidden)
        return fused.embed(self.stack.embedding, first, rest, out)

    def verify(self) -> None:
        """The target over the last token and the drafts: hidden states and logits of every row, and snapshots."""
        self.target.build()
        state = self.target.passes[0]
        residual = self.embed(self.bonus, self.drafts if self.depth else None, "residual")
        delta = run(self.blocks, residual, state)
        add_and_norm(delta, residual, self.stack.final_norm, self.hidden)
        gemm.dense(self.hidden, self.stack.vocabulary, self.logits)

    def sample(self) -> None:
        """The target's tokens, how many drafts agree, the next step's first token, and the states to go on from."""
        small.argmax(self.logits, self.best.view(-1))
        small.accept(self.drafts, self.best, self.accepted, self.tokens)
        fused.hand_over(self.tokens, self.accepted, self.target.committed, self.bonus, self.next_committed)
        states = self.states
        if states is not None and states.snapshots is not None and states.columns is not None:
            flat = states.snapshots.flatten(3), states.recurrent.flatten(2)
            fused.commit(flat[0], states.columns, self.accepted, flat[1], states.conv)

    def base(self) -> None:
        """The whole step without speculation (depth 0)."""
        self.verify()
        self.sample()

    def extend(self) -> None:
        """The MTP head over the rows just verified; the last accepted one proposes the first draft."""
        head, lists = self._head(self.wide)
        lists.build()
        embedded = self.embed(self.best[:, 0], self.best[:, 1:], "embedded")
        head.forward(embedded, self.hidden, self.draft_hidden, self.accepted, lists.passes[0])
        gemm.lm_head(self.draft_hidden, self.stack.vocabulary, self.draft_logits, self.drafts[:, 0])

    def draft(self) -> None:
        """The narrow passes: each embeds the token that the one before it proposed."""
        head, lists = self._head(self.narrow)
        lists.build()
        for i, state in enumerate(lists.passes):
            embedded = self.embed(self.drafts[:, i], None, "embedded")
            head.forward(embedded, self.draft_hidden, self.draft_hidden, None, state)
            gemm.lm_head(self.draft_hidden, self.stack.vocabulary, self.draft_logits, self.drafts[:, i + 1])

    def build_lists(self) -> None:
        """All lists of the step: what the phases do first."""
        for lists in (self.target, self.narrow, self.wide):
            if lists is not None:
                lists.build()

    def _head(self, lists: Lists | None) -> tuple[Head, Lists]:
        if self.stack.head is None or lists is None:
            raise UnsupportedError(f"{self.stack.model.name} drafts nothing at depth {self.depth}")
        return self.stack.head, lists

    @property
    def available(self) -> dict[str, Callable[[], None]]:
        """The phases that this depth and model have, in the order of a step."""
        if not self.depth:
            return {"base": self.base}
        phases: dict[str, Callable[[], None]] = {"verify": self.verify, "sample": self.sample}
        if self.wide is not None:
            phases["extend"] = self.extend
        return {"draft": self.draft, **phases} if self.narrow is not None else phases


# --- launches, by structure ------------------------------------------------------------------------------------


def launches(blocks: Iterable[Residual], norms: int) -> Counter[str]:
    """Kernels of one pass by class: embedding and ``norms`` final norms, blocks, lm_head."""
    counts = Counter(elementwise=1 + norms, gemm=1)
    for part in parts_of(blocks):
        counts["gemm"] += len(part.matrices)
        counts["elementwise"] += 1 + part.ELEMENTWISE
        core, number = part.CORE
        counts[core] += number
    return +counts


def step_launches(phases: Phases) -> dict[str, dict[str, int]]:
    """Kernels of every phase by class."""
    head, stateful = phases.stack.head, phases.states is not None
    target = launches(phases.blocks, norms=1) + Counter(index_build=1)
    sample = Counter(sample=4, copy=int(stateful and phases.depth > 0))
    if not phases.depth:
        return {"base": dict(target + sample)}
    counts = {"verify": target, "sample": +sample}
    if head is not None:
        one = launches(head.blocks, norms=3) + Counter(gemm=1, sample=2)
        counts["extend"] = one + Counter(index_build=1)
        if phases.depth > 1:
            narrow = Counter({name: count * (phases.depth - 1) for name, count in one.items()})
            counts["draft"] = narrow + Counter(index_build=1)
    return {name: dict(count) for name, count in counts.items()}
