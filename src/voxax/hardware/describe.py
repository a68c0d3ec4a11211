"""A frozen record of runtime facts."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class HardwareInfo:
    """Facts about one device and the process around it; None where the runtime is silent.

    Attributes:
      platform: ``cpu``, ``gpu``, ``tpu``, ...
      device_kind: the runtime's name of the chip.
      num_devices: devices of this process.
      process_count: processes in this run.
      memory_bytes: device memory available to JAX.
      cpu_cores: cores this process may use.
    """

    platform: str
    device_kind: str
    num_devices: int
    process_count: int
    memory_bytes: int | None
    cpu_cores: int


def describe(device: Any = None) -> HardwareInfo:
    """Facts about ``device``, by default the first local one."""
    device = jax.local_devices()[0] if device is None else device
    stats = device.memory_stats() or {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return HardwareInfo(
        device.platform,
        device.device_kind,
        jax.local_device_count(),
        jax.process_count(),
        stats.get("bytes_limit"),
        cores or 1,
    )
