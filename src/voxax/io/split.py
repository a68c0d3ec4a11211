"""Divide one labeled scan into parts for training and for testing."""

from __future__ import annotations

import numpy as np

from voxax.errors import InputError


def split_blocks(
    positions: np.ndarray, size: float = 10.0, buffer: float = 1.0, offset: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Divide points into training and test blocks in x and y, like the squares of a chessboard.

    Args:
      positions: ``float[N, 3]``.
      size: edge length of a block, in the unit of the positions.
      buffer: points closer than this to a block's edge belong to neither part, so that
        no test point has a training neighbor within ``2 * buffer``.
      offset: 0 or 1; 1 exchanges training and test blocks.

    Returns:
      ``(train bool[N], test bool[N])``: masks of the points in each part.

    Raises:
      InputError: the buffer leaves nothing of a block.
    """
    if not (size > 2 * buffer >= 0):
        raise InputError(f"size={size} must exceed twice buffer={buffer}")
    plan = positions[:, :2] - positions[:, :2].min(0, initial=np.inf)
    block, inside = np.divmod(plan, size)
    inner = ((inside >= buffer) & (inside <= size - buffer)).all(1)
    train = (block.sum(1).astype(np.int64) + offset) % 2 == 0
    return train & inner, ~train & inner


def split_sectors(
    positions: np.ndarray, sectors: int = 12, buffer: float = 1.0, offset: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Divide points into alternating training and test sectors around the sensor at the origin.

    Args:
      positions: ``float[N, 3]``.
      sectors: even number of equal azimuth sectors.
      buffer: points closer than this to a sector's border, in the unit of the positions,
        belong to neither part.
      offset: 0 or 1; 1 exchanges training and test sectors.

    Returns:
      ``(train bool[N], test bool[N])``: masks of the points in each part.

    Raises:
      InputError: the number of sectors is odd or less than 2.
    """
    if sectors < 2 or sectors % 2:
        raise InputError(f"sectors={sectors} must be even and at least 2")
    angle = np.arctan2(positions[:, 1], positions[:, 0]) + np.pi
    width = 2 * np.pi / sectors
    sector, inside = np.divmod(angle, width)
    radius = np.hypot(positions[:, 0], positions[:, 1])
    distance = radius * np.sin(np.minimum(np.minimum(inside, width - inside), np.pi / 2))
    train = (sector.astype(np.int64) + offset) % 2 == 0
    inner = distance >= buffer
    return train & inner, ~train & inner
