"""Build kernel maps: which input row each output row of a convolution reads through each tap."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from voxax._native import host, host_products
from voxax.coords import host as coordinates
from voxax.torch.core.errors import ArgumentError, whole
from voxax.torch.core.uncompiled import untransformed

Sizes = Sequence[int]
Unique = tuple[np.ndarray, np.ndarray]


class KernelMap:
    """Kernel map: which of N input rows each of M output rows reads through each of K taps.

    A tap is one element of the kernel.

    Attributes:
      table: ``int32[M, K]``: input row that an output row reads through each tap, or -1 for none.
        Taps are in the order of a flattened kernel.
      in_rows, out_rows, taps: the numbers N, M and K.
      symmetric: whether input and output voxels are the same and taps k and ``K - 1 - k`` have
        opposite offsets.
      order: ``int32[M]``, the output row of each row of ``table``; None if row m is output row m.
        Neighboring voxels follow each other in the table, so that their features stay in a cache.
    """

    def __init__(
        self,
        table: Tensor,
        in_rows: int,
        symmetric: bool = False,
        backwards: Tensor | None = None,
        order: Tensor | None = None,
    ) -> None:
        self.table, self.in_rows, self.symmetric = table, in_rows, symmetric
        self.out_rows, self.taps = table.shape
        self.order, self._backwards = order, backwards

    @property
    def neighbors(self) -> Tensor:
        """Input row that output row m reads through each tap, ``int32[M, K]``; -1 for none."""
        if self.order is None:
            return self.table
        return torch.empty_like(self.table).index_copy_(0, self.order.long(), self.table)

    @property
    @untransformed
    def backwards(self) -> Tensor:
        """Output row that reads each input row through each tap, ``int32[N, K]``; -1 for none."""
        if self._backwards is None:
            near, mirror = self.neighbors, self.symmetric
            self._backwards = near.flip(1).contiguous() if mirror else invert(near, self.in_rows)
        return self._backwards

    @property
    def counts(self) -> Tensor:
        """Number of input rows that each output row reads, ``int64[M]``."""
        return (self.neighbors >= 0).sum(1)

    def by_tap(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Yield ``(output rows int64[n], input rows int64[n], tap)`` for each tap.

        The n output rows read the n input rows, pair by pair. Taps without such pairs are left out.
        """
        neighbors = self.neighbors
        for tap in range(self.taps):
            rows = torch.nonzero(neighbors[:, tap] >= 0).flatten()
            if len(rows):
                yield rows, neighbors[rows, tap].long(), tap

    @untransformed
    def transpose(self) -> KernelMap:
        """Return the kernel map of the transposed layer, with inputs and outputs exchanged."""
        return KernelMap(self.backwards, self.out_rows, False, self.neighbors)

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Return the row pairs of each tap, ``int32[2, K, N]``, and their numbers, ``int32[K]``.

        Index 0 of the first axis is input rows, and index 1 is output rows. -1 follows the last
        pair of a tap. The pairs of a tap are sorted by input row. If ``symmetric``, the pairs of
        the taps after the center tap are sorted by output row instead.
        """
        pairs, numbers = pairs_of(self.backwards)
        if self.symmetric:
            behind = self.taps // 2 + 1
            pairs[:, behind:] = pairs[:, : behind - 1].flip(0, 1)
        return pairs, numbers

    @staticmethod
    def of_pairs(pairs: Tensor, numbers: Tensor, in_rows: int, rows: int) -> KernelMap:
        """Return the kernel map of given pairs of input and output rows.

        It is a :class:`PairMap` if an output row reads several input rows through one tap.

        Args:
          pairs, numbers: as :meth:`pairs` returns them.
          in_rows, rows: numbers of input rows and of output rows.
        """
        rows = whole("rows", rows)
        neighbors = pairs.new_full((rows, pairs.shape[1]), -1)
        for tap, number in enumerate(numbers.tolist()):
            neighbors[pairs[1, tap, :number].long(), tap] = pairs[0, tap, :number]
        if int((neighbors >= 0).sum()) < int(numbers.sum()):
            return PairMap(pairs, numbers, in_rows, rows)
        return KernelMap(neighbors, in_rows)


class PairMap(KernelMap):
    """Kernel map in which an output row may read several input rows through one tap.

    It has no table, because a table has one input row per output row and tap.

    Args:
      pairs, numbers: as :meth:`KernelMap.pairs` returns them.
      in_rows, out_rows: numbers of input rows and of output rows.
    """

    def __init__(self, pairs: Tensor, numbers: Tensor, in_rows: int, out_rows: int) -> None:
        self._pairs, self._numbers, self.symmetric = pairs, numbers, False
        self.in_rows, self.out_rows, self.taps = in_rows, out_rows, pairs.shape[1]

    @property
    def neighbors(self) -> Tensor:
        """Raise :class:`ArgumentError`, because this map has no table."""
        raise ArgumentError(
            "no table holds the pairs of voxels that occur several times: it has one row for each "
            "tap. Take the pairs of each tap, or merge the voxels"
        )

    backwards = neighbors

    @property
    def counts(self) -> Tensor:
        """Number of input rows that each output row reads, ``int64[M]``."""
        rows = [torch.empty(0, dtype=torch.int64), *(outs for outs, _, _ in self.by_tap())]
        return torch.bincount(torch.cat(rows), minlength=self.out_rows)

    def by_tap(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Yield the same as :meth:`KernelMap.by_tap`."""
        for tap, number in enumerate(self._numbers.tolist()):
            if number:
                ins, outs = self._pairs[:, tap, :number].long()
                yield outs, ins, tap

    def transpose(self) -> KernelMap:
        """Return the same as :meth:`KernelMap.transpose`."""
        return PairMap(self._pairs.flip(0), self._numbers, self.out_rows, self.in_rows)

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Return the same as :meth:`KernelMap.pairs`."""
        return self._pairs.clone(), self._numbers.clone()


def pairs_of(backwards: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row pairs of each tap, ``int32[2, K, N]``, and their numbers, ``int32[K]``.

    They are as in :meth:`KernelMap.pairs`, sorted by input row for every tap. ``backwards``,
    ``int32[N, K]``, has the output row that reads each input row through each tap, or -1.
    """
    rows, taps = backwards.shape
    pairs, numbers = backwards.new_full((2, taps, rows), -1), backwards.new_zeros((taps,))
    for ins, outs, tap in KernelMap(backwards, 0).by_tap():
        numbers[tap] = len(ins)
        pairs[0, tap, : len(ins)], pairs[1, tap, : len(ins)] = ins, outs
    return pairs, numbers


