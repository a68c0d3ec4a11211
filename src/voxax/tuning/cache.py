"""The tuner's memory: what was measured on this device, in this process and before.

Nothing here raises because of a disk. Where the folder cannot be read or written, one warning
says so (logger ``voxax.tuning``) and the process goes on with what it measures itself.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from voxax.hardware.cache_dir import cache_dir
from voxax.tuning import cache_file, cache_format
from voxax.tuning.cache_format import Store
from voxax.tuning.entry import Entry, jaxlib_version
from voxax.tuning.shipped import shipped

if TYPE_CHECKING:
    from voxax.hardware import HardwareInfo

LOOK_AFTER = 0.2  # seconds between looks at the file: others may have written or removed it
SAVE_AFTER = 0.25  # seconds that an entry waits for others to be saved with
RETRY_AFTER = 5.0  # seconds, where another process held the lock
_EXIT_PATIENCE = 15.0  # seconds

_log = logging.getLogger("voxax.tuning")
_caches: dict[tuple[int, Path, str], TuningCache] = {}


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

    Of a CPU the cores that the process may use are part: they decide what is fastest.
    """
    kind = _slug(info.model or info.device_kind)
    platform = _slug(info.platform) or "device"
    words = [platform, "" if kind == platform else kind.removeprefix(f"{platform}-")]
    if info.platform == "cpu":
        words.append(f"{info.cpu_cores}-cores")
    name = "-".join(word for word in words if word)
    if cache_format.is_device(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[:80].rstrip('-')}-{digest}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


class TuningCache:
    """Entries by problem for one device; safe to use from several threads.

    Attributes:
      path: the file.
      device: see :func:`device_name`.

    Args:
      directory: the folder of the files; created by the first save.
      device: the file's name without suffix.

    Raises:
      ValueError: ``device`` is not a device's name.
    """

    def __init__(self, directory: Path, device: str) -> None:
        if not cache_format.is_device(device):
            raise ValueError(f"{device!r} is not a device's name: give one of device_name()")
        self.device = device
        self.path = Path(directory) / f"{device}.json"
        self._lock = threading.Lock()  # of the fields below
        self._saved: Store = {}  # what the file holds
        self._added: Store = {}  # what it does not hold yet
        self._stamp: cache_file.Stamp = None
        self._looked = float("-inf")
        self._thread: threading.Thread | None = None
        self._warned: set[str] = set()
        self._writing = threading.Lock()
        self._process = os.getpid()
        self._registered = False

    def get(self, key: str) -> Entry | None:
        """What is known of the problem ``key`` under this jaxlib.

        The user's file has the word, then what was shipped for the device; but what somebody
        measured before what was predicted.
        """
        version = key, jaxlib_version()
        with self._lock:
            self._look()
            saved, added = self._saved.get(version), self._added.get(version)
        if saved is not None and added is not None:
            return saved.merged(added)
        own, others = added or saved, shipped(self.device).get(version)
        if own is None or (own.predicted and others is not None and not others.predicted):
            return others
        return own

    def put(self, key: str, entry: Entry) -> None:
        """Remember ``entry``, merged with what is there; saved a moment later.

        Raises:
          ValueError: ``key`` is not 1 to 512 printable ASCII characters.
        """
        if not cache_format.is_key(key):
            raise ValueError(f"key {key!r} is not 1 to {cache_format.MAX_KEY} ASCII characters")
        with self._lock:
            cache_format.add(self._added, key, entry)
            if not self._registered:
                self._registered = True
                atexit.register(self.flush)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._save_later, name="voxax-tuning-cache", daemon=True
                )
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter is about to end: flush() saves
                    self._thread = None

    def items(self) -> list[tuple[str, Entry]]:
        """All entries of the user's own under this jaxlib, sorted by key."""
        with self._lock:
            self._look()
            store = dict(self._saved)
            for (key, _), entry in self._added.items():
                cache_format.add(store, key, entry)
        return sorted(
            (key, e) for (key, version), e in store.items() if version == jaxlib_version()
        )

    def flush(self) -> bool:
        """Save now. Whether everything that was put is on disk."""
        if os.getpid() != self._process:  # what a fork inherited, its parent saves
            return False
        return self._save() is None

    def clear(self) -> None:
        """Forget everything, in memory and on disk; shipped entries stay."""
        with self._writing:
            with self._lock:
                self._saved, self._added, self._stamp = {}, {}, None
            try:
                cache_file.remove(self.path)
            except OSError as error:
                self._warn("cannot be cleared", error)

    def _look(self) -> None:
        """Take over what the file holds if it changed; at most a few times a second."""
        now = time.monotonic()
        if now - self._looked < LOOK_AFTER:
            return
        self._looked = now
        if cache_file.stamp_of(self.path) == self._stamp:
            return
        found = cache_file.read(self.path, self.device)
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
            found = cache_file.save(self.path, self.device, added)
            with self._lock:
                for version, entry in added.items():
                    if self._added[version] is entry:
                        del self._added[version]
                self._saved, self._stamp = found.store, found.stamp
            return None
        except OSError as error:
            busy = isinstance(error, TimeoutError)
            self._warn("is locked, saving later" if busy else "cannot be saved", error)
            return error
        finally:
            self._writing.release()

    def _warn(self, what: str, why: object) -> None:
        if what not in self._warned:  # once: the reason seldom goes away by itself
            self._warned.add(what)
            _log.warning("the tuning cache %s %s: %s", self.path, what, why)
