"""Convolve a grid with a kernel that depends on the position and the input."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax.errors import AlgorithmError, InputError
from voxax.geometry import KernelSpec
from voxax.geometry.dtypes import accumulator
from voxax.geometry.kernel_spec import per_axis
from voxax.nn.arguments import add_bias
from voxax.nn.dynamic.grid_taps import sampled_conv
from voxax.nn.dynamic.size_bank import BankError, bank_conv, compare
from voxax.products.convolve import (
    convolve_sized,
    largest_size,
    output_grid,
    precision_name,
    sized_spec,
)
from voxax.tuning import Request
from voxax.tuning.request import admitted

_MOST_AXES = 3


class DYNAMIC_CONV_ALGO_MODE(enum.StrEnum):
    """Requests for the three products, for users who pin by enum; each is its string."""

    GROUPED = "grouped"
    MASKED = "masked"
    TILED = "tiled"
    SELECTED = "selected"
    SPECIALISED = "specialised"
    AUTO = "auto"
    ALL = "all"


def dynamic_conv(
    x: jax.Array,
    weight: jax.Array,
    *,
    size: jax.Array | int | None = None,
    dilation: jax.Array | int | Sequence[int] | None = None,
    offsets: jax.Array | None = None,
    mask: jax.Array | None = None,
    mixture: jax.Array | None = None,
    stride: int | Sequence[int] = 1,
    method: Request = None,
    bias: jax.Array | None = None,
    tau: float = 1.0,
    bank: int | Sequence[int] = 3,
    coarse_from: int | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Convolve with a kernel size, dilation, taps or weights that each position chooses.

    ``y[u] = sum over k of m_k(u) W_k(u) x<stride u + dilation(u) o_k + offsets_k(u)>``, zero
    outside of the grid. Positions u are those of ``ceil(spatial / stride)``. Size s covers the
    offsets ``-((s - 1) // 2)`` to ``s // 2`` along each axis, whatever the stride; below 1 it has
    no tap, above the weight's it has all. All shapes are static: other sizes, offsets or masks
    are no new program.

    Args:
      x: ``[B, *spatial, C]``, 1 to 3 spatial axes, floating point.
      weight: ``[*T, C, C_out]`` with the largest kernel T; ``[M, *T, C, C_out]`` with ``mixture``.
      size: kernel size of each output position, ``[B, *outputs]``, of each scene ``[B]``, or one.
        Integers are exact sizes. Floats lie between sizes, where the taps of the next one fade in,
        :func:`voxax.geometry.nested_sizes.soft_mask`: they have gradients. None: all taps.
      dilation: integers, or one per axis, static; or an array ``[B, *outputs]`` or
        ``[B, *outputs, D]``: integers, or floats, which have gradients and are interpolated.
      offsets: ``[B, *outputs, K, D]``, added to each tap's place (K in lexicographic order): floats
        are interpolated linearly and have gradients; integers are fetched.
      mask: ``[B, *outputs, K]``, multiplies each tap.
      mixture: of M weights, ``[B, *outputs, M]`` or, of each scene, ``[B, M]``.
      stride: static, an integer or one per axis.
      method: which strategies may be used, forward and backward: ``masked``, ``grouped``,
        ``tiled``, ``selected``, ``specialised`` (alone, with concrete sizes: one program for each
        histogram), a member of :class:`DYNAMIC_CONV_ALGO_MODE`, a list of these, or ``"auto"``,
        with which the tuner measures; None leaves it to :func:`voxax.algorithms` and the
        environment, and is ``"auto"`` where these say nothing. ``"bank"`` approximates, see
        :func:`voxax.nn.functional.bank_error`. Array dilation, offsets, masks, and soft sizes with
        another ``tau`` than 1 have one way, ``masked``.
      bias: ``[C_out]`` or None.
      tau: width of the soft ramp, in sizes.
      bank: sizes of ``"bank"``, or how many.
      coarse_from: ``"bank"`` computes sizes from here on, large ones, on a grid of half the
        resolution: a hierarchical bank, for stride 1. None: none.
      precision: None keeps the input's full precision (or follows
        ``jax.default_matmul_precision``).

    Returns:
      ``[B, *outputs, C_out]`` in the promoted dtype of ``x`` and ``weight``, accumulated in at
      least float32. Differentiable in x, weight, and every float argument, to any order, forward
      and reverse.

    Raises:
      InputError: shapes or dtypes that do not fit.
      AlgorithmError: a request that is not understood, or no admitted strategy can run this.
    """
    ndim = x.ndim - 2
    taps = check_operands(x, weight, mixture)
    steps = per_axis(stride, ndim, "stride")
    outputs = output_grid(x.shape[:-1], steps)
    static, spacing = split_dilation(dilation, ndim)
    spec = sized_spec(taps, steps, static)
    sizes = expand_size(size, outputs, taps)
    soft = jnp.issubdtype(sizes.dtype, jnp.floating)
    is_sampled = any(a is not None for a in (spacing, offsets, mask)) or (soft and tau != 1)

    def run(x: jax.Array, weight: jax.Array, sizes: jax.Array) -> jax.Array:
        if is_sampled:
            _only_masked(method)
            return sampled_conv(
                x, weight, spec, sizes, spacing, offsets, mask, tau=tau, precision=precision
            )
        options = {"method": method, "precision": precision}
        if method == "bank":
            if soft:
                raise InputError("method='bank' rounds to whole sizes: give integers")
            return bank_conv(
                x, weight, sizes, spec, bank=bank, coarse_from=coarse_from, precision=precision
            )
        if not soft:
            return convolve_sized(x, weight, sizes, spec, **options)
        return _between(x, weight, sizes, spec, options)

    if mixture is None:
        y = run(x, flat(weight, taps), sizes)
    else:
        whole = is_sampled or method == "bank"
        y = _mixed(run, x, weight, sizes, mixture, taps, outputs, whole, precision)
    return add_bias(y, bias)


