"""Panel: one lattice of a picture of sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from voxax.geometry import KernelMap, KernelSpec, Voxels

Extent = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Panel:
    """One lattice of a picture: sites, a kernel, points, or several of these.

    Sites are drawn as cells on the lattice of stride 1, the first axis to the right and the
    second upwards; a site of stride s covers s cells. Sites on one axis make a row.

    Attributes:
      title: heading of the panel.
      voxels: :class:`voxax.Voxels` on one or two axes, or integers ``[n, D]``, or
        ``[n, 1 + D]`` with the scene first. Scenes get a lattice each.
      values: numbers ``[n]`` or ``[capacity]`` that color the sites, or ``"features"``
        for the first channel. All panels share one scale.
      groups: integers ``[n]``: sites of one group share a color. Without values and groups
        the color tells the scenes apart.
      labels: text on each site: ``"values"``, ``"rows"`` (the row number), or a list.
      highlight: sites to outline, as in ``voxels``; in a kernel's panel, numbers of taps.
      kernel: a kernel to draw in place of voxels, from its
        :class:`voxax.KernelSpec` or :class:`voxax.KernelMap`, or as offsets ``[K, D]``.
        Taps carry their number; a dashed outline shows the site they surround.
      points: positions ``float[m, D]``; the cell ``(i, j)`` covers ``[i, i + 1) x [j, j + 1)``.
      point_values: numbers ``[m]`` that color the points.
      point_labels: text right of each point: ``"values"``, ``"rows"``, or a list.
      arrows: ``float[n, 2, 2]``, from and to, positions as those of points.
      curve: sites in the order in which a line visits them.
      sign: text before the panel, such as ``"+"`` or ``"→"``.
      note: a line below the panel; ``"\\n"`` breaks it.
      axes: number the lattice along both axes.
      extent: ``((x_low, x_high), (y_low, y_high))``, the half-open box of the lattice of
        stride 1 that is shown. None fits all panels without a kernel to one box.
    """

    title: str
    voxels: Voxels | np.ndarray | Sequence | None = None
    _: KW_ONLY
    values: Any = None
    groups: Any = None
    labels: str | Sequence[str] | None = None
    highlight: Any = None
    kernel: KernelSpec | KernelMap | np.ndarray | None = None
    points: Any = None
    point_values: Any = None
    point_labels: str | Sequence[str] | None = None
    arrows: Any = None
    curve: Any = None
    sign: str = ""
    note: str = ""
    axes: bool = False
    extent: Extent | None = None
