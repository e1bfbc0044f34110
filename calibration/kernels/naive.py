"""The same functions written for a reader, in float64: what the kernels are checked against."""

import torch


def attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float,
    causal_rows: int | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> torch.Tensor:
    """Attention over listed tokens in float64 [batch, rows, q_heads, v_dim]; arguments as `attention.attention`."""
    batch, rows, q_heads, _ = q.shape
    kv_heads = k_cache.shape[1]
    causal_rows = rows if causal_rows is None else causal_rows
    out = torch.zeros(batch, rows, q_heads, v_cache.shape[2], dtype=torch.float64, device=q.device)
    for b, length in enumerate(lengths.tolist()):
        listed = slots[b, :length] if slots.dim() == 2 else slots[b] + torch.arange(length, device=slots.device)
        k, v = k_cache[listed.long()].double() * k_scale, v_cache[listed.long()].double() * v_scale
        for head in range(q_heads):
            kv_head = head // (q_heads // kv_heads)
            scores = q[b, :, head].double() @ k[:, kv_head].T * scale
            for row in range(rows):
                seen = length - max(causal_rows - 1 - row, 0)
                if seen > 0:
                    out[b, row, head] = torch.softmax(scores[row, :seen], 0) @ v[:seen, kv_head]
    return out


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
