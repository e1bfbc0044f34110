"""Token and channel mixers with random weights, each launching an engine's kernels in a fixed order.

A layer multiplies exactly the matrices that `wmtp_sim.work.weights` lists for it, one product each. Around them and its
core (attention with its merge, recurrence, sorted experts with their sum) it starts ``ELEMENTWISE`` small kernels, the
same number for every variant of its kind: where a variant has no use for one (no gate, no shared expert), an empty
kernel takes its place, so that one number per kind describes the bench as an engine. Everything a launch writes is
allocated once, so passes can be captured in CUDA graphs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from calibration.bench import fused
from calibration.bench.passes import Pass, Place, States
from calibration.kernels import attention, gemm, mla, moe, recurrent, small
from wmtp_sim.spec import model as spec
from wmtp_sim.spec.base import Spec
from wmtp_sim.work.weights import Matrix, weights_of

#: Rotated entries of a head, where it has as many (Qwen3.5 rotates 64 of 256).
ROTARY = 64


class UnsupportedError(ValueError):
    """The bench cannot build a part of this model."""


class Part(ABC):
    """Matrices by name, as `wmtp_sim.work.weights` lists them: ``[n, k]``, or ``[copies, k, n]``."""

    ELEMENTWISE = 0
    #: Class and number of the core's kernels as the cost model counts them: attention and its merge are one.
    CORE = ("", 0)
    #: Caches, and the shape of a slot of each.
    cached: dict[str, tuple[int, ...]] = {}  # noqa: RUF012 - parts that have caches state their own

    def __init__(self, part: spec.Mixer | spec.Channel, hidden: int, place: Place) -> None:
        self.hidden = hidden
        self.place = place
        self.matrices = {m.name: random_matrix(m, place) for m in weights_of(part, hidden).matrices}

    def project(self, name: str, x: Tensor, state: Pass) -> Tensor:
        """``x [tokens, k]`` times one matrix, in a buffer of that name."""
        weight = self.matrices[name]
        return gemm.dense(x, weight, state.buffer(name, x.shape[0], weight.shape[0]))

    def allocate(self, slots: int) -> None:
        """Makes KV caches of that many slots, where the part has any."""
        for name, shape in self.cached.items():
            setattr(self, name, self.place.normal(slots, *shape))

    @abstractmethod
    def forward(self, x: Tensor, state: Pass) -> Tensor:
        """What the part adds to the residual, ``[tokens, hidden]`` as ``x``: a buffer that later parts write again."""


def random_matrix(matrix: Matrix, place: Place) -> Tensor:
    """Normal weights that keep the size of activations."""
    shape = (matrix.n, matrix.k) if matrix.copies == 1 else (matrix.copies, matrix.k, matrix.n)
    return place.normal(*shape, std=matrix.k**-0.5)


def refuse(part: Spec, **unwanted: object) -> None:
    """Raises for the first feature of a part that is present."""
    for name, present in unwanted.items():
        if present:
            kind = getattr(part, "kind", type(part).__name__)
            value = "" if present is True else f" ({present})"
            raise UnsupportedError(f"the bench builds no {kind} with {name.replace('_', ' ')}{value}")


# --- token mixers ----------------------------------------------------------------------------------------------


class Attention(Part):
    """GQA: qkv and gate in one product, split with q/k norms, rope with the cache write, attention, gate, o."""

    ELEMENTWISE = 3
    CORE = ("attention", 1)
    k_cache: Tensor
    v_cache: Tensor

    def __init__(self, part: spec.Attention, hidden: int, place: Place) -> None:
        refuse(
            part,
            window=part.window,
            per_head_gate=part.output_gate == "per_head",
            full_width_norm=part.qk_norm == "full_width",
            o_bias=part.o_bias,
            sink_logits=part.sink_logits,
            shared_keys_and_values=part.value_from_key,
            block_selection=part.sparse,
        )
        super().__init__(part, hidden, place)
        self.part = part
        q, kv, v = part.q_heads * part.head_dim, part.kv_heads * part.head_dim, part.kv_heads * part.v_head_dim
        self.heads_width = q + kv + v
        normed = part.qk_norm == "per_head"
        self.q_norm, self.k_norm = (place.ones(part.head_dim) if normed else None for _ in range(2))
        self.bias = place.normal(self.heads_width, std=0.1) if part.qkv_bias else None
        self.rotary = rotary_width(part)
        self.cached = {"k_cache": (part.kv_heads, part.head_dim), "v_cache": (part.kv_heads, part.v_head_dim)}

    def forward(self, x: Tensor, state: Pass) -> Tensor:
        part, tokens = self.part, state.tokens
        qkv = self.project("qkv_proj", x, state)
        q, q_turned = (state.buffer(name, tokens, part.q_heads, part.head_dim) for name in ("q", "q_turned"))
        k = state.buffer("k", tokens, part.kv_heads, part.head_dim)
        v = state.buffer("v", tokens, part.kv_heads, part.v_head_dim)
        fused.split_heads(qkv, self.q_norm, self.k_norm, self.bias, q, k, v)
        cos_sin = state.cos_sin[self.rotary]
        small.rope_and_cache(q, k, v, cos_sin, state.positions, state.slots, q_turned, self.k_cache, self.v_cache)
        mixed = self.attend(q_turned, state).view(tokens, -1)
        if part.output_gate == "elementwise":
            gates = qkv[:, self.heads_width :]
            mixed = fused.gate(mixed, gates, state.buffer("gated", *mixed.shape))
        else:
            small.empty()
        return self.project("o_proj", mixed, state)

    def attend(self, q: Tensor, state: Pass) -> Tensor:
        """Rotated queries ``[tokens, q_heads, head_dim]`` over the listed tokens."""
        part = self.part
        q = q.view(state.sequences, state.rows, part.q_heads, part.head_dim)
        packed = state.rows * part.q_heads // part.kv_heads
        streams = state.sequences * part.kv_heads
        splits = attention.choose_splits(state.longest, streams, state.scratch.place.sm_count, part.head_dim, packed)
        workspace = state.scratch.keep(
            ("attention", q.shape, part.kv_heads, part.v_head_dim, splits),
            lambda: attention.make_workspace(q, part.kv_heads, part.v_head_dim, splits),
        )
        return attention.attention(
            q,
            self.k_cache,
            self.v_cache,
            state.listed,
            state.lengths,
            scale=part.head_dim**-0.5,
            splits=splits,
            out=state.buffer("attended", *q.shape[:-1], part.v_head_dim),
            workspace=workspace,
            max_length=state.longest,
        )


class LatentAttention(Part):
    """Absorbed MLA: down-projections, norm, q, k_up on the queries, rope with the cache write, attention, v_up, o."""

    ELEMENTWISE = 2
    CORE = ("mla", 1)
    cache: Tensor

    def __init__(self, part: spec.LatentAttention, hidden: int, place: Place) -> None:
        refuse(part, indexer=part.indexer, output_gate=part.output_gate)
        super().__init__(part, hidden, place)
        self.part = part
        self.q_norm = place.ones(part.q_lora_rank or 1)
        self.kv_norm = place.ones(part.kv_lora_rank)
        self.rotary = rotary_width(part)
        self.cached = {"cache": (part.latent_dim,)}

    def forward(self, x: Tensor, state: Pass) -> Tensor:
        part, tokens = self.part, state.tokens
        q, latents = self.queries(x, state)
        q = q.view(tokens, part.heads, -1)
        absorbed = state.buffer("q_absorbed", tokens, part.heads, part.latent_dim)
        nope = q[:, :, : part.qk_nope_head_dim].transpose(0, 1)
        gemm.batched(nope, self.matrices["k_up"], absorbed[:, :, : part.kv_lora_rank].transpose(0, 1))
        cos_sin = state.cos_sin[self.rotary]
        fused.latent_rope_and_cache(
            q, latents, self.kv_norm, cos_sin, state.positions, state.slots, absorbed, self.cache
        )
        mixed = self.attend(absorbed, state).view(tokens, part.heads, -1)
        values = state.buffer("values", tokens, part.heads, part.v_head_dim)
        gemm.batched(mixed.transpose(0, 1), self.matrices["v_up"], values.transpose(0, 1))
        return self.project("o_proj", values.view(tokens, -1), state)

    def queries(self, x: Tensor, state: Pass) -> tuple[Tensor, Tensor]:
        """Queries ``[tokens, heads * qk]`` and the rows ``[latent | rope key]``."""
        rank = self.part.q_lora_rank
        if not rank:
            latents = self.project("kv_a_proj", x, state)
            small.empty()
            return self.project("q_proj", x, state), latents
        joined = self.project("qkv_a_proj", x, state)
        normed = small.rms_norm(joined, self.q_norm, state.buffer("q_latent", state.tokens, rank))
        return self.project("q_b_proj", normed, state), joined[:, rank:]

    def attend(self, q: Tensor, state: Pass) -> Tensor:
        """Absorbed queries ``[tokens, heads, latent + rope]`` over the listed latents."""
        part = self.part
        q = q.view(state.sequences, state.rows, part.heads, part.latent_dim)
        sm_count = state.scratch.place.sm_count
        splits = mla.choose_splits(state.sequences, state.rows * part.heads, sm_count, state.longest)
        key = ("mla", q.shape, splits)
        workspace = state.scratch.keep(key, lambda: mla.make_workspace(q, part.kv_lora_rank, splits))
        return mla.attention(
            q,
            self.cache,
            state.listed,
            state.lengths,
            scale=(part.qk_nope_head_dim + part.qk_rope_head_dim) ** -0.5,
            out=state.buffer("latent_out", *q.shape[:-1], part.kv_lora_rank),
            workspace=workspace,
        )


class Recurrent(Part):
    """What recurrent mixers share: a short convolution, a state per layer, a gated norm.

    ``state_shape`` is one sequence's state, ``channels`` and ``taps`` those of the convolution, ``layer`` its number
    among the model's recurrent layers.
    """

    CORE = ("recurrent", 2)

    def __init__(self, part: spec.Mixer, hidden: int, place: Place, channels: int, taps: int) -> None:
        super().__init__(part, hidden, place)
        self.layer = 0
        self.channels, self.taps = channels, taps
        self.state_shape: tuple[int, ...] = ()
        self.conv_weight = place.normal(channels, taps, std=taps**-0.5)
        self.conv_bias = torch.zeros(channels, dtype=place.dtype, device=place.device)

    def convolve(self, x: Tensor, state: Pass) -> Tensor:
        """``x [tokens, channels]`` after the short convolution and SiLU."""
        x = x.view(state.sequences, state.rows, self.channels)
        states, out = self.states(state), state.buffer("conv_out", *x.shape)
        recurrent.short_conv(x, states.conv, self.conv_weight, self.conv_bias, out, states.columns)
        return out.view(state.tokens, self.channels)

    def states(self, state: Pass) -> States:
        if state.states is None:
            raise ValueError("a recurrent layer needs states")
        return state.states.of(self.layer)


class GatedDeltaNet(Recurrent):
    """GDN: qkvz and ba products, split, gates, convolution, split, delta rule, gated norm, output product."""

    ELEMENTWISE = 4

    def __init__(self, part: spec.GatedDeltaNet, hidden: int, place: Place) -> None:
        self.key, self.value = part.k_heads * part.k_dim, part.v_heads * part.v_dim
        super().__init__(part, hidden, place, 2 * self.key + self.value, part.conv_kernel)
        self.part = part
        self.state_shape = (part.v_heads, part.k_dim, part.v_dim)
        self.a_log, self.dt_bias = (place.normal(part.v_heads, dtype=torch.float32) for _ in range(2))
        self.norm = place.ones(self.value)

    def forward(self, x: Tensor, state: Pass) -> Tensor:
        part, tokens, rows = self.part, state.tokens, (state.sequences, state.rows)
        qkvz, ba = self.project("in_proj_qkvz", x, state), self.project("in_proj_ba", x, state)
        inputs = state.buffer("conv_in", tokens, self.channels)
        fused.split(qkvz, inputs)
        decay, beta = (state.buffer(n, tokens, part.v_heads, dtype=torch.float32) for n in ("decay", "beta"))
        fused.decay_and_strength(ba, self.a_log, self.dt_bias, decay, beta)
        q, k = (state.buffer(name, tokens, self.key) for name in ("gdn_q", "gdn_k"))
        v, out = (state.buffer(name, tokens, self.value) for name in ("gdn_v", "gdn_out"))
        fused.split(self.convolve(inputs, state), q, k, v)
        states = self.states(state)
        recurrent.delta_rule(
            q.view(*rows, part.k_heads, part.k_dim),
            k.view(*rows, part.k_heads, part.k_dim),
            v.view(*rows, part.v_heads, part.v_dim),
            decay.view(*rows, part.v_heads),
            beta.view(*rows, part.v_heads),
            states.recurrent,
            part.k_dim**-0.5,
            out.view(*rows, part.v_heads, part.v_dim),
            states.snapshots,
        )
        normed = state.buffer("gdn_normed", tokens, self.value)
        fused.gated_norm(out, qkvz[:, self.channels :], self.norm, normed, part.v_heads, gate_first=False)
        return self.project("out_proj", normed, state)


class Mamba2(Recurrent):
    """Mamba-2: one input product [z | xBC | dt], split, convolution, split, state update, gated norm, output."""

    ELEMENTWISE = 3

    def __init__(self, part: spec.Mamba2, hidden: int, place: Place) -> None:
        refuse(part, no_gated_norm=not part.gated_norm)
        super().__init__(part, hidden, place, part.conv_dim, part.conv_kernel)
        self.part = part
        self.state_shape = (part.heads, part.head_dim, part.state_dim)
        self.a_log, self.skip, self.dt_bias = (place.normal(part.heads, dtype=torch.float32) for _ in range(3))
        self.norm = place.ones(part.inner)

    def forward(self, x: Tensor, state: Pass) -> Tensor:
        part, tokens, rows = self.part, state.tokens, (state.sequences, state.rows)
        zxbcdt = self.project("in_proj", x, state)
        inputs, dt = state.buffer("conv_in", tokens, self.channels), state.buffer("dt", tokens, part.heads)
        fused.split(zxbcdt[:, part.inner :], inputs, dt)
        values, out = (state.buffer(name, tokens, part.inner) for name in ("mamba_x", "mamba_out"))
        b, c = (state.buffer(name, tokens, part.groups * part.state_dim) for name in ("mamba_b", "mamba_c"))
        fused.split(self.convolve(inputs, state), values, b, c)
        states = self.states(state)
        recurrent.mamba2(
            values.view(*rows, part.heads, part.head_dim),
            dt.view(*rows, part.heads),
            self.a_log,
            b.view(*rows, part.groups, part.state_dim),
            c.view(*rows, part.groups, part.state_dim),
            self.skip,
            self.dt_bias,
            states.recurrent,
            out.view(*rows, part.heads, part.head_dim),
            states.snapshots,
        )
        normed = state.buffer("mamba_normed", tokens, part.inner)
        fused.gated_norm(out, zxbcdt, self.norm, normed, part.groups, gate_first=True)
        return self.project("out_proj", normed, state)


# --- channel mixers --------------------------------------------------------------------------------------------


class Mlp(Part):
    """Gate and up in one product, activation, down."""

    ELEMENTWISE = 1

    def __init__(self, part: spec.Mlp, hidden: int, place: Place) -> None:
        super().__init__(part, hidden, place)
        self.part = part

    def forward(self, x: Tensor, state: Pass) -> Tensor:
        up = self.project("gate_up_proj" if self.part.gated else "up_proj", x, state)
        inner = state.buffer("mlp_inner", state.tokens, self.part.inner)
        return self.project("down_proj", activate(up, inner, self.part.gated), state)


class Moe(Part):
    """Router, top-k, latent down, experts, latent up, shared expert, and the sum of both.

    Small kernels: top-k, the shared expert's activation, its sum with the routed ones. What sorts pairs, activates and
    sums within `moe.grouped` belongs to the experts, as they are measured. ``skew`` 0 routes by the router's output;
    above, experts are drawn with probabilities that fall with that power of their rank, while the router runs all the
    same.
    """

    ELEMENTWISE = 3
    CORE = ("moe", 2)

    def __init__(self, part: spec.Moe, hidden: int, place: Place, skew: float = 0.0) -> None:
        refuse(
            part,
            latent_norm=part.latent_norm,
            expert_bias=part.expert_bias,
            zero_experts=part.zero_experts,
            hash_routing=part.hash_vocab,
        )
        super().__init__(part, hidden, place)
        self.part, self.skew = part, skew
        self.shared_gated = part.gated if part.shared_gated_mlp is None else part.shared_gated_mlp
        up, down = weights_of(part, hidden).experts
        self.gate_up = place.normal(part.experts, up.n, up.k, std=up.k**-0.5)
        self.down = place.normal(part.experts, down.n, down.k, std=down.k**-0.5)
        self.chosen: dict[int, Tensor] = {}

    def forward(self, x: Tensor, state: Pass) -> Tensor:
        part = self.part
        ids, weights = self.route(x, state)
        routed_in = self.project("latent_down_proj", x, state) if part.latent else x
        workspace = state.scratch.keep(
            ("moe", state.tokens, part.top_k, self.gate_up.shape, self.down.shape),
            lambda: moe.make_workspace(state.tokens, part.top_k, self.gate_up, self.down, self.place.dtype),
        )
        routed = state.buffer("routed", *routed_in.shape)
        moe.grouped(routed_in, self.gate_up, self.down, ids, weights, routed, workspace)
        if part.latent:
            routed = self.project("latent_up_proj", routed, state)
        return self.add_shared(x, routed, state)

    def route(self, x: Tensor, state: Pass) -> tuple[Tensor, Tensor]:
        """Experts of each row, ``[tokens, top_k]`` int32, and their weights."""
        shape = (state.tokens, self.part.top_k)
        logits = self.project("router", x, state)
        weights = state.buffer("routing_weights", *shape, dtype=torch.float32)
        if state.tokens not in self.chosen:
            self.chosen[state.tokens] = skewed_experts(state.tokens, self.part, self.skew, self.place.device)
        if self.skew:
            small.router(logits, state.buffer("routing_ids", *shape, dtype=torch.int32), weights)
        else:
            small.router(logits, self.chosen[state.tokens], weights)
        return self.chosen[state.tokens], weights

    def add_shared(self, x: Tensor, routed: Tensor, state: Pass) -> Tensor:
        part = self.part
        if not part.shared_inner:
            small.empty()
            small.empty()
            return routed
        up = self.project("shared_up_proj", x, state)
        inner = state.buffer("shared_inner", state.tokens, part.shared_inner)
        shared = self.project("shared_down_proj", activate(up, inner, self.shared_gated), state)
        logit = self.project("shared_gate", x, state) if part.shared_gate else None
        return fused.add_shared(routed, shared, logit, state.buffer("moe_out", *routed.shape))

    def touched(self, tokens: int) -> int:
        """Distinct experts that the last pass of so many rows chose."""
        return int(self.chosen[tokens].unique().numel())


def activate(up: Tensor, inner: Tensor, gated: bool) -> Tensor:
    return small.silu_mul(up, inner) if gated else small.relu_squared(up, inner)


def skewed_experts(rows: int, part: spec.Moe, skew: float, device: torch.device) -> Tensor:
    """Distinct experts per row, ``[rows, top_k]`` int32, the r-th drawn as often as r to the power of -skew."""
    ranks = torch.arange(1, part.experts + 1, device=device).double()
    noise = -torch.log(-torch.log(torch.rand(rows, part.experts, device=device).double().clamp(1e-12, 1 - 1e-12)))
    order = torch.randperm(part.experts, device=device)
    return order[(noise - skew * ranks.log()).topk(part.top_k, dim=-1).indices].int()


# --- building --------------------------------------------------------------------------------------------------

_BUILDERS: dict[type, Callable[..., Part]] = {
    spec.Attention: Attention,
    spec.LatentAttention: LatentAttention,
    spec.GatedDeltaNet: GatedDeltaNet,
    spec.Mamba2: Mamba2,
    spec.Mlp: Mlp,
    spec.Moe: Moe,
}


def build(part: spec.Mixer | spec.Channel, hidden: int, place: Place, skew: float = 0.0) -> Part:
    """A layer for a part of a model. Raises `UnsupportedError`, naming the kind, for those the bench cannot run."""
    builder = _BUILDERS.get(type(part))
    if builder is None:
        raise UnsupportedError(f"the bench builds no {part.kind} layers")
    return builder(part, hidden, place, skew) if isinstance(part, spec.Moe) else builder(part, hidden, place)


def rotary_width(part: spec.Attention | spec.LatentAttention) -> int:
    """Entries of a head that are rotated: a power of two."""
    if isinstance(part, spec.LatentAttention):
        return part.qk_rope_head_dim
    return min(ROTARY, 2 ** int(math.log2(part.head_dim)))
