"""Sparse convolution products, pooling and strided kernel maps for NumPy arrays.

The native library computes them on several threads. No JAX is needed, and nothing is compiled.
Results have the same bits for any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from voxax._native.host import call

# Numbers of the element types in host_call.h. bfloat16 is passed as its bits.
ELEMENTS = {np.dtype(np.float32): 0, np.dtype(np.float64): 1, np.dtype(np.uint16): 2}

# Rows of a tile, as measured for kernels/implicit_gemm/cpu.py.
_TILE, _TILE_OF_FEW, _FEW_ROWS, _WEIGHT_TILE = 256, 128, 8192, 2048


def elements_of(array: np.ndarray) -> np.ndarray:
    """View a bfloat16 array as uint16, as this module needs it; return other arrays unchanged."""
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
    """Write the sparse convolution ``y[m] = sum_k x[neighbors[m, k]] @ weight[k]`` to ``y``.

    All arrays except ``weight`` are C-contiguous.

    Args:
      x: ``[N, C_in]`` of float32, float64, or uint16 with the bits of bfloat16.
      weight: ``[K, C_in, C_out]`` of the same dtype, with any strides.
      neighbors: ``int32[M, K]``, rows of ``x`` or -1.
      y: the result, ``[M, C_out]`` of the same dtype, fastest if its address is a multiple of 64.
      order: ``int32[M]``, the row of ``y`` for each row of ``neighbors``; None means the same row.
      bias: ``[C_out]`` of the same dtype, added to every row, or None.
      relu: whether to set negative results to 0.
      reverse: whether tap k of ``neighbors`` multiplies ``weight[K - 1 - k]``.
      threads: the largest number of threads.

    Raises:
      ValueError: the shapes or dtypes do not match, or ``neighbors`` has rows outside of ``x``.
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
    """Write the gradient of the weight, ``dw[k] = sum_m x[neighbors[m, k]]^T @ dy[m]``, to ``dw``.

    Args:
      x, neighbors, threads: as in :func:`product`.
      dy: the gradient of the outputs, ``[M, C_out]`` of the same dtype.
      dw: the result, ``[K, C_in, C_out]`` of the same dtype.
      order: ``int32[M]``, the row of ``dy`` for each row of ``neighbors``; None means the same row.

    Raises:
      ValueError: as in :func:`product`.
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
    """Return the row of ``x`` with the largest or smallest value in each window and channel.

    Args:
      x: ``[N, C]``.
      neighbors: ``int32[M, K]``, the rows of ``x`` in each of M windows; -1 is no row.
      largest: whether to take the largest values instead of the smallest.
      threads: the largest number of threads.

    Returns:
      ``int32[M, C]``; -1 for empty windows.
    """
    found = np.empty((len(neighbors), x.shape[1]), np.int32)
    sizes = *neighbors.shape, x.shape[1], ELEMENTS[x.dtype]
    call("extreme_rows", x, len(x), neighbors, *sizes, int(largest), _TILE, threads, found)
    return found


def reached_rows(
    coords: np.ndarray, sizes: Sequence[Sequence[int]], transposed: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output voxels of a strided or transposed layer, and its kernel map.

    Args:
      coords: ``int32[N, 1 + D]``, batch index first.
      sizes: kernel size, stride, padding, dilation and shape of the outputs, D integers each.
      transposed: whether the layer is transposed. Then an input at ``c`` adds to the outputs at
        ``c * stride - padding + k * dilation``; otherwise an output at ``c`` reads the inputs
        at these positions. ``k`` counts the K kernel offsets from 0 along each axis.

    Returns:
      ``(out int32[M, 1 + D], neighbors int32[M, K])``. ``out`` has the coordinates of the outputs,
      in the order in which a loop over kernel offsets, and inside it over inputs, reaches them
      first. ``neighbors`` has the input row of each output at each kernel offset, or -1.

    Raises:
      ValueError: there are too many outputs for 32-bit row numbers, or cells for 64 bits.
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
    """Replace each entry ``e`` of a table by ``order[e]``, in place; entries -1 stay.

    Args:
      table: ``int32[N, K]`` of indices into ``order`` or -1, C-contiguous; it is changed.
      order: ``int32[N]``, the new entries.
      threads: the largest number of threads.
    """
    call("renumber_table", table, *table.shape, order, threads)
