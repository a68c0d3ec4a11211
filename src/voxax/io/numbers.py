"""Rows of numbers in text, with as much white space between them as there is."""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from mmap import mmap
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError

# Words are Python objects while they are converted, about 20 times as large as in the file.
_CHUNK = 1 << 22
# The largest float64 has 309 digits before the point.
_LONGEST = 400
# As Microsoft's C library and glibc print what is no number.
_NAN = re.compile(rb"[-+]?(?:1\.#\w+|nan\(\w*\))", re.IGNORECASE)


def number_columns(
    path: Path, text: bytes | mmap, kinds: Sequence[np.dtype], begin: int = 0
) -> list[np.ndarray]:
    """Convert rows of numbers into columns.

    Args:
        path: the file, for messages.
        text: rows of ``len(kinds)`` numbers; blank ones do not count.
        kinds: dtype of each column. A column of integers in which the text has a NaN, a fraction
            or a number out of range becomes float64.
        begin: place of the first row in `text`.

    Returns:
        One array [N] for each column.

    Raises:
        FileFormatError: a row has another number of words, or a word is no number.
    """
    parts: list[list[np.ndarray]] = [[np.zeros(0, kind)] for kind in kinds]
    first = 0
    for chunk in _chunks(text, begin):
        table = _plain_table(chunk, kinds)
        if table is not None:
            first += len(table)
            for column, part in enumerate(parts):
                part.append(np.ascontiguousarray(table[f"f{column}"]))
            continue
        rows = _words_of_rows(chunk)
        wrong = np.flatnonzero(rows != len(kinds))
        if len(wrong):
            row = int(wrong[0])
            raise FileFormatError(
                f"{path} is broken or cut short: row {first + row} has {rows[row]} numbers, not "
                f"{len(kinds)}"
            )
        first += len(rows)
        words = _words(path, chunk).reshape(-1, len(kinds))
        for column, kind in enumerate(kinds):
            parts[column].append(_converted(path, words[:, column], kind))
    # One after the other, so that no more than one column is there twice.
    return [np.concatenate(parts.pop(0)) for _ in kinds]


def _words(path: Path, text: bytes) -> np.ndarray:
    """Return the words of a text, bytes [N].

    Raises:
        FileFormatError: one is too long for a number: each would take as much memory as it.
    """
    words = text.split()
    longest = max(words, key=len, default=b"")
    if len(longest) > _LONGEST:
        raise FileFormatError(
            f"{path} is broken: a number of {len(longest)} digits, {longest[:20].decode('latin-1')}"
            "..."
        )
    return np.array(words, np.bytes_)


def _plain_table(chunk: bytes, kinds: Sequence[np.dtype]) -> np.ndarray | None:
    """Return rows, structured [N], or None if one of them is not just numbers of these kinds.

    Twice as fast as converting words, but one NaN among integers ends it.
    """
    if chunk.isspace():
        return None
    try:
        with warnings.catch_warnings():
            # NumPy would cut the fraction off in a column of integers.
            warnings.simplefilter("error")
            dtype = [(f"f{column}", kind) for column, kind in enumerate(kinds)]
            return np.loadtxt(io.StringIO(chunk.decode("latin-1")), dtype, comments=None, ndmin=1)
    except (ValueError, OverflowError, Warning):
        return None


def _chunks(text: bytes | mmap, begin: int) -> Iterator[bytes]:
    while begin < len(text):
        end = text.find(b"\n", begin + _CHUNK)
        end = len(text) if end < 0 else end + 1
        chunk = text[begin:end]
        yield _NAN.sub(b"nan", chunk) if b"#" in chunk or b"(" in chunk else chunk
        begin = end


def _words_of_rows(text: bytes) -> np.ndarray:
    """Return the number of words in each row that has some."""
    codes = np.frombuffer(text + b"\n", np.uint8)
    blank = (codes == 32) | ((codes >= 9) & (codes <= 13))
    begins = ~blank
    begins[1:] &= blank[:-1]
    ends = np.flatnonzero((codes == 10) | (codes == 13))
    words = np.diff(np.cumsum(begins)[ends], prepend=0)
    return words[words > 0]


def _converted(path: Path, words: np.ndarray, kind: np.dtype) -> np.ndarray:
    try:
        return words.astype(kind)
    except (ValueError, OverflowError):
        try:
            numbers = words.astype(np.float64)
        except ValueError as error:
            raise FileFormatError(f"{path} is broken: {error}") from error
    if kind.kind == "f":
        return numbers.astype(kind)
    limits = np.iinfo(kind)
    fits = (numbers == np.rint(numbers)) & (numbers >= limits.min) & (numbers <= limits.max)
    return numbers.astype(kind) if fits.all() else numbers
