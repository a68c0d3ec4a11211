"""Convolve grids with a kernel size per position, approximated by a few sizes: the bank.

This is ``algorithm="bank"`` of :func:`voxax.nn.functional.dynamic_conv`. The kernel size of each
position is rounded to the nearest size in the bank, so the result is exact only if all requested
sizes are in the bank. Large sizes can be computed at half the resolution.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax.errors import InputError
from voxax.geometry import KernelSpec
from voxax.geometry.dtypes import accumulator, common_dtype
from voxax.geometry.nested_sizes import reaching_size, taps_within
from voxax.hardware import target_platform
from voxax.kernels.dynamic.grid import box_conv, output_grid
from voxax.kernels.kernel import Uniform
from voxax.products.convolution import convolve_sized, precision_name, sized_spec


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
    """Convolve each position with its kernel size rounded to the nearest size in ``bank``.

    ``dynamic_conv(..., algorithm="bank")`` calls this function. The nearest size is the one whose
    number of taps is nearest. The result is exact if all sizes are in the bank and ``coarse_from``
    is None. Otherwise it is approximate; :func:`voxax.nn.functional.bank_error` measures the error.

    Args:
      x: ``[B, *spatial, C]``.
      weight: ``[K, C, C_out]``, whose K taps are a box with equal sides.
      sizes: ``int32[B, *outputs]``, size of the kernel at each position.
      spec: offsets of the taps, stride and dilation.
      bank: the sizes, or how many sizes to choose at run time from the histogram of ``sizes``. The
        chosen sizes are those for which rounding adds and removes the fewest taps, summed over all
        positions. Choices that would increase the total number of taps are excluded.
      coarse_from: the smallest size that is computed on a grid of half the resolution (a
        hierarchical bank); None computes no size there. A cell of this grid covers two positions
        along each axis and holds the mean of ``x`` over them. All positions of a cell get the same
        result: the mean of the kernels centered at these positions, applied to the cells. With D
        axes this takes about ``4**-D`` of the arithmetic. It is exact where ``x`` is constant.
      uniform: what is known about ``sizes``: ``"all"``, that every position has all taps;
        ``"scenes"``, that all positions of a scene have one size; or ``""``, nothing.
      precision: as in :func:`voxax.nn.functional.dynamic_conv`.

    Returns:
      ``[B, *outputs, C_out]``.

    Raises:
      InputError: the taps are not a box with equal sides, the bank is empty or has sizes that the
        weight lacks, or ``coarse_from`` is no integer or comes with a stride other than 1.
    """
    kept, exactly = frozen_bank(bank), precision_name(precision)
    every = _banks(spec, kept)
    chosen, mine = rounded(sizes, spec, kept)
    # A size of the bank is an integer, or an array if it is chosen at run time.
    entries = every[0] if len(every) == 1 else chosen
    largest = [max(sizes[i] for sizes in every) for i in range(len(entries))]
    dtype = common_dtype(x.dtype, weight.dtype)
    x, weight = x.astype(dtype), weight.astype(dtype)
    fine, near = largest[-1] + 1, mine
    if coarse_from is not None:
        if any(step != 1 for step in spec.stride):
            raise InputError(f"coarse_from with stride {spec.stride}: cells of two need stride 1")
        if not isinstance(coarse_from, int | np.integer):
            raise InputError(f"coarse_from={coarse_from}: give a size, an integer")
        fine = min(fine, max(1, coarse_from))
        near = jnp.where(mine < fine, mine, 0)
    if every[0][0] < fine:
        # Only the taps of the largest fine size are listed.
        top = min(fine - 1, largest[-1])
        box = weight.reshape(*(len(taps_by_size(spec)) - 1,) * spec.ndim, *weight.shape[1:])
        part = box[within(box.shape[: spec.ndim], top)].reshape(-1, *weight.shape[1:])
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
    """Return ``bank`` in hashable form: sizes as an ascending tuple, or their number as an int."""
    given: Any = bank
    try:
        if np.ndim(given):
            return tuple(sorted(operator.index(size) for size in given))
        return operator.index(given)
    except TypeError:
        raise InputError(f"bank={bank}: give whole sizes, or their number") from None


def _of_bank(
    x: jax.Array,
    w: jax.Array,
    sizes: jax.Array,
    spec: KernelSpec,
    bank: Sequence[int | jax.Array],
    uniform: Uniform,
    precision: str,
) -> jax.Array:
    """Return the convolution of ``x`` where each position's kernel size is 0 or in ``bank``.

    Arguments as in :func:`by_convolutions`, with ``uniform`` as in :func:`bank_conv`. GPUs run one
    convolution per size of the bank. CPUs and TPUs use the algorithms for arbitrary sizes, which
    are faster there: with 3 sizes, 3 convolutions took 3 times as long as ``grouped`` on 2 cores of
    an AMD EPYC (128x128 positions, 64 channels), and 2 times as long as ``tiled`` on a TPU, by the
    compiler's schedule.
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
    """Run an ordinary convolution for each size of a bank, and select one result per position.

    Args:
      x, w, spec, precision: as in :func:`bank_conv`, with ``w`` for ``weight``.
      sizes: ``int32[B, *outputs]``, each 0 or in the bank; the result of size 0 is zero.
      bank: the sizes; sizes that the weight lacks are skipped. A size that is an array selects a
        branch of ``jax.lax.switch``; under ``jax.vmap`` all branches run.

    Returns:
      ``[B, *outputs, C_out]``.
    """
    kernels = [
        lambda x, w, size=size: _one_size(x, w, spec, size, precision)
        for size in range(len(taps_by_size(spec)))
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


@functools.lru_cache(maxsize=1024)  # called in every eager call
def _banks(spec: KernelSpec, bank: int | tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the banks to choose from, each an ascending tuple of sizes.

    A tuple ``bank`` is the only choice. If ``bank`` is a number, the choices are all sets of that
    many kernel sizes of ``spec``, or the set of all its sizes if it has fewer.

    Raises:
      InputError: the bank is empty, or has a size that the weight lacks.
    """
    largest = len(taps_by_size(spec)) - 1
    if isinstance(bank, int):
        number = min(bank, largest)
        if number < 1:
            raise InputError(f"bank={bank}: a bank needs 1 size or more")
        return tuple(itertools.combinations(range(1, largest + 1), number))
    if not bank or not all(1 <= size <= largest for size in bank):
        raise InputError(f"bank={list(bank)}: the weight has sizes 1 to {largest}")
    return (bank,)


# Jitted so that an eager call runs one program, as do the functions below.
@functools.partial(jax.jit, static_argnames=("spec", "bank"))
def rounded(
    sizes: jax.Array, spec: KernelSpec, bank: int | tuple[int, ...]
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """Return the sizes of the bank, ascending, and ``sizes`` rounded to them.

    If ``bank`` is a number, the sizes are chosen as in :func:`bank_conv`. The rounded sizes have
    the shape of ``sizes``; size 0 stays 0.
    """
    counts, every = np.asarray(taps_by_size(spec)), _banks(spec, bank)
    sizes = jnp.clip(sizes, 0, len(counts) - 1)
    # The nearest size is that with the nearest number of taps; the smaller if two are equally near.
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
    # The bank may not need more products than the exact result. The tolerance is for rounded sums.
    more = jnp.asarray(counts[nearest] - counts, jnp.float32) @ histogram > 1e-5 * moved
    best = jnp.argmin(jnp.where(more, jnp.inf, moved))
    return tuple(banks[best]), tables[best][sizes]


def taps_by_size(spec: KernelSpec) -> list[int]:
    """Return a list whose entry s is the number of taps of ``spec`` within kernel size s.

    Raises:
      InputError: the taps are not a box with equal sides.
    """
    counts = [int(n) for n in taps_within(np.asarray(spec.offsets))]
    if counts[-1] != (len(counts) - 1) ** spec.ndim:
        raise InputError(f"a bank has kernels with equal sides: the weight's taps are {spec}")
    return counts


def _one_size(
    x: jax.Array, w: jax.Array, spec: KernelSpec, size: int, precision: jax.lax.PrecisionLike
) -> jax.Array:
    """Return the convolution with kernel size ``size`` at every position, ``[B, *outputs, C_out]``.

    ``x`` is ``[B, *spatial, C]``, and ``w`` is ``[K, C, C_out]`` for the K offsets of ``spec``.
    Size 0 gives zeros.
    """
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
    """Return the operands of a convolution at half resolution, for the positions of one size.

    A cell of the coarse grid covers two positions along each axis.

    Args:
      x: ``[B, *spatial, C]``.
      w: ``[K, C, C_out]``, whose K taps are a box with equal sides.
      far: ``int32[B, *spatial]``, the kernel size of each position that is computed at half
        resolution, and 0 at other positions.
      size: ``int32[]``, the kernel size to compute, at least 1.
      spec: offsets of the taps, stride 1, and dilation.
      side: side of the kernel at half resolution, in cells.
      precision: as in :func:`voxax.nn.functional.dynamic_conv`.

    Returns:
      Five arrays. ``bool[B, *spatial]``: whether ``far`` equals ``size``. ``[B, *cells, C]``: the
      mean of ``x`` in each cell. ``[side**D, C, C_out]``: the kernel on cells. ``int32[]``: the
      side of this kernel that ``size`` needs, in cells, or 0 if no position has ``size``.
      ``int32[B, *cells]``: for each cell, this side if the cell contains a position of ``size``,
      else 0.
    """
    largest, wide = len(taps_by_size(spec)) - 1, accumulator(w.dtype)
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
    """Reshape an axis of length n to ``[ceil(n / 2), 2]``, with a zero appended if n is odd."""
    extent = array.shape[axis]
    array = jnp.pad(array, [(0, extent % 2 if a == axis else 0) for a in range(array.ndim)])
    return array.reshape(*array.shape[:axis], -(-extent // 2), 2, *array.shape[axis + 1 :])


@jax.jit
def _from_cells(total: jax.Array, y: jax.Array, here: jax.Array) -> jax.Array:
    """Return ``total [B, *spatial, C]``, replaced by values of ``y`` where ``here`` is True.

    ``y [B, *cells, C]`` is on a grid of half the resolution, whose cells cover two positions along
    each axis. A position where ``here [B, *spatial]`` is True gets the value of its cell.
    """
    for axis, extent in enumerate(here.shape[1:], 1):
        y = jax.lax.slice_in_dim(jnp.repeat(y, 2, axis), 0, extent, axis=axis)
    return jnp.where(here[..., None], y, total)


def _cell_sides(spec: KernelSpec) -> np.ndarray:
    """Return the kernel side at half resolution for each kernel size 0 to L, ``int[L + 1]``.

    The side is that of the smallest centered box of cells that covers the kernel on every axis, in
    cells. L is the largest size of ``spec``. A cell covers two positions along each axis.
    """
    sizes = np.arange(len(taps_by_size(spec)))
    low = [-((sizes - 1) // 2 * dilation) // 2 for dilation in spec.dilation]
    high = [(sizes // 2 * dilation + 1) // 2 for dilation in spec.dilation]
    sides = np.maximum(1 - 2 * np.min(low, axis=0), 2 * np.max(high, axis=0))
    return np.where(sizes > 0, sides, 0)


def _shares(largest: int, dilation: int, side: int) -> np.ndarray:
    """Return the weights ``[L + 1, side, L]`` that turn a kernel into one at half resolution.

    Along one spatial axis, entry ``[s, c, k]`` is the factor with which tap k of a kernel of size s
    is added to cell c of the coarse kernel. L is ``largest``, the largest kernel size, and ``side``
    is the size of the coarse kernel. A cell covers two positions. From the lower position of a
    cell, a tap at dilated offset o is ``floor(o / 2)`` cells away; from the upper position,
    ``floor((o + 1) / 2)`` cells. Each of these two cells gets half of the tap.
    """
    shares = np.zeros((largest + 1, side, largest))
    for size in range(1, largest + 1):
        for offset in range(-((size - 1) // 2), size // 2 + 1):
            for cell in (offset * dilation // 2, (offset * dilation + 1) // 2):
                row = cell + (side - 1) // 2
                if 0 <= row < side:  # else the size is not in the bank
                    shares[size, row, offset + (largest - 1) // 2] += 0.5
    return shares


def within(taps: tuple[int, ...], size: Any) -> tuple[slice, ...]:
    """Return one slice per axis that cuts a kernel of ``size`` from a larger, centered kernel.

    ``taps`` is the size of the larger kernel along each axis. A ``size`` of None uses all its taps.
    """
    sides = [n if size is None else min(n, int(size)) for n in taps]
    first = [(n - 1) // 2 - (side - 1) // 2 for n, side in zip(taps, sides, strict=True)]
    return tuple(slice(low, low + side) for low, side in zip(first, sides, strict=True))
