"""Deformable convolution of grids, and convolution with a separate kernel for each position."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from voxax._array_types import Array, Float, Num
from voxax.errors import InputError, check_known
from voxax.geometry import KernelSpec
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import accumulator, common_dtype
from voxax.geometry.kernel_spec import per_axis
from voxax.kernels.dynamic.grid import output_grid
from voxax.kernels.rows import zeros
from voxax.nn.arguments import add_bias, check_shape
from voxax.nn.dynamic.grid_taps import as_places, centers, fetch, grid_spec, scan_taps
from voxax.products.convolution import precision_name

Modulation = Literal["plain", "sigmoid", "softmax"]


@checked_operator
def deform_conv(
    x: Float[Array, "B *spatial C"],
    weight: Float[Array, "*T C_per_group C_out"] | None,
    offsets: Num[Array, "B *outputs_and_G K D"],
    *,
    mask: Float[Array, "B *outputs_and_G K"] | None = None,
    modulation: Modulation = "plain",
    bias: Float[Array, " C_out"] | None = None,
    kernel_size: int | Sequence[int] | None = None,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    precision: jax.lax.PrecisionLike = None,
) -> Float[Array, "B *outputs C_out"]:
    """Convolve a grid with taps moved by ``offsets``, with linear interpolation (deformable).

    ``y[u] = sum over k of m_gk(u) W_k x_g<stride u + dilation o_k + offsets_gk(u)>``. The taps k
    move separately for each group g of channels; there are G groups of C / G consecutive channels.
    ``o_k`` is the offset of tap k, ``<...>`` interpolates, and m is the mask. The versions of the
    literature:

    | version | call |
    |---|---|
    | v1 | no ``mask`` |
    | v2 | ``mask``, ``modulation="sigmoid"`` (or ``"plain"`` with a mask after a sigmoid) |
    | v3 | ``weight=None``, G groups, ``modulation="softmax"`` (over the K taps) |
    | v4 | ``weight=None``, G groups, ``modulation="plain"``: any numbers |

    v3 and v4 do not mix channels; linear layers before and after them do. A value is interpolated
    from the surrounding cells. Every cell outside the grid counts as zero, as in torchvision and
    ONNX.

    Args:
      x: ``[B, *spatial, C]``, 1 to 3 spatial axes, floating point.
      weight: ``[*T, C / groups, C_out]`` with kernel size T along each axis, and output channels
        ordered by group. None sums the values of the taps without weights.
      offsets: ``[B, *outputs, K, D]``, or with G groups ``[B, *outputs, G, K, D]``, in cells along
        the D spatial axes in their order. The K taps are in lexicographic order; ``outputs`` is
        ``ceil(spatial / stride)``. Integers read cells without interpolation.
      mask: factor of each tap, ``[B, *outputs, K]`` or ``[B, *outputs, G, K]``, floats; or None.
      modulation: function applied to the mask before it is used: ``"plain"`` (none), ``"sigmoid"``,
        or ``"softmax"`` over the K taps.
      bias: ``[C_out]`` or None.
      kernel_size: an integer or one per axis; required without a weight.
      stride, dilation: static, an integer or one per axis.
      groups: static, number of channel groups of the weight. It is independent of G.
      precision: None keeps the input's full precision (or follows
        ``jax.default_matmul_precision``).

    Returns:
      ``[B, *outputs, C_out]`` (C without a weight) in the promoted dtype of ``x`` and ``weight``,
      accumulated in at least float32. It is differentiable in every float array to any order. The
      gradient of ``offsets`` jumps where a tap moves from one cell to the next. Memory does not
      grow with K, because taps are processed one after the other.

    Raises:
      InputError: shapes or dtypes differ from those above, or the modulation is unknown or lacks a
        mask.

    Source: Dai et al., "Deformable Convolutional Networks", ICCV 2017; Zhu et al., "Deformable
    ConvNets v2", CVPR 2019; Wang et al., "InternImage" (v3), CVPR 2023; Xiong et al., "Efficient
    Deformable ConvNets" (v4), CVPR 2024.

    Examples:
      >>> image, weight = jnp.ones((1, 8, 8, 3)), jnp.ones((3, 3, 3, 8))
      >>> offsets = jnp.zeros((1, 8, 8, 1, 9, 2))
      >>> functional.deform_conv(image, weight, offsets).shape
      (1, 8, 8, 8)
    """
    ndim, channels = x.ndim - 2, x.shape[-1]
    taps = _taps(x, weight, kernel_size, groups)
    spec = grid_spec(x, taps, stride, dilation)
    number, grid = spec.num_offsets, x.shape[:-1]
    outputs = output_grid(grid, spec.stride)
    offsets, mask, parts = _by_part(offsets, mask, outputs, number, ndim, channels)
    dtype = x.dtype if weight is None else common_dtype(x.dtype, weight.dtype)
    wide = accumulator(dtype)
    mask = _modulated(mask, modulation, wide)

    # Groups of channels become scenes, because each group is read at different places.
    by_part = jnp.moveaxis(x.reshape(*grid, parts, channels // parts), -2, 1)
    scenes = (grid[0] * parts, *grid[1:])
    rows = by_part.reshape(math.prod(scenes), channels // parts).astype(dtype)
    source = jnp.concatenate([rows, jnp.zeros((1, channels // parts), dtype)])
    center = centers(outputs, spec.stride)
    places = (scenes[0], *outputs[1:])
    split = (grid[0], parts, *outputs[1:], channels // parts)
    c_out = channels if weight is None else weight.shape[-1]

    def add(total: jax.Array, tap: tuple) -> jax.Array:
        step, delta, factor, w = tap
        place = jnp.asarray(center) + step.reshape((1,) * len(places) + (-1,))
        values = fetch(source, scenes, place.astype(delta.dtype) + delta, None, dtype)
        if factor is not None:
            values = (values.astype(wide) * factor[..., None]).astype(dtype)
        values = jnp.moveaxis(values.reshape(split), 1, -2)
        if w is None:
            return total + values.reshape(*outputs, channels).astype(wide)
        flat = values.reshape(-1, groups, channels // groups)
        product = jnp.einsum(
            "ngi,gio->ngo",
            flat,
            w,
            precision=precision_name(precision),
            preferred_element_type=wide,
        )
        return total + product.reshape(*outputs, c_out)

    kernels = None
    if weight is not None:
        kernels = weight.astype(dtype).reshape(number, channels // groups, groups, c_out // groups)
        kernels = jnp.moveaxis(kernels, 2, 1)
    steps = jnp.asarray(np.asarray(spec.dilated_offsets), jnp.int32)
    operands = [x] if weight is None else [x, weight]
    total = scan_taps(
        add,
        zeros((*outputs, c_out), wide, *operands),
        (
            steps,
            jnp.moveaxis(offsets, (-3, -2), (2, 0)).reshape(number, *places, ndim),
            None if mask is None else jnp.moveaxis(mask, (-2, -1), (2, 0)).reshape(number, *places),
            kernels,
        ),
    )
    y = total.astype(dtype)
    return add_bias(y, bias)


def _taps(x, weight, kernel_size, groups) -> tuple[int, ...]:
    """Return the kernel size per axis, from ``weight``, or from ``kernel_size`` without a weight.

    Raise ``InputError`` if ``weight`` and ``kernel_size`` differ or are both None, or if the weight
    does not match ``x`` and ``groups``.
    """
    ndim, channels = x.ndim - 2, x.shape[-1]
    if weight is None:
        if kernel_size is None or groups != 1:
            raise InputError(
                f"without a weight, kernel_size={kernel_size} must be given and groups={groups} be "
                "1: groups of offsets are told by their shape"
            )
        return per_axis(kernel_size, ndim, "kernel_size")
    fits = weight.ndim == ndim + 2 and groups >= 1 and weight.shape[-2] * groups == channels
    if not fits or weight.shape[-1] % groups:
        raise InputError(
            f"weight of shape {tuple(weight.shape)} for x of shape {tuple(x.shape)}, "
            f"groups={groups}: expected [*T, {channels} / groups, C_out] with {ndim} sizes T"
        )
    shape = weight.shape[:ndim]
    if kernel_size is not None and per_axis(kernel_size, ndim, "kernel_size") != shape:
        raise InputError(f"kernel_size={kernel_size}, the weight has {shape}: leave it out")
    return shape


def _by_part(offsets, mask, outputs, number, ndim, channels):
    """Check ``offsets`` and ``mask``; return both with an axis for G channel groups, and G.

    The results are offsets ``[*outputs, G, K, D]``, mask ``[*outputs, G, K]`` and an integer. An
    array without a group axis gets one of length 1, and a mask of None stays None. ``outputs`` is
    ``(B, ...)`` with the extents of the output grid, ``number`` is K, and ``ndim`` is D. G must
    divide ``channels``. Other shapes raise ``InputError``.
    """
    if offsets.ndim == len(outputs) + 2:
        offsets = offsets[..., None, :, :]
    if mask is not None and mask.ndim == len(outputs) + 1:
        mask = mask[..., None, :]
    parts = offsets.shape[len(outputs)] if offsets.ndim == len(outputs) + 3 else 0
    expected = (*outputs, parts, number, ndim)
    if not parts or offsets.shape != expected or channels % parts:
        raise InputError(
            f"offsets of shape {tuple(offsets.shape)}: expected {[*outputs, number, ndim]}, or "
            f"{[*outputs, 'G', number, ndim]} with G a divisor of {channels} channels"
        )
    if mask is not None:
        check_shape("mask", mask, expected[:-1])
    return as_places(offsets), mask, parts


def _modulated(mask, modulation: str, wide):
    check_known("modulation", modulation, get_args(Modulation))
    if mask is None:
        if modulation != "plain":
            raise InputError(f"modulation={modulation!r} is of a mask: give mask=")
        return None
    mask = mask.astype(wide)
    if modulation == "sigmoid":
        return jax.nn.sigmoid(mask)
    return jax.nn.softmax(mask, axis=-1) if modulation == "softmax" else mask


@checked_operator
def local_conv(
    x: Float[Array, "B *spatial C"],
    kernels: Float[Array, "B *outputs K G"] | Float[Array, "B *outputs K"],
    *,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
) -> Float[Array, "B ... C"]:
    """Convolve every position of a grid with a different given kernel, without mixing channels.

    ``y[u, c] = sum over k of kernels[u, k, group of c] * x[stride u + dilation o_k, c]``, where x
    is zero outside the grid. With kernels that a network computes from ``x``, this is involution.
    With one group, or one group per channel, it is kernel prediction. ``o_k`` is the offset of tap
    k.

    Args:
      x: ``[B, *spatial, C]``, 1 to 3 spatial axes, floating point.
      kernels: ``[B, *outputs, K, G]`` for G groups of C / G consecutive channels each, or
        ``[B, *outputs, K]`` for one group. The K taps are in lexicographic order; ``outputs`` is
        ``ceil(spatial / stride)``.
      kernel_size: an integer or one per axis; size s has offsets ``-((s - 1) // 2)`` to ``s // 2``.
      stride, dilation: static, an integer or one per axis.

    Returns:
      ``[B, *outputs, C]`` in the promoted dtype of both arguments, summed in at least float32. It
      is differentiable in both to any order. Memory does not grow with K, because taps are
      processed one after the other.

    Raises:
      InputError: shapes or dtypes differ from those above.

    Source: Li et al., "Involution: Inverting the Inherence of Convolution for Visual
    Recognition", CVPR 2021; Mildenhall et al., "Burst Denoising with Kernel Prediction
    Networks", CVPR 2018.
    """
    spec = grid_spec(x, kernel_size, stride, dilation)
    starts, read = _under_taps(x, spec)
    outputs, channels = output_grid(x.shape[:-1], spec.stride), x.shape[-1]
    taps = spec.num_offsets
    if kernels.shape == (*outputs, taps):
        kernels = kernels[..., None]
    groups = kernels.shape[-1] if kernels.ndim else 0
    check_shape("kernels", kernels, (*outputs, taps, groups))
    if groups < 1 or channels % groups:
        raise InputError(
            f"kernels of shape {tuple(kernels.shape)} have {groups} groups, which {channels} "
            "channels cannot be split into: give a divisor"
        )
    dtype = common_dtype(x.dtype, kernels.dtype)
    wide = accumulator(dtype)

    def add(total: jax.Array, tap: tuple[jax.Array, jax.Array]) -> jax.Array:
        start, kernel = tap
        values = read(start).reshape(*outputs, groups, channels // groups).astype(wide)
        return total + values * kernel[..., None].astype(wide)

    total = zeros((*outputs, groups, channels // groups), wide, x, kernels)
    by_tap = (jnp.asarray(starts), jnp.moveaxis(kernels, -2, 0))
    return scan_taps(add, total, by_tap).reshape(*outputs, channels).astype(dtype)


def _under_taps(
    x: jax.Array, spec: KernelSpec
) -> tuple[np.ndarray, Callable[[jax.Array], jax.Array]]:
    """Pad ``x``; return the start position of each tap in it, and a function that reads one tap.

    Args:
      x: ``[B, *spatial, C]``; it is padded once.
      spec: offsets of the taps, stride and dilation.

    Returns:
      Two values. ``int32[K, D]``: for each tap, the position in the padded ``x`` that the first
      output reads. A function that takes one such row, and returns the values of ``x`` at this tap
      for all outputs, ``[B, *outputs, C]``, zero outside the grid.
    """
    taps, steps = np.asarray(spec.dilated_offsets), np.asarray(spec.stride)
    last = (np.asarray(output_grid(x.shape[:-1], spec.stride)[1:]) - 1) * steps
    low = np.maximum(0, -taps.min(axis=0))
    high = np.maximum(0, last + 1 + taps.max(axis=0) - np.asarray(x.shape[1:-1]))
    padded = jnp.pad(x, ((0, 0), *zip(low.tolist(), high.tolist(), strict=True), (0, 0)))
    sizes = (x.shape[0], *np.maximum(last + 1, 0).tolist(), x.shape[-1])

    def read(start: jax.Array) -> jax.Array:
        zero = jnp.zeros((), jnp.int32)
        corner = [zero, *(start[axis] for axis in range(len(steps))), zero]
        values = jax.lax.dynamic_slice(padded, corner, sizes)
        return jax.lax.slice(values, (0,) * values.ndim, values.shape, (1, *spec.stride, 1))

    return (taps + low).astype(np.int32), read
