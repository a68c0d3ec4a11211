"""One process at a time, by a lock file.

The system's own locks are used where it has them: they end with the process, however it ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PATIENCE = 10.0  # seconds that a save waits
_STALE = 60.0  # seconds; nobody holds the lock that long
_POLL = (0.002, 0.02)  # seconds

# Locks of the system are for processes; these are for threads. By process: a child of a fork
# must not wait for a thread that only its parent has.
_gates: dict[int, threading.Lock] = {}


@contextlib.contextmanager
def locked(path: Path, patience: float) -> Iterator[None]:
    """Hold the lock ``path``, a file in an existing folder; it is created and stays.

    Args:
      path: the lock file.
      patience: seconds to wait at most.

    Raises:
      TimeoutError: others held it all the time.
      OSError: the file cannot be created.
    """
    deadline = time.monotonic() + patience
    gate = _gates.setdefault(os.getpid(), threading.Lock())
    if not gate.acquire(timeout=patience):
        raise _too_late(path, patience)
    try:
        release = _acquire(path, deadline)
        if release is None:
            raise _too_late(path, patience)
        try:
            yield
        finally:
            release()
    finally:
        gate.release()


def _too_late(path: Path, patience: float) -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, f"locked by another process for {patience:g} s", str(path))


def _acquire(path: Path, deadline: float) -> Callable[[], None] | None:
    while True:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            held = _try_lock(descriptor)
        except OSError:  # a file system without locks
            os.close(descriptor)
            return _acquire_by_existence(path.with_name(f"{path.name}-held"), deadline)
        # Closing gives the lock back. A file that was removed meanwhile locks nothing.
        if held and _is_same(descriptor, path):
            return lambda: os.close(descriptor)
        os.close(descriptor)
        if time.monotonic() > deadline:
            return None
        time.sleep(random.uniform(*_POLL))


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _acquire_by_existence(path: Path, deadline: float) -> Callable[[], None] | None:
    """The lock is held while the file exists; one that is old was left by a dead process."""
    while True:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE:
                    path.unlink()
                    continue
        else:
            return lambda: path.unlink(missing_ok=True)
        if time.monotonic() > deadline:
            return None
        time.sleep(random.uniform(*_POLL))


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                return False
            raise
        return True

else:
    try:
        import fcntl
    except ImportError:  # a system of neither kind
        fcntl = None

    def _try_lock(descriptor: int) -> bool:
        if fcntl is None:
            raise OSError(errno.ENOSYS, "no fcntl")
        try:
            # Not flock, which a child of a fork would go on holding.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True
