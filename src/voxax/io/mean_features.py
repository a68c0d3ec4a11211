"""Convert point clouds to voxels with mean point features, the input of published networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from voxax.detection import Region
from voxax.errors import InputError
from voxax.geometry import Plan
from voxax.geometry import host as geometry_host
from voxax.io.examples import Example, attribute_columns, attribute_width, planned_example
from voxax.io.point_cloud import PointCloud

POSITION, ZERO = "xyz", "zero"
RGB = "rgb"


@dataclasses.dataclass(frozen=True)
class MeanFeatures:
    """Callable that converts a cloud to an `Example`; features are means over the voxel's points.

    It can be pickled for worker processes.

    Attributes:
      voxel_size: the edge length of a voxel, one number for all axes or one for each axis.
      features: the names of features in the order of the network's channels: ``xyz`` for
        positions, ``zero`` for a channel of zeros (the time of a single sweep), or the name of an
        attribute of the points. Unsigned integers (colors) are scaled to 0..1; other numbers
        are unchanged.
      low, high: two opposite corners, [3] each, of a box. Points outside the box are left out, and
        voxel (0, 0, 0) begins at `low`. None uses all points.
      signed_colors: whether the attribute ``rgb`` is scaled to -1..1, as in Pointcept.
      plan: the network's plan, which adds kernel maps to the voxels; None adds none.
      min_capacity: see :class:`voxax.io.examples.Preparation`.
    """

    voxel_size: float | Sequence[float]
    features: tuple[str, ...] = (POSITION,)
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    signed_colors: bool = False
    plan: Plan | None = None
    min_capacity: int = 0

    @property
    def num_channels(self) -> int:
        """The number of channels of the voxel features, e.g. 3 for ``xyz``."""
        own = {POSITION: 3, ZERO: 1}
        return sum(own[name] if name in own else attribute_width(name) for name in self.features)

    def __call__(self, cloud: PointCloud) -> Example:
        """Convert a cloud to an `Example`; its ``inverse`` is -1 for points outside the box.

        Raises:
          InputError: no point is inside the box, or an attribute is missing or not finite.
        """
        inside = np.ones(len(cloud), bool)
        if self.low is not None and self.high is not None:
            positions = cloud.positions
            inside = Region(self.low, self.high, self.voxel_size).holds(positions)
            if not inside.any():
                raise InputError(
                    f"none of the {len(cloud)} points of {cloud.source or 'the cloud'} lies "
                    f"between {tuple(self.low)} and {tuple(self.high)}; they span "
                    f"{positions.min(0).round(1).tolist()} to {positions.max(0).round(1).tolist()}"
                )
        chosen = cloud.select(inside)
        features = np.stack(
            [column for name in self.features for column in self._columns(chosen, name)], axis=1
        )
        # The voxel grid begins at the box or near the points: float32 is precise only near zero.
        size = np.broadcast_to(np.asarray(self.voxel_size, np.float64), (3,))
        if self.low is not None:
            corner = np.asarray(self.low, np.float64)
        else:
            corner = np.floor(chosen.positions.min(0) / size) * size
        voxels, rows = geometry_host.voxelize_on_host(
            chosen.positions - corner,
            features.astype(np.float32),
            size.tolist(),
            min_capacity=self.min_capacity,
        )
        inverse = np.full(len(cloud), -1, np.int32)
        inverse[inside] = rows
        return planned_example(cloud, voxels, inverse, self.plan, self.min_capacity)

    def _columns(self, cloud: PointCloud, name: str) -> list[np.ndarray]:
        if name == POSITION:
            return list(cloud.positions.T)
        if name == ZERO:
            return [np.zeros(len(cloud))]
        columns = attribute_columns(cloud, name)
        return [2 * c - 1 for c in columns] if self.signed_colors and name == RGB else columns
