"""The hardware that programs are made for: this process's, or some that is absent."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from typing import Any

import jax

from voxax.hardware import HardwareInfo, describe

_target: contextvars.ContextVar[HardwareInfo | None]
_target = contextvars.ContextVar("voxax_target", default=None)


@contextlib.contextmanager
def targeting(hardware: HardwareInfo) -> Iterator[None]:
    """Inside, programs of its platform are for this hardware; nothing is measured for it.

    Programs that were traced before would be found again: see :func:`voxax._compat.fresh_trace`.
    """
    token = _target.set(hardware)
    try:
        yield
    finally:
        _target.reset(token)


def target_platform() -> str:
    """The platform that programs are most likely for."""
    hardware = _target.get()
    return jax.default_backend() if hardware is None else hardware.platform


def hardware_of(platform: str) -> tuple[HardwareInfo, Any | None]:
    """Facts about the device that runs ``platform`` here, and the device.

    The device is None where this process has none, and for hardware of :func:`targeting`.
    """
    hardware = _target.get()
    if hardware is not None and hardware.platform == platform:
        return hardware, None
    return _present(platform)


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
