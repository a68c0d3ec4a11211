"""Estimate the height of points above ground from the positions of the points only."""

from __future__ import annotations

import numpy as np

from voxax.errors import InputError


def height_above_ground(
    positions: np.ndarray, *, cell: float = 1.0, window: float = 20.0
) -> np.ndarray:
    """Return the height of every point above an estimated ground surface.

    The surface is the lowest point of each grid cell, opened morphologically (minimum, then
    maximum, over a square window). It follows terrain but passes under objects narrower
    than the window. Source: the first step of Zhang et al., "A Progressive Morphological
    Filter for Removing Nonground Measurements from Airborne LIDAR Data", 2003.

    Args:
      positions: ``float[N, 3]``, z up.
      cell: edge length of a grid cell, in the unit of the positions. It is increased if the grid
        would have more than 4000 cells along x or y.
      window: width of the widest object that does not count as ground, in the same unit.

    Returns:
      Heights ``float32[N]``, in the unit of the positions.

    Raises:
      InputError: ``0 < cell <= window`` is false.
    """
    if not (cell > 0 and window >= cell):
        raise InputError(f"cell={cell} and window={window} must satisfy 0 < cell <= window")
    if not len(positions):
        return np.zeros(0, np.float32)
    plan = positions[:, :2] - positions[:, :2].min(0)
    # Far outliers must not make the grid arbitrarily large.
    cell = max(cell, float(plan.max()) / 4000)
    index = np.floor(plan / cell).astype(np.int64)
    shape = index.max(0) + 1
    flat = index[:, 0] * shape[1] + index[:, 1]
    # A low percentile would be more robust, but a cell's minimum is cheap. The opening's
    # maximum limits the effect of a single low outlier to its own window.
    lowest = np.full(int(shape.prod()), np.inf)
    np.minimum.at(lowest, flat, positions[:, 2])
    surface = lowest.reshape(shape)
    reach = max(1, round(window / cell / 2))
    eroded = _sliding(surface, reach, np.minimum, np.inf)
    eroded[~np.isfinite(eroded)] = -np.inf
    opened = _sliding(eroded, reach, np.maximum, -np.inf).reshape(-1)[flat]
    ground = np.minimum(np.where(np.isfinite(opened), opened, lowest[flat]), lowest[flat])
    return (positions[:, 2] - ground).astype(np.float32)


def _sliding(grid: np.ndarray, reach: int, combine: np.ufunc, fill: float) -> np.ndarray:
    """Replace each cell of a 2-D grid by ``combine`` over the square window around the cell.

    A window is ``2 * reach + 1`` cells wide. Cells outside the grid have the value `fill`.
    """
    width = 2 * reach + 1
    for _ in range(2):
        grid = np.pad(grid, [(reach, reach), (0, 0)], constant_values=fill)
        # Windows of 1, 2, 4, ... cells, each combined from two smaller ones; the last may overlap.
        span = 1
        while 2 * span <= width:
            grid = combine(grid[:-span], grid[span:])
            span *= 2
        if width > span:
            grid = combine(grid[: span - width], grid[width - span :])
        grid = grid.T
    return grid
