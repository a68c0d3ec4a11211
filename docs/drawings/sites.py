"""Pictures of what an operator does to a handful of sites: lattices side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from voxax.errors import InputError
from voxax.plot.figure import require
from voxax.plot.palette import Scale

from .drawing import Drawing
from .panel import Panel
from .site_content import content_of
from .site_frame import CELL, GAP, MARGIN, Frame, frames_of, rows_of

if TYPE_CHECKING:
    from voxax.geometry import KernelMap


def draw_sites(
    panels: Sequence[Panel],
    path: str | os.PathLike,
    *,
    columns: int | None = None,
    cell: float = CELL,
) -> Path:
    """Draw `panels` side by side into an SVG or PNG, and return the path.

    The same panels give the same bytes (for one version of matplotlib).

    Args:
      panels: at least one.
      path: ends in ``.svg`` or ``.png``; the file appears at once or not at all.
      columns: panels in a row; None takes as many as fit a page.
      cell: pixels along the edge of a site of stride 1.

    Example::

        kmap = vx.kernel_map(voxels, kernel_size=3)
        sites, taps = reads(kmap, (0, 2, 2))
        draw_sites([
            Panel("input", voxels, values="features", highlight=sites),
            Panel("kernel", kernel=kmap, highlight=taps, sign="∗"),
            Panel("output", out, values="features", highlight=[(2, 2)], sign="→"),
        ], "conv.svg")

    Raises:
      InputError: no panels, arrays that do not fit, voxels on more than two axes.
      MissingExtraError: matplotlib is not installed.
      OSError: the file cannot be written.
    """
    require("matplotlib")
    if not panels:
        raise InputError("draw_sites needs at least one Panel, got an empty list")
    contents = [content_of(panel) for panel in panels]
    rows = rows_of(frames_of(panels, contents, cell), columns)
    # Lattices of one row share their middle; titles stay on top.
    drops = [_drops(row) for row in rows]
    heights = [
        max(drop + frame.height for drop, frame in zip(shift, row, strict=True))
        for shift, row in zip(drops, rows, strict=True)
    ]
    width = 2 * MARGIN - GAP + max(sum(f.advance for f in row) for row in rows)
    drawing = Drawing(width, 2 * MARGIN + sum(heights) + GAP * (len(rows) - 1))
    values = [c.values for c in contents] + [c.point_values for c in contents]
    scale = Scale(np.concatenate([np.zeros(0), *(v for v in values if v is not None)]))
    top = float(MARGIN)
    for row, shift, height in zip(rows, drops, heights, strict=True):
        left = MARGIN - GAP
        for frame, drop in zip(row, shift, strict=True):
            frame.draw(drawing, left + frame.lead, top, drop, scale)
            left += frame.advance
        top += height + GAP
    return drawing.write(path, ", ".join(panel.title for panel in panels))


def _drops(row: Sequence[Frame]) -> list[float]:
    """Pixels that each lattice of a row is lowered to share the middle of the tallest."""
    tallest = max(frame.above + frame.lattice_height for frame in row)
    return [(tallest - frame.above - frame.lattice_height) / 2 for frame in row]


def reads(kernel_map: KernelMap, site: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The input sites that one output site reads, and through which taps.

    Args:
      kernel_map: a map with concrete values.
      site: D coordinates in scene 0, or 1 + D with the scene first.

    Returns:
      ``(int32[n, 1 + D] coords of the inputs, int64[n] taps)``, in the order of the taps.

    Raises:
      InputError: the map has no such output site.
    """
    outputs = np.asarray(kernel_map.out_geometry.coords)[: int(kernel_map.out_geometry.count)]
    ndim = outputs.shape[1] - 1
    wanted = tuple(site) if len(site) == ndim + 1 else (0, *site)
    (row,) = np.nonzero((outputs == np.asarray(wanted)).all(axis=1)) if len(outputs) else ([],)
    if len(row) == 0:
        raise InputError(
            f"{tuple(site)} is none of the {len(outputs)} output sites of {kernel_map}"
        )
    neighbors = np.asarray(kernel_map.neighbors)[row[0]]
    (taps,) = np.nonzero(neighbors >= 0)
    return np.asarray(kernel_map.in_geometry.coords)[neighbors[taps]], taps
