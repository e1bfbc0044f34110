"""Numbers as people read them: ms, GB, tok/s, 1M tokens."""

from __future__ import annotations

import math


def tokens(count: float) -> str:
    """1048576 -> 1M, 4096 -> 4K, 1040000 -> 1,040,000 (exact multiples only: 1024 is not 1000)."""
    if not math.isfinite(count):
        return "any"
    whole = int(count)
    for unit, name in ((2**20, "M"), (2**10, "K")):
        if whole >= unit and whole % unit == 0:
            return f"{whole // unit}{name}"
    return f"{whole:,}"


def about_tokens(count: float) -> str:
    """A computed context in round figures: 2.13M, 318K."""
    if not math.isfinite(count):
        return "any"
    if count >= 2**20:
        return f"{count / 2**20:.2f}M"
    return f"{count / 2**10:.0f}K" if count >= 2**10 else f"{count:.0f}"


def milliseconds(seconds: float) -> str:
    """Milliseconds with a useful number of digits."""
    ms = seconds * 1e3
    if ms >= 100:
        return f"{ms:.0f}"
    return f"{ms:.2f}" if ms >= 1 else f"{ms:.3f}"


def gigabytes(count: float) -> str:
    """10^9 bytes, as memory is sold."""
    gb = count / 1e9
    if gb >= 100:
        return f"{gb:.0f} GB"
    return f"{gb:.1f} GB" if gb >= 1 else f"{count / 1e6:.1f} MB"


def rate(per_second: float) -> str:
    return f"{per_second:.0f}" if per_second >= 100 else f"{per_second:.1f}"


def times(factor: float) -> str:
    return f"{factor:.2f}x"


def percent(share: float) -> str:
    """A signed percentage; a value that rounds to zero has no sign."""
    return "0.0 %" if abs(share) < 5e-4 else f"{share:+.1%}".replace("%", " %")
