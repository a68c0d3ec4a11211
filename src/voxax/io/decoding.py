"""Opening and decoding one file: checks before, and one kind of error for a broken file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from voxax.errors import FileFormatError, MissingExtraError


class MissingFileError(FileFormatError, FileNotFoundError):
    """The file to read, or the folder to write into, does not exist."""


def existing_file(path: str | os.PathLike[str]) -> Path:
    """Return `path` with ``~`` expanded, after checking that it is a file with content.

    Raises:
        MissingFileError: it does not exist.
        FileFormatError: it is a folder, or holds 0 bytes.
    """
    found = Path(path).expanduser()
    if not found.exists():
        raise MissingFileError(f"no such file: {found} (looked in {found.absolute().parent})")
    if not found.is_file():
        raise FileFormatError(f"{found} is not a file: give the path of one scan")
    if found.stat().st_size == 0:
        raise FileFormatError(f"{found} is empty (0 bytes)")
    return found


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn any error of a decoder on a broken file into one kind of error.

    Raises:
        FileFormatError: with the path and the cause. Running out of memory, having no
            permission and lacking a library say nothing about the file: they pass.
    """
    try:
        yield
    except (FileFormatError, MissingExtraError, MemoryError, PermissionError):
        raise
    except Exception as error:
        cause = str(error) or "no reason given"
        raise FileFormatError(
            f"cannot read {path} as {kind}: {type(error).__name__}: {cause}"
        ) from error
