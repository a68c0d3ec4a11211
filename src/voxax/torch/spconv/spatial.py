"""Define a module that removes repeated voxels from a sparse tensor."""

from __future__ import annotations

import torch

from voxax.torch.spconv.core import SparseConvTensor
from voxax.torch.spconv.modules import SparseModule


class RemoveDuplicate(SparseModule):
    """Module that keeps the first row of each voxel, sorted by batch index and coordinates.

    ``indice_dict`` of the result is empty. spconv's own module fails unless there are two voxels.
    """

    def forward(self, x: SparseConvTensor) -> SparseConvTensor:
        _, places = torch.unique(x.indices, dim=0, return_inverse=True)
        order = torch.arange(len(places), device=places.device)
        count = int(places.max()) + 1 if len(places) else 0
        first = order.new_full((count,), len(places)).scatter_reduce(0, places, order, "amin")
        kept = x.features[first], x.indices[first]
        return SparseConvTensor(*kept, x.spatial_shape, x.batch_size, x.grid)
