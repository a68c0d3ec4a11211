"""Define TorchSparse's hash table, which finds rows by a search in sorted keys here."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from voxax.coords.host import find_neighbors
from voxax.torch.core.errors import ArgumentError
from voxax.torch.core.kernel_map import first_rows, unique_rows
from voxax.torch.torchsparse.nn.functional.kmap import centered
from voxax.torch.torchsparse.utils.grids import make_divisible

_MULTIPLE = 128


class GPUHashTable:
    """Table that tells in which row a key or a voxel was inserted.

    Rows count from 1, and 0 means that the key or voxel is absent. Results are padded with zeros to
    a multiple of 128 rows. The constructor's arguments ``keys`` and ``values`` are ignored.
    """

    def __init__(self, keys: int | torch.Tensor, values: torch.Tensor | None = None) -> None:
        del keys, values
        self._keys: torch.Tensor | None = None
        self._coords: torch.Tensor | None = None

    def insert_vals(self, keys: torch.Tensor) -> None:
        """Replace the stored keys by ``keys int64[N]``; of equal keys, the first row is found."""
        self._keys = keys

    def lookup_vals(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the row in which each of M keys was inserted, ``int32[M]`` before padding.

        ``keys`` is ``int64[M]``. M is padded to a multiple of 128.
        """
        known = _inserted(self._keys, "insert_vals")
        found = torch.zeros(make_divisible(len(keys), _MULTIPLE), dtype=torch.int32)
        if len(known):
            ordered, rows = torch.sort(known, stable=True)
            place = torch.searchsorted(ordered, keys).clamp(max=len(ordered) - 1)
            found[: len(keys)] = torch.where(ordered[place] == keys, rows[place] + 1, 0).int()
        return found

    def insert_coords(self, coords: torch.Tensor) -> None:
        """Replace the stored voxels by ``int32[N, 4]``, batch index last.

        Lookups find the first of equal voxels.
        """
        self._coords = coords

    def lookup_coords(
        self, coords: torch.Tensor, kernel_sizes: Any, tensor_strides: Any, kernel_volume: int
    ) -> torch.Tensor:
        """Return the rows of the K voxels around each of M centers, ``int32[M, K]`` before padding.

        ``coords int32[M, 4]``, batch index last, are multiplied by ``tensor_strides`` to get the
        centers. K is ``kernel_volume``, the product of ``kernel_sizes``. Sizes and strides are
        three integers each. M is padded to a multiple of 128.
        """
        known = _rows(_inserted(self._coords, "insert_coords"))
        offsets = centered(tuple(int(size) for size in kernel_sizes))
        if len(offsets) != int(kernel_volume):
            raise ArgumentError(f"kernel_volume={kernel_volume} of {len(offsets)} taps")
        unique = unique_rows(known)
        first = np.append(first_rows(unique) + 1, 0).astype(np.int32)  # place -1 is the last
        centers, place = unique_rows(_rows(coords))
        moved = centers.astype(np.int64) * [1, *(int(stride) for stride in tensor_strides)]
        table = find_neighbors(unique[0], moved, offsets, threads=torch.get_num_threads())
        found = np.zeros((make_divisible(len(coords), _MULTIPLE), len(offsets)), np.int32)
        found[: len(coords)] = first[table][place]
        return torch.from_numpy(found)


GPUHashTable32 = GPUHashTable


def _inserted(tensor: torch.Tensor | None, name: str) -> torch.Tensor:
    if tensor is None:
        raise ArgumentError(f"a lookup in an empty table: call {name} first")
    return tensor


def _rows(coords: torch.Tensor) -> np.ndarray:
    """Return coordinates with the batch index moved from the last to the first column."""
    return np.ascontiguousarray(coords.numpy()[:, [3, 0, 1, 2]])
