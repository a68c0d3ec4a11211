"""Facts about GPUs: NVIDIA's from the CUDA driver, then NVML if installed; AMD's from Linux.

The CUDA driver is called through ctypes; the Python package of NVML is nvidia-ml-py. The Linux
driver of AMD's GPUs describes them in ``/sys/class/kfd`` (the kernel's
``drivers/gpu/drm/amd/amdkfd/kfd_topology.c``): each node has a folder with a file ``properties``,
in which each line is a name and a number.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from pathlib import Path
from typing import Any

from voxax.hardware.device import ask
from voxax.hardware.info import Facts, facts_from, first_known

CudaAttributes = dict[str, int]

# The first compute capability whose arithmetic units support each dtype (CUDA programming guide,
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
    device: Any, nvml: Any = None, cuda: CudaAttributes | None = None, root: Path = Path("/")
) -> Facts:
    """Return facts about a JAX device of the platform ``gpu``.

    Args:
      device: the device; its ``local_hardware_id`` is the number of the GPU.
      nvml: a module like ``pynvml``; None imports ``pynvml`` if installed.
      cuda: the CUDA driver's attributes of the GPU; None calls ``libcuda``.
      root: the folder that contains ``sys``.
    """
    index = ask(device, "local_hardware_id") or 0
    capability = ask(device, "compute_capability")
    if str(capability or "").startswith("gfx"):
        # The modes after the colon are left out, as in gfx942:sramecc+:xnack-.
        own = facts_from("jax device", generation=str(capability).split(":")[0])
        return first_known([own, _amd_facts(root, index)])
    driver = cuda_attributes(index) if cuda is None else cuda
    own = facts_from("jax device", generation=None if capability is None else str(capability))
    asked = first_known([own, _driver_facts(driver), _nvml_facts(nvml, index)])
    return first_known([asked, _native_dtypes(asked)])


# CUdevice_attribute of cuda.h.
_ATTRIBUTES = {
    "warp_size": 10,
    "clock_khz": 13,
    "multiprocessors": 16,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "l2_cache": 38,
    "capability_major": 75,
    "capability_minor": 76,
    "shared_memory_optin": 97,
}


def cuda_attributes(ordinal: int) -> CudaAttributes:
    """Return attributes of GPU number ``ordinal`` from the CUDA driver; {} without a driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        device = ctypes.c_int()
        if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), ordinal):
            return {}
    except (OSError, AttributeError):
        return {}
    found: CudaAttributes = {}
    for name, number in _ATTRIBUTES.items():
        value = ctypes.c_int()
        # A newer driver may have dropped an attribute, or answer 0 for it.
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0 and value.value:
            found[name] = value.value
    if "capability_major" in found:
        found.setdefault("capability_minor", 0)
    return found


def _driver_facts(driver: CudaAttributes) -> Facts:
    bus, memory_clock = driver.get("memory_bus_bits"), driver.get("memory_clock_khz")
    # Two transfers per clock on every wire of the bus.
    bandwidth = 2e3 * memory_clock * bus / 8 if bus and memory_clock else None
    clock = driver.get("clock_khz")
    major, minor = driver.get("capability_major"), driver.get("capability_minor")
    return facts_from(
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


def _nvml_facts(nvml: Any, index: int) -> Facts:
    try:
        nvml = importlib.import_module("pynvml") if nvml is None else nvml
        nvml.nvmlInit()
    except Exception:  # not installed, no driver, or no permission
        return {}
    try:
        return _asked(nvml, _handle(nvml, index))
    except Exception:
        return {}
    finally:
        nvml.nvmlShutdown()


def _handle(nvml: Any, index: int) -> Any:
    """Return NVML's handle of CUDA's GPU number ``index``.

    NVML numbers all GPUs; CUDA numbers only the GPUs in CUDA_VISIBLE_DEVICES.
    """
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
    links = range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18))
    active = [answer("nvmlDeviceGetNvLinkState", link) for link in links]
    known = [state for state in active if state is not None]
    return facts_from(
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
    return facts_from(f"compute capability {generation}", native_dtypes=tuple(dtypes))


_NODES = "sys/class/kfd/kfd/topology/nodes"


def _amd_facts(root: Path, ordinal: int) -> Facts:
    """Return facts about AMD's GPU number ``ordinal`` of this host; {} without the driver.

    ``root`` is the folder that contains ``sys``. ``HIP_VISIBLE_DEVICES`` may renumber GPUs. It is
    ignored: the GPUs of a host are assumed to be equal in these facts.
    """
    nodes = [_properties(path) for path in sorted((root / _NODES).glob("*/properties"), key=_node)]
    found = [node for node in nodes if node.get("lds_size_in_kb")]  # other nodes are processors
    if not found:
        return {}
    own = found[min(ordinal, len(found) - 1)]
    return facts_from(
        "/sys/class/kfd",
        shared_memory_bytes=own["lds_size_in_kb"] << 10,
        lane_count=own.get("wave_front_size") or None,
    )


def _node(path: Path) -> int:
    return int(path.parent.name) if path.parent.name.isdigit() else 0


def _properties(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdigit()}
