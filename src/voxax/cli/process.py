"""Settings of the whole process, which a library must not touch: devices, memory, programs."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys

from voxax import _compat
from voxax.errors import InputError


def use_devices(number: int, asked: str) -> None:
    """Make at least ``number`` devices available; on a CPU, host devices share its cores.

    Call this before JAX's backend starts: it counts host devices once, at its start. Errors name
    the option or key that `asked` for them.
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


# More than a machine has are allowed: threads share its cores.
_THREADS = 4


def be_deterministic() -> None:
    """Use the same number of XLA threads on every CPU, and measure no algorithm.

    XLA divides a sum on a CPU by the number of its threads, so that the rounding depends on it.
    """
    if _compat.is_begun():
        raise InputError(
            "--deterministic: JAX has begun in this process with another number of threads; run "
            "the command in a process of its own"
        )
    os.environ["PJRT_NPROC"] = str(_THREADS)
    os.environ["VOXAX_AUTOTUNE"] = "off"


def devices_for(asked: int | str, batch_size: int | None, equal: bool) -> int:
    """Return the number of devices that a step is distributed over.

    Args:
      asked: a number; ``all`` of this host; or ``auto``: all accelerators that the batch can be
        shared by, and one device on a CPU, whose cores it has anyway.
      batch_size: scenes of a step; None for one on each device.
      equal: whether all need as many scenes.
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
    """Raise :class:`voxax.InputError` where JAX runs on several hosts.

    The command reads scenes and writes checkpoints on one host alone.
    """
    import jax

    hosts = jax.process_count()
    if hosts > 1:
        raise InputError(
            f"the slice has {hosts} hosts with {jax.device_count()} devices, and `voxax {command}` "
            "trains on the devices of one: take a slice of one host, or train on all hosts with "
            "voxax.parallel.DataParallelTrainer in a script of your own"
        )


@functools.cache  # once in a process: they come when they come, also at its end
def drop_late_reports() -> None:
    """Drop what orbax and tensorstore print after a failure, beside the error that they raise.

    Tasks that nobody waits for any more log their own errors, and callbacks find no event loop.
    """
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    before = sys.unraisablehook

    def told(found: sys.UnraisableHookArgs) -> None:
        if str(found.exc_value) != "Event loop is closed":
            before(found)

    sys.unraisablehook = told


_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_heap() -> bool:
    """Tell glibc to keep freed memory; return False where the C library is another.

    XLA on a CPU allocates its buffers anew in every call. Above 32 MB glibc maps and unmaps them
    each time, and clearing the fresh pages costs more than the arithmetic: a training step of the
    demo takes about 1.2 times as long (2 cores of an AMD EPYC, shared).
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
