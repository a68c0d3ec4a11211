"""Functions that read a whole file of limited size, and refuse pipes, devices and larger files."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from voxax.errors import FileFormatError

MEBIBYTE = 1 << 20


def read_bounded(path: str | os.PathLike[str], most: int) -> tuple[bytes, os.stat_result]:
    """Return the content of a regular file, and its ``os.stat_result`` from when it was opened.

    Args:
      path: the file.
      most: the largest allowed size of the file, in bytes.

    Raises:
      OSError: the file cannot be read.
      ValueError: the path is not a regular file, or the file is too large.
    """
    # Opening a pipe would otherwise wait for its writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ValueError("no regular file")
    with os.fdopen(descriptor, "rb") as file:
        raw = file.read(min(most, status.st_size) + 1)
    if len(raw) > most:
        raise ValueError(f"more than {most / MEBIBYTE:g} MiB")
    return raw, status


def bounded_text(path: str | os.PathLike[str], most: int) -> str:
    """Return the text of a UTF-8 file of at most ``most`` bytes.

    Raises:
      FileFormatError: the file is missing or too large, cannot be read, is not a regular file, or
        is not UTF-8 text.
    """
    try:
        return read_bounded(path, most)[0].decode("utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError as error:
        reason = str(error)
    raise FileFormatError(f"{_shown(path)} cannot be read: {reason}")


def bounded_json(path: str | os.PathLike[str], most: int, kind: str = "") -> Any:
    """Return the decoded content of a JSON file of at most ``most`` bytes.

    Args:
      path: the file.
      most: the largest allowed size of the file, in bytes.
      kind: what the file should contain, such as ``" with a list points"``; an error message
        repeats it after the words "is no JSON".

    Raises:
      FileFormatError: as for :func:`bounded_text`, or the file is not JSON.
    """
    try:
        return json.loads(bounded_text(path, most))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{_shown(path)} is no JSON{kind}: {error}") from error


def _shown(path: str | os.PathLike[str]) -> str:
    text = str(Path(path)).replace("\0", "\\0")
    return text if len(text) <= 400 else f"{text[:80]}... of {len(text)} characters"
