"""Numbers as typed: 1M, 4K, 1_040_000, lists (4K,32K) and ranges (4K:1M doubles, 0:12 counts)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from wmtp_sim.errors import InputError
from wmtp_sim.spec.workload import ranged

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_NUMBER = re.compile(r"(-?[0-9][0-9_]{0,17}(?:\.[0-9]{1,6})?)([KMG]?)")
MAX_POINTS = 4096
#: Points of a whole grid. A point is a kilobyte of JSON; from Python, a million take less than a second.
MAX_GRID = 100_000

#: What to type where values have shares.
_SHARED = {"--batch": "1:0.7,8:0.3"}
#: What to type, by flag: one number and a range.
_EXAMPLES = {
    "--depth": ("6", "0:12"),
    "--batch": ("8", "1:64"),
    "--window": ("4032", "1K:16K"),
    "--sink": ("64", ""),
    "--tp": ("8", ""),
    "--at": ("depth=6", ""),
}
_TOKENS = ("1M, 128K or 1_040_000", "4K:1M")


def whole(text: str, flag: str) -> int:
    """One whole number. K, M and G are 1024-based: 1M is 1,048,576; 1_000_000 stays itself."""
    match = _NUMBER.fullmatch(text.strip().upper())
    if match is None:
        raise InputError(flag, f"{text[:40]!r} is not a number", f"for example {flag} {_example(flag)}")
    value = float(match[1].replace("_", "")) * _UNITS[match[2]]
    if value != int(value):
        raise InputError(flag, f"{text[:40]!r} is not a whole number", f"for example {flag} {_example(flag)}")
    return int(value)


def doubling(text: str, flag: str) -> list[int]:
    """A number, a list ``a,b,c``, or a range ``a:b`` that doubles from a and ends at b."""
    if ":" not in text:
        return _list(text, flag)
    low, high = _ends(text, flag)
    if low < 1:
        raise InputError(flag, f"{text[:40]!r} starts at {low}, which cannot double", f"for example {flag} 1:{high}")
    values: list[int] = []
    value = low
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


def weighted(text: str, flag: str) -> tuple[list[int], list[float] | None]:
    """Values with the share of each, ``8K:0.5,64K:0.3,256K:0.2``; without shares, what `doubling` takes.

    One pair alone (``8K:0.5``) is a range that makes no sense, and is refused as such.
    """
    parts = text.split(",")
    if len(parts) == 1 or ":" not in text:
        return doubling(text, flag), None
    values, shares = [], []
    for part in parts:
        value, colon, share = part.partition(":")
        try:
            shares.append(float(share))
        except ValueError:
            problem = f"{part[:40]!r} has no share" if not colon else f"{share[:40]!r} is not a share"
            hint = f"for example {flag} {_SHARED.get(flag, '8K:0.5,64K:0.3,256K:0.2')}"
            raise InputError(flag, problem, hint) from None
        values.append(whole(value, flag))
    return values, shares


def gridded(axes: dict[str, list[int]]) -> tuple[NDArray[np.float64], ...]:
    """The values of each flag on an axis of its own where there are several, refusing grids too large to print."""
    refuse_large(axes)
    return ranged(*axes.values())


def refuse_large(axes: dict[str, list[int]]) -> None:
    """Raises `InputError` naming the flags of a grid with more than `MAX_GRID` points."""
    points = math.prod(len(values) for values in axes.values())
    if points > MAX_GRID:
        flags = " x ".join(flag for flag, values in axes.items() if len(values) > 1)
        hint = "narrow one, or call wmtp_sim.estimate from Python"
        raise InputError(flags, f"{points:,} points, at most {MAX_GRID:,} are printed", hint)


def named_point(parts: Iterable[str], flag: str) -> dict[str, int]:
    """A point from ``depth=6``, ``context=1M``: several flags, or one with commas."""
    found: dict[str, int] = {}
    for part in (piece for text in parts for piece in text.split(",")):
        name, equals, value = part.strip().partition("=")
        if not equals:
            raise InputError(flag, f"{part[:40]!r} is not AXIS=VALUE", f"for example {flag} depth=6")
        if name in found:
            raise InputError(flag, f"{name[:40]!r} is stated twice", "keep one")
        found[name] = whole(value, flag)
    return found


def _example(flag: str, a_range: bool = False) -> str:
    return _EXAMPLES.get(flag, _TOKENS)[a_range]


def _list(text: str, flag: str) -> list[int]:
    parts = text.split(",")
    if len(parts) > MAX_POINTS:
        raise InputError(flag, f"a list of {len(parts):,} values", f"at most {MAX_POINTS}")
    values = [whole(part, flag) for part in parts]
    if _one_number_with_commas(parts, values):
        problem, one = f"{text[:40]!r} reads as {len(parts)} values", "".join(parts)
        raise InputError(flag, problem, f"for one number {flag} {one}, for a list the smallest first")
    return values


def _one_number_with_commas(parts: list[str], values: list[int]) -> bool:
    """Whether 262,144 or 1,048,576 was meant: groups of three digits that no one lists so."""
    grouped = re.fullmatch("[0-9]{1,3}(,[0-9]{3})+", ",".join(parts)) is not None
    return grouped and (values != sorted(values) or any(part[0] == "0" for part in parts[1:]))


def _ends(text: str, flag: str) -> tuple[int, int]:
    parts = text.split(":")
    if len(parts) != 2:
        raise InputError(flag, f"{text[:40]!r} is not a range", f"for example {flag} {_example(flag, a_range=True)}")
    low, high = whole(parts[0], flag), whole(parts[1], flag)
    if low > high:
        raise InputError(flag, f"{text[:40]!r} runs backwards", f"write {flag} {parts[1]}:{parts[0]}")
    return low, high


def lengths(texts: Sequence[str]) -> float | dict[str, float] | None:
    """Accept lengths: one number for all systems, or ``NAME=NUMBER`` for each. Raises `InputError`."""
    found: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            found[name if equals else ""] = float(number)
        except ValueError:
            raise InputError(
                "--accept-length", f"{text[:40]!r} is not a number", "3.2, or by system: ring=2.8"
            ) from None
    if len(found) < len(texts) or ("" in found and len(texts) > 1):
        raise InputError("--accept-length", "is given more than once", "one number, or NAME=NUMBER for each system")
    return found.get("", found) if found else None
