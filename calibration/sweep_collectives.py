"""Time what GPUs of one host send one another, in CUDA graphs, with one process a GPU; every result is checked first.

    python -m calibration.sweep_collectives --out collectives.json --seconds 50

Needs nothing but torch, so that it runs where this project is not installed. NVLink multicast stays off
(`MULTICAST_OFF`).

All-reduces are timed three ways: by NCCL, and by torch's symmetric memory in one shot (every rank reads all others'
buffers) and in two (a reduce-scatter and an all-gather). The custom all-reduces of vLLM and SGLang are those two
algorithms over the same peer-mapped buffers, and these engines, too, choose by size; theirs are faster
(`calibration.calibrate.build_profile`).
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing

from calibration.environment import environment
from calibration.timing import GRAPH_LAUNCHES, Sample, captured, summary, warm_up

SCHEMA = "wmtp-collectives/1"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
#: Two algorithms of torch's symmetric memory; the rest is the process group's: NCCL's, or gloo's on a CPU.
SYMMETRIC = ("one_shot", "two_shot")
RANKS = (2, 4, 8)
#: Bytes of the larger of a rank's two buffers: 1 KB to 32 MB.
PAYLOADS = tuple(2**power for power in range(10, 26))
#: A judgement: medians of fewer replays scatter; more would not fit a minute.
REPLAYS = 40
#: What keeps NCCL and torch from multicast: on shared hosts it can leave the GPUs unusable for others.
MULTICAST_OFF = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
#: Cycles that a GPU waits before a replay, so that its host has queued all of it: about 0.1 ms.
HEAD_START_CYCLES = 200_000
#: Results are sums of small whole numbers, exact in bf16 up to 256: (period - 1) x ranks + 1 + ... + ranks.
PERIOD = 7
DTYPE = torch.bfloat16

Row = dict[str, Any]
Launch = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Job:
    """What every rank of one group does, each on one of ``gpus``, or all on the CPU where there are none.

    ``seconds`` bounds a wait for another rank; ``folder`` takes the results.
    """

    ranks: int
    gpus: tuple[int, ...]
    port: int
    folder: str
    payloads: tuple[int, ...]
    replays: int
    seconds: float


@dataclass(frozen=True)
class Place:
    """One rank of a group, and the device that it drives."""

    rank: int
    ranks: int
    device: torch.device

    def pattern(self, rank: int, elements: int, start: int = 0) -> torch.Tensor:
        """What ``rank`` holds at elements from ``start`` on: small whole numbers."""
        places = torch.arange(start, start + elements, device=self.device)
        return (places % PERIOD + rank + 1).to(DTYPE)

    def reduced(self, elements: int, start: int = 0) -> torch.Tensor:
        """The sum of all ranks' patterns."""
        return torch.stack([self.pattern(rank, elements, start).float() for rank in range(self.ranks)]).sum(0).to(DTYPE)

    def empty(self, elements: int) -> torch.Tensor:
        return torch.zeros(elements, dtype=DTYPE, device=self.device)


@dataclass(frozen=True)
class Call:
    """One collective: what it sends, what it answers and should answer. ``launch`` returns the answer's tensor."""

    sent: torch.Tensor
    pattern: torch.Tensor
    expected: torch.Tensor
    launch: Launch

    def right(self) -> bool:
        """Whether one launch gives the expected numbers; afterwards all is zero, so that sums stay finite."""
        self.sent.copy_(self.pattern)
        found = torch.equal(self.launch(), self.expected)
        self.sent.zero_()
        return found


# --- one rank ------------------------------------------------------------------------------------------------------


def call(collective: str, payload: int, here: Place) -> Call:
    """A collective of the process group. ``payload`` is the bytes of the larger of a rank's two buffers.

    All-reduces are in place, as engines' communicators do them.
    """
    elements, gathering = payload // DTYPE.itemsize, collective == "all_gather"
    part = elements // here.ranks
    first = here.rank * part  # of what this rank keeps
    own = here.pattern(here.rank, part if gathering else elements)
    sent = torch.zeros_like(own)
    if collective == "all_reduce":
        return Call(sent, own, here.reduced(elements), answering(dist.all_reduce, sent))
    if collective == "reduce_scatter":
        scatter = _renamed("reduce_scatter_single", "reduce_scatter_tensor")
        return Call(sent, own, here.reduced(part, first), answering(scatter, here.empty(part), sent))
    gather = _renamed("all_gather_single", "all_gather_into_tensor")
    expected = torch.cat([here.pattern(rank, part, 0 if gathering else first) for rank in range(here.ranks)])
    run = gather if gathering else dist.all_to_all_single
    return Call(sent, own, expected, answering(run, here.empty(elements), sent))


def answering(run: Callable[..., object], answer: torch.Tensor, *given: torch.Tensor) -> Launch:
    """A launch that returns the tensor it writes, ``run``'s first."""

    def launch() -> torch.Tensor:
        run(answer, *given)
        return answer

    return launch


