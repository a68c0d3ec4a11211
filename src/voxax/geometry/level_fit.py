"""How many rows a coarser level needs, as a function of the input's capacity."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from voxax.coords import bucket_capacity

_ROUND = 8  # rows; small against any level, keeps the sizes of similar fits equal


@dataclasses.dataclass(frozen=True)
class LevelFit:
    """Rows of one level, by input capacity.

    A bucket that samples fell into has the rows that they, and those of smaller buckets, need
    at most. Any other
    has ``exp(intercept + slope * log(capacity))``, an upper envelope of all samples. It is a
    power law because coarsening a surface divides its voxels by about the square of the
    stride and a line's by the stride: the exponent depends on the scene, not only the level.

    Attributes:
      slope, intercept: of the envelope.
      seen: ``((capacity, rows), ...)`` of the buckets with samples.
    """

    slope: float
    intercept: float
    seen: tuple[tuple[int, int], ...] = ()

    def __call__(self, capacity: int) -> int:
        rows = dict(self.seen).get(capacity)
        if rows is None:
            rows = math.exp(self.intercept + self.slope * math.log(max(capacity, 1)))
        return max(_ROUND, -(-math.ceil(rows) // _ROUND) * _ROUND)


def fit_levels(counts: np.ndarray, margin: float) -> tuple[LevelFit, ...]:
    """One fit per level above the first.

    Args:
      counts: ``int[S, L]``, rows of each sample at each level, level 0 first.
      margin: factor on what the samples need.
    """
    buckets = np.asarray([bucket_capacity(int(n)) for n in counts[:, 0]])
    size = np.log(np.maximum(counts[:, 0], 1))
    fits = []
    for level in range(1, counts.shape[1]):
        needed = np.maximum(counts[:, level], 1)
        rows = np.log(needed)
        slope = 1.0
        if np.ptp(size) > math.log(1.2):
            slope = float(np.clip(np.polyfit(size, rows, 1)[0], 0.0, 1.5))
        intercept = float(np.max(rows - slope * size)) + math.log(margin)
        # A larger bucket never has fewer rows than a smaller one.
        seen = tuple(
            (int(b), math.ceil(margin * needed[buckets <= b].max())) for b in np.unique(buckets)
        )
        fits.append(LevelFit(slope, intercept, seen))
    return tuple(fits)
