"""Sparse tensors, and the kernel maps that layers store in them under their ``indice_key``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.fx import Proxy
from torch.fx._symbolic_trace import ProxyableClassMeta

from voxax.torch.core.duplicates import Duplicates, LastOfVoxel
from voxax.torch.core.errors import ArgumentError, check_cpu, check_features, whole, wholes
from voxax.torch.core.kernel_map import KernelMap, PairMap
from voxax.torch.core.sites import Sites as _Sites
from voxax.torch.core.uncompiled import uncompiled
from voxax.torch.spconv.algo import ConvAlgo
from voxax.torch.spconv.diagnostics import CUDAKernelTimer

_strict = False
_warned = False


def strict(on: bool = True) -> None:
    """Set whether all layers of this process raise an error for voxels that occur several times.

    Args:
      on: True raises :class:`SpconvError`. False, the initial setting, warns once and follows
        spconv's rule on a CPU, see :class:`voxax.torch.core.duplicates.Duplicates`.
    """
    global _strict
    _strict = bool(on)


class Sites(_Sites):
    """Voxels of a tensor with their kernel maps; a voxel may occur several times."""

    def accept(self, duplicates: Duplicates) -> None:
        """Warn once per process of repeated voxels; in strict mode raise :class:`SpconvError`."""
        global _warned
        if _strict:
            super().accept(duplicates)
        if _warned:
            return
        _warned = True
        warnings.warn(
            f"{duplicates.described(self.rows)}: layers follow spconv's rule on a CPU, slower than "
            "with distinct voxels. Merge them with torch.unique(indices, dim=0, "
            "return_inverse=True), or let voxax.torch.spconv.strict(True) refuse them",
            stacklevel=2,
        )


class Pairs:
    """A layer's kernel map, voxels and arguments, as stored in a tensor's ``indice_dict``.

    Subclasses compute spconv's formats of the kernel map when they are read.

    Attributes:
      kernel_map: map from ``indices`` to ``out_indices``.
      sites, out_sites: input and output voxels, each with the maps built from them.
      is_subm, algo, ksize, stride, dilation, padding: arguments of the layer.
      indices, out_indices: input and output voxels, ``int32[N, 1 + D]`` and ``int32[M, 1 + D]``:
        batch index, then D coordinates.
      spatial_shape, out_spatial_shape: D sizes of the input's grid and of the output's grid.
    """

    def __init__(self, kernel_map: KernelMap, sites: Sites, out: Sites, *layer: Any) -> None:
        self.kernel_map, self.sites, self.out_sites = kernel_map, sites, out
        self.indices, self.spatial_shape = sites.indices, sites.spatial_shape
        self.out_indices, self.out_spatial_shape = out.indices, out.spatial_shape
        self.is_subm, self.algo, self.ksize, self.stride, self.dilation, self.padding = layer
        self.voxel_num = self.in_voxel_num = self.out_voxel_num = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "kernel_map" in state:
            self.__dict__.update(state)
        else:  # spconv pickles the arguments of the constructor
            self.__init__(**state)

    @classmethod
    def of(cls, kernel_map: KernelMap, sites: Sites, out: Sites, *layer: Any) -> Self:
        """Make an instance from a layer's kernel map, voxels and arguments.

        ``layer`` has ``is_subm``, ``algo``, ``ksize``, ``stride``, ``dilation`` and ``padding``, in
        this order.
        """
        made = cls.__new__(cls)
        Pairs.__init__(made, kernel_map, sites, out, *layer)
        return made


def listed_numbers(numbers: Tensor) -> Tensor:
    """Return the number of pairs of each of K taps, with 0 from the center on, ``int32[K]``.

    spconv stores the numbers of a submanifold layer like this. The omitted numbers follow from
    symmetry: the center has one pair per row, and tap ``K - 1 - k`` has as many pairs as tap k.
    """
    return numbers.where(torch.arange(len(numbers)) < len(numbers) // 2, 0)


def full_numbers(listed: Tensor, rows: int) -> Tensor:
    """Return the number of pairs of each tap, given the result of :func:`listed_numbers`.

    ``rows`` is the number of rows of the submanifold layer, each of which is one pair of the
    center.
    """
    center = len(listed) // 2
    return torch.cat([listed[:center], listed.new_tensor([rows]), listed[:center].flip(0)])


def _sites(indices: Tensor, spatial_shape: list[int]) -> Sites:
    scenes = int(indices[:, 0].max()) + 1 if len(indices) else 1
    return Sites(indices, spatial_shape, scenes)


class IndiceData(Pairs):
    """Kernel map that a layer with ``algo=ConvAlgo.Native`` stores under its ``indice_key``.

    Arguments that are not listed are attributes of :class:`Pairs`.

    Args:
      indice_pairs: ``int32[2, K, N]``: input and output rows of each of the K taps, -1 after the
        last pair of a tap.
      indice_pair_num: ignored; pairs are counted in ``indice_pairs``.
      voxel_num: any value; stored as an attribute.
    """

    def __init__(
        self,
        out_indices: Tensor,
        indices: Tensor,
        indice_pairs: Tensor,
        indice_pair_num: Tensor,
        spatial_shape: list[int],
        out_spatial_shape: list[int],
        is_subm: bool,
        algo: ConvAlgo,
        ksize: list[int],
        stride: list[int],
        dilation: list[int],
        padding: list[int],
        voxel_num: Any = None,
    ) -> None:
        del indice_pair_num  # of submanifold layers it lists one half of the taps
        numbers = (indice_pairs[0] >= 0).sum(1)
        kernel_map = KernelMap.of_pairs(indice_pairs, numbers, len(indices), len(out_indices))
        sites = _sites(indices, spatial_shape), _sites(out_indices, out_spatial_shape)
        super().__init__(kernel_map, *sites, is_subm, algo, ksize, stride, dilation, padding)
        self.voxel_num = voxel_num

    @property
    def indice_pairs(self) -> Tensor:
        """Input and output rows of each tap's pairs, ``int32[2, K, N]``; -1 after the last pair."""
        return self.kernel_map.pairs()[0]

    @property
    def indice_pair_num(self) -> Tensor:
        """Number of pairs of each tap, ``int32[K]``; 0 from the center on if ``is_subm``."""
        numbers = self.kernel_map.pairs()[1]
        return listed_numbers(numbers) if self.is_subm else numbers


