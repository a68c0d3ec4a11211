"""Builds a point cloud from the named columns that PLY, PCD and LAS files hold."""

from collections.abc import Mapping

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.point_cloud import PointCloud, as_labels

POSITION = ("x", "y", "z")
COLOR = ("red", "green", "blue")
NORMAL = ("nx", "ny", "nz")
LABEL_NAMES = ("label", "labels", "semantic", "class", "classification")

# CloudCompare writes every column of its own with this prefix.
CLOUDCOMPARE_PREFIX = "scalar_"


def cloud_from_columns(columns: Mapping[str, np.ndarray], source: str) -> PointCloud:
    """Sort named columns into positions, colours, normals, labels and the rest.

    Names are matched without regard to case and without CloudCompare's ``scalar_``.
    ``x y z`` become the positions, ``red green blue`` the attribute ``rgb`` (uint8
    [N, 3]), ``nx ny nz`` the attribute ``normals``, and the first of ``label``,
    ``labels``, ``semantic``, ``class`` and ``classification`` the labels. Every other
    column keeps its name.

    Args:
        columns: arrays [N] or [N, k].
        source: goes into the cloud, and into messages.

    Raises:
        FileFormatError: ``x``, ``y`` or ``z`` is missing.
        InputError: the labels are not whole numbers, or a length differs.
    """
    named: dict[str, np.ndarray] = {}
    for name, values in columns.items():
        plain = name.lower().removeprefix(CLOUDCOMPARE_PREFIX)
        named[name if plain in named else plain] = _native(values)
    missing = [name for name in POSITION if name not in named]
    if missing:
        raise FileFormatError(
            f"{source} has no column {', '.join(missing)}; its columns are "
            f"{', '.join(columns) or 'none'}"
        )
    positions = _stacked(named, POSITION).astype(np.float64)
    attributes: dict[str, np.ndarray] = {}
    if all(name in named for name in COLOR):
        attributes["rgb"] = to_uint8(_stacked(named, COLOR))
    if all(name in named for name in NORMAL):
        attributes["normals"] = _stacked(named, NORMAL)
    labels = None
    for name in LABEL_NAMES:
        if name in named and named[name].ndim == 1:
            labels = as_labels(named.pop(name))
            break
    return PointCloud(positions, named | attributes, labels, source)


def to_uint8(colors: np.ndarray) -> np.ndarray:
    """Colours of any usual scale as uint8 of the same shape.

    Floats up to 1 are scaled by 255. Wider integers above 255 lose their low byte;
    where no value is above 255 they are taken as they are, because many scanners
    write 8-bit colours into the 16-bit fields of LAS.
    """
    if colors.dtype == np.uint8:
        return colors
    top = colors.max(initial=0)
    if colors.dtype.kind == "f":
        return np.rint(np.clip(np.nan_to_num(colors) * (255 if top <= 1 else 1), 0, 255)).astype(
            np.uint8
        )
    return np.clip(colors >> 8 if top > 255 else colors, 0, 255).astype(np.uint8)


def _native(values: np.ndarray) -> np.ndarray:
    """A contiguous copy in this machine's byte order, free of the file's buffer."""
    return np.array(values, dtype=values.dtype.newbyteorder("="), order="C")


def _stacked(named: dict[str, np.ndarray], names: tuple[str, ...]) -> np.ndarray:
    return np.stack([named.pop(name) for name in names], axis=1)
