"""Pictures of docs/operators/attention.md."""

import numpy as np

import voxax as vx

from .panel import Panel
from .samples import voxels_at

CELLS = np.stack(np.meshgrid(np.arange(8), np.arange(8), indexing="ij"), axis=-1).reshape(-1, 2)
DISC = CELLS[np.abs(CELLS - 3.5).sum(axis=1) < 5]


def groups() -> list[Panel]:
    """Draw which voxels see each other: a color for each patch and window."""
    voxels = voxels_at(DISC)
    order = vx.curve_order(voxels, "hilbert", fitted=True)
    cut = vx.cut_patches(voxels, 16, order, fill="short")
    slots = np.asarray(cut.place)[: len(DISC)]
    visited = voxels.coords[order[0]][: len(DISC)]
    hilbert = Panel("patches of 16 rows", voxels, groups=slots // 16, curve=visited)
    upright = voxels_at(np.insert(DISC, 2, 0, axis=1))
    windows = {
        "windows of 4 cells": vx.cubic_windows(voxels, 4),
        "shifted by 2": vx.cubic_windows(voxels, 4, shift=2),
        "rings and sectors": vx.cylindrical_windows(upright, (2.0, 4, 1.0), center=(4.0, 4.0)),
    }
    return [
        hilbert,
        *(
            Panel(title, voxels, groups=np.asarray(found.number)[: len(DISC)])
            for title, found in windows.items()
        ),
    ]


PICTURES = (groups,)
