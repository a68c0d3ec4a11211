"""Pictures of docs/operators/order.md."""

import numpy as np

import voxax as vx

from .panel import Panel
from .samples import voxels_at


def curves() -> list[Panel]:
    """Three ways through the same voxels."""
    grid = np.stack(np.meshgrid(np.arange(8), np.arange(8), indexing="ij"), axis=-1).reshape(-1, 2)
    distance = np.abs(grid - 3.5).sum(axis=1)
    voxels = voxels_at(grid[distance < 5])
    panels = []
    for curve in ("lexicographic", "morton", "hilbert"):
        order, _ = vx.curve_order(voxels, curve)
        visited = voxels.coords[order][: int(voxels.count)]
        panels.append(Panel(curve, voxels, curve=visited, extent=((0, 8), (0, 8))))
    return panels


PICTURES = (curves,)
