"""The tuner's memory: what was measured on this device, by this process and earlier ones.

There is one JSON file for each kind of device, ``tuning/<device>.json`` in the cache directory::

    {
     "format": 1, "voxax": "0.1.0", "jaxlib": "0.10.2", "device": "cpu-...-2-cores",
     "entries": {key: [entry, ...]}
    }

A key has one entry for each jaxlib that measured it, and one predicted entry, which holds for every
jaxlib: its candidates name the revisions of their kernels. The header's versions are those of the
last writer, for people. Anybody who can write to the folder can write the file, so nothing in it is
trusted: it is data only, of limited size, checked field by field, and it names no paths. Several
processes may read and write it at once, and any of them may die at any moment: a save merges what
is new into the file under a lock, and replaces it in one step.

No disk makes :class:`TuningCache` raise. Where the folder cannot be read or written, one warning
says so (logger ``voxax.tuning``) and the process goes on with what it measures itself.
``defaults/<device>.json`` are copies of caches that come with voxax; see ``defaults/README.md``.
"""

from __future__ import annotations

import atexit
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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import filelock

from voxax._atomic_file import replacing
from voxax._bounded_file import read_bounded
from voxax._version import __version__
from voxax.hardware import HardwareInfo
from voxax.hardware.cache_folder import blocked, cache_dir
from voxax.tuning.entry import PREDICTED, Entry, jaxlib_version

FORMAT = 1
MAX_BYTES = 64 << 20
MAX_ENTRIES = 20_000
MAX_KEY = 512
_MAX_DEVICE = 100
_DEVICE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_LINE = 180  # characters, enough for a candidate
LOOK_AFTER = 0.2  # seconds between looks at the file: others may have written or removed it
SAVE_AFTER = 0.25  # seconds that an entry waits for others to be saved with
RETRY_AFTER = 5.0  # seconds, where another process held the lock
PATIENCE = 10.0  # seconds that a save waits for the lock
_EXIT_PATIENCE = 15.0  # seconds
_STALE = 60.0  # seconds; no process holds the lock that long
_TEMPORARY_AGE = 3600.0  # seconds; the writer of such a file is dead

FOLDER = Path(__file__).parent / "defaults"  # of the shipped entries

_log = logging.getLogger("voxax.tuning")
_caches: dict[tuple[int, Path, str], TuningCache] = {}

Store = dict[tuple[str, str], Entry]
"""Entries by problem and by what they are filed under, see :attr:`Entry.filed_under`."""

Stamp = tuple[int, int, int] | None
"""Tells one state of a file from another; None: there is no file."""


def cache_for(device: str) -> TuningCache:
    """The cache of ``device`` in the present cache directory; one instance in a process.

    Ask at each use: ``VOXAX_CACHE_DIR`` may change, and the child of a fork has its own.

    Args:
      device: see :func:`device_name`.

    Raises:
      ValueError: ``device`` is not a device's name.
    """
    try:
        directory = cache_dir() / "tuning"
    except RuntimeError:  # no home directory: a place where nothing can be kept
        directory = Path(os.devnull) / "tuning"
    # A child of a fork has not got the thread that saves, and must not save twice.
    key = os.getpid(), directory, device
    return _caches.get(key) or _caches.setdefault(key, TuningCache(directory, device))


def device_name(info: HardwareInfo) -> str:
    """A file-safe name of a kind of device, such as ``cpu-amd-epyc-9r14-2-cores``.

    The name of a CPU holds the cores that the process may use, since they decide what is fastest.
    """
    kind = _slug(info.model or info.device_kind)
    platform = _slug(info.platform) or "device"
    words = [platform, "" if kind == platform else kind.removeprefix(f"{platform}-")]
    if info.platform == "cpu":
        words.append(f"{info.cpu_cores}-cores")
    name = "-".join(word for word in words if word)
    if is_device(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[:80].rstrip('-')}-{digest}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


