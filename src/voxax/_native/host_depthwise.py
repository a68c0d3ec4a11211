"""Depthwise sparse convolution and its gradients for NumPy arrays, computed by the native library.

No JAX is needed, and nothing is compiled. Results have the same bits for any number of threads.
"""

from __future__ import annotations

import numpy as np

from voxax._native.host import call
from voxax._native.host_products import ELEMENTS

_TILE = 256
_WGRAD, _REVERSED = 1, 2


def depthwise(
    x: np.ndarray,
    w: np.ndarray,
    neighbors: np.ndarray,
    y: np.ndarray,
    *,
    wgrad: bool = False,
    reverse: bool = False,
    threads: int = 1,
) -> None:
    """Write ``y[m] = sum_k x[neighbors[m, k]] * w[k]``, or the gradient of the weight, to ``y``.

    All arrays are C-contiguous.

    Args:
      x: ``[N, C]`` of float32, float64, or uint16 with the bits of bfloat16.
      w: the weight, ``[K, C]`` of the same dtype; for ``wgrad`` the output gradients, ``[M, C]``.
      neighbors: ``int32[M, K]``, rows of ``x`` or -1.
      y: the result, ``[M, C]`` of the same dtype; for ``wgrad`` ``[K, C]``.
      wgrad: whether to compute ``y[k] = sum_m x[neighbors[m, k]] * w[m]`` instead.
      reverse: whether tap k of ``neighbors`` multiplies ``w[K - 1 - k]``.
      threads: the largest number of threads.

    Raises:
      ValueError: the shapes or dtypes do not match, or ``neighbors`` has rows outside of ``x``.
    """
    (rows, taps), channels = neighbors.shape, x.shape[1]
    given, made = ((rows, taps) if wgrad else (taps, rows)), y.shape
    fits = w.shape == (given[0], channels) and made == (given[1], channels)
    _check(fits and x.dtype == w.dtype == y.dtype, x, w, neighbors, y)
    flags = _WGRAD * wgrad + _REVERSED * reverse
    sizes = len(x), rows, taps, channels, ELEMENTS[x.dtype]
    call("depthwise", x, w, neighbors, *sizes, flags, _TILE, threads, y)


def depthwise_gradients(
    dy: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    neighbors: np.ndarray,
    dx: np.ndarray,
    dw: np.ndarray,
    *,
    reverse: bool = False,
    threads: int = 1,
) -> None:
    """Write the gradients of the input features and of the weight to ``dx`` and ``dw``.

    Args:
      dy: the gradient of the outputs, ``[M, C]``. All other float arrays have its dtype.
      x, w: the features ``[N, C]`` and the weight ``[K, C]`` of the forward product.
      neighbors: ``int32[N, K]``, the row of ``dy`` for each row of ``x`` and each tap, or -1.
      dx, dw: the results, in the shapes of ``x`` and ``w``.
      reverse, threads: as in :func:`depthwise`.

    Raises:
      ValueError: as in :func:`depthwise`.
    """
    (rows, taps), channels = neighbors.shape, dy.shape[1]
    fits = x.shape == dx.shape == (rows, channels) and w.shape == dw.shape == (taps, channels)
    _check(fits and len({a.dtype for a in (dy, x, w, dx, dw)}) == 1, dy, w, neighbors, dx)
    sizes = rows, len(dy), taps, channels, ELEMENTS[dy.dtype]
    call("depthwise_gradients", dy, x, w, neighbors, *sizes, int(reverse), threads, dx, dw)


def _check(fits: bool, x: np.ndarray, w: np.ndarray, neighbors: np.ndarray, y: np.ndarray) -> None:
    if not fits or x.dtype not in ELEMENTS or neighbors.dtype != np.int32:
        raise ValueError(
            f"rows {x.shape} of {x.dtype}, weights {w.shape} of {w.dtype}, a map of "
            f"{neighbors.shape} and results {y.shape} of {y.dtype}: they do not fit"
        )
