"""Build kernel maps for index arrays in which a voxel occurs in several rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from voxax.torch.core.kernel_map import KernelMap, PairMap, kept_map, pairs_of, reached_map


class Duplicates(NamedTuple):
    """N rows of voxel indices, grouped by equal voxels, with methods that build kernel maps.

    The kernel maps are those of spconv on a CPU. A strided or transposed layer sums over all rows
    of an input voxel, and its output voxels are distinct. An inverse layer gives all rows of an
    output voxel the same values.

    A submanifold layer has the same rows in its output. For a kernel offset before the center of
    the kernel, the first row of an output voxel reads all rows of the input voxel. For an offset
    after the center, all rows of an output voxel read the first row of the input voxel. For the
    center, each row reads itself.

    Attributes:
      first: ``int64[U]``, the first row of each of the U distinct voxels, ascending.
      place: ``int64[N]``, the voxel of each row, as an index into ``first``.
    """

    first: np.ndarray
    place: np.ndarray

    def described(self, rows: np.ndarray) -> str:
        """Return text for an error: how many rows repeat a voxel, and the first voxel that repeats.

        ``rows`` are the N voxel indices of this object.
        """
        repeated = rows[np.argmax(np.bincount(self.place)[self.place] > 1)].tolist()
        again = f"{len(rows) - len(self.first)} of {len(rows)} rows of indices"
        return f"{again} occur twice, the first is {repeated}"

    def last_rows(self) -> Tensor:
        """Return for each row the index of the last row with the same voxel, ``int64[N]``."""
        last = np.empty_like(self.first)
        last[self.place] = np.arange(len(self.place))
        return torch.from_numpy(last[self.place])

    def kept(self, rows: np.ndarray, offsets: np.ndarray) -> KernelMap:
        """Return the kernel map of a submanifold layer, whose outputs are at its input voxels.

        ``rows int32[N, 1 + D]`` are the batch indices and voxel coordinates of this object. The
        kernel offsets, ``offsets int32[K, D]``, are symmetric:
        ``offsets[K - 1 - k] == -offsets[k]``.
        """
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
        """Return the kernel map and the output voxels of a strided or transposed layer.

        ``rows int32[N, 1 + D]`` are the voxel indices of this object, which may repeat voxels.
        ``sizes`` are the arguments after ``rows`` of
        :func:`~voxax.torch.core.kernel_map.reached_map`.
        """
        distinct, out = reached_map(rows[self.first], *sizes)
        backwards = distinct.backwards[torch.from_numpy(self.place)]
        return PairMap(*pairs_of(backwards), len(rows), len(out)), out


class LastOfVoxel(torch.autograd.Function):
    """Autograd function that replaces each row by the last row of the same voxel.

    ``apply`` takes rows ``[N, C]`` and the result of :meth:`Duplicates.last_rows`. The output is
    the same as writing all rows to a dense grid in order and reading them back. The backward pass
    returns the gradient of each row unchanged.
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
