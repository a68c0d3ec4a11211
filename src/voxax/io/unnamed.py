"""Columns that have no names: what their values show."""

from collections.abc import Sequence

import numpy as np

# Rows that decide whether all others are looked at.
GLANCE = 1000
# No class number of the data sets that store classes beside colors is as large.
A_COLOR = 32
A_BYTE = 255


def shown_names(columns: Sequence[np.ndarray]) -> tuple[str, ...]:
    """Name columns [N]: ``x``, ``y``, ``z``, then what the values show, or ``column_3``, ....

    Three columns of unit vectors are ``nx``, ``ny``, ``nz``. Three of whole numbers up to 255 are
    ``red``, ``green``, ``blue``, if one is at least 32 and no other three could be; a column of
    255 behind them is ``alpha``.

    Args:
        columns: at least three, in the order of the file.
    """
    names = ["x", "y", "z", *(f"column_{column}" for column in range(3, len(columns)))]
    triples = {start: columns[start : start + 3] for start in range(3, len(columns) - 2)}
    normals = [start for start, triple in triples.items() if _unit(triple)]
    if len(normals) == 1:
        names[normals[0] : normals[0] + 3] = "nx", "ny", "nz"
    colors = [start for start, triple in triples.items() if _bytes(triple)]
    if len(colors) > 1:
        colors = [start for start in colors if min(map(np.max, triples[start])) >= A_COLOR]
    opaque = [start for start in colors if np.all(columns[start + 2] == A_BYTE)]
    if len(colors) > 1 and opaque == colors[1:2]:
        names[colors[0] + 3] = "alpha"
        colors = colors[:1]
    if len(colors) == 1:
        names[colors[0] : colors[0] + 3] = "red", "green", "blue"
    return tuple(names)


def _unit(triple: Sequence[np.ndarray]) -> bool:
    for rows in (slice(GLANCE), slice(None)):
        squared = sum(np.square(column[rows], dtype=np.float64) for column in triple)
        if not np.all(np.abs(squared - 1) < 0.02):
            return False
    return any(np.any(column % 1) for column in triple)


def _bytes(triple: Sequence[np.ndarray]) -> bool:
    for rows in (slice(GLANCE), slice(None)):
        for column in triple:
            part = column[rows]
            if not np.all((part >= 0) & (part <= A_BYTE) & (part == np.rint(part))):
                return False
    # Below are classes, or the numbers of returns.
    return max(map(np.max, triple)) >= A_COLOR
