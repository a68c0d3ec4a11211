"""Houses with protrusions, and low walls."""

from __future__ import annotations

import numpy as np

from voxax.io.simulator.solids import BOX, BUILDING, CYLINDER, Pose, SolidBuilder
from voxax.io.simulator.traffic import ROOT, paint

# Houses are wide: on a slope, their corners lie lower than other objects'.
CELLAR = 1.5


def add_building(
    out: SolidBuilder,
    rng: np.random.Generator,
    pose: Pose,
    size: tuple[float, float, float],
    room: float,
) -> None:
    """A house whose front faces along -y of the pose.

    Args:
      out: receives the primitives.
      rng: draws the details.
      pose: of the centre of the footprint.
      size: width, depth and height, metres.
      room: free metres before the front, which protrusions may use.
    """
    width, depth, height = size
    wall = paint(rng, 0.36)

    def box(x: float, y: float, low: float, high: float, hx: float, hy: float, shade: float):
        middle, half = (x, y, 0.5 * (low + high)), (hx, hy, 0.5 * (high - low))
        out.add(BOX, pose, middle, half, BUILDING, shade)

    box(0.0, 0.0, -CELLAR, height, 0.5 * width, 0.5 * depth, wall)
    if rng.random() < 0.4:
        # A set-back attic.
        box(0.0, 0.0, height, height + rng.uniform(1.0, 2.5), 0.42 * width, 0.35 * depth, wall)
    front = -0.5 * depth
    reach = min(room, 1.6)
    for _ in range(int(rng.integers(0, 4))):
        hx = rng.uniform(0.5, 1.6)
        x = rng.uniform(-0.5, 0.5) * max(width - 2 * hx, 0.0)
        out_by = rng.uniform(0.25, 1.0) * max(reach, 0.3)
        kind = rng.choice(["bay", "balcony", "steps"])
        if kind == "bay":
            box(x, front, -CELLAR, rng.uniform(2.5, 0.9 * height), hx, out_by, paint(rng, 0.36))
        elif kind == "balcony":
            floor = rng.uniform(2.7, max(height - 1.2, 2.8))
            box(x, front, floor, floor + rng.uniform(0.15, 1.1), hx, out_by, wall)
        else:
            box(x, front, -CELLAR, rng.uniform(0.2, 0.8), hx, out_by, paint(rng, 0.36))
    if reach > 0.8 and rng.random() < 0.15:
        # A porch: its columns are shaped like poles and trunks.
        box(0.0, front - 0.5 * reach, 2.7, 3.0, 1.6, 0.5 * reach, wall)
        for x in (-1.4, 1.4):
            half = (0.13, 0.13, 0.5 * (2.7 + CELLAR))
            place = (x, front - reach + 0.2, half[2] - CELLAR)
            out.add(CYLINDER, pose, place, half, BUILDING, wall)


def add_wall(
    out: SolidBuilder, rng: np.random.Generator, pose: Pose, length: float, height: float
) -> None:
    """A garden wall along the pose's x axis."""
    half = (0.5 * length, rng.uniform(0.08, 0.2), 0.5 * (height + ROOT))
    out.add(BOX, pose, (0.0, 0.0, half[2] - ROOT), half, BUILDING, paint(rng, 0.36))
