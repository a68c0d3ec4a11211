"""Voxels that occur several times: spconv's rule on a CPU, or an error."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch

from voxax.torch.spconv.errors import SpconvError
from voxax.torch.spconv.kernel_map import (
    KernelMap,
    PairMap,
    Sizes,
    pairs_of,
    reached_map,
    submanifold_map,
)

_strict = False
_warned = False


def strict(on: bool = True) -> None:
    """Let layers of this process refuse voxels that occur several times, or compute with them.

    Args:
      on: refuse them, with a :class:`SpconvError`. False, as at the start: they warn once and
        follow spconv's rule on a CPU, see :class:`Duplicates`.
    """
    global _strict
    _strict = bool(on)


class Duplicates(NamedTuple):
    """Which rows are one voxel.

    spconv's rule on a CPU: a strided or transposed layer sums over all rows of a voxel, and its
    outputs are distinct; an inverse layer gives all rows of a voxel the same. A submanifold layer
    keeps the rows. Through the taps before the center of the kernel, all rows of a voxel are read,
    by the first row of another; through those behind it, the first row of a voxel is read, by all
    rows of another; through the center, each row reads itself.

    Attributes:
      first: ``int64[U]``: the first row of each voxel, ascending.
      place: ``int64[N]``: the voxel of each row, in this order.
    """

    first: np.ndarray
    place: np.ndarray

    @staticmethod
    def of(places: np.ndarray, number: int) -> Duplicates:
        """Return them for rows with a place each among so many distinct ones."""
        first = np.empty(number, np.int64)
        first[places[::-1]] = np.arange(len(places))[::-1]
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(number)
        return Duplicates(first[order], rank[places])

    def accept(self, rows: np.ndarray) -> None:
        """Warn, once in a process, or after :func:`strict` raise :class:`SpconvError`."""
        global _warned
        if _warned and not _strict:
            return
        repeated = rows[np.argmax(np.bincount(self.place)[self.place] > 1)].tolist()
        found = (
            f"{len(rows) - len(self.first)} of {len(rows)} rows of indices occur twice, the first "
            f"is {repeated}"
        )
        merge = "torch.unique(indices, dim=0, return_inverse=True)"
        if _strict:
            raise SpconvError(f"{found}: voxels are distinct. Merge them, for example with {merge}")
        _warned = True
        warnings.warn(
            f"{found}: layers follow spconv's rule on a CPU, slower than with distinct voxels. "
            f"Merge them with {merge}, or let voxax.torch.spconv.strict(True) refuse them",
            stacklevel=2,
        )

    def last_rows(self) -> torch.Tensor:
        """``int64[N]``: the last row of each row's voxel."""
        last = np.empty_like(self.first)
        last[self.place] = np.arange(len(self.place))
        return torch.from_numpy(last[self.place])

    def submanifold(self, rows: np.ndarray, kernel_size: Sizes, dilation: Sizes) -> KernelMap:
        """Return the map of a layer that keeps the rows."""
        distinct = submanifold_map(rows[self.first], kernel_size, dilation)
        taps, center = distinct.taps, distinct.taps // 2
        backwards = torch.full((len(rows), taps), -1, dtype=torch.int32)
        reached = distinct.backwards[:, :center].long()
        first = torch.from_numpy(np.append(self.first, -1).astype(np.int32))
        backwards[:, :center] = first[reached][torch.from_numpy(self.place)]
        backwards[:, center] = torch.arange(len(rows), dtype=torch.int32)
        pairs, numbers = pairs_of(backwards)
        pairs[:, center + 1 :] = pairs[:, :center].flip(0, 1)
        numbers[center + 1 :] = numbers[:center].flip(0)
        return PairMap(pairs, numbers, len(rows), len(rows))

    def reached(
        self, rows: np.ndarray, *sizes: Sizes, transposed: bool
    ) -> tuple[KernelMap, np.ndarray]:
        """Return the map of a layer onto every voxel that a tap reaches, and these voxels."""
        distinct, out = reached_map(rows[self.first], *sizes, transposed)  # type: ignore[misc]
        backwards = distinct.backwards[torch.from_numpy(self.place)]
        return PairMap(*pairs_of(backwards), len(rows), len(out)), out


class LastOfVoxel(torch.autograd.Function):
    """Each row gets the values of its voxel's last, and keeps its own gradient.

    So does a write of all rows, one after the other, in which the last stays.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        return x[last]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None