class TuningCache:
    """Entries by problem for one device; safe to use from several threads.

    Args:
      directory: the folder of the files; created by the first save.
      device: see :func:`device_name`; the name of the file, :attr:`path`, without suffix.

    Raises:
      ValueError: ``device`` is not a device's name.
    """

    def __init__(self, directory: Path, device: str) -> None:
        if not is_device(device):
            raise ValueError(f"{device!r} is not a device's name: give one of device_name()")
        self.device = device
        self.path = Path(directory) / f"{device}.json"
        self._lock = threading.Lock()  # of the fields below
        self._saved: Store = {}  # what the file holds
        self._added: Store = {}  # what it does not hold yet
        self._stamp: Stamp = None
        self._looked = float("-inf")
        self._thread: threading.Thread | None = None
        self._warned: set[str] = set()
        self._writing = threading.Lock()
        self._process = os.getpid()
        self._registered = False

    def get(self, key: str) -> Entry | None:
        """The entry of the problem ``key`` that holds under this jaxlib, or None.

        Measured times come before predicted ones, the user's own before those shipped for the
        device; of two predictions the newer one.
        """
        others = shipped(self.device)
        measured = key, jaxlib_version()
        with self._lock:
            self._look()
            own = self._own(measured)
            predictions = self._own((key, PREDICTED)), others.get((key, PREDICTED))
        found = own or others.get(measured)
        if found is not None:
            return found
        return max(filter(None, predictions), key=Entry.time, default=None)

    def _own(self, place: tuple[str, str]) -> Entry | None:
        """What the file and this process have there; the caller holds the lock."""
        saved, added = self._saved.get(place), self._added.get(place)
        return saved.merged(added) if saved is not None and added is not None else added or saved

    def put(self, key: str, entry: Entry) -> None:
        """Remember ``entry``, merged with what is there; saved a moment later.

        Raises:
          ValueError: ``key`` is not 1 to 512 printable ASCII characters.
        """
        if not is_key(key):
            raise ValueError(f"key {key!r} is not 1 to {MAX_KEY} ASCII characters")
        with self._lock:
            add_entry(self._added, key, entry)
            if not self._registered:
                self._registered = True
                atexit.register(self._flush_at_exit)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._save_later, name="voxax-tuning-cache", daemon=True
                )
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter is about to end: flush() saves
                    self._thread = None

    def items(self) -> list[tuple[str, Entry]]:
        """All measured entries of the user's own under this jaxlib, sorted by key."""
        with self._lock:
            self._look()
            store = dict(self._saved)
            for (key, _), entry in self._added.items():
                add_entry(store, key, entry)
        return sorted(
            (key, e) for (key, version), e in store.items() if version == jaxlib_version()
        )

    def flush(self) -> bool:
        """Save now; return whether everything that was put is on disk."""
        if os.getpid() != self._process:  # what a fork inherited, its parent saves
            return False
        return self._save() is None

    def _flush_at_exit(self) -> None:
        with contextlib.suppress(KeyboardInterrupt):  # Python would print a traceback
            self.flush()

    def clear(self) -> None:
        """Forget everything, in memory and on disk; shipped entries stay."""
        with self._writing:
            with self._lock:
                self._saved, self._added, self._stamp = {}, {}, None
            try:
                remove_file(self.path)
            except OSError as error:
                self._warn("cannot be cleared", error)

    def _look(self) -> None:
        """Take over what the file holds if it changed; at most a few times a second."""
        now = time.monotonic()
        if now - self._looked < LOOK_AFTER:
            return
        self._looked = now
        if stamp_of(self.path) == self._stamp:
            return
        found = read_file(self.path, self.device)
        # A file that is gone was removed by hand: the documented way to start anew.
        self._saved, self._stamp = found.store, found.stamp
        if found.problem == "unreadable":
            self._stamp = None  # look again: this may pass
        if found.problem is not None:
            self._warn(f"is {found.problem}, tuning starts anew", found.reason)
        elif found.reason:
            self._warn("has entries that are none", found.reason)

    def _save_later(self) -> None:
        wait = SAVE_AFTER
        while True:
            time.sleep(wait)
            error = self._save()
            busy = isinstance(error, TimeoutError)
            with self._lock:
                # A lock will be free again; whether another obstacle is gone the next put tries.
                if not self._added or (error is not None and not busy):
                    self._thread = None
                    return
            wait = RETRY_AFTER if busy else SAVE_AFTER

    def _save(self) -> OSError | None:
        """Bring the file up to date; the error, where that was not possible."""
        if not self._writing.acquire(timeout=_EXIT_PATIENCE):
            return TimeoutError("another thread is saving")
        try:
            with self._lock:
                added = dict(self._added)
            if not added:
                return None
            found = save_file(self.path, self.device, added)
            with self._lock:
                for version, entry in added.items():
                    if self._added[version] is entry:
                        del self._added[version]
                self._saved, self._stamp = found.store, found.stamp
            return None
        except OSError as error:
            busy = isinstance(error, TimeoutError)
            why = blocked(self.path.parent) or error
            self._warn("is locked, saving later" if busy else "cannot be saved", why)
            return error
        finally:
            self._writing.release()

    def _warn(self, what: str, why: object) -> None:
        if what not in self._warned:  # once: the reason seldom goes away by itself
            self._warned.add(what)
            _log.warning("the tuning cache %s %s: %s", self.path, what, why)


