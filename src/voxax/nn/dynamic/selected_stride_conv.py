"""Choose one of a few compiled sizes or strides for each scene, from scores that learn."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Float, Int, Int32
from voxax.errors import InputError
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import common_dtype
from voxax.geometry.kernel_spec import per_axis
from voxax.kernels.dynamic.grid import box_conv
from voxax.kernels.rows import zeros
from voxax.nn.arguments import add_bias
from voxax.nn.dynamic.dynamic_conv import check_operands
from voxax.products.convolution import precision_name


@checked_operator
def choose_size(
    scores: Float[Array, "B sizes"], sizes: Sequence[int], *, fallback: int
) -> tuple[Int32[Array, " B"], Float[Array, " B"]]:
    """Return the size with the best score, and a gate through which the scores learn.

    Give the first to ``dynamic_conv(..., size=, algorithm="selected")``, which runs the compiled
    kernel of that size, and multiply its result by the second: 1 in value, with the gradient of the
    chosen size's probability (straight-through; Bengio et al., "Estimating or propagating gradients
    through stochastic neurons", 2013).

    Args:
      scores: ``float[B, len(sizes)]``, of a selector.
      sizes: the sizes to choose from.
      fallback: the size where a score is not finite.

    Returns:
      ``int32[B]``, and ``float[B]``.

    Raises:
      InputError: another shape.
    """
    if scores.ndim != 2 or scores.shape[1] != len(sizes):
        raise InputError(f"scores of shape {scores.shape}: expected [B, {len(sizes)}], one a size")
    known = jnp.all(jnp.isfinite(scores), axis=1)
    clean = jnp.where(known[:, None], scores, 0)
    best = jnp.argmax(clean, axis=1)
    size = jnp.where(known, jnp.asarray(sizes, jnp.int32)[best], fallback).astype(jnp.int32)
    chance = jnp.take_along_axis(jax.nn.softmax(clean, axis=1), best[:, None], axis=1)[:, 0]
    gate = 1 + chance - jax.lax.stop_gradient(chance)
    return size, jnp.where(known, gate, 1)


@checked_operator
def selected_stride_conv(
    x: Float[Array, "B *spatial C"],
    weight: Float[Array, "*T C C_out"],
    stride: Int[Array, " B"],
    *,
    strides: Sequence[int],
    dilation: int | Sequence[int] = 1,
    bias: Float[Array, " C_out"] | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> tuple[Float[Array, "B *outputs C_out"], Int32[Array, "B D"]]:
    """Convolve each scene with its own stride.

    Every stride of ``strides`` is one compiled convolution, and of these one runs for each scene
    (``jax.lax.switch``, scenes one after the other; under ``jax.vmap`` all would run). A scene of
    stride s fills the first ``ceil(spatial / s)`` outputs of each axis; what lies beyond is zero.
    :func:`voxax.nn.functional.choose_size` turns learned scores into strides, and into the gate
    through which they learn.

    Args:
      x: ``[B, *spatial, C]``, 1 to 3 spatial axes, floating point.
      weight: ``[*T, C, C_out]``.
      stride: ``int[B]``, the stride of each scene, for all axes.
      strides: static, distinct, the values that may occur. Where another does: an error if that
        can be known, else NaN in that scene's outputs, and no extent.
      dilation: static, an integer or one per axis.
      bias: ``[C_out]`` or None; not added beyond a scene's outputs.
      precision: None keeps the input's full precision (or follows
        ``jax.default_matmul_precision``).

    Returns:
      ``[B, *ceil(spatial / min(strides)), C_out]`` in the promoted dtype of ``x`` and ``weight``,
      and ``int32[B, D]``, how many outputs of each axis are the scene's. Differentiable in x,
      weight and bias to any order.

    Raises:
      InputError: shapes or dtypes that do not fit, a stride that is not listed.
    """
    check_operands(x, weight, None)
    values = tuple(int(s) for s in strides)
    if not values or len(set(values)) != len(values) or min(values) < 1:
        raise InputError(f"strides={values}: give distinct integers of 1 or more")
    stride = jnp.asarray(stride)
    if stride.shape != x.shape[:1] or not jnp.issubdtype(stride.dtype, jnp.integer):
        raise InputError(
            f"stride of {stride.dtype}{list(stride.shape)}: expected int[{x.shape[0]}], one for "
            "each scene"
        )
    is_this = stride[:, None] == jnp.asarray(values, stride.dtype)[None]
    known = jnp.any(is_this, axis=1)
    if not _compat.is_traced(known) and not bool(jnp.all(known)):
        other = int(stride[jnp.argmin(known)])
        raise InputError(f"stride {other} occurs, strides={values} does not list it")
    spatial, dtype = x.shape[1:-1], common_dtype(x.dtype, weight.dtype)
    ndim = len(spatial)
    spacing = per_axis(dilation, ndim, "dilation")
    largest = [-(-n // min(values)) for n in spatial]
    kernel = weight.astype(dtype)

    def branch(step: int):
        def run(x: jax.Array) -> jax.Array:
            y = jnp.zeros(tuple(-(-n // step) for n in spatial) + weight.shape[-1:], dtype)
            if y.size:
                exactly = precision_name(precision)
                y = box_conv(x[None], kernel, (step,) * ndim, spacing, precision=exactly)[0]
            y = add_bias(y, bias)
            behind = [(0, n - m) for n, m in zip(largest, y.shape[:-1], strict=True)]
            return jnp.pad(y, [*behind, (0, 0)])

        return run

    # One more for strides that are not listed.
    shape = (*largest, weight.shape[-1])
    branches = [branch(step) for step in values]
    branches.append(lambda x: jnp.nan + zeros(shape, dtype, x))
    which = jnp.where(known, jnp.argmax(is_this, axis=1), len(values))
    y = jax.lax.map(
        lambda part: jax.lax.switch(part[0], branches, part[1]), (which, x.astype(dtype))
    )
    counts = [[-(-n // step) for n in spatial] for step in values] + [[0] * len(spatial)]
    return y, jnp.asarray(np.asarray(counts), jnp.int32)[which]
