"""Find the points within a radius, or the k nearest points, with results of a static size."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Int32, Num
from voxax._native.on_cpu import library_call, natively_on_cpu
from voxax.coords import PAD, bucket_capacity, lower_bound, sort_rows
from voxax.errors import CapacityError, InputError, check_known, check_whole
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.input_checks import check_positive
from voxax.geometry.points import Points

SearchAlgorithm = Literal["auto", "all", "cells"]
SEARCH_ALGORITHMS = ("auto", "all", "cells")

# Limits of one block of queries: number of distances without cells, number of queries with cells.
_DISTANCES = 1 << 22
_QUERIES = 1024
# Number of points that each query compares at a time; number of points from which cells are used.
_CANDIDATES = 32
_MANY = 4096
# Cells are a little wider than the radius: rounding cannot then put a neighbor two cells away, up
# to clouds of 1e5 radii in float32.
_SLACK = 1.01


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Neighbors:
    """The result of a search: for each of M query points, the nearest of N points.

    Attributes:
      rows: ``int32[M, k]``, for each query, the rows of its neighbors in the arrays of the points,
        nearest first. Equally near points are in the order of their rows. Unused entries are -1.
        Queries that are padding have no neighbors.
      found: ``int32[M]``, the number of neighbors of each query, which may exceed k.
    """

    rows: Int32[Array, "M k"]
    found: Int32[Array, " M"]

    @property
    def capacity(self) -> int:
        """k, the number of neighbors that can be listed for each query; static."""
        return self.rows.shape[1]

    @property
    def num_dropped(self) -> jax.Array:
        """``int32[]``, the number of neighbors that are not in ``rows``; saturates near 2**31."""
        most = (2**31 - 1) // max(self.rows.shape[0], 1)
        excess = jnp.clip(self.found - self.capacity, 0, most)
        return jnp.sum(excess, dtype=jnp.int32)

    def raise_if_overflowed(self) -> None:
        """Raise :class:`CapacityError` if a query has more than k neighbors; not in ``jax.jit``."""
        if not self.rows.size:
            return
        largest = int(jnp.max(self.found))
        if largest > self.capacity:
            raise CapacityError(
                f"a query has {largest} neighbors, the capacity is {self.capacity}: give "
                f"capacity={bucket_capacity(largest)} (vx.bucket_capacity({largest})) or more, a "
                "smaller radius, or knn_search with k and radius, which keeps the nearest"
            )


@checked_operator
def radius_search(
    points: Points,
    queries: Points | None = None,
    *,
    radius: float | Num[Array, ""],
    capacity: int,
    algorithm: SearchAlgorithm = "auto",
) -> Neighbors:
    """Find, for each query point, the points of the same scene within ``radius``.

    A query that is one of the points is its own neighbor. Points and queries that are not finite
    have no neighbors. No gradient flows through the search.

    Args:
      points: the points to search among; D axes.
      queries: the points to search around; None takes ``points``.
      radius: the largest distance of a neighbor, above 0; may be traced.
      capacity: static number k of neighbors that can be listed for each query.
      algorithm: ``all`` compares each query with all points, in blocks. ``cells`` sorts the points
        into cells as wide as the radius, and compares each query with the points of the ``3**D``
        cells around it. ``auto`` searches a tree on CPUs with the native library; elsewhere it
        takes ``cells`` from 4096 points on. Results only differ by the rounding of distances.

    Returns:
      Neighbors. Under ``jax.jit``, if a query has more neighbors than ``capacity``, the nearest are
      kept and ``num_dropped`` counts the others.

    Raises:
      InputError: points and queries differ in axes or batch size, the radius is not above 0, or the
        algorithm is unknown. Also, in an eager call, if positions are so large that float32 does
        not resolve a quarter of the radius, and a neighbor may be missed by rounding: give
        :meth:`voxax.Points.make` a NumPy array of float64. Under ``jax.jit``, the rounded positions
        are compared.
      CapacityError: in an eager call, a query has more neighbors than ``capacity``.

    Examples:
      >>> vx.radius_search(points, radius=1.0, capacity=64).rows.shape
      (1024, 64)
    """
    check_positive("radius", radius)
    found = _search(points, queries, capacity, "capacity", radius, algorithm)
    if not _compat.is_traced(found.found):
        found.raise_if_overflowed()
    return found


@checked_operator
def knn_search(
    points: Points,
    queries: Points | None = None,
    *,
    k: int,
    radius: float | Num[Array, ""] | None = None,
) -> Neighbors:
    """Find, for each query point, the ``k`` nearest points of the same scene, or all if fewer.

    Args:
      points, queries: as in :func:`radius_search`.
      k: number of neighbors, at least 1; static.
      radius: the largest distance of a neighbor; None has no limit. From 4096 points on, a radius
        makes the search faster where the native library for CPUs is not used.

    Returns:
      Neighbors. ``found`` counts all points within the radius, or all points of the scene, so
      ``num_dropped`` has no meaning here.

    Raises:
      InputError: points and queries differ in axes or batch size, or ``k`` is below 1. With a
        radius, also as in :func:`radius_search`.

    Examples:
      >>> vx.knn_search(points, k=8).rows.shape
      (1024, 8)
    """
    return _search(points, queries, k, "k", radius, "auto")


def _search(
    points: Points, queries: Points | None, k: int, name: str, radius: Any, algorithm: str
) -> Neighbors:
    queries = points if queries is None else queries
    if points.ndim != queries.ndim or points.batch_size != queries.batch_size:
        raise InputError(
            f"queries of {queries.ndim} axes and {queries.batch_size} scenes among points of "
            f"{points.ndim} and {points.batch_size}: both must agree"
        )
    check_known("algorithm", algorithm, SEARCH_ALGORITHMS)
    k = check_whole(name, k)
    wide = max(points.positions.dtype, queries.positions.dtype, key=lambda dtype: dtype.itemsize)
    likely = "cells" if points.capacity >= _MANY and radius is not None else "all"
    limit = jax.lax.stop_gradient(jnp.asarray(jnp.inf if radius is None else radius, wide))
    source, around = (
        (jax.lax.stop_gradient(cloud.positions_from(points.origin)).astype(wide), _scenes(cloud))
        for cloud in (points, queries)
    )
    if not points.capacity:
        none = jnp.full((queries.capacity, k), -1, jnp.int32)
        return Neighbors(none, jnp.zeros((queries.capacity,), jnp.int32))
    arrays, kind = (*source, *around, limit), likely if algorithm == "auto" else algorithm
    compiled = algorithm == "auto" and wide.itemsize >= 4 and queries.capacity
    find = _among_tree if compiled else _compared
    found = Neighbors(*find(*arrays, k=k, algorithm=kind))
    if radius is not None and not _compat.is_traced(arrays):
        spacing = np.asarray(_spacings(*around))
        vague = spacing > float(radius) / 4
        if vague.any():
            coarsest = float(spacing.max())
            # Two positions may both be rounded, along each axis.
            further = limit + 2 * math.sqrt(points.ndim) * coarsest
            within = find(*arrays[:-1], further, k=1, algorithm=kind)[1]
            if number := int((vague & (np.asarray(within) > np.asarray(found.found))).sum()):
                raise InputError(
                    f"{number} queries have neighbors that can't be told at radius="
                    f"{float(radius)}: positions there are rounded to multiples of {coarsest}. "
                    "Give vx.Points.make positions as a NumPy array of float64: it keeps them "
                    "relative to an origin amid them"
                )
    return found


@jax.jit
def _spacings(positions: jax.Array, scene: jax.Array) -> jax.Array:
    """Return ``float[M]``, the distance between adjacent floats at each position.

    It is taken at the largest absolute coordinate of the position. Positions ``[M, D]`` whose
    ``scene`` is -1 count as zero.
    """
    largest = jnp.max(jnp.where(scene[:, None] >= 0, jnp.abs(positions), 0), axis=1)
    return jnp.spacing(largest)


def _compared(
    source: jax.Array,
    scene: jax.Array,
    around: jax.Array,
    own: jax.Array,
    radius: jax.Array,
    *,
    k: int,
    algorithm: str,
) -> tuple[jax.Array, jax.Array]:
    """Find the k nearest points of the same scene within ``radius`` of each query, in portable JAX.

    ``source`` and ``scene`` are the positions ``float[N, D]`` and scenes ``int32[N]`` of the
    points; ``around`` and ``own`` are those of the M queries. Rows of scene -1 have no neighbors,
    and are never neighbors. ``algorithm`` is ``"all"``, or ``"cells"`` to compare only points of
    near cells. Returns the arrays ``rows`` and ``found`` of :class:`Neighbors`.
    """
    find = _among_all if algorithm == "all" else _among_cells
    return find((source, scene), (around, own), radius, k)


def _searched(*arrays: jax.Array, k: int, algorithm: str) -> tuple[jax.Array, jax.Array]:
    """Return the result of :func:`_compared` for its five ``arrays``, by a native tree search."""
    del algorithm
    queries = len(arrays[2])
    shapes = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((queries, k), (queries,))]
    return tuple(library_call("voxax_search_points", shapes, *arrays))


_among_tree = natively_on_cpu("search_points", _searched, _compared)

_Cloud = tuple[jax.Array, jax.Array]  # positions, and the scene of each position


def _scenes(cloud: Points) -> jax.Array:
    """Return ``int32[capacity]``, the scene of each valid and finite point, -1 for other rows."""
    known = cloud.valid & jnp.all(jnp.isfinite(cloud.positions), axis=1)
    known &= (cloud.batch_index >= 0) & (cloud.batch_index < cloud.batch_size)
    return jnp.where(known, cloud.batch_index, -1)


def _in_blocks(run: Any, rows: int, arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    """Apply ``run`` to blocks of ``rows`` rows of all arrays, and concatenate its two results.

    ``run`` takes a tuple with a block of each array, and returns two arrays. The last block is
    padded with -1, and the results of this padding are removed.
    """
    number = arrays[0].shape[0]
    blocks = -(-number // rows) if number else 0

    def cut(array: jax.Array) -> jax.Array:
        sides = [(0, blocks * rows - number)] + [(0, 0)] * (array.ndim - 1)
        return jnp.pad(array, sides, constant_values=-1).reshape(blocks, rows, *array.shape[1:])

    found, counts = jax.lax.map(run, tuple(cut(array) for array in arrays))
    return found.reshape(-1, found.shape[-1])[:number], counts.reshape(-1)[:number]


@functools.partial(jax.jit, static_argnames="k")
def _among_all(
    points: _Cloud, queries: _Cloud, radius: jax.Array, k: int
) -> tuple[jax.Array, jax.Array]:
    """Return the result of :func:`_compared`, by comparing each query with all points.

    ``points`` and ``queries`` are each a pair of positions and scenes.
    """
    source, scene = points
    number = source.shape[0]
    missing = max(k - number, 0)

    def block(part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        positions, own = part
        apart = _squares(source[None], positions[:, None])
        near = (own[:, None] == scene[None]) & (own[:, None] >= 0) & (apart <= radius**2)
        apart = jnp.where(near, apart, jnp.inf)
        # `top_k` takes the earlier of two equal values.
        distance, rows = jax.lax.top_k(-apart, min(k, number))
        rows = jnp.where(distance > -jnp.inf, rows, -1).astype(jnp.int32)
        rows = jnp.pad(rows, ((0, 0), (0, missing)), constant_values=-1)
        return rows, jnp.sum(near, axis=1, dtype=jnp.int32)

    size = max(1, min(_QUERIES, _DISTANCES // max(number, 1), queries[0].shape[0]))
    return _in_blocks(block, size, queries)


def _squares(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the squared distances between ``a`` and ``b``, whose last axis has the coordinates.

    Differences are squared and added, which rounds less than a formula with dot products.
    """
    return jnp.sum((a - b) ** 2, axis=-1)