def _renamed(name: str, old: str) -> Callable[..., object]:
    """A function of torch.distributed by its name since torch 2.13, or by the one before."""
    found: Callable[..., object] = getattr(dist, name, None) or getattr(dist, old)
    return found


def symmetric_buffer(elements: int, here: Place) -> torch.Tensor:
    """A buffer that every rank of the group maps.

    Raises:
        RuntimeError: where GPUs cannot map one another's memory, or where multicast would be used.
    """
    from torch.distributed import _symmetric_memory as symmetric

    shared = torch._C._distributed_c10d._SymmetricMemory
    if shared.has_multicast_support(torch._C._autograd.DeviceType.CUDA, here.device.index):
        raise RuntimeError("multicast is not off")
    buffer = symmetric.empty(elements, dtype=DTYPE, device=here.device)
    symmetric.rendezvous(buffer, _group_name())
    return buffer.zero_()


def symmetric_call(how: str, payload: int, buffer: torch.Tensor, here: Place) -> Call:
    """An all-reduce over the first ``payload`` bytes of a symmetric buffer, without a copy into it.

    In CUDA graphs, engines register the tensors themselves and need no copy either.
    """
    elements, group = payload // DTYPE.itemsize, _group_name()
    part = buffer[:elements]
    operators = torch.ops.symm_mem
    operator = {"one_shot": operators.one_shot_all_reduce, "two_shot": operators.two_shot_all_reduce_}[how]
    launch = functools.partial(operator, part, "sum", group)
    return Call(part, here.pattern(here.rank, elements), here.reduced(elements), launch)


def _group_name() -> str:
    """How symmetric memory knows the process group."""
    return str(dist.group.WORLD.group_name)  # type: ignore[union-attr]


def timed(launch: Launch, device: torch.device, replays: int) -> list[float]:
    """Seconds of one launch, replay by replay. All ranks begin a replay together, and replay as often."""
    if device.type != "cuda":
        return [_timed_once(launch) for _ in range(replays)]
    launch()
    torch.cuda.synchronize(device)
    graph = captured(lambda _: launch(), GRAPH_LAUNCHES, device, capture_error_mode="thread_local")
    together = torch.zeros(1, device=device)
    return [_timed_replay(graph, together) for _ in range(replays + 2)][2:]


def _timed_replay(graph: torch.cuda.CUDAGraph, together: torch.Tensor) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(HEAD_START_CYCLES)
    dist.all_reduce(together)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / GRAPH_LAUNCHES


def _timed_once(launch: Launch) -> float:
    dist.barrier()
    begin = time.perf_counter()
    launch()
    return time.perf_counter() - begin


def measured(collective: str, how: str, payload: int, one: Call, here: Place, replays: int) -> Row:
    """One rank's row. A wrong answer is timed all the same, since the other ranks wait for this one."""
    right = one.right()
    times = timed(one.launch, here.device, replays)
    stated = {"collective": collective, "how": how, "ranks": here.ranks, "bytes": payload}
    return stated | summary(times).figures() | {"right": right}