def invert(neighbors: Tensor, in_rows: int) -> Tensor:
    """Return the output row that reads each input row through each tap, ``int32[in_rows, K]``.

    ``neighbors int32[M, K]`` is the input row that each output row reads through each tap. In both
    arrays, -1 means no row.
    """
    if host.available():
        threads = torch.get_num_threads()
        return torch.from_numpy(host.invert_table(neighbors.numpy(), in_rows, threads))
    found = neighbors.new_full((in_rows, neighbors.shape[1]), -1)
    for rows, ins, tap in KernelMap(neighbors, in_rows).by_tap():
        found[ins, tap] = rows.to(torch.int32)
    return found


def unique_rows(rows: np.ndarray) -> Unique:
    """Return the U distinct rows in lexicographic order, and each row's position among them.

    For ``rows int[N, columns]``, the results are ``int[U, columns]`` and ``int[N]``.
    """
    return coordinates.unique_rows(rows, torch.get_num_threads())


def first_rows(unique: Unique) -> np.ndarray:
    """Return the index of the first row equal to each distinct row, ``int64[U]``.

    ``unique`` is a result of :func:`unique_rows`.
    """
    distinct, places = unique
    first = np.empty(len(distinct), np.int64)
    first[places[::-1]] = np.arange(len(places))[::-1]
    return first


def distinct_rows(unique: Unique) -> Unique:
    """Number the distinct rows that :func:`unique_rows` returned by their first occurrence.

    Returns two arrays: the index of the first row with each number, ``int64[U]``, ascending; and
    the number of each row, ``int64[N]``.
    """
    first = first_rows(unique)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[unique[1]]


