"""Native kernels that passed the tuner's check on this machine, remembered on disk.

A check compiles two programs, which each new process would wait for again. An empty file in the
folder ``passed`` of the cache directory stands for one kernel; its name is a digest of the kernel,
the library's bytes, the device and the versions, so whatever changes is checked anew. Failures
are not kept. The folder is created with mode 0700, as that of the tuning caches is.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Hashable
from pathlib import Path

from voxax import _native
from voxax._version import __version__
from voxax.hardware import cache_dir
from voxax.tuning.entry import jaxlib_version


def folder() -> Path:
    """Return the folder of the files; it may not exist.

    Raises:
      RuntimeError: there is no home directory.
    """
    return cache_dir() / "passed"


def has_passed(kernel: Hashable, device: str) -> bool:
    """Return whether this process or an earlier one noted that ``kernel`` passed on ``device``."""
    try:
        return _path(kernel, device).is_file()
    except (OSError, RuntimeError):
        return False


def note_passed(kernel: Hashable, device: str) -> None:
    """Remember that ``kernel`` passed; where nothing can be written, do nothing.

    Args:
      kernel: values that print alike in every process.
      device: name of the kind of device.
    """
    with contextlib.suppress(OSError, RuntimeError):
        path = _path(kernel, device)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)


def forget_passed() -> None:
    """Delete what was noted; the next process checks again."""
    with contextlib.suppress(OSError, RuntimeError):
        for path in folder().iterdir():
            path.unlink()


def _path(kernel: Hashable, device: str) -> Path:
    known = (kernel, device, _native.fingerprint(), __version__, jaxlib_version())
    return folder() / hashlib.sha256(repr(known).encode()).hexdigest()[:32]
