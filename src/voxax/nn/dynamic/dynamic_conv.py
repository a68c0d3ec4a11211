"""Convolve a grid with a kernel that depends on the position and the input.

``algorithm="bank"`` rounds every size to one of a few. Positions take the nearest size of the bank,
so the result is not exact unless all sizes are in it. Large sizes can be computed on a grid of half
the resolution.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Float, Num
from voxax.errors import AlgorithmError, InputError
from voxax.geometry import KernelSpec
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import accumulator, common_dtype
from voxax.geometry.nested_sizes import reaching_size, taps_within
from voxax.hardware import target_platform
from voxax.kernels.dynamic.grid import box_conv, output_grid
from voxax.kernels.kernel import Uniform
from voxax.nn.arguments import add_bias
from voxax.nn.dynamic.grid_taps import grid_axes, grid_spec, sampled_conv
from voxax.products.convolution import convolve_sized, largest_size, precision_name, sized_spec
from voxax.tuning import Request
from voxax.tuning.request import admitted


class DYNAMIC_CONV_ALGO_MODE(enum.StrEnum):
    """Requests for the three products, for users who pin by enum; each is its string."""

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
    """Convolve with a kernel size, dilation, taps or weights that each position chooses.

    ``y[u] = sum over k of m_k(u) W_k(u) x<stride u + dilation(u) o_k + offsets_k(u)>``, zero
    outside of the grid. Positions u are those of ``ceil(spatial / stride)``. Size s covers the
    offsets ``-((s - 1) // 2)`` to ``s // 2`` along each axis, whatever the stride; below 1 it has
    no tap, above the weight's it has all. All shapes are static: other sizes, offsets or masks
    do not trigger recompilation.

    Args:
      x: ``[B, *spatial, C]``, 1 to 3 spatial axes, floating point.
      weight: ``[*T, C, C_out]`` with the largest kernel T; ``[M, *T, C, C_out]`` with ``mixture``.
        Or a kernel of its own for each size, ``{3: [3, 3, C, C_out], 5: [5, 5, C, C_out]}``: sizes
        take the one that is nearest in taps, of two the smaller. A scene of one size runs its
        kernel alone (``jax.lax.switch``; under ``jax.vmap`` all would run: give a batch); with
        a size for each position all run.
      size: kernel size of each output position, ``[B, *outputs]``, of each scene ``[B]``, or one; a
        Python integer, or None for all taps, makes it an ordinary convolution. Integers are exact
        sizes. Floats lie between sizes, where the taps of the next one fade in,
        :func:`voxax.geometry.nested_sizes.soft_mask`: they have gradients.
      dilation: integers, or one per axis, static; or an array ``[B, *outputs]`` or
        ``[B, *outputs, D]``: integers, or floats, which have gradients and are interpolated.
      offsets: ``[B, *outputs, K, D]``, added to each tap's place (K in lexicographic order): floats
        are interpolated linearly and have gradients; integers are fetched.
      mask: ``[B, *outputs, K]``, multiplies each tap.
      mixture: of M weights, ``[B, *outputs, M]`` or, of each scene, ``[B, M]``.
      stride: static, an integer or one per axis.
      algorithm: which strategies may be used, forward and backward: ``masked``, ``grouped``,
        ``tiled``, ``selected``, ``specialized`` (alone, with concrete sizes: one program for each
        histogram), a member of :class:`DYNAMIC_CONV_ALGO_MODE`, a list of these, or ``"auto"``,
        with which the tuner measures; None leaves it to :func:`voxax.algorithms` and the
        environment, and is ``"auto"`` where these say nothing. ``"bank"`` approximates, see
        :func:`voxax.nn.functional.bank_error`. Array dilation, offsets, masks, and soft sizes with
        another ``tau`` than 1 run as ``masked`` only.
      bias: ``[C_out]`` or None.
      tau: width of the soft ramp, in sizes.
      bank: sizes of ``"bank"``, or how many, chosen so that there is no more to multiply than
        for the exact result.
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
    # Static for all positions, or an array with that of each.
    is_array = isinstance(dilation, jax.Array | np.ndarray) and dilation.ndim > 1
    spacing = jnp.asarray(dilation) if is_array else None
    rate: Any = 1 if is_array or dilation is None else dilation
    spec = grid_spec(x, taps, stride, rate)
    outputs = output_grid(x.shape[:-1], spec.stride)
    is_sampled = any(a is not None for a in (spacing, offsets, mask))
    uniform: Uniform = "scenes" if np.ndim(0 if size is None else size) < 2 else ""
    if _is_static(size) and not (is_sampled or algorithm == "bank"):
        # An ordinary convolution with the taps of that size.
        box = _within(taps, size)
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
    """Compute both the bank's result and the exact one, and compare them.

    Args:
      x, weight, size, dilation, stride, bank, coarse_from, precision: as for :func:`dynamic_conv`;
        sizes are integers.

    Returns:
      The bank's sizes, the part of the positions that got another size, the relative error.

    Raises:
      InputError: as :func:`dynamic_conv`.
    """
    taps = check_operands(x, weight, None)
    spec = grid_spec(x, taps, stride, dilation)
    sizes = expand_size(size, output_grid(x.shape[:-1], spec.stride), taps)
    kernel = flat(weight, taps)
    exact = convolve_sized(x, kernel, sizes, spec, precision=precision)
    fixed = bank_conv(
        x, kernel, sizes, spec, bank=bank, coarse_from=coarse_from, precision=precision
    )
    chosen, mine = _rounded(sizes, spec, frozen_bank(bank))
    sizes = jnp.clip(sizes, 0, len(_taps_by_size(spec)) - 1)
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


def _is_static(size: Any) -> bool:
    """Return whether the size is the same for all positions, and known to the program."""
    return size is None or (isinstance(size, int | np.integer) and int(size) >= 1)


def _within(taps: tuple[int, ...], size: Any) -> tuple[slice, ...]:
    """Return the taps of a size along each axis of a kernel."""
    sides = [n if size is None else min(n, int(size)) for n in taps]
    first = [(n - 1) // 2 - (side - 1) // 2 for n, side in zip(taps, sides, strict=True)]
    return tuple(slice(low, low + side) for low, side in zip(first, sides, strict=True))


def _own_kernels(
    x: jax.Array,
    weights: Mapping[int, jax.Array],
    size: Any,
    stride: int | Sequence[int],
    dilation: Any,
    algorithm: Request,
    precision: jax.lax.PrecisionLike,
) -> jax.Array:
    """Convolve each scene, or each position, with the kernel whose size is nearest."""
    ndim, bank = grid_axes(x), sorted(weights)
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
        # No switch, which eager calls would compile each time.
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
    """Convolve with kernels mixed from several weights, for each scene or each position."""
    count, c_out = weight.shape[0], weight.shape[-1]
    if mixture.shape not in ((outputs[0], count), (*outputs, count)):
        raise InputError(
            f"mixture of shape {mixture.shape}: expected {[*outputs, count]} or, for each scene, "
            f"{[outputs[0], count]}"
        )
    mixture = mixture.astype(common_dtype(x.dtype, weight.dtype))
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
    """Check the operands and return the shape of the largest kernel.

    Raises:
      InputError: shapes or dtypes that do not fit together.
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
        # Wider integers would wrap around. Others are not clipped: a trace would make of concrete
        # sizes traced ones.
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


@dataclasses.dataclass(frozen=True)
class BankError:
    """The difference between the result of a bank and the exact one.

    Attributes:
      sizes: ``int32[n]``, the bank's.
      moved: part of the positions whose size is not in the bank.
      relative: root mean square of the difference over that of the exact result.
    """

    sizes: jax.Array
    moved: jax.Array
    relative: jax.Array


jax.tree_util.register_dataclass(BankError)


def bank_conv(
    x: jax.Array,
    weight: jax.Array,
    sizes: jax.Array,
    spec: KernelSpec,
    *,
    bank: int | Sequence[int] = 3,
    coarse_from: int | None = None,
    uniform: Uniform = "",
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Convolve with the nearest sizes of a bank: the exact result of these sizes.

    Approximate unless all sizes are in the bank. ``dynamic_conv(..., algorithm="bank")`` comes
    here; :func:`voxax.nn.functional.bank_error` says what it changes.

    Args:
      x: ``[B, *spatial, C]``.
      weight: ``[K, C, C_out]``, a whole box of taps.
      sizes: ``int32[B, *outputs]``.
      spec: the relation.
      bank: the sizes; or how many, chosen from the histogram of ``sizes`` while running: those
        that move the fewest taps, of those that together have no more taps than ``sizes``.
      coarse_from: sizes from here on are computed on a grid of half the resolution, a hierarchical
        bank: cells of two positions along each axis hold their mean, and every position of a cell
        gets the cell's result, with the kernel averaged over where in the cell it is centered.
        With D axes that is about ``4**-D`` of the arithmetic. Exact where features are constant.
        None: none is.
      uniform: what is known of ``sizes``, as for :func:`voxax.products.convolution.convolve_sized`.
      precision: as for :func:`voxax.nn.functional.dynamic_conv`.

    Returns:
      ``[B, *outputs, C_out]``.

    Raises:
      InputError: the taps are no box with equal sides, a bank that is empty or has sizes that the
        weight lacks, ``coarse_from`` with another stride than 1.
    """
    kept, exactly = frozen_bank(bank), precision_name(precision)
    every = _banks(spec, kept)
    chosen, mine = _rounded(sizes, spec, kept)
    # A size of the bank is an integer, or an array where it is chosen while running.
    entries = every[0] if len(every) == 1 else chosen
    largest = [max(sizes[i] for sizes in every) for i in range(len(entries))]
    dtype = common_dtype(x.dtype, weight.dtype)
    x, weight = x.astype(dtype), weight.astype(dtype)
    fine, near = largest[-1] + 1, mine
    if coarse_from is not None:
        if any(step != 1 for step in spec.stride):
            raise InputError(f"coarse_from with stride {spec.stride}: cells of two need stride 1")
        fine = min(fine, max(1, coarse_from))
        near = jnp.where(mine < fine, mine, 0)
    if every[0][0] < fine:
        # No tap is listed that none of the fine sizes has.
        top = min(fine - 1, largest[-1])
        box = weight.reshape(*(len(_taps_by_size(spec)) - 1,) * spec.ndim, *weight.shape[1:])
        part = box[_within(box.shape[: spec.ndim], top)].reshape(-1, *weight.shape[1:])
        of_part = sized_spec((top,) * spec.ndim, spec.stride, spec.dilation)
        total = _of_bank(x, part, near, of_part, entries, uniform, exactly)
    else:
        total = jnp.zeros((*mine.shape, weight.shape[-1]), dtype)
    for size, most in zip(entries, largest, strict=True):
        if most < fine:
            continue
        side = int(_cell_sides(spec)[most])
        here, cells, kernel, reach, reaches = _on_cells(
            x, weight, jnp.where(near > 0, 0, mine), size, spec, side, exactly
        )
        of_cells = sized_spec((side,) * spec.ndim, (1,) * spec.ndim, (1,) * spec.ndim)
        y = _of_bank(cells, kernel, reaches, of_cells, [reach], uniform, exactly)
        total = _from_cells(total, y, here)
    return total


def frozen_bank(bank: int | Sequence[int]) -> int | tuple[int, ...]:
    """Return the sizes of a bank, ascending, or how many; hashable."""
    given: Any = bank
    if np.ndim(given):
        return tuple(sorted(operator.index(size) for size in given))
    return operator.index(given)


def _of_bank(
    x: jax.Array,
    w: jax.Array,
    sizes: jax.Array,
    spec: KernelSpec,
    bank: Sequence[int | jax.Array],
    uniform: Uniform,
    precision: str,
) -> jax.Array:
    """Convolve with sizes that are 0 or in the bank.

    On CPUs and TPUs the strategies of arbitrary sizes are the fastest for these too: on 2 cores of
    an AMD EPYC, 128x128 positions and 64 channels, a convolution for each of 3 sizes took 3 times
    as long as ``grouped``, and by the schedules of TPUs 2 times as long as ``tiled``.
    """
    if target_platform() in ("cpu", "tpu"):
        return convolve_sized(x, w, sizes, spec, uniform=uniform, precision=precision)
    return by_convolutions(x, w, sizes, spec, bank, precision)


def by_convolutions(
    x: jax.Array,
    w: jax.Array,
    sizes: jax.Array,
    spec: KernelSpec,
    bank: Sequence[int | jax.Array],
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Run an ordinary convolution for each size of a bank; every position takes its own.

    Args:
      x, w, spec, precision: as for :func:`bank_conv`.
      sizes: ``int32[B, *outputs]``, 0 or in the bank.
      bank: sizes, those that the weight lacks are passed over; one that is an array is a branch
        of ``jax.lax.switch``, of which ``jax.vmap`` runs all.

    Returns:
      ``[B, *outputs, C_out]``.
    """
    kernels = [
        lambda x, w, size=size: _one_size(x, w, spec, size, precision)
        for size in range(len(_taps_by_size(spec)))
    ]
    outputs = output_grid(x.shape[:-1], spec.stride)
    total = jnp.zeros((*outputs, w.shape[-1]), x.dtype)
    for size in bank:
        if not isinstance(size, int):
            size = jnp.where(size < len(kernels), size, 0)
            y = jax.lax.switch(size, kernels, x, w)
        elif size < len(kernels):
            y = kernels[size](x, w)
        else:
            continue
        total = jnp.where(((sizes == size) & (sizes > 0))[..., None], y, total)
    return total


@functools.lru_cache(maxsize=1024)  # asked in every eager call
def _banks(spec: KernelSpec, bank: int | tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the banks to choose from, sizes ascending; one where the sizes are given.

    Raises:
      InputError: an empty bank, or a size that the weight does not have.
    """
    largest = len(_taps_by_size(spec)) - 1
    if isinstance(bank, int):
        number = min(bank, largest)
        if number < 1:
            raise InputError(f"bank={bank}: a bank needs 1 size or more")
        return tuple(itertools.combinations(range(1, largest + 1), number))
    if not bank or not all(1 <= size <= largest for size in bank):
        raise InputError(f"bank={list(bank)}: the weight has sizes 1 to {largest}")
    return (bank,)


# One program also for eager calls, as what follows.
@functools.partial(jax.jit, static_argnames=("spec", "bank"))
def _rounded(
    sizes: jax.Array, spec: KernelSpec, bank: int | tuple[int, ...]
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """Return the sizes of the bank, ascending, and each position's nearest; 0 has no tap."""
    counts, every = np.asarray(_taps_by_size(spec)), _banks(spec, bank)
    sizes = jnp.clip(sizes, 0, len(counts) - 1)
    # The nearest in taps; of two, the smaller.
    gaps = np.array([np.abs(counts[:, None] - counts[list(chosen)][None]) for chosen in every])
    nearest = np.array([np.asarray(c)[g.argmin(1)] for c, g in zip(every, gaps, strict=True)])
    nearest[:, 0] = 0  # size 0 has no tap, and no kernel
    banks, tables = jnp.asarray(every, jnp.int32), jnp.asarray(nearest, jnp.int32)
    if len(every) == 1:
        return tuple(banks[0]), tables[0][sizes]
    costs = gaps.min(2)
    costs[:, 0] = 0
    histogram = jnp.zeros(len(counts), jnp.float32).at[sizes.reshape(-1)].add(1.0)
    moved = jnp.asarray(costs, jnp.float32) @ histogram
    # An approximation has no more to multiply than the exact result. The sums are rounded.
    more = jnp.asarray(counts[nearest] - counts, jnp.float32) @ histogram > 1e-5 * moved
    best = jnp.argmin(jnp.where(more, jnp.inf, moved))
    return tuple(banks[best]), tables[best][sizes]


def _taps_by_size(spec: KernelSpec) -> list[int]:
    """Return the number of taps of each size.

    Raises:
      InputError: the taps are no box with equal sides.
    """
    counts = [int(n) for n in taps_within(np.asarray(spec.offsets))]
    if counts[-1] != (len(counts) - 1) ** spec.ndim:
        raise InputError(f"a bank has kernels with equal sides: the weight's taps are {spec}")
    return counts


def _one_size(
    x: jax.Array, w: jax.Array, spec: KernelSpec, size: int, precision: jax.lax.PrecisionLike
) -> jax.Array:
    """Convolve with one size everywhere."""
    if not size:
        outputs = output_grid(x.shape[:-1], spec.stride)
        return jnp.zeros((*outputs, w.shape[-1]), x.dtype)
    taps = np.flatnonzero(reaching_size(np.asarray(spec.offsets)) <= size)
    box = w[taps].reshape(*(size,) * spec.ndim, *w.shape[1:])
    return box_conv(x, box, spec.stride, spec.dilation, precision=precision_name(precision))


@functools.partial(jax.jit, static_argnames=("spec", "side", "precision"))
def _on_cells(
    x: jax.Array,
    w: jax.Array,
    far: jax.Array,
    size: Any,
    spec: KernelSpec,
    side: int,
    precision: str,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return what computes one size on cells of two positions along each axis.

    Args:
      x: ``[B, *spatial, C]``.
      w: ``[K, C, C_out]``, a whole box of taps.
      far: ``int32[B, *spatial]``, the sizes that are computed on cells, else 0.
      size: ``int32[]``, 1 or more.
      spec: the relation, of stride 1.
      side: of the kernel on cells.
      precision: as for :func:`voxax.nn.functional.dynamic_conv`.

    Returns:
      The positions of this size ``bool[B, *spatial]``, the cells ``[B, *cells, C]``, the kernel
      ``[side**D, C, C_out]``, the size on cells, 0 if no cell needs it, and that of each cell
      ``int32[B, *cells]``, 0 where none of its positions has this size.
    """
    largest, wide = len(_taps_by_size(spec)) - 1, accumulator(w.dtype)
    # Taps beyond the size are not read.
    within = jnp.asarray(reaching_size(np.asarray(spec.offsets))) <= size
    kernel = jnp.where(within[:, None, None], w, jnp.zeros((), w.dtype)).astype(wide)
    kernel = kernel.reshape(*(largest,) * spec.ndim, *w.shape[1:])
    here = far == size
    cells, inside = x.astype(wide), here
    for axis, dilation in enumerate(spec.dilation):
        shares = jnp.asarray(_shares(largest, dilation, side), wide)[size]
        kernel = jnp.tensordot(shares, kernel, (1, axis), precision=precision)
        kernel = jnp.moveaxis(kernel, 0, axis)
        cells, inside = _halved(cells, axis + 1), _halved(inside, axis + 1)
        cells, inside = cells.mean(axis + 2), inside.any(axis + 2)
    reach = jnp.asarray(_cell_sides(spec), jnp.int32)[size]
    kernel = kernel.reshape(-1, *w.shape[1:]).astype(w.dtype)
    reach = jnp.where(jnp.any(inside), reach, 0)
    return here, cells.astype(x.dtype), kernel, reach, jnp.where(inside, reach, 0)


def _halved(array: jax.Array, axis: int) -> jax.Array:
    """Split an axis into cells of two, with a zero after an odd one."""
    extent = array.shape[axis]
    array = jnp.pad(array, [(0, extent % 2 if a == axis else 0) for a in range(array.ndim)])
    return array.reshape(*array.shape[:axis], -(-extent // 2), 2, *array.shape[axis + 1 :])


@jax.jit
def _from_cells(total: jax.Array, y: jax.Array, here: jax.Array) -> jax.Array:
    """Give the positions that are ``here`` the result of their cell; others keep ``total``."""
    for axis, extent in enumerate(here.shape[1:], 1):
        y = jax.lax.slice_in_dim(jnp.repeat(y, 2, axis), 0, extent, axis=axis)
    return jnp.where(here[..., None], y, total)


def _cell_sides(spec: KernelSpec) -> np.ndarray:
    """Return the size on cells of each size, ``int[L + 1]``: that which has every tap's cells."""
    sizes = np.arange(len(_taps_by_size(spec)))
    low = [-((sizes - 1) // 2 * dilation) // 2 for dilation in spec.dilation]
    high = [(sizes // 2 * dilation + 1) // 2 for dilation in spec.dilation]
    sides = np.maximum(1 - 2 * np.min(low, axis=0), 2 * np.max(high, axis=0))
    return np.where(sizes > 0, sides, 0)


def _shares(largest: int, dilation: int, side: int) -> np.ndarray:
    """Return the share of each tap in each cell, for each size, ``[L + 1, side, L]``.

    From the left position of a cell the tap o is in cell ``floor(o / 2)``, from the right one in
    ``floor((o + 1) / 2)``: one half each.
    """
    shares = np.zeros((largest + 1, side, largest))
    for size in range(1, largest + 1):
        for offset in range(-((size - 1) // 2), size // 2 + 1):
            for cell in (offset * dilation // 2, (offset * dilation + 1) // 2):
                row = cell + (side - 1) // 2
                if 0 <= row < side:  # else the size is none of the bank's
                    shares[size, row, offset + (largest - 1) // 2] += 0.5
    return shares
