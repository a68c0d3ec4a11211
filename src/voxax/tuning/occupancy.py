"""Realistic kernel maps from recorded scenes, for measurements if the real map has no values.

The speed of a sparse convolution depends on its map. In a LiDAR sweep a voxel has 3 to 7 of 27
neighbors, and on a surface 8 to 15. Random voxels of the same density do not have the runs and
clusters of such scenes. :func:`sample_map` therefore builds maps from recorded scenes that are part
of the package; ``occupancies/README.md`` describes them. This module uses NumPy only and no device.
"""

from __future__ import annotations

import functools
import importlib.resources
from typing import NamedTuple

import numpy as np

from voxax._native.eager import threads
from voxax.coords import COORD_LIMIT, host
from voxax.errors import InputError
from voxax.geometry import KernelSpec
from voxax.geometry.host import neighbor_table, output_rows

KINDS = ("lidar", "indoor", "airborne", "surface")
DEFAULT_KIND = "lidar"
"""Kind of scene that is assumed for a traced map, because most sparse networks read LiDAR."""

TIME_STEPS = 4
"""Number of time steps of a 4-D scene; each step is the recorded scene, moved by one more cell."""

Level = tuple[int, ...]

FILL = 0.88
"""Share of a capacity that is filled with voxels; in real use it is 80 to 100 %."""


class SampleMap(NamedTuple):
    """Kernel map of a recorded scene, in read-only NumPy arrays.

    Attributes:
      neighbors: ``int32[out_capacity, K]``, the input row of each output row at each of K kernel
        offsets, or -1.
      in_rows: ``int32[N, 1 + D]``, batch index and D coordinates of the N input voxels, in
        lexicographic order.
      out_rows: ``int32[M, 1 + D]``, batch index and D coordinates of the M output voxels, in
        lexicographic order.
    """

    neighbors: np.ndarray
    in_rows: np.ndarray
    out_rows: np.ndarray


