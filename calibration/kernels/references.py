"""What the kernels must compute, in float64 and in the plainest words. Slow; allocates; runs on any device."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


def relative_error(out: Tensor, expected: Tensor) -> float:
    """‖out − expected‖ / ‖expected‖; NaN when an output is NaN, infinite when shapes differ."""
    if out.shape != expected.shape:
        return float("inf")
    return float((out.double() - expected.double()).norm() / expected.double().norm())


def strict_error(out: Tensor, expected: Tensor) -> float:
    """`relative_error`, by one measure for all types: float32 counts a hundredfold, whole numbers must be equal."""
    if not out.is_floating_point():
        return 0.0 if out.shape == expected.shape and bool((out == expected).all()) else math.inf
    return relative_error(out, expected) * (100.0 if out.dtype == torch.float32 else 1.0)


# --- matrix products -------------------------------------------------------------------------------------------


def dense(x: Tensor, weight: Tensor) -> Tensor:
    """``x [rows, k]`` times ``weight [n, k]`` transposed: ``[rows, n]``."""
    return x.double() @ weight.double().t()


def fp8_dense(x: Tensor, weight: Tensor, scale_x: Tensor, scale_weight: Tensor) -> Tensor:
    """The product of two fp8 matrices with one scale each."""
    return dense(x, weight) * (scale_x.double() * scale_weight.double())


def batched(x: Tensor, weight: Tensor) -> Tensor:
    """``x [heads, rows, k]`` times ``weight [heads, k, n]``."""
    return x.double() @ weight.double()


def routed_experts(x: Tensor, gate_up: Tensor, down: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """A mixture of experts, expert by expert: ``[rows, hidden]``. See `calibration.kernels.moe` for the shapes."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for expert in ids.unique().tolist():
        row, choice = torch.nonzero(ids == expert, as_tuple=True)
        inner = activation(x[row].double() @ gate_up[expert].double().t(), down.shape[2])
        product = inner @ down[expert].double().t()
        out.index_add_(0, row, product * weights[row, choice].double()[:, None])
    return out


def activation(inner: Tensor, width: int) -> Tensor:
    """SiLU(gate) * up where ``inner`` is twice ``width``, otherwise the squared ReLU."""
    if inner.shape[-1] == 2 * width:
        return silu_mul(inner)
    return functional.relu(inner.double()).square()


# --- attention -------------------------------------------------------------------------------------------------


def attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    lengths: Tensor,
    *,
    scale: float,
    causal_rows: int | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Attention over listed tokens, ``[batch, rows, q_heads, v_dim]`` in ``dtype``: float32 where caches are large.

    Other arguments are those of `calibration.kernels.attention.attention`.
    """
    batch, rows, q_heads, head_dim = q.shape
    kv_heads, row = k_cache.shape[1], torch.arange(rows, device=q.device)
    own = rows if causal_rows is None else causal_rows
    out = torch.zeros(batch, rows, q_heads, v_cache.shape[2], dtype=dtype, device=q.device)
    for b, length in enumerate(lengths.tolist()):
        token = torch.arange(length, device=q.device)
        listed = slots[b, :length].long() if slots.dim() == 2 else slots[b] + token
        k, v = _gathered(k_cache, listed).to(dtype) * k_scale, _gathered(v_cache, listed).to(dtype) * v_scale
        seen = length - (own - 1 - row).clamp_min(0)
        scores = torch.einsum("rkgd,tkd->kgrt", q[b].to(dtype).view(rows, kv_heads, -1, head_dim), k) * scale
        weights = scores.masked_fill(token >= seen[:, None], -math.inf).softmax(-1)
        found = torch.einsum("kgrt,tkd->rkgd", weights, v).reshape(rows, q_heads, -1)
        out[b] = torch.where((seen > 0)[:, None, None], found, 0.0)  # a row that sees no token
    return out


def _gathered(cache: Tensor, slots: Tensor) -> Tensor:
    """Some tokens of a cache; torch gathers no fp8, but bytes."""
    return cache[slots] if cache.element_size() > 1 else cache.view(torch.uint8)[slots].view(cache.dtype)


def latent_attention(q: Tensor, cache: Tensor, slots: Tensor, lengths: Tensor, latent: int, scale: float) -> Tensor:
    """Absorbed MLA with a causal tail: ``[sequences, rows, heads, latent]``. See `calibration.kernels.mla`."""
    return attention(q, cache[:, None], cache[:, None, :latent], slots, lengths, scale=scale)


def listed_positions(committed: int, appended: int, window: int | None, sink: int) -> list[int]:
    """Logical positions of a list: the first `sink` and last `window` committed tokens, then the appended ones."""
    if window is None or committed <= window + sink:
        kept = list(range(committed))
    else:
        kept = [*range(sink), *range(committed - window, committed)]
    return kept + list(range(committed, committed + appended))


def ring_entry(position: int, window: int, sink: int, depth: int) -> int:
    """Entry of a request's ring that holds a logical position; later positions overwrite earlier ones."""
    return position if position < sink else sink + (position - sink) % (window + depth + 1)


