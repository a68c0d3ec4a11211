"""Sparse tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx._symbolic_trace import ProxyableClassMeta

from voxax.torch.core.duplicates import LastOfVoxel
from voxax.torch.core.errors import ArgumentError, check_cpu, check_features
from voxax.torch.core.integers import whole, wholes
from voxax.torch.core.uncompiled import uncompiled
from voxax.torch.spconv.algo import ConvAlgo
from voxax.torch.spconv.diagnostics import CUDAKernelTimer
from voxax.torch.spconv.duplicates import Sites
from voxax.torch.spconv.indice_data import ImplicitGemmIndiceData as ImplicitGemmIndiceData
from voxax.torch.spconv.indice_data import IndiceData as IndiceData


def expand_nd(ndim: int, val: int | Sequence[int] | np.ndarray) -> list[int]:
    """Return one integer per axis, or raise :class:`SpconvError`."""
    return wholes("sizes", val, whole("ndim", ndim))


def scatter_nd(indices: Tensor, updates: Tensor, shape: Sequence[int]) -> Tensor:
    """Return zeros of ``shape`` with ``updates`` at ``indices``, of which none occurs twice.

    Args:
      indices: ``int[..., n]``, positions along the first n axes.
      updates: ``[..., *shape[n:]]``.
      shape: shape of the result.
    """
    ndim, sizes = indices.shape[-1], [whole("shape", size) for size in shape]
    rows = indices.reshape(-1, ndim).long()
    flat = rows.new_zeros(rows.shape[0])
    for axis, size in enumerate(sizes[:ndim]):
        flat = flat * size + rows[:, axis]
    made = updates.new_zeros([math.prod(sizes[:ndim]), *sizes[ndim:]])
    return made.index_copy(0, flat, updates.reshape(-1, *sizes[ndim:])).reshape(sizes)


def _check_tensors(features: Tensor, indices: Tensor, spatial_shape: Any, batch_size: Any) -> None:
    axes = indices.shape[1] - 1 if indices.ndim == 2 else 0
    if features.ndim != 2 or not 1 <= axes <= 4:
        raise ArgumentError(
            f"features of shape {tuple(features.shape)} and indices of {tuple(indices.shape)}: "
            "expected [N, C] and [N, 1 + D], D from 1 to 4"
        )
    if len(spatial_shape) != axes:
        raise ArgumentError(f"spatial_shape {list(spatial_shape)} for indices of {axes} axes")
    if indices.dtype != torch.int32:
        raise ArgumentError(f"indices of {indices.dtype}: only int32; convert with .int()")
    batch_size = whole("batch_size", batch_size)
    if batch_size <= 0:
        raise ArgumentError(f"batch_size {batch_size}: expected 1 or more")
    for tensor, name in ((features, "features"), (indices, "indices")):
        if tensor.device.type != "meta":
            check_cpu(tensor, name)


class ThrustSortAllocator:
    """Stand-in for the memory that sorting on a GPU uses; a CPU needs none."""

    def __init__(self, device: torch.device) -> None:
        self.device = device


SpConvTensorMeta = ProxyableClassMeta


class SparseConvTensor(metaclass=ProxyableClassMeta):
    """Features at integer coordinates.

    Args:
      features: ``[N, C]`` of float32, float64, float16 or bfloat16.
      indices: ``int32[N, 1 + D]``: batch index, then D coordinates in ``spatial_shape``'s order;
        D is 1 to 4. Layers check that they are inside and distinct.
      spatial_shape: D sizes.
      batch_size: number of scenes, 1 or more; a scene may be missing.
      grid, voxel_num, permanent_thrust_allocator, enable_timer, force_algo: kept, without meaning
        on a CPU.
      indice_dict: pairs by ``indice_key``.
      benchmark: layers with a name note their times in ``benchmark_record``.

    Raises:
      SpconvError: other shapes or dtypes, or tensors on another device.
    """

    def __init__(
        self,
        features: Tensor,
        indices: Tensor,
        spatial_shape: Sequence[int] | np.ndarray,
        batch_size: int,
        grid: Tensor | None = None,
        voxel_num: Tensor | None = None,
        indice_dict: dict | None = None,
        benchmark: bool = False,
        permanent_thrust_allocator: bool = False,
        enable_timer: bool = False,
        force_algo: ConvAlgo | None = None,
    ) -> None:
        if isinstance(features, Tensor) and isinstance(indices, Tensor):
            _check_tensors(features, indices, spatial_shape, batch_size)
        self._features, self.indices = features, indices
        self.spatial_shape, self.batch_size = spatial_shape, batch_size
        self.grid: Tensor | None = torch.empty(0) if grid is None else grid
        self.voxel_num, self.force_algo = voxel_num, force_algo
        self.indice_dict = {} if indice_dict is None else indice_dict
        self.benchmark, self._timer = benchmark, CUDAKernelTimer(enable_timer)
        self.benchmark_record: dict[str, Any] = {}
        self.thrust_allocator = self.int8_scale = None
        self._sites: Sites | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sites": None}

    def __repr__(self) -> str:
        return f"SparseConvTensor[shape={self._features.shape}]"

    @property
    def features(self) -> Tensor:
        """``[N, C]``. Not to be set: see :meth:`replace_feature`."""
        return self._features

    @features.setter
    def features(self, val: Tensor) -> None:
        raise ArgumentError(
            "features cannot be set: x = x.replace_feature(new_features) makes a tensor with them"
        )

    @property
    def spatial_shape(self) -> list[int]:
        """D sizes; of fractions the whole part, as in spconv."""
        return self._spatial_shape

    @spatial_shape.setter
    def spatial_shape(self, sizes: Sequence[int] | np.ndarray | Tensor) -> None:
        self._spatial_shape = [int(size) for size in sizes]

    @property
    def batch_size(self) -> int:
        """Number of scenes."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, number: int) -> None:
        self._batch_size = whole("batch_size", number)

    @property
    def is_quantized(self) -> bool:
        """False: quantized inference runs on GPUs only."""
        return False

    @property
    def spatial_size(self) -> int:
        """Number of cells of one scene."""
        return math.prod(self.spatial_shape)

    def sites(self) -> Sites:
        """Return the checked indices, with the maps that were built from them.

        Raises:
          SpconvError: indices outside ``spatial_shape`` or ``batch_size``, or not one per feature.
        """
        check_features(self.features, self.indices.shape[0])
        known = self._sites
        if known is None or not known.are_of(self.indices, self.spatial_shape, self.batch_size):
            self._sites = Sites(self.indices, self.spatial_shape, self.batch_size)
        assert self._sites is not None
        return self._sites

    def on(self, sites: Sites, features: Tensor) -> SparseConvTensor:
        """Return a tensor at other voxels, with all else as here."""
        made = self.replace_feature(features)
        made.indices, made.spatial_shape = sites.indices, list(sites.spatial_shape)
        made._sites = sites
        return made

    def replace_feature(self, feature: Tensor) -> SparseConvTensor:
        """Return a tensor with other features at the same voxels."""
        rest = self.grid, self.voxel_num, self.indice_dict, self.benchmark
        made = SparseConvTensor(feature, self.indices, self.spatial_shape, self.batch_size, *rest)
        made.benchmark_record, made._timer = self.benchmark_record, self._timer
        made.thrust_allocator, made.int8_scale = self.thrust_allocator, self.int8_scale
        made.force_algo, made._sites = self.force_algo, self._sites
        return made

    def shadow_copy(self) -> SparseConvTensor:
        """Return another tensor with the same members."""
        return self.replace_feature(self.features)

    def select_by_index(self, valid_indices: Tensor) -> SparseConvTensor:
        """Return the rows that an index or a mask picks, without the pairs of layers before."""
        made = self.replace_feature(self.features[valid_indices])
        made.indices, made.indice_dict = self.indices[valid_indices], {}
        return made

    def minus(self) -> SparseConvTensor:
        """Return the tensor with negated features."""
        return self.replace_feature(-self.features)

    @classmethod
    def from_dense(cls, x: Tensor) -> SparseConvTensor:
        """Return the cells of ``[B, *spatial_shape, C]`` in which a channel is not zero."""
        sparse = x.to_sparse(x.ndim - 1)
        indices = sparse.indices().t().contiguous().int()
        return cls(sparse.values(), indices, list(x.shape[1:-1]), x.shape[0])

    @uncompiled
    def dense(self, channels_first: bool = True) -> Tensor:
        """Return ``[B, C, *spatial_shape]``, or ``[B, *spatial_shape, C]``, zero elsewhere.

        The last row of a voxel stays, and all of its rows receive the gradient, as in spconv.
        """
        duplicates, features = self.sites().duplicates(), self.features
        if duplicates is not None:
            features = LastOfVoxel.apply(features, duplicates.last_rows())
        shape = [self.batch_size, *self.spatial_shape, features.shape[1]]
        made = scatter_nd(self.indices, features, shape)
        return made.movedim(-1, 1).contiguous() if channels_first else made

    def find_indice_pair(self, key: str | None) -> IndiceData | ImplicitGemmIndiceData | None:
        """Return the pairs that a layer left under this ``indice_key``, or None."""
        return None if key is None else self.indice_dict.get(key)

    def __add__(self, other: SparseConvTensor | Tensor) -> SparseConvTensor:
        return self.replace_feature(self.features + self._added(other))

    __radd__ = __add__

    def __iadd__(self, other: SparseConvTensor | Tensor) -> SparseConvTensor:
        self._features = self.features + self._added(other)
        return self

    def _added(self, other: SparseConvTensor | Tensor) -> Tensor:
        if isinstance(other, Tensor):
            return other
        if not isinstance(other, SparseConvTensor):
            kind = type(other).__name__
            raise ArgumentError(
                f"a sparse tensor and {kind}: expected a SparseConvTensor or its features"
            )
        if self.spatial_shape != other.spatial_shape or len(self.indices) != len(other.indices):
            raise ArgumentError(
                f"adding tensors of spatial shape {self.spatial_shape} with {len(self.indices)} "
                f"voxels and {other.spatial_shape} with {len(other.indices)}: they are at the same "
                "voxels, or functional.sparse_add takes them"
            )
        return other.features
