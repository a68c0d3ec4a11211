"""The pairs that a layer leaves under its ``indice_key``."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from voxax.torch.core.errors import ArgumentError
from voxax.torch.core.kernel_map import KernelMap, PairMap
from voxax.torch.spconv.algo import ConvAlgo
from voxax.torch.spconv.duplicates import Sites


class Pairs:
    """What a layer was and where it led; the pairs in spconv's forms are made when asked for.

    Attributes:
      kernel_map: from ``indices`` to ``out_indices``.
      sites, out_sites: both sides with their maps.
      is_subm, algo, ksize, stride, dilation, padding: of the layer.
      indices, out_indices: ``int32[N, 1 + D]`` and ``int32[M, 1 + D]``.
      spatial_shape, out_spatial_shape: D sizes.
    """

    def __init__(self, kernel_map: KernelMap, sites: Sites, out: Sites, *layer: Any) -> None:
        self.kernel_map, self.sites, self.out_sites = kernel_map, sites, out
        self.indices, self.spatial_shape = sites.indices, sites.spatial_shape
        self.out_indices, self.out_spatial_shape = out.indices, out.spatial_shape
        self.is_subm, self.algo, self.ksize, self.stride, self.dilation, self.padding = layer
        self.voxel_num = self.in_voxel_num = self.out_voxel_num = None

    @classmethod
    def of(cls, kernel_map: KernelMap, sites: Sites, out: Sites, *layer: Any) -> Self:
        """Return the pairs that a layer leaves under its key."""
        made = cls.__new__(cls)
        Pairs.__init__(made, kernel_map, sites, out, *layer)
        return made


def listed_numbers(numbers: Tensor) -> Tensor:
    """Return a submanifold layer's numbers as spconv lists them: 0 from the center on.

    The center has all rows, and a tap after it as many as its mirror image.
    """
    return numbers.where(torch.arange(len(numbers)) < len(numbers) // 2, 0)


def full_numbers(listed: Tensor, rows: int) -> Tensor:
    """Undo :func:`listed_numbers`, for a layer on so many rows."""
    center = len(listed) // 2
    return torch.cat([listed[:center], listed.new_tensor([rows]), listed[:center].flip(0)])


def _sites(indices: Tensor, spatial_shape: list[int]) -> Sites:
    scenes = int(indices[:, 0].max()) + 1 if len(indices) else 1
    return Sites(indices, spatial_shape, scenes)


class IndiceData(Pairs):
    """Of layers with ``algo=ConvAlgo.Native``. Other code makes it from pairs.

    Args:
      indice_pairs: ``int32[2, K, N]``, -1 after the last of each tap.
      indice_pair_num: is the number of those before.
      voxel_num: kept.
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
        """``int32[2, K, N]``: input and output rows of each tap, -1 after the last."""
        return self.kernel_map.pairs()[0]

    @property
    def indice_pair_num(self) -> Tensor:
        """``int32[K]``: number of pairs of each tap; of submanifold layers 0 from the center on."""
        numbers = self.kernel_map.pairs()[1]
        return listed_numbers(numbers) if self.is_subm else numbers


class ImplicitGemmIndiceData(Pairs):
    """Of all other layers. Other code makes it from a table.

    Args:
      pair_fwd: ``int32[K, M]``: input row of each tap and output row, or -1.
      pair_bwd, masks and the like: are made anew when asked for, or empty.
      in_voxel_num, out_voxel_num: kept.
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
        """Of a GPU's kernel: empty."""
        return []

    pair_mask_bwd_splits = mask_argsort_fwd_splits = mask_argsort_bwd_splits = pair_mask_fwd_splits

    @property
    def masks(self) -> list[np.ndarray]:
        """Of a GPU's kernel: one of all ones."""
        return [np.full(1, 0xFFFFFFFF, np.uint32)]

    @property
    def pair_fwd(self) -> Tensor:
        """``int32[K, M]``: input row of each tap and output row, or -1."""
        return _table(self.kernel_map)

    @property
    def pair_bwd(self) -> Tensor:
        """``int32[K, N]``: output row of each tap and input row, or -1."""
        return _table(self.kernel_map, back=True)


def _table(kernel_map: KernelMap, back: bool = False) -> Tensor:
    """Return the table tap by tap, on memory of its own: layers go on to use the map."""
    if isinstance(kernel_map, PairMap):
        raise ArgumentError(
            "tables of pairs (pair_fwd, pair_bwd) of voxels that occur several times: a table "
            "holds one row for each tap. Take algo=ConvAlgo.Native, or merge the voxels"
        )
    table = kernel_map.backwards if back else kernel_map.neighbors
    return table.t().clone(memory_format=torch.contiguous_format)
