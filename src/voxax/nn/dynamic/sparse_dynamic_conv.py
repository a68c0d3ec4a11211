"""Convolve voxels with a kernel that depends on the voxel: size, dilation, mask, weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Int, Num
from voxax.errors import AlgorithmError, InputError
from voxax.geometry import KernelMap, KernelShape, KernelSpec, Voxels
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import accumulator, clip_integers, common_dtype
from voxax.geometry.kernel_spec import per_axis
from voxax.geometry.nested_sizes import reaching_size, soft_mask
from voxax.nn.arguments import by_product, check_weight, output_voxels, request_map
from voxax.products import convolve, convolve_modulated
from voxax.tuning import Request
from voxax.tuning.request import admitted


@checked_operator
def sparse_dynamic_conv(
    voxels: Voxels,
    weight: Num[Array, "K C_in C_out"]
    | Num[Array, "K G C_in_per_G C_out_per_G"]
    | Num[Array, "M K ..."],
    kernel_size: int | Sequence[int] = 3,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] | Int[Array, " out_capacity"] = 1,
    bias: Num[Array, " C_out"] | None = None,
    groups: int = 1,
    *,
    size: jax.Array | int | float | None = None,
    tau: float | None = None,
    mask: Num[Array, "out_capacity K"] | None = None,
    mixture: Num[Array, "out_capacity M"] | None = None,
    dilations: Sequence[int] | None = None,
    capacity: int | None = None,
    out_voxels: Voxels | None = None,
    kernel_map: KernelMap | None = None,
    kernel_shape: KernelShape = "box",
    algorithm: Request = None,
    fwd_algo: Request = None,
    bwd_algo: Request = None,
    dgrad_algo: Request = None,
    wgrad_algo: Request = None,
    precision: jax.lax.PrecisionLike = None,
) -> Voxels:
    """Convolve voxels with a kernel size, dilation, mask or weights given for each output voxel.

    ``y[u] = sum_k m_k(u) * x[stride * u + d(u) * o_k] @ W_k(u)``. Here ``m_k(u)`` is 1 for the taps
    k within the kernel size of u and 0 for other taps (with ``tau``, a ramp), times ``mask``. ``d``
    is the dilation, ``o_k`` the offset of tap k, and W the weight, or a mixture of several. Shapes
    do not depend on the values, so new sizes do not trigger compilation.

    Size s has the offsets ``-((s - 1) // 2)`` to ``s // 2`` along every axis, before dilation. So
    the kernel of size 3 is part of that of size 4, and so on. With hard sizes (``tau=None``),
    neither the forward nor the backward pass computes taps outside an output's size.

    Args:
      voxels: input with ``C_in`` channels.
      weight: ``[K, C_in, C_out]`` or, with groups, ``[K, G, C_in/G, C_out/G]``, for the largest
        size; with ``mixture``, M such weights along a new first axis.
      kernel_size: the largest size: an integer, or one per axis.
      stride: an integer, or one per axis. The offsets are those above even if
        ``stride == kernel_size``.
      dilation: static integers, or ``int[out_capacity]``, the dilation of each output voxel.
      bias: ``[C_out]`` or None.
      groups: number of channel groups.
      size: size of each output voxel's kernel, ``[out_capacity]``, or ``[]`` for all; integers or
        floats. Floats are rounded down unless ``tau`` is given. A size below 1 has no tap. None is
        ``kernel_size``.
      tau: width of the ramp that makes sizes soft and gives them a gradient; None is hard. A tap
        fades in over ``tau`` sizes before the size reaches it
        (:func:`voxax.geometry.nested_sizes.soft_mask`). With ``tau <= 1`` whole sizes give the same
        numbers as hard sizes.
      mask: ``[out_capacity, K]``, a factor for each tap; None is 1.
      mixture: ``[out_capacity, M]``, the share of each weight; None if there is a single weight.
      dilations: the values that an array ``dilation`` may have. Another value raises an error;
        under ``jax.jit`` it sets the voxel's outputs to NaN (integer products to 0).
      capacity, out_voxels, kernel_map, kernel_shape: as in
        :func:`voxax.nn.functional.spatially_sparse_conv`.
      algorithm: the allowed strategies, a request as in :func:`voxax.nn.functional.dynamic_conv`.
        Both strategies for voxels give the same result. ``grouped`` computes only taps within the
        sizes. For hard sizes it runs one convolution; for soft sizes, one per size, over the taps
        that this size adds to the next smaller one. ``masked`` multiplies every tap by its factor.
        ``mask`` requires ``masked``; without a mask, ``grouped`` runs if both are allowed. The
        other strategies of ``dynamic_conv`` are for grids.
      fwd_algo, bwd_algo, dgrad_algo, wgrad_algo, precision: as in
        :func:`voxax.nn.functional.spatially_sparse_conv`.

    Returns:
      Voxels with ``C_out`` channels; dtypes as in
      :func:`voxax.nn.functional.spatially_sparse_conv`. Differentiable to any order in features,
      weight, bias, mask, mixture and soft sizes.

    Raises:
      InputError: shapes or dtypes differ from those above; the message names them.
      AlgorithmError: as in :func:`voxax.nn.functional.spatially_sparse_conv`, or none of the
        allowed strategies can run this.
      CapacityError: as in :func:`voxax.nn.functional.spatially_sparse_conv`.

    Source: sizes and gates of Chen et al., "Dynamic Convolution: Attention over Convolution
    Kernels", CVPR 2020 (mixtures) and Zhu et al., "Deformable ConvNets v2", CVPR 2019
    (modulation), with submanifold outputs as in Graham et al. 2018.

    Examples:
      >>> size = jnp.where(voxels.coords[:, 1] < 4, 1, 3)  # of the kernel at each voxel
      >>> functional.sparse_dynamic_conv(voxels, jnp.ones((27, 4, 8)), 3, size=size).num_channels
      8
    """
    rate, of_voxel = _dilation(dilation, dilations, kernel_map)
    shape = kernel_shape
    if kernel_map is None and isinstance(shape, str) and shape in ("box", "cross"):
        shape = _centered(shape, voxels.geometry.ndim, kernel_size, stride)

    def map_of(spacing: Any) -> KernelMap:
        return request_map(
            voxels, kernel_size, stride, spacing, False, False, out_voxels, capacity,
            kernel_map, "box" if kernel_map is not None else shape,
        )  # fmt: skip

    kmap = map_of(rate[0] if of_voxel is not None else rate)
    rows, valid = kmap.out_capacity, kmap.out_geometry.valid
    single = weight.shape if mixture is None else weight.shape[1:]
    if mixture is not None and weight.ndim < 4:
        raise InputError(
            f"weight of shape {weight.shape}: with a mixture expected M weights, "
            "[M, K, C_in, C_out] or [M, K, G, C_in / G, C_out / G]"
        )
    check_weight(jax.ShapeDtypeStruct(single, weight.dtype), kmap, voxels.num_channels, groups)
    sizes = _of_rows(size, "size", (rows,), valid, scalar=True)
    mask = _of_rows(mask, "mask", (rows, kmap.num_offsets), valid)
    if mixture is not None:
        mixture = _of_rows(mixture, "mixture", (rows, weight.shape[0]), valid)
    _check_tau(tau, sizes)
    masked = _strategy(algorithm, mask) == "masked"
    _check_dtype(voxels.features, weight, {"tau": tau, "mask": mask, "mixture": mixture})

    kernel = weight if mixture is None else _side_by_side(weight)
    requests: dict[str, Any] = {
        **by_product(fwd_algo, bwd_algo, dgrad_algo, wgrad_algo),
        "precision": precision,
    }

    def products(of: KernelMap) -> jax.Array:
        source, of = of.with_halo(voxels.features)
        if masked:
            dtype = common_dtype(source.dtype, kernel.dtype)
            limited, factors = _factors(of, sizes, tau, mask, accumulator(dtype))
            return convolve_modulated(source, kernel, factors, limited, **requests)
        if tau is not None and sizes is not None:
            return _shells(source, kernel, of, sizes, tau, requests)
        within = of if sizes is None else of.within(sizes)
        return convolve(source, kernel, within, **requests)

    with jax.named_scope("sparse_dynamic_conv"):
        if of_voxel is None:
            features = products(kmap)
        else:
            features = _by_dilation(of_voxel, rate, kmap, map_of, products)
        if mixture is not None:
            features = _mixed(features, mixture, groups)
        return output_voxels(voxels, kmap, features, out_voxels, bias)


def _centered(shape: Any, ndim: int, kernel_size: Any, stride: Any) -> KernelShape:
    """Return a kernel shape that is centered: the name ``shape``, or a tuple of kernel offsets.

    ``shape`` is ``"box"`` or ``"cross"``. Where ``stride == kernel_size > 1`` on some axis, the
    kernel with this name would not be centered, so the offsets of a centered one are returned.
    """
    sizes, strides = per_axis(kernel_size, ndim, "kernel_size"), per_axis(stride, ndim, "stride")
    if all(k == 1 or k != s for k, s in zip(sizes, strides, strict=True)):
        return shape
    # With stride 1 no axis of more than one tap is a partition.
    return KernelSpec.make(ndim, sizes, kernel_shape=shape).offsets


def _dilation(
    dilation: Any, dilations: Sequence[int] | None, kernel_map: KernelMap | None
) -> tuple[Any, jax.Array | None]:
    """Return ``(dilation, None)`` if static; for an array, ``(tuple(dilations), dilation)``.

    Only an array, ``[out_capacity]`` with the dilation of each output voxel, has ``dilations``: the
    distinct values that occur in it.

    Raises:
      InputError: ``dilations`` are given for a static dilation, or are missing or repeated for an
        array; an array is not of integers, or comes with a ``kernel_map``.
    """
    if not isinstance(dilation, jax.Array | np.ndarray) or dilation.ndim == 0:
        if dilations is not None:
            raise InputError(
                f"dilations={tuple(dilations)} are the values of an array dilation, got "
                f"dilation={dilation}: leave dilations out, or give int[out_capacity]"
            )
        return dilation, None
    if dilations is None or not len(dilations) or len(set(dilations)) != len(dilations):
        raise InputError(
            f"a dilation for each voxel needs dilations=, the distinct values that occur, got "
            f"{dilations}: for example dilations=(1, 2)"
        )
    if not jnp.issubdtype(dilation.dtype, jnp.integer):
        raise InputError(f"dilation of {dilation.dtype}: expected integers")
    if kernel_map is not None:
        raise InputError("kernel_map= has one dilation: leave it out, or dilation for each voxel")
    return tuple(int(d) for d in dilations), jnp.asarray(dilation)


def _of_rows(
    value: Any, name: str, shape: tuple[int, ...], valid: jax.Array, scalar: bool = False
) -> Any:
    """Check ``value``, floats of ``shape`` for the output rows; return it with zeros in padding.

    ``valid bool[out_capacity]`` is False in padding rows. None stays None. With ``scalar``, the
    value may also have integers, or be one number for all rows. ``name`` is for the error message.

    Raises:
      InputError: ``value`` has another shape, or integers without ``scalar``.
    """
    if value is None:
        return None
    array = clip_integers(value)
    if scalar and array.ndim == 0:
        array = jnp.broadcast_to(array, shape)
    if array.shape != shape:
        words = "[out_capacity]" if len(shape) == 1 else f"[out_capacity, {shape[1]}]"
        raise InputError(f"{name} of shape {array.shape}: expected {words} = {list(shape)}")
    real = jnp.issubdtype(array.dtype, jnp.floating)
    if not real and not (scalar and jnp.issubdtype(array.dtype, jnp.integer)):
        kinds = "integers or floats" if scalar else "floats"
        raise InputError(f"{name} of {array.dtype}: expected {kinds}")
    rows = valid.reshape((-1,) + (1,) * (array.ndim - 1))
    return jnp.where(rows, array, jnp.zeros((), array.dtype))


def _check_tau(tau: float | None, size: Any) -> None:
    """Raise :class:`InputError` if ``tau`` is given and ``size`` is None or has no floats."""
    if tau is not None and (size is None or not jnp.issubdtype(size.dtype, jnp.floating)):
        got = "no size" if size is None else f"sizes of {size.dtype}"
        raise InputError(f"tau={tau} makes sizes soft, got {got}: give floats, or leave tau out")


def _strategy(algorithm: Request, mask: Any) -> str:
    """Return the strategy to run, ``grouped`` or ``masked``; ``algorithm`` is the user's request.

    ``masked`` is returned if there is a ``mask``, or if the request does not allow ``grouped``.
    Raise :class:`AlgorithmError` if the request does not allow ``masked`` either.
    """
    asked = admitted(algorithm, kind="dynamic", product="forward")
    able = ("grouped", "masked") if mask is None else ("masked",)
    for name in able:
        if name in asked.names:
            return name
    what = "voxels" if mask is None else "voxels with a mask"
    raise AlgorithmError(
        f"{asked.origin} admits {', '.join(asked.names)}: on {what} only "
        f"{' and '.join(map(repr, able))} can run"
    )


def _check_dtype(features: jax.Array, weight: jax.Array, factors: dict[str, Any]) -> None:
    """Raise :class:`InputError` if features and weight are integers and a factor is given.

    ``factors`` maps the names of arguments, such as ``mask``, to their values; None is not given.
    """
    given = [name for name, value in factors.items() if value is not None]
    if given and not jnp.issubdtype(common_dtype(features.dtype, weight.dtype), jnp.inexact):
        raise InputError(
            f"{', '.join(given)} with features of {features.dtype} and a weight of "
            f"{weight.dtype}: factors need floating-point operands; cast one of them"
        )


def _factors(
    kernel_map: KernelMap, size: Any, tau: float | None, mask: Any, wide: Any
) -> tuple[KernelMap, jax.Array]:
    """Return the kernel map to use, and the factor of each tap, ``[out_capacity, K]``.

    Without ``tau``, taps outside an output's ``size`` are removed from the map, and the factors are
    1. With ``tau``, the map stays as it is, and the factors are those of
    :func:`voxax.geometry.nested_sizes.soft_mask`. In both cases the factors are multiplied by
    ``mask``, if it is not None. ``wide`` is their dtype.
    """
    factors = jnp.ones((1, 1), wide) if mask is None else mask.astype(wide)
    if size is not None and tau is not None:
        factors = soft_mask(size, kernel_map.spec.offsets, tau).astype(wide) * factors
    within = kernel_map if size is None or tau is not None else kernel_map.within(size)
    return within, jnp.broadcast_to(factors, within.neighbors.shape)


def _shells(
    features: jax.Array,
    weight: jax.Array,
    kernel_map: KernelMap,
    size: jax.Array,
    tau: float,
    requests: dict[str, Any],
) -> jax.Array:
    """Return the convolution with soft sizes, ``[out_capacity, C_out]``.

    ``size float[out_capacity]`` are the sizes, and ``tau`` is the width of their ramp. The result
    is a sum of one convolution for each whole size. The convolution of a size runs over the taps
    that this size adds to the next smaller one, and is multiplied by the factor with which these
    taps fade in.
    ``requests`` are keyword arguments of :func:`voxax.products.convolve`.
    """
    offsets = np.asarray(kernel_map.spec.offsets)
    reach = reaching_size(offsets)
    total, dtype = None, None
    for number in np.unique(reach).tolist():
        taps = np.flatnonzero(reach == number)
        shell = kernel_map.of_taps(taps.tolist())
        fixed = jax.lax.stop_gradient(size)
        # The lower end of the ramp is included: its slope is not zero at that point.
        present = (fixed - number) / tau + 1 >= 0
        part = convolve(features, weight[taps], shell.restrict(present[:, None]), **requests)
        dtype = part.dtype
        wide = accumulator(dtype)
        part = part.astype(wide) * soft_mask(size, offsets[taps[:1]], tau).astype(wide)
        total = part if total is None else total + part
    assert total is not None
    return total.astype(dtype)


def _side_by_side(weights: jax.Array) -> jax.Array:
    """Reshape M weights ``[M, ..., C_out]`` to one weight ``[..., M * C_out]``.

    One convolution with it gives the results of all M weights, which :func:`_mixed` then mixes.
    """
    moved = jnp.moveaxis(weights, 0, -2)
    return moved.reshape(*moved.shape[:-2], moved.shape[-2] * moved.shape[-1])


def _mixed(features: jax.Array, mixture: jax.Array, groups: int) -> jax.Array:
    """Return the mixture of the results of M weights, ``[rows, G * C]``.

    ``features [rows, G * M * C]`` are the results for G ``groups`` of C channels. They are
    multiplied by ``mixture [rows, M]`` and summed over M.
    """
    rows, number = mixture.shape
    wide = accumulator(features.dtype)
    channels = features.shape[1] // (groups * number)
    parts = features.reshape(rows, groups, number, channels).astype(wide)
    shares = mixture.astype(wide)[:, None, :, None]
    return jnp.sum(parts * shares, axis=2).reshape(rows, -1).astype(features.dtype)


def _by_dilation(
    dilation: jax.Array, values: tuple[int, ...], first: KernelMap, map_of: Any, products: Any
) -> jax.Array:
    """Return the convolution with a dilation for each output, ``[out_capacity, C_out]``.

    ``dilation`` is ``[out_capacity]``, and its entries are among ``values``. The result is a sum of
    one convolution per value, restricted to the outputs with this dilation. ``first`` is the kernel
    map of the first value, ``map_of(value)`` builds the map of another value, and
    ``products(kernel_map)`` convolves. One map cannot hold all dilations: two outputs of different
    dilations can share an input and a tap, for which the map's transpose has only one entry.
    """
    valid = first.out_geometry.valid
    if dilation.shape != (first.out_capacity,):
        raise InputError(
            f"dilation of shape {dilation.shape}: expected [{first.out_capacity}], one for each "
            "output row"
        )
    known = jnp.any(dilation[:, None] == jnp.asarray(values, dilation.dtype)[None, :], axis=1)
    if not _compat.is_traced(known, valid) and not bool(jnp.all(known | ~valid)):
        other = int(dilation[jnp.argmax(~known & valid)])
        raise InputError(f"dilation {other} occurs, dilations={values} does not list it")
    total = None
    for number, value in enumerate(values):
        of = first if number == 0 else map_of(value)
        part = products(of.restrict((dilation == value)[:, None]))
        total = part if total is None else total + part
    assert total is not None
    if jnp.issubdtype(total.dtype, jnp.floating):
        lost = (~known & valid)[:, None]
        total = jnp.where(lost, jnp.full((), jnp.nan, total.dtype), total)
    return total
