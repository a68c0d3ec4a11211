"""The tuner's cache on disk: measurements of algorithms, made by this and earlier processes.

There is one JSON file for each kind of device, ``tuning/<device>.json`` in the cache directory;
``docs/cache.md`` shows one. A problem is one product (forward, dgrad or wgrad) of a layer. The file
maps the key of each problem to a list of entries. There is one entry for each version of jaxlib
with which the problem was measured. There may be one more entry with predicted times, which is
valid for every version. The versions of voxax and jaxlib at the top of the file are those of the
last writer, for information only.

The file is not trusted: it contains only data and no paths, its size is limited, and every field is
checked. Several processes may read and write the file at the same time, and any of them may die at
any moment. Each measurement is therefore merged into the file under a lock, and the file is
replaced atomically.

:class:`TuningCache` does not raise disk errors: it logs one warning, and the process continues with
its own measurements. The files ``defaults/<device>.json`` have the same format and are shipped with
voxax.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Literal

from voxax import _native
from voxax._atomic_file import replacing
from voxax._bounded_file import read_bounded
from voxax._file_lock import PATIENCE, locked
from voxax._version import __version__
from voxax.hardware import HardwareInfo
from voxax.hardware.cache_folder import blocked, cache_dir
from voxax.tuning.entry import PREDICTED, Entry, jaxlib_version

FORMAT = 1
MAX_BYTES = 64 << 20
MAX_ENTRIES = 20_000
MAX_KEY = 512
_MAX_DEVICE = 100
_LINE = 180  # characters, enough for a candidate
_TEMPORARY_AGE = 3600.0  # seconds; the writer of such a file is dead

FOLDER = Path(__file__).parent / "defaults"  # of the shipped entries

_log = logging.getLogger("voxax.tuning")
_caches: dict[tuple[int, Path, str], TuningCache] = {}

Store = dict[tuple[str, str], Entry]
"""Entries by ``(key of the problem, Entry.filed_under)``."""

Stamp = tuple[int, int, int] | None
"""Inode, modification time and size of a file, to detect changes; None if there is no file."""


def folder(name: str) -> Path:
    """Return the path of the folder `name` in the cache directory; the folder may not exist.

    Without a home directory, the path is below ``os.devnull``, where nothing can be stored.
    """
    try:
        return cache_dir() / name
    except RuntimeError:
        return Path(os.devnull) / name


def cache_for(device: str) -> TuningCache:
    """Return this process's tuning cache of the device with the name `device`.

    The name is from :func:`device_name`. Call this at each use instead of keeping the result:
    ``VOXAX_CACHE_DIR`` may change, and a forked child process needs its own instance.
    """
    # In the child of a fork, the lock of the parent's instance may be held by a thread that exists
    # in the parent only.
    key = os.getpid(), folder("tuning"), device
    return _caches.get(key) or _caches.setdefault(key, TuningCache(key[1], device))


def passed_file(kernel: Hashable, device: str) -> Path:
    """Return the path of an empty file, which exists if a kernel has passed its check on a device.

    A check compares a kernel's results with a reference. If the file exists, later processes skip
    the check. The file's name is a digest of `kernel`, the native library, `device` and the
    versions of voxax and jaxlib, so a change of any of them leads to a new check.

    Args:
      kernel: what was checked, such as the kernel's name, revision and dtype. Its ``repr`` must be
        equal in all processes.
      device: name of the device from :func:`device_name`.
    """
    known = (kernel, device, _native.fingerprint(), __version__, jaxlib_version())
    return folder("passed") / hashlib.sha256(repr(known).encode()).hexdigest()[:32]


def forget_passed() -> None:
    """Delete all files of :func:`passed_file`, so that the next process checks kernels again."""
    with contextlib.suppress(OSError):
        for path in folder("passed").iterdir():
            path.unlink()


@functools.lru_cache(maxsize=64)  # called for each choice
def device_name(info: HardwareInfo) -> str:
    """Return the name of a device for file names, such as ``cpu-amd-epyc-9r14-2-cores``.

    ``info`` describes the device. The name of a CPU contains the number of cores that the process
    may use, because the fastest algorithm depends on it.
    """
    kind, platform = (
        re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
        for text in (info.model or info.device_kind, info.platform)
    )
    words = [platform or "device", "" if kind == platform else kind.removeprefix(f"{platform}-")]
    if info.platform == "cpu":
        words.append(f"{info.cpu_cores}-cores")
    name = "-".join(word for word in words if word)
    if is_device(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[:80].rstrip('-')}-{digest}"


class TuningCache:
    """Cache of the times of algorithms on one device, in a JSON file; safe to use from threads.

    A key identifies a problem, that is, one product (forward, dgrad or wgrad) of a layer, see
    :func:`voxax.tuning.entry.key_of`.

    Args:
      directory: folder of the file; the first save creates it.
      device: name of the device from :func:`device_name`. The file is ``<device>.json``.

    Raises:
      ValueError: ``device`` is not a valid name.
    """

    def __init__(self, directory: Path, device: str) -> None:
        if not is_device(device):
            raise ValueError(f"{device!r} is not a device's name: give one of device_name()")
        self.device = device
        self.path = Path(directory) / f"{device}.json"
        self._lock = threading.RLock()  # for the fields below, and for saving
        self._file = Contents({}, None)
        self._unsaved: Store = {}
        self._patience = PATIENCE
        self._warned: set[str] = set()

    def get(self, key: str) -> Entry | None:
        """Return the entry of the problem `key` that is valid for this version of jaxlib, or None.

        The user's measurement is preferred, then the measurement shipped with voxax. If there is
        neither, the result is the newer one of the two entries with predicted times: the user's and
        the shipped one.
        """
        stores, version = (self._entries(), shipped(self.device)), jaxlib_version()
        found = [store[key, version] for store in stores if (key, version) in store]
        if found:
            return found[0]
        predictions = [store[key, PREDICTED] for store in stores if (key, PREDICTED) in store]
        return max(predictions, key=Entry.time, default=None)

    def items(self) -> list[tuple[str, Entry]]:
        """Return ``(key, entry)`` of the user's measurements with the installed jaxlib, by key."""
        entries, version = self._entries(), jaxlib_version()
        return sorted((key, entry) for (key, filed), entry in entries.items() if filed == version)

    def put(self, key: str, entry: Entry) -> Entry:
        """Merge `entry` of the problem `key` into the cache, save it, and return the merged entry.

        Raises:
          ValueError: ``key`` is not 1 to 512 printable ASCII characters.
        """
        if not is_key(key):
            raise ValueError(f"key {key!r} is not 1 to {MAX_KEY} ASCII characters")
        with self._lock:
            add_entry(self._unsaved, key, entry)
            self.flush()
            return self._entries().get((key, entry.filed_under), entry)

    def flush(self) -> bool:
        """Save all unsaved entries to the file, and return whether that succeeded."""
        with self._lock:
            if not self._unsaved:
                return True
            try:
                unsaved = dict(self._unsaved)
                self._file = save_file(self.path, self.device, unsaved, self._patience)
            except OSError as error:
                busy = isinstance(error, TimeoutError)
                # A suspended process may hold the lock for hours, so only the first save waits.
                self._patience = 0.0 if busy else PATIENCE
                why = blocked(self.path.parent) or error
                self._warn("is locked, saving later" if busy else "cannot be saved", why)
                return False
            self._unsaved, self._patience = {}, PATIENCE
            return True

    def _entries(self) -> Store:
        """Return the entries of the cache file, merged with this process's unsaved entries.

        The file is read again if it has changed since the last read.
        """
        with self._lock:
            # A missing file was removed by hand, which is the documented way to start anew.
            if self._file.problem == "unreadable" or stamp_of(self.path) != self._file.stamp:
                self._file = read_file(self.path, self.device)
                if self._file.problem is not None:
                    self._warn(f"is {self._file.problem}, tuning starts anew", self._file.reason)
                elif self._file.reason:
                    self._warn("has entries that are none", self._file.reason)
            return merged(self._file.store, self._unsaved)

    def _warn(self, what: str, why: object) -> None:
        if what not in self._warned:  # once, because the reason seldom disappears by itself
            self._warned.add(what)
            _log.warning("the tuning cache %s %s: %s", self.path, what, why)


