"""What a measurement was made on: GPU, driver, clocks, versions; and whether the GPU is fit to be measured."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
from dataclasses import asdict, dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Environment:
    """Provenance of a measurement. Clocks in MHz, temperature in Celsius, memory in bytes; None where unknown."""

    device: str
    gpu: str
    compute_capability: str
    sm_count: int
    l2_bytes: int
    memory_bytes: int
    driver: str | None
    cuda: str | None
    torch: str
    triton: str | None
    python: str
    date: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Condition:
    """A GPU's state at one moment. ``throttled`` names the reasons that matter; ``others`` are foreign processes."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    throttled: tuple[str, ...]
    others: tuple[int, ...]


def environment(device: torch.device) -> Environment:
    """Who and what is measured. On a CPU the GPU fields describe the processor."""
    versions: dict[str, Any] = {"torch": torch.__version__, "triton": _triton(), "python": platform.python_version()}
    versions["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    if device.type != "cuda":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Environment("cpu", _processor(), "", os.cpu_count() or 1, 0, memory, None, None, **versions)
    properties = torch.cuda.get_device_properties(device)
    return Environment(
        device=str(device),
        gpu=properties.name,
        compute_capability=f"{properties.major}.{properties.minor}",
        sm_count=properties.multi_processor_count,
        l2_bytes=properties.L2_cache_size,
        memory_bytes=properties.total_memory,
        driver=_driver(),
        cuda=torch.version.cuda,
        **versions,
    )


def _processor() -> str:
    """The CPU's own name, else its architecture."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()[:100] or platform.machine()
    return platform.processor() or platform.machine()


def _triton() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def _driver() -> str | None:
    with _nvml() as nvml:
        return str(nvml.nvmlSystemGetDriverVersion()) if nvml else None


@contextlib.contextmanager
def _nvml() -> Any:
    """The driver's management library, or None where it is missing or does not start."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no driver, or an NVMLError of many
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def condition(device: torch.device) -> Condition:
    """The GPU's clocks, heat, throttle reasons and foreign processes now; all unknown on a CPU or without NVML."""
    nothing = Condition(None, None, None, None, (), ())
    if device.type != "cuda":
        return nothing
    with _nvml() as nvml:
        if nvml is None:
            return nothing
        handle = nvml.nvmlDeviceGetHandleByPciBusId(_bus(device))
        return Condition(
            sm_clock_mhz=_asked(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_clock_mhz=_asked(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            temperature_c=_asked(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            power_w=_asked(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3),
            throttled=_throttle_reasons(nvml, handle),
            others=_other_processes(nvml, handle),
        )


def _bus(device: torch.device) -> bytes:
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0".encode()


def _asked(question: Any) -> Any:
    """NVML's answer, or None where this GPU does not give one."""
    try:
        return question()
    except Exception:  # an NVMLError subclass per refusal, made at import time
        return None


def _throttle_reasons(nvml: Any, handle: Any) -> tuple[str, ...]:
    """Reasons that slow a measurement down: heat and hardware limits, not idling or a power cap at full load."""
    reasons = _asked(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
    named = {
        "hardware slowdown": nvml.nvmlClocksThrottleReasonHwSlowdown,
        "hardware thermal slowdown": nvml.nvmlClocksThrottleReasonHwThermalSlowdown,
        "software thermal slowdown": nvml.nvmlClocksThrottleReasonSwThermalSlowdown,
        "power brake": nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    }
    return tuple(name for name, bit in named.items() if reasons & bit)


def _other_processes(nvml: Any, handle: Any) -> tuple[int, ...]:
    running = _asked(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
    return tuple(sorted(process.pid for process in running if process.pid != os.getpid()))
