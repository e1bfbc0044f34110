"""A profile from operator times that NVIDIA publishes in ``aiconfigurator-core``: ``wmtp profiles import``.

Chosen rows become points (`calibration.published_points`), and points are fitted by `calibration.fit`, as our own are.
What is chosen, and what is left out:

* Attention and MLA are told apart by kernel, so one profile holds those of several engines. Dense
  products, experts, recurrences and collectives are of one backend, the first that has a table.
* Decode rows only, one query row per sequence. Verify rows are priced by the form: the cache is read once per sequence.
* Caches were warm: many rows of small shapes are faster than the memory could deliver them, and in a model's step they
  would be read cold. `_cold` says which rows count.
* Kernel classes that the tables lack are carried over from the nearest calibration of ours, with its wider ranges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibration import fit
from calibration.fit import operation_of
from calibration.published_points import Source, records
from calibration.tables import PACKAGE, Tables, tables
from wmtp_sim.catalog.gpus import load_gpu
from wmtp_sim.catalog.profiles import ELSEWHERE, IDEAL, own_calibration, uncalibrated
from wmtp_sim.errors import InputError
from wmtp_sim.machine.machine import Machine
from wmtp_sim.machine.profile import KernelModel, Profile
from wmtp_sim.spec.gpu import Gpu
from wmtp_sim.work.operation import Operation

#: Catalogue GPUs by the package's names of systems.
SYSTEMS = {
    "a100_pcie": "a100-pcie-80gb",
    "a100_sxm": "a100-sxm-80gb",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "gb200": "gb200",
    "gb300": "gb300",
    "h100_pcie": "h100-pcie",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "l4": "l4",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000-blackwell-server",
}
#: Backends whose kernels our engine files name; TensorRT-LLM's tables do not say which kernel ran.
BACKENDS = ("sglang", "vllm")

#: No spread is below this: the same kernels on one kind of GPU in two hands (docs/independent.md: FlashAttention-3 and
#: products on an H200) differ by so much in nine of ten rows. A judgement.
HANDS = 1.2
#: Rows count where reading their bytes from memory would add no more than this share of their time ...
COLD_SHARE = 0.1
#: ... or where they are this many times the L2, and the next run finds little of the last one in it.
CACHES = 2.0
#: A long read may find the end of the last one in the L2: rows up to so much faster than the datasheet's rate count.
REMAINDER = 0.9
#: The largest L2 of the catalogue, for GPUs whose own is not known.
LARGEST_L2 = 134_217_728
#: Classes whose small rows beat the memory's rate on GPUs with a large L2 (4.5 times on an L40S), and beat it a little
#: on an H100 already: all of them are taken to be warm.
WARM = ("attention", "mla", "recurrent")

NOTE = (
    f"times are NVIDIA's, published in {PACKAGE} (Apache-2.0), not ours: one operator at a time, not in a step's CUDA "
    "graph; rows that a cache served are left out"
)


def import_profile(
    system: str,
    backends: Sequence[str] = (),
    version: str | None = None,
    path: Path | None = None,
    gpu: str | None = None,
) -> tuple[Profile, list[fit.Report]]:
    """The profile that one system's tables make, and its fits.

    Args:
        system: the package's name of the GPU, ``b200_sxm``.
        backends: engines whose kernels are taken, the first for what is not told apart by kernel; all of `BACKENDS`.
        version: the one backend's version; else the newest of each table.
        path: the package's data; else the installed package's.
        gpu: a catalogue name or file, where `SYSTEMS` lacks the system.

    Raises:
        InputError: unknown names, no package, tables that cannot be read, or too few rows to fit anything.
    """
    found = tables(system, path, version)
    target = load_gpu(_gpu_of(system, gpu))
    sources = [Source(found, name) for name in _known_backends(found, backends, version)]
    taken = list(records(sources))
    kept = _cold(taken, target)
    if not kept:
        raise InputError("--system", f"{system} has no row that can be used", "another --system or --backend")
    return _profile(found, sources, target, kept, len(taken))


def _gpu_of(system: str, gpu: str | None) -> str:
    if gpu is None and system not in SYSTEMS:
        raise InputError("--gpu", f"is not known for {system[:60]}", "name the GPU: --gpu b200, or a file")
    return gpu or SYSTEMS[system]


def _known_backends(found: Tables, backends: Sequence[str], version: str | None) -> list[str]:
    known = found.backends()
    for name in backends:
        if name not in known:
            raise InputError("--backend", f"no tables of {name[:60]!r}", f"known: {', '.join(known)[:200]}")
    chosen = list(dict.fromkeys(backends or [name for name in BACKENDS if name in known]))
    if version is not None:
        if len(chosen) != 1:
            raise InputError("--version", "is one backend's", "name it: --backend sglang --version 0.5.14")
        versions = found.versions(chosen[0])
        if version not in versions:
            raise InputError("--version", f"no {version[:40]!r} of {chosen[0]}", f"known: {', '.join(versions)[:200]}")
    return chosen


# --- points to a profile -----------------------------------------------------------------------------------------


def _cold(records: list[dict[str, Any]], gpu: Gpu) -> list[dict[str, Any]]:
    """Points whose time is that of reading memory.

    A row faster than the datasheet's rate was served by a cache, and so may be rows of its class up to twice its size.
    In the classes of `WARM` all rows up to twice the L2 may be.
    """
    machine = Machine(gpu, IDEAL)
    limit = dict.fromkeys(WARM, CACHES * (gpu.l2_bytes or LARGEST_L2))
    facts = [(record, operation_of(record)) for record in records]
    reads = [float(np.asarray(operation.bytes)) / machine.peak_bandwidth(operation) for _, operation in facts]
    for (record, operation), read in zip(facts, reads, strict=True):
        if record["seconds"] < REMAINDER * read:
            limit[record["kernel"]] = max(limit.get(record["kernel"], 0.0), CACHES * _footprint(operation))
    kept = []
    for (record, operation), read in zip(facts, reads, strict=True):
        possible = record["seconds"] >= REMAINDER * float(np.asarray(machine.bound(operation)))
        large = _footprint(operation) >= limit.get(record["kernel"], 0.0)
        if possible and (large or read <= COLD_SHARE * record["seconds"]):
            kept.append(record)
    return kept


def _footprint(operation: Operation) -> float:
    """Bytes that one run touches; a state is read and written in place."""
    return float(np.asarray(operation.bytes)) - float(np.asarray(operation.state)) / 2.0


def _profile(
    found: Tables, sources: Sequence[Source], gpu: Gpu, records: list[dict[str, Any]], chosen: int
) -> tuple[Profile, list[fit.Report]]:
    """Fits of the points; what no point tells is carried over from the nearest calibration of ours."""
    ours = own_calibration()
    source = f"fitted on {PACKAGE} {found.release}, {found.system}"
    reports = fit.fit_classes(records, gpu, ours.turn_s, source)
    fitted = {report.name: _judged(report.model) for report in reports}
    carried = {
        name: model.model_copy(update={"carried_from": model.carried_from or ours.gpu})
        for name, model in ours.transferred(ELSEWHERE).kernels.items()
    }
    kernels = carried | fitted | fit.class_defaults(fitted)
    provenance = {
        "package": f"{PACKAGE} {found.release}",
        "publisher": "NVIDIA CORPORATION & AFFILIATES",
        "licence": "Apache-2.0",
        "system": found.system,
        "backends": ", ".join(source.backend for source in sources),
        "tables": sorted({record["source"].removeprefix(f"{PACKAGE} {found.release}, ") for record in records}),
        "points": dict(Counter(record["kernel"] for record in records)),
        "left_out": f"{chosen - len(records)} of {chosen} chosen rows, which a warm cache may have served",
        "carried_over": f"from {ours.gpu}: {', '.join(sorted(_carried(kernels)))}",
        "note": NOTE,
    }
    profile = Profile(
        name=f"{gpu.name}, {PACKAGE} {found.release}",
        status="measured",
        by="aiconfigurator",
        gpu=gpu.name,
        kernels=kernels,
        turn_s=ours.turn_s,
        host_spread=uncalibrated().host_spread,
        provenance=provenance,
        measurements=tuple(records),
    )
    return profile, reports


def _judged(model: KernelModel) -> KernelModel:
    """A fit to one hand's times, with what another hand would find in its spreads."""
    spreads = {"spread": model.spread, "spread_elsewhere": model.spread_elsewhere}
    return model.model_copy(update={name: max(value or 1.0, HANDS) for name, value in spreads.items()})


def _carried(kernels: dict[str, KernelModel]) -> list[str]:
    return [name for name, model in kernels.items() if model.carried_from]
