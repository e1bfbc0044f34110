"""How GPUs share a model, in words and for documents."""

from __future__ import annotations

from typing import Any

from wmtp_sim.spec.parallel import Layout


def layout_words(layout: Layout) -> list[str]:
    """What differs from one GPU: ``tp 8``, ``2 replicas``, ``attention dp 8``, ``ep``."""
    words = [f"tp {layout.tp}"] if layout.tp > 1 else []
    if layout.dp > 1:
        words.append(f"attention dp {layout.dp}" if layout.dp_attention else f"{layout.dp} replicas")
    if layout.expert_groups > 1:
        whole = "ep" if layout.expert_groups == layout.ranks else f"ep {layout.expert_groups}"
        words.append(f"{whole} by all-to-all" if layout.all_to_all else whole)
    if layout.draft_tp is not None:
        words.append(f"draft tp {layout.draft_tp}")
    if layout.hosts > 1:
        words.append(f"{layout.hosts} hosts")
    return words


def layout_document(layout: Layout) -> dict[str, Any]:
    """The fields of a layout."""
    names = ("gpus", "tp", "dp", "dp_attention", "expert_groups", "all_to_all", "draft_tp")
    return {name: getattr(layout, name) for name in names}
