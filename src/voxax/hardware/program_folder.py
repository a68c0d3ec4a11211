"""Keep compiled programs on disk, in a folder that only the user can write to.

The programs are machine code that later processes run, so the folder must belong to the user, and
nobody else may write to it. JAX's compilation cache does the rest. Its keys cover what a program
computes, the versions of JAX and XLA, and the device. It locks the folder, and deletes the programs
that were not used for the longest time. A program finds functions of the native library by name:
see :func:`voxax._native.target`.
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
"""Limit of the bytes of all kept programs; beyond it the least recently used are deleted."""
# Programs that compile faster are not kept: a file for each small program would cost more.
_LEAST_SECONDS = 0.1
_LIMIT = "jax_compilation_cache_max_size"
_NAMES = "*-cache"  # JAX's file names; another file has the time of last use
_log = logging.getLogger(__name__)
_refused: set[str] = set()


@dataclasses.dataclass(frozen=True)
class KeptPrograms:
    """The number and size of the compiled programs in a folder.

    Attributes:
      folder: path of the folder, which may not exist.
      number: number of programs.
      size: bytes of all programs together.
    """

    folder: Path
    number: int
    size: int


def keep_programs(folder: str | Path | None = None) -> Path | None:
    """Let JAX keep compiled programs on disk, so that later processes load them instead.

    This affects all programs of this process that take 0.1 s or more to compile, including those of
    other libraries. The commands ``demo``, ``train``, ``segment``, ``detect`` and ``tune`` call it,
    and so do trainers such as :class:`voxax.models.training.Trainer`. JAX's own settings take
    precedence: nothing is changed if ``jax_compilation_cache_dir`` or ``JAX_COMPILATION_CACHE_DIR``
    is set, or if ``JAX_ENABLE_COMPILATION_CACHE=false`` turns the cache off. The folder holds at
    most 4 GiB, unless ``jax_compilation_cache_max_size`` is set. Several processes may use the same
    folder.

    Args:
      folder: the folder, which is created with mode 0700 if it does not exist; None takes
        ``programs`` in voxax's cache directory.

    Returns:
      The folder that JAX uses, or None if JAX keeps no programs: the cache is turned off, or the
      folder belongs to another user, others may write to it, or it cannot be written. A folder that
      cannot be used causes one warning.
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
        # Without a limit JAX writes no times of use, and every program would count as incomplete.
        limited = settings[_LIMIT] != -1 or _LIMIT.upper() not in os.environ
        if reason is None and limited:
            _remove_halves(path)
    except (OSError, RuntimeError) as error:  # a read-only folder, or no home directory
        reason = getattr(error, "strerror", None) or str(error)
    if reason is not None:
        _warn(f"compiled programs are not kept in {path}: {reason}")
        return None
    jax.config.update("jax_compilation_cache_dir", str(path))
    for name, default, value in (
        (_LIMIT, -1, MOST_BYTES),
        ("jax_persistent_cache_min_compile_time_secs", 1.0, _LEAST_SECONDS),
    ):
        if settings[name] == default and name.upper() not in os.environ:
            jax.config.update(name, value)
    _log.info("compiled programs are kept in %s", path)
    return Path(path)


def programs_folder() -> Path:
    """Return the default folder of compiled programs.

    Raises:
      RuntimeError: there is no home directory.
    """
    return cache_dir() / "programs"


def kept_programs() -> KeptPrograms:
    """Return the number and size of the compiled programs in the default folder.

    Raises:
      OSError: the folder cannot be read.
      RuntimeError: there is no home directory.
    """
    folder = programs_folder()
    sizes = [path.stat().st_size for path in folder.glob(_NAMES)]
    return KeptPrograms(folder, len(sizes), sum(sizes))


def forget_programs() -> int:
    """Delete the compiled programs in the default folder, and return how many there were.

    Raises:
      OSError: a program cannot be deleted.
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
    """Return why compiled programs cannot be kept in this folder, or None if they can.

    Reasons: it belongs to another user, others may write to it, or this user may not write to it.
    """
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
    """Delete incomplete programs in ``folder``, a compilation cache of JAX.

    JAX does not overwrite an existing file, so it would warn about an incomplete program in every
    run, and compile it anew. If the cache has a size limit, JAX writes a second file, with the time
    of use, after the program. A program without this second file counts as incomplete.
    """
    try:
        with _lock(folder):
            for program in folder.glob(_NAMES):
                if not _time_of_use(program).exists():
                    program.unlink()
    except filelock.Timeout:  # another process writes a program; the next process looks again
        pass
