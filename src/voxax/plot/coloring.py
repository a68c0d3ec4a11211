"""Colors for the points of a cloud by label, error, feature or tile, each with its legend.

NumPy only. Classes have the colors of all other pictures, numbers run from light to dark.
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

# Integers of so few values are told apart one by one.
FEW_VALUES = 12
# Shades of a ramp. Its lightest part is left out: it would vanish on a light ground.
_SHADES, _LIGHTEST = 256, 0.15
READ = "#2f78b5"


@dataclass(frozen=True)
class Coloring:
    """Colors of a cloud's points.

    Attributes:
      colors: uint8 [N, 3].
      legend: what each color means, ``(words, "#rrggbb")``.
      note: a sentence about the whole.
    entries: which entry of the legend a point has, int [N], or None where they blend.
    """

    colors: np.ndarray
    legend: tuple[tuple[str, str], ...]
    note: str = ""
    entries: np.ndarray | None = None


def by_label(labels: np.ndarray, class_names: Sequence[str] | None = None) -> Coloring:
    """Color points by class.

    Args:
      labels: integers [N]; negative is "no label".
      class_names: the name of class 0, 1, ...; by default "class 3" and the like.

    Raises:
      InputError: another shape, or a label has no name.
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
      prediction: integers [N].
      truth: integers [N]; negative does not count.

    Raises:
      InputError: other shapes, or two lengths.
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
    """Color points by a number: integers of few values one by one, others along a ramp.

    Args:
      values: numbers [N]. The ramp runs from their 1st to their 99th percentile, or around 0
          if values have both signs; values that are not finite are gray.

    Raises:
      InputError: another shape, or no numbers.
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
    """Color points by the tile of ``tile`` consecutive rows of their voxels; eight colors repeat.

    Args:
      rows: integers [N], a point's voxel, negative without one.
      tile: rows of a tile.

    Raises:
      InputError: another shape.
    """
    _check_integers("rows", rows)
    number = np.where(rows < 0, -1, rows // tile)
    index = np.where(number < 0, len(GROUPS), number % len(GROUPS))
    note = f"{int(number.max(initial=-1)) + 1:,} tiles of {tile} voxels; eight colors repeat"
    return Coloring(_table([*GROUPS, UNKNOWN])[index], (), note)


def by_window(rows: np.ndarray, windows: np.ndarray, number: int, tile: int) -> Coloring:
    """Color one tile of voxels, and the runs of rows that a kernel reads for it.

    Args:
      rows: integers [N], a point's voxel, negative without one.
      windows: integers [2, tiles, columns]: first row and length of each run, as the map's view
          ``windows``.
      number: of the tile, from 0.
      tile: rows of a tile.

    Raises:
      InputError: another shape, or no such tile.
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
    """Color each point as one entry of the legend."""
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
    """Stack colors as uint8 [len(colors), 3]; one black row without any."""
    return np.stack([rgb(color) for color in colors]) if colors else np.zeros((1, 3), np.uint8)
