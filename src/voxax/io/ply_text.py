"""The rows of a PLY file of text, read as the many programs write them.

Microsoft's C library prints what is not a number as ``1.#QNAN``; programs write ``255.0`` or
``nan`` into columns of integers, and leave lines empty. plyfile refuses these.
"""

import io
import re
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.ply_header import TYPES, PlyElement, PlyHeader

MSVC_INFINITY = re.compile(r"\d\.\d*#(?:INF|J)\w*", re.IGNORECASE)
MSVC_NAN = re.compile(r"\d\.\d*#\w+|nan\(\w*\)", re.IGNORECASE)
SPACES = "\ufeff \t\r\n"


def read_rows(path: Path, stream: BinaryIO, header: PlyHeader) -> dict[str, dict[str, np.ndarray]]:
    """Return the columns of each element, by the names in the file.

    A column has the type that the header says, but a column of integers that holds something
    else is float64. A list of one length in all rows is [N, k], otherwise an array of arrays.

    Raises:
        FileFormatError: there are fewer rows, or other columns, than the header says.
        ValueError: something is no number.
    """
    stream.seek(header.data_at)
    text = io.TextIOWrapper(stream, encoding="utf-8", errors="replace")
    try:
        lines = _lines(text)
        return {element.name: _columns(path, element, lines) for element in header.elements}
    finally:
        # The stream stays open; it is not ours.
        text.detach()


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    for line in text:
        line = line.strip(SPACES)
        if "#" in line or "(" in line:
            line = MSVC_NAN.sub("nan", MSVC_INFINITY.sub("inf", line))
        if line:
            yield line


def _columns(path: Path, element: PlyElement, lines: Iterator[str]) -> dict[str, np.ndarray]:
    rows, listed = islice(lines, element.count), element.properties
    if any(column.is_list for column in listed):
        columns, found = _split(path, element, rows)
    else:
        first = next(rows, None)
        table = np.zeros((0, len(listed)))
        if first is not None:
            try:
                table = np.loadtxt(chain([first], rows), comments=None, ndmin=2)
            except ValueError as error:
                # What follows is NumPy's advice to its caller.
                why = str(error).partition(";")[0]
                raise FileFormatError(f"the rows of {element.name} in {path}: {why}") from error
        found = len(table)
        if table.shape[1] != len(listed):
            raise FileFormatError(
                f"the rows of {element.name} in {path} have {table.shape[1]} numbers, "
                f"its header names {len(listed)}"
            )
        columns = {
            column.name: _typed(values, TYPES[column.types[0]])
            for column, values in zip(listed, table.T, strict=True)
        }
    if found < element.count:
        raise FileFormatError(
            f"{path} is cut short: its header says {element.count} rows of {element.name}, "
            f"{found} are there"
        )
    return columns


def _split(
    path: Path, element: PlyElement, rows: Iterator[str]
) -> tuple[dict[str, np.ndarray], int]:
    """Return the columns of rows with lists, which say how long they are; and how many rows."""
    words: dict[str, list[list[str]]] = {column.name: [] for column in element.properties}
    found = 0
    for row in rows:
        rest = row.split()
        for column in element.properties:
            size = int(rest.pop(0)) if column.is_list and rest else 1
            if not 0 <= size <= len(rest):
                raise FileFormatError(
                    f"row {found} of {element.name} in {path} ends before its {column.name}"
                )
            words[column.name].append(rest[:size])
            rest = rest[size:]
        found += 1
    columns: dict[str, np.ndarray] = {}
    for column in element.properties:
        kind, values = TYPES[column.types[-1]], words[column.name]
        if not column.is_list:
            columns[column.name] = _typed(np.array([word for (word,) in values], float), kind)
        elif len(set(map(len, values))) == 1:
            columns[column.name] = np.array(values, kind)
        else:
            columns[column.name] = np.empty(found, object)
            columns[column.name][:] = [np.array(value, kind) for value in values]
    return columns, found


def _typed(values: np.ndarray, kind: str) -> np.ndarray:
    if kind.startswith("f"):
        return values.astype(kind)
    limits = np.iinfo(kind)
    whole = (values == np.rint(values)) & (values >= limits.min) & (values <= limits.max)
    return values.astype(kind) if whole.all() else values