@functools.lru_cache(maxsize=256)
def box(kernel_size: tuple[int, ...], dilation: tuple[int, ...]) -> np.ndarray:
    """Return the K kernel offsets of a box, ``int32[K, D]``; the last axis varies fastest.

    Along an axis, they are ``(k - size // 2) * dilation`` for k from 0 to ``size - 1``. A box of
    odd sizes is therefore centered.
    """
    sizes = zip(kernel_size, dilation, strict=True)
    steps = [[(k - size // 2) * step for k in range(size)] for size, step in sizes]
    offsets = np.asarray(list(itertools.product(*steps)), np.int32)
    offsets.flags.writeable = False  # all calls get this array
    return offsets


def kept_map(rows: np.ndarray, offsets: np.ndarray, unique: Unique | None = None) -> KernelMap:
    """Return the kernel map of a layer whose outputs are at the input voxels.

    Tap k of the output at voxel v reads ``v + offsets[k]``.

    Args:
      rows: distinct voxels ``int32[N, 1 + D]``, in any order.
      offsets: offset of each tap, ``int32[K, D]``.
      unique: result of :func:`unique_rows` for ``rows``; None computes it.
    """
    unique = unique_rows(rows) if unique is None else unique
    kernel_map = onto_map(unique, unique, offsets)
    kernel_map.symmetric = np.array_equal(offsets, -offsets[::-1])
    return kernel_map


def onto_map(
    unique: Unique, out_unique: Unique, offsets: np.ndarray, stride: Sizes | None = None
) -> KernelMap:
    """Return the kernel map of a layer whose output voxels are given.

    Tap k of the output at voxel v reads ``v * stride + offsets[k]``.

    Args:
      unique, out_unique: :func:`unique_rows` of the input and the output voxels, all distinct.
      offsets: offset of each tap, ``int32[K, D]``.
      stride: one integer per axis; None means 1.
    """
    (ordered, places), (outs, out_places) = unique, out_unique
    centers, threads = outs, torch.get_num_threads()
    if stride is not None:
        centers = outs.astype(np.int64) * [1, *stride]
    table = coordinates.find_neighbors(ordered, centers, offsets, threads=threads)
    row_at = order = _row_at(places)
    if unique is not out_unique:
        order = _row_at(out_places)
    elif order is not None and host.available():
        host_products.renumber_table(table, order, threads=threads)
        row_at = None
    if row_at is not None:
        table = np.append(row_at, np.int32(-1))[table]  # place -1 is the last
    by_row = None if order is None else torch.from_numpy(order)
    return KernelMap(torch.from_numpy(table), len(places), order=by_row)


def _row_at(places: np.ndarray) -> np.ndarray | None:
    """Return the inverse ``int32[N]`` of the permutation ``places``, or None for the identity."""
    given = np.arange(len(places), dtype=np.int32)
    if np.array_equal(places, given):
        return None
    order = np.empty(len(places), np.int32)
    order[places] = given
    return order


def expanded_map(rows: np.ndarray, offsets: np.ndarray) -> tuple[KernelMap, np.ndarray]:
    """Return the kernel map and output voxels of a layer with outputs at ``row + offsets[k]``.

    Every input voxel ``row`` and tap k has such an output. The outputs are ordered by a loop over
    rows with an inner loop over taps.

    Args:
      rows: input voxels ``int32[N, 1 + D]``, without duplicates.
      offsets: offset of each tap, ``int32[K, D]``.

    Raises:
      ArgumentError: an output coordinate needs more than 32 bits.
    """
    moved = rows[:, None].astype(np.int64) + np.pad(offsets, ((0, 0), (1, 0)))
    if moved.size and not -(2**31) <= moved.min() <= moved.max() < 2**31:
        found = f"outputs at coordinates from {moved.min()} to {moved.max()}"
        raise ArgumentError(f"{found}: they have 32 bits")
    return _found_map(moved.astype(np.int32), np.ones(moved.shape[:2], bool), True)


def _found_map(cells: np.ndarray, kept: np.ndarray, by_row: bool) -> tuple[KernelMap, np.ndarray]:
    """Return a layer's kernel map and its M distinct output voxels, ``int32[M, 1 + D]``.

    The output voxels are the cells with True in ``kept``, in the order of their first occurrence.

    Args:
      cells: output voxel that each input row reaches through each tap, ``int32[N, K, 1 + D]``, or
        ``int32[K, N, 1 + D]`` if ``by_row`` is False.
      kept: mask of the cells that become outputs, ``bool[N, K]`` or ``bool[K, N]``.
      by_row: whether the first axis of ``cells`` and ``kept`` is the input rows, not the taps.
    """
    reached = cells[kept]
    first, place = distinct_rows(unique_rows(reached))
    found = np.full(kept.shape, -1, np.int32)
    found[kept] = place
    backwards = torch.from_numpy(np.ascontiguousarray(found if by_row else found.T))
    table = invert(backwards, len(first))
    return KernelMap(table, len(backwards), backwards=backwards), reached[first]


def reached_map(
    rows: np.ndarray,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    out_shape: Sizes,
    transposed: bool,
) -> tuple[KernelMap, np.ndarray]:
    """Return the kernel map and the output voxels of a strided or transposed layer.

    The output voxels, ``int32[M, 1 + D]``, are all that read an input through a tap. They are
    ordered by a loop over taps with an inner loop over input rows.

    Args:
      rows: input voxels ``int32[N, 1 + D]``, without duplicates.
      kernel_size, stride, padding, dilation: one integer per axis.
      out_shape: spatial shape of the output; voxels outside it are left out.
      transposed: whether tap k connects voxels with ``out = in * stride - padding + k * dilation``.
        If False, tap k connects voxels with ``in = out * stride - padding + k * dilation``.
    """
    sizes = kernel_size, stride, padding, dilation, out_shape
    cells = math.prod(map(int, out_shape)) * (int(rows[:, 0].max(initial=0)) + 1)
    if cells >= 2**63:
        shape = list(out_shape)
        raise ArgumentError(f"{cells} cells of outputs of shape {shape}: at most 2^63 - 1")
    if host.available():
        out, neighbors = host_products.reached_rows(rows, sizes, transposed)
        return KernelMap(torch.from_numpy(neighbors), len(rows)), out
    taps = np.asarray(list(itertools.product(*map(range, kernel_size))), np.int64)
    shift = (taps * dilation - np.asarray(padding))[:, None]
    if transposed:
        at = rows[:, 1:] * np.asarray(stride, np.int64) + shift
        kept = np.ones(at.shape[:2], bool)
    else:
        at, rest = np.divmod(rows[:, 1:] - shift, stride)
        kept = (rest == 0).all(2)
    kept &= ((at >= 0) & (at < out_shape)).all(2)
    scenes = np.broadcast_to(rows[:, :1], (*at.shape[:2], 1))
    return _found_map(np.concatenate([scenes, at], axis=2).astype(np.int32), kept, False)
