"""Parse rows of numbers in text, separated by any white space, into one array per column."""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from mmap import mmap
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError

# Bytes to convert at a time, because the conversion takes several times the memory of the text.
_CHUNK = 1 << 22
# Infinity and NaN as Microsoft's C library and glibc print them.
_INFINITY = re.compile(rb"\d\.\d*#(?:INF|J)\w*", re.IGNORECASE)
_NAN = re.compile(rb"[-+]?(?:\d\.\d*#\w+|nan\(\w*\))", re.IGNORECASE)
# Lines to convert at a time.
_LINES = 100_000


def number_columns(
    path: Path, text: bytes | mmap, kinds: Sequence[np.dtype], begin: int = 0
) -> list[np.ndarray]:
    """Parse text with N rows of ``len(kinds)`` numbers into columns [N]; blank rows are skipped.

    `kinds` has the dtype of each column. A column of integers becomes float64 if it has a NaN, a
    fraction or a number out of range. `begin` is the offset of the first row in `text`, in bytes.
    Raise FileFormatError with the file's `path` if a row has too few or too many columns, or text
    that is no number.
    """
    parts: list[list[np.ndarray]] = [[np.zeros(0, kind)] for kind in kinds]
    first = 0
    for chunk in _chunks(text, begin):
        table = _table(path, chunk, kinds, first)
        first += len(table)
        for column, (part, kind) in enumerate(zip(parts, kinds, strict=True)):
            part.append(whole(np.ascontiguousarray(table[f"f{column}"]), kind))
    # Columns are joined one after the other, so that only one is in memory twice.
    return [np.concatenate(parts.pop(0)) for _ in kinds]


def number_rows(
    path: Path, lines: Iterator[bytes], count: int, kinds: Sequence[np.dtype]
) -> list[np.ndarray]:
    """Parse the next `count` lines of text into columns [N], one for each dtype in `kinds`.

    If `lines` ends earlier, the columns are shorter. See :func:`number_columns` for `path`, the
    types of the columns and the errors.
    """
    parts: list[list[np.ndarray]] = [[np.zeros(0, kind)] for kind in kinds]
    found = 0
    while found < count and (block := list(islice(lines, min(_LINES, count - found)))):
        for part, column in zip(parts, number_columns(path, b"".join(block), kinds), strict=True):
            part.append(column)
        found += len(parts[0][-1])
    return [np.concatenate(part) for part in parts]


def whole(values: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Convert numbers [N] to the dtype `kind`.

    If `kind` is an integer type that cannot represent all numbers, return `values` unchanged.
    """
    if kind.kind == "f" or values.dtype == kind:
        return values.astype(kind, copy=False)
    limits = np.iinfo(kind)
    fits = (values == np.rint(values)) & (values >= limits.min) & (values <= limits.max)
    return values.astype(kind) if fits.all() else values


def plain(text: bytes) -> bytes:
    """Replace special spellings of infinity and NaN, e.g. ``1.#INF``, by ``inf`` and ``nan``."""
    if b"#" not in text and b"(" not in text:
        return text
    return _NAN.sub(b"nan", _INFINITY.sub(b"inf", text))


def row_error(error: Exception, first: int) -> str:
    """Return the message of ``np.loadtxt`` with rows counted from 0; `first` rows came before."""

    def counted(match: re.Match[str]) -> str:
        # NumPy counts from 0 only if it names the column too.
        return f"at row {int(match[1]) + first - (match[2] is None)}{match[2] or ''}"

    # The text after a semicolon is NumPy's advice to programmers.
    why = str(error).partition(";")[0][:200]
    return re.sub(r"\bat row (\d+)\b(, column)?", counted, why)


def _chunks(text: bytes | mmap, begin: int) -> Iterator[bytes]:
    while begin < len(text):
        end = text.find(b"\n", begin + _CHUNK)
        end = len(text) if end < 0 else end + 1
        if not (chunk := text[begin:end]).isspace():
            yield plain(chunk)
        begin = end


def _table(path: Path, chunk: bytes, kinds: Sequence[np.dtype], first: int) -> np.ndarray:
    """Parse rows of text into a structured array [N] with one field per column.

    Fields have the dtypes `kinds`. If `chunk` has a number that its dtype cannot represent, all
    fields are float64. `first` is the number of rows in the file before `chunk`, for messages.
    """
    text, why = chunk.decode("latin-1"), ""
    with warnings.catch_warnings():
        # Without this, NumPy would only warn and drop a fraction in a column of integers.
        warnings.simplefilter("error")
        for tried in (kinds, [np.dtype(np.float64)] * len(kinds)):
            dtype = [(f"f{column}", kind) for column, kind in enumerate(tried)]
            try:
                return np.loadtxt(io.StringIO(text), dtype, comments=None, ndmin=1)
            except (ValueError, OverflowError, Warning) as error:
                why = row_error(error, first)
    raise FileFormatError(f"{path} is broken or cut short: {why} (counted from 0)")
