"""Calling NCCL directly: what the library is given, how ranks share an id, and what is said where a call fails."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from calibration import nccl  # noqa: E402
from calibration.nccl import Communicator, NcclError, UniqueId  # noqa: E402

STREAM = 77
HANDLE = ctypes.c_void_p(5)
BF16 = 9


class Recorder:
    """A library that notes each call and answers ``status``."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def function(*arguments: Any) -> int:
            self.calls.append((name, *arguments))
            return self.status

        return function

    def ncclGetErrorString(self, status: int) -> bytes:
        return f"error {status}".encode()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    monkeypatch.setattr(nccl, "library", lambda: found)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=STREAM))
    return found


# --- the library ---------------------------------------------------------------------------------------------------


def test_a_missing_library_is_named() -> None:
    with pytest.raises(NcclError, match=r"^libnccl\.so\.2 is neither loaded by torch nor installed beside it$"):
        nccl.loaded(("libnothing-here.so.2", "/nowhere/libnccl.so.2"))


def test_another_library_is_refused() -> None:
    with pytest.raises(NcclError, match="ncclGetUniqueId"):
        nccl.declared(SimpleNamespace())


def test_why_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def library() -> ctypes.CDLL:
        raise NcclError("no such library")

    monkeypatch.setattr(nccl, "library", library)
    assert nccl.missing() == "no such library"
    monkeypatch.setattr(nccl, "library", Recorder)
    assert nccl.missing() is None


def test_a_call_that_fails_says_which_and_why(recorder: Recorder) -> None:
    recorder.status = 5
    with pytest.raises(NcclError, match=r"^ncclGroupStart: error 5$"):
        nccl.run("ncclGroupStart")


def test_an_id_is_128_bytes_by_value() -> None:
    assert ctypes.sizeof(UniqueId) == 128
    assert nccl.SIGNATURES["ncclCommInitRank"][2] is UniqueId


# --- collectives ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "received", "sent", "function", "count", "reduced"),
    [
        ("all_reduce", 8, 8, "ncclAllReduce", 8, True),
        ("all_gather", 8, 4, "ncclAllGather", 4, False),
        ("reduce_scatter", 4, 8, "ncclReduceScatter", 4, True),
    ],
)
def test_counts_and_types(
    recorder: Recorder, collective: str, received: int, sent: int, function: str, count: int, reduced: bool
) -> None:
    into, out = (torch.zeros(size, dtype=torch.bfloat16) for size in (received, sent))
    getattr(Communicator(HANDLE, 2), collective)(into, out)
    operation = (nccl.SUM,) if reduced else ()
    assert recorder.calls == [(function, out.data_ptr(), into.data_ptr(), count, BF16, *operation, HANDLE, STREAM)]
    assert len(recorder.calls[0]) == 1 + len(nccl.SIGNATURES[function])


def test_an_all_to_all_is_one_group_of_parts(recorder: Recorder) -> None:
    into, out = (torch.zeros(8, dtype=torch.bfloat16) for _ in range(2))
    Communicator(HANDLE, 4).all_to_all(into, out)
    first, *parts, last = recorder.calls
    assert (first, last) == (("ncclGroupStart",), ("ncclGroupEnd",))
    assert parts == [
        (function, tensor.data_ptr() + peer * 4, 2, BF16, peer, HANDLE, STREAM)
        for peer in range(4)
        for function, tensor in (("ncclSend", out), ("ncclRecv", into))
    ]


# --- joining -------------------------------------------------------------------------------------------------------

#: Every byte value, zeros among them.
ID = UniqueId.from_buffer_copy(bytes(range(0, 256, 2)))


def id_seen_by_rank_1(port: int) -> bytes:
    return bytes(nccl.shared_id(1, dist.TCPStore("127.0.0.1", port, is_master=False)))


def test_two_processes_share_the_id_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "new_id", lambda: ID)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        seen = other.submit(id_seen_by_rank_1, store.port)
        assert bytes(nccl.shared_id(0, store)) == bytes(ID)
        assert seen.result(timeout=60) == bytes(ID)


def test_a_communicator_is_destroyed_unless_something_failed(recorder: Recorder) -> None:
    def names() -> list[str]:
        return [name for name, *_ in recorder.calls]

    with nccl.communicator(0, 2, dist.HashStore()) as found:
        assert found.ranks == 2
        assert names() == ["ncclGetUniqueId", "ncclCommInitRank"]
    assert names()[2:] == ["ncclCommDestroy"]
    with pytest.raises(ValueError, match="mine"), nccl.communicator(0, 2, dist.HashStore()):
        raise ValueError("mine")
    assert names()[3:] == ["ncclGetUniqueId", "ncclCommInitRank"]
