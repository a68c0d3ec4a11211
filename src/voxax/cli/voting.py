"""Label a scan by averaging predictions of overlapping tiles, and of the scan turned around."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from voxax.errors import InputError
from voxax.io import PointCloud
from voxax.io.augment import rotation_about_z, transform

MOST_VIEWS = 64
# A narrower tile shows too little around a point to predict its class.
LEAST_VOXELS = 16
Logits = Callable[[PointCloud], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Vote:
    """Function that labels the points of a scan by the summed probabilities of several predictions.

    Tiles overlap by half, so each point is in four tiles. The network predicts one tile at a time.
    Memory holds only the probabilities of the points in a strip as wide as a tile.

    Attributes:
      tile: edge of a square tile in x and y in meters; 0 labels the scan as a whole.
      views: number of angles, evenly spaced over a full turn around the vertical axis, at which the
        network sees each tile.
    """

    tile: float = 0.0
    views: int = 1

    def __post_init__(self) -> None:
        if not (self.tile >= 0 and np.isfinite(self.tile)):
            raise InputError(f"--tile {self.tile} must be positive and finite, or 0 for no tiles")
        if not 1 <= self.views <= MOST_VIEWS:
            raise InputError(f"--views {self.views} must be from 1 to {MOST_VIEWS}")

    def check(self, voxel_size: float) -> None:
        """Raise :class:`voxax.InputError` if a tile is less than 16 times `voxel_size` wide.

        A `tile` of 0, which means no tiles, is no error.
        """
        if 0 < self.tile < LEAST_VOXELS * voxel_size:
            raise InputError(
                f"--tile {self.tile} must be at least {LEAST_VOXELS} voxels of {voxel_size} m: "
                f"{LEAST_VOXELS * voxel_size:g}"
            )

    def __call__(self, cloud: PointCloud, logits: Logits) -> np.ndarray:
        """Return the class of each point, ``int32[N]``.

        `logits` is a function from a cloud to the logits of its points, ``float32[N, classes]``.
        """
        if not self.tile or not len(cloud):
            return self._votes(cloud, logits).argmax(-1).astype(np.int32)
        plan = cloud.positions[:, :2]
        cells = np.floor((plan - plan.min(axis=0)) / (self.tile / 2)).astype(np.int64)
        order = np.lexsort((cells[:, 1], cells[:, 0]))
        rows, starts = np.unique(cells[order, 0], return_index=True)
        bands = dict(zip(rows.tolist(), np.split(order, starts[1:]), strict=True))
        labels = np.empty(len(cloud), np.int32)
        votes: dict[int, np.ndarray] = {}
        # A tile consists of four cells, two in its own row and two in the next.
        for row in sorted({*bands, *(row - 1 for row in bands)}):
            own = [one for one in (row, row + 1) if one in bands]
            columns = {one: cells[bands[one], 1] for one in own}
            begins = np.unique(np.concatenate(list(columns.values()))).tolist()
            for column in sorted({*begins, *(begin - 1 for begin in begins)}):
                parts = {
                    one: slice(*np.searchsorted(columns[one], (column, column + 2))) for one in own
                }
                chosen = np.concatenate([bands[one][parts[one]] for one in own])
                found = self._votes(cloud.select(chosen), logits)
                for one in own:
                    number = parts[one].stop - parts[one].start
                    shape = len(bands[one]), found.shape[1]
                    kept = votes.setdefault(one, np.zeros(shape, np.float32))
                    kept[parts[one]] += found[:number]
                    found = found[number:]
            if row in bands:  # no later tile contains cells of this row
                labels[bands[row]] = votes.pop(row).argmax(-1)
        return labels

    def _votes(self, cloud: PointCloud, logits: Logits) -> np.ndarray:
        """Return the class probabilities of each point, summed over all views.

        The result is ``float32[N, classes]``. A view is the cloud turned around the vertical, and
        `logits` computes the logits of its points. For one view without tiles, the result is the
        logits themselves, which have the same largest class.
        """
        if self.views == 1 and not self.tile:
            return logits(cloud)
        total = np.zeros((), np.float32)
        for angle in np.arange(self.views) * (2 * np.pi / self.views):
            found = logits(transform(cloud, rotation_about_z(angle))).astype(np.float32)
            share = np.exp(found - found.max(axis=1, keepdims=True))
            total = total + share / share.sum(axis=1, keepdims=True)
        return total
