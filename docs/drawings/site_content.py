"""Content of a panel, as plain arrays on the lattice of stride 1, with its checks.

NumPy only. One-dimensional sites become a row of cells.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voxax.errors import InputError

from .panel import Extent, Panel


@dataclass(frozen=True)
class Content:
    """A panel, checked.

    Attributes:
      cells: int64[N, 2], sites in units of `step`.
      scenes: int64[N], scene of each site.
      num_scenes: how many lattices the panel shows side by side.
      step: edges of a site in units of stride 1.
      values: float64[N] or None.
      groups: int64[N] or None.
      labels: N texts or None.
      highlight: int64[H, 3]: scene, then site.
      center: for a kernel, the footprint of the site that the taps surround.
    """

    cells: np.ndarray
    scenes: np.ndarray
    num_scenes: int = 1
    step: tuple[int, int] = (1, 1)
    values: np.ndarray | None = None
    groups: np.ndarray | None = None
    labels: list[str] | None = None
    highlight: np.ndarray = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    points: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))
    point_values: np.ndarray | None = None
    point_labels: list[str] | None = None
    arrows: np.ndarray = field(default_factory=lambda: np.zeros((0, 2, 2)))
    curve: np.ndarray | None = None
    center: tuple[int, int] | None = None

    def extent(self) -> Extent | None:
        """The lattice box around sites, points and center; None if there are none."""
        step = np.asarray(self.step)
        low, high = [self.cells * step], [(self.cells + 1) * step]
        if len(self.points):
            low.append(np.floor(self.points).astype(np.int64))
            high.append(np.floor(self.points).astype(np.int64) + 1)
        if self.center is not None:
            low.append(np.zeros((1, 2), np.int64))
            high.append(np.array([self.center], np.int64))
        corners = np.concatenate(low), np.concatenate(high)
        if not len(corners[0]):
            return None
        (x0, y0), (x1, y1) = corners[0].min(axis=0).tolist(), corners[1].max(axis=0).tolist()
        return (x0, x1), (y0, y1)


def content_of(panel: Panel) -> Content:
    """The contents of `panel`, checked.

    Raises:
      InputError: an array has the wrong shape or length; the message names the panel.
    """
    name = f"panel {panel.title!r}"
    if panel.kernel is not None and panel.voxels is not None:
        raise InputError(f"{name} has a kernel and voxels: draw them in two panels")
    if panel.kernel is not None:
        cells, center = _kernel(panel.kernel, name)
        scenes, num_scenes, step = np.zeros(len(cells), np.int64), 1, (1, 1)
        taps = _integers(panel.highlight, name, "highlight (taps)", ())
        if ((taps < 0) | (taps >= len(cells))).any():
            raise InputError(f"{name}: highlight={taps.tolist()} of a kernel of {len(cells)} taps")
        highlight = np.concatenate([np.zeros((len(taps), 1), np.int64), cells[taps]], axis=1)
    else:
        cells, scenes, num_scenes, step = _sites(panel.voxels, name)
        center, highlight = None, _coords(panel.highlight, name, "highlight")
    labels = "rows" if panel.labels is None and panel.kernel is not None else panel.labels
    values = _values(panel, len(cells), name)
    points = _positions(panel.points, name)
    point_values = _per_row(panel.point_values, len(points), name, "point_values")
    return Content(
        cells=cells,
        scenes=scenes,
        num_scenes=num_scenes,
        step=step,
        values=values,
        groups=None if panel.groups is None else _rows_of(panel.groups, len(cells), name, "groups"),
        labels=_labels(labels, values, len(cells), name),
        highlight=highlight,
        points=points,
        point_values=point_values,
        point_labels=_labels(panel.point_labels, point_values, len(points), name),
        arrows=_arrows(panel.arrows, name),
        curve=None if panel.curve is None else _coords(panel.curve, name, "curve"),
        center=center,
    )


def number_text(value: float) -> str:
    """At most one decimal, and a true minus sign."""
    if not np.isfinite(value):
        return "?"
    text = f"{value:.1f}".removesuffix(".0").replace("-0.", "-.").replace("-", "−")
    return text.removeprefix("0") if text.startswith("0.") else text


def _sites(voxels: Any, name: str) -> tuple[np.ndarray, np.ndarray, int, tuple[int, int]]:
    if voxels is None:
        return np.zeros((0, 2), np.int64), np.zeros(0, np.int64), 1, (1, 1)
    if not hasattr(voxels, "valid_coords"):
        rows = _coords(voxels, name, "voxels")
        return rows[:, 1:], rows[:, 0], int(rows[:, 0].max(initial=0)) + 1, (1, 1)
    rows = _coords(voxels.valid_coords(), name, "voxels", batched=True)
    step = _pair(voxels.stride)
    return rows[:, 1:], rows[:, 0], voxels.batch_size, step


def _coords(given: Any, name: str, what: str, batched: bool = False) -> np.ndarray:
    """int64[n, 3] of scene and site, from [n, 1 or 2] sites or [n, 1 + D] coords."""
    rows = np.asarray([] if given is None else given)
    if rows.size == 0:
        return np.zeros((0, 3), np.int64)
    rows = np.atleast_2d(rows)
    widths = (2, 3) if batched else (1, 2, 3)
    if rows.ndim != 2 or rows.shape[1] not in widths or rows.dtype.kind not in "iu":
        raise InputError(
            f"{name}: {what} has dtype {rows.dtype} and shape {rows.shape}; drawn are sites on one "
            "or two axes, integers [n, D], or [n, 1 + D] with the scene first"
        )
    rows = rows.astype(np.int64)
    if batched and rows.shape[1] == 2:
        return np.pad(rows, ((0, 0), (0, 1)))
    if rows.shape[1] < 3:
        rows = np.pad(rows, ((0, 0), (0, 2 - rows.shape[1])))
        rows = np.pad(rows, ((0, 0), (1, 0)))
    return rows


def _kernel(kernel: Any, name: str) -> tuple[np.ndarray, tuple[int, int]]:
    spec = getattr(kernel, "spec", kernel)
    if not hasattr(spec, "offsets"):
        return _coords(spec, name, "kernel")[:, 1:], (1, 1)
    offsets = _coords(spec.dilated_offsets, name, "kernel")[:, 1:]
    return offsets, _pair(spec.stride)


def _pair(stride: Sequence[int]) -> tuple[int, int]:
    return (stride[0], stride[1]) if len(stride) > 1 else (stride[0], 1)


def _values(panel: Panel, rows: int, name: str) -> np.ndarray | None:
    if isinstance(panel.values, str):
        voxels: Any = panel.voxels
        if panel.values != "features" or not hasattr(voxels, "valid_features"):
            raise InputError(
                f'{name}: values={panel.values!r}; give numbers, or "features" for the first '
                "channel of Voxels"
            )
        return np.asarray(voxels.valid_features(), np.float64)[:, 0]
    return _per_row(panel.values, rows, name, "values")


def _per_row(given: Any, rows: int, name: str, what: str) -> np.ndarray | None:
    return None if given is None else _rows_of(given, rows, name, what).astype(np.float64)


def _rows_of(given: Any, rows: int, name: str, what: str) -> np.ndarray:
    """One number per row; an array over the whole capacity is cut to the valid rows."""
    array = np.asarray(given)
    array = array[:, 0] if array.ndim == 2 else array
    if array.ndim != 1 or len(array) < rows:
        raise InputError(f"{name}: {what} of shape {np.shape(given)} for {rows} rows")
    return array[:rows]


def _labels(
    given: str | Sequence[str] | None, values: np.ndarray | None, rows: int, name: str
) -> list[str] | None:
    if given is None:
        return None
    if isinstance(given, str):
        if given == "rows":
            return [str(row) for row in range(rows)]
        if given == "values" and values is not None:
            return [number_text(value) for value in values]
        raise InputError(
            f'{name}: labels={given!r}; known: "rows", "values" (with values given), a list of '
            "texts"
        )
    if len(given) != rows:
        raise InputError(f"{name}: {len(given)} labels for {rows} rows")
    return [str(label) for label in given]


def _integers(given: Any, name: str, what: str, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray([] if given is None else given)
    if array.size == 0:
        return np.zeros((0, *shape), np.int64)
    array = np.atleast_1d(array)
    if array.dtype.kind not in "iu" or array.shape[1:] != shape:
        raise InputError(f"{name}: {what} must be integers, got {array.dtype}{list(array.shape)}")
    return array.astype(np.int64)


def _positions(given: Any, name: str) -> np.ndarray:
    array = np.zeros((0, 2)) if given is None else np.asarray(given, np.float64)
    if array.ndim == 2 and array.shape[1] == 1:
        array = np.concatenate([array, np.full_like(array, 0.5)], axis=1)
    if array.ndim != 2 or array.shape[1] != 2:
        raise InputError(f"{name}: points of shape {array.shape}; expected [n, 1] or [n, 2]")
    return array


def _arrows(given: Any, name: str) -> np.ndarray:
    array = np.zeros((0, 2, 2)) if given is None else np.asarray(given, np.float64)
    if array.size == 0:
        return np.zeros((0, 2, 2))
    if array.ndim != 3 or array.shape[1:] != (2, 2):
        raise InputError(f"{name}: arrows of shape {array.shape}; expected [n, 2 (from, to), 2]")
    return array