@functools.lru_cache(maxsize=64)
def shipped(device: str) -> Store:
    """Return the entries that voxax ships for a device, or an empty dict.

    The result is cached, so do not change it. The ``source`` of measured entries is ``"shipped"``.
    """
    if not is_device(device):
        return {}
    found = read_file(FOLDER / f"{device}.json", device)
    if found.reason:
        _log.warning("shipped defaults for %s: %s", device, found.reason)
    return {
        key: entry if entry.predicted else dataclasses.replace(entry, source="shipped")
        for key, entry in found.store.items()
    }


@dataclasses.dataclass(frozen=True)
class Contents:
    """Entries of a cache file, or the reason why it could not be read.

    Attributes:
      store: the well-formed entries of the file.
      stamp: inode, modification time and size of the file when it was read; None without a file.
      problem: why nothing was read: ``unusable`` (no JSON, another format or device, too large, not
        a regular file) or ``unreadable`` (an error of the operating system); None if the file was
        read or does not exist.
      reason: text about the problem, or about malformed entries; empty if there are neither.
    """

    store: Store
    stamp: Stamp
    problem: Literal["unusable", "unreadable"] | None = None
    reason: str = ""


def stamp_of(path: Path) -> Stamp:
    """Return inode, modification time and size of a file; None if it cannot be accessed."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_file(path: Path, device: str) -> Contents:
    """Return the content of the cache file at `path`; raise no error.

    A file that cannot be read, or is not for the device `device`, sets the result's ``problem``. A
    file that does not exist counts as empty.
    """
    stamp = stamp_of(path)
    try:
        values = parse_document(read_bounded(path, MAX_BYTES)[0])
        if values.get("device") != device:
            raise ValueError(f"of the device {str(values.get('device'))[:80]!a}")
        store, refused = entries_of(values.get("entries"))
    except (FileNotFoundError, NotADirectoryError):
        return Contents({}, None)
    except ValueError as error:
        return Contents({}, stamp, "unusable", str(error))
    except OSError as error:
        return Contents({}, stamp, "unreadable", error.strerror or str(error))
    left_out = f"{len(refused)} entries left out, the first: {refused[0]}" if refused else ""
    return Contents(store, stamp, reason=left_out)


def save_file(path: Path, device: str, added: Store, patience: float = PATIENCE) -> Contents:
    """Merge entries into a cache file atomically, and return the file's new content.

    The folder is created if needed. An existing file that is not a valid cache of `device` is
    renamed, not deleted.

    Args:
      path: the file.
      device: name of the file's device.
      added: the entries to merge into the file. They count as newer than the entries that the file
        contains, see :meth:`voxax.tuning.entry.Entry.merged`.
      patience: seconds to wait for the file's lock.

    Raises:
      OSError: the entries could not be saved. A valid file is unchanged.
      TimeoutError: other processes held the lock for the whole ``patience``.
    """
    for last in (False, False, True):  # the folder may be removed at any moment
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with locked(path.with_name(f".{path.stem}.lock"), patience):
                return _save_locked(path, device, added)
        except FileNotFoundError:
            if last:
                raise
    raise AssertionError


def _save_locked(path: Path, device: str, added: Store) -> Contents:
    for temporary in path.parent.glob(f".{path.name}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - temporary.stat().st_mtime > _TEMPORARY_AGE:
                temporary.unlink()
    found = read_file(path, device)
    if found.problem == "unreadable":  # it may contain entries that would be lost
        raise OSError(errno.EACCES, found.reason, str(path))
    if found.problem is not None:
        number = 1
        while os.path.lexists(aside := path.with_name(f"{path.name}.{found.problem}-{number}")):
            number += 1
        os.rename(path, aside)
        _log.warning("the tuning cache %s was %s: kept as %s", path, found.problem, aside.name)
    store = merged(found.store, added)
    if store == found.store and found.stamp and not found.problem and not found.reason:
        return found
    raw = _encode(device, store)
    with replacing(path, private=True) as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
        if found.problem is None and found.stamp is not None and stamp_of(path) is None:
            # The file was removed meanwhile, which is a reset: do not restore its entries.
            raise FileNotFoundError(errno.ENOENT, "removed meanwhile", str(path))
    return Contents(store, stamp_of(path))


def _encode(device: str, store: Store) -> bytes:
    """Return `store` as the JSON bytes of the cache file of `device`.

    If there are more than ``MAX_ENTRIES`` entries or ``MAX_BYTES`` bytes, the oldest entries are
    deleted from `store` first.
    """
    excess = len(store) - MAX_ENTRIES
    while True:
        for oldest in sorted(store, key=lambda k: store[k].time())[: max(excess, 0)]:
            del store[oldest]
        raw = document(device=device, entries=store_to_json(store)).encode()
        if len(raw) <= MAX_BYTES:
            return raw
        excess = len(store) // 4 + 1


def remove_file(path: Path) -> None:
    """Delete a cache file while holding its lock; raise OSError if that is not possible."""
    if path.parent.is_dir():
        with locked(path.with_name(f".{path.stem}.lock"), PATIENCE):
            path.unlink(missing_ok=True)


def is_device(name: Any) -> bool:
    """Return whether `name` can be a device's name: words of a-z and 0-9, joined by hyphens."""
    good = isinstance(name, str) and len(name) <= _MAX_DEVICE
    return good and bool(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name))


