"""How many rows a coarser level needs, as a function of the input's capacity."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from voxax.coords import bucket_capacity

_ROUND = 16  # rows; small against any level, keeps the sizes of similar fits equal


@dataclasses.dataclass(frozen=True)
class LevelFit:
    """``rows = exp(intercept + slope * log(capacity))``, an upper envelope of the samples.

    A power law: coarsening a surface divides its voxels by about the square of the
    stride, a line's by the stride, so the exponent depends on the scene, not only the level.
    """

    slope: float
    intercept: float

    def __call__(self, capacity: int) -> int:
        rows = math.exp(self.intercept + self.slope * math.log(max(capacity, 1)))
        return max(_ROUND, -(-math.ceil(rows) // _ROUND) * _ROUND)


def fit_levels(counts: np.ndarray, margin: float) -> tuple[LevelFit, ...]:
    """One fit per level above the first.

    Args:
      counts: ``int[S, L]``, rows of each sample at each level, level 0 first.
      margin: factor on the envelope.
    """
    capacity = np.log([bucket_capacity(int(n)) for n in counts[:, 0]])
    size = np.log(np.maximum(counts[:, 0], 1))
    fits = []
    for level in range(1, counts.shape[1]):
        rows = np.log(np.maximum(counts[:, level], 1))
        slope = 1.0
        if np.ptp(size) > math.log(1.2):
            slope = float(np.clip(np.polyfit(size, rows, 1)[0], 0.0, 1.5))
        # A sample of a bucket's full size needs slope * (capacity - size) more than it shows.
        full = rows + slope * (capacity - size)
        intercept = float(np.max(full - slope * capacity)) + math.log(margin)
        fits.append(LevelFit(slope, intercept))
    return tuple(fits)
