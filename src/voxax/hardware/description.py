"""Collect all facts about a device from several sources, the most trusted source first."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax

from voxax import _native
from voxax.errors import InputError
from voxax.hardware.cpu import cpu_device_facts, host_facts
from voxax.hardware.device import default_facts, device_facts, process_facts
from voxax.hardware.gpu import CudaAttributes, gpu_facts
from voxax.hardware.info import Facts, HardwareInfo, facts_from, first_known
from voxax.hardware.probe import key_of, measure, remembered
from voxax.hardware.tpu import least_known_facts, topology_facts, tpu_facts


@dataclasses.dataclass(frozen=True)
class Runtime:
    """Where :func:`describe` reads facts from, apart from the JAX device.

    The defaults are the files and drivers of this machine. Recorded answers may replace them.

    Attributes:
      root: the folder that contains ``proc`` and ``sys``.
      nvml: a module like ``pynvml``; None imports ``pynvml`` if installed.
      cuda: the CUDA driver's attributes of the GPU; None calls the driver.
    """

    root: Path = Path("/")
    nvml: Any = None
    cuda: CudaAttributes | None = None


def describe(
    device: Any = None, *, probe: bool = False, runtime: Runtime | None = None
) -> HardwareInfo:
    """Return facts about a device (memory, cores, rates, dtypes, ...), each with its source.

    Sources are read in this order; a fact comes from the first source that knows it:

    1. the runtime: the device, its ``memory_stats``, JAX's table of TPUs, the CUDA driver, NVML (if
       nvidia-ml-py is installed), ``/proc`` and ``/sys`` or psutil;
    2. a measurement for this kind of device and this version of JAX: an earlier one, or with
       ``probe=True`` one made now;
    3. a conservative default; sizes and rates have no default and stay unknown.

    Every call reads the sources anew, so the memory in use is up to date.

    Args:
      device: a JAX device, the index of a local device, or the name of a TPU topology
        (``"v5e:2x2"``). The topology may be absent: libtpu describes it if installed, else JAX's
        table of chips. None takes the first local device.
      probe: True measures copy bandwidth and matrix rates if no measurement exists, which takes a
        few seconds.
      runtime: recorded answers to read instead of this machine's; None asks this machine.

    Raises:
      InputError: the device does not exist, or the name is no known topology.
    """
    runtime = Runtime() if runtime is None else runtime
    host = host_facts(runtime.root)
    if isinstance(device, str):
        sources = [topology_facts(device), host, default_facts("tpu")]
        return HardwareInfo.from_facts(first_known(sources))
    device = _local(device)
    platform, facts = _chip_facts(device, runtime)
    facts = first_known([facts, process_facts(device), host])
    key = key_of(facts)
    measured = measure(device, key) if probe else remembered(key)
    guesses = [least_known_facts()] if platform == "tpu" and "tile_shape" not in facts else []
    sources = [facts, measured, *guesses, default_facts(platform)]
    return HardwareInfo.from_facts(first_known(sources))


def remeasure(device: Any = None) -> HardwareInfo:
    """Measure a device's rates again, replace the measurement on disk, and return all facts.

    Args:
      device: a JAX device or the index of a local device; None takes the first.
    """
    device = _local(device)
    measure(device, key_of(_chip_facts(device, Runtime())[1]), again=True)
    return describe(device)


def _chip_facts(device: Any, runtime: Runtime) -> tuple[str, Facts]:
    """Return the platform of ``device``, and facts about its chip, from JAX and the driver.

    ``runtime`` says which files and drivers of this machine to read.
    """
    own = device_facts(device)
    platform = str(own["platform"].value)
    chip: Facts = {}
    if platform == "cpu":
        reason = _native.unavailable()
        kernels = _native.simd() if reason is None else f"none: {reason}"
        chip = {**cpu_device_facts(runtime.root), **facts_from("voxax", native_kernels=kernels)}
    elif platform in ("gpu", "cuda", "rocm"):
        chip = gpu_facts(device, runtime.nvml, runtime.cuda, runtime.root)
    elif platform == "tpu":
        chip = tpu_facts(device)
    return platform, first_known([own, chip])


def _local(device: Any) -> Any:
    """Return ``device``, or the local device of this index if it is an integer; None means index 0.

    Raises:
      InputError: there is no device of this index.
    """
    if not (device is None or isinstance(device, int)):
        return device
    index, devices = device or 0, jax.local_devices()
    if not 0 <= index < len(devices):
        raise InputError(
            f"device {index} of {len(devices)}: this process has devices 0 to {len(devices) - 1}"
        )
    return devices[index]
