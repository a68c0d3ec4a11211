"""Kernel maps: which input row each output row reads through each tap."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from voxax._native import host, host_products
from voxax.coords import host as coordinates
from voxax.torch.spconv.errors import SpconvError, whole

Sizes = Sequence[int]


class KernelMap:
    """A relation between the rows of two voxel sets.

    Attributes:
      table: ``int32[M, K]``: input row under each tap of an output row, or -1. Taps are in the
        order of a flattened kernel.
      in_rows: number of input rows, N.
      symmetric: both sides are one set, and tap k read backwards is tap K - 1 - k.
      order: ``int32[M]``, the output row that each row of the table is for, in an order in which
        neighbors follow each other and stay in a cache; None: the same row.
    """

    def __init__(
        self,
        table: torch.Tensor,
        in_rows: int,
        symmetric: bool = False,
        backwards: torch.Tensor | None = None,
        order: torch.Tensor | None = None,
    ) -> None:
        self.table, self.in_rows, self.symmetric = table, in_rows, symmetric
        self.order, self._backwards = order, backwards

    @property
    def out_rows(self) -> int:
        """Number of output rows, M."""
        return self.table.shape[0]

    @property
    def taps(self) -> int:
        """Number of taps, K."""
        return self.table.shape[1]

    @property
    def neighbors(self) -> torch.Tensor:
        """``int32[M, K]``: the table by output row."""
        if self.order is None:
            return self.table
        return torch.empty_like(self.table).index_copy_(0, self.order.long(), self.table)

    @property
    def backwards(self) -> torch.Tensor:
        """``int32[N, K]``: output row that an input row reaches through each tap, or -1."""
        if self._backwards is None:
            if self.symmetric:
                self._backwards = self.neighbors.flip(1).contiguous()
            else:
                self._backwards = invert(self.neighbors, self.in_rows)
        return self._backwards

    @property
    def counts(self) -> torch.Tensor:
        """``int64[M]``: number of input rows that an output row reads."""
        return (self.neighbors >= 0).sum(1)

    def by_tap(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
        """Yield, for each tap that occurs, its output rows, their input rows and the tap."""
        neighbors = self.neighbors
        for tap in range(self.taps):
            rows = torch.nonzero(neighbors[:, tap] >= 0).flatten()
            if len(rows):
                yield rows, neighbors[rows, tap].long(), tap

    def transpose(self) -> KernelMap:
        """Return the map of the adjoint: inputs and outputs change places."""
        return KernelMap(self.backwards, self.out_rows, False, self.neighbors)

    def pairs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """``(int32[2, K, N], int32[K])``: input and output rows tap by tap, -1 behind the last.

        In spconv's order: by input row, and of a submanifold layer's taps behind the center, which
        are those before it read backwards, by output row.
        """
        pairs, numbers = pairs_of(self.backwards)
        if self.symmetric:
            behind = self.taps // 2 + 1
            pairs[:, behind:] = pairs[:, : behind - 1].flip(0, 1)
        return pairs, numbers

    @staticmethod
    def of_pairs(pairs: torch.Tensor, numbers: torch.Tensor, in_rows: int, rows: int) -> KernelMap:
        """Return the map of pairs as :meth:`pairs` has them, onto so many output rows."""
        rows = whole("num_activate_out", rows)
        neighbors = pairs.new_full((rows, pairs.shape[1]), -1)
        for tap, number in enumerate(numbers.tolist()):
            outs = pairs[1, tap, :number].long()
            neighbors[outs, tap] = pairs[0, tap, :number]
        if int((neighbors >= 0).sum()) < int(numbers.sum()):
            return PairMap(pairs, numbers, in_rows, rows)
        return KernelMap(neighbors, in_rows)


class PairMap(KernelMap):
    """A relation in which an output row may read several input rows through one tap.

    That is so where voxels occur several times. No table has room for it.

    Args:
      pairs, numbers: as :meth:`KernelMap.pairs` has them.
      in_rows, out_rows: numbers of rows.
    """

    def __init__(
        self, pairs: torch.Tensor, numbers: torch.Tensor, in_rows: int, out_rows: int
    ) -> None:
        self._pairs, self._numbers = pairs, numbers
        self.in_rows, self._out_rows, self.symmetric = in_rows, out_rows, False

    @property
    def out_rows(self) -> int:
        """Number of output rows, M."""
        return self._out_rows

    @property
    def taps(self) -> int:
        """Number of taps, K."""
        return self._pairs.shape[1]

    @property
    def neighbors(self) -> torch.Tensor:
        """Raise :class:`SpconvError`: there is no table."""
        raise SpconvError(
            "tables of pairs (pair_fwd, pair_bwd) of voxels that occur several times: a table "
            "holds one row for each tap. Take algo=ConvAlgo.Native, or merge the voxels"
        )

    backwards = neighbors

    @property
    def counts(self) -> torch.Tensor:
        """``int64[M]``: number of input rows that an output row reads."""
        rows = [outs for outs, _, _ in self.by_tap()]
        return torch.bincount(torch.cat(rows), minlength=self.out_rows)

    def by_tap(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
        """Yield, for each tap that occurs, its output rows, their input rows and the tap."""
        for tap, number in enumerate(self._numbers.tolist()):
            if number:
                ins, outs = self._pairs[:, tap, :number].long()
                yield outs, ins, tap

    def transpose(self) -> KernelMap:
        """Return the map of the adjoint: inputs and outputs change places."""
        return PairMap(self._pairs.flip(0), self._numbers, self.out_rows, self.in_rows)

    def pairs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """As :meth:`KernelMap.pairs`."""
        return self._pairs.clone(), self._numbers.clone()


def listed_numbers(numbers: torch.Tensor) -> torch.Tensor:
    """Return a submanifold layer's numbers as spconv lists them: 0 from the center on.

    The center has all rows, and a tap behind it as many as its mirror image.
    """
    listed = numbers.clone()
    listed[len(numbers) // 2 :] = 0
    return listed


def full_numbers(listed: torch.Tensor, rows: int) -> torch.Tensor:
    """Undo :func:`listed_numbers`, for a layer on so many rows."""
    center = len(listed) // 2
    return torch.cat([listed[:center], listed.new_tensor([rows]), listed[:center].flip(0)])


def pairs_of(backwards: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``(int32[2, K, N], int32[K])`` of a table ``int32[N, K]`` of output rows, or -1."""
    rows, taps = backwards.shape
    pairs, numbers = backwards.new_full((2, taps, rows), -1), backwards.new_zeros((taps,))
    for tap in range(taps):
        reached = backwards[:, tap]
        found = torch.nonzero(reached >= 0).flatten()
        numbers[tap] = len(found)
        pairs[0, tap, : len(found)] = found.to(torch.int32)
        pairs[1, tap, : len(found)] = reached[found]
    return pairs, numbers