@functools.lru_cache(maxsize=64)
def shipped(device: str) -> Store:
    """The entries shipped for ``device``, marked so; none for an unknown one.

    Predicted entries, made without such a device, stay marked as that. The file is read once in a
    process: do not change the result.
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
    """The content of a file.

    Attributes:
      store: its well-formed entries.
      stamp: the state of the file.
      problem: the reason why nothing was read: ``corrupt`` (no JSON), ``foreign`` (JSON of another
        format or device, too big, or no file at all), ``unreadable``; None if it could be.
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


def read_file(path: Path, device: str) -> Contents:
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
        values = parse_json(raw)
    except ValueError as error:
        return Contents({}, stamp, "corrupt", str(error))
    try:
        check_header(values)
        if values.get("device") != device:
            raise ValueError(f"of the device {str(values.get('device'))[:80]!a}")
        store, refused = entries_of(values.get("entries"))
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
    raw, status = read_bounded(path, MAX_BYTES)
    return raw, _stamp(status)


def save_file(path: Path, device: str, added: Store) -> Contents:
    """Merge ``added`` into the file, at once for all who read it; creates its folder.

    A file that is no cache for ``device`` is set aside first, beside the new one.

    Raises:
      OSError: nothing was changed.
      TimeoutError: other processes held the lock all the time.
    """
    for last in (False, False, True):  # the folder may be removed at any moment
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with locked(path.with_name(f".{path.stem}.lock"), PATIENCE):
                return _save_locked(path, device, added)
        except FileNotFoundError:
            if last:
                raise
    raise AssertionError


def remove_file(path: Path) -> None:
    """Delete the file; its folder stays.

    Raises:
      OSError: it cannot be deleted.
    """
    if not path.parent.is_dir():
        return
    with locked(path.with_name(f".{path.stem}.lock"), PATIENCE):
        path.unlink(missing_ok=True)


def _save_locked(path: Path, device: str, added: Store) -> Contents:
    _sweep(path)
    found = read_file(path, device)
    if found.problem == "unreadable":  # it may hold entries that would be lost
        raise OSError(errno.EACCES, found.reason, str(path))
    if found.problem is not None:
        _set_aside(path, found.problem)
    store = dict(found.store)
    for (key, _), entry in added.items():
        add_entry(store, key, entry)
    if store == found.store and found.problem is None and not found.reason and found.stamp:
        return found
    raw = _encoded(device, store)
    with replacing(path, private=True) as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
        if found.problem is None and found.stamp is not None and stamp_of(path) is None:
            # Removed meanwhile, which is a reset: do not bring back what it held.
            raise FileNotFoundError(errno.ENOENT, "removed meanwhile", str(path))
    return Contents(store, stamp_of(path))


