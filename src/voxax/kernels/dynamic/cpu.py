"""The dynamic strategy ``grouped`` on CPUs, with the native kernels of ``implicit_gemm``.

Sizes are converted to a kernel map: for each position and tap the row that the tap reads, or -1 if
the kernel of the position's size has no such tap. For each tap, the native kernels multiply only
the rows of a tile that have the tap. dgrad uses the map from input positions to outputs.

If nothing is known about the sizes, ``forward`` checks at run time whether each scene has a single
size. If so, ``forward`` runs an ordinary convolution, as does the strategy ``selected``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax.geometry.dtypes import accumulator, product_dtype
from voxax.hardware import HardwareInfo
from voxax.kernels.dynamic import masked, selected
from voxax.kernels.dynamic.grid import Grid, grid_of
from voxax.kernels.implicit_gemm import cpu
from voxax.kernels.kernel import Parameters, Problem, Views, first_of
from voxax.kernels.rows import table_read, zeros

# Number of entries of the map that are in memory at a time (64 MB): 5 million positions with 3
# taps, or 340,000 with 49.
_ENTRIES = 1 << 24
# The largest number of kernels that are compiled in addition to the native ones.
_KERNELS = 16


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Return the reason why the native kernels cannot run this problem, or None if they can."""
    return masked.supports(problem, hardware) or cpu.refusal(problem)


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """Return the parameters to measure: those of ``implicit_gemm`` for an equivalent kernel map."""
    return cpu.space(_mapped(problem, problem.out_rows), hardware)


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Return the product (forward, dgrad or wgrad) of ``a`` and ``b`` that ``problem`` describes.

    The operands are as for :class:`voxax.kernels.kernel.Apply`.
    ``views["sizes"]``, ``int32[M]``, has the kernel size of each output position.
    """
    sizes = views["sizes"]
    if not _may_be_uniform(problem):
        return _by_map(problem, parameters, a, b, sizes)
    scenes = sizes.reshape(problem.layer.sizes.grid[0], -1)
    first = scenes[:, 0]
    return jax.lax.cond(
        jnp.all(scenes == first[:, None]),
        lambda: selected.forward_of_uniform(problem, a, b, first),
        lambda: _by_map(problem, parameters, a, b, sizes),
    )


def _may_be_uniform(problem: Problem) -> bool:
    """Return whether :func:`apply` has to test at run time if each scene has one kernel size.

    True only for forward, if the problem says nothing about the sizes and the kernel of the largest
    size is a cube of at most ``_KERNELS`` taps along each axis.
    """
    sizes = problem.layer.sizes
    unknown = sizes.tile_density is None and not sizes.uniform and not sizes.prefix
    if problem.product != "forward" or not unknown or not grid_of(problem).positions:
        return False
    # One kernel is compiled for each size.
    return grid_of(problem).largest <= _KERNELS and selected.is_box(problem)


def _by_map(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, sizes: jax.Array
) -> jax.Array:
    """Return y, dx or dw, as ``problem`` says, of operands ``a`` and ``b``, by a neighbor table.

    ``sizes``, ``int32[M]``, has the kernel size of each output position, from which the table is
    made. The table is made and used part by part, to limit its memory.
    """
    rows = problem.out_rows
    size = max(1, min(rows, _ENTRIES // problem.layer.num_offsets))
    parts = -(-rows // size)
    mapped = _mapped(problem, size)
    (name,) = table_read(parameters, problem.product, symmetric=False)

    def part(number: jax.Array, b: jax.Array) -> jax.Array:
        table = _table(problem, number * size + jnp.arange(size, dtype=jnp.int32), sizes)
        return cpu.apply(mapped, parameters, a, b, {name: table})

    if parts == 1:
        return part(jnp.zeros((), jnp.int32), b)
    numbers = jnp.arange(parts, dtype=jnp.int32)
    if problem.product != "wgrad":
        out = jax.lax.map(lambda number: part(number, b), numbers)
        return out.reshape(parts * size, -1)[:rows]
    wide = accumulator(a.dtype)
    dy = jnp.pad(b, ((0, parts * size - rows), (0, 0))).reshape(parts, size, -1)

    def step(total: jax.Array, given: tuple) -> tuple[jax.Array, None]:
        return total + part(*given).astype(wide), None

    total, _ = jax.lax.scan(step, zeros(problem.weight_shape, wide, a), (numbers, dy))
    return total.astype(product_dtype(a.dtype))


def apply_on_host(
    problem: Problem,
    parameters: Parameters,
    a: np.ndarray,
    b: np.ndarray,
    views: Mapping[str, np.ndarray],
) -> np.ndarray | None:
    """Compute :func:`apply` for NumPy arrays, or return None if :func:`apply` has to run.

    It has to run if the kernel map is too large to be made at once, or if :func:`apply` runs an
    ordinary convolution because each scene has a single kernel size.
    """
    sizes, rows = views["sizes"], problem.out_rows
    if rows * problem.layer.num_offsets > _ENTRIES:
        return None
    if _may_be_uniform(problem):
        scenes = sizes.reshape(problem.layer.sizes.grid[0], -1)
        if (scenes == scenes[:, :1]).all():  # an ordinary convolution, which XLA runs
            return None
    (name,) = table_read(parameters, problem.product, symmetric=False)
    table = _table(problem, np.arange(rows, dtype=np.int32), sizes)
    return cpu.apply_on_host(_mapped(problem, rows), parameters, a, b, {name: table})


def _mapped(problem: Problem, rows: int) -> Problem:
    """Return ``problem`` as a problem of ``implicit_gemm``, with dense weights.

    ``rows`` is the number of rows of the neighbor table.
    """
    if problem.product == "dgrad":
        return problem.with_layer(kind="dense", in_capacity=rows)
    return problem.with_layer(kind="dense", out_capacity=rows)


def _table(problem: Problem, rows: Any, sizes: Any) -> Any:
    """Return the neighbor table ``int32[R, K]`` of the positions ``rows``, ``int32[R]``.

    An entry is the row number of the neighbor at a tap, or -1 for none. ``rows`` are output
    positions and neighbors input positions; for dgrad it is the other way around. ``sizes`` has the
    kernel size of each output position. The arrays are either all of JAX or all of NumPy.
    """
    xp = np if isinstance(rows, np.ndarray) else jnp
    grid, backward = grid_of(problem), problem.product == "dgrad"
    own, other = (grid.inputs, grid.outputs) if backward else (grid.outputs, grid.inputs)
    taps, reach = _taps(grid)
    # Row-major: row = ((scene * D + z) * H + y) * W + x, here taken apart, below put together.
    number = rows
    there = (rows < math.prod(own))[:, None]
    places = []
    for extent in own[:0:-1]:
        places.insert(0, rows % extent)
        rows = rows // extent
    index = rows[:, None]  # the scene
    for axis, (place, step, extent) in enumerate(zip(places, grid.stride, other[1:], strict=True)):
        at = place[:, None] - taps[axis] if backward else place[:, None] * step + taps[axis]
        if backward and step > 1:
            there = there & (at % step == 0)
            at = at // step
        there = there & (at >= 0) & (at < extent)
        index = index * extent + at
    if backward:
        size = sizes[xp.where(there, index, 0)]
    else:
        size = sizes[xp.minimum(number, sizes.shape[0] - 1)][:, None]
    return xp.where(there & (size >= reach), index, -1).astype(np.int32)


def _taps(grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """Return the offset of each tap, ``int32[D, 1, K]``, and the kernel size from which it exists.

    The sizes are ``int32[1, K]``: a position has a tap if its kernel size is this size or larger.
    The K taps (kernel offsets) are in the order of the weight.
    """
    places = np.argsort(grid.order)
    return grid.taps[places].T[:, None].astype(np.int32), grid.reach[places][None]


def _leads(problem: Problem, hardware: HardwareInfo) -> bool:
    """Return whether to prefer ``grouped``: always, except for forward with uniform sizes.

    On 2 cores of an AMD EPYC (AVX2) it took 0.22 to 1.1 of the time of the next best strategy, on
    the ten maps of benchmarks/dynamic.py, 64 channels, forward; 0.18 to 0.72 with gradients.
    """
    del hardware
    return not (problem.layer.sizes.uniform and problem.product == "forward")


NATIVE = dataclasses.replace(
    masked.MASKED,
    name="grouped",
    platform="cpu",
    supports=supports,
    space=space,
    heuristic=first_of(space),
    apply=apply,
    on_host=apply_on_host,
    preferred=_leads,
    decisive=_leads,
    alone=True,
    rank=10,
)