def bank_error(
    x: jax.Array,
    weight: jax.Array,
    *,
    size: jax.Array,
    dilation: int | Sequence[int] = 1,
    stride: int | Sequence[int] = 1,
    bank: int | Sequence[int] = 3,
    coarse_from: int | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> BankError:
    """Compute both the bank's result and the exact one, and compare them.

    Args:
      x, weight, size, dilation, stride, bank, coarse_from, precision: as for :func:`dynamic_conv`;
        sizes are integers.

    Returns:
      The bank's sizes, the part of the positions that got another size, the relative error.

    Raises:
      InputError: as :func:`dynamic_conv`.
    """
    ndim = x.ndim - 2
    taps = check_operands(x, weight, None)
    spec = sized_spec(taps, per_axis(stride, ndim, "stride"), per_axis(dilation, ndim, "dilation"))
    sizes = expand_size(size, output_grid(x.shape[:-1], spec.stride), taps)
    kernel = flat(weight, taps)
    exact = convolve_sized(x, kernel, sizes, spec, precision=precision)
    fixed = bank_conv(
        x, kernel, sizes, spec, bank=bank, coarse_from=coarse_from, precision=precision
    )
    return compare(exact, fixed, sizes, spec, bank)


def _between(
    x: jax.Array, weight: jax.Array, sizes: jax.Array, spec: KernelSpec, options: dict[str, Any]
) -> jax.Array:
    """Interpolate linearly between the exact results of two sizes: a soft ramp of one size."""
    below = jax.lax.stop_gradient(jnp.floor(sizes))
    part = (sizes - below)[..., None]
    # Beyond what the kernel has, both are alike, and the size has no gradient.
    whole = jnp.clip(below, -1, 2**20).astype(jnp.int32)
    lower = convolve_sized(x, weight, whole, spec, **options)
    upper = convolve_sized(x, weight, whole + 1, spec, **options)
    wide = accumulator(lower.dtype)
    part = part.astype(wide)
    return (lower.astype(wide) * (1 - part) + upper.astype(wide) * part).astype(lower.dtype)


def _mixed(run, x, weight, sizes, mixture, taps, outputs, whole, precision) -> jax.Array:
    """Convolve with kernels mixed from a bank of weights, for each scene or each position."""
    count, c_out = weight.shape[0], weight.shape[-1]
    if mixture.shape not in ((outputs[0], count), (*outputs, count)):
        raise InputError(
            f"mixture of shape {mixture.shape}: expected {[*outputs, count]} or, for each scene, "
            f"{[outputs[0], count]}"
        )
    mixture = mixture.astype(jnp.promote_types(x.dtype, weight.dtype))
    if mixture.shape == (outputs[0], count) and not whole:
        # Few weights: they are mixed themselves, and each scene has one convolution.
        kernels, exactly = weight.astype(mixture.dtype), precision_name(precision)
        mixed = jnp.einsum("bm,m...->b...", mixture, kernels, precision=exactly)

        def one(x: jax.Array, weight: jax.Array, sizes: jax.Array) -> jax.Array:
            return run(x[None], flat(weight, taps), sizes[None])[0]

        return jax.vmap(one)(x, mixed, sizes)
    if mixture.shape == (outputs[0], count):
        mixture = mixture.reshape(outputs[0], *(1,) * (len(outputs) - 1), count)
    joined = jnp.moveaxis(weight, 0, -2).reshape(*weight.shape[1:-1], count * c_out)
    y = run(x, flat(joined, taps), sizes)
    y = y.reshape(*outputs, count, c_out)
    return jnp.sum(y * mixture[..., None].astype(y.dtype), axis=-2)


def flat(weight: jax.Array, taps: tuple[int, ...]) -> jax.Array:
    """Reshape ``[*T, C, C_out]`` to ``[K, C, C_out]``."""
    return weight.reshape(int(np.prod(taps)), *weight.shape[-2:])


def _only_masked(method: Request) -> None:
    origin, names = "method", ("bank",)
    if method != "bank":
        asked = admitted(method, kind="dynamic", product="forward")
        origin, names = asked.origin, asked.names
    if "masked" not in names:
        raise AlgorithmError(
            f"{origin} admits {', '.join(names)}: with array dilation, offsets, a mask, or soft "
            "sizes whose tau is not 1, every tap is fetched for every position: only 'masked' does "
            "that"
        )


def split_dilation(
    dilation: jax.Array | int | Sequence[int] | None, ndim: int
) -> tuple[tuple[int, ...], jax.Array | None]:
    """Return the static dilation by axis and that of each position; one of them is in use."""
    if isinstance(dilation, jax.Array | np.ndarray) and dilation.ndim > 1:
        return (1,) * ndim, jnp.asarray(dilation)
    static: Any = 1 if dilation is None else dilation
    return per_axis(static, ndim, "dilation"), None


def check_operands(x: jax.Array, weight: jax.Array, mixture: jax.Array | None) -> tuple[int, ...]:
    """Check the operands and return the shape of the largest kernel.

    Raises:
      InputError: shapes or dtypes that do not fit together.
    """
    ndim = x.ndim - 2
    if not 1 <= ndim <= _MOST_AXES:
        raise InputError(
            f"x of shape {x.shape}: expected [B, *spatial, C] with 1 to 3 spatial axes"
        )
    lead = 0 if mixture is None else 1
    if weight.ndim != lead + ndim + 2:
        wanted = "[*T, C, C_out]" if mixture is None else "[M, *T, C, C_out] with a mixture"
        raise InputError(f"weight of shape {weight.shape}: expected {wanted}, {ndim} axes in T")
    if weight.shape[-2] != x.shape[-1]:
        raise InputError(f"x has {x.shape[-1]} channels, the weight takes {weight.shape[-2]}")
    if not all(jnp.issubdtype(a.dtype, jnp.floating) for a in (x, weight)):
        raise InputError(f"x of {x.dtype} and weight of {weight.dtype}: give floating point")
    taps = weight.shape[lead : lead + ndim]
    if not all(taps):
        raise InputError(f"a kernel of {taps} taps has none: every axis needs 1 or more")
    if mixture is not None and mixture.shape[-1] != weight.shape[0]:
        raise InputError(f"mixture of shape {mixture.shape} for {weight.shape[0]} weights")
    return taps


def expand_size(size: Any, outputs: tuple[int, ...], taps: tuple[int, ...]) -> jax.Array:
    """Return sizes ``[B, *outputs]``, integers or floats; None is the largest.

    Raises:
      InputError: another shape, or sizes that are no numbers.
    """
    if size is None:
        size = largest_size(taps)
    if isinstance(size, np.ndarray) and size.shape == outputs and size.dtype.kind in "iu":
        # As an array of JAX it would be traced in a trace, and no longer known.
        known: Any = np.clip(size, 0, largest_size(taps)).astype(np.int32)
        return known
    size = jnp.asarray(size)
    if jnp.issubdtype(size.dtype, jnp.integer):
        # 32 bits would wrap around. Not where they hold the size: clipped in a trace, sizes that
        # are known there would no longer be.
        if jnp.iinfo(size.dtype).max > jnp.iinfo(jnp.int32).max:
            size = jnp.clip(size, 0, largest_size(taps))
        size = size.astype(jnp.int32)
    elif not jnp.issubdtype(size.dtype, jnp.floating):
        raise InputError(f"sizes of {size.dtype}: give integers, or floats for a gradient")
    if size.ndim == 0:
        # Behind a barrier: XLA would spend seconds on reducing a large constant while it compiles.
        return jnp.broadcast_to(jax.lax.optimization_barrier(size), outputs)
    if size.shape == outputs[:1]:
        return jnp.broadcast_to(size.reshape(-1, *(1,) * (len(outputs) - 1)), outputs)
    if size.shape != outputs:
        raise InputError(
            f"size of shape {size.shape}: expected one, [{outputs[0]}], or {list(outputs)}, the "
            "output positions"
        )
    return size
