"""Define a module that removes repeated voxels from a sparse tensor."""

from __future__ import annotations

import torch

from voxax.torch.core.kernel_map import first_rows, unique_rows
from voxax.torch.spconv.core import SparseConvTensor
from voxax.torch.spconv.modules import SparseModule


class RemoveDuplicate(SparseModule):
    """Module that keeps the first row of each voxel, sorted by batch index and coordinates.

    ``indice_dict`` of the result is empty. spconv's own module fails unless there are two voxels.
    """

    def forward(self, x: SparseConvTensor) -> SparseConvTensor:
        first = torch.from_numpy(first_rows(unique_rows(x.indices.numpy())))
        kept = x.features[first], x.indices[first]
        return SparseConvTensor(*kept, x.spatial_shape, x.batch_size, x.grid)
