"""A GPU as its datasheet and its driver state it: rates, sizes, and how sure we are of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from wmtp_sim.spec.base import Size, Spec

#: Bytes or operations per second. The bounds catch figures typed in GB/s or TFLOP/s, and overflow.
Rate = Annotated[float, Field(ge=1e9, le=1e18, strict=True)]


class PeakFlops(Spec):
    """Dense matrix-core FLOP/s (OP/s for int8) with fp32 accumulation, without sparsity; None where absent."""

    bf16: Rate
    fp8: Rate | None = None
    fp4: Rate | None = None
    int8: Rate | None = None


class Gpu(Spec):
    """One GPU. None is "not there" or "not known"; ``notes`` say which where it matters.

    ``memory_bytes`` is what the driver reads out as the GPU's total: nvidia-smi's MiB times 2^20. It is neither the
    label's decimal GB (24,576 MiB of a "24 GB" card are 25.8e9 bytes), nor what a framework sees, which is 0.4 to 2 %
    less (vLLM: 23.56 of 24 GiB). Where no read-out was seen, the label is taken in binary units, as DRAM is made, and
    the field is ``unverified``. ``hbm_bandwidth_bytes_per_s`` is the DRAM's theoretical rate, whatever its kind.
    ``sm_count`` counts compute units on AMD. ``clock_hz`` is the boost or maximum clock, not always the one that peaks
    are quoted at. ``scale_up_bidir_bytes_per_s`` sums both directions of NVLink or Infinity Fabric;
    ``pcie_unidir_bytes_per_s`` is one direction. ``gpus_per_host`` is the most of them behind one scale-up link or in
    one host, 8 where nobody says: more of them need links between hosts, which are not priced. ``launch_slowdown`` is a
    kernel's fixed cost over an H200's, assumed where no profile was measured. ``unverified`` names the fields that no
    good source was seen for.
    """

    name: str = Field(min_length=1, max_length=120)
    vendor: str = ""
    architecture: str = ""
    compute_capability: str | None = None
    peak_dense_flops: PeakFlops
    hbm_bandwidth_bytes_per_s: Rate
    memory_bytes: Annotated[int, Field(ge=10**8, le=10**18, strict=True)]
    l2_bytes: Annotated[int, Field(ge=1, le=10**18, strict=True)] | None = None
    sm_count: Size | None = None
    clock_hz: Annotated[float, Field(ge=1e6, le=1e12, strict=True)] | None = None
    scale_up_bidir_bytes_per_s: Rate | None = None
    pcie_unidir_bytes_per_s: Rate | None = None
    gpus_per_host: Annotated[int, Field(ge=1, le=1024, strict=True)] = 8
    launch_slowdown: Annotated[float, Field(ge=0.1, le=100)] = 1.0
    tdp_w: Annotated[float, Field(gt=0, le=1e6, strict=True)] | None = None
    unverified: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
