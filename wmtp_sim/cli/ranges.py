"""Numbers as typed: 1M, 4K, 1_040_000, lists (4K,32K) and ranges (4K:1M doubles, 0:12 counts)."""

from __future__ import annotations

import re

from wmtp_sim.errors import InputError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_NUMBER = re.compile(r"(-?[0-9][0-9_]{0,17}(?:\.[0-9]{1,6})?)([KMG]?)")
MAX_POINTS = 4096


def whole(text: str, flag: str) -> int:
    """One whole number. K, M and G are 1024-based: 1M is 1,048,576; 1_000_000 stays itself."""
    match = _NUMBER.fullmatch(text.strip().upper())
    if match is None:
        raise InputError(flag, f"{text[:40]!r} is not a number", f"for example {flag} 1M, 128K or 1_040_000")
    value = float(match[1].replace("_", "")) * _UNITS[match[2]]
    if value != int(value):
        raise InputError(flag, f"{text[:40]!r} is not a whole number", f"for example {flag} 128K")
    return int(value)


def doubling(text: str, flag: str) -> list[int]:
    """A number, a list ``a,b,c``, or a range ``a:b`` that doubles from a and ends at b."""
    if ":" not in text:
        return _list(text, flag)
    low, high = _ends(text, flag)
    values: list[int] = []
    value = max(low, 1)
    while value < high and len(values) < 64:
        values.append(value)
        value *= 2
    return [*values, high]


def counting(text: str, flag: str) -> list[int]:
    """A number, a list ``a,b,c``, or a range ``a:b`` of every whole number from a to b."""
    if ":" not in text:
        return _list(text, flag)
    low, high = _ends(text, flag)
    if high - low >= MAX_POINTS:
        raise InputError(flag, f"{text[:40]!r} has {high - low + 1:,} values", f"at most {MAX_POINTS}")
    return list(range(low, high + 1))


def rates(text: str | None, flag: str) -> list[float] | None:
    """A list of probabilities per position, ``0.9,0.8,0.7``."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(flag, f"{text[:40]!r} is not a list of numbers", f"for example {flag} 0.9,0.8,0.7") from None


def _list(text: str, flag: str) -> list[int]:
    parts = text.split(",")
    if len(parts) > MAX_POINTS:
        raise InputError(flag, f"a list of {len(parts):,} values", f"at most {MAX_POINTS}")
    return [whole(part, flag) for part in parts]


def _ends(text: str, flag: str) -> tuple[int, int]:
    parts = text.split(":")
    if len(parts) != 2:
        raise InputError(flag, f"{text[:40]!r} is not a range", f"for example {flag} 4K:1M")
    low, high = whole(parts[0], flag), whole(parts[1], flag)
    if low > high:
        raise InputError(flag, f"{text[:40]!r} runs backwards", f"write {flag} {parts[1]}:{parts[0]}")
    return low, high