def rows_of(job: Job, here: Place) -> Iterator[Row]:
    """All rows of one rank: the process group's first, so that they are kept where symmetric memory fails."""
    for payload in job.payloads:
        for collective in COLLECTIVES:
            yield measured(collective, backend(here), payload, call(collective, payload, here), here, job.replays)
    if here.device.type != "cuda":
        return
    buffer = symmetric_buffer(max(job.payloads) // DTYPE.itemsize, here)
    for payload in job.payloads:
        for how in SYMMETRIC:
            one = symmetric_call(how, payload, buffer, here)
            yield measured("all_reduce", how, payload, one, here, job.replays)


def backend(here: Place) -> str:
    return "nccl" if here.device.type == "cuda" else "gloo"


def run_rank(rank: int, job: Job) -> None:
    """One process: its rows go to a file of its own, one a line, as they are measured."""
    os.environ.update(MULTICAST_OFF)
    here = Place(rank, job.ranks, torch.device("cuda", job.gpus[rank]) if job.gpus else torch.device("cpu"))
    join(here, job)
    with open(_results(job, rank), "w", encoding="utf-8") as file:
        for row in rows_of(job, here):
            file.write(json.dumps(row) + "\n")
            file.flush()
    dist.destroy_process_group()


def join(here: Place, job: Job) -> None:
    """Bring this rank's GPU to work, and the rank into its group."""
    wait, cuda = datetime.timedelta(seconds=job.seconds), here.device.type == "cuda"
    if cuda:
        torch.cuda.set_device(here.device)
        warm_up(here.device, 0.5)
    store = dist.TCPStore("127.0.0.1", job.port, is_master=False, timeout=wait)
    named = here.device if cuda else None
    dist.init_process_group(
        backend(here), store=store, rank=here.rank, world_size=here.ranks, timeout=wait, device_id=named
    )


def _results(job: Job, rank: int) -> Path:
    return Path(job.folder) / f"rank{rank}.jsonl"


# --- all ranks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """Rows of all groups, the slowest rank's of each, and why others are missing."""

    rows: tuple[Row, ...]
    failures: tuple[str, ...]


def sweep(
    counts: Sequence[int], gpus: Sequence[int], payloads: Sequence[int] = PAYLOADS, seconds: float = 60.0,
    replays: int = REPLAYS,
) -> Sweep:  # fmt: skip
    """Time every collective among the first 2, 4, ... of these GPUs, each group within ``seconds``."""
    rows: list[Row] = []
    failures: list[str] = []
    for ranks in counts:
        found, failure = group(ranks, tuple(gpus[:ranks]), tuple(payloads), seconds, replays)
        rows += found
        failures += [f"{ranks} ranks: {failure}"] if failure else []
        failures += [f"{name(row)}: wrong result, left out" for row in found if not row["right"]]
    return Sweep(tuple(row for row in rows if row["right"]), tuple(failures))


def group(
    ranks: int, gpus: tuple[int, ...], payloads: tuple[int, ...], seconds: float, replays: int
) -> tuple[list[Row], str | None]:
    """Rows of one group of processes, and why it ended early if it did: what was measured until then counts."""
    with tempfile.TemporaryDirectory() as folder:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        job = Job(ranks, gpus, store.port, folder, payloads, replays, seconds)
        context = multiprocessing.spawn(run_rank, (job,), nprocs=ranks, join=False, daemon=True)
        try:
            failure = _joined(context, seconds)
        finally:
            for process in context.processes:
                process.kill()
                process.join()
        return merged([_read(_results(job, rank)) for rank in range(ranks)]), failure


def _joined(context: Any, seconds: float) -> str | None:
    """Wait for all processes; the last line of what one of them raised, or that time ran out."""
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            if context.join(timeout=0.5):
                return None
    except (multiprocessing.ProcessRaisedException, multiprocessing.ProcessExitedException) as error:
        return (str(error).strip().splitlines() or ["a process ended"])[-1][:300]
    return f"not done within {seconds:.0f} s"


def _read(path: Path) -> list[Row]:
    """A rank's rows; a last line that its end cut short is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def name(row: Row) -> str:
    return f"{row['collective']} ({row['how']}), {row['ranks']} ranks, {row['bytes']} bytes"


def merged(of_ranks: Sequence[Sequence[Row]]) -> list[Row]:
    """The slowest rank's row of each collective that all ranks measured; right where all are."""
    found: dict[str, list[Row]] = defaultdict(list)
    for rows in of_ranks:
        for row in rows:
            found[name(row)].append(row)
    return [
        max(rows, key=lambda row: row["seconds"]) | {"right": all(row["right"] for row in rows)}
        for rows in found.values()
        if len(rows) == len(of_ranks)
    ]


def fastest(rows: Sequence[Row]) -> list[Row]:
    """Of several ways to do one thing the fastest: an engine chooses by size."""
    found: dict[tuple[str, int, int], Row] = {}
    for row in sorted(rows, key=lambda row: row["seconds"], reverse=True):
        found[row["collective"], row["ranks"], row["bytes"]] = row
    return sorted(found.values(), key=lambda row: (row["collective"], row["ranks"], row["bytes"]))


def gpus_here(first: int = 0) -> list[int]:
    """GPUs of one kind, ``first`` before the others; none where NCCL cannot join them."""
    if not torch.cuda.is_available() or not dist.is_available() or not dist.is_nccl_available():
        return []
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [first, *(i for i, found in enumerate(names) if found == names[first] and i != first)]


def groups_of(gpus: Sequence[int]) -> list[int]:
    """How many ranks can be measured on these GPUs."""
    return [ranks for ranks in RANKS if ranks <= len(gpus)]


def software() -> dict[str, Any]:
    """What the numbers depend on."""
    count = torch.cuda.device_count()
    return {
        **environment(torch.device("cuda", 0)).as_dict(),
        "gpus": count,
        "peer_access": all(torch.cuda.can_device_access_peer(0, i) for i in range(1, count)),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        **MULTICAST_OFF,
    }


def noise(row: Row) -> float:
    """Half the 10-90 % range over the median."""
    return Sample(row["seconds"], row["p10"], row["p90"], row["replays"]).noise


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--seconds", type=float, default=50.0, help="limit for each number of ranks")
    given = arguments.parse_args()
    gpus = gpus_here()
    if not groups_of(gpus):
        raise SystemExit("needs NCCL and two visible GPUs of one kind")
    begun = time.monotonic()
    found = sweep(groups_of(gpus), gpus, seconds=given.seconds)
    document = {"schema": SCHEMA, "environment": software(), **asdict(found)}
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for row in fastest(found.rows):
        print(f"{name(row):56} {row['seconds'] * 1e6:9.2f} us  noise {noise(row):.1%}")
    print("\n".join(found.failures))
    print(f"{len(found.rows)} rows in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
