"""Pictures of docs/operators/points.md."""

import itertools
from typing import Any

import numpy as np

import voxax as vx

from .panel import Panel
from .samples import CAPACITY, shown, voxels_at

CLOUD = np.array(
    [(0.3, 0.4), (0.7, 0.8), (1.3, 1.6), (2.2, 1.3), (2.5, 1.7), (2.8, 1.4), (3.5, 3.2)],
    np.float32,
)
NUMBERS = np.array([2, 4, 5, 1, 3, 8, 6], np.float32)[:, None]
# Pixels along the edge of a cell: points need space.
CELL = 52
BOX = ((0, 4), (0, 4))
SITES = ((0, 0), (0, 1), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2))
QUERIES = np.array([(0.8, 1.2), (2.7, 2.2), (3.6, 0.6)], np.float32)


def voxelize() -> list[Panel]:
    """Points that share a cell become one voxel."""
    voxels = vx.voxelize(CLOUD, NUMBERS, voxel_size=1.0, capacity=CAPACITY)
    counts = vx.voxelize(CLOUD, None, voxel_size=1.0, reduction="sum", capacity=CAPACITY)
    points = {"points": CLOUD, "point_values": NUMBERS, "point_labels": "values"}
    return [
        Panel("points", **points, extent=BOX),
        shown("mean", voxels, sign="→", extent=BOX),
        shown("ones, sum", counts, extent=BOX, note="number of points"),
    ]


def nearest() -> list[Panel]:
    """Each point reads the voxel that contains it."""
    voxels = voxels_at(SITES)
    read = vx.devoxelize(voxels, QUERIES, interpolation="nearest")
    return [
        shown("voxels", voxels, points=QUERIES, extent=BOX),
        _results("nearest", read),
    ]


def trilinear() -> list[Panel]:
    """Each point reads the voxels whose centers surround it."""
    voxels = voxels_at(SITES)
    arrows = [_short(corner, point) for point in QUERIES for corner in _corners(point)]
    plain = vx.devoxelize(voxels, QUERIES)
    scaled = vx.devoxelize(voxels, QUERIES, normalize=True)
    return [
        shown("voxels", voxels, points=QUERIES, arrows=arrows, extent=BOX),
        _results("trilinear", plain),
        _results("normalize=True", scaled, sign=""),
    ]


def splat() -> list[Panel]:
    """The adjoint: points add to the voxels around them."""
    target = voxels_at(SITES)
    features = np.array([[4], [8], [4]], np.float32)
    points = {"points": QUERIES, "point_values": features, "point_labels": "values"}
    arrows = [(point, corner) for point in QUERIES for corner in _corners(point)]
    near = vx.splat(QUERIES, features, target, interpolation="nearest")
    spread = vx.splat(QUERIES, features, target)
    return [
        Panel("points and out_voxels", target, values=[0] * 7, **points, extent=BOX, arrows=arrows),
        shown("nearest", near, sign="→", extent=BOX),
        shown("trilinear", spread, extent=BOX),
    ]


def encoders() -> list[Panel]:
    """Draw an encoder's input of each point: its offset from the mean of its voxel or pillar."""
    panels = []
    for title, axes in (("VoxelFeatureEncoder", (0, 1)), ("PillarEncoder", (0,))):
        means, inverse = vx.voxelize(
            CLOUD[:, axes], CLOUD, voxel_size=1.0, capacity=CAPACITY, return_inverse=True
        )
        starts = np.asarray(means.features[inverse])
        sites = means.valid_coords()[:, 1:]
        if len(axes) == 1:
            sites = [(int(x), y) for (x,) in sites for y in range(4)]
        panels.append(
            Panel(
                title,
                np.asarray(sites),
                groups=[int(site[0]) % 4 for site in sites],
                points=CLOUD,
                arrows=[_short(*ends) for ends in zip(starts, CLOUD, strict=True)],
                extent=BOX,
                note="arrows: offset from the mean",
            )
        )
    return panels


def _results(title: str, read: np.ndarray, sign: str = "→") -> Panel:
    return Panel(
        title, points=QUERIES, point_values=read, point_labels="values", sign=sign, extent=BOX
    )


def _short(start: Any, stop: Any) -> tuple[Any, Any]:
    """An arrow that stops at the rim of the point it leads to."""
    start, stop = np.asarray(start), np.asarray(stop)
    length = float(np.linalg.norm(stop - start))
    part = max(0.0, 1 - 5.5 / CELL / length) if length else 0.0
    return start, start + part * (stop - start)


def _corners(point: np.ndarray) -> list[tuple[float, ...]]:
    """Centers, of the sample's voxels, that surround a point."""
    low = np.floor(point - 0.5).astype(int)
    cells = [tuple((low + step).tolist()) for step in itertools.product((0, 1), repeat=2)]
    return [tuple(x + 0.5 for x in cell) for cell in cells if cell in SITES]


PICTURES = (voxelize, nearest, trilinear, splat, encoders)
