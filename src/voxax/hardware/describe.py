"""All facts about a device, from its sources in order of trust."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax

from voxax import _native
from voxax.errors import InputError
from voxax.hardware import probe as probing
from voxax.hardware.cpu import cpu_device_facts, host_facts
from voxax.hardware.device import default_facts, device_facts, process_facts
from voxax.hardware.gpu import CudaAttributes, gpu_facts
from voxax.hardware.info import Facts, HardwareInfo, first_known, told
from voxax.hardware.tpu import least_of_all, topology_facts, tpu_facts


@dataclasses.dataclass(frozen=True)
class Runtime:
    """What is asked besides the device; another one is given where answers were recorded.

    Attributes:
      root: where ``proc`` and ``sys`` are.
      nvml: a module like ``pynvml``; None imports it if it is there.
      cuda: the CUDA driver's answers; None asks it.
    """

    root: Path = Path("/")
    nvml: Any = None
    cuda: CudaAttributes | None = None


def describe(
    device: Any = None, *, probe: bool = False, runtime: Runtime | None = None
) -> HardwareInfo:
    """What is known about a device, each fact with its source.

    Asked in this order, the first that knows has the word:

    1. the runtime: the device, its ``memory_stats``, JAX's table of TPUs, the CUDA driver,
       NVML (if nvidia-ml-py is installed), ``/proc`` and ``/sys`` or psutil;
    2. a measurement (:func:`voxax.hardware.measure`), where one was made for this kind of
       device and this version of JAX before, or with ``probe=True`` now;
    3. a conservative default; of sizes and rates there is none, they stay unknown.

    Nothing is remembered between calls: the memory in use is that of the moment.

    Args:
      device: a JAX device, the index of a local one, or the name of a TPU topology
        (``"v5e:2x2"``), which need not be there: described by libtpu if installed, else by
        JAX's table of chips. None: the first local device.
      probe: measure copy bandwidth and matrix rates if that was not done before; a few
        seconds.
      runtime: answers recorded elsewhere, instead of this machine's.

    Raises:
      InputError: no such device, or a name that is no topology.
    """
    runtime = Runtime() if runtime is None else runtime
    if isinstance(device, str):
        host = host_facts(runtime.root)
        return HardwareInfo.from_facts(
            first_known([topology_facts(device), host, default_facts("tpu")])
        )
    if device is None or isinstance(device, int):
        device = _local(device or 0)
    own = device_facts(device)
    platform = str(own["platform"].value)
    chip = _of_platform(platform, device, runtime)
    facts = first_known([own, process_facts(device), chip, host_facts(runtime.root)])
    key = probing.key_of(facts)
    measured = probing.measure(device, key) if probe else probing.remembered(key)
    guesses = [least_of_all()] if platform == "tpu" and "tile_shape" not in facts else []
    return HardwareInfo.from_facts(
        first_known([facts, measured, *guesses, default_facts(platform)])
    )


def remeasure(device: Any = None) -> HardwareInfo:
    """Measure what :func:`describe` would only remember; replaces what is on disk.

    Args:
      device: a JAX device or the index of a local one; None: the first.
    """
    if device is None or isinstance(device, int):
        device = _local(device or 0)
    own = device_facts(device)
    chip = _of_platform(str(own["platform"].value), device, Runtime())
    probing.measure(device, probing.key_of(first_known([own, chip])), again=True)
    return describe(device)


def _of_platform(platform: str, device: Any, runtime: Runtime) -> Facts:
    if platform == "cpu":
        return first_known([cpu_device_facts(runtime.root), _native_facts()])
    if platform in ("gpu", "cuda", "rocm"):
        return gpu_facts(device, runtime.nvml, runtime.cuda, runtime.root)
    if platform == "tpu":
        return tpu_facts(device)
    return {}


def _native_facts() -> Facts:
    reason = _native.unavailable()
    kernels = _native.simd() if reason is None else f"none: {reason}"
    return told("voxax", native_kernels=kernels)


def _local(index: int) -> Any:
    devices = jax.local_devices()
    if not 0 <= index < len(devices):
        raise InputError(
            f"device {index} of {len(devices)}: this process has devices 0 to {len(devices) - 1}"
        )
    return devices[index]
