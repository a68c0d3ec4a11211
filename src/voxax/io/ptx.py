"""Read PTX, a text format of terrestrial scanners: each scan is a grid of points with a pose.

Source: Leica Cyclone's export "PTX". A scan begins with ten lines: columns, rows, the position of
the scanner, its three axes, and four lines of a matrix. Then there is a line for each cell of the
grid: x, y, z, an intensity of 0 to 1, and optionally red, green and blue.
"""

from codecs import BOM_UTF8
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.arrays import chosen_items, joined_items
from voxax.io.columns import COLOR, POSITION, cloud_from_columns
from voxax.io.decoding import check_count, reading
from voxax.io.numbers import number_rows
from voxax.io.options import ReadOptions
from voxax.io.point_cloud import PointCloud
from voxax.io.text import PTS_NAMES

# The names of columns, by the number of columns.
NAMES = {3: POSITION} | PTS_NAMES
# The number of values in each line between the size of the grid and the points.
POSE = (3, 3, 3, 3, 4, 4, 4, 4)
# In bytes: three coordinates of one digit, each followed by a separator.
SHORTEST_POINT = 6


def read_ptx(path: Path, options: ReadOptions) -> PointCloud:
    """Read the scans of a PTX file into one cloud; each scan is transformed by its matrix.

    Cells without a measurement, whose position is 0 0 0, are left out. Colors become ``rgb``.
    A column that some scans lack is left out. If several scans are read, the attribute ``item`` is
    the index of each point's scan. ``options.item`` is the index of the only scan to
    read; None reads all scans.
    """
    with reading(path, "PTX"), path.open("rb") as stream:
        size, scans = path.stat().st_size, list[dict[str, np.ndarray]]()
        while columns := _next_words(stream):
            scan = _scan(path, stream, columns, size)
            scans.append(scan if options.item in (None, len(scans)) else {})
        if not scans:
            raise FileFormatError(f"{path} holds no scans")
        chosen = chosen_items(options.item, len(scans), str(path))
        joined = joined_items([scans[number] for number in chosen], chosen)
        return cloud_from_columns(joined, str(path), options.label_field)


def _scan(path: Path, stream: BinaryIO, first: list[bytes], size: int) -> dict[str, np.ndarray]:
    """Read the next scan as columns by name, with positions transformed by the scan's matrix.

    Points at the origin, which the scanner did not measure, are left out. `first` has the
    words of the scan's first line, and `size` is the size of the file in bytes.
    """
    grid = _counted(path, first), _counted(path, _next_words(stream))
    cells = grid[0] * grid[1]
    pose = [_numbers(path, _next_words(stream), width) for width in POSE]
    # The last line may end without a line break.
    check_count(path, "points", cells, SHORTEST_POINT, size + 1 - stream.tell())
    first_line = next((line for line in stream if line.split()), b"") if cells else b"0 0 0"
    width = len(first_line.split())
    if width not in NAMES:
        raise FileFormatError(
            f"{path} has points of {width} numbers; known are {', '.join(map(str, NAMES))}"
        )
    names = NAMES[width]
    kinds = [np.dtype(np.int64 if name in COLOR else np.float64) for name in names]
    numbers = number_rows(path, chain([first_line], stream), cells, kinds)
    columns = dict(zip(names, numbers, strict=True))
    if len(numbers[0]) < cells:
        raise FileFormatError(
            f"{path} is cut short: it says {grid[0]} x {grid[1]} points, {len(numbers[0])} are "
            "there"
        )
    positions = np.stack([columns[axis] for axis in POSITION], axis=1)
    measured = (positions != 0).any(axis=1)
    # Points are row vectors, so the last row of the matrix is the translation.
    matrix = np.stack(pose[-4:])
    placed = positions[measured] @ matrix[:3, :3] + matrix[3, :3]
    others = {name: values[measured] for name, values in columns.items() if name not in POSITION}
    return dict(zip(POSITION, placed.T, strict=True)) | others


def _next_words(stream: BinaryIO) -> list[bytes]:
    """Return the words of the next line with text, or an empty list at the end of the file."""
    for line in stream:
        if words := line.removeprefix(BOM_UTF8).split():
            return words
    return []


def _counted(path: Path, words: list[bytes]) -> int:
    if len(words) != 1 or not words[0].isdigit():
        raise FileFormatError(
            f"{path} is broken: a scan begins with the columns and the rows of its grid, and not "
            f"with {b' '.join(words).decode('latin-1')[:60]!r}"
        )
    return int(words[0])


def _numbers(path: Path, words: list[bytes], width: int) -> np.ndarray:
    numbers = np.array([float(word) for word in words])
    if len(numbers) != width or not np.isfinite(numbers).all():
        raise FileFormatError(
            f"{path} is broken: a line of the scanner's pose has {len(words)} numbers, not {width}"
        )
    return numbers
