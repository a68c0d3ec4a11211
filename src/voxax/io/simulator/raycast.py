"""The nearest hit of every ray of a sensor.

Testing every ray against every primitive would be thirty thousand times a thousand
tests. As rays leave one point on a regular grid of angles, each primitive can only be
met by a window of columns and rings, found from its corners. The windows are written
out as (primitive, ray) pairs, and only those pairs are tested: about two per ray.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from voxax.io.simulator.sensor import RayGrid
from voxax.io.simulator.shapes import UNIT_SHAPES, entry, to_local
from voxax.io.simulator.solids import Solids

# Pairs tested at once: temporaries of this length stay in the processor's cache.
PAIRS = 1 << 15
CORNERS = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]], np.float64)


class Windows(NamedTuple):
    """Which part of the ray grid may meet each primitive; all ``int64[n]``.

    Attributes:
      solid: row of the primitive.
      ring: first ring.
      rings: number of rings.
      step: first column, may be negative (columns wrap around).
      steps: number of columns.
    """

    solid: np.ndarray
    ring: np.ndarray
    rings: np.ndarray
    step: np.ndarray
    steps: np.ndarray


def windows(solids: Solids, origin: np.ndarray, grid: RayGrid, max_range: float) -> Windows:
    """Windows of all primitives that are within range and not between two rings.

    ``origin``: ``float64[3]``; ``max_range``: metres.
    """
    centre = solids.centre - origin
    half = solids.half
    start = -to_local(centre.T, solids.yaw)
    beyond = np.maximum(np.abs(start[:2]) - half.T[:2], 0.0)
    nearest = np.hypot(beyond[0], beyond[1])
    farthest = np.hypot(centre[:, 0], centre[:, 1]) + np.hypot(half[:, 0], half[:, 1])

    # Columns: a convex outline that does not hold the origin spans less than a half turn.
    c, s = np.cos(solids.yaw)[:, None], np.sin(solids.yaw)[:, None]
    dx, dy = half[:, :1] * CORNERS[:, 0], half[:, 1:2] * CORNERS[:, 1]
    corner_x, corner_y = centre[:, :1] + c * dx - s * dy, centre[:, 1:2] + s * dx + c * dy
    middle = np.arctan2(centre[:, 1], centre[:, 0])
    turn = np.arctan2(corner_y, corner_x) - middle[:, None]
    turn = (turn + np.pi) % (2.0 * np.pi) - np.pi
    pitch = 2.0 * np.pi / grid.steps
    first = np.floor((middle + turn.min(axis=1) - grid.phase) / pitch - grid.slack)
    last = np.ceil((middle + turn.max(axis=1) - grid.phase) / pitch + grid.slack)
    around = nearest <= 0.0
    step = np.where(around, 0, first).astype(np.int64)
    steps = np.where(around, grid.steps, np.minimum(last - first + 1, grid.steps))

    # Rings: the top is seen highest from the nearest place if above the sensor, else from
    # the farthest; the bottom the other way round.
    bottom, top = centre[:, 2] - half[:, 2], centre[:, 2] + half[:, 2]
    highest = np.arctan2(top, np.where(top > 0.0, nearest, farthest))
    lowest = np.arctan2(bottom, np.where(bottom < 0.0, nearest, farthest))
    ring = np.searchsorted(grid.elevation, lowest - 1e-9, side="left")
    rings = np.searchsorted(grid.elevation, highest + 1e-9, side="right") - ring
    kept = np.flatnonzero((nearest < max_range) & (rings > 0))
    return Windows(kept, ring[kept], rings[kept], step[kept], steps[kept].astype(np.int64))


def _pairs(view: Windows, grid: RayGrid) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """``(solid, ray)`` indices, each ``int64[m]`` with ``m <= PAIRS``."""
    counts = view.rings * view.steps
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    for begin in range(0, total, PAIRS):
        end = min(begin + PAIRS, total)
        first, last = np.searchsorted(ends, [begin, end - 1], side="right")
        rows = np.arange(first, last + 1)
        starts = ends[rows] - counts[rows]
        share = np.minimum(ends[rows], end) - np.maximum(starts, begin)
        window = np.repeat(rows, share)
        within = np.arange(begin, end) - np.repeat(starts, share)
        ring, step = np.divmod(within, view.steps[window])
        column = (view.step[window] + step) % grid.steps
        yield view.solid[window], (view.ring[window] + ring) * grid.steps + column


def nearest_hits(
    solids: Solids,
    origin: np.ndarray,
    grid: RayGrid,
    max_range: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Nearest hit of every ray of the grid.

    Args:
      solids: the primitives.
      origin: ``float64[3]``, where all rays start, metres.
      grid: the rays.
      max_range: metres.
      rng: decides how deep rays enter porous primitives.

    Returns:
      ``(distance, solid)``: ``float64[rays]`` in metres, inf for no hit, and ``int64[rays]``,
      the row of the primitive, -1 for no hit.
    """
    distance = np.full(grid.direction.shape[1], np.inf)
    hit = np.full(len(distance), -1, np.int64)
    for shape, unit_shape in UNIT_SHAPES.items():
        rows = np.flatnonzero(solids.shape == shape)
        if not len(rows):
            continue
        some = solids.take(rows)
        # Rays share their origin, so it is taken into each primitive's frame only once, and
        # turning and scaling a direction takes six numbers per primitive.
        start = to_local((origin - some.centre).T, some.yaw) / some.half.T
        c, s = np.cos(some.yaw), np.sin(some.yaw)
        scale = 1.0 / some.half.T
        xx, xy, yx, yy = c * scale[0], s * scale[0], -s * scale[1], c * scale[1]
        porous = some.penetration > 0.0
        for solid, ray in _pairs(windows(some, origin, grid, max_range), grid):
            x, y, z = grid.direction[:, ray]
            heading = np.stack(
                [
                    xx[solid] * x + xy[solid] * y,
                    yx[solid] * x + yy[solid] * y,
                    scale[2, solid] * z,
                ]
            )
            near, far = unit_shape(start[:, solid], heading)
            reached = entry((near, far))
            deep = np.flatnonzero(porous[solid] & np.isfinite(reached))
            depth = rng.exponential(some.penetration[solid[deep]])
            inside = reached[deep] + depth
            reached[deep] = np.where(inside <= far[deep], inside, np.inf)
            reached[reached > max_range] = np.inf
            np.minimum.at(distance, ray, reached)
            won = np.flatnonzero(np.isfinite(reached) & (reached == distance[ray]))
            hit[ray[won]] = rows[solid[won]]
    return distance, hit
