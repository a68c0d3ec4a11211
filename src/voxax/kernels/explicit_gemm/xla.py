"""explicit_gemm in plain XLA: gather input rows into a matrix, multiply, add to the output.

It runs on every platform and is the reference for all other kernels. The parameter ``formulation``
selects one of three ways:

- *im2col* by tiles of output rows: a tile gathers the input rows of all K taps into a
  ``[tile, K * C_in]`` matrix and multiplies it with the flattened weight. Missing neighbors read a
  row of zeros. Nothing is scattered, so the order of additions is the same in every run. dgrad is
  the same computation over the transposed table.
- *output-stationary*: one tap after the other, for all output rows. Each tap gathers an
  ``[M, C_in]`` matrix and adds its product to the output. This way has the largest products, and
  makes K passes over the output.
- *pair lists*: gather, multiply and scatter over lists of the existing (input row, output row)
  pairs, sorted by tap. If few neighbors exist (LiDAR: 3 to 7 of 27), the other ways multiply mostly
  zeros. A block of pairs of one tap gathers its input rows, multiplies once, and adds to its output
  rows. Shapes are static, but the number of blocks is known only at run time. In the list of a tap,
  every row occurs once and in ascending order on both sides. So the same lists serve all three
  products, and the order of additions is the same in every run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from voxax.geometry import PAIR_ROOM
from voxax.geometry.dtypes import accumulator, product_dtype
from voxax.hardware import HardwareInfo
from voxax.kernels.kernel import EVERY_PRODUCT, Kernel, Parameters, Problem, Product, Views
from voxax.kernels.rows import (
    clear_missing,
    clear_unreached,
    multiplies,
    options,
    oriented,
    outer,
    split_rows,
    table_read,
    times,
    with_zero_row,
    zeros,
)

IM2COL: Parameters = (("formulation", "im2col"),)
OUTPUT_STATIONARY: Parameters = (("formulation", "output_stationary"),)
BLOCKS = (256, 1024, PAIR_ROOM)
# A block of B pairs is used for levels of _EMPTY * B to _OVERHEAD * B rows. With fewer rows it is
# mostly empty; with more, overhead dominates.
_EMPTY, _OVERHEAD = 1, 64
# With fewer rows, pair lists are slower than im2col.
_FEW_ROWS = 512


def pair_list_parameters(block: int) -> Parameters:
    """Return the kernel's parameters for pair lists, walked in blocks of ``block`` pairs."""
    return (("block", block), ("formulation", "pair_lists"))


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """Return the parameters to measure, those of :func:`heuristic` first.

    Then im2col, pair lists in blocks of several sizes, and output-stationary follow. CPUs have no
    output-stationary candidate, because its passes over all output rows go through main memory. In
    21 workloads of benchmarks/tuning.py it was never the fastest, and took 2.8 times as long as the
    best in the mean, 7.2 at worst (2 cores of an AMD EPYC, Zen 3, shared).
    """
    blocks = map(pair_list_parameters, _blocks(problem))
    rest = () if hardware.platform == "cpu" else (OUTPUT_STATIONARY,)
    return tuple(dict.fromkeys((heuristic(problem, hardware), IM2COL, *blocks, *rest)))


def heuristic(problem: Problem, hardware: HardwareInfo) -> Parameters:
    """Return the default parameters: pair lists on CPUs, im2col elsewhere and for few rows.

    Pair lists are walked in blocks whose gathered rows stay in cache. For 320 rows and 128 -> 256
    channels on a CPU, im2col took 14 ms and blocks of 1024 pairs took 24 ms (2 cores of an AMD
    EPYC, Zen 3). im2col also compiles in two thirds of the time.
    """
    blocks = _blocks(problem)
    rows = max(problem.layer.in_capacity, problem.layer.out_capacity)
    if hardware.platform != "cpu" or not blocks or rows < _FEW_ROWS:
        return IM2COL
    # About a sixth of the rows have a given tap, and 256 KiB of gathered rows stay in cache.
    bytes_per_row = max(problem.in_channels, problem.out_channels) * np.dtype(np.float32).itemsize
    ideal = min(rows / 6, 2**18 / max(bytes_per_row, 1))
    return pair_list_parameters(min(blocks, key=lambda b: abs(math.log(b / max(ideal, 1)))))


