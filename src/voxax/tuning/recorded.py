"""Recorded scenes: real occupancies that come with the package.

``occupancies/README.md`` says of what they are, and how they compare with real scans.
"""

from __future__ import annotations

import functools
import importlib.resources

import numpy as np

from voxax.coords import host
from voxax.errors import InputError

KINDS = ("lidar", "indoor", "airborne", "surface")
DEFAULT_KIND = "lidar"
"""What is assumed of a map that cannot be seen: most sparse networks read LiDAR."""

TIME_STEPS = 4
"""Steps of a 4-D scene: the record seen again while it moves one cell a step."""

Level = tuple[int, ...]


@functools.lru_cache(maxsize=len(KINDS))
def recorded(kind: str) -> np.ndarray:
    """The recorded voxels ``int32[N, 3]`` in canonical order, read-only.

    Raises:
      InputError: for an unknown kind; lists the known ones.
    """
    if kind not in KINDS:
        raise InputError(f"unknown occupancy {kind!r}; known: {', '.join(KINDS)}")
    file = importlib.resources.files("voxax") / "tuning" / "occupancies" / f"{kind}.npz"
    with file.open("rb") as stream, np.load(stream) as stored:
        rows = unpack(stored["low"], stored["extent"], stored["steps"])
    rows.flags.writeable = False
    return rows


def pack(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Distinct rows ``int[N, 3]`` as what :func:`unpack` reads.

    Cells are numbered along the lines of their bounding box. ``steps`` holds the bytes of the
    differences between the numbers of occupied cells, most significant bytes first, because
    these, mostly zero, then compress to nearly nothing.
    """
    low = rows.min(0)
    extent = np.ptp(rows, axis=0) + 1
    numbers = np.sort(np.ravel_multi_index(tuple((rows - low).T), tuple(extent)))
    steps = np.diff(numbers, prepend=0).astype(">u4")
    planes = steps.view(np.uint8).reshape(-1, 4).T.copy()
    return {"low": low.astype(np.int32), "extent": extent.astype(np.int32), "steps": planes}


def unpack(low: np.ndarray, extent: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """``int32[N, 3]`` in canonical order; see :func:`pack`."""
    numbers = np.cumsum(steps.T.copy().view(">u4").reshape(-1).astype(np.int64))
    cells = np.stack(np.unravel_index(numbers, tuple(int(n) for n in extent)), axis=1)
    return (cells + low).astype(np.int32)


def scene_rows(kind: str, level: Level, spatial_shape: Level | None) -> np.ndarray:
    """``int32[N, 1 + D]``: the record at that level, in the order in which it is cropped."""
    rows, ndim = recorded(kind), len(level)
    if ndim == 1:
        cells = host.unique_rows(np.floor_divide(rows, np.int32(level[0])))[0]
        _, line = np.unique(cells[:, 1:], axis=0, return_inverse=True)
        # A gap of more than the scene's own length lies between two lines.
        pitch = 2 * int(np.ptp(cells[:, 0])) + 64
        cells = (cells[:, :1] + pitch * line.reshape(-1, 1)).astype(np.int32)
    else:
        if ndim == 4:
            steps = [rows + np.asarray([t, 0, 0], np.int32) for t in range(TIME_STEPS)]
            times = np.repeat(np.arange(TIME_STEPS, dtype=np.int32), len(rows))
            rows = np.concatenate([np.concatenate(steps), times[:, None]], axis=1)
        cells = np.floor_divide(rows[:, :ndim], np.asarray(level, np.int32))
    cells = host.unique_rows(cells)[0]
    space = cells[:, :3] + 0.5
    if kind == "lidar" and ndim > 1:
        rank = np.arctan2(space[:, 1], space[:, 0])
    else:
        rank = np.abs(space - np.median(space, axis=0)).max(1)
    cells = cells[np.argsort(rank, kind="stable")]
    if spatial_shape is not None:
        # The grid that clips begins at 0: a voxel amid the scene is put into its middle.
        extent = np.asarray(spatial_shape, np.int64)
        amid = cells[np.abs(cells - np.median(cells, axis=0)).max(1).argmin()]
        cells = cells - amid.astype(np.int64) + extent // 2
        cells = cells[((cells >= 0) & (cells < extent)).all(1)].astype(np.int32)
    return np.concatenate([np.zeros((len(cells), 1), np.int32), cells], axis=1)
