"""Arrays of a cost table as a page carries them: float32, without the axes along which nothing changes.

A windowed pass reads min(context, window + sink) tokens, so most arrays that have both a context and a window axis
are functions of that one number: they are stored over its distinct values ("folded"), which keeps a grid of a hundred
thousand points below a megabyte. That is checked on the values, so nothing is lost but float32.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
#: Relative difference below which two seconds are the same computation.
_SAME = 1e-12
#: The largest whole number of two bytes.
_FINEST = 65535


@dataclass
class Packer:
    """Collects arrays of shape [context, depth, window, batch]; equal ones are stored once.

    Attributes:
        attended: tokens that a windowed pass attends, [context, 1, window, 1].
        blobs: base64 of little-endian float32, of two bytes, of bytes, or of bits.
    """

    attended: FloatArray
    blobs: list[str] = field(default_factory=list)
    _known: dict[bytes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        contexts, windows = self.attended.shape[0], self.attended.shape[2]
        plane = np.reshape(self.attended, (contexts, windows))
        values, first, place = np.unique(plane, return_index=True, return_inverse=True)
        self.fold = place.reshape(contexts, windows)
        self._context, self._window = np.divmod(first, windows)
        self._count = len(values)

    def pack(self, values: ArrayLike) -> dict[str, Any]:
        """Where an array is stored: its blob, its shape (1 where constant), whether it is folded.

        A folded array has shape [attended, depth, batch], others [context, depth, window, batch].
        """
        array = _squeezed(values)
        folded = self._folded(array) if array.shape[2] > 1 else None
        kept = array if folded is None else folded
        stored = self._kept(np.ascontiguousarray(kept, dtype="<f4").tobytes(), kept)
        return stored | {"folded": folded is not None}

    def pack_flags(self, values: ArrayLike) -> dict[str, Any]:
        """The same for truth values, a bit each (the first is a byte's highest)."""
        array = _squeezed(values)
        return self._kept(np.packbits(array > 0).tobytes(), array)

    def pack_places(self, values: ArrayLike) -> dict[str, Any]:
        """The same for whole numbers from 0 to 255, a byte each; never folded."""
        array = _squeezed(values)
        return self._kept(array.astype(np.uint8).tobytes(), array)

    def pack_near(self, values: ArrayLike) -> dict[str, Any]:
        """The same as whole numbers of ``step`` above ``least``, in two bytes each: fine enough for a range's ends."""
        array = _squeezed(values)
        least = float(array.min())
        step = (float(array.max()) - least) / _FINEST or 1.0
        content = np.round((array - least) / step).astype("<u2").tobytes()
        return self._kept(content, array) | {"least": least, "step": step}

    def _folded(self, array: FloatArray) -> FloatArray | None:
        """The array over distinct attended tokens, or None where it is no function of them."""
        contexts, _, windows, _ = array.shape
        if windows != self.fold.shape[1]:
            return None
        whole = np.broadcast_to(array, (self.fold.shape[0], *array.shape[1:])) if contexts == 1 else array
        folded = whole[self._context, :, self._window, :]
        again = np.moveaxis(folded[self.fold], 1, 2)  # [context, window, depth, batch] -> the array's own order
        return folded if np.allclose(again, whole, rtol=_SAME, atol=0.0) else None

    def _kept(self, content: bytes, array: FloatArray) -> dict[str, Any]:
        """Where the bytes of an array are."""
        if content not in self._known:
            self._known[content] = len(self.blobs)
            self.blobs.append(base64.b64encode(content).decode("ascii"))
        return {"blob": self._known[content], "shape": list(array.shape), "folded": False}


def _squeezed(values: ArrayLike) -> FloatArray:
    """Length 1 along every axis on which nothing changes; always four axes."""
    array = np.asarray(values, dtype=float)
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    for axis in range(array.ndim):
        first = np.take(array, [0], axis=axis)
        if array.shape[axis] > 1 and np.allclose(array, first, rtol=_SAME, atol=0.0):
            array = first
    return array
