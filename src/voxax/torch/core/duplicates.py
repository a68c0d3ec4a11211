"""Kernel maps for rows in which a voxel occurs several times."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from voxax.torch.core.kernel_map import KernelMap, PairMap, kept_map, pairs_of, reached_map


class Duplicates(NamedTuple):
    """Groups of rows that are the same voxel.

    A strided or transposed layer sums over all rows of a voxel, and its outputs are distinct. Its
    inverse gives all rows of a voxel the same values. A layer that keeps the voxels keeps the rows:
    through a tap before the kernel's center, the first row of an output voxel reads all rows of the
    input voxel. Through a tap after the center, all rows of an output voxel read the first row of
    the input voxel. Through the center, each row reads itself.

    Attributes:
      first: ``int64[U]``, the first row of each voxel, ascending.
      place: ``int64[N]``, the voxel of each row, an index of ``first``.
    """

    first: np.ndarray
    place: np.ndarray

    def described(self, rows: np.ndarray) -> str:
        """Return a text with the number of repeated rows, and the first of them."""
        repeated = rows[np.argmax(np.bincount(self.place)[self.place] > 1)].tolist()
        again = f"{len(rows) - len(self.first)} of {len(rows)} rows of indices"
        return f"{again} occur twice, the first is {repeated}"

    def last_rows(self) -> Tensor:
        """Return the last row of each row's voxel, ``int64[N]``."""
        last = np.empty_like(self.first)
        last[self.place] = np.arange(len(self.place))
        return torch.from_numpy(last[self.place])

    def kept(self, rows: np.ndarray, offsets: np.ndarray) -> KernelMap:
        """Return the map of a layer that keeps the rows; the offsets are symmetric."""
        distinct = kept_map(rows[self.first], offsets)
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

    def reached(self, rows: np.ndarray, *sizes: Any) -> tuple[KernelMap, np.ndarray]:
        """Return :func:`voxax.torch.core.kernel_map.reached_map` of these rows."""
        distinct, out = reached_map(rows[self.first], *sizes)
        backwards = distinct.backwards[torch.from_numpy(self.place)]
        return PairMap(*pairs_of(backwards), len(rows), len(out)), out


class LastOfVoxel(torch.autograd.Function):
    """Function that gives each row the values of its voxel's last row, but its own gradient.

    The values are the same as if all rows were written to their voxel, one after the other, and
    the last write stayed.
    """

    @staticmethod
    def forward(x: Tensor, last: Tensor) -> Tensor:
        return x[last]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None
