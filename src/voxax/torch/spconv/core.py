"""Sparse tensors."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx._symbolic_trace import ProxyableClassMeta

from voxax.torch.integers import is_single
from voxax.torch.spconv.algo import ConvAlgo
from voxax.torch.spconv.duplicates import LastOfVoxel
from voxax.torch.spconv.errors import SpconvError, check_cpu, check_features, whole
from voxax.torch.spconv.indice_data import ImplicitGemmIndiceData, IndiceData
from voxax.torch.spconv.sites import Sites
from voxax.torch.spconv.timer import CUDAKernelTimer
from voxax.torch.spconv.uncompiled import uncompiled

__all__ = [
    "ImplicitGemmIndiceData",
    "IndiceData",
    "SparseConvTensor",
    "ThrustSortAllocator",
    "expand_nd",
    "scatter_nd",
]


def expand_nd(ndim: int, val: int | Sequence[int] | np.ndarray) -> list[int]:
    """Return one integer per axis.

    Raises:
      SpconvError: a sequence of another length.
    """
    ndim = whole("ndim", ndim)
    values = [val] * ndim if is_single(val) else list(val)  # type: ignore[arg-type]
    if len(values) != ndim:
        raise SpconvError(f"{values} for {ndim} axes: expected one integer, or one per axis")
    return [whole(f"{values}, a size", value) for value in values]


def scatter_nd(indices: torch.Tensor, updates: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return zeros of ``shape`` with ``updates`` at ``indices``, of which none occurs twice.

    Args:
      indices: ``int[..., n]``, positions along the first n axes.
      updates: ``[..., *shape[n:]]``.
      shape: of the result.
    """
    ndim, shape = indices.shape[-1], [whole("shape", size) for size in shape]
    rows = indices.reshape(-1, ndim).long()
    flat = rows.new_zeros(rows.shape[0])
    for axis in range(ndim):
        flat = flat * shape[axis] + rows[:, axis]
    rest = list(shape[ndim:])
    made = updates.new_zeros([math.prod(shape[:ndim]), *rest])
    return made.index_copy(0, flat, updates.reshape(-1, *rest)).reshape(list(shape))


