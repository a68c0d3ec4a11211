"""Average features of points in voxels, and interpolate features of voxels at points."""

from __future__ import annotations

import itertools

import torch

from voxax.torch.core.errors import ArgumentError, check_cpu


def spcount(coords: torch.Tensor, num: int | torch.Tensor) -> torch.Tensor:
    """Count the points of each voxel, ``int32[num]``.

    Args:
      coords: integers ``[N]``, the voxel of each point; negative numbers are not counted.
      num: number of voxels.

    Raises:
      ArgumentError: a voxel in ``coords`` is ``num`` or more.
    """
    rows = coords.reshape(-1).long()
    _check_rows(rows, int(num))
    return torch.bincount(rows[rows >= 0], minlength=int(num)).int()


def spvoxelize(feats: torch.Tensor, coords: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the sum of each voxel's point features, divided by the voxel's count, ``[M, C]``.

    Args:
      feats: features of the points, ``[N, C]``.
      coords: integers ``[N]``, the voxel of each point; negative for a point without a voxel.
      counts: integers ``[M]``, number of points of each voxel; a count of 0 gives features of 0.

    Raises:
      ArgumentError: a voxel in ``coords`` is M or more.
    """
    check_cpu(feats, "feats")
    rows, number = coords.reshape(-1).long(), len(counts)
    _check_shape("feats", feats, (len(rows), None))
    _check_rows(rows, number)
    inside = rows >= 0
    rows, feats = rows[inside], feats[inside]
    weights = torch.where(counts > 0, counts.clamp(min=1).to(feats.dtype).reciprocal(), 0)
    out = feats.new_zeros((number, feats.shape[1]))
    return out.index_add(0, rows, feats * weights[rows, None])


def spdevoxelize(feats: torch.Tensor, coords: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return for each point the weighted sum of the features of K voxels, ``[N, C]``.

    Args:
      feats: features of the voxels, ``[M, C]``.
      coords: integers ``[N, K]``, rows of the voxels in ``feats``; negative rows do not count.
      weights: ``[N, K]``, weights of the voxels, which get no gradient.

    Raises:
      ArgumentError: a row is M or more.
    """
    check_cpu(feats, "feats")
    _check_shape("feats", feats, (None, None))
    _check_shape("coords", coords, (None, None))
    _check_shape("weights", weights, tuple(coords.shape))
    _check_rows(coords.reshape(-1), len(feats))
    weights = torch.where(coords >= 0, weights.detach(), 0).to(feats.dtype)
    rows = coords.long().clamp(min=0)
    if len(feats) == 0:
        return feats.new_zeros((len(coords), feats.shape[1])) + feats.sum()
    return torch.nn.functional.embedding_bag(rows, feats, mode="sum", per_sample_weights=weights)


@torch.no_grad()
def calc_ti_weights(
    coords: torch.Tensor, idx_query: torch.Tensor, scale: float = 1
) -> torch.Tensor:
    """Return the weights ``[N, 8]`` of 8 voxels around each point for trilinear interpolation.

    Args:
      coords: coordinates x, y, z of the points, ``[N, 3]``; more columns are ignored.
      idx_query: ``[N, 8]``, rows of the voxels, z fastest. A row of -1 means no voxel and gets the
        weight 0; the other weights are scaled to sum to 1.
      scale: edge length of a voxel.

    Raises:
      ArgumentError: a shape is wrong, or the scale is not above 0.
    """
    if not scale > 0:
        raise ArgumentError(f"scale={scale}: expected the edge length of a voxel, above 0")
    _check_shape("coords", coords[:, :3], (None, 3))
    _check_shape("idx_query", idx_query, (len(coords), 8))
    points = coords[:, :3] / scale
    above = points - points.floor()
    sides = torch.stack([1 - above, above])
    corners = [
        sides[x, :, 0] * sides[y, :, 1] * sides[z, :, 2]
        for x, y, z in itertools.product((0, 1), repeat=3)
    ]
    weights = torch.stack(corners, dim=1).masked_fill(idx_query == -1, 0)
    return weights / (weights.sum(1, keepdim=True) + 1e-8)


def _check_rows(rows: torch.Tensor, number: int) -> None:
    if len(rows) and int(rows.max()) >= number:
        raise ArgumentError(
            f"row {int(rows.max())} of {number} voxels: expected less. Give as many counts as "
            "there are voxels"
        )


def _check_shape(name: str, tensor: torch.Tensor, sizes: tuple[int | None, ...]) -> None:
    shape = tuple(tensor.shape)
    pairs = zip(shape, sizes, strict=False)
    if len(shape) != len(sizes) or any(size not in (None, n) for n, size in pairs):
        expected = ", ".join("any" if size is None else str(size) for size in sizes)
        raise ArgumentError(f"{name} of shape {list(shape)}: expected [{expected}]")
