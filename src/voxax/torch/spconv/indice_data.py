"""The pairs that a layer leaves under its ``indice_key``."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

from typing import Any

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


class IndiceData(_Pairs):
    """Of layers with ``algo=ConvAlgo.Native``."""

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
    """Of all other layers."""

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
