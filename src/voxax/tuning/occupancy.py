"""Representative kernel maps, for measuring while the real map is still being traced.

Sparse convolution is as fast as its map allows: a LiDAR sweep has 3 to 7 of 27 neighbors, a surface
8 to 15, and random voxels at the same density have none of their runs and clusters. So
:func:`sample_map` builds maps of a given spec and capacities from recorded scenes, real occupancies
that come with the package; ``occupancies/README.md`` describes them and compares them with scans.
All of it is plain NumPy and touches no device.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import itertools

import numpy as np

from voxax.coords import COORD_LIMIT, host
from voxax.errors import InputError
from voxax.geometry import KernelSpec
from voxax.geometry.host import invert_table, neighbor_table, output_rows

KINDS = ("lidar", "indoor", "airborne", "surface")
DEFAULT_KIND = "lidar"
"""The kind that is assumed of a traced map: most sparse networks read LiDAR."""

TIME_STEPS = 4
"""Steps of a 4-D scene: the record seen again while it moves one cell a step."""

Level = tuple[int, ...]

FILL = 0.88
"""Share of a capacity that is filled: bucketed capacities are 80 to 100 % full."""


@dataclasses.dataclass(frozen=True, eq=False)
class SampleMap:
    """A kernel map in NumPy. The arrays are read-only.

    Attributes:
      neighbors: ``int32[out_capacity, K]``, input row or -1.
      in_rows: ``int32[in rows, 1 + D]``, the input's coordinates in canonical order.
      out_rows: ``int32[out rows, 1 + D]``, the output's.
      name: which record it was made from.
    """

    neighbors: np.ndarray
    in_rows: np.ndarray
    out_rows: np.ndarray
    name: str


@functools.lru_cache(maxsize=1)  # the three products of a layer ask for the same map in turn
def sample_map(
    kind: str,
    spec: KernelSpec | None,
    level: Level,
    in_capacity: int,
    out_capacity: int,
    num_offsets: int | None = None,
) -> SampleMap:
    """A map of ``spec`` on a recorded scene, about as full as real ones are.

    The input side fills ``FILL`` of its capacity, or less where the output side would take more
    than ``FILL`` of its own. A scene that is too large is cropped to a connected part (LiDAR: a
    sector around the sensor, which keeps near and far in proportion; else what is nearest to
    the middle); one that is too small is repeated as further scenes of the batch. A spec whose
    output set is not its own to choose (stride 1 between different capacities) gets two such
    sets, the smaller inside the larger.

    Records have three axes. Two axes see them from above; one axis sees their lines along the
    first axis, one after another; a fourth axis is time.

    Args:
      kind: one of ``KINDS``.
      spec: the relation; None for an unknown one of ``num_offsets`` taps.
      level: total stride of the input geometry, one entry per axis; ``()`` means unknown.
      in_capacity, out_capacity: static rows of the two sides of the forward relation.
      num_offsets: K where there is no spec: a centered box of so many taps, or the taps
        nearest to the center.

    Raises:
      InputError: an unknown kind, or neither ``spec`` nor ``num_offsets``.
    """
    if spec is None:
        if not num_offsets:
            raise InputError("a sample map needs spec=, or num_offsets= of at least 1")
        spec = _nearest_taps(num_offsets, len(level) or 3)
    level = level or (1,) * spec.ndim
    if len(level) != spec.ndim:
        raise InputError(f"level {level} has {len(level)} axes, the kernel has {spec.ndim}")
    in_fill, out_fill = (min(n, max(1, int(FILL * n))) for n in (in_capacity, out_capacity))
    finer = spec.transposed and not spec.generative  # the given output is the finer set
    if finer:
        level = tuple(max(1, a // b) for a, b in zip(level, spec.stride, strict=True))
    scene = scene_rows(kind, level, spec.spatial_shape)
    table = np.full((out_capacity, spec.num_offsets), -1, np.int32)
    sources, outs = [scene[:0]], [scene[:0]]
    batch = in_used = out_used = 0
    whole = True
    if spec.keeps_coords and in_capacity != out_capacity:
        whole, sources, outs = False, [_repeated(scene, in_fill)], [_repeated(scene, out_fill)]
        table = neighbor_table(sources[0], outs[0], spec, out_capacity)
    # Whole scenes are repeated as often as they fit, the last piece is a part of one.
    while whole and in_used < in_fill and out_used < out_fill:
        source, out, size = _fit(scene, spec, in_fill - in_used, out_fill - out_used)
        if not len(source) or not len(out):
            break
        whole = size == len(scene)
        piece = _table(source, out, spec)
        times = min((in_fill - in_used) // len(source), (out_fill - out_used) // len(out))
        first = in_used + len(source) * np.arange(times, dtype=np.int32)
        block = np.where(piece[None] >= 0, piece[None] + first[:, None, None], -1)
        table[out_used : out_used + times * len(out)] = block.reshape(-1, spec.num_offsets)
        sources.append(_copies(source, times, batch))
        outs.append(_copies(out, times, batch))
        batch += times
        in_used, out_used = in_used + times * len(source), out_used + times * len(out)
    arrays = table, np.concatenate(sources), np.concatenate(outs)
    for array in arrays:
        array.flags.writeable = False
    return SampleMap(*arrays, kind)


def _nearest_taps(number: int, ndim: int) -> KernelSpec:
    """A spec of stride 1 with so many taps."""
    edge = 1
    while edge**ndim < number:
        edge += 1
    if edge**ndim == number:
        return KernelSpec.make(ndim, edge)
    reach = edge // 2 + 1
    box = itertools.product(range(-reach, reach + 1), repeat=ndim)
    nearest = sorted(box, key=lambda offset: (sum(o * o for o in offset), offset))
    return KernelSpec.make(ndim, kernel_shape=sorted(nearest[:number]))


def _table(source: np.ndarray, out: np.ndarray, spec: KernelSpec) -> np.ndarray:
    """``int32[len(out), K]``: the neighbors of one scene, with as few searches as possible."""
    offsets, taps = spec.dilated_offsets, spec.num_offsets
    if out is source and spec.symmetric and not spec.transposed:
        # One half of the taps is the other half read backwards.
        found = host.find_neighbors(source, out, offsets[: taps // 2])
        middle = np.arange(len(out), dtype=np.int32)[:, None][:, : taps % 2]
        return np.concatenate([found, middle, invert_table(found, len(out))[:, ::-1]], axis=1)
    if spec.generative and not spec.transposed and all(s == 1 for s in spec.stride):
        # There are several times as many outputs as inputs: search from the inputs.
        reached = host.find_neighbors(out, source, -offsets[::-1])
        return invert_table(reached, len(out))[:, ::-1]
    return neighbor_table(source, out, spec, len(out))


def _copies(rows: np.ndarray, times: int, batch: int) -> np.ndarray:
    """``rows`` of scene 0 as the scenes ``batch`` to ``batch + times - 1``."""
    copies = np.tile(rows, (times, 1))
    copies[:, 0] = batch + np.repeat(np.arange(times, dtype=np.int32), len(rows))
    return copies


def _repeated(scene: np.ndarray, number: int) -> np.ndarray:
    """``number`` rows: whole copies of the scene, then a part of one."""
    if not len(scene):
        return scene
    times, rest = divmod(number, len(scene))
    part = host.unique_rows(scene[:rest])[0]
    part[:, 0] = times
    return np.concatenate([_copies(host.unique_rows(scene)[0], times, 0), part])


def _sides(part: np.ndarray, spec: KernelSpec) -> tuple[np.ndarray, np.ndarray]:
    """Input and output rows of the map on a part of a scene, in canonical order."""
    part = host.unique_rows(part)[0]
    if spec.keeps_coords:
        return part, part
    if spec.generative:
        # Only absurd strides and dilations take a scene of some 2**11 cells that far.
        reach = np.abs(spec.dilated_offsets).max(0) + np.asarray(spec.stride, np.int64)
        span = np.abs(part[:, 1:].astype(np.int64)) * np.asarray(spec.stride, np.int64) + reach
        part = part[(span < COORD_LIMIT).all(1)]
        return part, output_rows(part, spec)
    coarse = output_rows(part, spec)
    return (coarse, part) if spec.transposed else (part, coarse)


def _fit(
    scene: np.ndarray, spec: KernelSpec, in_fill: int, out_fill: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """The largest part of the scene, to about 3 %, whose both sides fit the capacities.

    Returns:
      ``(input rows, output rows, rows of the scene that were used)``.
    """
    best = scene[:0], scene[:0], 0
    fails = len(scene) + 1
    finer = spec.transposed and not spec.generative
    size = min(len(scene), out_fill if finer else in_fill)
    if spec.generative:
        size = min(size, max(1, out_fill // 16))  # a cheap look at how much it grows
    while best[2] + 1 < fails:
        size = min(max(size, best[2] + 1), fails - 1)
        source, out = _sides(scene[:size], spec)
        used = max(len(source) / in_fill, len(out) / out_fill)
        if used <= 1:
            best = source, out, size
            if used > 0.97:
                break
        else:
            fails = size
        size = int(0.985 * size / used) if used else 2 * size
    return best


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
