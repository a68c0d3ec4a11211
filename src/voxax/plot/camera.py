"""How a point cloud is placed in a picture: its upright axes, the drawn extent, and the camera.

A picture has a view from above and a perspective view. Both use the axes of the scene: the first
axis points right, the second away from the reader, the third up. This module needs only NumPy.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from voxax.errors import InputError

Up = Literal["z", "y", "-y"]
# Rows: the axes of the scene in the axes of the cloud. All are rotations without a mirror image.
UPRIGHT = {
    "z": np.eye(3),
    "y": np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]]),
    "-y": np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]]),
}
# A quarter turn about the up axis, for a scene that is longer along y than along x.
QUARTER = np.array([[0.0, 1, 0], [-1, 0, 0], [0, 0, 1]])

# Percent of the points that may be left out at each end of an axis. They are left out only if they
# make the extent more than LONG_TAIL times longer. Heights are cut less, because trees and poles
# have few points.
TAILS = (3.0, 3.0, 0.1)
LONG_TAIL = 1.5
FEW = 50
# Degrees: steep enough to look over the walls and into a room without its ceiling.
OVER_WALLS = 52.0


@dataclass(frozen=True)
class Scene:
    """The M drawn points of a cloud, in axes that point right, away from the reader, and up.

    The origin of these axes is the center of the drawn box, which :func:`drawn_box` chooses.

    Attributes:
      points: [M, 3] float32, meters right, away and up from the center of the drawn box.
      index: [M] int64, the row of each drawn point in the cloud.
      size: [3] float64, the size of the drawn box in meters: right, away, up.
      right, away: names of the axes of the cloud that point right and away, such as "+x".
      azimuth, elevation: direction to the camera of the perspective view, in degrees.
      clipped: number of points of the cloud outside the drawn box.
      to_cloud: [3, 3] float64; its rows are the directions right, away and up, as vectors in the
        axes of the cloud.
      base: height of the lower face of the drawn box in meters, along the up axis of the cloud.
      center: [3] float64, the center of the drawn box in the axes of the scene, measured from the
        origin of the cloud.
    """

    points: np.ndarray
    index: np.ndarray
    size: np.ndarray
    right: str
    away: str
    azimuth: float
    elevation: float
    clipped: int
    to_cloud: np.ndarray
    base: float
    center: np.ndarray

    def place(self, positions: np.ndarray) -> np.ndarray:
        """Convert positions [..., 3] from coordinates of the cloud to coordinates of `points`."""
        return positions @ self.to_cloud.T - self.center


def compose(
    positions: np.ndarray,
    up: str = "z",
    origin_view: str | tuple[float, float] = "auto",
    without: np.ndarray | None = None,
) -> Scene:
    """Choose axes, extent and camera for a picture of [N, 3] float64 positions in meters.

    Points in the mask `without`, [N] bool, count for the extent but are not drawn. `up` and
    `origin_view` are as in :func:`voxax.plot.segmentation_png`.
    """
    if up not in UPRIGHT:
        raise InputError(f'up must be "z", "y" or "-y", not {up!r}.')
    axes = UPRIGHT[up]
    upright = positions @ axes.T
    low, high = drawn_box(upright)
    size = high - low
    # Left and right have a meaning in the frame of a camera, so it is not turned.
    if up != "-y" and size[1] > 1.15 * size[0]:
        axes = QUARTER @ axes
        upright = upright @ QUARTER.T
        low, high = drawn_box(upright)
        size = high - low
    inside = ((upright >= low) & (upright <= high)).all(axis=1)
    clipped = len(positions) - int(inside.sum())
    inside = np.flatnonzero(inside if without is None else inside & ~without)
    roofless = without is not None and bool(without.any())
    azimuth, elevation = _camera_direction(origin_view, up, roofless)
    return Scene(
        points=(upright[inside] - (low + high) / 2).astype(np.float32),
        index=inside,
        size=size,
        right=_axis_name(axes[0]),
        away=_axis_name(axes[1]),
        azimuth=azimuth,
        elevation=elevation,
        clipped=clipped,
        to_cloud=axes,
        base=float(low[2]),
        center=(low + high) / 2,
    )


def drawn_box(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and the upper corner, [3] float64 each, of the box of points to draw.

    `points` is [N, 3], in axes that point right, away and up. The box contains all points, except
    along axes where a few stray points (the long tails of a LiDAR sweep, reflections below ground)
    would make the other points too small to see.
    """
    if len(points) == 0:
        return np.zeros(3), np.zeros(3)
    low, high = points.min(axis=0), points.max(axis=0)
    if len(points) < FEW:
        return low, high
    for axis, tail in enumerate(TAILS):
        if axis == 2:
            # Only what is drawn from above decides how high the picture is.
            flat = points[:, :2]
            points = points[((flat >= low[:2]) & (flat <= high[:2])).all(axis=1)]
            low[2], high[2] = points[:, 2].min(), points[:, 2].max()
        start, stop = np.percentile(points[:, axis], [tail, 100 - tail])
        span = stop - start
        if span > 0 and high[axis] - low[axis] > LONG_TAIL * span:
            low[axis] = max(low[axis], start - 0.05 * span)
            high[axis] = min(high[axis], stop + 0.05 * span)
    return low, high


