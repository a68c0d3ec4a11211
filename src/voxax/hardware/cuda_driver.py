"""Attributes of a GPU, asked of the CUDA driver through ctypes: it is there where CUDA runs."""

from __future__ import annotations

import ctypes

CudaAttributes = dict[str, int]

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
    """What the driver says of GPU ``ordinal`` (as CUDA counts); empty without a driver."""
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
