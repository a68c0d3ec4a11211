"""implicit_gemm in plain XLA: gather and multiply in small tiles, tap by tap.

The sums of a tile of output rows stay in cache. For each tap, the tile gathers ``[tile, C_in]``,
multiplies it and adds the product. Taps that no row of the tile has are skipped at run time. The
kernels of WarpConvNet and TorchSparse++ do the same with thread blocks.

wgrad divides the tiles into ``split_k_factor`` stripes, whose sums are added at the end.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from voxax.geometry.dtypes import accumulator, product_dtype
from voxax.hardware import HardwareInfo
from voxax.kernels.kernel import EVERY_PRODUCT, Kernel, Parameters, Problem, Views, first_of
from voxax.kernels.rows import (
    clear_missing,
    clear_unreached,
    multiplies,
    oriented,
    outer,
    split_rows,
    table_read,
    times,
    with_zero_row,
    zeros,
)

# Rows of a tile. 4, 16 and 32 are the thread blocks of GPU kernels; as steps of an XLA loop
# they are fast only on small levels, so there are larger tiles, and each is measured only where the
# loop has at most _MOST_TILES steps.
_TILE_ROWS = (4, 16, 32, 256, 1024, 4096)
_MOST_TILES = 512
_USUAL_TILE = 1024
_SPLITS = (2, 4, 8)


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """Return the tile sizes (for wgrad also stripes) to measure, nearest to 1024 rows first.

    CPUs have one candidate, the largest tile. In the mean of 21 workloads of benchmarks/tuning.py,
    tiles of 4096, 1024 and 256 rows took 2.6, 3.2 and 3.9 times as long as the best candidate
    (forward, dgrad). CPUs have no stripes, since one product of XLA's uses all cores.
    """
    rows = max(problem.out_rows, 1)
    sizes = [t for t in _TILE_ROWS if t <= rows and -(-rows // t) <= _MOST_TILES]
    sizes = sizes or [_TILE_ROWS[0] if rows < _TILE_ROWS[0] else _TILE_ROWS[-1]]
    on_cpu = hardware.platform == "cpu"
    sizes = sizes[-1:] if on_cpu else sorted(sizes, key=lambda size: abs(size - _USUAL_TILE))
    if problem.product != "wgrad":
        return tuple((("fwd_block_size", size),) for size in sizes)
    return tuple(
        (("gemm_block_size", size), ("split_k_factor", split))
        for size in sizes
        for split in ((1,) if on_cpu else (1, *_SPLITS))
        if size * split <= max(rows, sizes[0])
    )


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Return the product (forward, dgrad or wgrad) of ``a`` and ``b`` that ``problem`` describes.

    The operands and ``views``, arrays of the kernel map, are as for
    :class:`voxax.kernels.kernel.Apply`. The parameter whose name ends in ``_block_size`` is the
    number of rows of a tile.
    """
    values = {name: int(value) for name, value in parameters}
    if problem.product == "wgrad":
        size, splits = values["gemm_block_size"], values["split_k_factor"]
        return _wgrad(problem, size, splits, a, b, views["neighbors"])
    w, table = oriented(problem, b, views)
    return _product(problem, values["fwd_block_size"], a, w, table)


def _product(
    problem: Problem, size: int, x: jax.Array, w: jax.Array, neighbors: jax.Array
) -> jax.Array:
    source = with_zero_row(x)
    channels = problem.other_channels
    missing = x.shape[0]
    tiles = split_rows(clear_missing(neighbors, x), size, missing)

    def tile(rows: jax.Array) -> jax.Array:
        taps, count = _present(rows != missing)

        def tap(index: jax.Array, total: jax.Array) -> jax.Array:
            # One tap's rows at a time: they stay in cache, and absent taps take no step.
            k = taps[index]
            return total + times(problem, source[jnp.take(rows, k, axis=1)], w[k])

        total = zeros((size, channels), accumulator(x.dtype), x)
        out = jax.lax.fori_loop(jnp.int32(0), count, tap, total)
        return out.astype(product_dtype(x.dtype))

    return jax.lax.map(tile, tiles).reshape(len(tiles) * size, channels)[: len(neighbors)]


def _wgrad(
    problem: Problem,
    size: int,
    splits: int,
    x: jax.Array,
    dy: jax.Array,
    neighbors: jax.Array,
) -> jax.Array:
    source, missing = with_zero_row(x), x.shape[0]
    tiles = split_rows(clear_missing(neighbors, x), size * splits, missing)
    parts = split_rows(clear_unreached(dy, neighbors), size * splits, 0)
    stripes = tiles.reshape(len(tiles), splits, size, -1).swapaxes(0, 1)
    parts = parts.reshape(len(tiles), splits, size, -1).swapaxes(0, 1)

    def stripe(part: tuple[jax.Array, jax.Array]) -> jax.Array:
        def step(total: jax.Array, tile: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            rows, g = tile
            taps, count = _present(rows != missing)

            def tap(index: jax.Array, total: jax.Array) -> jax.Array:
                k = taps[index]
                return total.at[k].add(outer(problem, source[jnp.take(rows, k, axis=1)], g))

            return jax.lax.fori_loop(jnp.int32(0), count, tap, total), None

        total = zeros(problem.weight_shape, accumulator(x.dtype), x)
        return jax.lax.scan(step, total, part)[0]

    if splits == 1:
        return stripe((stripes[0], parts[0])).astype(product_dtype(x.dtype))
    return jnp.sum(jax.vmap(stripe)((stripes, parts)), axis=0).astype(product_dtype(x.dtype))


def _present(found: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the K tap numbers, present taps first, and the number of present taps.

    ``found`` is ``bool[T, K]``, whether a row has a tap. A tap is present if any row has it.
    """
    some = jnp.any(found, axis=0)
    return jnp.argsort(~some, stable=True).astype(jnp.int32), jnp.sum(some, dtype=jnp.int32)


IMPLICIT_GEMM = Kernel(
    name="implicit_gemm",
    kind="dense",
    products=EVERY_PRODUCT,
    platform="any",
    supports=multiplies,
    space=space,
    heuristic=first_of(space),
    reads=table_read,
    apply=apply,
    rank=25,
)
IMPLICIT = dataclasses.replace(IMPLICIT_GEMM, name="implicit", kind="depthwise")
