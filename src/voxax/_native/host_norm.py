"""Batch normalization and its gradients for NumPy arrays, computed by the native library.

No JAX is needed, and nothing is compiled. Results have the same bits for any number of threads.
"""

from __future__ import annotations

import numpy as np

from voxax._native.host import call
from voxax._native.host_products import ELEMENTS

_TRAINING, _RELU = 1, 2


def batch_norm(
    x: np.ndarray,
    valid: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray,
    residual: np.ndarray | None,
    old_mean: np.ndarray,
    old_variance: np.ndarray,
    y: np.ndarray | None,
    *,
    momentum: float,
    epsilon: float,
    training: bool,
    relu: bool,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Normalize the rows of ``x`` by channel, and write them to ``y``.

    All arrays are C-contiguous.

    Args:
      x: ``[N, C]`` of float32, float64, or uint16 with the bits of bfloat16.
      valid: ``bool[N]``, False for padding rows.
      scale, bias, old_mean, old_variance: ``[C]`` of float32, or float64 if ``x`` is float64.
      residual: ``[N, C]`` in the dtype of ``x``, added before ReLU, or None.
      y: the result, ``[N, C]`` in the dtype of ``x``; None only computes the returned values.
      momentum, epsilon, training, relu: as in
        :func:`voxax.nn.functional.batch_norm.batch_norm`.
      threads: the largest number of threads.

    Returns:
      Four arrays ``[C]``: the mean and ``1 / sqrt(variance + epsilon)`` that were used, and the new
      running averages of mean and variance.

    Raises:
      ValueError: the shapes or dtypes do not match.
    """
    rows = tuple(array for array in (x, y, residual) if array is not None)
    _check(rows, valid, (scale, bias, old_mean, old_variance))
    found = [np.empty_like(scale) for _ in range(4)]
    numbers = np.array([momentum, epsilon], np.float64)
    sizes = *x.shape, ELEMENTS[x.dtype]
    averages = scale, bias, old_mean, old_variance
    flags = _TRAINING * training + _RELU * relu
    options = *sizes, numbers, flags, threads
    call("batch_norm", x, valid, residual, *averages, *options, y, *found)
    return found[0], found[1], found[2], found[3]


def batch_norm_gradients(
    dy: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    valid: np.ndarray,
    mean: np.ndarray,
    inverse: np.ndarray,
    scale: np.ndarray,
    dx: np.ndarray,
    dresidual: np.ndarray | None,
    *,
    training: bool,
    relu: bool,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Write the gradients of ``x`` and residual; return the gradients of scale and bias, ``[C]``.

    Args:
      dy: the gradient of ``y``; ``x``, ``y``, ``dx`` and ``dresidual`` have its shape and dtype.
      x, y: input and result of :func:`batch_norm`.
      mean, inverse: the first two results of :func:`batch_norm`.
      dx, dresidual: the gradients to write; ``dresidual`` is None without a residual.
      valid, scale, training, relu, threads: as for :func:`batch_norm`.

    Raises:
      ValueError: as for :func:`batch_norm`.
    """
    rows = (dy, x, y, dx) if dresidual is None else (dy, x, y, dx, dresidual)
    _check(rows, valid, (mean, inverse, scale))
    found = [np.empty_like(scale) for _ in range(2)]
    sizes = *x.shape, ELEMENTS[x.dtype]
    flags = _TRAINING * training + _RELU * relu
    operands = dy, x, y, valid, mean, inverse, scale
    call("batch_norm_gradients", *operands, *sizes, flags, threads, dx, dresidual, *found)
    return found[0], found[1]


def _check(
    rows: tuple[np.ndarray, ...], valid: np.ndarray, channels: tuple[np.ndarray, ...]
) -> None:
    first, sums = rows[0], np.float64 if rows[0].dtype == np.float64 else np.float32
    fits = first.ndim == 2 and first.dtype in ELEMENTS and valid.dtype == np.bool_
    fits = fits and valid.shape == first.shape[:1] and valid.flags.c_contiguous
    fits = fits and all(
        r.shape == first.shape and r.dtype == first.dtype and r.flags.c_contiguous for r in rows
    )
    if not fits or any(c.shape != first.shape[1:] or c.dtype != sums for c in channels):
        raise ValueError(
            f"rows {[(r.shape, r.dtype.name) for r in rows]}, valid {valid.shape} and channels "
            f"{[(c.shape, c.dtype.name) for c in channels]}: they do not fit"
        )
