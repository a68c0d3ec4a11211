"""Convolve a grid with a kernel size, dilation, weight or stride that depends on the input."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Float, Int, Int32, Num
from voxax.errors import AlgorithmError, InputError
from voxax.geometry import KernelSpec
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import accumulator, clip_integers, common_dtype
from voxax.geometry.kernel_spec import per_axis
from voxax.kernels.dynamic.grid import box_conv, output_grid
from voxax.kernels.kernel import Uniform
from voxax.kernels.rows import zeros
from voxax.nn.arguments import add_bias
from voxax.nn.dynamic.bank import bank_conv, frozen_bank, rounded, taps_by_size, within
from voxax.nn.dynamic.grid_taps import grid_axes, grid_spec, sampled_conv
from voxax.products.convolution import convolve_sized, largest_size, precision_name
from voxax.tuning import Request
from voxax.tuning.request import admitted


class DYNAMIC_CONV_ALGO_MODE(enum.StrEnum):
    """Names of the algorithms of :func:`dynamic_conv`; each member equals its string."""

    GROUPED = "grouped"
    MASKED = "masked"
    TILED = "tiled"
    SELECTED = "selected"
    SPECIALIZED = "specialized"
    AUTO = "auto"
    ALL = "all"


@checked_operator
def dynamic_conv(
    x: Float[Array, "B *spatial C"],
    weight: Float[Array, "*T C C_out"] | Mapping[int, Float[Array, "... C C_out"]],
    *,
    size: jax.Array | int | None = None,
    dilation: jax.Array | int | Sequence[int] | None = None,
    offsets: Num[Array, "B *outputs K D"] | None = None,
    mask: Num[Array, "B *outputs K"] | None = None,
    mixture: Float[Array, "B M"] | Float[Array, "B *outputs M"] | None = None,
    stride: int | Sequence[int] = 1,
    algorithm: Request = None,
    bias: Float[Array, " C_out"] | None = None,
    tau: float = 1.0,
    bank: int | Sequence[int] = 3,
    coarse_from: int | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> Float[Array, "B *outputs C_out"]:
    """Convolve a grid with a kernel size, dilation, taps or weights that differ between positions.

    ``y[u] = sum over k of m_k(u) W_k(u) x<stride u + dilation(u) o_k + offsets_k(u)>``, where x is
    zero outside of the grid, ``<...>`` interpolates, m is the mask, and ``o_k`` is the offset of
    tap k. The positions u form the grid ``ceil(spatial / stride)``. Size s covers the offsets
    ``-((s - 1) // 2)`` to ``s // 2`` along each axis, for every stride. A size below 1 has no taps;
    a size above the largest has all K taps. All shapes are static: changing sizes, offsets or masks
    does not trigger recompilation.

    Args:
      x: ``[B, *spatial, C]``, B scenes with D = 1 to 3 spatial axes, floating point.
      weight: ``[*T, C, C_out]``, where T is the largest kernel size, with K taps in all;
        ``[M, *T, C, C_out]`` with ``mixture``. Or a dictionary with one kernel for each size,
        ``{3: [3, 3, C, C_out], 5: [5, 5, C, C_out]}``. A size takes the kernel with the nearest
        number of taps, and the smaller one of two that are equally near. With one size per scene,
        only the kernel of that size runs (``jax.lax.switch``); under ``jax.vmap`` all kernels run,
        so pass a batch instead. With a size for each position all kernels run.
      size: kernel size of each output position ``[B, *outputs]``, of each scene ``[B]``, or of all.
        A Python integer, or None for all taps, gives an ordinary convolution. Integers are exact
        sizes. Floats may lie between sizes, where the taps of the next size fade in (see
        :func:`voxax.geometry.nested_sizes.soft_mask`), and have gradients.
      dilation: static integers, one or one per axis; or an array ``[B, *outputs]`` or
        ``[B, *outputs, D]``. A float array has a gradient; ``x`` is then interpolated. None is 1.
      offsets: ``[B, *outputs, K, D]``, added to the position of each tap, with taps in
        lexicographic order. Floats are interpolated linearly and have gradients. Integers need no
        interpolation.
      mask: ``[B, *outputs, K]``, a factor for each tap.
      mixture: factors of the M weights, ``[B, *outputs, M]``, or ``[B, M]`` for each scene.
      stride: static, an integer or one per axis.
      algorithm: the allowed algorithms, forward and backward: ``masked``, ``grouped``, ``tiled``,
        ``selected``, ``specialized``, a member of :class:`DYNAMIC_CONV_ALGO_MODE`, a list of these,
        or ``"auto"``, which lets the tuner measure. ``specialized`` runs only if no other one is
        allowed, for concrete sizes, and compiles one program per histogram of sizes. None follows
        the enclosing :func:`voxax.algorithms`, then the environment variable, else it is ``"auto"``
        (see docs/algorithms.md). ``"bank"`` approximates, see
        :func:`voxax.nn.functional.bank_error`. Array dilation, offsets, masks, and soft sizes with
        ``tau`` other than 1 only run as ``masked``.
      bias: ``[C_out]`` or None.
      tau: width, in sizes, of the ramp by which a tap fades in if sizes are floats.
      bank: the sizes of ``"bank"``, or their number. With a number, sizes are chosen so that there
        are no more multiplications than for the exact result.
      coarse_from: ``"bank"`` computes this size and larger ones on a grid of half the resolution
        (a hierarchical bank, for stride 1). None computes no size in this way.
      precision: None keeps the input's full precision (or follows
        ``jax.default_matmul_precision``).

    Returns:
      ``[B, *outputs, C_out]`` in the promoted dtype of ``x`` and ``weight``, accumulated in at
      least float32. The result is differentiable in x, weight and every float argument, to any
      order, in forward and reverse mode.

    Raises:
      InputError: shapes or dtypes differ from those above.
      AlgorithmError: the request is unknown, or none of the allowed algorithms can run this.

    Examples:
      >>> image, weight = jnp.ones((1, 8, 8, 3)), jnp.ones((3, 3, 3, 8))
      >>> size = jnp.full((1, 8, 8), 1).at[:, :, 4:].set(3)  # of the kernel at each pixel
      >>> functional.dynamic_conv(image, weight, size=size).shape
      (1, 8, 8, 8)
    """
    if isinstance(weight, Mapping):
        given = {"offsets": offsets, "mask": mask, "mixture": mixture, "coarse_from": coarse_from}
        if algorithm == "bank" or any(value is not None for value in given.values()):
            raise InputError(
                "a weight for each size takes size, dilation, stride, algorithm, bias and "
                "precision; offsets, mask, mixture, coarse_from and algorithm='bank' need one "
                "weight"
            )
        y = _own_kernels(x, weight, size, stride, dilation, algorithm, precision)
        return add_bias(y, bias)
    taps = check_operands(x, weight, mixture)
    # The dilation is static for all positions, or an array with a value for each position.
    is_array = isinstance(dilation, jax.Array | np.ndarray) and dilation.ndim > 1
    spacing: Any = dilation if is_array else None
    rate: Any = 1 if is_array or dilation is None else dilation
    spec = grid_spec(x, taps, stride, rate)
    outputs = output_grid(x.shape[:-1], spec.stride)
    is_sampled = any(a is not None for a in (spacing, offsets, mask))
    uniform: Uniform = "scenes" if np.ndim(0 if size is None else size) < 2 else ""
    is_static = size is None or (isinstance(size, int | np.integer) and int(size) >= 1)
    if is_static and not (is_sampled or algorithm == "bank"):
        # An ordinary convolution with the taps of that size.
        box = within(taps, size)
        weight = weight[(*(slice(None),) * (weight.ndim - len(taps) - 2), *box)]
        taps = tuple(side.stop - side.start for side in box)
        spec, size, uniform = grid_spec(x, taps, stride, rate), None, "all"
    sizes = expand_size(size, outputs, taps)
    soft = jnp.issubdtype(sizes.dtype, jnp.floating)
    is_sampled = is_sampled or (soft and tau != 1)

    def run(x: jax.Array, weight: jax.Array, sizes: jax.Array) -> jax.Array:
        if is_sampled:
            _only_masked(algorithm)
            return sampled_conv(
                x, weight, spec, sizes, spacing, offsets, mask, tau=tau, precision=precision
            )
        options = {"uniform": uniform, "algorithm": algorithm, "precision": precision}
        if algorithm == "bank":
            if soft:
                raise InputError("algorithm='bank' rounds to whole sizes: give integers")
            options = {"uniform": uniform, "precision": precision}
            return bank_conv(x, weight, sizes, spec, bank=bank, coarse_from=coarse_from, **options)
        if not soft:
            return convolve_sized(x, weight, sizes, spec, **options)
        return _between(x, weight, sizes, spec, options)

    if mixture is None:
        y = run(x, flat(weight, taps), sizes)
    else:
        whole = is_sampled or algorithm == "bank"
        y = _mixed(run, x, weight, sizes, mixture, taps, outputs, whole, precision)
    return add_bias(y, bias)


@checked_operator
def bank_error(
    x: Float[Array, "B *spatial C"],
    weight: Float[Array, "*T C C_out"],
    *,
    size: jax.Array,
    dilation: int | Sequence[int] = 1,
    stride: int | Sequence[int] = 1,
    bank: int | Sequence[int] = 3,
    coarse_from: int | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> BankError:
    """Measure the error of ``dynamic_conv(..., algorithm="bank")`` against the exact result.

    Args:
      x, weight, size, dilation, stride, bank, coarse_from, precision: as for :func:`dynamic_conv`;
        sizes are integers.

    Returns:
      :class:`BankError`: the sizes of the bank, the fraction of positions whose size changed, and
      the relative error.

    Raises:
      InputError: as in :func:`dynamic_conv`.
    """
    taps = check_operands(x, weight, None)
    spec = grid_spec(x, taps, stride, dilation)
    sizes = expand_size(size, output_grid(x.shape[:-1], spec.stride), taps)
    if not jnp.issubdtype(sizes.dtype, jnp.integer):
        raise InputError(f"sizes of {sizes.dtype}: a bank rounds to whole sizes: give integers")
    kernel = flat(weight, taps)
    exact = convolve_sized(x, kernel, sizes, spec, precision=precision)
    fixed = bank_conv(
        x, kernel, sizes, spec, bank=bank, coarse_from=coarse_from, precision=precision
    )
    chosen, mine = rounded(sizes, spec, frozen_bank(bank))
    sizes = jnp.clip(sizes, 0, len(taps_by_size(spec)) - 1)
    wide = accumulator(exact.dtype)
    difference = (fixed.astype(wide) - exact.astype(wide)) ** 2
    scale = jnp.maximum(jnp.mean(exact.astype(wide) ** 2), jnp.finfo(wide).tiny)
    return BankError(
        jnp.stack(chosen),
        jnp.mean((mine != sizes).astype(jnp.float32)),
        jnp.sqrt(jnp.mean(difference) / scale),
    )


def _between(
    x: jax.Array, weight: jax.Array, sizes: jax.Array, spec: KernelSpec, options: dict[str, Any]
) -> jax.Array:
    """Return the convolution with float ``sizes [B, *outputs]``, ``[B, *outputs, C_out]``.

    It interpolates linearly between the results of the whole sizes below and above each float size.
    This is the case ``tau=1`` of :func:`dynamic_conv`. ``weight`` is ``[K, C, C_out]``, and
    ``options`` are keyword arguments of :func:`voxax.products.convolution.convolve_sized`.
    """
    # Outside the range of sizes both results are equal, and the size has no gradient.
    sizes = jnp.clip(sizes, -1, len(taps_by_size(spec)))
    below = jax.lax.stop_gradient(jnp.floor(sizes))
    part = (sizes - below)[..., None]
    whole = below.astype(jnp.int32)
    lower = convolve_sized(x, weight, whole, spec, **options)
    upper = convolve_sized(x, weight, whole + 1, spec, **options)
    wide = accumulator(lower.dtype)
    part = part.astype(wide)
    return (lower.astype(wide) * (1 - part) + upper.astype(wide) * part).astype(lower.dtype)


def _own_kernels(
    x: jax.Array,
    weights: Mapping[int, jax.Array],
    size: Any,
    stride: int | Sequence[int],
    dilation: Any,
    algorithm: Request,
    precision: jax.lax.PrecisionLike,
) -> jax.Array:
    """Return the convolution of ``x`` in which each kernel size has a separate kernel.

    ``weights`` maps a size to its kernel. ``size`` is one number, one for each scene, or one for
    each position. A size that is not in ``weights`` takes the kernel with the nearest number of
    taps; the smaller one of two that are equally near. Other arguments as in :func:`dynamic_conv`.
    """
    ndim = grid_axes(x)
    if not all(isinstance(own, int | np.integer) for own in weights):
        raise InputError(f"weights of the sizes {list(weights)}: give integers as keys")
    bank = sorted(weights)
    if not bank or size is None:
        raise InputError(
            f"weights of the sizes {bank} and size={size}: give a weight for one size at least, "
            "and the size of all, of each scene, or of each position"
        )
    for own in bank:
        taps = check_operands(x, weights[own], None)
        if taps != (own,) * ndim or weights[own].shape[-1] != weights[bank[0]].shape[-1]:
            raise InputError(
                f"the weight of size {own} has shape {weights[own].shape}: expected "
                f"{[*(own,) * ndim, x.shape[-1], weights[bank[0]].shape[-1]]}"
            )
    rate = 1 if dilation is None else dilation
    if np.ndim(rate) > 1:
        raise InputError("a weight for each size takes a static dilation: an integer, or one each")
    dtype = jnp.result_type(x.dtype, *(w.dtype for w in weights.values()))
    options: dict[str, Any] = {"algorithm": algorithm, "precision": precision}

    def kernel(own: int) -> Callable[[jax.Array, list[jax.Array]], jax.Array]:
        def run(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
            taps = (own,) * ndim
            spec = grid_spec(x, taps, stride, rate)
            sizes = expand_size(None, output_grid(x.shape[:-1], spec.stride), taps)
            w = flat(weights[bank.index(own)], taps)
            return convolve_sized(x, w, sizes, spec, uniform="all", **options).astype(dtype)

        return run

    kernels, arrays = [kernel(own) for own in bank], [weights[own] for own in bank]
    counts = np.array(bank, np.float64) ** ndim
    every = np.abs(np.arange(bank[-1] + 1, dtype=np.float64)[:, None] ** ndim - counts).argmin(1)
    if isinstance(size, int | np.integer):
        return kernels[every[min(max(int(size), 0), bank[-1])]](x, arrays)
    size = size if isinstance(size, np.ndarray) else jnp.asarray(size)
    if not jnp.issubdtype(size.dtype, jnp.integer):
        raise InputError(f"sizes of {size.dtype} with a weight for each size: give integers")
    known = not _compat.is_traced(size) and getattr(size, "is_fully_addressable", True)
    if known and size.shape in ((), x.shape[:1]) and len(x):
        # This needs no switch, which every eager call would compile again.
        chosen = every[np.clip(np.asarray(size, np.float64), 0, bank[-1]).astype(np.int64)]
        if (chosen == chosen.flat[0]).all():
            return kernels[chosen.flat[0]](x, arrays)
        return jnp.concatenate([kernels[k](x[i : i + 1], arrays) for i, k in enumerate(chosen)])
    size = jnp.asarray(size)
    which = jnp.asarray(every, jnp.int32)[jnp.clip(size, 0, bank[-1])]
    if size.ndim == 0:
        return jax.lax.switch(which, kernels, x, arrays)
    if size.shape == x.shape[:1]:
        if len(size) == 1:
            return jax.lax.switch(which[0], kernels, x, arrays)

        def scene(part: tuple[jax.Array, jax.Array]) -> jax.Array:
            return jax.lax.switch(part[0], kernels, part[1][None], arrays)[0]

        return jax.lax.map(scene, (which, x))
    outputs = output_grid(x.shape[:-1], grid_spec(x, 1, stride, rate).stride)
    which = expand_size(which, outputs, (len(bank),))[..., None]
    total = kernels[0](x, arrays)
    for index, run in enumerate(kernels[1:], 1):
        total = jnp.where(which == index, run(x, arrays), total)
    return total


def _mixed(run, x, weight, sizes, mixture, taps, outputs, whole, precision) -> jax.Array:
    """Return the convolution with a mixture of M weights, ``[*outputs, C_out]``.

    ``weight`` is ``[M, *T, C, C_out]``, where ``taps`` is T, the largest kernel size along each
    axis. ``mixture`` is ``[B, M]`` to mix per scene, or ``[*outputs, M]`` to mix per position;
    ``outputs`` is ``(B, ...)`` with the extents of the output grid. ``run(x, w, sizes)`` is a
    function that convolves with one weight ``[K, C, C_out]`` and the kernel size of each position,
    ``sizes``. ``whole`` is True if ``run`` must get all scenes in one call. ``precision`` is for
    mixing weights.
    """
    count, c_out = weight.shape[0], weight.shape[-1]
    if mixture.shape not in ((outputs[0], count), (*outputs, count)):
        raise InputError(
            f"mixture of shape {mixture.shape}: expected {[*outputs, count]} or, for each scene, "
            f"{[outputs[0], count]}"
        )
    mixture = mixture.astype(common_dtype(x.dtype, weight.dtype))
    if mixture.shape == (outputs[0], count) and not whole:
        # One mixture per scene: mix the weights, then run one convolution per scene.
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
    """Reshape ``weight [*T, C, C_out]`` to ``[K, C, C_out]``, where ``taps`` is T."""
    return weight.reshape(int(np.prod(taps)), *weight.shape[-2:])


def _only_masked(algorithm: Request) -> None:
    origin, names = "algorithm", ("bank",)
    if algorithm != "bank":
        asked = admitted(algorithm, kind="dynamic", product="forward")
        origin, names = asked.origin, asked.names
    if "masked" not in names:
        raise AlgorithmError(
            f"{origin} admits {', '.join(names)}: with array dilation, offsets, a mask, or soft "
            "sizes whose tau is not 1, every tap is fetched for every position: only 'masked' does "
            "that"
        )


def check_operands(x: jax.Array, weight: jax.Array, mixture: jax.Array | None) -> tuple[int, ...]:
    """Check the operands of a dynamic convolution; return the weight's kernel size T per axis.

    ``x`` is ``[B, *spatial, C]`` and ``weight`` is ``[*T, C, C_out]``. With ``mixture [..., M]``
    the weight is ``[M, *T, C, C_out]``.

    Raises:
      InputError: shapes or dtypes do not match.
    """
    ndim = grid_axes(x)
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
    """Broadcast ``size`` to the shape ``outputs``, as integers or floats; None takes all taps.

    ``outputs`` is ``(B, ...)`` with the extents of the output grid. ``size`` has this shape, or
    ``[B]``, or ``[]``. ``taps`` is the largest kernel size along each axis.

    Raises:
      InputError: ``size`` has another shape, or is neither integer nor float.
    """
    if size is None:
        size = largest_size(taps)
    if isinstance(size, np.ndarray) and size.shape == outputs and size.dtype.kind in "iu":
        # Under a trace, an array of JAX would be traced, and its values no longer known.
        known: Any = np.clip(size, 0, largest_size(taps)).astype(np.int32)
        return known
    size = clip_integers(size)
    if not jnp.issubdtype(size.dtype, jnp.integer) and not jnp.issubdtype(size.dtype, jnp.floating):
        raise InputError(f"sizes of {size.dtype}: give integers, or floats for a gradient")
    if size.ndim == 0:
        # The barrier keeps XLA from spending seconds of compilation on folding a large constant.
        return jnp.broadcast_to(jax.lax.optimization_barrier(size), outputs)
    if size.shape == outputs[:1]:
        return jnp.broadcast_to(size.reshape(-1, *(1,) * (len(outputs) - 1)), outputs)
    if size.shape != outputs:
        raise InputError(
            f"size of shape {size.shape}: expected one, [{outputs[0]}], or {list(outputs)}, the "
            "output positions"
        )
    return size


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BankError:
    """The error of ``algorithm="bank"``; result of :func:`bank_error`.

    Attributes:
      sizes: ``int32[n]``, the sizes of the bank.
      moved: fraction of the positions whose size is not in the bank, ``float32[]``.
      relative: root mean square of the difference, divided by that of the exact result; a scalar.
    """

    sizes: jax.Array
    moved: jax.Array
    relative: jax.Array


@checked_operator
def choose_size(
    scores: Float[Array, "B sizes"], sizes: Sequence[int], *, fallback: int
) -> tuple[Int32[Array, " B"], Float[Array, " B"]]:
    """Return each scene's size with the best score, and a gate that gives the scores a gradient.

    Pass the size to ``dynamic_conv(..., size=, algorithm="selected")``, which runs the compiled
    kernel of that size, and multiply its result by the gate. The gate has the value 1 and the
    gradient of the probability of the chosen size (straight-through estimator; Bengio et al.,
    "Estimating or propagating gradients through stochastic neurons", 2013).

    Args:
      scores: ``float[B, len(sizes)]``, the score of each size, for each of B scenes.
      sizes: the sizes to choose from.
      fallback: the size for scenes with a score that is not finite. Their gate has no gradient.

    Returns:
      The sizes ``int32[B]`` and the gates ``float[B]``.

    Raises:
      InputError: ``scores`` have another shape, or a size is no integer.
    """
    if not len(sizes) or not all(isinstance(size, int | np.integer) for size in (*sizes, fallback)):
        raise InputError(f"sizes={sizes}, fallback={fallback}: give integers, 1 size or more")
    if scores.ndim != 2 or scores.shape[1] != len(sizes):
        raise InputError(f"scores of shape {scores.shape}: expected [B, {len(sizes)}], one a size")
    known = jnp.all(jnp.isfinite(scores), axis=1)
    clean = jnp.where(known[:, None], scores, 0)
    best = jnp.argmax(clean, axis=1)
    size = jnp.where(known, jnp.asarray(sizes, jnp.int32)[best], fallback).astype(jnp.int32)
    chance = jnp.take_along_axis(jax.nn.softmax(clean, axis=1), best[:, None], axis=1)[:, 0]
    gate = 1 + (chance - jax.lax.stop_gradient(chance))
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
    """Convolve each scene of a batch with a stride that an array selects at run time.

    Each of ``strides`` is one compiled convolution. Scenes run one after the other, each with the
    convolution of its stride (``jax.lax.switch``; under ``jax.vmap`` all would run). A scene of
    stride s fills the first ``ceil(spatial / s)`` outputs of each axis; other outputs are zero.
    :func:`voxax.nn.functional.choose_size` turns learned scores into strides and a gate that gives
    the scores a gradient.

    Args:
      x: ``[B, *spatial, C]``, B scenes with D = 1 to 3 spatial axes, floating point.
      weight: ``[*T, C, C_out]``, with kernel size T.
      stride: ``int[B]``, the stride of each scene, for all axes.
      strides: the values that may occur, static and distinct. Another value raises an error. Under
        a trace, it gives a scene of NaN whose number of outputs is 0.
      dilation: static, an integer or one per axis.
      bias: ``[C_out]`` or None, added only to the outputs of a scene.
      precision: None keeps the input's full precision (or follows
        ``jax.default_matmul_precision``).

    Returns:
      ``[B, *ceil(spatial / min(strides)), C_out]`` in the promoted dtype of ``x`` and ``weight``,
      and the number of outputs of each scene along each axis, ``int32[B, D]``. The result is
      differentiable in x, weight and bias to any order.

    Raises:
      InputError: shapes or dtypes differ from those above, or a stride is not in ``strides``.
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

    # The last branch is for strides that are not listed.
    shape = (*largest, weight.shape[-1])
    branches = [branch(step) for step in values]
    branches.append(lambda x: jnp.nan + zeros(shape, dtype, x))
    which = jnp.where(known, jnp.argmax(is_this, axis=1), len(values))
    y = jax.lax.map(
        lambda part: jax.lax.switch(part[0], branches, part[1]), (which, x.astype(dtype))
    )
    counts = [[-(-n // step) for n in spatial] for step in values] + [[0] * len(spatial)]
    return y, jnp.asarray(np.asarray(counts), jnp.int32)[which]
