"""Objects of a street as boxes: which primitives each one has, and the box around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voxax.io.simulator.solids import BOX, Pose, Solids, to_local


@dataclass(frozen=True)
class PlacedObjects:
    """Objects whose primitives stand side by side in a street's :class:`Solids`.

    Attributes:
      label: ``int32[m]``, index into :data:`voxax.io.simulator.CLASS_NAMES`.
      pose: ``float64[m, 4]``, x, y and z where each stands, in meters, and its yaw in radians.
      first: ``int64[m]``, its first primitive, ascending.
      stop: ``int64[m]``, the one behind its last.
    """

    label: np.ndarray
    pose: np.ndarray
    first: np.ndarray
    stop: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[tuple[int, Pose, int, int]]) -> PlacedObjects:
        """Return objects from rows of (label, pose, first, stop)."""
        table = np.array([(label, *pose, first, stop) for label, pose, first, stop in rows])
        table = table.reshape(-1, 7)
        label, first, stop = table[:, 0], table[:, 5], table[:, 6]
        return cls(
            label.astype(np.int32), table[:, 1:5], first.astype(np.int64), stop.astype(np.int64)
        )

    def __len__(self) -> int:
        return len(self.label)

    def owner(self, solids: Solids) -> np.ndarray:
        """Return ``int64[n]``: the object of each primitive, -1 for none."""
        owner = np.full(len(solids), -1, np.int64)
        rows, index = self._rows()
        owner[rows] = index
        return owner

    def boxes(self, solids: Solids) -> np.ndarray:
        """Return ``float64[m, 7]``, rows as in :mod:`voxax.detection`.

        The smallest box in the direction of the object's pose that holds its primitives, without
        what reaches into the ground below the place where it stands.
        """
        if not len(self):
            return np.zeros((0, 7))
        rows, index = self._rows()
        some, pose = solids.take(rows), self.pose[index]
        center = to_local((some.center - pose[:, :3]).T, pose[:, 3])
        turn = some.yaw - pose[:, 3]
        c, s = np.abs(np.cos(turn)), np.abs(np.sin(turn))
        x, y, z = some.half.T
        edged = some.shape == BOX
        reach = np.stack(
            [
                np.where(edged, c * x + s * y, np.hypot(c * x, s * y)),
                np.where(edged, s * x + c * y, np.hypot(s * x, c * y)),
                z,
            ]
        )
        starts = np.cumsum(self.stop - self.first) - (self.stop - self.first)
        low = np.minimum.reduceat(center - reach, starts, axis=1)
        high = np.maximum.reduceat(center + reach, starts, axis=1)
        low[2] = np.maximum(low[2], 0.0)
        middle, size = 0.5 * (low + high), high - low
        c, s = np.cos(self.pose[:, 3]), np.sin(self.pose[:, 3])
        return np.stack(
            [
                self.pose[:, 0] + c * middle[0] - s * middle[1],
                self.pose[:, 1] + s * middle[0] + c * middle[1],
                self.pose[:, 2] + middle[2],
                *size,
                self.pose[:, 3],
            ],
            axis=1,
        )

    def _rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the primitives of all objects, ``int64[k]``, and the object of each."""
        counts = self.stop - self.first
        index = np.repeat(np.arange(len(self)), counts)
        within = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.first[index] + within, index