@functools.partial(jax.jit, static_argnames="k")
def _among_cells(
    points: _Cloud, queries: _Cloud, radius: jax.Array, k: int
) -> tuple[jax.Array, jax.Array]:
    """Return the result of :func:`_compared`, by comparing each query with points in near cells.

    ``points`` and ``queries`` are each a pair of positions and scenes. Points are sorted by cell,
    and each query reads ``3**(D - 1)`` ranges of them.
    """
    (source, scene), (around, own) = points, queries
    number, ndim = source.shape
    origin = jnp.min(jnp.where(scene[:, None] >= 0, source, jnp.inf), axis=0, initial=jnp.inf)
    cells = [_cells(*cloud, origin, radius) for cloud in (points, queries)]
    table, order = sort_rows(cells[0])
    prefixes = np.asarray(list(itertools.product((-1, 0, 1), repeat=ndim - 1)), np.int32)
    prefixes = prefixes.reshape(len(prefixes), ndim - 1)
    ends = []
    for last in (-1, 2):
        steps = np.concatenate(
            [np.zeros((len(prefixes), 1)), prefixes, np.full((len(prefixes), 1), last)], axis=1
        )
        query = cells[1][:, None] + jnp.asarray(steps, jnp.int32)[None]
        ends.append(lower_bound(table, query))
    first, past = ends
    past = jnp.where(own[:, None] >= 0, past, first)

    def block(part: tuple) -> tuple[jax.Array, jax.Array]:
        positions, first, past = part
        past = jnp.maximum(past, first)
        upto = jnp.cumsum(past - first, axis=1, dtype=jnp.int32)
        start = jnp.concatenate([jnp.zeros_like(upto[:, :1]), upto[:, :-1]], axis=1)
        longest = jnp.max(upto[:, -1], initial=0)

        def step(turn: jax.Array, best: tuple) -> tuple:
            distance, rows, found = best
            # Indices of candidates of a query, then the range and the row of each candidate.
            number = turn * _CANDIDATES + jnp.arange(_CANDIDATES, dtype=jnp.int32)[None]
            number = jnp.broadcast_to(number, (positions.shape[0], _CANDIDATES))
            which = jnp.sum(number[..., None] >= upto[:, None], axis=-1, dtype=jnp.int32)
            exists = which < upto.shape[1]
            which = jnp.minimum(which, upto.shape[1] - 1)
            begin, skip = (jnp.take_along_axis(a, which, axis=1) for a in (first, start))
            row = order.at[begin + number - skip].get(mode="clip")
            apart = _squares(source.at[row].get(mode="clip"), positions[:, None])
            near = exists & (apart <= radius**2)
            found = found + jnp.sum(near, axis=1, dtype=jnp.int32)
            distance = jnp.concatenate([distance, jnp.where(near, apart, jnp.inf)], axis=1)
            rows = jnp.concatenate([rows, jnp.where(near, row, number_of_rows)], axis=1)
            distance, rows = jax.lax.sort((distance, rows), dimension=1, num_keys=2)
            return distance[:, :k], rows[:, :k], found

        number_of_rows = jnp.int32(number)
        begin = (
            jnp.full((positions.shape[0], k), jnp.inf, source.dtype),
            jnp.full((positions.shape[0], k), number, jnp.int32),
            jnp.zeros((positions.shape[0],), jnp.int32),
        )
        turns = (longest + _CANDIDATES - 1) // _CANDIDATES
        _, rows, found = jax.lax.fori_loop(0, turns, step, _compat.vary_alike(*begin, first)[:3])
        return jnp.where(rows == number, -1, rows), found

    size = max(1, min(_QUERIES, around.shape[0]))
    return _in_blocks(block, size, (around, first, past))


def _cells(
    positions: jax.Array, scene: jax.Array, origin: jax.Array, radius: jax.Array
) -> jax.Array:
    """Return ``int32[N, 1 + D]``, scene and cell of each position; ``PAD`` where scene is -1.

    Cells begin at ``origin`` and are 1 % wider than ``radius``.
    """
    cell = jnp.floor((positions - origin[None]) / (radius * _SLACK))
    # Queries may be far from all points; the cast needs a range. A cell outside it has no points.
    cell = jnp.clip(jnp.where(jnp.isfinite(cell), cell, 0), -4, 2**30).astype(jnp.int32)
    rows = jnp.concatenate([scene[:, None], cell], axis=1)
    return jnp.where(scene[:, None] >= 0, rows, PAD)
