"""Read text files with one point in each line: ``.txt``, ``.xyz``, ``.csv``, ``.pts`` and others.

There is no standard. This module reads columns of numbers that are separated by commas, semicolons,
bars, tabs or spaces. Lines above the numbers may be comments, the names of the columns, and the
number of points (Leica's ``.pts``).
"""

import io
import re
import warnings
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.columns import (
    COLOR,
    POSITION,
    POSITIONS,
    SKIPPED,
    cloud_from_columns,
    find_name,
    free_name,
    shown_names,
)
from voxax.io.decoding import reading
from voxax.io.numbers import row_error
from voxax.io.options import ReadOptions
from voxax.io.point_cloud import PointCloud

COMMENTS = ("#", "//", "%", "!")
SPACES = ""
# The beginning of a line that sets the delimiter for Excel.
EXCEL = "sep="
# They are tried in this order, because next to another delimiter a comma is a decimal comma.
DELIMITERS = (";", "|", "\t", ",", SPACES)
# Names of columns for some endings of file names, if the file has no names.
EXTENSION_NAMES = {
    ".xyzn": (*POSITION, "nx", "ny", "nz"),
    ".xyzrgb": (*POSITION, *COLOR),
}
# Leica's names of columns, by the number of columns.
PTS_NAMES = {
    4: (*POSITION, "intensity"),
    6: (*POSITION, *COLOR),
    7: (*POSITION, "intensity", *COLOR),
}
WHOLE = re.compile(r"[-+]?[0-9]{1,19}")
MISSING = ("", "na", "n/a", "null", "none", "-")
MICROSOFT_NAN = re.compile(r"[-+]?[0-9.]*#(ind|qnan|snan)0*", re.IGNORECASE)
HEAD = 2**16
BLOCK = 2**20


def read_text(path: Path, options: ReadOptions) -> PointCloud:
    """Read a point cloud from a text file with one point in each line.

    Delimiter and columns are detected from the first lines. Names of columns are in
    ``options.columns``, or in a line or a comment above the points, or follow from the file's
    extension, or :func:`voxax.io.columns.shown_names` guesses them. Numbers may have a decimal
    comma if the delimiter is not a comma. Empty fields are NaN. Columns of text are left out.
    """
    with reading(path, "text"), path.open("rb") as file:
        stream = _transcoded(file)
        layout = _layout(path, stream.read(HEAD), options)
        stream.seek(layout.start)
        columns = _columns(path, stream, layout)
        if layout.names is None:
            columns = dict(zip(shown_names([*columns.values()]), columns.values(), strict=True))
        return cloud_from_columns(columns, str(path), options.label_field)


@dataclass(frozen=True)
class _Layout:
    """How the lines of a text file are formatted.

    Attributes:
      start: the offset of the first point in bytes.
      delimiter: the text between numbers; empty for white space.
      names: the names of the columns; None if the file has no names.
      dtypes: the type of each column; None for a column of text.
      count: the number of points that the file states; None if it states none.
      quoted: whether fields may be in quotes.
    """

    start: int
    delimiter: str
    names: tuple[str, ...] | None
    dtypes: tuple[type | None, ...]
    count: int | None
    quoted: bool


def _transcoded(file: BinaryIO) -> BinaryIO:
    mark = file.read(2)
    file.seek(0)
    if mark in (b"\xff\xfe", b"\xfe\xff"):
        return io.BytesIO(file.read().decode("utf-16").encode())
    return file


