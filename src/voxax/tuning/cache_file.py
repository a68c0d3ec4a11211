"""The tuning cache's file: how it is read, merged, replaced and set aside.

Several processes may do so at once, and any of them may die at any moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import stat
import time
from pathlib import Path
from typing import Literal

from voxax._atomic_file import replacing
from voxax.tuning import cache_format as form
from voxax.tuning import lock
from voxax.tuning.cache_format import MAX_BYTES, MAX_ENTRIES, Store

_TEMPORARY_AGE = 3600.0  # seconds; its writer is dead

_log = logging.getLogger("voxax.tuning")

Stamp = tuple[int, int, int] | None
"""Tells one state of a file from another; None: there is no file."""


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a file holds.

    Attributes:
      store: its well-formed entries.
      stamp: of the file.
      problem: why nothing was read: ``corrupt`` (no JSON), ``foreign`` (JSON of another format
        or device, too big, or no file at all), ``unreadable``; None if it could be.
      reason: the problem in words, or why entries were left out; empty if all is well.
    """

    store: Store
    stamp: Stamp
    problem: Literal["corrupt", "foreign", "unreadable"] | None = None
    reason: str = ""


def stamp_of(path: Path) -> Stamp:
    """The state of the file at ``path``; also None where it cannot be asked."""
    try:
        return _stamp(path.stat())
    except OSError:
        return None


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_mtime_ns, status.st_size


def read(path: Path, device: str) -> Contents:
    """The entries in ``path``, a file for ``device``. Raises nothing."""
    try:
        raw, stamp = read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return Contents({}, None)
    except ValueError as error:
        return Contents({}, stamp_of(path), "foreign", str(error))
    except OSError as error:
        return Contents({}, stamp_of(path), "unreadable", error.strerror or str(error))
    try:
        values = form.parse(raw)
    except ValueError as error:
        return Contents({}, stamp, "corrupt", str(error))
    try:
        form.check_header(values)
        if values.get("device") != device:
            raise ValueError(f"of the device {str(values.get('device'))[:80]!a}")
        store, refused = form.entries_of(values.get("entries"))
    except ValueError as error:
        return Contents({}, stamp, "foreign", str(error))
    left_out = f"{len(refused)} entries left out, the first: {refused[0]}" if refused else ""
    return Contents(store, stamp, reason=left_out)


def read_bytes(path: Path) -> tuple[bytes, Stamp]:
    """A regular file of limited size.

    Raises:
      OSError: it cannot be read.
      ValueError: it is no regular file, or too big.
    """
    # Opening a pipe would otherwise wait for its writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ValueError("no regular file")
    with os.fdopen(descriptor, "rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES >> 20} MiB")
    return raw, _stamp(status)


def save(path: Path, device: str, added: Store) -> Contents:
    """Merge ``added`` into the file, at once for all who read it; creates its folder.

    What is there and is no cache for ``device`` is set aside first, beside the file.

    Raises:
      OSError: nothing was changed.
      TimeoutError: other processes held the lock all the time.
    """
    for last in (False, False, True):  # the folder may be removed at any moment
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with lock.locked(_lock_file(path), lock.PATIENCE):
                return _save(path, device, added)
        except FileNotFoundError:
            if last:
                raise
    raise AssertionError


def remove(path: Path) -> None:
    """Delete the file; its folder stays.

    Raises:
      OSError: it cannot be deleted.
    """
    if not path.parent.is_dir():
        return
    with lock.locked(_lock_file(path), lock.PATIENCE):
        path.unlink(missing_ok=True)


def _lock_file(path: Path) -> Path:
    return path.with_name(f".{path.stem}.lock")


def _save(path: Path, device: str, added: Store) -> Contents:
    _sweep(path)
    found = read(path, device)
    if found.problem == "unreadable":  # nobody knows what would be lost
        raise OSError(errno.EACCES, found.reason, str(path))
    if found.problem is not None:
        _set_aside(path, found.problem)
    store = dict(found.store)
    for (key, _), entry in added.items():
        form.add(store, key, entry)
    if store == found.store and found.problem is None and not found.reason and found.stamp:
        return found
    raw = _encoded(device, store)
    with replacing(path, private=True, durable=True) as file:
        file.write(raw)
        if found.problem is None and found.stamp is not None and stamp_of(path) is None:
            # Removed meanwhile, which is a reset: do not bring back what it held.
            raise FileNotFoundError(errno.ENOENT, "removed meanwhile", str(path))
    return Contents(store, stamp_of(path))


def _encoded(device: str, store: Store) -> bytes:
    """The file's text; drops the oldest entries from ``store`` until it is small enough."""
    while True:
        excess = len(store) - MAX_ENTRIES
        if excess <= 0:
            value = {**form.header(), "device": device, "entries": form.to_json(store)}
            raw = form.dumps(value).encode() + b"\n"
            if len(raw) <= MAX_BYTES:
                return raw
            excess = len(store) // 4 + 1
        for oldest in sorted(store, key=lambda k: store[k].time())[:excess]:
            del store[oldest]


def _set_aside(path: Path, problem: str) -> None:
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.{problem}-{number}")):
        number += 1
    os.rename(path, aside)
    _log.warning("the tuning cache %s was %s: kept as %s", path, problem, aside.name)


def _sweep(path: Path) -> None:
    for temporary in path.parent.glob(f".{path.name}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - temporary.stat().st_mtime > _TEMPORARY_AGE:
                temporary.unlink()
