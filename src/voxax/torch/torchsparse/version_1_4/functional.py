"""Functions for sparse tensors, points and hashes with the conventions of TorchSparse 1.4."""

from __future__ import annotations

from typing import Any

import torch

from voxax.torch.torchsparse.nn import functional as version_2_1
from voxax.torch.torchsparse.nn.functional import global_avg_pool as global_avg_pool
from voxax.torch.torchsparse.nn.functional import global_max_pool as global_max_pool
from voxax.torch.torchsparse.nn.functional import leaky_relu as leaky_relu
from voxax.torch.torchsparse.nn.functional import relu as relu
from voxax.torch.torchsparse.nn.functional import spcount as spcount
from voxax.torch.torchsparse.nn.functional import spcrop as spcrop
from voxax.torch.torchsparse.nn.functional import spdevoxelize as spdevoxelize
from voxax.torch.torchsparse.nn.functional import spvoxelize as spvoxelize
from voxax.torch.torchsparse.nn.functional.conv import convolved
from voxax.torch.torchsparse.nn.functional.hash import fnv
from voxax.torch.torchsparse.utils.grids import make_ntuple
from voxax.torch.torchsparse.version_1_4.tensor import SparseTensor

_CONFIG = {"kmap_mode": "hashmap", "downsample_mode": "1.4"}


def conv3d(
    input: SparseTensor,
    weight: torch.Tensor,
    kernel_size: Any,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    dilation: Any = 1,
    transposed: bool = False,
) -> SparseTensor:
    """Return the 3-D convolution of a sparse tensor, without padding.

    Arguments are as in :func:`voxax.torch.torchsparse.nn.functional.conv3d`. The weight of a kernel
    of one tap may be ``[C_in, C_out]`` for every stride.
    """
    if weight.ndim == 2 and set(make_ntuple(stride, ndim=3)) != {1}:
        weight = weight[None]
    args = weight, kernel_size, bias, stride, 0, dilation, _CONFIG, transposed, False
    return convolved(SparseTensor, input, *args)  # type: ignore[return-value]


def sphash(coords: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
    """Return a 60-bit hash of each voxel ``int32[N, 4]``, whose batch index is the last column.

    Offsets and shapes are as in :func:`voxax.torch.torchsparse.nn.functional.sphash`.
    """
    found = fnv(coords, offsets, (0, 1))
    return (found >> 60 & 15) ^ (found & (1 << 60) - 1)


def sphashquery(queries: torch.Tensor, references: torch.Tensor) -> torch.Tensor:
    """Return the result of :func:`voxax.torch.torchsparse.nn.functional.sphashquery` as int64."""
    return version_2_1.sphashquery(queries, references).long()


def calc_ti_weights(
    coords: torch.Tensor, idx_query: torch.Tensor, scale: float = 1
) -> torch.Tensor:
    """Return the weights of 8 voxels around each point for trilinear interpolation, ``[8, N]``.

    ``idx_query`` is ``[8, N]`` too. Otherwise arguments are as in
    :func:`voxax.torch.torchsparse.nn.functional.calc_ti_weights`.
    """
    return version_2_1.calc_ti_weights(coords, idx_query.T, scale).T.contiguous()


def spdownsample(
    coords: torch.Tensor, stride: Any = 2, kernel_size: Any = 2, tensor_stride: Any = 1
) -> torch.Tensor:
    """Return a strided layer's output voxels ``int32[M, 4]``, sorted by batch index, x, y and z.

    Args:
      coords: ``int32[N, 4]``: x, y, z (multiples of ``tensor_stride``), batch index.
      stride, kernel_size: stride and kernel size of the layer, one integer or one per axis.
      tensor_stride: edge length of the input voxels, one integer or one per axis.
    """
    tensor = SparseTensor(coords.new_zeros(len(coords), 1), coords, tensor_stride)
    out = version_2_1.spdownsample(tensor._cells(), stride, kernel_size, downsample_mode="1.4")
    steps = zip(tensor.stride, make_ntuple(stride, ndim=3), strict=True)
    return SparseTensor._coords_of(out, tuple(a * b for a, b in steps))