def _camera_direction(
    origin_view: str | tuple[float, float], up: str, roofless: bool
) -> tuple[float, float]:
    wrong = InputError(f'origin_view must be "auto" or (azimuth, elevation), not {origin_view!r}.')
    if isinstance(origin_view, str):
        if origin_view != "auto":
            raise wrong
        # A depth camera has seen only the near sides: stay close to where it stood.
        if up == "-y":
            return -82.0, 24.0
        return -68.0, OVER_WALLS if roofless else 33.0
    try:
        azimuth, elevation = (float(angle) for angle in origin_view)
    except (TypeError, ValueError):
        raise wrong from None
    if not np.isfinite(azimuth):
        raise wrong
    if not -90 < elevation < 90:
        raise InputError(f"origin_view's elevation must be within (-90, 90), not {elevation}.")
    return azimuth, elevation


def _axis_name(row: np.ndarray) -> str:
    axis = int(np.abs(row).argmax())
    return ("+" if row[axis] > 0 else "-") + "xyz"[axis]


def sample_rows(rows: int, most: int) -> np.ndarray:
    """Return `most` of the row numbers from 0 to ``rows - 1``, sorted, or all if there are fewer.

    They are chosen at random with a fixed seed.
    """
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


def direction(scene: Scene) -> np.ndarray:
    """Return the unit vector [3] from the center to the camera, in the axes of the scene."""
    azimuth, elevation = np.radians([scene.azimuth, scene.elevation])
    level = np.cos(elevation)
    return np.array([level * np.cos(azimuth), level * np.sin(azimuth), np.sin(elevation)])


def from_above(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Project the points of a scene from above; return coordinates [M, 2] and depths [M] in meters.

    Coordinates point right and away. The depth is measured down from the top of the drawn box.
    """
    return scene.points[:, :2], scene.size[2] / 2 - scene.points[:, 2]


def in_perspective(scene: Scene, distance: float = 1.9) -> tuple[np.ndarray, np.ndarray]:
    """Project the points of a scene in perspective; return coordinates [M, 2] and depths [M].

    Coordinates point right and up; depths are distances along the camera's axis, in meters. The
    camera looks at the center of the scene from `distance` half-diagonals of the drawn box. The
    image plane goes through the center, so lengths in that plane are in meters of the scene.
    """
    reach = distance * max(float(np.linalg.norm(scene.size)) / 2, 1e-6)
    back = direction(scene)
    right = np.cross([0.0, 0.0, 1.0], back)
    right /= np.linalg.norm(right)
    upward = np.cross(back, right)
    seen = scene.points @ np.stack([right, upward, back]).T.astype(np.float32)
    depth = reach - seen[:, 2]
    return seen[:, :2] * (reach / depth)[:, None], depth
