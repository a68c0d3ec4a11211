"""A lock between processes: a lock file that only one process can own at a time."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator
from pathlib import Path

import filelock

PATIENCE = 10.0  # seconds that a writer of a small file waits
_STALE = 60.0  # seconds; no process holds a lock that long
# Errors of file systems that have no locks.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


@contextlib.contextmanager
def locked(path: Path, patience: float) -> Iterator[None]:
    """Return a context in which this process owns the lock file ``path``.

    The lock is also released when the process ends, however it ends. If the file system has no
    locks, the lock is a second file ``<path>-held``, which exists while the lock is owned; a second
    file older than a minute was left by a dead process, and is deleted.

    Args:
      path: the lock file in an existing folder; it is created if necessary, and never deleted.
      patience: the longest time to wait for the lock, in seconds.

    Raises:
      TimeoutError: other processes owned the lock during the whole time.
      OSError: the file cannot be created.
    """
    lock: filelock.BaseFileLock = filelock.FileLock(path, patience, 0o600, poll_interval=0.01)
    try:
        try:
            lock.acquire()
        except (OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
                raise
            held = path.with_name(f"{path.name}-held")
            with contextlib.suppress(OSError):
                if time.time() - held.stat().st_mtime > _STALE:
                    held.unlink()
            lock = filelock.SoftFileLock(held, patience, 0o600, poll_interval=0.01)
            lock.acquire()
    except filelock.Timeout:
        reason = f"locked by another process for {patience:g} s"
        raise TimeoutError(errno.ETIMEDOUT, reason, str(path)) from None
    try:
        yield
    finally:
        lock.release()
