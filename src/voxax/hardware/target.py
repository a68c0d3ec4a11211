"""The hardware that programs are made for: this process's, or some that is absent."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import jax

from voxax import _compat
from voxax.hardware.description import describe
from voxax.hardware.info import HardwareInfo

_target: contextvars.ContextVar[tuple[HardwareInfo, Any | None] | None]
_target = contextvars.ContextVar("voxax_target", default=None)


@contextlib.contextmanager
def targeting(hardware: HardwareInfo, device: Any | None = None) -> Iterator[None]:
    """Context in which programs of that platform are made for this hardware.

    Programs that were traced before would be found again: see
    :func:`voxax._compat.separate_traces`.

    Args:
      hardware: facts about it.
      device: measures for it; None measures nothing.
    """
    token = _target.set((hardware, device))
    try:
        yield
    finally:
        _target.reset(token)


def target_platform() -> str:
    """The platform that programs are most likely for."""
    target = _target.get()
    return jax.default_backend() if target is None else target[0].platform


def hardware_of(platform: str) -> tuple[HardwareInfo, Any | None]:
    """Facts about the device that runs ``platform`` here, and the device.

    The device is None where this process has none, and that of :func:`targeting` inside it. While
    a program is lowered for a device that is only described, the hardware is that device's.
    """
    target = _target.get()
    if target is not None and target[0].platform == platform:
        return target
    device = _compat.absent_device()
    if device is not None and device.platform == platform:
        return _absent(device), None
    return _present(platform)


@functools.lru_cache(maxsize=64)
def _absent(device: Any) -> HardwareInfo:
    """The hardware of a device that is only described. Warns of a TPU that JAX does not know."""
    cores = getattr(device, "num_cores", None)
    if device.platform == "tpu" and _compat.tpu_info(device.device_kind, cores) is None:
        warnings.warn(
            f"this version of JAX does not know the TPU {device.device_kind!r}: its programs are "
            "made with the smallest limits of all that it knows",
            stacklevel=2,
        )
    return describe(device)


@functools.lru_cache(maxsize=64)
def _present(platform: str) -> tuple[HardwareInfo, Any | None]:
    """The hardware of this process, whatever :func:`targeting` says."""
    for name in (platform, *(("cuda", "rocm") if platform == "gpu" else ())):
        try:
            device = jax.local_devices(backend=name)[0]
        except (RuntimeError, IndexError):
            continue
        return describe(device), device
    return HardwareInfo(platform=platform, device_kind="unknown"), None
