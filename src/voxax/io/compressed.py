"""Files compressed with gzip, unpacked into a temporary file, and how much they may hold."""

import gzip
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from voxax.errors import FileFormatError
from voxax.io.decoding import reading

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
    """Compare what a file says it holds, unpacked, with its size.

    To be called before memory is taken for it.

    Args:
        path: the file.
        claimed: bytes.

    Raises:
        FileFormatError: no measurement shrinks that far.
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

    Raises:
        FileFormatError: it is no whole gzip file, or holds more than :func:`unpacked_limit`.
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
