"""Products, pooling and strided kernel maps for NumPy arrays: no JAX, no program to compile.

As in :mod:`voxax._native.host`, but on as many threads as the caller asks for. Results have the
same bits for any number of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from voxax._native.host import call

# Numbers of the element types in host_call.h. bfloat16 comes as its bits.
ELEMENTS = {np.dtype(np.float32): 0, np.dtype(np.float64): 1, np.dtype(np.uint16): 2}

# Rows of a tile, as measured for kernels/implicit_gemm/cpu.py.
_TILE, _TILE_OF_FEW, _FEW_ROWS, _WEIGHT_TILE = 256, 128, 8192, 2048


def elements_of(array: np.ndarray) -> np.ndarray:
    """The array as the functions here take it: bfloat16, which NumPy lacks, as its bits."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def product(
    x: np.ndarray,
    weight: np.ndarray,
    neighbors: np.ndarray,
    y: np.ndarray,
    *,
    order: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    relu: bool = False,
    reverse: bool = False,
    threads: int = 1,
) -> None:
    """Write ``y[m] = sum_k x[neighbors[m, k]] @ weight[k]``.

    Args:
      x: ``[N, C_in]`` of float32, float64, or uint16 with the bits of bfloat16, dense in memory as
        the others are, but ``weight``.
      weight: ``[K, C_in, C_out]`` of the same dtype, with any strides.
      neighbors: ``int32[M, K]``, rows of ``x`` or -1.
      y: ``[M, C_out]`` of the same dtype, best at a multiple of 64 bytes.
      order: ``int32[M]``: row m of the map is row ``order[m]`` of y; None: row m.
      bias: ``[C_out]`` of the same dtype, added to every row.
      relu: set negative results to 0.
      reverse: tap k of the map multiplies ``weight[K - 1 - k]``.
      threads: at most so many.

    Raises:
      ValueError: shapes that do not fit, or a map that names other rows.
    """
    taps, depth, columns = weight.shape
    fits = x.shape[1] == depth and neighbors.shape[1] == taps
    fits = fits and y.shape == (len(neighbors), columns) and _orders(order, neighbors)
    fits = fits and (bias is None or (bias.shape == (columns,) and bias.dtype == x.dtype))
    if not fits or not x.dtype == weight.dtype == y.dtype:
        raise ValueError(
            f"features {x.shape} of {x.dtype}, weights {weight.shape} of {weight.dtype}, a map of "
            f"{neighbors.shape} and results {y.shape} of {y.dtype}: they do not fit"
        )
    strides = np.asarray(weight.strides, np.int64) // weight.itemsize
    tile = _TILE_OF_FEW if len(neighbors) < _FEW_ROWS else _TILE
    sizes = len(neighbors), taps, depth, columns, ELEMENTS[x.dtype]
    options = bias, int(relu), strides, int(reverse), tile, threads
    call("product", x, len(x), weight, neighbors, order, *sizes, *options, y)


def weight_product(
    x: np.ndarray,
    dy: np.ndarray,
    neighbors: np.ndarray,
    dw: np.ndarray,
    *,
    order: np.ndarray | None = None,
    threads: int = 1,
) -> None:
    """Write ``dw[k] = sum_m x[neighbors[m, k]]^T @ dy[m]``.

    Args:
      x, neighbors, threads: as in :func:`product`.
      order: ``int32[M]``: row m of the map is row ``order[m]`` of dy; None: row m.
      dy: ``[M, C_out]`` of the same dtype.
      dw: ``[K, C_in, C_out]`` of the same dtype.

    Raises:
      ValueError: as there.
    """
    taps, depth, columns = neighbors.shape[1], x.shape[1], dy.shape[1]
    fits = dy.shape[0] == neighbors.shape[0] and dw.shape == (taps, depth, columns)
    fits = fits and _orders(order, neighbors)
    if not fits or not x.dtype == dy.dtype == dw.dtype:
        raise ValueError(
            f"features {x.shape} of {x.dtype}, gradients {dy.shape} of {dy.dtype}, a map of "
            f"{neighbors.shape} and results {dw.shape} of {dw.dtype}: they do not fit"
        )
    sizes = len(neighbors), taps, depth, columns, ELEMENTS[x.dtype]
    call("weight_product", x, len(x), dy, neighbors, order, *sizes, _WEIGHT_TILE, threads, dw)


def _orders(order: np.ndarray | None, neighbors: np.ndarray) -> bool:
    return order is None or (order.dtype == np.int32 and order.shape == (len(neighbors),))


def extreme_rows(
    x: np.ndarray, neighbors: np.ndarray, *, largest: bool = True, threads: int = 1
) -> np.ndarray:
    """``int32[M, C]``: the row under each window with the largest or smallest value, or -1."""
    found = np.empty((len(neighbors), x.shape[1]), np.int32)
    sizes = *neighbors.shape, x.shape[1], ELEMENTS[x.dtype]
    call("extreme_rows", x, len(x), neighbors, *sizes, int(largest), _TILE, threads, found)
    return found


def reached_rows(
    coords: np.ndarray, sizes: Sequence[Sequence[int]], transposed: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Output rows of a strided or transposed layer, and the input row under each of their taps.

    Args:
      coords: ``int32[N, 1 + D]``, batch index first.
      sizes: kernel size, stride, padding, dilation and shape of the outputs, D integers each.
      transposed: outputs are at ``coords * stride - padding + k * dilation``; else inputs are at
        ``out * stride - padding + k * dilation``.

    Returns:
      ``(out int32[M, 1 + D], neighbors int32[M, K])``: outputs in the order in which a loop over
      taps, and inside it over inputs, reaches them; -1 where a tap has no input.

    Raises:
      ValueError: more outputs than 32 bits can number, or cells than 64 bits can.
    """
    kernel, *_, shape = sizes
    cells = math.prod(map(int, shape)) * (int(coords[:, 0].max(initial=0)) + 1)
    if cells >= 2**63:
        raise ValueError(f"{cells} cells of outputs of shape {list(shape)}: at most 2^63 - 1")
    table = np.ascontiguousarray(np.asarray(sizes, np.int64))
    found = np.zeros(1, np.int64)
    options = len(coords), len(kernel), table, int(transposed)
    count = call("find_reached", np.ascontiguousarray(coords), *options, found)
    try:
        out = np.empty((count, coords.shape[1]), np.int32)
        neighbors = np.empty((count, math.prod(kernel)), np.int32)
    except BaseException:
        call("write_reached", int(found[0]), None, None)  # frees what was found
        raise
    call("write_reached", int(found[0]), out, neighbors)
    return out, neighbors


def renumber_table(table: np.ndarray, order: np.ndarray, *, threads: int = 1) -> None:
    """Write ``order`` of its entries into a table ``int32[N, K]`` of places or -1.

    Args:
      table: dense in memory.
      order: ``int32[N]``: the row at each place.
      threads: at most so many.
    """
    call("renumber_table", table, *table.shape, order, threads)
