"""Approximate every size by one of a few fixed kernels: ``method="bank"`` of ``dynamic_conv``.

Fixed kernels are fast where ordinary convolutions are. Positions take the nearest size of the bank,
so the result is not exact unless all sizes are in it. Large sizes can be computed on a grid of half
the resolution (a hierarchical bank).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from voxax.algorithms.dynamic.grid import box_conv, output_grid
from voxax.errors import InputError
from voxax.geometry import KernelSpec
from voxax.geometry.dtypes import accumulator
from voxax.geometry.nested_sizes import reaching_size, taps_within
from voxax.products.convolve import precision_name


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
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Run one ordinary convolution for each size of a bank; every position takes the nearest.

    Approximate unless all sizes are in the bank. ``dynamic_conv(..., method="bank")`` comes here;
    :func:`voxax.nn.functional.bank_error` says what it changes.

    Args:
      x: ``[B, *spatial, C]``.
      weight: ``[K, C, C_out]``, a whole box of taps.
      sizes: ``int32[B, *outputs]``.
      spec: the relation.
      bank: the sizes; or how many, chosen from the histogram of ``sizes`` while running: those
        that move the fewest taps. Each is then one of the compiled kernels (``jax.lax.switch``;
        under ``jax.vmap`` all would run: give the sizes there).
      coarse_from: sizes from here on are computed on a grid of half the resolution, a hierarchical
        bank (:func:`coarse_conv`); None: none is.
      precision: as for :func:`voxax.nn.functional.dynamic_conv`.

    Returns:
      ``[B, *outputs, C_out]``.

    Raises:
      InputError: the taps are no box with equal sides, a bank that is empty or has sizes that the
        weight lacks, ``coarse_from`` with another stride than 1.
    """
    counts = _counts(spec)
    sizes = jnp.clip(sizes, 0, len(counts) - 1)
    chosen, nearest = choose_bank(sizes, spec, bank)
    mine = nearest[sizes]
    dtype = jnp.promote_types(x.dtype, weight.dtype)
    x, weight = x.astype(dtype), weight.astype(dtype)
    fine = len(counts) if coarse_from is None else max(1, coarse_from)
    kernels = [
        lambda x, w, size=size: (_fixed if size < fine else coarse_conv)(
            x, w, spec, size, precision
        )
        for size in range(len(counts))
    ]
    total: jax.Array | None = None
    for size in chosen:
        if isinstance(size, int):
            y, here = kernels[size](x, weight), mine == size
        else:
            y, here = jax.lax.switch(size, kernels, x, weight), mine == size
        part = jnp.where(here[..., None], y, jnp.zeros((), y.dtype))
        total = part if total is None else jnp.where(here[..., None], y, total)
    assert total is not None
    return total


def compare(
    exact: jax.Array,
    approximate: jax.Array,
    sizes: jax.Array,
    spec: KernelSpec,
    bank: int | Sequence[int] = 3,
) -> BankError:
    """Compare the result of a bank with the exact one; traceable."""
    counts = _counts(spec)
    sizes = jnp.clip(sizes, 0, len(counts) - 1)
    chosen, nearest = choose_bank(sizes, spec, bank)
    wide = accumulator(exact.dtype)
    difference = (approximate.astype(wide) - exact.astype(wide)) ** 2
    scale = jnp.maximum(jnp.mean(exact.astype(wide) ** 2), jnp.finfo(wide).tiny)
    moved = jnp.mean((nearest[sizes] != sizes).astype(jnp.float32))
    return BankError(
        jnp.stack([jnp.asarray(size, jnp.int32) for size in chosen]),
        moved,
        jnp.sqrt(jnp.mean(difference) / scale),
    )


def choose_bank(
    sizes: jax.Array, spec: KernelSpec, bank: int | Sequence[int]
) -> tuple[list[int] | list[jax.Array], jax.Array]:
    """Return the sizes of the bank, ascending, and the one for each size, ``int32[L + 1]``.

    Raises:
      InputError: an empty bank, or a size that the weight does not have.
    """
    counts = np.asarray(_counts(spec))
    largest = len(counts) - 1
    if isinstance(bank, int):
        number = min(bank, largest)
        if number < 1:
            raise InputError(f"bank={bank}: a bank needs 1 size or more")
        every = list(itertools.combinations(range(1, largest + 1), number))
    else:
        every = [tuple(sorted(bank))]
        if not bank or not all(1 <= size <= largest for size in bank):
            raise InputError(f"bank={list(bank)}: sizes from 1 to {largest} are there")
    # The nearest in taps; of two, the smaller.
    gaps = [np.abs(counts[:, None] - counts[list(chosen)][None]) for chosen in every]
    nearest = np.array([np.asarray(c)[g.argmin(1)] for c, g in zip(every, gaps, strict=True)])
    nearest[:, 0] = 0  # size 0 has no tap, and no kernel
    if len(every) == 1:
        return list(every[0]), jnp.asarray(nearest[0], jnp.int32)
    costs = np.array([g.min(1) for g in gaps])
    costs[:, 0] = 0
    histogram = jnp.zeros(largest + 1, jnp.float32).at[sizes.reshape(-1)].add(1.0)
    best = jnp.argmin(jnp.asarray(costs, jnp.float32) @ histogram)
    chosen = jnp.asarray(np.array(every), jnp.int32)[best]
    return [chosen[i] for i in range(chosen.shape[0])], jnp.asarray(nearest, jnp.int32)[best]


def _counts(spec: KernelSpec) -> list[int]:
    """Return the number of taps of each size.

    Raises:
      InputError: the taps are no box with equal sides.
    """
    counts = [int(n) for n in taps_within(np.asarray(spec.offsets))]
    if counts[-1] != (len(counts) - 1) ** spec.ndim:
        raise InputError(f"a bank has kernels with equal sides: the weight's taps are {spec}")
    return counts


def _fixed(
    x: jax.Array, w: jax.Array, spec: KernelSpec, size: int, precision: jax.lax.PrecisionLike
) -> jax.Array:
    """Convolve with one size everywhere."""
    if not size:
        outputs = output_grid(x.shape[:-1], spec.stride)
        return jnp.zeros((*outputs, w.shape[-1]), x.dtype)
    taps = np.flatnonzero(reaching_size(np.asarray(spec.offsets)) <= size)
    box = w[taps].reshape(*(size,) * spec.ndim, *w.shape[1:])
    return box_conv(x, box, spec.stride, spec.dilation, precision=precision_name(precision))


def coarse_conv(
    x: jax.Array, w: jax.Array, spec: KernelSpec, size: int, precision: jax.lax.PrecisionLike
) -> jax.Array:
    """Convolve with one size everywhere, on cells of two positions along each axis.

    Cells hold the mean of their positions, and every position of a cell gets the cell's result,
    with the kernel averaged over where in the cell it is centered. With D axes that is about
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
    y = box_conv(
        cells.astype(x.dtype),
        kernel.astype(w.dtype),
        (1,) * ndim,
        (1,) * ndim,
        padding,
        precision=precision_name(precision),
    )
    for axis, extent in enumerate(spatial, 1):
        y = jax.lax.slice_in_dim(jnp.repeat(y, 2, axis), 0, extent, axis=axis)
    return y


def _shares(size: int, dilation: int) -> tuple[int, np.ndarray]:
    """Return the first cell, and the share of each tap in each cell, ``[cells, size]``.

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
