"""Representative kernel maps, for measuring while the real map is still being traced.

Sparse convolution is as fast as its map allows: a LiDAR sweep has 3 to 7 of 27 neighbors, a surface
8 to 15, and random voxels at the same density have none of their runs and clusters. So
:func:`sample_map` builds maps of a given spec and capacities from recorded scenes, real occupancies
that come with the package; ``occupancies/README.md`` describes them and compares them with scans.
All of it is plain NumPy and touches no device.
"""

from __future__ import annotations

import functools
import importlib.resources
import itertools
from typing import NamedTuple

import numpy as np

from voxax._native.eager import threads
from voxax.coords import COORD_LIMIT, host
from voxax.errors import InputError
from voxax.geometry import KernelSpec
from voxax.geometry.host import neighbor_table, output_rows

KINDS = ("lidar", "indoor", "airborne", "surface")
DEFAULT_KIND = "lidar"
"""The kind that is assumed of a traced map: most sparse networks read LiDAR."""

TIME_STEPS = 4
"""Steps of a 4-D scene: the record seen again while it moves one cell a step."""

Level = tuple[int, ...]

FILL = 0.88
"""Share of a capacity that is filled: bucketed capacities are 80 to 100 % full."""


class SampleMap(NamedTuple):
    """A kernel map in NumPy. The arrays are read-only.

    Attributes:
      neighbors: ``int32[out_capacity, K]``, input row or -1.
      in_rows: ``int32[in rows, 1 + D]``, the input's coordinates in canonical order.
      out_rows: ``int32[out rows, 1 + D]``, the output's.
    """

    neighbors: np.ndarray
    in_rows: np.ndarray
    out_rows: np.ndarray


@functools.lru_cache(maxsize=1)  # the three products of a layer ask for the same map in turn
def sample_map(
    kind: str, spec: KernelSpec, level: Level, in_capacity: int, out_capacity: int
) -> SampleMap:
    """A map of ``spec`` on a recorded scene, about as full as real ones are.

    The input side fills ``FILL`` of its capacity, or less where the output side would take more
    than ``FILL`` of its own. A scene that is too large is cropped to a connected part (LiDAR: a
    sector around the sensor, which keeps near and far in proportion; else what is nearest to
    the middle); one that is too small is repeated as further scenes of the batch. A spec whose
    output set is not its own to choose (stride 1) gets two such sets, of different capacities the
    smaller inside the larger.

    Records have three axes. Two axes see them from above; one axis sees their lines along the
    first axis, one after another; a fourth axis is time.

    Args:
      kind: one of ``KINDS``.
      spec: the relation.
      level: total stride of the input geometry, one entry per axis; ``()`` means unknown.
      in_capacity, out_capacity: static rows of the two sides of the forward relation.

    Raises:
      InputError: an unknown kind, or a level of other axes.
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


def nearest_taps(number: int, ndim: int) -> KernelSpec:
    """A spec of stride 1 with so many taps: a centered box, or the taps nearest to the center."""
    edge = 1
    while edge**ndim < number:
        edge += 1
    if edge**ndim == number:
        return KernelSpec.make(ndim, edge)
    reach = edge // 2 + 1
    box = itertools.product(range(-reach, reach + 1), repeat=ndim)
    nearest = sorted(box, key=lambda offset: (sum(o * o for o in offset), offset))
    return KernelSpec.make(ndim, kernel_shape=sorted(nearest[:number]))


def _first_rows(cells: np.ndarray, places: np.ndarray, number: int) -> np.ndarray:
    """``int32[number, 1 + D]`` in canonical order: whole scenes, then the first cells of one."""
    times, rest = divmod(number, max(len(cells), 1))
    rows = np.concatenate([np.tile(cells, (times, 1)), cells[places < rest]])
    return np.column_stack([np.arange(len(rows), dtype=np.int32) // max(len(cells), 1), rows])


def _fit(
    cells: np.ndarray, places: np.ndarray, spec: KernelSpec, in_fill: int, out_fill: int
) -> tuple[np.ndarray, np.ndarray]:
    """Input and output rows of the map on the most cells, to about 3 %, whose both sides fit."""
    finer = spec.transposed and not spec.generative  # the cells are the output
    fill, other = (out_fill, in_fill) if finer else (in_fill, out_fill)
    stride = np.asarray(spec.stride, np.int64)
    reach = np.abs(spec.dilated_offsets).max(0) + stride
    fits, fails, best = -1, 1 + (fill if other else 0), (cells, cells)
    size = min(fill, other // 16) if spec.generative else fill  # a cheap look at how much it grows
    while fits + 1 < fails:
        size = min(max(size, fits + 1), fails - 1)
        rows = _first_rows(cells, places, size)
        if spec.generative:  # only absurd strides and dilations take a recorded scene that far
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


def unpack(low: np.ndarray, extent: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """``int32[N, 3]`` in canonical order, from the form in which records are stored.

    Cells are numbered along the lines of their bounding box, which begins at ``low``. ``steps``
    holds the bytes of the differences between the numbers of occupied cells, most significant bytes
    first, because these, mostly zero, compress to nearly nothing.
    """
    numbers = np.cumsum(steps.T.copy().view(">u4").reshape(-1).astype(np.int64))
    cells = np.stack(np.unravel_index(numbers, tuple(int(n) for n in extent)), axis=1)
    return (cells + low).astype(np.int32)


def scene_cells(
    kind: str, level: Level, spatial_shape: Level | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The record at a level: cells ``int32[N, D]`` in canonical order, and the place of each in the
    order in which a scene is cropped."""
    rows, ndim = recorded(kind), len(level)
    if ndim == 1:
        rows = np.floor_divide(rows, np.int32(level[0]))
        _, line = np.unique(rows[:, 1:], axis=0, return_inverse=True)
        # A gap of more than the scene's own length lies between two lines.
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
        # The grid that clips begins at 0: a voxel amid the scene is put into its middle.
        extent = np.asarray(spatial_shape, np.int64)
        amid = cells[np.abs(cells - np.median(cells, axis=0)).max(1).argmin()]
        cells = cells - amid.astype(np.int64) + extent // 2
        inside = ((cells >= 0) & (cells < extent)).all(1)
        cells, distance = cells[inside].astype(np.int32), distance[inside]
    return cells, np.argsort(np.argsort(distance, kind="stable"))