class ThrustSortAllocator:
    """Bytes that sorting on a GPU borrows; memory is kept and lent again.

    Args:
      device: of the bytes.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.alloced_objs: dict[int, torch.Tensor] = {}

    def alloc(self, n: int) -> int:
        """Return the address of at least ``n`` bytes."""
        large = [size for size in self.alloced_objs if size >= n]
        size = min(large, default=n)
        if not large:
            self.alloced_objs[n] = torch.empty(n, dtype=torch.uint8, device=self.device)
        return self.alloced_objs[size].data_ptr()


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
        features: torch.Tensor,
        indices: torch.Tensor,
        spatial_shape: Sequence[int] | np.ndarray,
        batch_size: int,
        grid: torch.Tensor | None = None,
        voxel_num: torch.Tensor | None = None,
        indice_dict: dict | None = None,
        benchmark: bool = False,
        permanent_thrust_allocator: bool = False,
        enable_timer: bool = False,
        force_algo: ConvAlgo | None = None,
    ) -> None:
        if isinstance(features, torch.Tensor) and isinstance(indices, torch.Tensor):
            _check_tensors(features, indices, spatial_shape, batch_size)
        self._features = features
        self.indices = indices
        self.spatial_shape, self.batch_size = spatial_shape, batch_size
        self.indice_dict = {} if indice_dict is None else indice_dict
        self.grid: torch.Tensor | None = torch.empty(0) if grid is None else grid
        self.voxel_num = voxel_num
        self.benchmark = benchmark
        self.benchmark_record: dict[str, Any] = {}
        self.thrust_allocator = None
        self._timer = CUDAKernelTimer(enable_timer)
        self.force_algo = force_algo
        self.int8_scale = None
        self._sites: Sites | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sites": None}

    def __repr__(self) -> str:
        return f"SparseConvTensor[shape={self._features.shape}]"

    @property
    def features(self) -> torch.Tensor:
        """``[N, C]``. Not to be set: see :meth:`replace_feature`."""
        return self._features

    @features.setter
    def features(self, val: torch.Tensor) -> None:
        raise SpconvError(
            "features cannot be set: x = x.replace_feature(new_features) makes a tensor with them"
        )

    @property
    def spatial_shape(self) -> list[int]:
        """D sizes; of fractions the whole part, as in spconv."""
        return self._spatial_shape

    @spatial_shape.setter
    def spatial_shape(self, sizes: Sequence[int] | np.ndarray | torch.Tensor) -> None:
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
          SpconvError: indices outside ``spatial_shape`` or ``batch_size``, or another number of
            rows than features.
        """
        check_features(self.features, self.indices.shape[0])
        known = self._sites
        if known is None or not known.are_of(self.indices, self.spatial_shape, self.batch_size):
            self._sites = Sites(self.indices, self.spatial_shape, self.batch_size)
        assert self._sites is not None
        return self._sites

    def on(self, sites: Sites, features: torch.Tensor) -> SparseConvTensor:
        """Return a tensor at other voxels, with all else as here."""
        made = self.replace_feature(features)
        made.indices, made.spatial_shape = sites.indices, list(sites.spatial_shape)
        made._sites = sites
        return made

    def replace_feature(self, feature: torch.Tensor) -> SparseConvTensor:
        """Return a tensor with other features at the same voxels."""
        made = SparseConvTensor(
            feature,
            self.indices,
            self.spatial_shape,
            self.batch_size,
            self.grid,
            self.voxel_num,
            self.indice_dict,
            self.benchmark,
        )
        made.benchmark_record = self.benchmark_record
        made.thrust_allocator = self.thrust_allocator
        made._timer = self._timer
        made.force_algo = self.force_algo
        made.int8_scale = self.int8_scale
        made._sites = self._sites
        return made

    def shadow_copy(self) -> SparseConvTensor:
        """Return another tensor with the same members."""
        return self.replace_feature(self.features)

    def select_by_index(self, valid_indices: torch.Tensor) -> SparseConvTensor:
        """Return the rows that an index or a mask picks, without the pairs of layers before."""
        made = self.replace_feature(self.features[valid_indices])
        made.indices = self.indices[valid_indices]
        made.indice_dict = {}
        return made

    def minus(self) -> SparseConvTensor:
        """Return the tensor with negated features."""
        return self.replace_feature(-self.features)

    def q_scale(self) -> float:
        """Raise: nothing is quantized on a CPU."""
        raise SpconvError("the sparse tensor is not quantized")

    def dequantize(self) -> SparseConvTensor:
        """Return this tensor's features dequantized."""
        return self.replace_feature(self.features.dequantize())

    @classmethod
    def from_dense(cls, x: torch.Tensor) -> SparseConvTensor:
        """Return the cells of ``[B, *spatial_shape, C]`` in which a channel is not zero."""
        sparse = x.to_sparse(x.ndim - 1)
        indices = sparse.indices().t().contiguous().int()
        return cls(sparse.values(), indices, list(x.shape[1:-1]), x.shape[0])

    def dense(self, channels_first: bool = True) -> torch.Tensor:
        """Return ``[B, C, *spatial_shape]``, or ``[B, *spatial_shape, C]``, zero elsewhere.

        Of rows at one voxel the last stays, and all receive its gradient, as in spconv.

        Raises:
          SpconvError: as the layers do for wrong indices.
        """
        made: torch.Tensor = _densified(self)  # type: ignore[arg-type]
        return made.movedim(-1, 1).contiguous() if channels_first else made

    def find_indice_pair(self, key: str | None) -> IndiceData | ImplicitGemmIndiceData | None:
        """Return the pairs that a layer left under this ``indice_key``, or None."""
        return None if key is None else self.indice_dict.get(key)

    def __add__(self, other: SparseConvTensor | torch.Tensor) -> SparseConvTensor:
        return self.replace_feature(self.features + self._added(other))

    __radd__ = __add__

    def __iadd__(self, other: SparseConvTensor | torch.Tensor) -> SparseConvTensor:
        self._features = self.features + self._added(other)
        return self

    def _added(self, other: SparseConvTensor | torch.Tensor) -> torch.Tensor:
        if isinstance(other, torch.Tensor):
            return other
        if not isinstance(other, SparseConvTensor):
            raise SpconvError(
                f"a sparse tensor and {type(other).__name__}: expected a SparseConvTensor or its "
                "features"
            )
        if self.spatial_shape != other.spatial_shape or len(self.indices) != len(other.indices):
            raise SpconvError(
                f"adding tensors of spatial shape {self.spatial_shape} with {len(self.indices)} "
                f"voxels and {other.spatial_shape} with {len(other.indices)}: they are at the same "
                "voxels, or functional.sparse_add takes them"
            )
        return other.features


@uncompiled
def _densified(x: SparseConvTensor) -> torch.Tensor:
    duplicates, features = x.sites().duplicates(), x.features
    if duplicates is not None:
        features = LastOfVoxel.apply(features, duplicates.last_rows())
    shape = [x.batch_size, *x.spatial_shape, features.shape[1]]
    return scatter_nd(x.indices, features, shape)


def _check_tensors(
    features: torch.Tensor, indices: torch.Tensor, spatial_shape: Any, batch_size: Any
) -> None:
    if features.ndim != 2 or indices.ndim != 2 or not 2 <= indices.shape[1] <= 5:
        raise SpconvError(
            f"features of shape {tuple(features.shape)} and indices of {tuple(indices.shape)}: "
            "expected [N, C] and [N, 1 + D], D from 1 to 4"
        )
    if len(spatial_shape) != indices.shape[1] - 1:
        raise SpconvError(
            f"spatial_shape {list(spatial_shape)} for indices of {indices.shape[1] - 1} axes"
        )
    if indices.dtype != torch.int32:
        raise SpconvError(f"indices of {indices.dtype}: only int32; convert with .int()")
    batch_size = whole("batch_size", batch_size)
    if batch_size <= 0:
        raise SpconvError(f"batch_size {batch_size}: expected 1 or more")
    for tensor, name in ((features, "features"), (indices, "indices")):
        if tensor.device.type != "meta":
            check_cpu(tensor, name)
