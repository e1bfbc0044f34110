"""NCCL called directly and on the caller's own stream, as inference engines call it.

vLLM and SGLang go past torch's process group, to the library itself ("pynccl", through ctypes as here). The group runs
NCCL on a stream of its own, joined to the caller's by events. In CUDA graphs on two H200s (torch 2.11, NCCL 2.28.9) it
gave 9.5 us for a small all-gather, whose kernel takes 6.2 us in SGLang's graphs there.

Signatures and numbers are those of NCCL's C API, nccl.h, the same throughout NCCL 2. Needs nothing but torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

NAME = "libnccl.so.2"
#: Where NVIDIA's wheel of NCCL puts it: beside torch.
WHEEL = Path(torch.__file__).parents[1] / "nvidia" / "nccl" / "lib" / NAME
#: ncclSuccess of ncclResult_t, ncclSum of ncclRedOp_t.
SUCCESS, SUM = 0, 0
#: ncclDataType_t.
TYPES = {torch.float32: 7, torch.bfloat16: 9}
#: Under this key of the store, rank 0 leaves a communicator's id for the others.
ID_KEY = "nccl unique id"


class NcclError(RuntimeError):
    """There is no NCCL, or a call of it failed."""


class UniqueId(ctypes.Structure):
    """ncclUniqueId: NCCL_UNIQUE_ID_BYTES bytes, handed over by value."""

    _fields_ = (("internal", ctypes.c_byte * 128),)


_BUFFER = _HANDLE = _STREAM = ctypes.c_void_p
_COUNT, _RANK, _TYPE, _REDUCTION = ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int
SIGNATURES = {
    "ncclGetUniqueId": (ctypes.POINTER(UniqueId),),
    "ncclCommInitRank": (ctypes.POINTER(_HANDLE), ctypes.c_int, UniqueId, _RANK),
    "ncclCommDestroy": (_HANDLE,),
    "ncclAllReduce": (_BUFFER, _BUFFER, _COUNT, _TYPE, _REDUCTION, _HANDLE, _STREAM),
    "ncclReduceScatter": (_BUFFER, _BUFFER, _COUNT, _TYPE, _REDUCTION, _HANDLE, _STREAM),
    "ncclAllGather": (_BUFFER, _BUFFER, _COUNT, _TYPE, _HANDLE, _STREAM),
    "ncclSend": (_BUFFER, _COUNT, _TYPE, _RANK, _HANDLE, _STREAM),
    "ncclRecv": (_BUFFER, _COUNT, _TYPE, _RANK, _HANDLE, _STREAM),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
}


# --- the library ---------------------------------------------------------------------------------------------------


@functools.cache
def library() -> ctypes.CDLL:
    """The NCCL that torch has loaded, or else its wheel's. Raises `NcclError` where there is none."""
    return declared(loaded((NAME, str(WHEEL))))


def loaded(names: Sequence[str]) -> ctypes.CDLL:
    """The first of these libraries that can be loaded. Raises `NcclError` where none can."""
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise NcclError(f"{NAME} is neither loaded by torch nor installed beside it")


def declared(found: ctypes.CDLL) -> ctypes.CDLL:
    """The library with its functions' types. Raises `NcclError` where it lacks one of them."""
    try:
        for name, arguments in SIGNATURES.items():
            function = getattr(found, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        found.ncclGetErrorString.argtypes = (ctypes.c_int,)
        found.ncclGetErrorString.restype = ctypes.c_char_p
    except AttributeError as error:
        raise NcclError(f"{NAME} is too old: {error}") from None
    return found


def missing() -> str | None:
    """Why NCCL cannot be called here, or None where it can."""
    try:
        library()
    except NcclError as error:
        return str(error)
    return None


def run(function: str, *arguments: object) -> None:
    """Call a function of the library. Raises `NcclError` with NCCL's own words where it fails."""
    status = getattr(library(), function)(*arguments)
    if status != SUCCESS:
        raise NcclError(f"{function}: {library().ncclGetErrorString(status).decode()}")


# --- a communicator ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Communicator:
    """One rank's end of a communicator, on the current GPU.

    Collectives are queued on the current stream, so that a graph's capture takes them. ``received`` and ``sent`` are
    contiguous and of one type.
    """

    handle: ctypes.c_void_p
    ranks: int

    def all_reduce(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        """The sum over ranks, in place where both are one tensor."""
        run("ncclAllReduce", sent.data_ptr(), received.data_ptr(), sent.numel(), TYPES[sent.dtype], SUM, *self._here())

    def all_gather(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        """NCCL counts the elements of one rank's part."""
        run("ncclAllGather", sent.data_ptr(), received.data_ptr(), sent.numel(), TYPES[sent.dtype], *self._here())

    def reduce_scatter(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        """NCCL counts the elements of one rank's part."""
        count = received.numel()
        run("ncclReduceScatter", sent.data_ptr(), received.data_ptr(), count, TYPES[sent.dtype], SUM, *self._here())

    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        """Equal parts, sent and received as one group."""
        run("ncclGroupStart")
        for peer, (out, back) in enumerate(zip(sent.chunk(self.ranks), received.chunk(self.ranks), strict=True)):
            run("ncclSend", out.data_ptr(), out.numel(), TYPES[out.dtype], peer, *self._here())
            run("ncclRecv", back.data_ptr(), back.numel(), TYPES[back.dtype], peer, *self._here())
        run("ncclGroupEnd")

    def _here(self) -> tuple[ctypes.c_void_p, int]:
        """The last two arguments of every collective."""
        return self.handle, torch.cuda.current_stream().cuda_stream


@contextlib.contextmanager
def communicator(rank: int, ranks: int, store: dist.Store) -> Iterator[Communicator]:
    """Join the communicator of all ranks that share ``store``, with the current GPU.

    After an error it is not destroyed: that would wait for other ranks, and the process ends anyway.

    Raises:
        NcclError: NCCL is missing, or could not join the ranks.
    """
    handle = ctypes.c_void_p()
    run("ncclCommInitRank", ctypes.byref(handle), ranks, shared_id(rank, store), rank)
    yield Communicator(handle, ranks)
    run("ncclCommDestroy", handle)


def shared_id(rank: int, store: dist.Store) -> UniqueId:
    """A communicator's id: made by rank 0, awaited by the others within the store's timeout."""
    if rank == 0:
        store.set(ID_KEY, bytes(new_id()))
    return UniqueId.from_buffer_copy(store.get(ID_KEY))


def new_id() -> UniqueId:
    """The id of a communicator that the calling process helps others to join."""
    made = UniqueId()
    run("ncclGetUniqueId", ctypes.byref(made))
    return made
