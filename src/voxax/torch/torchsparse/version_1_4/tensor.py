"""Sparse tensors of TorchSparse 1.4, whose batch index is the last column of coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from voxax.torch.core.errors import ArgumentError
from voxax.torch.torchsparse import tensor as version_2_1
from voxax.torch.torchsparse.tensor import PointTensor as PointTensor
from voxax.torch.torchsparse.utils.grids import check_integers


class KernelMaps(dict[tuple[Any, ...], Any]):
    """Cache that maps the keys of TorchSparse 2.1's ``kmaps`` to the kernel maps of layers.

    ``sites`` maps a stride to the voxels. ``cells`` maps a stride to three arrays: coordinates in
    the format of TorchSparse 1.4, a copy of them, and coordinates in the format of TorchSparse 2.1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[tuple[int, ...], Any] = {}
        self.cells: dict[tuple[int, ...], tuple[torch.Tensor, np.ndarray, torch.Tensor]] = {}

    @property
    def kmaps(self) -> KernelMaps:
        """This dictionary itself, which has the kernel maps of layers."""
        return self


class SparseTensor(version_2_1.SparseTensor):
    """Sparse tensor: features ``[N, C]`` at voxels ``int32[N, 4]``: x, y, z, batch index.

    x, y and z are multiples of the stride. The input and output tensors of layers share ``cmaps``,
    the coordinates by stride, and ``kmaps``, the kernel maps of layers.
    """

    _batch, _axes = 3, slice(0, 3)

    def __init__(self, feats: Any, coords: torch.Tensor, stride: Any = 1) -> None:
        super().__init__(feats, coords, stride)
        self.cmaps: dict[tuple[int, ...], torch.Tensor] = {}

    def dense(self) -> torch.Tensor:
        """Raise :class:`ArgumentError`, because TorchSparse 1.4 cannot make dense grids."""
        raise ArgumentError("dense() is of TorchSparse 2.1: take voxax.torch.torchsparse")

    @property
    def kmaps(self) -> Any:
        """The kernel maps of layers, which the input and output tensors of layers share."""
        return self._caches

    @kmaps.setter
    def kmaps(self, kmaps: Any) -> None:
        self._caches = kmaps if isinstance(kmaps, KernelMaps) else KernelMaps()

    def _new_cache(self) -> Any:
        return KernelMaps()

    def _share(self, output: Any) -> Any:
        output.cmaps, output.kmaps = self.cmaps, self.kmaps
        return output

    def _cells(self) -> torch.Tensor:
        coords, known = self.coords, self.kmaps.cells.get(self.stride)
        check_integers("coords", coords, 4, ", batch index last")
        if known is None or known[0] is not coords or not np.array_equal(known[1], coords.numpy()):
            steps = torch.tensor([*self.stride, 1], dtype=torch.int32)
            cells = coords.div(steps, rounding_mode="floor")
            if not torch.equal(cells * steps, coords):
                row = int((cells * steps != coords).any(1).nonzero()[0, 0])
                raise ArgumentError(
                    f"coords {coords[row].tolist()} of stride {self.stride}: expected x, y and z "
                    "to be multiples of the stride, as in TorchSparse 1.4"
                )
            known = coords, coords.numpy().copy(), cells[:, [3, 0, 1, 2]]
            self.kmaps.cells[self.stride] = known
        return known[2]

    @staticmethod
    def _coords_of(cells: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
        return cells[:, [1, 2, 3, 0]] * torch.tensor([*stride, 1], dtype=torch.int32)

    def _made(self, feats: Any, cells: torch.Tensor, stride: Any, spatial_range: Any) -> Any:
        known = self.kmaps.cells.get(stride)
        if known is None or known[2] is not cells:
            coords = self._coords_of(cells, stride)
            known = self.kmaps.cells[stride] = coords, coords.numpy().copy(), cells
        return self._share(SparseTensor(feats, known[0], stride))._remembered()

    def _remembered(self) -> SparseTensor:
        self._cells()  # raises for wrong coords
        self.cmaps.setdefault(self.stride, self.coords)
        return self


SparseTensor._kind = SparseTensor
