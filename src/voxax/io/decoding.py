"""Opening and decoding one file, with checks before and one kind of error for a broken file.

A file with ``.gz`` is unpacked into a temporary file. Its unpacked size is limited.
"""

import gzip
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from voxax.errors import FileFormatError, InputError, MissingExtraError

# What Git puts in the place of a large file that was not fetched.
LFS_POINTER = b"version https://git-lfs"


class MissingFileError(FileFormatError, FileNotFoundError):
    """The file to read, or the folder to write into, does not exist."""


def existing_file(path: str | os.PathLike[str]) -> Path:
    """Return `path` with ``~`` expanded, after checking that it is a file with content.

    Raise an error for a folder, an empty file and a Git LFS pointer.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"path={path!r:.80}: give the path of a file, as text or pathlib.Path")
    found = Path(path).expanduser()
    if not found.exists():
        raise MissingFileError(f"no such file: {found} (looked in {found.absolute().parent})")
    if not found.is_file():
        raise FileFormatError(f"{found} is not a file: give the path of one scan")
    if found.stat().st_size == 0:
        raise FileFormatError(f"{found} is empty (0 bytes)")
    with found.open("rb") as stream:
        if stream.read(len(LFS_POINTER)) == LFS_POINTER:
            raise FileFormatError(
                f"{found} is a pointer of Git LFS to the file: fetch it with `git lfs pull`"
            )
    return found


# Limit for a header. A scan of a spectrometer has a few hundred columns. The limit keeps the
# comparison of all names with each other fast.
MOST_COLUMNS = 1024


def check_columns(path: Path, count: int) -> None:
    """Raise :class:`voxax.FileFormatError` if a header has more columns than any scan."""
    if count > MOST_COLUMNS:
        raise FileFormatError(
            f"{path}: its header names {count} columns, at most {MOST_COLUMNS} are read"
        )


def check_count(
    path: Path, what: str, count: int, smallest: int, available: int, *, exact: bool = True
) -> None:
    """Raise FileFormatError if the count in a header is negative or more than the file can hold.

    Call this before you allocate memory for `count` items.

    Args:
      path: the file, for the message.
      what: name of the counted items in the plural, e.g. ``"points"``.
      count: number of items in the header.
      smallest: least number of bytes of an item in the file.
      available: number of bytes in the file that can hold items.
      exact: whether every item takes exactly `smallest` bytes; used for the message.
    """
    fit = max(0, available) // smallest
    if count < 0:
        raise FileFormatError(f"{path} is broken: its header says {count} {what}")
    if count > fit:
        found = f"{fit}" if exact else f"at most {fit}"
        raise FileFormatError(
            f"{path} is cut short: its header says {count} {what}, {found} are there"
        )


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Raise FileFormatError with the path and the cause for any error of a decoder.

    Errors that are not about the content of the file pass unchanged: no memory left, no permission,
    or a missing library.
    """
    try:
        yield
    except (FileFormatError, MissingExtraError, MemoryError, PermissionError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        # After the first line, some libraries print places in their sources.
        cause = next(iter(str(error).strip().splitlines()), "no reason given")
        raise FileFormatError(
            f"cannot read {path} as {kind}: {type(error).__name__}: {cause}"
        ) from error


def is_panic(error: BaseException) -> bool:
    """Return whether an error is the panic of a Rust decoder, which is not an Exception in PyO3."""
    return type(error).__name__ == "PanicException"


GZIP = ".gz"
# Measurements shrink 2 to 20 times, their text and labels up to 100 times. A file that shrinks more
# was probably built to fill the memory of its reader.
MOST_UNPACKED = 100
ALWAYS_UNPACKED = 32 * 2**20
BLOCK = 2**20


def unpacked_limit(stored: int) -> int:
    """Return the greatest allowed unpacked size in bytes of a file of `stored` bytes."""
    return MOST_UNPACKED * stored + ALWAYS_UNPACKED


def check_unpacked(path: Path, claimed: int) -> None:
    """Raise FileFormatError if `claimed`, an unpacked size in bytes, exceeds `unpacked_limit`.

    Call this before you allocate memory for the content.
    """
    stored = path.stat().st_size
    if not 0 <= claimed <= unpacked_limit(stored):
        raise FileFormatError(
            f"{path} of {stored} bytes says that it holds {claimed} bytes: at most "
            f"{unpacked_limit(stored)} are unpacked, {MOST_UNPACKED} times a file and 32 MiB"
        )


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield `path`, or a temporary unpacked copy of a ``.gz`` file, which is removed at the end.

    The copy lies in a folder without other files. Error messages inside the context name `path`.
    """
    if path.suffix.lower() != GZIP:
        yield path
        return
    limit = unpacked_limit(path.stat().st_size)
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder) / path.stem
        with reading(path, "GZIP"), gzip.open(path) as packed, inside.open("wb") as out:
            while block := packed.read(BLOCK):
                if out.tell() + len(block) > limit:
                    check_unpacked(path, out.tell() + len(block))
                out.write(block)
        if inside.stat().st_size == 0:
            raise FileFormatError(f"{path} is empty (0 bytes) inside")
        try:
            yield inside
        except FileFormatError as error:
            if str(inside) not in str(error):
                raise
            raise FileFormatError(str(error).replace(str(inside), str(path))) from error