class ImplicitGemmIndiceData(Pairs):
    """Kernel map that a layer stores under its ``indice_key`` if its ``algo`` is not ``Native``.

    Arguments that are not listed are attributes of :class:`Pairs`.

    Args:
      pair_fwd: ``int32[K, M]``: input row of each of the K taps and M output rows, or -1.
      pair_bwd, masks and similar: ignored; the attributes are computed when read, or empty.
      in_voxel_num, out_voxel_num: any values; stored as attributes.
    """

    def __init__(
        self,
        out_indices: Tensor,
        indices: Tensor,
        pair_fwd: Tensor,
        pair_bwd: Tensor,
        pair_mask_fwd_splits: list[Tensor],
        pair_mask_bwd_splits: list[Tensor],
        mask_argsort_fwd_splits: list[Tensor],
        mask_argsort_bwd_splits: list[Tensor],
        masks: list[np.ndarray],
        spatial_shape: list[int],
        out_spatial_shape: list[int],
        is_subm: bool,
        algo: ConvAlgo,
        ksize: list[int],
        stride: list[int],
        dilation: list[int],
        padding: list[int],
        in_voxel_num: Any = None,
        out_voxel_num: Any = None,
    ) -> None:
        del pair_bwd, pair_mask_fwd_splits, pair_mask_bwd_splits
        del mask_argsort_fwd_splits, mask_argsort_bwd_splits, masks
        kernel_map = KernelMap(pair_fwd.t().contiguous(), len(indices))
        sites = _sites(indices, spatial_shape), _sites(out_indices, out_spatial_shape)
        super().__init__(kernel_map, *sites, is_subm, algo, ksize, stride, dilation, padding)
        self.in_voxel_num, self.out_voxel_num = in_voxel_num, out_voxel_num

    @property
    def pair_mask_fwd_splits(self) -> list[Tensor]:
        """An empty list, because only GPU kernels use these masks."""
        return []

    pair_mask_bwd_splits = mask_argsort_fwd_splits = mask_argsort_bwd_splits = pair_mask_fwd_splits

    @property
    def masks(self) -> list[np.ndarray]:
        """A list with one mask of 32 ones, ``uint32[1]``; only GPU kernels use it."""
        return [np.full(1, 0xFFFFFFFF, np.uint32)]

    @property
    def pair_fwd(self) -> Tensor:
        """Input row that each output row reads through each tap, ``int32[K, M]``, or -1."""
        return _table(self.kernel_map)

    @property
    def pair_bwd(self) -> Tensor:
        """Output row that reads each input row through each tap, ``int32[K, N]``, or -1."""
        return _table(self.kernel_map, back=True)


