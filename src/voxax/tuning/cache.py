"""The tuner's memory: what was measured on this device, by this process and earlier ones.

There is one JSON file for each kind of device, ``tuning/<device>.json`` in the cache directory;
``docs/cache.md`` shows one. A key has one entry for each jaxlib that measured it, and one predicted
entry, which holds for every jaxlib. The header's versions are those of the last writer, for people.
Nothing in the file is trusted: it is data only, of limited size, checked field by field, and it
names no paths. Several processes may read and write it at once, and any of them may die at any
moment: each measurement is merged into the file under a lock, and the file is replaced in one step.

No disk makes :class:`TuningCache` raise: one warning, and the process goes on with what it measures
itself. ``defaults/<device>.json`` are caches that come with voxax; see ``defaults/README.md``.
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
"""Entries by problem and by what they are filed under, see :attr:`Entry.filed_under`."""

Stamp = tuple[int, int, int] | None
"""Tells one state of a file from another; None: there is no file."""


def folder(name: str) -> Path:
    """A folder, which may not exist, in the cache directory; without a home it keeps nothing."""
    try:
        return cache_dir() / name
    except RuntimeError:
        return Path(os.devnull) / name


def cache_for(device: str) -> TuningCache:
    """The cache of a device, see :func:`device_name`; one instance in a process.

    Ask at each use: ``VOXAX_CACHE_DIR`` may change, and the child of a fork has its own.
    """
    # In the child of a fork, a thread that is not there may hold the lock of the parent's.
    key = os.getpid(), folder("tuning"), device
    return _caches.get(key) or _caches.setdefault(key, TuningCache(key[1], device))


def passed_file(kernel: Hashable, device: str) -> Path:
    """The empty file that exists once ``kernel`` has passed the tuner's check on this machine.

    Each check compiles two programs, which every new process would wait for again. The name is a
    digest of the kernel (values that print alike in every process), the native library's bytes, the
    device and the versions, so that whatever changes is checked anew.
    """
    known = (kernel, device, _native.fingerprint(), __version__, jaxlib_version())
    return folder("passed") / hashlib.sha256(repr(known).encode()).hexdigest()[:32]


def forget_passed() -> None:
    """Delete all :func:`passed_file`; the next process checks again."""
    with contextlib.suppress(OSError):
        for path in folder("passed").iterdir():
            path.unlink()


@functools.lru_cache(maxsize=64)  # asked for each choice
def device_name(info: HardwareInfo) -> str:
    """A file-safe name of a kind of device, such as ``cpu-amd-epyc-9r14-2-cores``.

    The name of a CPU holds the cores that the process may use, since they decide what is fastest.
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
    """Entries by problem for one device; safe to use from several threads.

    Args:
      directory: the folder of the files; created by the first save.
      device: the name of the file, without suffix.

    Raises:
      ValueError: ``device`` is none of :func:`device_name`.
    """

    def __init__(self, directory: Path, device: str) -> None:
        if not is_device(device):
            raise ValueError(f"{device!r} is not a device's name: give one of device_name()")
        self.device = device
        self.path = Path(directory) / f"{device}.json"
        self._lock = threading.RLock()  # of the fields below, and of saving
        self._file = Contents({}, None)
        self._unsaved: Store = {}
        self._patience = PATIENCE
        self._warned: set[str] = set()

    def get(self, key: str) -> Entry | None:
        """The entry of the problem ``key`` that holds under this jaxlib, or None.

        The first that exists: the user's own measurement, the one shipped for the device, the newer
        of the user's own and the shipped prediction.
        """
        stores, version = (self._entries(), shipped(self.device)), jaxlib_version()
        found = [store[key, version] for store in stores if (key, version) in store]
        if found:
            return found[0]
        predictions = [store[key, PREDICTED] for store in stores if (key, PREDICTED) in store]
        return max(predictions, key=Entry.time, default=None)

    def items(self) -> list[tuple[str, Entry]]:
        """All measured entries of the user's own under this jaxlib, sorted by key."""
        entries, version = self._entries(), jaxlib_version()
        return sorted((key, entry) for (key, filed), entry in entries.items() if filed == version)

    def put(self, key: str, entry: Entry) -> Entry:
        """Remember ``entry``, merged with what is there, which is returned, and save it."""
        if not is_key(key):
            raise ValueError(f"key {key!r} is not 1 to {MAX_KEY} ASCII characters")
        with self._lock:
            add_entry(self._unsaved, key, entry)
            self.flush()
            return self._entries().get((key, entry.filed_under), entry)

    def flush(self) -> bool:
        """Save what could not be saved before; return whether everything is on disk."""
        with self._lock:
            if not self._unsaved:
                return True
            try:
                unsaved = dict(self._unsaved)
                self._file = save_file(self.path, self.device, unsaved, self._patience)
            except OSError as error:
                busy = isinstance(error, TimeoutError)
                # A process that was stopped may hold the lock for hours: wait for it once.
                self._patience = 0.0 if busy else PATIENCE
                why = blocked(self.path.parent) or error
                self._warn("is locked, saving later" if busy else "cannot be saved", why)
                return False
            self._unsaved, self._patience = {}, PATIENCE
            return True

    def _entries(self) -> Store:
        """What the file holds now, and what could not be saved."""
        with self._lock:
            # A file that is gone was removed by hand: the documented way to start anew.
            if self._file.problem == "unreadable" or stamp_of(self.path) != self._file.stamp:
                self._file = read_file(self.path, self.device)
                if self._file.problem is not None:
                    self._warn(f"is {self._file.problem}, tuning starts anew", self._file.reason)
                elif self._file.reason:
                    self._warn("has entries that are none", self._file.reason)
            return merged(self._file.store, self._unsaved)

    def _warn(self, what: str, why: object) -> None:
        if what not in self._warned:  # once: the reason seldom goes away by itself
            self._warned.add(what)
            _log.warning("the tuning cache %s %s: %s", self.path, what, why)