# --- recurrences -----------------------------------------------------------------------------------------------


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Gated delta rule, with one decay per head (GDN) or per key channel (KDA).

    Returns the outputs ``[sequences, rows, v_heads, v_dim]`` and the state after every row
    ``[sequences, rows, v_heads, k_dim, v_dim]``. See `calibration.kernels.recurrent` for the inputs.
    """
    group = v.shape[2] // q.shape[2]
    q, k = (_unit(t.double()).repeat_interleave(group, dim=2) for t in (q, k))
    h, outs, states = state.double(), [], []
    for row in range(q.shape[1]):
        factor = decay[:, row].double().exp()
        h = h * (factor[..., None, None] if decay.dim() == 3 else factor[..., None])
        error = v[:, row].double() - torch.einsum("bhkv,bhk->bhv", h, k[:, row])
        h = h + torch.einsum("bhk,bhv->bhkv", k[:, row], error * beta[:, row].double()[..., None])
        outs.append(torch.einsum("bhkv,bhk->bhv", h, q[:, row]) * scale)
        states.append(h)
    return torch.stack(outs, 1), torch.stack(states, 1)


def _unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def mamba2(
    x: Tensor, dt: Tensor, a_log: Tensor, b: Tensor, c: Tensor, d: Tensor, dt_bias: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Mamba-2: outputs ``[sequences, rows, heads, head_dim]`` and states ``[sequences, rows, heads, head_dim, n]``."""
    group = x.shape[2] // b.shape[2]
    b, c = (t.double().repeat_interleave(group, dim=2) for t in (b, c))
    step = functional.softplus(dt.double() + dt_bias.double())
    h, outs, states = state.double(), [], []
    for row in range(x.shape[1]):
        values, width = x[:, row].double(), step[:, row]
        h = h * torch.exp(-a_log.double().exp() * width)[..., None, None]
        h = h + torch.einsum("bhp,bhn->bhpn", values * width[..., None], b[:, row])
        outs.append(torch.einsum("bhpn,bhn->bhp", h, c[:, row]) + d.double()[:, None] * values)
        states.append(h)
    return torch.stack(outs, 1), torch.stack(states, 1)


def short_conv(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Depthwise causal convolution and SiLU: outputs ``[sequences, rows, channels]``, and all columns seen."""
    columns = torch.cat([state, x], 1).double()
    taps, rows = weight.shape[1], x.shape[1]
    out = sum(columns[:, tap : tap + rows] * weight[:, tap].double() for tap in range(taps))
    return functional.silu(out + bias.double()), columns


# --- small kernels ---------------------------------------------------------------------------------------------


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x [rows, hidden]`` over its root mean square, times ``weight [hidden]``."""
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def silu_mul(gate_up: Tensor) -> Tensor:
    """SiLU of the first half of the last dimension, times the second half."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return functional.silu(gate) * up


def rope(x: Tensor, cos_sin: Tensor, positions: Tensor) -> Tensor:
    """Rotates the first ``cos_sin.shape[1]`` entries of each head, halves apart: ``x [rows, heads, head_dim]``."""
    cos, sin = cos_sin[positions.long()].double()[:, None, :].chunk(2, dim=-1)
    half = cos.shape[-1]
    low, high, rest = x[..., :half].double(), x[..., half : 2 * half].double(), x[..., 2 * half :].double()
    return torch.cat([low * cos - high * sin, high * cos + low * sin, rest], -1)


def router(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The ids and the renormalised probabilities of the ``top_k`` best experts, best first: ``[rows, top_k]``."""
    values, ids = logits.double().topk(top_k, dim=-1)
    return ids, torch.softmax(values, dim=-1)


def accept(draft: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
    """Greedy acceptance: the length of the agreeing prefix, and the tokens that it yields with one more (-1 after)."""
    accepted, tokens = [], torch.full_like(best, -1)
    for sequence in range(draft.shape[0]):
        count = 0
        while count < draft.shape[1] and draft[sequence, count] == best[sequence, count]:
            count += 1
        accepted.append(count)
        tokens[sequence, : count + 1] = best[sequence, : count + 1]
    return torch.tensor(accepted, device=draft.device), tokens


def commit(snapshots: Tensor, accepted: Tensor) -> Tensor:
    """Each sequence's snapshot of its accepted row: ``[layers, sequences, rows, n]`` to ``[layers, sequences, n]``."""
    return snapshots[:, torch.arange(snapshots.shape[1], device=snapshots.device), accepted.long()].double()
