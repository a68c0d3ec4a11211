"""Opening and decoding one file: checks before, and one kind of error for a broken file.

A file with ``.gz`` is unpacked into a temporary file; how much a file may hold is limited.
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

    A folder, an empty file and a pointer of Git LFS are none.
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


# Of a header. A spectrometer's scan has some hundred; names are compared with each other.
MOST_COLUMNS = 1024


def check_columns(path: Path, count: int) -> None:
    """Raise :class:`voxax.FileFormatError` where a header names more columns than any scan has."""
    if count > MOST_COLUMNS:
        raise FileFormatError(
            f"{path}: its header names {count} columns, at most {MOST_COLUMNS} are read"
        )


def check_count(
    path: Path, what: str, count: int, smallest: int, available: int, *, exact: bool = True
) -> None:
    """Refuse a count that a header claims, if it is negative or more than the file can hold.

    To be called before memory is taken for `count` of them.

    Args:
      path: the file, for the message.
      what: what is counted, in the plural, e.g. ``"points"``.
      count: the claim.
      smallest: bytes that one of them takes in the file, at least.
      available: bytes of the file that are left for them.
      exact: each takes just these bytes.
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
    """Turn any error of a decoder on a broken file into one kind, with the path and the cause.

    Running out of memory, having no permission and lacking a library say nothing about the file:
    they pass.
    """
    try:
        yield
    except (FileFormatError, MissingExtraError, MemoryError, PermissionError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        # Behind the first line, some libraries print places in their sources.
        cause = next(iter(str(error).strip().splitlines()), "no reason given")
        raise FileFormatError(
            f"cannot read {path} as {kind}: {type(error).__name__}: {cause}"
        ) from error


def is_panic(error: BaseException) -> bool:
    """Return whether a decoder written in Rust gave up: PyO3's error for it is no Exception."""
    return type(error).__name__ == "PanicException"


GZIP = ".gz"
# Measurements shrink 2 to 20 times, their text and labels up to 100 times. What shrinks more
# is made to fill the memory of who opens it.
MOST_UNPACKED = 100
ALWAYS_UNPACKED = 32 * 2**20
BLOCK = 2**20


def unpacked_limit(stored: int) -> int:
    """Return how many bytes a file of `stored` bytes may hold once it is unpacked."""
    return MOST_UNPACKED * stored + ALWAYS_UNPACKED


def check_unpacked(path: Path, claimed: int) -> None:
    """Refuse a file that says it holds, unpacked, more bytes than any measurement shrinks from.

    To be called before memory is taken for them.
    """
    stored = path.stat().st_size
    if not 0 <= claimed <= unpacked_limit(stored):
        raise FileFormatError(
            f"{path} of {stored} bytes says that it holds {claimed} bytes: at most "
            f"{unpacked_limit(stored)} are unpacked, {MOST_UNPACKED} times a file and 32 MiB"
        )


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Give a file without its ``.gz``: unpacked beside no other, and removed afterwards.

    Messages of errors raised meanwhile name `path`.
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
