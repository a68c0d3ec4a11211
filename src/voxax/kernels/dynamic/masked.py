"""The dynamic strategies ``masked`` and ``tiled``, which do not sort positions by size.

``masked`` multiplies with the largest kernel everywhere, and reads zeros for the taps that a
position does not have. It runs on every platform and is the reference for every other strategy.

``tiled`` multiplies a block of neighboring positions with the largest size in the block. Memory is
read in order, so ``tiled`` is fast if sizes vary smoothly over the grid, as they usually do. The
gradient of the input is gathered tile by tile, not scattered.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from voxax.kernels.dynamic import patches
from voxax.kernels.dynamic.grid import Grid, grid_of, supports
from voxax.kernels.kernel import EVERY_PRODUCT, Kernel, Parameters, Problem, Views

MASKED_FORMS: tuple[Parameters, ...] = (
    (("block", 512), ("fetch", "gather")),
    (("block", 512), ("fetch", "slices")),
    (("block", 2048), ("fetch", "slices")),
)
# Most taps for ``slices``: a program has a slice for each tap, so more taps make it long.
_MOST_SLICES = 64


def forms_for(problem: Problem) -> tuple[Parameters, ...]:
    """Return the parameters to measure: how patches are read, and positions per block.

    A patch is all values that the taps of a position read. Patches are gathered by indices or, if
    the kernel has at most 64 taps, read as slices.
    """
    return MASKED_FORMS if problem.layer.num_offsets <= _MOST_SLICES else MASKED_FORMS[:1]


def apply_masked(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Return the product (forward, dgrad or wgrad) of ``a`` and ``b`` that ``problem`` describes.

    The operands are as for :class:`voxax.kernels.kernel.Apply`.
    ``views["sizes"]``, ``int32[M]``, has the kernel size of each output position. Each
    position reads zeros for the taps that its size lacks.
    """
    options = dict(parameters)
    block, sizes = int(options["block"]), views["sizes"]
    if options["fetch"] == "slices":
        return patches.run_slices(problem, a, b, sizes, block)
    if problem.product == "dgrad":
        return patches.gather_dgrad(problem, a, b, sizes, block, skip=False)
    largest = grid_of(problem).largest
    return patches.run_blocks(
        problem, a, b, sizes, None, block, lambda count: ((0, count, largest),)
    )


MASKED = Kernel(
    name="masked",
    kind="dynamic",
    products=EVERY_PRODUCT,
    platform="any",
    supports=supports,
    space=lambda problem, hardware: forms_for(problem),
    heuristic=lambda problem, hardware: MASKED_FORMS[0],
    reads=lambda parameters, product, symmetric: ("sizes",),
    apply=apply_masked,
    rank=20,
)


TILED_FORMS: tuple[Parameters, ...] = ((("tile", 256),), (("tile", 1024),))


def apply_tiled(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Return the product (forward, dgrad or wgrad) of ``a`` and ``b`` that ``problem`` describes.

    The operands are as for :class:`voxax.kernels.kernel.Apply`.
    ``views["sizes"]``, ``int32[M]``, has the kernel size of each output position. Tiles of
    positions multiply with the largest size in the tile.
    """
    tile, sizes = int(dict(parameters)["tile"]), views["sizes"]
    if problem.product == "dgrad":
        return patches.gather_dgrad(problem, a, b, sizes, tile, skip=True)
    grid = grid_of(problem)
    return patches.run_blocks(problem, a, b, sizes, tile_order(grid, tile), tile)


def tile_order(grid: Grid, tile: int) -> jax.Array | None:
    """Return the output positions sorted by tile, ``int32[M]``.

    The result is None for a grid with one spatial axis, where row-major order is sorted by tile.
    Tiles are cubes of about ``tile`` positions. Tiles at the border of the grid are smaller, so
    ``tile`` consecutive positions may belong to more than one tile.
    """
    ndim = len(grid.stride)
    if ndim == 1:
        return None
    side = max(1, round(tile ** (1 / ndim)))
    place = jnp.arange(grid.positions, dtype=jnp.int32)
    # The key is the number of the tile; positions within a tile are in order already.
    number = jnp.zeros((1,) * (1 + ndim), jnp.int32)
    counts = [grid.outputs[0], *(-(-n // side) for n in grid.outputs[1:])]
    for axis, extent in enumerate(grid.outputs):
        step = np.int32(math.prod(counts[axis + 1 :]))
        along = jnp.arange(extent, dtype=jnp.int32) // np.int32(side if axis else 1) * step
        number = number + along.reshape([-1 if a == axis else 1 for a in range(1 + ndim)])
    return jax.lax.sort((number.reshape(-1), place), num_keys=1, is_stable=True)[1]


TILED = dataclasses.replace(
    MASKED,
    name="tiled",
    space=lambda problem, hardware: TILED_FORMS,
    heuristic=lambda problem, hardware: TILED_FORMS[0],
    apply=apply_tiled,
    rank=30,
)
