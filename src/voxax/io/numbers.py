"""Rows of numbers in text, with as much white space between them as there is."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError

# Words are Python objects while they are converted, about 20 times as large as in the file.
_CHUNK = 1 << 22
# As Microsoft's C library and glibc print what is no number.
_NAN = re.compile(rb"[-+]?(?:1\.#\w+|nan\(\w*\))", re.IGNORECASE)


def number_columns(path: Path, text: bytes, kinds: Sequence[np.dtype]) -> list[np.ndarray]:
    """Convert rows of numbers into columns.

    Args:
        path: the file, for messages.
        text: rows of ``len(kinds)`` numbers; blank ones do not count.
        kinds: dtype of each column. A column of integers in which the text has a NaN, a fraction
            or a number out of range becomes float64.

    Returns:
        One array [N] for each column.

    Raises:
        FileFormatError: a row has another number of words, or a word is no number.
    """
    parts: list[list[np.ndarray]] = [[np.zeros(0, kind)] for kind in kinds]
    first = 0
    for chunk in _chunks(text):
        rows = _words_of_rows(chunk)
        wrong = np.flatnonzero(rows != len(kinds))
        if len(wrong):
            row = int(wrong[0])
            raise FileFormatError(
                f"{path} is broken or cut short: row {first + row} has {rows[row]} numbers, not "
                f"{len(kinds)}"
            )
        first += len(rows)
        words = np.array(chunk.split(), dtype=np.bytes_).reshape(-1, len(kinds))
        for column, kind in enumerate(kinds):
            parts[column].append(_converted(path, words[:, column], kind))
    return [np.concatenate(column) for column in parts]


def _chunks(text: bytes) -> Iterator[bytes]:
    begin = 0
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
