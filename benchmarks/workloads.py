"""Named sets of voxel coordinates, shared by tests and benchmarks.

Each workload is a function of a size and a seed, made of simple NumPy shapes, and returns
``int32[N, 1 + D]`` (batch index first, distinct rows, shuffled) with about ``size`` rows.
``scan`` crops a real scan instead, where one is available.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def random_cube(size: int = 300, seed: int = 0, ndim: int = 3, batch_size: int = 2) -> np.ndarray:
    """Uniform at about 30 % occupancy, centered, so that half the coordinates are negative."""
    rng = np.random.default_rng(seed)
    edge = max(2, round((size / batch_size / 0.3) ** (1 / ndim)))
    rows = rng.integers(-(edge // 2), edge - edge // 2, (size, ndim))
    return _shuffled(rng, np.column_stack([rng.integers(0, batch_size, size), rows]))


def flat_box(size: int = 300, seed: int = 0) -> np.ndarray:
    """Non-cubic extents, off center: 40 x 5 x 2 cells that start at (-7, 11, -1)."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, [40, 5, 2], (size, 3)) + np.array([-7, 11, -1])
    return _shuffled(rng, np.column_stack([np.zeros(size, int), rows]))


def surface(size: int = 300, seed: int = 0) -> np.ndarray:
    """A closed surface: the shell of a sphere, as meshes and indoor scans have."""
    rng = np.random.default_rng(seed)
    radius = max(1.5, np.sqrt(size / (4 * np.pi)))
    direction = rng.normal(size=(4 * size, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    rows = np.floor(radius * direction).astype(int)
    return _shuffled(rng, np.column_stack([np.zeros(len(rows), int), rows]))[:size]


def lidar_like(size: int = 300, seed: int = 0) -> np.ndarray:
    """A spinning scanner over a plane with walls: rings that thin out with the distance."""
    rng = np.random.default_rng(seed)
    azimuth = rng.uniform(0, 2 * np.pi, 2 * size)
    pitch = np.deg2rad(rng.choice(np.linspace(-25, -1, 16), 2 * size))
    wall = rng.choice([8.0, 15.0, 30.0], 2 * size)
    reach = np.minimum(2.0 / np.tan(-pitch), wall)
    flat = reach[:, None] * np.column_stack([np.cos(azimuth), np.sin(azimuth)])
    points = np.column_stack([flat, reach * np.tan(pitch)])
    rows = np.floor(points / 0.2).astype(int)
    return _shuffled(rng, np.column_stack([np.zeros(len(rows), int), rows]))[:size]


def gap_in_batch(size: int = 300, seed: int = 0) -> np.ndarray:
    """Three scenes (batch_size 3), of which the middle one is empty."""
    rows = random_cube(size, seed)
    rows[:, 0] *= 2
    return rows


def one_voxel(size: int = 1, seed: int = 0) -> np.ndarray:
    """A single voxel; ``size`` is ignored."""
    del size, seed
    return np.array([[0, -3, 2, 5]], np.int32)


def no_voxel(size: int = 0, seed: int = 0) -> np.ndarray:
    """Nothing at all; ``size`` is ignored."""
    del size, seed
    return np.zeros((0, 4), np.int32)


_ALL = random_cube, flat_box, surface, lidar_like, gap_in_batch, one_voxel, no_voxel
WORKLOADS: dict[str, Callable[..., np.ndarray]] = {make.__name__: make for make in _ALL}


def scan(folder: Path, size: int | None = None, voxel_size: float = 0.2) -> np.ndarray:
    """The ``size`` voxels of the real LiDAR sweep in ``folder`` that lie nearest to its median."""
    positions = np.load(folder / "lidar_os0_128.npz")["xyz"]
    positions = positions[np.isfinite(positions).all(1)]
    rows = np.unique(np.floor(positions / voxel_size).astype(np.int32), axis=0)
    if size is not None:
        distance = np.abs(rows - np.median(rows, axis=0)).max(1)
        rows = rows[np.argsort(distance, kind="stable")[:size]]
    rng = np.random.default_rng(0)
    return _shuffled(rng, np.column_stack([np.zeros(len(rows), int), rows]))


def positions_of(path: Path, dtype: type = np.float32) -> np.ndarray:
    """The finite positions of a scan."""
    from voxax import io

    positions = np.asarray(io.read(path).positions, dtype)
    return positions[np.isfinite(positions).all(1)]


def lidar_tiles(size: int) -> np.ndarray:
    """``size`` voxels of one scene, as dense at any size: the recorded LiDAR sweep, side by side in
    a square grid, the last one as a sector."""
    from voxax.tuning.occupancy import scene_cells

    cells, places = scene_cells("lidar", (1, 1, 1))
    sweep = np.pad(cells[np.argsort(places)], ((0, 0), (1, 0)))  # prefixes are sectors
    tiles = -(-size // len(sweep))
    columns = max(1, round(tiles**0.5))
    pitch = np.ptp(sweep[:, 1:3], axis=0) + 8  # no voxel has neighbors in another tile
    number = np.arange(tiles, dtype=np.int32)
    place = np.stack([number // columns, number % columns], axis=1) * pitch
    rows = np.tile(sweep, (tiles, 1))
    rows[:, 1:3] += np.repeat(place, len(sweep), axis=0).astype(np.int32)
    return rows[:size]


def solid_block(size: int) -> np.ndarray:
    """About ``size`` voxels without a gap: a cube."""
    edge = max(1, round(size ** (1 / 3)))
    rows = np.stack(np.meshgrid(*[np.arange(edge)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    return np.column_stack([np.zeros(len(rows), int), rows]).astype(np.int32)


def problem_of(
    kernel_map: Any,
    channels: int | tuple[int, int],
    product: str,
    kind: str = "dense",
    platform: str = "cpu",
    **own: Any,
) -> Any:
    """Return one product of a layer in float32 as the tuner's problem.

    Args:
      kernel_map: of the layer.
      channels: in and out.
      product: ``"forward"``, ``"dgrad"`` or ``"wgrad"``.
      kind: of the weights.
      platform: JAX's name.
      own: further properties of the layer.
    """
    from voxax.kernels import Layer, Problem

    layer = Layer(
        in_capacity=kernel_map.in_capacity,
        out_capacity=kernel_map.out_capacity,
        num_offsets=kernel_map.num_offsets,
        symmetric=kernel_map.symmetric,
        kind=kind,  # pyright: ignore[reportArgumentType]
        groups=1,
        precision="highest",
        spec=kernel_map.spec,
        **own,
    )
    c_in, c_out = (channels, channels) if isinstance(channels, int) else channels
    return Problem(product, layer, c_in, c_out, "float32", platform)  # pyright: ignore


def _shuffled(rng: np.random.Generator, rows: np.ndarray) -> np.ndarray:
    rows = np.unique(rows, axis=0).astype(np.int32)
    return rows[rng.permutation(len(rows))]
