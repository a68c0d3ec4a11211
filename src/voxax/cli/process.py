"""Settings of the whole process (devices, memory, logs), for commands but not for the library."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys

from voxax import _compat
from voxax.errors import InputError


def use_devices(number: int, asked: str) -> None:
    """Make sure that JAX has at least ``number`` devices.

    On a CPU this sets the number of JAX's host devices, which share the cores. Call it before JAX's
    backend starts, because the number is fixed then.

    Args:
      number: number of devices.
      asked: name of the option or configuration key with the number, for messages.

    Raises:
      InputError: there are fewer devices.
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


# Number of XLA's threads with `--deterministic`, also on machines with fewer cores.
_THREADS = 4


def be_deterministic() -> None:
    """Make results the same for all numbers of cores: use four XLA threads, and turn the tuner off.

    On a CPU, XLA splits a sum among its threads, so the rounding depends on their number. Call this
    before JAX starts; later it raises InputError.
    """
    if _compat.is_begun():
        raise InputError(
            "--deterministic: JAX has begun in this process with another number of threads; run "
            "the command in a process of its own"
        )
    os.environ["PJRT_NPROC"] = str(_THREADS)
    os.environ["VOXAX_AUTOTUNE"] = "off"


def devices_for(asked: int | str, batch_size: int | None, equal: bool) -> int:
    """Return the number of devices that a training step is distributed over.

    Args:
      asked: number of devices, ``all`` or ``auto``. ``all`` takes every device of this host.
        ``auto`` takes as many accelerators as can share the batch. On a CPU, ``auto`` takes one
        device, which uses all cores anyway.
      batch_size: number of scenes in a step; None for one scene on each device.
      equal: whether all devices need the same number of scenes.
    """
    import jax

    if isinstance(asked, int):
        return asked
    number = jax.local_device_count()
    if asked == "all":
        return number
    if jax.default_backend() == "cpu":
        return 1
    if batch_size is None:
        return number
    shared = range(1, min(number, batch_size) + 1)
    return max(n for n in shared if not equal or batch_size % n == 0)


def refuse_other_hosts(command: str) -> None:
    """Raise :class:`voxax.InputError` if JAX runs on several hosts, since `command` needs one."""
    import jax

    hosts = jax.process_count()
    if hosts > 1:
        raise InputError(
            f"the slice has {hosts} hosts with {jax.device_count()} devices, and `voxax {command}` "
            "trains on the devices of one: take a slice of one host, or train on all hosts with "
            "voxax.parallel.DataParallelTrainer in a script of your own"
        )


@functools.cache  # once in a process: the reports may come at any time, also at its end
def drop_late_reports() -> None:
    """Suppress messages that orbax and tensorstore print in addition to raising an error.

    They come from abandoned asyncio tasks, and from late callbacks that find a closed event loop.
    """
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    before = sys.unraisablehook

    def told(found: sys.UnraisableHookArgs) -> None:
        if str(found.exc_value) != "Event loop is closed":
            before(found)

    sys.unraisablehook = told


_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_heap() -> bool:
    """Make glibc keep freed memory, and return True if it does; False with other C libraries.

    XLA on a CPU allocates its buffers in every call. By default glibc maps and unmaps buffers above
    32 MB each time, and clearing the new pages takes time: a training step of the demo takes about
    1.2 times as long (2 cores of an AMD EPYC, shared).
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