def _table(kernel_map: KernelMap, back: bool = False) -> Tensor:
    """Return the input row that each of M outputs reads through each of K taps, ``int32[K, M]``.

    If ``back``, return the output row that each of N inputs reaches instead, ``int32[K, N]``. -1
    stands for no row. The result is a copy.
    """
    if isinstance(kernel_map, PairMap):
        raise ArgumentError(
            "tables of pairs (pair_fwd, pair_bwd) of voxels that occur several times: a table "
            "holds one row for each tap. Take algo=ConvAlgo.Native, or merge the voxels"
        )
    table = kernel_map.backwards if back else kernel_map.neighbors
    return table.t().clone(memory_format=torch.contiguous_format)


def expand_nd(ndim: int, val: int | Sequence[int] | np.ndarray) -> list[int]:
    """Return ``val``, one integer or ``ndim`` of them, as a list of ``ndim`` integers.

    Other values raise :class:`SpconvError`.
    """
    return wholes("sizes", val, whole("ndim", ndim))


def scatter_nd(indices: Tensor, updates: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor of zeros with the values ``updates`` at the positions ``indices``.

    Args:
      indices: ``int[..., n]``, distinct positions along the first n axes.
      updates: ``[..., *shape[n:]]``, the values at these positions.
      shape: shape of the result.
    """
    ndim, sizes = indices.shape[-1], [whole("shape", size) for size in shape]
    rows = indices.reshape(-1, ndim).long()
    flat = rows.new_zeros(rows.shape[0])
    for axis, size in enumerate(sizes[:ndim]):
        flat = flat * size + rows[:, axis]
    made = updates.new_zeros([math.prod(sizes[:ndim]), *sizes[ndim:]])
    return made.index_copy(0, flat, updates.reshape(-1, *sizes[ndim:])).reshape(sizes)


def _check_tensors(features: Any, indices: Any, spatial_shape: Any, batch_size: Any) -> None:
    for value, name in ((features, "features"), (indices, "indices")):
        if isinstance(value, Proxy):  # of torch.fx, which has no shape
            return
        if not isinstance(value, Tensor):
            raise ArgumentError(
                f"{name} of {type(value).__name__}: expected a PyTorch tensor; convert with "
                "torch.as_tensor"
            )
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
    """Class without effect in place of spconv's allocator of GPU memory for sorting."""

    def __init__(self, device: torch.device) -> None:
        self.device = device


SpConvTensorMeta = ProxyableClassMeta


class SparseConvTensor(metaclass=ProxyableClassMeta):
    """Sparse tensor: one row of features for each voxel, and the voxels' integer coordinates.

    Args:
      features: ``[N, C]`` of float32, float64, float16 or bfloat16.
      indices: ``int32[N, 1 + D]``: batch index, then D coordinates in the order of
        ``spatial_shape``; D is 1 to 4. Layers raise an error for indices outside the grid. For
        voxels that occur several times, see :func:`strict`.
      spatial_shape: D sizes of the grid.
      batch_size: number of scenes, 1 or more; a scene may have no voxels.
      grid, voxel_num, force_algo: stored as attributes without effect.
      permanent_thrust_allocator, enable_timer: without effect on a CPU.
      indice_dict: kernel maps that layers stored, by ``indice_key``; None means an empty dict.
      benchmark: whether layers, which then need a name, add times to ``benchmark_record``.

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

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._sites = None
        for name, value in state.items():  # spconv pickles spatial_shape and batch_size
            setattr(self, name, value)

    def __repr__(self) -> str:
        return f"SparseConvTensor[shape={self._features.shape}]"

    @property
    def features(self) -> Tensor:
        """Features ``[N, C]``; to set other features, use :meth:`replace_feature`."""
        return self._features

    @features.setter
    def features(self, val: Tensor) -> None:
        raise ArgumentError(
            "features cannot be set: x = x.replace_feature(new_features) makes a tensor with them"
        )

    @property
    def spatial_shape(self) -> list[int]:
        """Sizes of the D axes of the grid; new values are truncated to integers, as in spconv."""
        return self._spatial_shape

    @spatial_shape.setter
    def spatial_shape(self, sizes: Sequence[int] | np.ndarray | Tensor) -> None:
        self._spatial_shape = [int(size) for size in sizes]

    @property
    def batch_size(self) -> int:
        """Number of scenes in the batch."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, number: int) -> None:
        self._batch_size = whole("batch_size", number)

    @property
    def is_quantized(self) -> bool:
        """Always False, because quantized inference runs on GPUs only."""
        return False

    @property
    def spatial_size(self) -> int:
        """Number of cells in the grid of one scene."""
        return math.prod(self.spatial_shape)

    def sites(self) -> Sites:
        """Check the indices, and return them with the kernel maps that were built from them.

        Raises:
          SpconvError: indices outside ``spatial_shape`` or ``batch_size``, or not one per
            feature row.
        """
        check_features(self.features, self.indices.shape[0])
        known = self._sites
        if known is None or not known.are_of(self.indices, self.spatial_shape, self.batch_size):
            self._sites = Sites(self.indices, self.spatial_shape, self.batch_size)
        assert self._sites is not None
        return self._sites

    def on(self, sites: Sites, features: Tensor) -> SparseConvTensor:
        """Return a copy of this tensor with ``features`` at the voxels ``sites``.

        Its spatial shape is that of ``sites``.
        """
        made = self.replace_feature(features)
        made.indices, made.spatial_shape = sites.indices, list(sites.spatial_shape)
        made._sites = sites
        return made

    def replace_feature(self, feature: Tensor) -> SparseConvTensor:
        """Return a copy of this tensor with other features ``[N, C]`` at the same voxels."""
        rest = self.grid, self.voxel_num, self.indice_dict, self.benchmark
        made = SparseConvTensor(feature, self.indices, self.spatial_shape, self.batch_size, *rest)
        made.benchmark_record, made._timer = self.benchmark_record, self._timer
        made.thrust_allocator, made.int8_scale = self.thrust_allocator, self.int8_scale
        made.force_algo, made._sites = self.force_algo, self._sites
        return made

    def shadow_copy(self) -> SparseConvTensor:
        """Return a new ``SparseConvTensor`` that shares all members with this tensor."""
        return self.replace_feature(self.features)

    def select_by_index(self, valid_indices: Tensor) -> SparseConvTensor:
        """Return a tensor with the voxels and features that ``valid_indices`` selects.

        ``valid_indices`` is an index tensor or a mask of the rows. The result has an empty
        ``indice_dict``.
        """
        made = self.replace_feature(self.features[valid_indices])
        made.indices, made.indice_dict = self.indices[valid_indices], {}
        return made

    def minus(self) -> SparseConvTensor:
        """Return a tensor with the negative of all features."""
        return self.replace_feature(-self.features)

    @classmethod
    def from_dense(cls, x: Tensor) -> SparseConvTensor:
        """Make a tensor of the cells of ``x [B, *spatial_shape, C]`` with a nonzero channel."""
        sparse = x.to_sparse(x.ndim - 1)
        indices = sparse.indices().t().contiguous().int()
        return cls(sparse.values(), indices, list(x.shape[1:-1]), x.shape[0])

    @uncompiled
    def dense(self, channels_first: bool = True) -> Tensor:
        """Return a dense tensor ``[B, C, *spatial_shape]`` with zeros in cells without a voxel.

        If a voxel occurs several times, its last row is taken, and all its rows receive the
        gradient, as in spconv.

        Args:
          channels_first: whether channels are axis 1; False returns ``[B, *spatial_shape, C]``.
        """
        duplicates, features = self.sites().duplicates(), self.features
        if duplicates is not None:
            features = LastOfVoxel.apply(features, duplicates.last_rows())
        shape = [self.batch_size, *self.spatial_shape, features.shape[1]]
        made = scatter_nd(self.indices, features, shape)
        return made.movedim(-1, 1).contiguous() if channels_first else made

    def find_indice_pair(self, key: str | None) -> IndiceData | ImplicitGemmIndiceData | None:
        """Return the kernel map that a layer stored under the ``indice_key`` ``key``, or None."""
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
