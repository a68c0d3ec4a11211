"""Convert points to the voxels that contain them."""

from __future__ import annotations

from typing import Any

from voxax.torch.torchsparse.utils import quantize as version_2_1


def sparse_quantize(coords: Any, voxel_size: Any = 1, **returned: bool) -> Any:
    """Return the distinct voxels that contain the points, moved so that each axis begins at 0.

    Arguments are as in :func:`voxax.torch.torchsparse.utils.quantize.sparse_quantize`.
    """
    found = version_2_1.sparse_quantize(coords, voxel_size, **returned)
    voxels = found[0] if isinstance(found, list) else found
    if len(voxels):
        voxels -= voxels.min(0)
    return found
