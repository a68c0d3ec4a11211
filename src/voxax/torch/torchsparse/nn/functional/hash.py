"""Compute hashes of voxels, and find rows by hash."""

from __future__ import annotations

import torch

from voxax.torch.core.errors import ArgumentError, check_cpu
from voxax.torch.torchsparse.backend import GPUHashTable
from voxax.torch.torchsparse.utils.grids import check_integers

# FNV-1a of four words of 64 bits, as signed numbers.
_BASIS = 14695981039346656037 - 2**64
_PRIME = 1099511628211


def sphash(coords: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
    """Return a hash of each voxel, equal to that of TorchSparse's GPU kernels.

    Args:
      coords: ``int32[N, 4]``, batch index first.
      offsets: ``int32[K, 3]``, offsets to add to the coordinates before hashing; None adds nothing.

    Returns:
      ``int64[N]``, or ``int64[K, N]`` with offsets.

    Raises:
      ArgumentError: a shape or dtype is wrong.
    """
    return fnv(coords, offsets, (1, 0))


def fnv(coords: torch.Tensor, offsets: torch.Tensor | None, batch: tuple[int, int]) -> torch.Tensor:
    """Return the hashes of :func:`sphash`, for coordinates with the batch index first or last.

    Other arguments are as in :func:`sphash`. ``batch``, the padding that ``offsets`` needs for the
    batch index, is (1, 0) if the batch index is first, and (0, 1) if it is last.
    """
    check_integers("coords", coords, 4)
    if offsets is not None:
        check_integers("offsets", offsets, 3)
        coords = coords + torch.nn.functional.pad(offsets, batch)[:, None]
    found = torch.full(coords.shape[:-1], _BASIS, dtype=torch.int64)
    for column in (coords.long() & 0xFFFFFFFF).unbind(-1):
        found = (found ^ column) * _PRIME
    return found


def sphashquery(queries: torch.Tensor, references: torch.Tensor) -> torch.Tensor:
    """Find hashes: return the first position in ``references`` of each query, or -1.

    Args:
      queries: hashes to find, ``int64[...]``.
      references: hashes to search, ``int64[N]``.

    Returns:
      ``int32`` in the shape of the queries.

    Raises:
      ArgumentError: a dtype or device is wrong.
    """
    for name, tensor in (("queries", queries), ("references", references)):
        check_cpu(tensor, name)
        if tensor.dtype is not torch.int64:
            raise ArgumentError(f"{name} of {tensor.dtype}: expected int64 hashes, of sphash")
    table = GPUHashTable(2 * len(references))
    table.insert_vals(references)
    flat = queries.reshape(-1)
    return (table.lookup_vals(flat)[: len(flat)] - 1).view(queries.shape)
