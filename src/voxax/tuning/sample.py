"""The data on which algorithms of a layer are measured: operands, and kernel map arrays.

The map is the caller's if it is concrete, and otherwise the map of a recorded scene.
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
from voxax.tuning.occupancy import DEFAULT_KIND, sample_map

CALLERS_MAP = "caller's map"
"""Value of :attr:`Sample.name` for the map that the measured product really runs on."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """Concrete operands and map arrays for measurements of one product of a layer.

    Attributes:
      a, b: operands of the product: normally distributed values, or small integers.
      views: arrays of the kernel map by name; for a dynamic convolution only ``sizes``.
      name: where the map or the sizes come from: ``"caller's map"``, or another description.
    """

    a: jax.Array
    b: jax.Array
    views: dict[str, jax.Array]
    name: str


def sample_of(
    problem: Problem, views: Mapping[str, jax.Array] | None, needed: Mapping[str, View | None]
) -> Sample:
    """Return the operands and map arrays on which kernels for a product are measured.

    Args:
      problem: the product that is measured.
      views: concrete arrays of the caller's map by name. Without ``neighbors``, a recorded scene is
        used. A dynamic convolution needs only ``sizes``, which are made up if absent.
      needed: names of the arrays that candidates read, each with the ``View`` that builds it, or
        None for arrays that every map has.
    """
    if problem.layer.kind == "dynamic":
        sizes, name = sizes_of(problem, views)
        return Sample(*_operands(problem), {"sizes": jax.device_put(sizes)}, name)
    if views is not None and "neighbors" in views:
        neighbors, name = np.asarray(views["neighbors"]), CALLERS_MAP
    else:
        neighbors, name = recorded_map(problem.layer), DEFAULT_KIND
    # NumPy builds the arrays, because compiling their builders would take longer than measuring.
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
    """Return the neighbor table of a layer's kernel on a recorded scene, ``int32[M, K]``.

    It has the input row of each of M output rows at each of K kernel offsets, or -1. If no row has
    a neighbor, as with huge strides, the first rows get one neighbor each, all at the same kernel
    offset. Without any neighbor, every candidate's result would be right, and the candidate that
    skips most work would be the fastest.
    """
    rows = layer.in_capacity, layer.out_capacity
    neighbors = sample_map(DEFAULT_KIND, layer.spec, layer.level, *rows).neighbors
    if neighbors.size and not (neighbors >= 0).any():
        neighbors = neighbors.copy()
        neighbors[: min(rows), layer.num_offsets // 2] = np.arange(min(rows))
    return neighbors


def sizes_of(problem: Problem, views: Mapping[str, jax.Array] | None) -> tuple[np.ndarray, str]:
    """Return kernel sizes ``int[rows]`` to measure a dynamic convolution, and their origin as text.

    The caller's sizes, ``views["sizes"]``, are used if they exist. Otherwise sizes are made up to
    match the layer's statistics, ``problem.layer.sizes``. Without statistics, they are random from
    1 to the layer's largest size.
    """
    if views is not None and "sizes" in views:
        return np.asarray(views["sizes"]).reshape(-1), CALLERS_MAP
    rng = np.random.default_rng(0)
    largest = len(taps_within(problem.layer.spec.offsets)) - 1
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
    """Return how many kernel offsets the kernels of all positions of a dynamic convolution have.

    `problem` is a product of the convolution, and `sizes` is ``int[rows]``, the kernel size of each
    output position.
    """
    counts = taps_within(problem.layer.spec.offsets)  # of size 0, 1, ... to the largest
    return int(counts[np.clip(sizes, 0, len(counts) - 1)].sum())


def _operands(problem: Problem) -> tuple[jax.Array, jax.Array]:
    """Return random arrays for the two operands of a product, equal in every call.

    Their shapes and dtype are those of `problem`. The values are normally distributed; for integer
    dtypes they are integers from -3 to 3.
    """
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
