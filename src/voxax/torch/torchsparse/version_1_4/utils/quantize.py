"""Voxels of points."""

from __future__ import annotations

from typing import Any

from voxax.torch.torchsparse.utils import quantize as version_2_1


def sparse_quantize(coords: Any, voxel_size: Any = 1, **returned: bool) -> Any:
    """Return :func:`voxax.torch.torchsparse.utils.quantize.sparse_quantize`.

    The voxels are counted from the lowest on each axis.
    """
    found = version_2_1.sparse_quantize(coords, voxel_size, **returned)
    voxels = found[0] if isinstance(found, list) else found
    if len(voxels):
        voxels -= voxels.min(0)
    return found