def _blocks(problem: Problem) -> tuple[int, ...]:
    if (
        problem.layer.out_capacity * problem.layer.num_offsets + PAIR_ROOM >= 2**31
    ):  # int32 positions
        return ()
    rows = max(problem.layer.in_capacity, problem.layer.out_capacity)
    fitting = [b for b in BLOCKS if _EMPTY * b <= rows <= _OVERHEAD * b]
    return tuple(fitting) or (BLOCKS[0] if rows < BLOCKS[0] else BLOCKS[-1],)


def reads(parameters: Parameters, product: Product, symmetric: bool) -> tuple[str, ...]:
    """Return the names of the map's arrays that a product reads: pair lists or a neighbor table.

    ``symmetric``, a layer's :attr:`~voxax.kernels.kernel.Layer.symmetric`, decides which neighbor
    table dgrad reads.
    """
    if dict(parameters)["formulation"] == "pair_lists":
        return ("pair_starts", "pairs")
    return table_read(parameters, product, symmetric)


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Return the product (forward, dgrad or wgrad) of ``a`` and ``b`` that ``problem`` describes.

    ``parameters`` select the way of computing it, see the module's docstring.
    The operands and ``views``, arrays of the kernel map, are as for
    :class:`voxax.kernels.kernel.Apply`.
    """
    values = dict(parameters)
    if values["formulation"] == "im2col":
        return im2col(problem, a, b, views)
    if values["formulation"] == "output_stationary":
        return output_stationary(problem, a, b, views)
    return pair_lists(problem, int(values["block"]), a, b, views)


# Elements of one gathered tile. Measured on 2 cores of an AMD EPYC (Zen 3), 10k voxels,
# 27 taps, float32, four convolutions: tiles of 0.5 to 2 M elements take 16, 41 and 70 ms for
# 16, 32 and 64 channels; one tile of everything takes 42, 107 and 120 ms (its pages are
# mapped and cleared anew in every call), tiles of 128 rows up to twice the best.
_TILE_ELEMENTS = 2**20


def im2col(problem: Problem, a: jax.Array, b: jax.Array, views: Views) -> jax.Array:
    """Return the product that ``problem`` describes, computed by im2col (see the module).

    Arguments and result are as in :class:`voxax.kernels.kernel.Apply`.
    """
    if problem.product == "wgrad":
        return _gather_wgrad(problem, a, b, views["neighbors"])
    return _gather_product(problem, a, *oriented(problem, b, views))


def _gather_product(
    problem: Problem, x: jax.Array, w: jax.Array, neighbors: jax.Array
) -> jax.Array:
    """Return ``y[m] = sum_k x[neighbors[m, k]] @ w[k]``, ``[M, C_out]``, by im2col in tiles.

    A neighbor -1 adds zero. ``w`` may also be grouped or depthwise, see :func:`_multiply`.
    """
    source = with_zero_row(x)
    rows = clear_missing(neighbors, x)

    def tile(index: jax.Array) -> jax.Array:
        gathered = source.at[index].get(mode="clip")
        return _multiply(problem, gathered, w).astype(product_dtype(x.dtype))

    size = _tile_rows(rows.shape, x.shape[1])
    if size >= len(rows):
        return tile(rows)
    # Fill rows read row 0 of the source. Their outputs are cut off below.
    out = jax.lax.map(tile, split_rows(rows, size, 0))
    return out.reshape(out.shape[0] * size, out.shape[-1])[: len(rows)]


def _multiply(problem: Problem, gathered: jax.Array, w: jax.Array) -> jax.Array:
    """Multiply the inputs of T output rows, ``[T, K, C_in]``, by the weight; return ``[T, C_out]``.

    The weight ``w`` is dense, grouped or depthwise, as ``problem.layer.kind`` says.
    """
    wide = options(problem, gathered.dtype)
    if problem.layer.kind == "depthwise":
        return jnp.einsum("tkc,kc->tc", gathered, w, **wide)
    # No -1 in these shapes: it is undefined where there are no rows.
    rows, taps, channels = gathered.shape
    if problem.layer.kind == "grouped":
        groups, c_in, c_out = w.shape[1:]
        parts = gathered.reshape(rows, taps, groups, c_in)
        out = jnp.einsum("tkgi,kgio->tgo", parts, w, **wide)
        return out.reshape(rows, groups * c_out)
    flat = gathered.reshape(rows, taps * channels)
    return jax.lax.dot(flat, w.reshape(taps * channels, w.shape[-1]), **wide)


def _gather_wgrad(problem: Problem, x: jax.Array, dy: jax.Array, neighbors: jax.Array) -> jax.Array:
    """Return ``dw[k] = sum_m x[neighbors[m, k]]^T dy[m]``, in the weight's shape, by im2col."""
    source = with_zero_row(x)
    size = _tile_rows(neighbors.shape, x.shape[1])
    rows = split_rows(clear_missing(neighbors, x), size, x.shape[0])
    parts = split_rows(clear_unreached(dy, neighbors), size, 0)

    def step(total: jax.Array, tile: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        index, g = tile
        return total + _outer(problem, source.at[index].get(mode="clip"), g), None

    total = zeros(problem.weight_shape, accumulator(x.dtype), x)
    if len(rows) == 1:
        return step(total, (rows[0], parts[0]))[0].astype(product_dtype(x.dtype))
    return jax.lax.scan(step, total, (rows, parts))[0].astype(product_dtype(x.dtype))


def _outer(problem: Problem, gathered: jax.Array, g: jax.Array) -> jax.Array:
    """Return what T output rows add to dw, in the shape of the weight.

    ``gathered``, ``[T, K, C_in]``, has the inputs of these rows, and ``g``, ``[T, C_out]``, has dy.
    """
    wide = options(problem, g.dtype)
    if problem.layer.kind == "depthwise":
        return jnp.einsum("tkc,tc->kc", gathered, g, **wide)
    rows, taps, channels = gathered.shape
    if problem.layer.kind == "grouped":
        _, groups, c_in, c_out = problem.weight_shape
        parts = gathered.reshape(rows, taps, groups, c_in)
        return jnp.einsum("tkgi,tgo->kgio", parts, g.reshape(rows, groups, c_out), **wide)
    flat = gathered.reshape(rows, taps * channels)
    # dy^T A and a small transpose are a third faster than A^T dy, which transposes the wide
    # operand.
    return jax.lax.dot(g.T, flat, **wide).T.reshape(problem.weight_shape)


def _tile_rows(shape: tuple[int, ...], channels: int) -> int:
    rows, taps = shape
    return max(64, min(rows, _TILE_ELEMENTS // max(taps * channels, 1)))


def output_stationary(problem: Problem, a: jax.Array, b: jax.Array, views: Views) -> jax.Array:
    """Return the product that ``problem`` describes, computed for one tap after the other.

    Arguments and result are as in :class:`voxax.kernels.kernel.Apply`.
    """
    source = with_zero_row(a)
    if problem.product == "wgrad":
        neighbors = views["neighbors"]
        dy, index = clear_unreached(b, neighbors), clear_missing(neighbors, a).T
        one = jax.lax.map(lambda rows: outer(problem, source[rows], dy), index)
        return one.reshape(problem.weight_shape).astype(product_dtype(a.dtype))
    w, neighbors = oriented(problem, b, views)

    def tap(total: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        rows, weight = step
        return total + times(problem, source[rows], weight), None

    total = zeros((len(neighbors), problem.other_channels), accumulator(a.dtype), a)
    out, _ = jax.lax.scan(tap, total, (clear_missing(neighbors, a).T, w))
    return out.astype(product_dtype(a.dtype))


def pair_lists(problem: Problem, block: int, a: jax.Array, b: jax.Array, views: Views) -> jax.Array:
    """Return the product that ``problem`` describes, computed by pair lists (see the module).

    ``block`` is the number of (input row, output row) pairs of a tap that are multiplied at a time.
    Other arguments and the result are as in :class:`voxax.kernels.kernel.Apply`.
    """
    pairs, starts = views["pairs"], views["pair_starts"]
    wide, narrow = accumulator(a.dtype), product_dtype(a.dtype)
    if problem.product == "wgrad":

        def add_outer(dw: jax.Array, tap: jax.Array, i: jax.Array, o: jax.Array) -> jax.Array:
            return dw.at[tap].add(outer(problem, _rows_or_zero(a, i), _rows_or_zero(b, o)))

        dw = zeros(problem.weight_shape, wide, a)
        return _walk(add_outer, dw, pairs, starts, block).astype(narrow)

    forward = problem.product == "forward"
    w = b if forward or problem.layer.kind == "depthwise" else jnp.swapaxes(b, -1, -2)
    shape = problem.result_shape

    def add(y: jax.Array, tap: jax.Array, i: jax.Array, o: jax.Array) -> jax.Array:
        source, target = (i, o) if forward else (o, i)
        rows = times(problem, _rows_or_zero(a, source), w[tap])
        # Places after the tap's last pair (-1) get rows past the end, all different, so that
        # indices stay unique and sorted. XLA drops these rows.
        absent = shape[0] + jnp.arange(block, dtype=target.dtype)
        return y.at[jnp.where(target < 0, absent, target)].add(
            rows, mode="drop", unique_indices=True, indices_are_sorted=True
        )

    return _walk(add, zeros(shape, wide, a), pairs, starts, block).astype(narrow)


def _rows_or_zero(x: jax.Array, index: jax.Array) -> jax.Array:
    """Return ``x[index]``, with zeros for the index -1."""
    if x.shape[0] == 0:
        return jnp.zeros((len(index), x.shape[1]), x.dtype)
    rows = x.at[index].get(mode="clip")
    return jnp.where((index >= 0)[:, None], rows, jnp.zeros((), x.dtype))


def _walk(
    step: Callable[..., jax.Array],
    total: jax.Array,
    pairs: jax.Array,
    starts: jax.Array,
    block: int,
) -> jax.Array:
    """Return ``total`` after ``total = step(total, tap, in_rows, out_rows)`` for each block.

    A block is up to ``block`` pairs of one tap. ``in_rows`` and ``out_rows``, ``int32[block]``, are
    the pairs' input and output rows, and -1 after the tap's last pair. ``pairs`` and ``starts`` are
    those of :func:`voxax.geometry.kernel_maps.list_pairs`.
    """
    blocks = -(-jnp.diff(starts) // block)
    ends = jnp.cumsum(blocks, dtype=jnp.int32)

    def body(index: jax.Array, total: jax.Array) -> jax.Array:
        # Blocks are numbered tap after tap. The blocks of tap k end before ends[k].
        tap = jnp.sum(ends <= index, dtype=jnp.int32)
        begin = starts[tap] + (index - (ends[tap] - blocks[tap])) * block
        inside = begin + jnp.arange(block, dtype=jnp.int32) < starts[tap + 1]
        i, o = jax.lax.dynamic_slice(pairs, (jnp.int32(0), begin), (2, block))
        return step(total, tap, jnp.where(inside, i, -1), jnp.where(inside, o, -1))

    return jax.lax.fori_loop(jnp.int32(0), ends[-1], body, total)


EXPLICIT_GEMM = Kernel(
    name="explicit_gemm",
    kind="dense",
    products=EVERY_PRODUCT,
    platform="any",
    supports=multiplies,
    space=space,
    heuristic=heuristic,
    reads=reads,
    apply=apply,
    rank=10,
)
EXPLICIT = dataclasses.replace(EXPLICIT_GEMM, name="explicit", kind="depthwise")