@functools.lru_cache(maxsize=1)  # the three products of a layer ask for the same map in turn
def sample_map(
    kind: str, spec: KernelSpec, level: Level, in_capacity: int, out_capacity: int
) -> SampleMap:
    """Return the kernel map of a recorded scene, cropped or repeated to fill the given capacities.

    The input fills the share ``FILL`` of its capacity. It fills less if the output would otherwise
    fill more than ``FILL`` of the output capacity. If outputs are at the input's voxels (stride 1),
    input and output each fill ``FILL`` of their capacity; then the smaller of the two has a part of
    the other's voxels.

    A scene that is too large is cropped to a connected part: for LiDAR to a sector around the
    sensor, which keeps the proportion of near and far voxels, and otherwise to the voxels nearest
    to the middle. A scene that is too small is repeated as further scenes of the batch.

    Recorded scenes have three axes. For a kernel with two axes, the scene is projected from above.
    For one axis, all its lines of voxels along the first axis are joined. For four axes, the scene
    is repeated in several time steps.

    Args:
      kind: name of the recorded scene, one of ``KINDS``.
      spec: kernel shape, stride and similar properties of the map.
      level: total stride of the input geometry, one entry per axis; ``()`` means unknown.
      in_capacity, out_capacity: static numbers of input and output rows of the forward product.

    Raises:
      InputError: the kind is unknown, or ``level`` has another number of axes than ``spec``.
    """
    level = level or (1,) * spec.ndim
    if len(level) != spec.ndim:
        raise InputError(f"level {level} has {len(level)} axes, the kernel has {spec.ndim}")
    in_fill, out_fill = (min(n, max(1, int(FILL * n))) for n in (in_capacity, out_capacity))
    if spec.transposed and not spec.generative:  # the given output is the finer set
        level = tuple(max(1, a // b) for a, b in zip(level, spec.stride, strict=True))
    scene = scene_cells(kind, level, spec.spatial_shape)
    if spec.keeps_coords:
        source, out = _first_rows(*scene, in_fill), _first_rows(*scene, out_fill)
    else:
        source, out = _fit(*scene, spec, in_fill, out_fill)
    made = SampleMap(neighbor_table(source, out, spec, out_capacity, threads()), source, out)
    for array in made:
        array.flags.writeable = False
    return made


def _first_rows(cells: np.ndarray, places: np.ndarray, number: int) -> np.ndarray:
    """Repeat a scene as the scenes of a batch, until there are `number` voxels; return the voxels.

    The result is ``int32[number, 1 + D]``, the batch index and D coordinates, in lexicographic
    order. `cells` has the coordinates of the scene's N voxels, ``int32[N, D]``, in this order, and
    `places` has their ranks, ``int[N]``. If the last scene of the batch has to be smaller, it has
    the voxels with the lowest ranks.
    """
    times, rest = divmod(number, max(len(cells), 1))
    rows = np.concatenate([np.tile(cells, (times, 1)), cells[places < rest]])
    return np.column_stack([np.arange(len(rows), dtype=np.int32) // max(len(cells), 1), rows])


def _fit(
    cells: np.ndarray, places: np.ndarray, spec: KernelSpec, in_fill: int, out_fill: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the input and output voxels of the largest kernel map within two limits.

    The limits are `in_fill` input voxels and `out_fill` output voxels; a larger map may exist, but
    by no more than about 3 %. Both results are ``int32[rows, 1 + D]``, batch index and coordinates.
    One side is made by :func:`_first_rows` from the voxels `cells` of a scene and their ranks
    `places`. This is the output if the convolution is transposed and not generative, and otherwise
    the input. The other side is computed from it, by the stride and kernel offsets in `spec`.
    """
    finer = spec.transposed and not spec.generative  # then the cells are the output
    fill, other = (out_fill, in_fill) if finer else (in_fill, out_fill)
    stride = np.asarray(spec.stride, np.int64)
    reach = np.abs(spec.dilated_offsets).max(0) + stride
    fits, fails, best = -1, 1 + (fill if other else 0), (cells, cells)
    size = min(fill, other // 16) if spec.generative else fill  # a small map shows the growth
    while fits + 1 < fails:
        size = min(max(size, fits + 1), fails - 1)
        rows = _first_rows(cells, places, size)
        if spec.generative:  # drop outputs beyond the limit, as for extreme strides and dilations
            rows = rows[(np.abs(rows[:, 1:]) * stride + reach < COORD_LIMIT).all(1)]
        found = output_rows(rows, spec)
        used = max(len(rows) / max(fill, 1), len(found) / max(other, 1))
        if used > 1:
            fails = size
        else:
            fits, best = size, (rows, found)
            if used > 0.97:
                break
        size = int(0.985 * size / used) if used else 2 * size
    return (best[1], best[0]) if finer else best


@functools.lru_cache(maxsize=len(KINDS))
def recorded(kind: str) -> np.ndarray:
    """Return the voxels of a recorded scene, read-only ``int32[N, 3]`` in lexicographic order.

    Raises:
      InputError: the kind is unknown; the message lists the known kinds.
    """
    if kind not in KINDS:
        raise InputError(f"unknown occupancy {kind!r}; known: {', '.join(KINDS)}")
    file = importlib.resources.files("voxax") / "tuning" / "occupancies" / f"{kind}.npz"
    with file.open("rb") as stream, np.load(stream) as stored:
        rows = unpack(stored["low"], stored["extent"], stored["steps"])
    rows.flags.writeable = False
    return rows


def unpack(low: np.ndarray, extent: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Decode the file format of a recorded scene; return voxels ``int32[N, 3]``.

    The cells of the bounding box are numbered in C order, and the numbers of the occupied cells are
    stored.

    Args:
      low: ``int32[3]``, lowest coordinates of the bounding box.
      extent: ``int32[3]``, number of cells of the bounding box along each axis.
      steps: ``uint8[4, N]``, differences between the numbers of successive occupied cells. Row 0
        has the most significant bytes; they are mostly zero and compress well.
    """
    numbers = np.cumsum(steps.T.copy().view(">u4").reshape(-1).astype(np.int64))
    cells = np.stack(np.unravel_index(numbers, tuple(int(n) for n in extent)), axis=1)
    return (cells + low).astype(np.int32)


def scene_cells(
    kind: str, level: Level, spatial_shape: Level | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the occupied cells of a recorded scene at the total stride `level`, and their ranks.

    `kind` is the name of the scene. The cells are ``int32[N, D]`` in lexicographic order. The ranks
    are ``int[N]``: a scene that is cropped to n cells keeps the cells with ranks below n. If
    `spatial_shape` is given, the scene is moved to the middle of a grid of this shape, and cells
    outside of the grid are left out.
    """
    rows, ndim = recorded(kind), len(level)
    if ndim == 1:
        rows = np.floor_divide(rows, np.int32(level[0]))
        _, line = np.unique(rows[:, 1:], axis=0, return_inverse=True)
        # The gap between two lines is longer than the scene.
        pitch = 2 * int(np.ptp(rows[:, 0])) + 64
        rows, level = (rows[:, :1] + pitch * line.reshape(-1, 1)).astype(np.int32), (1,)
    elif ndim == 4:
        steps = [rows + np.asarray([t, 0, 0], np.int32) for t in range(TIME_STEPS)]
        times = np.repeat(np.arange(TIME_STEPS, dtype=np.int32), len(rows))
        rows = np.concatenate([np.concatenate(steps), times[:, None]], axis=1)
    in_batch = np.pad(rows[:, :ndim], ((0, 0), (1, 0)))
    cells = host.unique_rows(host.coarsen(in_batch, level))[0][:, 1:]
    space = cells[:, :3] + 0.5
    if kind == "lidar" and ndim > 1:
        distance = np.arctan2(space[:, 1], space[:, 0])
    else:
        distance = np.abs(space - np.median(space, axis=0)).max(1)
    if spatial_shape is not None:
        # The grid of ``spatial_shape`` begins at 0, so a central voxel is moved to its middle.
        extent = np.asarray(spatial_shape, np.int64)
        amid = cells[np.abs(cells - np.median(cells, axis=0)).max(1).argmin()]
        cells = cells - amid.astype(np.int64) + extent // 2
        inside = ((cells >= 0) & (cells < extent)).all(1)
        cells, distance = cells[inside].astype(np.int32), distance[inside]
    return cells, np.argsort(np.argsort(distance, kind="stable"))
