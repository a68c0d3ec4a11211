"""Patches of a tile of positions as one shifted slice for each tap: no indices at all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from voxax.algorithms.base import Problem
from voxax.algorithms.dynamic.blocks import clear_unused
from voxax.algorithms.dynamic.grid import grid_of, ordered, unordered
from voxax.algorithms.rows import options, zeros
from voxax.geometry.dtypes import accumulator, product_dtype


def run(problem: Problem, a: jax.Array, b: jax.Array, sizes: jax.Array, block: int) -> jax.Array:
    """Any product with all taps masked, in tiles of about ``block`` positions."""
    grid = grid_of(problem)
    wide, kind = options(problem, a.dtype), product_dtype(a.dtype)
    sizes = sizes.reshape(grid.outputs)
    if problem.product == "dgrad":
        tiles = _Tiles(grid.inputs, block, (1,) * len(grid.stride), -grid.taps, grid.reach)
        # Outputs on the input's lattice.
        between = [(0, 0, 0), *((0, 0, s - 1) for s in grid.stride)]
        zero = jnp.zeros((), a.dtype)
        dy = jax.lax.pad(a.reshape(*grid.outputs, -1), zero, [*between, (0, 0, 0)])
        seen = jax.lax.pad(sizes, jnp.zeros((), sizes.dtype), between)
        dy, seen = tiles.margin(dy), tiles.margin(seen)
        flat = jnp.swapaxes(ordered(grid, b), 1, 2).reshape(-1, b.shape[1])

        def sent(place: jax.Array) -> jax.Array:
            patches = tiles.patches(dy, place, seen)
            return jnp.matmul(patches, flat, **wide).astype(kind)

        return tiles.assemble(jax.lax.map(sent, tiles.places()))
    tiles = _Tiles(grid.outputs, block, grid.stride, grid.taps, grid.reach)
    x = tiles.margin(a.reshape(*grid.inputs, -1))
    sizes = tiles.fill(sizes)
    if problem.product == "forward":
        flat = ordered(grid, b).reshape(-1, b.shape[2])

        def one(place: jax.Array) -> jax.Array:
            patches = tiles.patches(x, place, own=tiles.part(sizes, place))
            return jnp.matmul(patches, flat, **wide).astype(kind)

        return tiles.assemble(jax.lax.map(one, tiles.places()))
    dy = clear_unused(tiles.fill(b.reshape(*grid.outputs, -1)), sizes)
    shape = (grid.counts[-1] * a.shape[1], b.shape[1])

    def step(total: jax.Array, place: jax.Array) -> tuple[jax.Array, None]:
        patches = tiles.patches(x, place, own=tiles.part(sizes, place))
        gradient = tiles.part(dy, place).reshape(-1, b.shape[1])
        return total + jnp.matmul(patches.T, gradient, **wide), None

    total, _ = jax.lax.scan(step, zeros(shape, accumulator(a.dtype), a), tiles.places())
    return unordered(grid, total.reshape(-1, a.shape[1], b.shape[1]).astype(kind))


class _Tiles:
    """Boxes of positions of ``[B, *spatial]``, and the input around each."""

    def __init__(
        self,
        extents: tuple[int, ...],
        block: int,
        stride: Sequence[int],
        taps: np.ndarray,
        reach: np.ndarray,
    ):
        self.extents, self.stride, self.taps, self.reach = extents, stride, taps, reach
        self.tile = _tile(extents[1:], block)
        self.number = tuple(-(-n // t) for n, t in zip(extents[1:], self.tile, strict=True))
        self.low = tuple(int(n) for n in np.maximum(0, -taps.min(0)))

    def places(self) -> jax.Array:
        """``int32[tiles, 1 + D]``: scene, and number of the tile along each axis."""
        counts = (self.extents[0], *self.number)
        return jnp.stack(jnp.unravel_index(jnp.arange(math.prod(counts)), counts), axis=1)

    def fill(self, array: jax.Array) -> jax.Array:
        """Zeros behind the last position, up to whole tiles."""
        sides = zip(self.number, self.tile, self.extents[1:], strict=True)
        pads = [(0, 0), *((0, n * t - e) for n, t, e in sides)]
        return jnp.pad(array, pads + [(0, 0)] * (array.ndim - len(pads)))

    def margin(self, array: jax.Array) -> jax.Array:
        """Zeros around the input, so that every tap of every whole tile lies inside."""
        pads = [(0, 0)]
        high = np.maximum(0, self.taps.max(0))
        for axis, extent in enumerate(array.shape[1 : 1 + len(self.tile)]):
            last = (self.number[axis] * self.tile[axis] - 1) * self.stride[axis]
            pads.append((self.low[axis], max(0, int(last + high[axis]) - (extent - 1))))
        return jnp.pad(array, pads + [(0, 0)] * (array.ndim - len(pads)))

    def part(self, array: jax.Array, place: jax.Array) -> jax.Array:
        """A tile of a filled array, ``[*tile, ...]``."""
        starts = [place[0], *(place[1 + a] * t for a, t in enumerate(self.tile))]
        rest = array.shape[1 + len(self.tile) :]
        starts += [jnp.zeros((), place.dtype)] * len(rest)
        return jax.lax.dynamic_slice(array, starts, (1, *self.tile, *rest))[0]

    def patches(
        self,
        array: jax.Array,
        place: jax.Array,
        seen: jax.Array | None = None,
        own: jax.Array | None = None,
    ) -> jax.Array:
        """``[positions of a tile, K * C]``; sizes are those of the sources, or of the tile."""
        around = self._around(array, place)
        sources = None if seen is None else self._around(seen, place)
        parts = []
        for tap, reach in zip(self.taps, self.reach, strict=True):
            values = self._shifted(around, tap)
            sizes = self._shifted(sources, tap) if sources is not None else own
            if sizes is not None:
                values = jnp.where((sizes >= reach)[..., None], values, jnp.zeros((), array.dtype))
            parts.append(values)
        return jnp.concatenate(parts, axis=-1).reshape(math.prod(self.tile), -1)

    def _around(self, array: jax.Array, place: jax.Array) -> jax.Array:
        high = np.maximum(0, self.taps.max(0))
        lengths = [
            (t - 1) * s + 1 + low + int(up)
            for t, s, low, up in zip(self.tile, self.stride, self.low, high, strict=True)
        ]
        sides = zip(self.tile, self.stride, strict=True)
        starts = [place[0], *(place[1 + a] * (t * s) for a, (t, s) in enumerate(sides))]
        rest = array.shape[1 + len(self.tile) :]
        starts += [jnp.zeros((), place.dtype)] * len(rest)
        return jax.lax.dynamic_slice(array, starts, (1, *lengths, *rest))[0]

    def _shifted(self, around: jax.Array, tap: np.ndarray) -> jax.Array:
        index = tuple(
            slice(int(low + o), int(low + o) + (t - 1) * s + 1, s)
            for low, o, t, s in zip(self.low, tap, self.tile, self.stride, strict=True)
        )
        return around[index]

    def assemble(self, tiles: jax.Array) -> jax.Array:
        """``[tiles, positions, C]`` to ``[positions of all, C]`` in row-major order."""
        ndim, channels = len(self.tile), tiles.shape[-1]
        grid = tiles.reshape(self.extents[0], *self.number, *self.tile, channels)
        pairs = itertools.chain.from_iterable((1 + a, 1 + ndim + a) for a in range(ndim))
        grid = grid.transpose(0, *pairs, 1 + 2 * ndim)
        sides = zip(self.number, self.tile, strict=True)
        grid = grid.reshape(self.extents[0], *(n * t for n, t in sides), channels)
        inner = tuple(slice(0, extent) for extent in self.extents)
        return grid[inner].reshape(-1, channels)


def _tile(extents: tuple[int, ...], block: int) -> tuple[int, ...]:
    """A box of about ``block`` positions, whole along the last axes where they are short."""
    tile, room = [], max(1, block)
    for extent in reversed(extents):
        tile.append(max(1, min(extent, room)))
        room //= tile[-1]
    return tuple(reversed(tile))
