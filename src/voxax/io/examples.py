"""Convert point clouds to the input of a network: voxels with features, labels and kernel maps."""

from __future__ import annotations

import dataclasses

import numpy as np

from voxax.errors import InputError
from voxax.geometry import Plan, Voxels
from voxax.geometry import host as geometry_host
from voxax.io.ground import height_above_ground
from voxax.io.point_cloud import PointCloud

GEOMETRIC_FEATURES = ("one", "height", "offset x", "offset y", "offset z")
# Attributes with several numbers for each point; all other attributes have one.
WIDE_ATTRIBUTES = {"rgb": 3, "normals": 3}


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
    """One scene as input of a network, in NumPy arrays.

    Attributes:
      voxels: voxels with features ``float32[capacity, channels]``, where ``capacity`` is the number
          of rows with padding. If a :class:`voxax.Plan` was given, they have its kernel maps.
      labels: ``int32[capacity]``, the most frequent class of each voxel; -1 for padding and for
        voxels without labels.
      inverse: ``int32[N]``, the voxel row of each point; -1 for a point without a voxel.
      point_labels: ``int32[N]``, the class of each point; None for a cloud without labels.
    """

    voxels: Voxels
    labels: np.ndarray
    inverse: np.ndarray
    point_labels: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Callable that converts a cloud to an :class:`Example`; it can be pickled for workers.

    Attributes:
      voxel_size: edge length of a voxel in meters, or one length for each of x, y and z.
      attributes: names of the point attributes to use as features after five geometric ones: a
        constant 1, height above ground, and x, y, z in the voxel. Unsigned integers (colors,
        intensities of some formats) are scaled to 0..1, other attributes are unchanged.
      ground_cell, ground_window: see :func:`voxax.io.ground.height_above_ground`.
      plan: plan that adds kernel maps to the voxels, or None. The plan also chooses the number of
        rows, see :meth:`voxax.Plan.capacity`.
      min_capacity: least number of rows of an example, so that scenes of similar size share one
        compiled program.
    """

    voxel_size: float | tuple[float, ...]
    attributes: tuple[str, ...] = ()
    ground_cell: float = 1.0
    ground_window: float = 20.0
    plan: Plan | None = None
    min_capacity: int = 0

    @property
    def num_channels(self) -> int:
        """Number of channels of the features: the geometric features and `attributes`."""
        return len(GEOMETRIC_FEATURES) + sum(map(attribute_width, self.attributes))

    def __call__(self, cloud: PointCloud, height: np.ndarray | None = None) -> Example:
        """Convert a cloud of N points to an example.

        `height` [N] is the points' height above ground; if None, it is estimated.

        Raises:
          InputError: an attribute is missing or not finite, see :func:`attribute_columns`.
        """
        positions = cloud.positions
        if height is None:
            height = height_above_ground(
                positions, cell=self.ground_cell, window=self.ground_window
            )
        # The position of a point inside its voxel, from -1 to 1: detail below the voxel size.
        offset = 2 * np.mod(positions / self.voxel_size, 1.0) - 1
        columns = [np.ones(len(positions)), np.clip(height, -2.0, 20.0) / 4.0, *offset.T]
        columns += [column for name in self.attributes for column in attribute_columns(cloud, name)]
        features = np.stack(columns, axis=1).astype(np.float32)
        # float32 is exact enough only near zero, and coordinates of national grids are large. A
        # whole number of voxels is subtracted, so the voxel grid does not move.
        corner = np.zeros(3)
        if np.abs(positions).max(initial=0) > 1e4:
            corner = np.floor(positions.min(0) / self.voxel_size)
        local = positions - corner * self.voxel_size
        voxels, inverse = geometry_host.voxelize_on_host(
            local, features, self.voxel_size, min_capacity=self.min_capacity
        )
        return planned_example(cloud, voxels, inverse, self.plan, self.min_capacity)


def planned_example(
    cloud: PointCloud, voxels: Voxels, inverse: np.ndarray, plan: Plan | None, min_capacity: int
) -> Example:
    """Build the example of a voxelized cloud: add the plan's kernel maps and the voxels' labels.

    Args:
      cloud: N points, whose labels (if any) determine those of the voxels.
      voxels: voxels of the cloud, with features. `plan` may change the number of rows.
      inverse: ``int32[N]``, the voxel row of each point; -1 for a point without a voxel.
      plan, min_capacity: as in :class:`Preparation`.

    Raises:
      InputError: a label is too large.
    """
    count = int(voxels.count)
    if plan is not None:
        voxels = plan.attach(voxels, capacity=plan.capacity(max(count, min_capacity)))
    labels = np.full(voxels.capacity, -1, np.int32)
    if cloud.labels is not None:
        labels[:count] = majority(cloud.labels, inverse, count)
    own = None if cloud.labels is None else cloud.labels.copy()
    return Example(voxels, labels, inverse, own)


def attribute_width(name: str) -> int:
    """Return how many numbers the attribute `name` has for each point, e.g. 3 for ``rgb``."""
    return WIDE_ATTRIBUTES.get(name, 1)


def attribute_columns(cloud: PointCloud, name: str) -> list[np.ndarray]:
    """Return an attribute as a list of columns ``float32[N]``, unsigned integers scaled to 0..1.

    Raises:
      InputError: the cloud lacks the attribute, or the attribute has a wrong number of columns or
        a value that is NaN, infinite or too large for float32.
    """
    where = cloud.source or "the cloud"
    if name not in cloud.attributes:
        raise InputError(
            f"{where} has no attribute {name!r}, which the network reads; it has "
            f"{', '.join(cloud.attributes) or 'none'}"
        )
    values = cloud.attributes[name]
    found = values.shape[1] if values.ndim == 2 else 1
    if found != attribute_width(name):
        raise InputError(
            f"attribute {name!r} of {where} has {found} numbers for each point; the network reads "
            f"{attribute_width(name)}"
        )
    scale = np.iinfo(values.dtype).max if values.dtype.kind == "u" else 1
    with np.errstate(over="ignore"):
        columns = (values.astype(np.float32) / np.float32(scale)).reshape(len(values), found)
    broken = np.flatnonzero(~np.isfinite(columns).all(axis=1))
    if len(broken):
        row = int(broken[0])
        raise InputError(
            f"attribute {name!r} of {where} is NaN, infinite or too large for float32 at "
            f"{len(broken)} of {len(values)} points, first at row {row}: {values[row].tolist()}, "
            f"of the point {cloud.positions[row].tolist()}; mend these values or drop the points"
        )
    return list(columns.T)


def majority(labels: np.ndarray, inverse: np.ndarray, rows: int) -> np.ndarray:
    """Return the most frequent label ``>= 0`` among the points of each voxel row, ``int32[rows]``.

    If several labels are equally frequent, the smallest is taken. A row without labels gets -1.

    Args:
      labels: ``int[N]`` below 2**31, the label of each point; negative means unlabeled.
      inverse: ``int[N]``, the voxel row of each point. A point with a negative row is ignored;
        :func:`voxax.voxelize` gives such a row to a point that it dropped.
      rows: number of voxel rows.

    Raises:
      InputError: the lengths differ, or a row or label is too large.
    """
    labels, inverse = np.asarray(labels), np.asarray(inverse)
    if labels.shape != inverse.shape:
        raise InputError(
            f"labels of shape {list(labels.shape)} for rows of shape {list(inverse.shape)}"
        )
    for name, values, most in (("labels", labels, 2**31), ("inverse", inverse, rows)):
        if values.size and values.max() >= most:
            raise InputError(f"{name} up to {values.max()}: they must be below {most}")
    counted = (labels >= 0) & (inverse >= 0)
    # Count only pairs that occur, because a table of all labels may be too large.
    pairs = (inverse[counted].astype(np.int64) << 31) | labels[counted].astype(np.int64)
    pairs, votes = np.unique(pairs, return_counts=True)
    row, label = pairs >> 31, pairs & (2**31 - 1)
    most = np.zeros(rows, np.int64)
    np.maximum.at(most, row, votes)
    won = np.flatnonzero(votes == most[row])[::-1]  # the last write remains: the smallest label
    winners = np.full(rows, -1, np.int32)
    winners[row[won]] = label[won]
    return winners
