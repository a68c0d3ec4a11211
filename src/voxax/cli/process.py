"""Settings of the whole process, which a library must not touch: devices and memory."""

from __future__ import annotations

import ctypes
import sys

from voxax.errors import InputError


def use_devices(number: int, asked: str) -> None:
    """Make at least ``number`` devices available; on a CPU, host devices share its cores.

    Call this before JAX's backend starts: it counts host devices once, at its start.

    Args:
      number: number of devices.
      asked: the option or key that asked for them, for errors.

    Raises:
      InputError: fewer than one, or more than exist.
    """
    if number < 1:
        raise InputError(f"{asked} {number} must be at least 1")
    if number == 1:
        return
    import jax

    begun = False
    try:
        jax.config.update("jax_num_cpu_devices", number)
    except RuntimeError:
        begun = True
    found = jax.devices()
    if len(found) >= number:
        return
    platform = found[0].platform
    fix = f"give at most {len(found)}"
    if platform == "cpu" and begun:
        fix += (
            ", or start Python with XLA_FLAGS=--xla_force_host_platform_device_count="
            f"{number}: JAX has begun, and no longer changes the number of host devices"
        )
    elif platform != "cpu":
        fix += ", or set JAX_PLATFORMS=cpu to try it on host devices"
    raise InputError(
        f"{asked} {number}: there are {len(found)} devices of platform {platform}; {fix}"
    )


_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_heap() -> bool:
    """Tell glibc to keep freed memory instead of returning it to the system.

    XLA on a CPU allocates its buffers anew in every call. Above 32 MB glibc maps and unmaps
    them each time, and clearing the fresh pages costs more than the arithmetic: a training
    step of the demo takes about 1.2 times as long (2 cores of an AMD EPYC, shared).

    Returns:
      True if the settings were made; False if the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_ARENA_MAX, 1))
    made = [mallopt(option, value) == 1 for option, value in settings]
    return all(made)
