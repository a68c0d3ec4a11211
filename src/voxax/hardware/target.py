"""The hardware that programs are compiled for: this process's device, or an absent device."""

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
    """Return a context in which programs are compiled for ``hardware``, which need not be present.

    Enter :func:`voxax._compat.separate_traces` too. Otherwise JAX would reuse programs that were
    traced outside of the context.

    Args:
      hardware: facts about the hardware. They apply to programs for its platform.
      device: the device on which candidate algorithms are measured; None measures nothing.
    """
    token = _target.set((hardware, device))
    try:
        yield
    finally:
        _target.reset(token)


def target_platform() -> str:
    """Return the platform of the enclosing :func:`targeting`, or else JAX's default platform."""
    target = _target.get()
    return jax.default_backend() if target is None else target[0].platform


def hardware_of(platform: str) -> tuple[HardwareInfo, Any | None]:
    """Return facts about the hardware that programs for ``platform`` run on, and its JAX device.

    Inside :func:`targeting` with this platform, both are the arguments of :func:`targeting`. While
    a program is compiled ahead for an absent device, the facts describe that device, and the device
    is None. Otherwise the device is this process's first device of the platform, or None if there
    is none.
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
    """Return facts about a device that is not attached; warn if it is a TPU unknown to JAX."""
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
    """Return facts about this process's first device of a platform, and the device.

    Without such a device, the facts say only the platform, and the second result is None.
    """
    for name in (platform, *(("cuda", "rocm") if platform == "gpu" else ())):
        try:
            device = jax.local_devices(backend=name)[0]
        except (RuntimeError, IndexError):
            continue
        return describe(device), device
    return HardwareInfo(platform=platform, device_kind="unknown"), None
