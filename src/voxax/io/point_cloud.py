"""Point clouds in memory: the form that every file reader returns.

:func:`cloud_from_columns` makes one from the named columns that PLY, PCD and LAS files hold.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from voxax.errors import FileFormatError, InputError

INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, eq=False)
class PointCloud:
    """Points, what was measured at each, and optionally a class for each.

    Positions are float64 because airborne scans use national grids, whose
    coordinates (millions of meters) leave float32 half a meter of precision.

    Args:
        positions: float64 [N, 3], in the units of the file (meters unless the file
            says otherwise). N may be 0.
        attributes: named arrays [N] or [N, k], e.g. ``intensity``, ``rgb`` (uint8
            [N, 3]), ``ring``, ``time``, ``normals``.
        labels: int32 [N] class ids, or None.
        source: where the points came from, for messages and reports.

    Raises:
        InputError: an array has a wrong shape or dtype, or lengths differ.
    """

    positions: np.ndarray
    attributes: dict[str, np.ndarray] = field(default_factory=dict)
    labels: np.ndarray | None = None
    source: str = ""

    def __post_init__(self) -> None:
        positions = np.asarray(self.positions)
        if positions.ndim != 2 or positions.shape[1] != 3 or positions.dtype.kind not in "iuf":
            raise InputError(
                f"positions must be numbers of shape [N, 3], got shape {list(positions.shape)} "
                f"and dtype {positions.dtype}{self._origin()}"
            )
        positions = positions.astype(np.float64, copy=False)
        attributes = {name: np.asarray(values) for name, values in self.attributes.items()}
        for name, values in attributes.items():
            if values.ndim not in (1, 2) or values.dtype == object:
                raise InputError(
                    f"attribute {name!r} must have shape [N] or [N, k], got {list(values.shape)} "
                    f"and dtype {values.dtype}{self._origin()}"
                )
            if len(values) != len(positions):
                raise InputError(
                    f"attribute {name!r} has {len(values)} rows for {len(positions)} points"
                    f"{self._origin()}"
                )
        labels = self.labels
        if labels is not None:
            labels = as_labels(labels)
            if len(labels) != len(positions):
                raise InputError(
                    f"{len(labels)} labels for {len(positions)} points{self._origin()}"
                )
        object.__setattr__(self, "positions", positions)
        object.__setattr__(self, "attributes", attributes)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.positions)

    def __repr__(self) -> str:
        attributes = ", ".join(
            f"{name} {values.dtype}{list(values.shape)}" for name, values in self.attributes.items()
        )
        labeled = "no labels" if self.labels is None else "labeled"
        return f"PointCloud({len(self)} points, {labeled}, {{{attributes}}}{self._origin()})"

    def select(self, mask_or_index: Any) -> "PointCloud":
        """Return the chosen points, with their attributes and labels.

        Args:
            mask_or_index: bool [N], integers [M] (each in -N..N-1; order and repeats
                are kept), or a slice.

        Raises:
            InputError: the mask has another length, an index is out of range, or the
                argument is something else.
        """
        chosen = self._checked_index(mask_or_index)
        return replace(
            self,
            positions=self.positions[chosen],
            attributes={name: values[chosen] for name, values in self.attributes.items()},
            labels=None if self.labels is None else self.labels[chosen],
        )

    def with_labels(self, labels: ArrayLike | None) -> "PointCloud":
        """Return the points with other labels, integers [N], or with none.

        Raises:
            InputError: the count differs from the number of points, or the values are
                not whole numbers in the range of int32.
        """
        return replace(self, labels=None if labels is None else as_labels(labels))

    def _checked_index(self, mask_or_index: Any) -> Any:
        if isinstance(mask_or_index, slice):
            return mask_or_index
        index = np.asarray(mask_or_index)
        if index.ndim == 1 and index.size == 0 and index.dtype != np.bool_:
            # An empty list has dtype float64; it still means "no points".
            return np.zeros(0, np.int64)
        if index.ndim != 1 or index.dtype.kind not in "biu":
            raise InputError(
                "select needs a bool mask [N], integers [M] or a slice, got shape "
                f"{list(index.shape)} and dtype {index.dtype}"
            )
        if index.dtype == np.bool_:
            if len(index) != len(self):
                raise InputError(f"a mask of {len(index)} for {len(self)} points{self._origin()}")
            return index
        low, high = int(index.min()), int(index.max())
        if low < -len(self) or high >= len(self):
            raise InputError(
                f"indices {low}..{high} reach outside the {len(self)} points{self._origin()}"
            )
        return index

    def _origin(self) -> str:
        return f" ({self.source})" if self.source else ""


def as_labels(values: ArrayLike) -> np.ndarray:
    """Return `values` as int32 [N].

    Floats are accepted where they are whole numbers: several formats store every
    column as float32.

    Raises:
        InputError: not one-dimensional, not whole numbers, or outside the range of int32.
    """
    labels = np.asarray(values)
    if labels.ndim != 1 or labels.dtype.kind not in "biuf":
        raise InputError(
            f"labels must be whole numbers of shape [N], got shape {list(labels.shape)} "
            f"and dtype {labels.dtype}"
        )
    if labels.dtype.kind == "f":
        # NaN differs from its own rounding, so this catches it too.
        broken = np.flatnonzero(labels != np.rint(labels))
        if len(broken):
            row = int(broken[0])
            raise InputError(
                f"labels must be whole numbers: {len(broken)} of {len(labels)} are not, "
                f"the first is {labels[row]} at row {row}"
            )
    if labels.size and (labels.min() < INT32.min or labels.max() > INT32.max):
        raise InputError(
            f"labels {labels.min()}..{labels.max()} reach outside int32 ({INT32.min}..{INT32.max})"
        )
    return labels.astype(np.int32, copy=False)


POSITION = ("x", "y", "z")
COLOR = ("red", "green", "blue")
NORMAL = ("nx", "ny", "nz")
LABEL_NAMES = ("label", "labels", "semantic", "class", "classification")

# CloudCompare writes every column of its own with this prefix.
CLOUDCOMPARE_PREFIX = "scalar_"


def cloud_from_columns(columns: Mapping[str, np.ndarray], source: str) -> PointCloud:
    """Sort named columns into positions, colors, normals, labels and the rest.

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
    label = next((name for name in LABEL_NAMES if name in named and named[name].ndim == 1), None)
    labels = None if label is None else as_labels(named.pop(label))
    return PointCloud(positions, named | attributes, labels, source)


def to_uint8(colors: np.ndarray) -> np.ndarray:
    """Return colors of any usual scale as uint8 of the same shape.

    Floats up to 1 are scaled by 255. Wider integers above 255 lose their low byte;
    where no value is above 255 they are taken as they are, because many scanners
    write 8-bit colors into the 16-bit fields of LAS.
    """
    if colors.dtype == np.uint8:
        return colors
    top = colors.max(initial=0)
    if colors.dtype.kind == "f":
        scaled = np.nan_to_num(colors) * (255 if top <= 1 else 1)
        return np.rint(np.clip(scaled, 0, 255)).astype(np.uint8)
    return np.clip(colors >> 8 if top > 255 else colors, 0, 255).astype(np.uint8)


def _native(values: np.ndarray) -> np.ndarray:
    """Return a contiguous copy in this machine's byte order, free of the file's buffer."""
    return np.array(values, dtype=values.dtype.newbyteorder("="), order="C")


def _stacked(named: dict[str, np.ndarray], names: tuple[str, ...]) -> np.ndarray:
    return np.stack([named.pop(name) for name in names], axis=1)