@functools.lru_cache(maxsize=64)
def shipped(device: str) -> Store:
    """The entries shipped for a device, if any; measured ones are marked so. Do not change them."""
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
    """The content of a file.

    Attributes:
      store: its well-formed entries.
      stamp: the state of the file.
      problem: why nothing was read: ``unusable`` (no JSON, of another format or device, too big, no
        regular file) or ``unreadable`` (the system refused); None if all is well.
      reason: the problem in words, or why entries were left out; empty if all is well.
    """

    store: Store
    stamp: Stamp
    problem: Literal["unusable", "unreadable"] | None = None
    reason: str = ""


def stamp_of(path: Path) -> Stamp:
    """The state of the file at ``path``; also None where it cannot be asked."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_file(path: Path, device: str) -> Contents:
    """The entries in ``path``, a file for ``device``. Raises nothing."""
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
    """Merge ``added`` into the file, at once for all who read it; creates its folder.

    A file that is no cache for ``device`` is set aside first, beside the new one.

    Args:
      path, device, added: the file, its device, and the newer entries.
      patience: seconds to wait for the lock.

    Raises:
      OSError: nothing was changed; a TimeoutError where others held the lock all the time.
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
    if found.problem == "unreadable":  # it may hold entries that would be lost
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
            # Removed meanwhile, which is a reset: do not bring back what it held.
            raise FileNotFoundError(errno.ENOENT, "removed meanwhile", str(path))
    return Contents(store, stamp_of(path))


def _encode(device: str, store: Store) -> bytes:
    """The file's text; drops the oldest entries from ``store`` until it is small enough."""
    excess = len(store) - MAX_ENTRIES
    while True:
        for oldest in sorted(store, key=lambda k: store[k].time())[: max(excess, 0)]:
            del store[oldest]
        raw = document(device=device, entries=store_to_json(store)).encode()
        if len(raw) <= MAX_BYTES:
            return raw
        excess = len(store) // 4 + 1


def remove_file(path: Path) -> None:
    """Delete the file; its folder stays. Raises OSError where that is not possible."""
    if path.parent.is_dir():
        with locked(path.with_name(f".{path.stem}.lock"), PATIENCE):
            path.unlink(missing_ok=True)


def is_device(name: Any) -> bool:
    """Return whether ``name`` can be a device's: file-safe, and no path."""
    good = isinstance(name, str) and len(name) <= _MAX_DEVICE
    return good and bool(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name))


def is_key(key: Any) -> bool:
    """Return whether ``key`` is 1 to 512 printable ASCII characters."""
    return isinstance(key, str) and 0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()


def parse_document(raw: bytes) -> dict[str, Any]:
    """The JSON object of this format in bytes that anybody may have written; else ValueError."""
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
    """The well-formed entries in ``{key: [entry, ...]}``, and why each other was refused."""
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
    """Merge ``entry``, the newer, into ``store``."""
    place = key, entry.filed_under
    store[place] = store[place].merged(entry) if place in store else entry


def merged(store: Store, added: Store) -> Store:
    """The entries of both; ``added`` are the newer."""
    store = dict(store) if added else store
    for (key, _), entry in added.items():
        add_entry(store, key, entry)
    return store


def store_to_json(store: Store) -> dict[str, list[dict[str, Any]]]:
    """``{key: [entry, ...]}``, sorted."""
    by_key: dict[str, list[dict[str, Any]]] = {}
    for (key, _), entry in sorted(store.items()):
        by_key.setdefault(key, []).append(entry.to_json())
    return by_key


def document(**content: Any) -> str:
    """A JSON file for people, with format and versions: a value that fits stands on one line."""
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