def _layout(path: Path, head: bytes, options: ReadOptions) -> _Layout:
    if b"\0" in head:
        raise FileFormatError(f"{path} holds bytes that are no text")
    lines = head.splitlines(keepends=True)
    if len(head) == HEAD and len(lines) > 1:
        del lines[-1]
    start, count, above, comments = 0, None, None, list[str]()
    if head.startswith(BOM_UTF8):
        start, lines[0] = len(BOM_UTF8), lines[0].removeprefix(BOM_UTF8)
    for number, line in enumerate(lines, 1):
        text = _decoded(line)
        delimiter = _delimiter(text, options.delimiter)
        if text.startswith(COMMENTS):
            comments.append(text.lstrip("#/%! "))
        elif delimiter is not None:
            break
        elif WHOLE.fullmatch(text) and count is None:
            count = int(text)
        elif text.lower().startswith(EXCEL):
            pass
        elif text and above is None:
            above = text
        elif text:
            raise FileFormatError(
                f"line {number} of {path} holds no point, nor the names of columns: {text[:60]!r}"
            )
        start += len(line)
    else:
        raise FileFormatError(f"{path} has no line with three numbers among its first {len(lines)}")
    sample = [_split(_decoded(line), delimiter) for line in lines[number - 1 :][:1000]]
    width = len(sample[0])
    sample = [fields for fields in sample if len(fields) == width]
    dtypes = tuple(_dtype(column, delimiter) for column in zip(*sample, strict=True))
    names = _names(path, width, above, comments, delimiter, options)
    for column, name in enumerate(names or POSITION):
        if dtypes[column] is None and name.lower() in POSITION:
            text = sample[0][column][:60]
            raise FileFormatError(f"column {name} of {path} holds text, such as {text!r}")
    return _Layout(start, delimiter, names, dtypes, count, b'"' in head)


def _decoded(line: bytes) -> str:
    try:
        return line.decode().strip(" \r\n")
    except UnicodeDecodeError:
        return line.decode("latin-1").strip(" \r\n")


def _delimiter(text: str, given: str | None) -> str | None:
    """Return the first delimiter that splits the line `text` into three or more numbers, or None.

    If `given` is not None, only this delimiter is tried.
    """
    for delimiter in DELIMITERS if given is None else (given.replace(" ", SPACES),):
        fields = [field for field in _split(text, delimiter) if field not in MISSING]
        if sum(_number(field, delimiter) is not None for field in fields) >= 3:
            return delimiter
    return None


def _split(text: str, delimiter: str) -> list[str]:
    fields = text.split(delimiter) if delimiter else text.split()
    return [field.strip().strip('"').strip() for field in fields]


def _number(field: str, delimiter: str) -> float | None:
    """Convert the text of a field to a number; NaN for a missing number, None for other text.

    The text may have a decimal comma if `delimiter`, the text between fields, is not a comma.
    """
    try:
        return float(field.replace("_", "?"))
    except ValueError:
        pass
    if field.strip().lower() in MISSING or MICROSOFT_NAN.fullmatch(field.strip()):
        return float("nan")
    if delimiter != "," and field.count(",") == 1:
        return _number(field.replace(",", "."), ",")
    return None


def _dtype(fields: Sequence[str], delimiter: str) -> type | None:
    if all(WHOLE.fullmatch(field) and abs(int(field)) < 2**63 for field in fields):
        return np.int64
    numbers = sum(field != "" and _number(field, delimiter) is not None for field in fields)
    # Half of the fields are enough, so that a column with one broken number is not taken as text
    # and left out, but raises an error.
    return np.float64 if 2 * numbers >= sum(map(bool, fields)) > 0 else None


def _names(
    path: Path,
    width: int,
    above: str | None,
    comments: list[str],
    delimiter: str,
    options: ReadOptions,
) -> tuple[str, ...] | None:
    if options.columns is not None:
        given = options.columns if isinstance(options.columns, int) else len(options.columns)
        if given != width:
            raise FileFormatError(f"{path} has {width} columns, not the {given} that columns says")
        if not isinstance(options.columns, int):
            return tuple(options.columns)
    for text in (*filter(None, [above]), *reversed(comments)):
        names = _split(text, delimiter)
        if len(names) != width:
            names = [name for name in re.split(r"[\s,;|]+", text.replace('"', "")) if name]
        if len(names) == width - 1:
            names.append("")
        positions = any(all(find_name(names, axis) for axis in group) for group in POSITIONS)
        if len(names) == width and positions:
            return tuple(name or f"column_{index}" for index, name in enumerate(names))
        # A comment may be any text, so only a line without a comment mark must have names.
        if text is above:
            raise FileFormatError(
                f"{path} has {width} columns, and above them is {text[:60]!r}, which names "
                f"{len(names)}{'' if positions else ', and no x, y, z'}: give columns= (--columns)"
            )
    extension = path.suffix.lower()
    known = PTS_NAMES.get(width) if extension == ".pts" else EXTENSION_NAMES.get(extension)
    return known if known is not None and len(known) == width else None


