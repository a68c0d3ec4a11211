"""The data that a problem is measured on: operands, and a kernel map as its views.

The map is the caller's where it is concrete, else a recorded one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from voxax.geometry.host import table_views
from voxax.geometry.kernel_maps import View
from voxax.geometry.nested_sizes import taps_within
from voxax.kernels import Layer, Problem
from voxax.tuning.occupancy import DEFAULT_KIND, nearest_taps, sample_map

CALLERS_MAP = "caller's map"
"""Name of a sample on the map that the product runs on."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """Concrete operands and views of one problem.

    Attributes:
      a, b: the operands of the product, normally distributed in every row.
      views: the map's arrays by name.
      name: ``"caller's map"``, or the recorded occupancy it stands on.
    """

    a: jax.Array
    b: jax.Array
    views: dict[str, jax.Array]
    name: str


def sample_of(
    problem: Problem, views: Mapping[str, jax.Array] | None, needed: Mapping[str, View | None]
) -> Sample:
    """A sample on the caller's map where its table is given, else on a recorded one.

    Args:
      problem: the problem that is measured.
      views: concrete arrays of the caller's map, or None.
      needed: the views that candidates read, by name, and what builds each (None: the map).
    """
    if problem.layer.kind == "dynamic":
        sizes, name = sizes_of(problem, views)
        return Sample(*_operands(problem), {"sizes": jax.device_put(sizes)}, name)
    if views is not None and "neighbors" in views:
        neighbors, name = np.asarray(views["neighbors"]), CALLERS_MAP
    else:
        neighbors, name = recorded_map(problem.layer), DEFAULT_KIND
    # In NumPy: compiling the views' builders would take longer than measuring.
    built = table_views(
        neighbors,
        problem.layer.spec,
        tuple(needed),
        problem.layer.in_capacity,
        [view for view in needed.values() if view is not None],
        symmetric=problem.layer.symmetric,
    )
    arrays = {view: jax.device_put(array) for view, array in zip(needed, built, strict=True)}
    return Sample(*_operands(problem), arrays, name)


def recorded_map(layer: Layer) -> np.ndarray:
    """The neighbors of a map like the layer's on a recorded scene.

    Where it has no pair at all (huge strides), it has one for each row, through one tap: on an
    empty map every candidate would be right, and the one that skips most the fastest.
    """
    spec = layer.spec or nearest_taps(layer.num_offsets, len(layer.level) or 3)
    rows = layer.in_capacity, layer.out_capacity
    neighbors = sample_map(DEFAULT_KIND, spec, layer.level, *rows).neighbors
    if neighbors.size and not (neighbors >= 0).any():
        neighbors = neighbors.copy()
        neighbors[: min(rows), layer.num_offsets // 2] = np.arange(min(rows))
    return neighbors


def sizes_of(problem: Problem, views: Mapping[str, jax.Array] | None) -> tuple[np.ndarray, str]:
    """Sizes of a dynamic problem: the caller's, else random ones from 1 to the largest, or what
    the layer says of them."""
    if views is not None and "sizes" in views:
        return np.asarray(views["sizes"]).reshape(-1), CALLERS_MAP
    rng = np.random.default_rng(0)
    largest = len(_counts(problem)) - 1
    if problem.layer.sizes.uniform == "all":
        return np.full(problem.layer.out_capacity, largest, np.int32), "all taps"
    if problem.layer.sizes.uniform:
        scenes = problem.layer.sizes.grid[0]
        sizes = 1 + (np.arange(scenes) + largest // 2) % largest  # one scene has the middle size
        each = problem.layer.out_capacity // scenes
        return np.repeat(sizes, each).astype(np.int32), "one size per scene"
    if not problem.layer.sizes.prefix:
        sizes = rng.integers(1, largest, problem.layer.out_capacity, endpoint=True)
        return sizes.astype(np.int32), "random sizes"
    places = np.arange(problem.layer.out_capacity)
    sizes = np.zeros(problem.layer.out_capacity, np.int32)
    for size, count in enumerate(problem.layer.sizes.prefix):
        sizes[places < count] = size
    return rng.permutation(sizes), "sizes of the histogram"


def taps_of(problem: Problem, sizes: np.ndarray) -> int:
    """Pairs of a position and a tap that its size has."""
    counts = _counts(problem)
    return int(counts[np.clip(sizes, 0, len(counts) - 1)].sum())


def _counts(problem: Problem) -> np.ndarray:
    """How many taps each size has, from size 0 to the largest."""
    if problem.layer.spec is None:
        raise ValueError("a dynamic problem has a spec")
    return taps_within(problem.layer.spec.offsets)


def _operands(problem: Problem) -> tuple[jax.Array, jax.Array]:
    """Normally distributed in every row."""
    rng, kind = np.random.default_rng(0), np.dtype(jnp.dtype(problem.dtype))

    def values(shape: tuple[int, ...]) -> jax.Array:
        if np.issubdtype(kind, np.integer):
            return jax.device_put(rng.integers(-3, 4, shape).astype(kind))
        real = rng.standard_normal(shape, np.float32)
        if np.issubdtype(kind, np.complexfloating):
            return jax.device_put((real + 1j * rng.standard_normal(shape, np.float32)).astype(kind))
        return jax.device_put(real.astype(kind))

    a, b = map(values, problem.operand_shapes)
    return a, b
