"""Loop over the taps of dense kernels, and read the input at each tap.

The backward pass computes each tap again, so neither the program nor its memory grows with the size
of the kernel. Values at integer positions are fetched; those at float positions are interpolated
linearly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax.errors import InputError
from voxax.geometry import KernelSpec
from voxax.geometry.dtypes import accumulator, clip_integers, common_dtype
from voxax.geometry.kernel_spec import per_axis
from voxax.geometry.nested_sizes import hard_mask, soft_mask
from voxax.kernels.dynamic.grid import output_grid
from voxax.kernels.rows import zeros
from voxax.products.convolution import precision_name, sized_spec

# Outside of every grid. The position of an output, of its dilated tap and an offset fit into int32.
_FARTHEST = 2**29


def grid_axes(x: Any) -> int:
    """Return the number of spatial axes of ``x [B, *spatial, C]``; raise unless it is 1 to 3."""
    if not 3 <= x.ndim <= 5:
        raise InputError(
            f"x of shape {x.shape}: expected [B, *spatial, C] with 1 to 3 spatial axes"
        )
    return x.ndim - 2


def grid_spec(
    x: Any,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int],
    dilation: int | Sequence[int],
) -> KernelSpec:
    """Return the spec of a centered kernel on the grid of ``x [B, *spatial, C]``.

    Raises:
      InputError: ``x`` does not have 1 to 3 spatial axes and floats, or a kernel argument does not
        have one integer for all axes or one for each.
    """
    ndim = grid_axes(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise InputError(f"x of {x.dtype}: expected floats")
    shape = per_axis(kernel_size, ndim, "kernel_size")
    return sized_spec(shape, per_axis(stride, ndim, "stride"), per_axis(dilation, ndim, "dilation"))


def scan_taps(add: Callable[[Any, Any], Any], total: Any, by_tap: Any) -> Any:
    """Loop over taps: return ``total`` after ``total = add(total, entry)`` for each tap's entry.

    Args:
      add: function that adds the contribution of one tap.
      total: initial value, a tree of arrays.
      by_tap: the entries of K taps, a tree of arrays ``[K, ...]``.
    """

    def step(total: Any, entry: Any) -> tuple[Any, None]:
        return add(total, entry), None

    return jax.lax.scan(jax.checkpoint(step), total, by_tap)[0]


def sampled_conv(
    x: jax.Array,
    weight: jax.Array,
    spec: KernelSpec,
    sizes: jax.Array,
    dilation: jax.Array | None,
    offsets: jax.Array | None,
    mask: jax.Array | None,
    *,
    tau: float,
    precision: jax.lax.PrecisionLike,
) -> jax.Array:
    """Compute :func:`voxax.nn.functional.dynamic_conv` with taps that may lie between cells.

    This is the algorithm ``masked``, in ordinary JAX operations. ``x`` is ``[B, *spatial, C]``,
    ``weight`` is ``[K, C, C_out]``, ``sizes`` are ``[B, *outputs]``, and the result is
    ``[B, *outputs, C_out]``. ``dilation``, ``offsets`` and ``mask`` are None or arrays with values
    for each output position; ``tau`` is the width of the ramp of float sizes.

    Taps that an integer size leaves out are not read. A mask multiplies the values, so a NaN in the
    input stays NaN where the mask is zero.
    """
    outputs = output_grid(x.shape[:-1], spec.stride)
    dtype = common_dtype(x.dtype, weight.dtype)
    dilation, offsets, mask = _checked(dilation, offsets, mask, outputs, spec)
    wide = accumulator(dtype)
    soft = jnp.issubdtype(sizes.dtype, jnp.floating)
    active = soft_mask(sizes, spec.offsets, tau) if soft else hard_mask(sizes, spec.offsets)
    center = centers(outputs, spec.stride)
    steps = np.asarray(spec.offsets if dilation is not None else spec.dilated_offsets, np.int32)
    rows = x.reshape(-1, x.shape[-1]).astype(dtype)
    source = jnp.concatenate([rows, jnp.zeros((1, x.shape[-1]), dtype)])
    options = {"precision": precision_name(precision), "preferred_element_type": wide}

    lead = (1,) * len(outputs) + (-1,)

    def add(total: jax.Array, step: tuple) -> jax.Array:
        offset, is_active, delta, factor, w = step
        place = jnp.asarray(center, offset.dtype)
        if dilation is None:
            place = place + offset.reshape(lead)
        else:
            along = offset.astype(dilation.dtype).reshape(lead)
            place = place.astype(dilation.dtype) + dilation * along
        if delta is not None:
            kind = _wider(place.dtype, delta.dtype)
            place = place.astype(kind) + delta.astype(kind)
        reads = None if soft else is_active
        values = fetch(source, x.shape[:-1], place, reads, dtype)
        for part in (is_active if soft else None, factor):
            if part is not None:
                values = values * part[..., None].astype(dtype)
        product = jnp.matmul(values.reshape(-1, values.shape[-1]), w, **options)
        return total + product.reshape(total.shape)

    scanned = (
        jnp.asarray(steps),
        jnp.moveaxis(active, -1, 0),
        None if offsets is None else jnp.moveaxis(offsets, -2, 0),
        None if mask is None else jnp.moveaxis(mask, -1, 0),
        weight.astype(dtype),
    )
    total = zeros((*outputs, weight.shape[-1]), wide, rows, weight)
    return scan_taps(add, total, scanned).astype(dtype)


def _wider(a: Any, b: Any) -> Any:
    """Return the wider of two floating-point dtypes, the only one if one is, or ``a`` if none is.

    ``jnp.promote_types`` would raise under ``jax.numpy_dtype_promotion("strict")``.
    """
    floats = [kind for kind in (a, b) if jnp.issubdtype(kind, jnp.floating)]
    return max(floats, key=lambda kind: jnp.finfo(kind).bits) if floats else a


def centers(outputs: tuple[int, ...], stride: tuple[int, ...]) -> np.ndarray:
    """Return the input position of each output of a scene, ``int32[1, *outputs[1:], D]``.

    ``outputs`` is ``(B, ...)`` with the extents of the output grid along D axes.
    """
    axes = [np.arange(n) * s for n, s in zip(outputs[1:], stride, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)[None].astype(np.int32)


def fetch(
    source: jax.Array, grid: tuple[int, ...], place: jax.Array, reads: jax.Array | None, dtype: Any
) -> jax.Array:
    """Return a grid's values at the positions ``place``, ``[B, *outputs, C]``; zero off the grid.

    Args:
      source: the grid's values, ``[N + 1, C]``, where the last row is zero.
      grid: ``(B, *spatial)``, with product N.
      place: ``[1 or B, *outputs, D]``; integers are read, floats are interpolated, NaN gives NaN.
      reads: ``bool[B, *outputs]``, which positions to read; others give zero. None reads all.
      dtype: dtype of the result.
    """
    extents = grid[1:]
    if jnp.issubdtype(place.dtype, jnp.integer):
        return _rows(source, grid, place, reads)
    lost = jnp.any(jnp.isnan(place), axis=-1)
    lost = lost if reads is None else lost & reads
    # Places outside by a cell or more, or not finite, read zero; clipping keeps the cast in range.
    # The lower limit is -2, because at -1 the interpolation would read the first row, times zero.
    last = jnp.asarray(extents, place.dtype).reshape((1,) * (place.ndim - 1) + (-1,))
    place = jnp.clip(jnp.where(jnp.isfinite(place), place, -2), -2, last)
    base = jax.lax.stop_gradient(jnp.floor(place))
    part = place - base
    cell = base.astype(jnp.int32)
    total: jax.Array | None = None
    for corner in itertools.product((0, 1), repeat=len(extents)):
        factor = math.prod(
            (part[..., a] if upper else 1 - part[..., a] for a, upper in enumerate(corner)),
            start=jnp.ones((), place.dtype),
        )
        shift = jnp.asarray(corner, jnp.int32).reshape((1,) * (cell.ndim - 1) + (-1,))
        values = _rows(source, grid, cell + shift, reads) * factor[..., None].astype(dtype)
        total = values if total is None else total + values
    assert total is not None
    return jnp.where(lost[..., None], jnp.asarray(jnp.nan, dtype), total)


def _rows(
    source: jax.Array, grid: tuple[int, ...], cell: jax.Array, reads: jax.Array | None
) -> jax.Array:
    inside: Any = True if reads is None else reads
    row = jnp.arange(grid[0], dtype=jnp.int32).reshape(-1, *(1,) * (len(grid) - 1))
    for axis, extent in enumerate(grid[1:]):
        along = cell[..., axis]
        inside = inside & (along >= 0) & (along < extent)
        row = row * extent + along
    row = jnp.where(inside, row, source.shape[0] - 1)
    return source.at[row].get(mode="promise_in_bounds")


def _checked(dilation, offsets, mask, outputs, spec):
    """Check the shapes of ``dilation``, ``offsets`` and ``mask``, and return these three arrays.

    The results are dilation ``[*outputs, 1 or D]``, offsets ``[*outputs, K, D]`` and mask
    ``[*outputs, K]``; None stays None. A dilation ``[*outputs]`` gets a last axis of length 1.
    ``spec`` has K taps along D axes, and ``outputs`` starts with the batch size.

    Raises:
      InputError: an array has another shape; the message names the expected shape.
    """
    ndim, taps = len(spec.stride), spec.num_offsets
    if dilation is not None:
        reach = np.abs(np.asarray(spec.offsets)).max(initial=1)
        dilation = as_places(dilation, _FARTHEST // int(reach))
        if dilation.shape == outputs:
            dilation = dilation[..., None]
        if dilation.shape not in ((*outputs, 1), (*outputs, ndim)):
            raise InputError(
                f"dilation of shape {dilation.shape}: expected {list(outputs)}, with {ndim} at the "
                "end for one per axis, or static integers"
            )
    if offsets is not None:
        if offsets.shape != (*outputs, taps, ndim):
            raise InputError(f"offsets of shape {offsets.shape}: expected {[*outputs, taps, ndim]}")
        offsets = as_places(offsets)
    if mask is not None and mask.shape != (*outputs, taps):
        raise InputError(f"mask of shape {mask.shape}: expected {[*outputs, taps]}")
    return dilation, offsets, mask


def as_places(steps: jax.Array, limit: int = _FARTHEST) -> jax.Array:
    """Cast positions or offsets on the grid: integers to int32, floats to at least float32.

    Integers are clipped to ``-limit`` to ``limit``, which lies outside of every grid.
    """
    steps = clip_integers(steps, limit)
    is_whole = jnp.issubdtype(steps.dtype, jnp.integer)
    return steps if is_whole else steps.astype(accumulator(steps.dtype))
