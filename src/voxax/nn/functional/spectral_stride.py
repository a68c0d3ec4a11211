"""A stride that is learned: resampling in the frequency domain, in shapes that do not change."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from voxax.errors import InputError
from voxax.geometry.dtypes import accumulator
from voxax.geometry.kernel_spec import per_axis
from voxax.products.convolve import precision_name


def spectral_stride(
    x: jax.Array,
    stride: jax.Array | float,
    *,
    smoothness: float = 4.0,
    outputs: int | Sequence[int] | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> tuple[jax.Array, jax.Array]:
    """Resample a grid by a real stride of each axis, with a gradient to the stride.

    Along an axis of N cells, frequency f is multiplied by
    ``clip((smoothness + N / (2 stride) - f) / smoothness, 0, 1)``. The frequencies that remain, up
    to F, are those of M = min(2 F + 1, N) cells, the output: the filtered signal at the places
    ``j N / M``. M depends on the stride; the output's shape does not, and what lies beyond M is
    zero. The gradient reaches the stride through the mask; M has none.

    Args:
      x: ``[B, *spatial, C]``, 1 to 3 spatial axes, floating point; taken as periodic.
      stride: ``[]`` or ``[D]``, 1 or more (below 1 counts as 1); may be traced.
      smoothness: static, above 0, the width of the ramp in frequencies.
      outputs: static sizes, an integer or one per axis; None takes ``spatial``. Frequencies that
        these cannot hold are cut.
      precision: of the matrix products; None keeps the input's full precision (or follows
        ``jax.default_matmul_precision``).

    Returns:
      ``[B, *outputs, C]`` in the dtype of ``x``, computed in at least float32, and ``int32[D]``,
      M of each axis. Values keep their scale: a constant stays itself. Resampling is a product of
      matrices along each axis, ``outputs`` times ``spatial``, so it lowers wherever these do.

    Raises:
      InputError: shapes or dtypes that do not fit, a smoothness not above 0.

    Source: Riad et al., "Learning Strides in Convolutional Neural Networks" (DiffStride), ICLR
    2022; its code crops to a shape that depends on the stride, does not rescale, and keeps one
    frequency more along the last axis.
    """
    ndim = x.ndim - 2
    if not 1 <= ndim <= 3 or not jnp.issubdtype(x.dtype, jnp.floating):
        raise InputError(
            f"x of {x.dtype}{list(x.shape)}: expected float[B, *spatial, C], 1 to 3 spatial axes"
        )
    if not smoothness > 0:
        raise InputError(f"smoothness={smoothness} must be above 0")
    wide = accumulator(x.dtype)
    steps = jnp.asarray(stride, wide)
    if steps.shape not in ((), (ndim,)):
        raise InputError(f"stride of shape {steps.shape}: expected [] or [{ndim}]")
    steps = jnp.broadcast_to(jnp.maximum(steps, 1), (ndim,))
    spatial = x.shape[1:-1]
    if not math.prod(spatial):
        raise InputError(f"x of shape {tuple(x.shape)}: an axis without cells has no frequencies")
    sizes = spatial if outputs is None else per_axis(outputs, ndim, "outputs")
    y, extents, exactly = x.astype(wide), [], precision_name(precision)
    for axis, (cells, size) in enumerate(zip(spatial, sizes, strict=True)):
        matrix, extent = _resampling(
            steps[axis], cells, size, smoothness, precision_name(precision)
        )
        # The axis becomes the last one, is multiplied, and goes back.
        moved = jnp.moveaxis(y, 1 + axis, -1)
        product = jnp.matmul(moved, matrix, precision=exactly)
        y = jnp.moveaxis(product, -1, 1 + axis)
        extents.append(extent)
    return y.astype(x.dtype), jnp.stack(extents)


def _resampling(
    stride: jax.Array, cells: int, size: int, smoothness: float, precision: str
) -> tuple[jax.Array, jax.Array]:
    """``float[cells, size]`` from the cells of one axis to its outputs, and how many these are."""
    dtype = stride.dtype
    frequencies = np.arange(cells // 2 + 1)
    # Outputs hold the frequencies up to half their number; all of the input's where there are as
    # many of them.
    highest = cells // 2 if size >= cells else (size - 1) // 2
    fits = jnp.asarray(frequencies <= highest)
    place = jnp.asarray(frequencies, dtype)
    mask = jnp.clip((smoothness + cells / (2 * stride) - place) / smoothness, 0, 1)
    mask = jnp.where(fits, mask, 0)
    last = jnp.max(jnp.where(mask > 0, jnp.asarray(frequencies, jnp.int32), 0))
    extent = jnp.minimum(2 * last + 1, cells).astype(jnp.int32)
    # Each frequency stands for itself and its negative, but for zero and that of half the cells.
    twice = np.where((frequencies > 0) & (2 * frequencies != cells), 2.0, 1.0)
    weights = mask * jnp.asarray(twice / cells, dtype)
    # Angles in whole turns are left out in integers, so that float32 keeps their digits.
    turns = (np.arange(cells)[:, None] * frequencies[None]) % cells * (2 * np.pi / cells)
    number = jnp.arange(size, dtype=jnp.int32)
    whole = (number[None] * jnp.asarray(frequencies, jnp.int32)[:, None]) % extent
    angles = whole.astype(dtype) * (2 * np.pi / extent.astype(dtype))
    inside = (number < extent)[None]
    cosine, sine = (
        jnp.where(inside, fn(angles) * weights[:, None], 0) for fn in (jnp.cos, jnp.sin)
    )
    matrix = jnp.matmul(
        jnp.asarray(np.concatenate([np.cos(turns), np.sin(turns)], axis=1), dtype),
        jnp.concatenate([cosine, sine]),
        precision=precision,
    )
    return matrix, extent