def _encoded(device: str, store: Store) -> bytes:
    """The file's text; drops the oldest entries from ``store`` until it is small enough."""
    while True:
        excess = len(store) - MAX_ENTRIES
        if excess <= 0:
            value = {**file_header(), "device": device, "entries": store_to_json(store)}
            raw = dumps(value).encode() + b"\n"
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


# Errors of file systems that have no locks.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


@contextlib.contextmanager
def locked(path: Path, patience: float) -> Iterator[None]:
    """Hold the lock ``path``, a file in an existing folder; it is created and stays.

    The lock ends with the process, however it ends. On a file system without locks, another file
    exists while the lock is held; one that is old was left by a dead process.

    Args:
      path: the lock file.
      patience: seconds to wait at most.

    Raises:
      TimeoutError: others held it all the time.
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


def is_device(name: Any) -> bool:
    """Return whether ``name`` can be a device's: file-safe, and no path."""
    return isinstance(name, str) and len(name) <= _MAX_DEVICE and bool(_DEVICE.fullmatch(name))


def is_key(key: Any) -> bool:
    """Return whether ``key`` is 1 to 512 printable ASCII characters."""
    return isinstance(key, str) and 0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()


def parse_json(raw: bytes) -> Any:
    """JSON of untrusted origin; ValueError for anything that is wrong with it."""
    try:
        return json.loads(raw.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except MemoryError:
        raise ValueError("does not fit into memory") from None


def check_header(values: Any) -> None:
    """Raise ValueError unless ``values`` is an object of this format."""
    if not isinstance(values, dict):
        raise ValueError("not an object")
    if type(values.get("format")) is not int or values["format"] != FORMAT:
        raise ValueError(f"of format {str(values.get('format'))[:20]!a}, not {FORMAT}")


def entries_of(raw: Any) -> tuple[Store, list[str]]:
    """The well-formed entries in ``{key: [entry, ...]}``, and why each other was refused.

    Raises:
      ValueError: ``raw`` is not an object.
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
                entry = Entry.from_json(version)
            except ValueError as error:
                refused.append(f"{key[:80]!a}: {error}")
                continue
            if len(store) >= MAX_ENTRIES:
                refused.append(f"{key[:80]!a}: more than {MAX_ENTRIES} entries")
                continue
            add_entry(store, key, entry)
    return store, refused


def add_entry(store: Store, key: str, entry: Entry) -> None:
    """Merge ``entry``, the newer, into ``store``."""
    place = key, entry.filed_under
    known = store.get(place)
    store[place] = entry if known is None else known.merged(entry)


def store_to_json(store: Mapping[tuple[str, str], Entry]) -> dict[str, list[dict[str, Any]]]:
    """``{key: [entry, ...]}``, sorted."""
    by_key: dict[str, list[dict[str, Any]]] = {}
    for (key, _), entry in sorted(store.items()):
        by_key.setdefault(key, []).append(entry.to_json())
    return by_key


def file_header() -> dict[str, Any]:
    """Format and versions."""
    return {"format": FORMAT, "voxax": __version__, "jaxlib": jaxlib_version()}


def dumps(value: Any, indent: int = 0) -> str:
    """JSON for people: a value that fits stands on one line."""
    line = json.dumps(value, allow_nan=False)
    if len(line) + indent <= _LINE or not value or not isinstance(value, dict | list):
        return line
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        rows = [f"{json.dumps(k)}: {dumps(v, indent + 1)}" for k, v in value.items()]
        left, right = "{", "}"
    else:
        rows = [dumps(v, indent + 1) for v in value]
        left, right = "[", "]"
    return f"{left}\n{inner}" + f",\n{inner}".join(rows) + f"\n{' ' * indent}{right}"
