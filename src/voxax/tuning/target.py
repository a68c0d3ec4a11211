"""Programs for hardware that is not here: what they are traced for, instead of this process's."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import jax

from voxax.hardware import HardwareInfo

_target: contextvars.ContextVar[HardwareInfo | None]
_target = contextvars.ContextVar("voxax_target", default=None)


@contextlib.contextmanager
def targeting(hardware: HardwareInfo) -> Iterator[None]:
    """Inside, programs of its platform are for this hardware; nothing is measured for it.

    What was traced before would be found again: see :func:`voxax._compat.fresh_trace`.
    """
    token = _target.set(hardware)
    try:
        yield
    finally:
        _target.reset(token)


def targeted(platform: str) -> HardwareInfo | None:
    """The hardware that programs of this platform are for, where :func:`targeting` says so."""
    hardware = _target.get()
    return hardware if hardware is not None and hardware.platform == platform else None


def target_platform() -> str:
    """The platform that programs are most likely for."""
    hardware = _target.get()
    return jax.default_backend() if hardware is None else hardware.platform
