"""Helpers of all file readers: check and unpack a file, and raise one error type if it is broken.

A file with ``.gz`` is unpacked into a temporary file. The unpacked size is limited.
"""

import gzip
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from voxax.errors import FileFormatError, InputError, MissingExtraError

# Git writes a file that begins with this in place of a large file that was not fetched.
LFS_POINTER = b"version https://git-lfs"


class MissingFileError(FileFormatError, FileNotFoundError):
    """Raised if the file to read, or the folder to write into, does not exist."""


def existing_file(path: str | os.PathLike[str]) -> Path:
    """Return `path` with ``~`` expanded, after checking that it is a file with content.

    Raise MissingFileError for a missing file, and FileFormatError for a folder, an empty file or a
    Git LFS pointer (a text file in place of a file that Git LFS stores elsewhere).
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"path={path!r:.80}: give the path of a file, as text or pathlib.Path")
    found = Path(path).expanduser()
    try:
        exists = found.exists()
    except PermissionError:
        raise
    except (OSError, ValueError) as error:  # it is too long, or has a zero byte
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"path={path!r:.80} of {len(str(found))} characters: {reason}") from error
    if not exists:
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


# Limit of columns in a header. A scan of a spectrometer has a few hundred. The limit keeps the
# comparison of all names with each other fast.
MOST_COLUMNS = 1024


def check_columns(path: Path, count: int) -> None:
    """Raise :class:`voxax.FileFormatError` if `count`, a number of columns, is over the limit.

    The limit is ``MOST_COLUMNS``.
    """
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
      smallest: least number of bytes that one item takes in the file.
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
    """Convert a decoder's error in the ``with`` block into a FileFormatError with path and cause.

    `kind` is the name of the format. Errors that are not about the content of the file pass
    unchanged: no memory left, no permission, or a missing library.
    """
    try:
        yield
    except (FileFormatError, MissingExtraError, MemoryError, PermissionError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        # Later lines of the messages of some libraries are places in their source code.
        cause = next(iter(str(error).strip().splitlines()), "no reason given")
        raise FileFormatError(
            f"cannot read {path} as {kind}: {type(error).__name__}: {cause}"
        ) from error


def is_panic(error: BaseException) -> bool:
    """Return whether an error is the panic of a Rust library, which is no subclass of Exception."""
    return type(error).__name__ == "PanicException"


GZIP = ".gz"
# Compression makes measurements 2 to 20 times smaller, and text or labels up to 100 times. A file
# with a higher ratio was probably built to fill the memory of its reader.
MOST_UNPACKED = 100
ALWAYS_UNPACKED = 32 * 2**20
BLOCK = 2**20


def unpacked_limit(stored: int) -> int:
    """Return the largest allowed unpacked size in bytes of a compressed file of `stored` bytes."""
    return MOST_UNPACKED * stored + ALWAYS_UNPACKED


def check_unpacked(path: Path, claimed: int) -> None:
    """Raise FileFormatError if `claimed`, a file's unpacked size in bytes, is over the limit.

    The limit is :func:`unpacked_limit` of the file's size. Call this before you allocate memory for
    the content.
    """
    if not 0 <= claimed <= unpacked_limit(path.stat().st_size):
        raise _too_large(path, f"says that it holds {claimed} bytes")


def _too_large(path: Path, said: str) -> FileFormatError:
    stored = path.stat().st_size
    return FileFormatError(
        f"{path} of {stored} bytes {said}: at most {unpacked_limit(stored)} are unpacked, "
        f"{MOST_UNPACKED} times a file and 32 MiB"
    )


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield `path`, or for a ``.gz`` file the path of an unpacked copy, which is removed later.

    The copy is alone in a temporary folder. A FileFormatError that is raised in the ``with`` block
    names `path`, not the copy.
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
                    raise _too_large(path, f"holds more than {limit} bytes")
                out.write(block)
        if inside.stat().st_size == 0:
            raise FileFormatError(f"{path} is empty (0 bytes) inside")
        try:
            yield inside
        except FileFormatError as error:
            if str(inside) not in str(error):
                raise
            raise FileFormatError(str(error).replace(str(inside), str(path))) from error