def _columns(path: Path, stream: BinaryIO, layout: _Layout) -> dict[str, np.ndarray]:
    used = [column for column, dtype in enumerate(layout.dtypes) if dtype is not None]
    if layout.names is not None:
        used = [column for column in used if layout.names[column] != SKIPPED]
    parts: list[list[np.ndarray]] = [[] for _ in used]
    rows = 0
    for block in _blocks(stream):
        table = _parsed(path, block, layout, used, rows)
        rows += len(table)
        for column, part in zip(used, parts, strict=True):
            part.append(np.array(table[f"f{column}"]))
    if layout.count is not None and rows < layout.count:
        raise FileFormatError(
            f"{path} is cut short: it says {layout.count} points, {rows} are there"
        )
    names = layout.names or [str(column) for column in range(len(layout.dtypes))]
    columns: dict[str, np.ndarray] = {}
    for column, part in zip(used, parts, strict=True):
        columns[free_name(names[column], columns)] = (
            np.concatenate(part) if len(part) > 1 else part[0]
        )
        part.clear()
    return columns


def _blocks(stream: BinaryIO) -> Iterator[str]:
    while block := stream.read(BLOCK):
        block += stream.readline()
        if not block.isspace():
            yield block.decode("latin-1")


def _parsed(path: Path, block: str, layout: _Layout, used: list[int], rows: int) -> np.ndarray:
    """Parse a `block` of lines with N points; return the columns `used` as a structured array [N].

    Field ``f3`` has the column with the index 3, and so on. `rows` is the number of points before
    the block, for messages.
    """
    told = {
        "delimiter": layout.delimiter or None,
        "comments": None,
        "quotechar": '"' if layout.quoted else None,
        "ndmin": 1,
    }

    def exact(text: io.StringIO | list[str], dtypes: dict[int, Any], **more: Any) -> Any:
        with warnings.catch_warnings():
            # Without this, NumPy would round fractions in a column of whole numbers.
            warnings.simplefilter("error", DeprecationWarning)
            return np.loadtxt(text, [(f"f{k}", kind) for k, kind in dtypes.items()], **told, **more)

    width, kinds = len(layout.dtypes), {k: layout.dtypes[k] for k in used}
    # Without usecols, NumPy refuses lines with more columns. One character of a word is enough.
    with suppress(ValueError, DeprecationWarning):
        return exact(io.StringIO(block), {k: kinds.get(k, "U1") for k in range(width)})
    lines = [
        line
        for line in block.splitlines()
        if line.strip()
        and not line.lstrip().startswith(COMMENTS)
        # Each scan of a .pts begins with its number of points.
        and not WHOLE.fullmatch(line.strip())
    ]
    floats = [(f"f{k}", np.float64) for k in used]
    if not lines:
        return np.zeros(0, floats)

    def number(field: str) -> float:
        value = _number(field, layout.delimiter)
        if value is None:
            raise ValueError(f"{field[:60]!r} is no number")
        return value

    for row, line in enumerate(lines, rows):
        more = _split(line, layout.delimiter)[width:]
        # Words after the last column are left out, as a column of words is.
        words = [field in MISSING or _number(field, layout.delimiter) is None for field in more]
        if not all(words):
            raise FileFormatError(
                f"{path} has {width} columns, and {width + len(more)} at row {row} (counted from 0)"
            )
    with suppress(ValueError, DeprecationWarning):
        return exact(lines, kinds, usecols=used)
    try:
        return np.loadtxt(lines, floats, converters=number, usecols=used, **told)
    except ValueError as error:
        raise FileFormatError(
            f"cannot read {path} as text: {row_error(error, rows)} (counted from 0)"
        ) from error
