"""Lock on the folder of a training run, so that two processes do not write into one run.

Every command imports this file, so it stands apart from ``run_folder.py``, which imports JAX.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from voxax.errors import InputError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

_held: dict[Path, int] = {}


def lock_folder(folder: Path) -> None:
    """Lock an existing folder for this process, until :func:`locks_released` or the process ends.

    The lock leaves no file. Nothing is locked on file systems without locks.

    Raises:
      InputError: another process has locked the folder.
    """
    folder = folder.resolve()
    if fcntl is None or folder in _held:
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(
            f"another process trains in {folder}: wait until it ends, or give another folder by "
            "--out"
        ) from None
    except OSError:  # this file system has no locks
        os.close(handle)
        return
    _held[folder] = handle


@contextlib.contextmanager
def locks_released() -> Iterator[None]:
    """Return a context at whose end the locks of :func:`lock_folder` are released."""
    try:
        yield
    finally:
        while _held:
            os.close(_held.popitem()[1])
