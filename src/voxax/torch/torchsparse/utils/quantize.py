"""Convert points to the voxels that contain them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from voxax.torch.core.errors import ArgumentError
from voxax.torch.core.kernel_map import first_rows, unique_rows

Size = float | Sequence[float]


def sparse_quantize(
    coords: Any, voxel_size: Size = 1, *, return_index: bool = False, return_inverse: bool = False
) -> Any:
    """Return the distinct voxels that contain the points, in lexicographic order.

    Args:
      coords: coordinates of the points, ``[N, 3]``.
      voxel_size: edge length of a voxel, one number or one per axis.
      return_index: also return the first point of each voxel, ``int64[M]``.
      return_inverse: also return the voxel of each point, ``int64[N]``.

    Returns:
      The voxels ``int32[M, 3]``, or a list of the voxels and the other requested arrays.
    """
    points, sizes = np.asarray(coords), np.asarray(voxel_size, np.float64)
    if points.ndim != 2 or points.shape[1] != 3:
        raise ArgumentError(f"coords of shape {points.shape}: expected [N, 3]")
    if sizes.shape not in ((), (3,)) or not (sizes > 0).all():
        raise ArgumentError(f"voxel_size={voxel_size}: expected one positive number, or three")
    cells = np.floor(points / sizes)
    if cells.size and not np.abs(cells).max() < 2**31:
        raise ArgumentError(
            f"cells up to {np.abs(cells).max():g}: they have 32 bits. Enlarge voxel_size="
            f"{voxel_size}, or drop points that are not finite"
        )
    unique = unique_rows(np.pad(cells.astype(np.int32), ((0, 0), (1, 0))))
    outputs = [unique[0][:, 1:].copy()]
    if return_index:
        outputs.append(first_rows(unique))
    if return_inverse:
        outputs.append(unique[1].astype(np.int64))
    return outputs[0] if len(outputs) == 1 else outputs
