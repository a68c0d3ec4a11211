"""The pairs that a layer leaves under its ``indice_key``."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch

from voxax.torch.spconv.algo import ConvAlgo
from voxax.torch.spconv.kernel_map import KernelMap, listed_numbers
from voxax.torch.spconv.sites import Sites


class _Pairs:
    """What a layer was and where it led; the pairs in spconv's forms are made when asked for.

    Attributes:
      kernel_map: from ``indices`` to ``out_indices``.
      sites, out_sites: both sides with their maps.
      is_subm, algo, ksize, stride, dilation, padding: of the layer.
    """

    def __init__(
        self,
        kernel_map: KernelMap,
        sites: Sites,
        out_sites: Sites,
        is_subm: bool,
        algo: ConvAlgo,
        ksize: list[int],
        stride: list[int],
        dilation: list[int],
        padding: list[int],
    ) -> None:
        self.kernel_map, self.sites, self.out_sites = kernel_map, sites, out_sites
        self.is_subm, self.algo = is_subm, algo
        self.ksize, self.stride, self.dilation, self.padding = ksize, stride, dilation, padding
        self.voxel_num: Any = None
        self.in_voxel_num: Any = None
        self.out_voxel_num: Any = None

    @classmethod
    def of(cls, *args: Any) -> Self:
        """Return what a layer leaves; arguments as :class:`_Pairs`."""
        made = cls.__new__(cls)
        _Pairs.__init__(made, *args)
        return made

    @property
    def indices(self) -> torch.Tensor:
        """``int32[N, 1 + D]``: the layer's input voxels."""
        return self.sites.indices

    @property
    def out_indices(self) -> torch.Tensor:
        """``int32[M, 1 + D]``: the layer's output voxels."""
        return self.out_sites.indices

    @property
    def spatial_shape(self) -> list[int]:
        """Of the input."""
        return self.sites.spatial_shape

    @property
    def out_spatial_shape(self) -> list[int]:
        """Of the output."""
        return self.out_sites.spatial_shape


def _sites(indices: torch.Tensor, spatial_shape: list[int]) -> Sites:
    scenes = int(indices[:, 0].max()) + 1 if len(indices) else 1
    return Sites(indices, spatial_shape, scenes)


class IndiceData(_Pairs):
    """Of layers with ``algo=ConvAlgo.Native``.

    Layers make it from their kernel map, by :meth:`of`; other code from pairs.

    Args:
      indice_pairs: ``int32[2, K, N]``, -1 behind the last of each tap.
      indice_pair_num: is the number of those before.
      voxel_num: kept.
    """

    def __init__(
        self,
        out_indices: torch.Tensor,
        indices: torch.Tensor,
        indice_pairs: torch.Tensor,
        indice_pair_num: torch.Tensor,
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
        sizes = ksize, stride, dilation, padding
        super().__init__(kernel_map, *sites, is_subm, algo, *sizes)
        self.voxel_num = voxel_num

    @property
    def indice_pairs(self) -> torch.Tensor:
        """``int32[2, K, N]``: input and output rows of each tap, -1 behind the last."""
        return self.kernel_map.pairs()[0]

    @property
    def indice_pair_num(self) -> torch.Tensor:
        """``int32[K]``: number of pairs of each tap; of submanifold layers 0 from the center on."""
        numbers = self.kernel_map.pairs()[1]
        return listed_numbers(numbers) if self.is_subm else numbers


class ImplicitGemmIndiceData(_Pairs):
    """Of all other layers.

    Layers make it from their kernel map, by :meth:`of`; other code from a table.

    Args:
      pair_fwd: ``int32[K, M]``: input row of each tap and output row, or -1.
      pair_bwd, masks and the like: are made anew when asked for, or empty.
      in_voxel_num, out_voxel_num: kept.
    """

    def __init__(
        self,
        out_indices: torch.Tensor,
        indices: torch.Tensor,
        pair_fwd: torch.Tensor,
        pair_bwd: torch.Tensor,
        pair_mask_fwd_splits: list[torch.Tensor],
        pair_mask_bwd_splits: list[torch.Tensor],
        mask_argsort_fwd_splits: list[torch.Tensor],
        mask_argsort_bwd_splits: list[torch.Tensor],
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
        sizes = ksize, stride, dilation, padding
        super().__init__(kernel_map, *sites, is_subm, algo, *sizes)
        self.in_voxel_num, self.out_voxel_num = in_voxel_num, out_voxel_num

    @property
    def pair_mask_fwd_splits(self) -> list[torch.Tensor]:
        """Of a GPU's kernel: empty."""
        return []

    pair_mask_bwd_splits = mask_argsort_fwd_splits = mask_argsort_bwd_splits = pair_mask_fwd_splits

    @property
    def masks(self) -> list[np.ndarray]:
        """Of a GPU's kernel: one of all ones."""
        return [np.full(1, 0xFFFFFFFF, np.uint32)]

    @property
    def pair_fwd(self) -> torch.Tensor:
        """``int32[K, M]``: input row of each tap and output row, or -1."""
        return _copied(self.kernel_map.neighbors)

    @property
    def pair_bwd(self) -> torch.Tensor:
        """``int32[K, N]``: output row of each tap and input row, or -1."""
        return _copied(self.kernel_map.backwards)


def _copied(table: torch.Tensor) -> torch.Tensor:
    """Return the transpose on other memory: layers go on to use the map."""
    return table.t().clone(memory_format=torch.contiguous_format)
