"""Multiply sparse matrices with features, for example to interpolate linearly between sites."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from voxax.torch.core.errors import ArgumentError, check_cpu
from voxax.torch.minkowski.manager import CoordinateManager, Key
from voxax.torch.minkowski.module import MinkowskiModuleBase


def spmm(
    rows: Tensor,
    cols: Tensor,
    vals: Tensor,
    size: torch.Size,
    mat: Tensor,
    is_sorted: bool = False,
    cuda_spmm_alg: int = 1,
) -> Tensor:
    """Return the product of a sparse matrix with ``mat``, ``[size[0], C]``.

    Args:
      rows, cols, vals: ``[n]``, position and value of each entry; equal positions are added.
      size: numbers of rows and columns of the matrix.
      mat: ``[size[1], C]`` of the dtype of ``vals``.
      is_sorted, cuda_spmm_alg: options of GPU kernels, accepted but unused.

    Raises:
      ArgumentError: lengths or dtypes differ.
    """
    if not len(rows) == len(cols) == len(vals) or len(mat) != size[1]:
        raise ArgumentError(
            f"{len(rows)} rows, {len(cols)} columns and {len(vals)} values of a matrix {size}, "
            f"{len(mat)} rows: expected three alike, and {size[1]} rows"
        )
    if vals.dtype != mat.dtype:
        raise ArgumentError(f"values of {vals.dtype} for rows of {mat.dtype}: convert one of them")
    out = mat.new_zeros((size[0], mat.shape[1]))
    return out.index_add(0, rows.long(), mat[cols.long()] * vals[:, None])


class MinkowskiSPMMFunction:
    """:func:`spmm` with the interface of an autograd function."""

    @staticmethod
    def apply(
        rows: Tensor, cols: Tensor, vals: Tensor, size: Any, mat: Tensor, cuda_spmm_alg: int = 1
    ) -> Tensor:
        """Return the product of a sparse matrix with ``mat``, ``[size[0], C]``.

        Arguments are as in :func:`spmm`.
        """
        return spmm(rows, cols, vals, size, mat)


class MinkowskiSPMMAverageFunction:
    """Product with a sparse matrix of ones, divided by the number of entries in each row."""

    @staticmethod
    def apply(
        rows: Tensor, cols: Tensor, size: torch.Size, mat: Tensor, cuda_spmm_alg: int = 1
    ) -> Tensor:
        """Return for each row of a sparse matrix a mean of rows of ``mat``, ``[size[0], C]``.

        The n entries of the matrix are at ``rows int[n]`` and ``cols int[n]``, and ``size`` is its
        shape. The result for a row is the mean of ``mat[cols]`` over the entries in this row, or 0
        if there are none. ``cuda_spmm_alg`` is ignored.
        """
        count = torch.bincount(rows.long(), minlength=size[0])
        return spmm(rows, cols, (1 / count[rows.long()]).to(mat.dtype), size, mat)


def interpolated(
    features: Tensor, points: Tensor, key: Key, manager: CoordinateManager
) -> tuple[Tensor, ...]:
    """Interpolate the features of the sites of ``key`` linearly at P points.

    ``features`` is ``[N, C]``. ``points [P, 1 + D]``, batch index first, have the dtype of
    ``features``. A site that does not exist counts as 0.

    Returns:
      The features of the points, ``[P, C]``. Then n pairs of a site and a point whose weighted
        features were summed: ``int32[n]`` sites, ``int32[n]`` points and ``[n]`` weights.
    """
    check_cpu(points, "points")
    if points.dtype != features.dtype:
        raise ArgumentError(f"points of {points.dtype} for features of {features.dtype}: convert")
    if points.ndim != 2 or points.shape[1] != manager.D + 1:
        raise ArgumentError(f"points of shape {tuple(points.shape)}: expected [P, {manager.D + 1}]")
    sites, rows, weights = manager.interpolation_map_weight(key, points)
    size = torch.Size([len(points), len(features)])
    return spmm(rows, sites, weights, size, features), sites, rows, weights


class MinkowskiInterpolationFunction:
    """:func:`interpolated` with the interface of an autograd function."""

    apply = staticmethod(interpolated)


class MinkowskiInterpolation(MinkowskiModuleBase):
    """Layer that interpolates a sparse tensor linearly at points ``float[P, 1 + D]``.

    ``return_kernel_map`` adds the pairs ``(int32 site, int32 point)`` to the result, and
    ``return_weights`` adds the weight of each pair.
    """

    def __init__(self, return_kernel_map: bool = False, return_weights: bool = False) -> None:
        super().__init__()
        self.return_kernel_map, self.return_weights = return_kernel_map, return_weights

    def forward(self, input: Any, tfield: Tensor) -> Any:
        """Return the interpolated features ``[P, C]`` at the points ``tfield``.

        If the layer was made to return pairs or weights, these follow the features in a tuple.
        """
        keys = input.coordinate_map_key, input.coordinate_manager
        out, sites, points, weights = interpolated(input.F, tfield, *keys)
        extra = [(sites, points)] if self.return_kernel_map else []
        extra += [weights] if self.return_weights else []
        return (out, *extra) if extra else out