def is_key(key: Any) -> bool:
    """Return whether `key` can be a problem's key: 1 to 512 printable ASCII characters."""
    return isinstance(key, str) and 0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()


def parse_document(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in the untrusted bytes of a cache file.

    Raises:
      ValueError: the bytes are no JSON object, or its ``format`` is not this module's ``FORMAT``.
    """
    try:
        values = json.loads(raw.decode("utf-8"))
    except (RecursionError, MemoryError):
        raise ValueError("nested too deeply, or too large for the memory") from None
    if not isinstance(values, dict):
        raise ValueError("not an object")
    if type(values.get("format")) is not int or values["format"] != FORMAT:
        raise ValueError(f"of format {str(values.get('format'))[:20]!a}, not {FORMAT}")
    return values


def entries_of(raw: Any) -> tuple[Store, list[str]]:
    """Return the well-formed entries of `raw`, and a message for each entry that is left out.

    `raw` is decoded JSON of the form ``{key: [entry, ...]}``.

    Raises:
      ValueError: ``raw`` is not a dict.
    """
    if not isinstance(raw, dict):
        raise ValueError("its entries are not an object")
    store: Store = {}
    refused = []
    for key, versions in raw.items():
        if not is_key(key) or not isinstance(versions, list):
            refused.append(f"{key[:80]!a}: not a key with a list of entries")
            continue
        for version in versions:
            try:
                if len(store) >= MAX_ENTRIES:
                    raise ValueError(f"more than {MAX_ENTRIES} entries")
                add_entry(store, key, Entry.from_json(version))
            except ValueError as error:
                refused.append(f"{key[:80]!a}: {error}")
    return store, refused


def add_entry(store: Store, key: str, entry: Entry) -> None:
    """Add `entry` of the problem `key` to `store`, in place.

    If `store` has an entry of this problem and jaxlib version, the two are merged by
    :meth:`voxax.tuning.entry.Entry.merged`, where `entry` counts as the newer one.
    """
    place = key, entry.filed_under
    store[place] = store[place].merged(entry) if place in store else entry


def merged(store: Store, added: Store) -> Store:
    """Return the entries of both stores, without changing either store.

    If both have an entry of one problem and jaxlib version, the two are merged by
    :func:`add_entry`, where the entry in `added` counts as the newer one.
    """
    store = dict(store) if added else store
    for (key, _), entry in added.items():
        add_entry(store, key, entry)
    return store


def store_to_json(store: Store) -> dict[str, list[dict[str, Any]]]:
    """Return the entries of a store as JSON values ``{key: [entry, ...]}``, sorted by key."""
    by_key: dict[str, list[dict[str, Any]]] = {}
    for (key, _), entry in sorted(store.items()):
        by_key.setdefault(key, []).append(entry.to_json())
    return by_key


def document(**content: Any) -> str:
    """Return indented JSON: a header (format and versions), then the items of `content`.

    A list or object that fits into one line is written in one line.
    """
    encode = json.JSONEncoder(allow_nan=False).encode

    def text(value: Any, indent: int) -> str:
        line = encode(value)
        if len(line) + indent <= _LINE or not value or not isinstance(value, dict | list):
            return line
        inner = "\n" + " " * (indent + 1)
        if isinstance(value, list):
            (left, right), lines = "[]", [text(row, indent + 1) for row in value]
        else:
            lines = [f"{encode(name)}: {text(row, indent + 1)}" for name, row in value.items()]
            left, right = "{}"
        return f"{left}{inner}" + f",{inner}".join(lines) + f"{inner[:-1]}{right}"

    header = {"format": FORMAT, "voxax": __version__, "jaxlib": jaxlib_version()}
    return text({**header, **content}, 0) + "\n"
