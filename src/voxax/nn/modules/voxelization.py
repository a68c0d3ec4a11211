"""Modules that turn points into voxels and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from voxax._array_types import Array, Float, Int, Num, Shaped
from voxax.geometry import Points, Voxels, devoxelize, splat, voxelize
from voxax.geometry.host_merge import Reduction
from voxax.geometry.interpolate import Interpolation
from voxax.nn.arguments import static
from voxax.nn.modules.constructor import CheckedModule


class Voxelize(CheckedModule):
    """Merge points into voxels. See :func:`voxax.voxelize`.

    Args:
      voxel_size: edge length in the positions' unit, a number or one per axis.
      reduction: how the features of a voxel's points are merged, such as ``"mean"``.
      capacity: static number of rows of the result. None takes one of a few standard sizes in eager
        calls, and the number of points under ``jax.jit``.
      origin: position of the lattice origin; None is zero.
      return_inverse: whether to also return the voxel row of each point.
    """

    def __init__(
        self,
        voxel_size: float | Sequence[float],
        *,
        reduction: Reduction = "mean",
        capacity: int | None = None,
        origin: Sequence[float] | None = None,
        return_inverse: bool = False,
    ) -> None:
        self.voxel_size, self.origin = static(voxel_size), static(origin)
        self.reduction: Reduction = reduction
        self.capacity, self.return_inverse = static(capacity), return_inverse

    def __call__(
        self,
        positions: Float[Array | np.ndarray, "N D"] | Points,
        features: Shaped[Array | np.ndarray, "N C"] | None = None,
        batch_index: Int[Array | np.ndarray, " N"] | None = None,
        *,
        batch_size: int | None = None,
    ) -> Any:
        """Return the Voxels of the points, or ``(Voxels, inverse)`` with ``return_inverse``.

        ``inverse`` is ``int32[N]``, the voxel row of each of N points, -1 if the point was dropped.
        Arguments as in :func:`voxax.voxelize`.
        """
        return voxelize(
            positions,
            features,
            self.voxel_size,
            batch_index,
            self.reduction,
            self.capacity,
            self.return_inverse,
            batch_size=batch_size,
            origin=self.origin,
        )


class Devoxelize(CheckedModule):
    """Read or interpolate voxel features at positions; see :func:`voxax.devoxelize`.

    The constructor takes ``interpolation`` and ``normalize``. A call takes the other arguments.
    """

    def __init__(
        self, interpolation: Interpolation = "trilinear", *, normalize: bool = False
    ) -> None:
        self.interpolation: Interpolation = interpolation
        self.normalize = normalize

    def __call__(
        self,
        voxels: Voxels,
        positions: Float[Array | np.ndarray, "N D"] | Points,
        batch_index: Int[Array | np.ndarray, " N"] | None = None,
    ) -> Any:
        """Return the features of C channels that are interpolated at N points.

        They are an array ``[N, C]`` if ``positions`` is an array ``[N, D]``. If ``positions`` are
        Points, the result is these Points with the features. ``batch_index`` is the scene of each
        point; None takes that of the Points, or scene 0.
        """
        return devoxelize(
            voxels,
            positions,
            batch_index,
            interpolation=self.interpolation,
            normalize=self.normalize,
        )


class Splat(CheckedModule):
    """Add point features to the existing voxels around each point; see :func:`voxax.splat`.

    The constructor takes ``interpolation``. A call takes the other arguments of the function.
    """

    def __init__(self, interpolation: Interpolation = "trilinear") -> None:
        self.interpolation: Interpolation = interpolation

    def __call__(
        self,
        positions: Float[Array | np.ndarray, "N D"] | Points,
        features: Num[Array | np.ndarray, "N C"] | None,
        out_voxels: Voxels,
        batch_index: Int[Array | np.ndarray, " N"] | None = None,
    ) -> Voxels:
        """Return the voxels of ``out_voxels`` with weighted sums of the features of points.

        With ``trilinear`` a point counts for the ``2**D`` voxels around it, with the weights of
        multilinear interpolation. With ``nearest`` it counts for the voxel that contains it, with
        weight 1.

        Args:
          positions: ``float[N, D]`` in the unit of ``out_voxels.voxel_size``, or Points.
          features: ``[N, C]``; None takes the features of the Points.
          out_voxels: the voxels that receive the sums; their own features are not read.
          batch_index: the scene of each point; None takes that of the Points, or scene 0.
        """
        return splat(positions, features, out_voxels, batch_index, interpolation=self.interpolation)