def invert(neighbors: torch.Tensor, in_rows: int) -> torch.Tensor:
    """``int32[in_rows, K]``: the output row of each input row and tap, or -1."""
    if host.available():
        threads = torch.get_num_threads()
        return torch.from_numpy(host.invert_table(neighbors.numpy(), in_rows, threads))
    found = neighbors.new_full((in_rows, neighbors.shape[1]), -1)
    for tap in range(neighbors.shape[1]):
        rows = torch.nonzero(neighbors[:, tap] >= 0).flatten()
        found[neighbors[rows, tap].long(), tap] = rows.to(torch.int32)
    return found


def unique_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows in lexicographic order, and the place of each row among them."""
    if host.takes_rows(rows):
        return host.unique_rows(rows, torch.get_num_threads())
    return coordinates.unique_rows(rows)


def submanifold_map(
    rows: np.ndarray,
    kernel_size: Sizes,
    dilation: Sizes,
    unique: tuple[np.ndarray, np.ndarray] | None = None,
) -> KernelMap:
    """Return the map of a layer that keeps the voxels.

    Args:
      rows: ``int32[N, 1 + D]``, batch index first, in any order, without duplicates.
      kernel_size, dilation: one per axis; sizes are odd.
      unique: what :func:`unique_rows` gives.
    """
    threads = torch.get_num_threads()
    native = host.takes_rows(rows)
    ordered, places = unique_rows(rows) if unique is None else unique
    steps = [
        [(k - size // 2) * step for k in range(size)]
        for size, step in zip(kernel_size, dilation, strict=True)
    ]
    offsets = np.asarray(list(itertools.product(*steps)), np.int32)
    if native and host.takes_offsets(ordered, ordered, offsets):
        table = host.find_neighbors(ordered, ordered, offsets, len(ordered), threads)
    else:
        table = coordinates.find_neighbors(ordered, ordered, offsets)
    given = np.arange(len(rows), dtype=np.int32)
    if np.array_equal(places, given):
        return KernelMap(torch.from_numpy(table), len(rows), symmetric=True)
    order = np.empty_like(places)
    order[places] = given
    if native:
        host_products.renumber_table(table, order, threads=threads)
    else:
        table = np.where(table >= 0, order[table], np.int32(-1))
    return KernelMap(torch.from_numpy(table), len(rows), True, order=torch.from_numpy(order))


def reached_map(
    rows: np.ndarray,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    out_shape: Sizes,
    transposed: bool,
) -> tuple[KernelMap, np.ndarray]:
    """Return the map of a layer onto every voxel that a tap reaches, and these voxels.

    They come in spconv's order on a CPU: a loop over taps, and inside it over input rows.

    Args:
      rows: ``int32[N, 1 + D]``, batch index first, without duplicates.
      kernel_size, stride, padding, dilation: one per axis.
      out_shape: outputs lie in it.
      transposed: as in :func:`voxax._native.host_products.reached_rows`.
    """
    sizes = kernel_size, stride, padding, dilation, out_shape
    cells = math.prod(map(int, out_shape)) * (int(rows[:, 0].max(initial=0)) + 1)
    if cells >= 2**63:
        raise SpconvError(f"{cells} cells of outputs of shape {list(out_shape)}: at most 2^63 - 1")
    if host.available():
        out, neighbors = host_products.reached_rows(rows, sizes, transposed)
        return KernelMap(torch.from_numpy(neighbors), len(rows)), out
    out, found = _reached_rows(rows, sizes, transposed)
    backwards = torch.from_numpy(found)
    return KernelMap(invert(backwards, len(out)), len(rows), False, backwards), out


def _reached_rows(
    rows: np.ndarray, sizes: tuple[Sizes, ...], transposed: bool
) -> tuple[np.ndarray, np.ndarray]:
    kernel_size, stride, padding, dilation, shape = (np.asarray(s, np.int64) for s in sizes)
    radix = np.concatenate([np.cumprod(shape[::-1])[::-1], [1]])
    keys = []
    for tap in itertools.product(*map(range, kernel_size.tolist())):
        shift = np.asarray(tap) * dilation - padding
        if transposed:
            at = rows[:, 1:] * stride + shift
            inside = np.ones(len(rows), bool)
        else:
            at, rest = np.divmod(rows[:, 1:] - shift, stride)
            inside = (rest == 0).all(1)
        inside &= ((at >= 0) & (at < shape)).all(1)
        key = rows[:, 0] * radix[0] + at @ radix[1:]
        keys.append(np.where(inside, key, -1))
    key = np.stack(keys)  # [K, N]: the order in which outputs are found
    unique, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first[unique >= 0], kind="stable")
    place = np.full(len(unique), -1, np.int64)
    place[np.nonzero(unique >= 0)[0][order]] = np.arange(len(order))
    found = place[inverse.reshape(key.shape)].T.astype(np.int32)
    cells = unique[unique >= 0][order]
    out = np.empty((len(cells), rows.shape[1]), np.int32)
    for axis, weight in enumerate(radix):
        out[:, axis], cells = np.divmod(cells, weight)
    return out, np.ascontiguousarray(found)
