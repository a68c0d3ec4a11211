"""Colors for the points of a cloud by label, error, feature or tile, with a legend.

This module needs only NumPy. Classes have the same colors in all pictures. Numbers run from light
to dark, or from orange over white to blue if some are negative.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voxax.errors import InputError
from voxax.plot.labels import Labeled
from voxax.plot.palette import (
    ACCENT,
    GROUPS,
    IGNORED,
    UNKNOWN,
    Scale,
    class_colors,
    rgb,
)

# Integers with at most this number of different values get one color per value.
FEW_VALUES = 12
# Number of shades of a ramp, and where it begins: lighter shades vanish on a light background.
_SHADES, _LIGHTEST = 256, 0.15
READ = "#2f78b5"


@dataclass(frozen=True)
class Coloring:
    """Colors of a cloud's N points, with their legend.

    Attributes:
      colors: uint8 [N, 3], RGB.
      legend: a pair ``(text, "#rrggbb")`` for each entry of the legend.
      note: a sentence about the whole picture, or empty.
      entries: int [N], the index in ``legend`` for each point; None if points have no entry.
    """

    colors: np.ndarray
    legend: tuple[tuple[str, str], ...]
    note: str = ""
    entries: np.ndarray | None = None


def by_label(labels: np.ndarray, class_names: Sequence[str] | None = None) -> Coloring:
    """Color points by class.

    Args:
      labels: integers [N]; a negative number means "no label".
      class_names: the names of class 0, 1, and so on. None uses "class 0", "class 1".

    Raises:
      InputError: ``labels`` are not integers [N], or a label has no name.
    """
    _check_integers("labels", labels)
    ids, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if class_names is None:
        names = [f"class {i}" for i in ids.tolist() if i >= 0]
        chosen = dict(zip([i for i in ids.tolist() if i >= 0], class_colors(names), strict=True))
        named = dict(zip(chosen, names, strict=True))
    else:
        if len(ids) and ids[-1] >= len(class_names):
            raise InputError(
                f"label {ids[-1]} has no name: {len(class_names)} classes are known, 0 to "
                f"{len(class_names) - 1}"
            )
        chosen = dict(enumerate(class_colors(class_names)))
        named = dict(enumerate(class_names))
    own = [chosen.get(i, IGNORED) for i in ids.tolist()]
    words = [
        f"{named.get(i, 'no label')}: {n:,}"
        for i, n in zip(ids.tolist(), counts.tolist(), strict=True)
    ]
    return _of_entries(own, words, index)


def by_error(prediction: np.ndarray, truth: np.ndarray) -> Coloring:
    """Color points as correct, wrong or ignored.

    Args:
      prediction: integers [N], predicted classes.
      truth: integers [N], true classes; points with a negative number are ignored.

    Raises:
      InputError: the arrays are not integers [N], or have different lengths.
    """
    _check_integers("prediction", prediction)
    _check_integers("truth", truth)
    if len(prediction) != len(truth):
        raise InputError(f"{len(prediction)} predictions for {len(truth)} true labels")
    cloud = Labeled(np.zeros((len(truth), 3)), prediction, truth, (), 0)
    kinds, index = np.unique(cloud.verdict(), return_inverse=True)
    told = [cloud.verdict_counts()[kind] for kind in kinds]
    words = [f"{name}: {number:,}" for name, _, number in told]
    note = cloud.error_sentence() if (truth >= 0).any() else ""
    return _of_entries([color for _, color, _ in told], words, index, note)


def by_feature(values: np.ndarray) -> Coloring:
    """Color points by a number, along a ramp of colors.

    Args:
      values: numbers [N]. Integers with at most 12 different values get one color per value. For
          other numbers the ramp runs from the 1st to the 99th percentile, and is symmetric around 0
          if these percentiles have different signs. Values that are not finite are gray.

    Raises:
      InputError: ``values`` are not numbers [N].
    """
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        raise InputError(
            f"values must be numbers [N], got shape {list(values.shape)} and dtype {values.dtype}"
        )
    if values.dtype.kind in "biu":
        ids, index, counts = np.unique(values, return_inverse=True, return_counts=True)
        if 0 < len(ids) <= FEW_VALUES:
            ramp = _ramp(False)
            places = np.linspace(0, _SHADES - 1, len(ids)).astype(int) if len(ids) > 1 else [128]
            own = [ramp[p] for p in places]
            words = [f"{i}: {n:,}" for i, n in zip(ids.tolist(), counts.tolist(), strict=True)]
            return _of_entries(own, words, index)
    numbers = values.astype(np.float64)
    finite = np.isfinite(numbers)
    low, high = np.percentile(numbers[finite], (1, 99)) if finite.any() else (0.0, 1.0)
    signed = bool(low < 0 < high)
    if signed:
        low, high = -max(-low, high), max(-low, high)
    part = np.where(finite, (numbers - low) / max(high - low, 1e-30), 0.0)
    place = np.rint(np.clip(part, 0, 1) * (_SHADES - 1)).astype(int)
    ramp = _ramp(signed)
    colors = np.where(finite[:, None], _table(ramp)[place], rgb(UNKNOWN))
    steps = np.linspace(0, 1, 5)
    legend = [(f"{low + s * (high - low):.4g}", ramp[round(s * (_SHADES - 1))]) for s in steps]
    if not finite.all():
        legend.append((f"not finite: {int((~finite).sum()):,}", UNKNOWN))
    return Coloring(colors.astype(np.uint8), tuple(legend))


def by_tile(rows: np.ndarray, tile: int) -> Coloring:
    """Color points by tile, the block of voxel rows that a kernel computes together.

    There are eight colors, which repeat.

    Args:
      rows: integers [N], the row of the voxel of each point; negative if a point has no voxel.
      tile: number of consecutive rows in a tile.

    Raises:
      InputError: ``rows`` are not integers [N].
    """
    _check_integers("rows", rows)
    number = np.where(rows < 0, -1, rows // tile)
    index = np.where(number < 0, len(GROUPS), number % len(GROUPS))
    note = f"{int(number.max(initial=-1)) + 1:,} tiles of {tile} voxels; eight colors repeat"
    return Coloring(_table([*GROUPS, UNKNOWN])[index], (), note)


def by_window(rows: np.ndarray, windows: np.ndarray, number: int, tile: int) -> Coloring:
    """Color the voxels of one tile, and the voxels that a kernel reads to compute this tile.

    Args:
      rows: integers [N], the row of the voxel of each point; negative if a point has no voxel.
      windows: integers [2, tiles, columns], the first row and the length of each run of rows that
          is read for a tile, as a kernel map has them under the name ``windows``.
      number: index of the tile, from 0.
      tile: number of consecutive rows in a tile.

    Raises:
      InputError: an array has a wrong shape, or the tile does not exist.
    """
    _check_integers("rows", rows)
    if windows.ndim != 3 or not 0 <= number < windows.shape[1]:
        raise InputError(f"tile {number} is not among windows of shape {list(windows.shape)}")
    read = np.zeros(len(rows), bool)
    lengths = windows[1, number]
    for start, length in zip(windows[0, number], lengths, strict=True):
        read |= (rows >= max(start, 0)) & (rows < start + length)
    own = (rows // tile == number) & (rows >= 0)
    index = np.where(own, 0, np.where(read, 1, 2))
    legend = (("the tile's voxels", ACCENT), ("read for them", READ), ("others", UNKNOWN))
    note = f"{int((lengths > 0).sum())} windows of {int(lengths.max())} rows at most"
    return Coloring(_table([color for _, color in legend])[index], legend, note)


def _of_entries(
    colors: Sequence[str], words: Sequence[str], index: np.ndarray, note: str = ""
) -> Coloring:
    """Return a coloring whose legend entry i has the text ``words[i]`` and the color ``colors[i]``.

    Point n has the entry ``index[n]``, and its color. `note` is a sentence about the picture.
    """
    index = index.reshape(-1)
    legend = tuple(zip(words, colors, strict=True))
    return Coloring(_table(colors)[index], legend, note, index)


def _check_integers(what: str, values: np.ndarray) -> None:
    if values.ndim != 1 or values.dtype.kind not in "biu":
        raise InputError(
            f"{what} must be integers [N], got shape {list(values.shape)} and dtype {values.dtype}"
        )


def _ramp(signed: bool) -> list[str]:
    scale = Scale(np.array([-1.0, 1.0]) if signed else np.array([1.0]))
    values = np.linspace(-1, 1, _SHADES) if signed else np.linspace(_LIGHTEST, 1, _SHADES)
    return [scale.color(value) for value in values]


def _table(colors: Sequence[str]) -> np.ndarray:
    """Convert colors ``"#rrggbb"`` to uint8 [len(colors), 3]; no colors give one black row."""
    return np.stack([rgb(color) for color in colors]) if colors else np.zeros((1, 3), np.uint8)
