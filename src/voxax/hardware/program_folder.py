"""Compiled programs that JAX keeps on disk, in a folder that only the user can write to.

They are machine code that later processes run, so the folder has to be the user's, and nobody else
may write to it. JAX's cache does the rest: it looks programs up by what they compute, the versions
of JAX and XLA and the device; locks the folder; and deletes the programs that were used longest
ago. Calls of the native library are found by name: see :func:`voxax._native.target`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import stat
import warnings
from pathlib import Path

import filelock
import jax

from voxax.hardware.cache_folder import VARIABLE, cache_dir

MOST_BYTES = 4 << 30
"""Of all programs that are kept; beyond that the oldest ones go."""
# What compiles faster is compiled again: a file for each small program would cost more.
_LEAST_SECONDS = 0.1
_NAMES = "*-cache"  # as JAX names them; the time of their last use is beside them
_log = logging.getLogger(__name__)
_refused: set[str] = set()


@dataclasses.dataclass(frozen=True)
class KeptPrograms:
    """What a folder holds.

    Attributes:
      folder: path of the folder, which may not exist.
      number: number of programs.
      size: their bytes.
    """

    folder: Path
    number: int
    size: int


def keep_programs(folder: str | Path | None = None) -> Path | None:
    """Let JAX keep compiled programs on disk, so that later processes load them instead.

    It holds for all programs of this process that take 0.1 s or more to compile, of other libraries
    too. The commands ``demo``, ``train``, ``segment``, ``detect`` and ``tune`` call it, and so do
    trainers such as :class:`voxax.models.training.Trainer`. A setting of JAX's own comes first:
    where ``jax_compilation_cache_dir`` or ``JAX_COMPILATION_CACHE_DIR`` is set, or the cache is
    turned off by ``JAX_ENABLE_COMPILATION_CACHE=false``, nothing is changed. The folder holds 4 GiB
    at most, unless ``jax_compilation_cache_max_size`` says otherwise; it may serve several
    processes.

    Args:
      folder: None is ``programs`` in voxax's cache directory. A new one is made with mode 0700.

    Returns:
      The folder that JAX uses, or None if it keeps nothing: it is turned off, or the folder is not
      the user's own or cannot be written, which is warned of once.
    """
    settings = jax.config.values
    if not settings["jax_enable_compilation_cache"]:
        return None
    chosen = settings["jax_compilation_cache_dir"]
    if chosen or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return Path(chosen) if chosen else None
    path: Path | str = "the user's cache directory"
    try:
        path = programs_folder() if folder is None else Path(folder).expanduser().absolute()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        reason = _not_own(path)
        if reason is None:
            _remove_halves(path)
    except (OSError, RuntimeError) as error:  # a read-only folder, or no home directory
        reason = getattr(error, "strerror", None) or str(error)
    if reason is not None:
        _warn(f"compiled programs are not kept in {path}: {reason}")
        return None
    jax.config.update("jax_compilation_cache_dir", str(path))
    for name, default, value in (
        ("jax_compilation_cache_max_size", -1, MOST_BYTES),
        ("jax_persistent_cache_min_compile_time_secs", 1.0, _LEAST_SECONDS),
    ):
        if settings[name] == default and name.upper() not in os.environ:
            jax.config.update(name, value)
    _log.info("compiled programs are kept in %s", path)
    return Path(path)


def programs_folder() -> Path:
    """Return the folder that is used by default.

    Raises:
      RuntimeError: there is no home directory.
    """
    return cache_dir() / "programs"


def kept_programs() -> KeptPrograms:
    """Return what the default folder holds.

    Raises:
      OSError: it cannot be read.
      RuntimeError: there is no home directory.
    """
    folder = programs_folder()
    sizes = [path.stat().st_size for path in folder.glob(_NAMES)]
    return KeptPrograms(folder, len(sizes), sum(sizes))


def forget_programs() -> int:
    """Delete the programs of the default folder; return how many there were.

    Raises:
      OSError: one cannot be deleted.
      RuntimeError: there is no home directory.
    """
    folder, number = programs_folder(), 0
    if not folder.is_dir():
        return 0
    with _lock(folder):
        for path in folder.glob(_NAMES):
            path.unlink()
            _time_of_use(path).unlink(missing_ok=True)
            number += 1
    return number


def _not_own(folder: Path) -> str | None:
    """Return why code from this folder is not to be run, or that nothing can be written to it."""
    if hasattr(os, "getuid"):  # not on Windows
        about = folder.stat()
        if about.st_uid != os.getuid():
            return f"it belongs to another user (number {about.st_uid}). Set {VARIABLE}"
        if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"others may write to it. Take that right away: chmod go-w {folder}"
    return None if os.access(folder, os.W_OK | os.X_OK) else "it cannot be written"


def _warn(text: str) -> None:
    if text not in _refused:
        _refused.add(text)
        warnings.warn(text, stacklevel=3)


def _lock(folder: Path) -> filelock.BaseFileLock:
    return filelock.FileLock(folder / ".lockfile", timeout=1)  # JAX's own


def _time_of_use(program: Path) -> Path:
    return program.with_name(program.name.removesuffix("-cache") + "-atime")


def _remove_halves(folder: Path) -> None:
    """Remove programs that were being written when their process was killed.

    JAX would warn of each in every run, and compile it anew: it writes no program whose file is
    there. With a limit of size it writes the time of use after the program.
    """
    try:
        with _lock(folder):
            for program in folder.glob(_NAMES):
                if not _time_of_use(program).exists():
                    program.unlink()
    except filelock.Timeout:  # a process that writes one; the next one looks again
        pass
