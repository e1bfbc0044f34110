"""How a person states acceptance: four ways, each refusing what cannot be.

With depth γ, conditional rates a_j and survival S_j = a_1 ... a_j, the accept length AL = 1 + S_1 + ... + S_γ
is the mean number of tokens committed per step, bonus token included. Rates say what happens at every depth they
cover; an accept length is one sum, true at the depth it was stated for and at no other
(`wmtp_sim.decide.acceptance.at_depth`).

Rates and lengths are pure numbers, depths count tokens. Arrays are copied and read-only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wmtp_sim.errors import InputError

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]

#: Where an acceptance comes from: typed in, read from a server, taken from a publication, or a guess.
Source = Literal["given", "measured", "published", "assumed"]
#: No real depth comes near; it keeps absurd input from overflowing, as the sizes of `wmtp_sim.spec.base` do.
MAX_DEPTH = 2**31


def as_depth(depth: ArrayLike) -> IntArray:
    """Depths as int64, same shape. Raises `InputError` (``--depth``) unless whole and at least 0."""
    array = _array("--depth", depth)
    if array.dtype.kind not in "iu":
        hint = "tokens drafted per step: 0, 1, 2, ..."
        raise InputError("--depth", f"{_shown(depth)} is not a whole number", hint)
    _require("--depth", array, (array >= 0) & (array <= MAX_DEPTH), f"is not between 0 and {MAX_DEPTH}")
    return array.astype(np.int64)


def as_numbers(flag: str, values: ArrayLike) -> FloatArray:
    """Numbers as float64, same shape, NaN and infinity included. Raises `InputError` (``flag``) for text."""
    array = _array(flag, values)
    if array.dtype.kind not in "iuf":
        raise InputError(flag, f"{_shown(values)} is not a number")
    return array.astype(np.float64)


def as_rates(flag: str, rates: ArrayLike) -> FloatArray:
    """Probabilities as float64, same shape. Raises `InputError` (``flag``) for NaN or outside [0, 1]."""
    array = as_numbers(flag, rates)
    _require(flag, array, (array >= 0) & (array <= 1), "is not a rate between 0 and 1")
    return array


def as_positions(flag: str, rates: ArrayLike) -> FloatArray:
    """Rates [..., positions] as float64; one number is one position. Raises as `as_rates`, and when empty."""
    array = np.atleast_1d(as_rates(flag, rates))
    if array.shape[-1] == 0:
        raise InputError(flag, "holds no rates", "give one per drafted position")
    return array


def as_survival(flag: str, rates: ArrayLike) -> FloatArray:
    """Survival [..., positions] as float64. Raises as `as_positions`, and where a later position is higher."""
    array = as_positions(flag, rates)
    earlier, later = array[..., :-1], array[..., 1:]
    rise = later > earlier
    if rise.any():
        position = int(np.argwhere(rise)[0, -1]) + 1
        problem = f"survival rises from {earlier[rise][0]} at position {position} to {later[rise][0]} at the next"
        raise InputError(flag, problem, "rates that may rise are conditional: --conditional")
    return array


def as_accept_length(accept_length: ArrayLike, depth: IntArray) -> FloatArray:
    """Accept lengths as float64, same shape, each possible at the ``depth`` it broadcasts with.

    Raises `InputError` (``--accept-length``) unless 1 <= AL <= depth + 1.
    """
    flag = AcceptLength.flag
    array = as_numbers(flag, accept_length)
    _require(flag, array, array >= 1, "is not an accept length of at least 1", "the bonus token counts")
    length, most = np.broadcast_arrays(array, depth + 1)
    too_long = length > most
    if too_long.any():
        value, limit = length[too_long][0], most[too_long][0]
        raise InputError(flag, f"{value} exceeds {limit}", f"depth {limit - 1} commits at most {limit} a step")
    return array


@dataclass(frozen=True, eq=False, init=False)
class AcceptLength:
    """Mean tokens per step, bonus included, at the depth it holds for.

    Args:
        accept_length: 1 <= AL <= depth + 1, any shape.
        depth: the depth it was observed at: one, or one per accept length (broadcast to their shape).
        source: where it comes from.

    Raises:
        InputError: ``--accept-length`` or ``--depth`` when impossible, or one length for several depths.
    """

    kind: ClassVar[str] = "accept_length"
    flag: ClassVar[str] = "--accept-length"
    accept_length: FloatArray
    depth: IntArray
    source: Source

    def __init__(self, accept_length: ArrayLike, depth: ArrayLike, source: Source = "given") -> None:
        length = as_numbers(self.flag, accept_length)
        stated = _one_each(self.flag, as_depth(depth), length)
        length = as_accept_length(length, stated)
        _set(self, accept_length=_frozen(length), depth=_frozen(stated), source=_source(source))

    def known_at(self, depth: ArrayLike) -> BoolArray:
        """Whether each depth is the stated one, or 0, where AL is 1 by definition. Broadcast over both."""
        wanted = as_depth(depth)
        return np.asarray((wanted == self.depth) | (wanted == 0))

    def require_depth(self, depth: ArrayLike) -> None:
        """Raises `InputError` (``--accept-length``) where ``depth`` is not the stated depth (or 0)."""
        known = self.known_at(depth)
        if not known.all():
            wanted = np.broadcast_to(as_depth(depth), known.shape)[~known]
            stated = np.broadcast_to(self.depth, known.shape)[~known]
            problem = f"holds at depth {_some(stated)}, not at depth {_some(wanted)}"
            raise InputError(self.flag, problem, "state it for that depth, or rates: --alpha, --conditional")


@dataclass(frozen=True, eq=False, init=False)
class ConditionalRates:
    """``rates[..., j-1]`` = a_j = P(token j is accepted, given that all before it were).

    Raises `InputError` (``--conditional``).
    """

    kind: ClassVar[str] = "conditional"
    flag: ClassVar[str] = "--conditional"
    rates: FloatArray
    source: Source

    def __init__(self, rates: ArrayLike, source: Source = "given") -> None:
        _set(self, rates=_frozen(as_positions(self.flag, rates)), source=_source(source))

    def require_depth(self, depth: ArrayLike) -> None:
        """Raises `InputError` (``--conditional``) where ``depth`` exceeds the positions stated."""
        _require_covered(self.flag, self.rates, depth)


@dataclass(frozen=True, eq=False, init=False)
class SurvivalRates:
    """``rates[..., j-1]`` = S_j = P(tokens 1 to j are all accepted), never rising with j.

    vLLM's "per-position acceptance rate" is this one. Raises `InputError` (``--survival``).
    """

    kind: ClassVar[str] = "survival"
    flag: ClassVar[str] = "--survival"
    rates: FloatArray
    source: Source

    def __init__(self, rates: ArrayLike, source: Source = "given") -> None:
        _set(self, rates=_frozen(as_survival(self.flag, rates)), source=_source(source))

    def require_depth(self, depth: ArrayLike) -> None:
        """Raises `InputError` (``--survival``) where ``depth`` exceeds the positions stated."""
        _require_covered(self.flag, self.rates, depth)


@dataclass(frozen=True, eq=False, init=False)
class ConstantRate:
    """One conditional rate for every position (Leviathan's alpha), any shape. Raises `InputError` (``--alpha``)."""

    kind: ClassVar[str] = "alpha"
    flag: ClassVar[str] = "--alpha"
    alpha: FloatArray
    source: Source

    def __init__(self, alpha: ArrayLike, source: Source = "given") -> None:
        _set(self, alpha=_frozen(as_rates(self.flag, alpha)), source=_source(source))

    def require_depth(self, depth: ArrayLike) -> None:
        """Every depth is covered. Raises `InputError` (``--depth``) for what is not a depth."""
        as_depth(depth)


Acceptance: TypeAlias = AcceptLength | ConditionalRates | SurvivalRates | ConstantRate


def state_acceptance(
    *,
    depth: ArrayLike,
    accept_length: ArrayLike | None = None,
    conditional: ArrayLike | None = None,
    survival: ArrayLike | None = None,
    alpha: ArrayLike | None = None,
    source: Source = "given",
) -> Acceptance:
    """The acceptance that exactly one of the four flags states, checked to cover ``depth``.

    Raises:
        InputError: naming the flags when none or several are stated, else the flag whose value cannot be.
    """
    stated = {
        AcceptLength.flag: accept_length,
        ConditionalRates.flag: conditional,
        SurvivalRates.flag: survival,
        ConstantRate.flag: alpha,
    }
    flags = [flag for flag, value in stated.items() if value is not None]
    if len(flags) > 1:
        raise InputError(" and ".join(flags), "acceptance is stated in more than one way", "keep one")
    acceptance: Acceptance
    if accept_length is not None:
        acceptance = AcceptLength(accept_length, depth, source)
    elif conditional is not None:
        acceptance = ConditionalRates(conditional, source)
    elif survival is not None:
        acceptance = SurvivalRates(survival, source)
    elif alpha is not None:
        acceptance = ConstantRate(alpha, source)
    else:
        raise InputError(AcceptLength.flag, "acceptance is not stated", f"give one of {', '.join(stated)}")
    acceptance.require_depth(depth)
    return acceptance


def _one_each(flag: str, depth: IntArray, length: FloatArray) -> IntArray:
    """The depth of each accept length. Several depths need an accept length each: a sum holds at one depth."""
    if depth.size and np.all(depth == depth.flat[0]):
        depth = depth.reshape(-1)[:1].reshape(())
    try:
        return np.broadcast_to(depth, length.shape).copy()
    except ValueError:
        problem = f"an accept length holds at one depth, and {_some(length)} is stated for depths {_some(depth)}"
        raise InputError(flag, problem, "state one per depth, or rates: --alpha, --conditional") from None


def _require_covered(flag: str, rates: FloatArray, depth: ArrayLike) -> None:
    wanted, positions = as_depth(depth), rates.shape[-1]
    if np.any(wanted > positions):
        problem = f"covers depth {positions}, not depth {wanted.max()}"
        raise InputError(flag, problem, f"give {wanted.max()} rates, or a --depth of at most {positions}")


def _array(flag: str, values: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError:
        raise InputError(flag, f"{_shown(values)} is ragged", "give rows of one length") from None


def _require(flag: str, array: NDArray[Any], possible: BoolArray, problem: str, hint: str = "") -> None:
    """Refuses the first element that is not possible, saying its place when there are several."""
    bad = np.argwhere(~possible)
    if len(bad):
        place = tuple(int(index) for index in bad[0])
        where = f" (number {', '.join(str(index + 1) for index in place)})" if array.size > 1 else ""
        raise InputError(flag, f"{array[place]}{where} {problem}", hint)


def _source(source: Source) -> Source:
    if source not in get_args(Source):
        hint = f"one of {', '.join(get_args(Source))}"
        raise InputError("acceptance source", f"{_shown(source)} is unknown", hint)
    return source


def _set(instance: Acceptance, **fields: object) -> None:
    for name, value in fields.items():
        object.__setattr__(instance, name, value)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


def _some(values: IntArray | FloatArray) -> str:
    distinct = np.unique(values)
    return ", ".join(str(value) for value in distinct[:4]) + (", ..." if distinct.size > 4 else "")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
