"""GPUs: the CUDA driver's attributes, then NVML (nvidia-ml-py) where installed; AMD's by Linux."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from voxax.hardware.amd_topology import amd_facts
from voxax.hardware.cuda_driver import CudaAttributes, cuda_attributes
from voxax.hardware.fact import Facts, first_known, told
from voxax.hardware.runtime_device import ask

# From which compute capability on the arithmetic units take a dtype (CUDA programming guide,
# "arithmetic instructions" and "tensor cores").
_DTYPES_SINCE = (
    ((0, 0), ("float32", "int32")),
    ((1, 3), ("float64",)),
    ((5, 3), ("float16",)),
    ((6, 1), ("int8",)),
    ((8, 0), ("bfloat16",)),
    ((8, 9), ("float8_e4m3fn", "float8_e5m2")),
)


def gpu_facts(
    device: Any,
    nvml: Any = None,
    cuda: CudaAttributes | None = None,
    root: Path = Path("/"),
) -> Facts:
    """Facts about a JAX device of the platform ``gpu``.

    Args:
      device: the device; its ``local_hardware_id`` says which GPU it is.
      nvml: a module like ``pynvml``; None imports it, and does without where it is missing.
      cuda: answers of the CUDA driver; None asks ``libcuda``.
      root: where ``sys`` is.
    """
    index = ask(device, "local_hardware_id") or 0
    capability = ask(device, "compute_capability")
    if str(capability or "").startswith("gfx"):
        # Behind the colon are modes, as in gfx942:sramecc+:xnack-.
        own = told("jax device", generation=str(capability).split(":")[0])
        return first_known([own, amd_facts(root, index)])
    driver = cuda_attributes(index) if cuda is None else cuda
    own = told("jax device", generation=None if capability is None else str(capability))
    manager = _pynvml() if nvml is None else nvml
    asked = first_known([own, _driver_facts(driver), _nvml_facts(manager, index)])
    return first_known([asked, _native_dtypes(asked)])


def _driver_facts(driver: CudaAttributes) -> Facts:
    bus, memory_clock = driver.get("memory_bus_bits"), driver.get("memory_clock_khz")
    bandwidth = None
    if bus and memory_clock:
        bandwidth = 2e3 * memory_clock * bus / 8  # two transfers a clock, on every wire
    clock = driver.get("clock_khz")
    major, minor = driver.get("capability_major"), driver.get("capability_minor")
    return told(
        "CUDA driver",
        cores=driver.get("multiprocessors"),
        cores_per_chip=driver.get("multiprocessors"),
        lane_count=driver.get("warp_size"),
        shared_memory_bytes=driver.get("shared_memory_optin"),
        l2_cache_bytes=driver.get("l2_cache"),
        clock_hz=None if clock is None else 1e3 * clock,
        memory_bandwidth=bandwidth,
        generation=None if major is None else f"{major}.{minor}",
    )


def _pynvml() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def _nvml_facts(nvml: Any, index: int) -> Facts:
    if nvml is None:
        return {}
    try:
        nvml.nvmlInit()
    except Exception:  # no driver, or no permission
        return {}
    try:
        return _asked(nvml, _handle(nvml, index))
    except Exception:
        return {}
    finally:
        nvml.nvmlShutdown()


def _handle(nvml: Any, index: int) -> Any:
    """NVML counts all GPUs, CUDA those that CUDA_VISIBLE_DEVICES names."""
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    name = visible[index] if index < len(visible) and visible[index] else str(index)
    if name.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name)


def _asked(nvml: Any, handle: Any) -> Facts:
    def answer(function: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, function)(handle, *arguments)
        except Exception:  # not supported on this GPU, or by this driver
            return None

    memory = answer("nvmlDeviceGetMemoryInfo")
    capability = answer("nvmlDeviceGetCudaComputeCapability")
    clock = answer("nvmlDeviceGetMaxClockInfo", getattr(nvml, "NVML_CLOCK_SM", 1))
    memory_clock = answer("nvmlDeviceGetMaxClockInfo", getattr(nvml, "NVML_CLOCK_MEM", 2))
    bus = answer("nvmlDeviceGetMemoryBusWidth")
    name = answer("nvmlDeviceGetName")
    active = [
        answer("nvmlDeviceGetNvLinkState", link)
        for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18))
    ]
    known = [state for state in active if state is not None]
    return told(
        "NVML",
        model=name.decode() if isinstance(name, bytes) else name,
        physical_memory_bytes=None if memory is None else memory.total,
        memory_bytes=None if memory is None else memory.total,
        memory_in_use=None if memory is None else memory.used,
        generation=None if capability is None else ".".join(str(n) for n in capability),
        clock_hz=None if clock is None else 1e6 * clock,
        memory_bandwidth=2e6 * memory_clock * bus / 8 if memory_clock and bus else None,
        links=sum(known) if known else None,
    )


def _native_dtypes(facts: Facts) -> Facts:
    generation = facts["generation"].value if "generation" in facts else ""
    numbers = generation.split(".")
    if len(numbers) != 2 or not all(n.isdigit() for n in numbers):  # another maker's GPU
        return {}
    capability = tuple(int(n) for n in numbers)
    dtypes = [d for since, names in _DTYPES_SINCE for d in names if capability >= since]
    return told(f"compute capability {generation}", native_dtypes=tuple(dtypes))
