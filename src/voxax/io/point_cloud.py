"""The class `PointCloud`, a point cloud in memory, which every file reader returns."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from voxax.errors import InputError

INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, eq=False)
class PointCloud:
    """A cloud of N points with measured attributes, and optionally a class for each point.

    Positions are float64 because airborne scans use national grids, with coordinates of millions
    of meters, at which the precision of float32 is half a meter. Arrays that already have the
    dtypes below are used without a copy.

    Args:
      positions: float64 [N, 3], in the units of the file (meters unless the file
          says otherwise). N may be 0.
      attributes: named arrays [N] or [N, k], e.g. ``intensity``, ``rgb`` (uint8
          [N, 3]), ``ring``, ``time``, ``normals``.
      labels: int32 [N] class ids, or None.
      source: origin of the points, such as a file, for messages and reports.

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
        """Return a cloud of the chosen points only, with their attributes and labels.

        Args:
          mask_or_index: bool [N] that is true for chosen points, indices [M] (in -N..N-1; order
              and repeats are kept), or a slice.

        Raises:
          InputError: the mask has another length, an index is out of range, or the
              argument has another shape or type.
        """
        chosen = self._checked_index(mask_or_index)
        return replace(
            self,
            positions=self.positions[chosen],
            attributes={name: values[chosen] for name, values in self.attributes.items()},
            labels=None if self.labels is None else self.labels[chosen],
        )

    def with_labels(self, labels: ArrayLike | None) -> "PointCloud":
        """Return this cloud with `labels`, integers [N], in place of its labels; None removes them.

        Raises:
          InputError: the number of labels is not N, or the values are not whole numbers in the
              range of int32.
        """
        return replace(self, labels=None if labels is None else as_labels(labels))

    def _checked_index(self, mask_or_index: Any) -> Any:
        if isinstance(mask_or_index, slice):
            return mask_or_index
        index = np.asarray(mask_or_index)
        if index.ndim == 1 and index.size == 0 and index.dtype != np.bool_:
            # An empty list has dtype float64, and means "no points".
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


def joined(clouds: Sequence[PointCloud]) -> PointCloud:
    """Concatenate clouds, with the attributes that all clouds have, and the source of the first.

    Raise InputError if only some clouds have labels, or if an attribute's dtype or width differs.
    """
    labels = [cloud.labels for cloud in clouds if cloud.labels is not None]
    if len(labels) not in (0, len(clouds)):
        raise InputError("one cloud has labels and the other none: give both labels, or neither")
    attributes = {}
    for name, own in clouds[0].attributes.items():
        parts = [cloud.attributes[name] for cloud in clouds if name in cloud.attributes]
        for more in parts:
            if more.dtype != own.dtype or more.shape[1:] != own.shape[1:]:
                raise InputError(
                    f"attribute {name!r} is {own.dtype}{list(own.shape)} in one cloud and "
                    f"{more.dtype}{list(more.shape)} in the other: give both the same dtype and "
                    "columns"
                )
        if len(parts) == len(clouds):
            attributes[name] = np.concatenate(parts)
    positions = np.concatenate([cloud.positions for cloud in clouds])
    found = np.concatenate(labels) if labels else None
    return PointCloud(positions, attributes, found, clouds[0].source)


def as_labels(values: ArrayLike) -> np.ndarray:
    """Convert class ids to labels, int32 [N].

    Floats are accepted if they are whole numbers, because several formats store every
    column as float32.

    Raises:
      InputError: `values` are not one-dimensional, not whole, or outside the range of int32.
    """
    labels = np.asarray(values)
    if labels.ndim != 1 or labels.dtype.kind not in "biuf":
        raise InputError(
            f"labels must be whole numbers of shape [N], got shape {list(labels.shape)} "
            f"and dtype {labels.dtype}"
        )
    if labels.dtype.kind == "f":
        # This finds NaN too, because NaN is not equal to NaN.
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


def to_uint8(colors: np.ndarray) -> np.ndarray:
    """Convert colors of any usual scale to uint8 (0 to 255) of the same shape.

    | values in the whole array | conversion |
    |---|---|
    | uint8 | none |
    | int8 | the bits are taken as uint8 |
    | floats from -1 to 1, some below -0.1, as ScanNet is stored for PyTorch | -1..1 to 0..255 |
    | other floats up to 1; or up to 2 if some are between 0 and 1 | 0..1 to 0..255 |
    | floats with a value above 1023 | 0..65535 to 0..255 |
    | other floats | rounding |
    | wider integers with a value above 255 | 0..65535 to 0..255 |
    | wider integers up to 255, which many scanners write into LAS | none |

    Results outside 0..255 are clipped. NaN and infinity become 0.
    """
    if colors.dtype == np.uint8:
        return colors
    if colors.dtype == np.int8:
        return colors.view(np.uint8)
    if colors.dtype.kind != "f":
        top = colors.max(initial=0)
        return np.clip(colors >> 8 if top > 255 else colors, 0, 255).astype(np.uint8)
    known = np.nan_to_num(colors, posinf=0, neginf=0)
    low, top = known.min(initial=0), known.max(initial=0)
    if -1 <= low < -0.1 and top <= 1:
        known = np.where(np.isfinite(colors), (known + 1) * 127.5, 0)
    elif top <= 1 or (top <= 2 and ((known > 0) & (known < 1)).any()):
        known = known * 255
    elif top > 1023:
        known = np.floor(known / 256)
    return np.rint(np.clip(known, 0, 255)).astype(np.uint8)
