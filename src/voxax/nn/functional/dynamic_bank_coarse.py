"""A large kernel on a grid of half the resolution: the upper level of a hierarchical bank."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from voxax.errors import InputError
from voxax.geometry import KernelSpec
from voxax.geometry.dtypes import accumulator
from voxax.geometry.nested_sizes import reaching_size
from voxax.products.convolve import precision_name

_LETTERS = "DHW"


def coarse_conv(
    x: jax.Array, w: jax.Array, spec: KernelSpec, size: int, precision: jax.lax.PrecisionLike
) -> jax.Array:
    """The convolution with one size everywhere, computed on cells of two positions along each axis.

    Cells hold the mean of their positions, and every position of a cell gets the cell's result,
    with the kernel averaged over where in the cell it is centred. With D axes that is about
    ``4**-D`` of the arithmetic. Exact where features are constant.

    Args:
      x: ``[B, *spatial, C]``.
      w: ``[K, C, C_out]``, a whole box of taps.
      spec: the relation, of stride 1.
      size: 1 or more.
      precision: as for :func:`voxax.nn.functional.dynamic_conv`.

    Returns:
      ``[B, *spatial, C_out]``.

    Raises:
      InputError: another stride than 1.
    """
    if any(step != 1 for step in spec.stride):
        raise InputError(f"coarse_from with stride {spec.stride}: cells of two need stride 1")
    ndim, spatial = spec.ndim, x.shape[1:-1]
    taps = np.flatnonzero(reaching_size(np.asarray(spec.offsets)) <= size)
    wide = accumulator(w.dtype)
    kernel = w[taps].astype(wide).reshape(*(size,) * ndim, *w.shape[1:])
    padding = []
    for axis, dilation in enumerate(spec.dilation):
        first, shares = _shares(size, dilation)
        kernel = jnp.moveaxis(jnp.tensordot(jnp.asarray(shares, wide), kernel, (1, axis)), 0, axis)
        padding.append((-first, first + len(shares) - 1))
    cells = jnp.pad(x, [(0, 0), *((0, n % 2) for n in spatial), (0, 0)]).astype(wide)
    for axis, extent in enumerate(cells.shape[1:-1], 1):
        shape = (*cells.shape[:axis], extent // 2, 2, *cells.shape[axis + 1 :])
        cells = cells.reshape(shape).mean(axis + 1)
    axes = _LETTERS[-ndim:]
    y = jax.lax.conv_general_dilated(
        cells.astype(x.dtype),
        kernel.astype(w.dtype),
        (1,) * ndim,
        padding,
        dimension_numbers=(f"N{axes}C", f"{axes}IO", f"N{axes}C"),
        precision=precision_name(precision),
    )
    for axis, extent in enumerate(spatial, 1):
        y = jax.lax.slice_in_dim(jnp.repeat(y, 2, axis), 0, extent, axis=axis)
    return y


def _shares(size: int, dilation: int) -> tuple[int, np.ndarray]:
    """The first cell, and ``[cells, size]``: how much of each tap lies in which cell.

    From the left position of a cell the tap o is in cell ``floor(o / 2)``, from the right one in
    ``floor((o + 1) / 2)``: one half each.
    """
    offsets = dilation * np.arange(-((size - 1) // 2), size // 2 + 1)
    first, last = offsets[0] // 2, (offsets[-1] + 1) // 2
    shares = np.zeros((last - first + 1, size))
    for tap, offset in enumerate(offsets):
        shares[offset // 2 - first, tap] += 0.5
        shares[(offset + 1) // 2 - first, tap] += 0.5
    return int(first), shares
