"""Layers that project voxels along one axis onto the plane of the other two (bird's-eye view).

``dim`` is this axis: 0, 1 or 2 for x, y or z. Sizes and offsets are given for x, y and z. This
agrees with TorchSparse 1.4. TorchSparse 2.1 moved the columns of coordinates but not the code of
these layers, so its layers take the batch index for x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from voxax.torch.core.errors import ArgumentError, check_features, whole
from voxax.torch.core.kernel_map import KernelMap, pairs_of, unique_rows
from voxax.torch.core.products import convolve
from voxax.torch.core.uncompiled import uncompiled
from voxax.torch.torchsparse.nn.functional.conv import of_one_dtype
from voxax.torch.torchsparse.tensor import SparseTensor, check_tensors
from voxax.torch.torchsparse.utils.grids import make_ntuple, per_axis


class _ToBEV(nn.Module):
    """Base of layers that project voxels along axis ``dim``, for a bird's-eye view.

    ``sizes`` are the layer's positive integer arguments by name, such as numbers of channels. They
    become attributes.
    """

    def __init__(self, dim: int, **sizes: int) -> None:
        super().__init__()
        self.dim, self._sizes = whole("dim", dim), sizes
        if not 0 <= self.dim < 3:
            raise ArgumentError(f"dim={dim}: expected 0, 1 or 2, for x, y or z")
        for name, size in sizes.items():
            setattr(self, name, whole(name, size))
            if size < 1:
                raise ArgumentError(f"{name}={size}: expected 1 or more")

    def extra_repr(self) -> str:
        """Return the text that ``repr`` shows: the sizes, or ``dim``."""
        sizes = ", ".join(f"{name}={size}" for name, size in self._sizes.items())
        return sizes or f"dim = {self.dim}"

    @uncompiled
    def _plane(self, input: SparseTensor, step: int = 1) -> tuple[torch.Tensor, SparseTensor]:
        """Return the row of each input voxel's projection, and a tensor of the projected voxels.

        The rows, ``int64[N]``, are rows of that tensor, whose voxels are distinct. It has no
        features yet. Its coordinates are 0 along ``dim``, and divided by ``step`` along the other
        axes.
        """
        check_tensors(type(self).__name__, input)
        cells, stride = input._cells().clone(), tuple(n * step for n in input.stride)
        cells[:, 1:] = cells[:, 1:].div(step, rounding_mode="floor")
        cells[:, 1 + self.dim] = 0
        rows, places = unique_rows(input._coords_of(cells, stride).numpy())
        output = input._kind(None, torch.from_numpy(rows), stride)
        if input.spatial_range is not None:
            sizes = [-(-size // step) for size in input.spatial_range[1:]]
            sizes[self.dim] = 1
            output.spatial_range = (input.spatial_range[0], *sizes)
        return torch.from_numpy(places).long(), output


class ToBEVReduction(_ToBEV):
    """Layer that averages the features of voxels along axis ``dim``.

    The output voxels have coordinate 0 on this axis, and are in lexicographic order.
    """

    def __init__(self, dim: int = 1) -> None:
        super().__init__(dim)

    def forward(self, input: SparseTensor) -> SparseTensor:
        """Return a sparse tensor with the means."""
        places, output = self._plane(input)
        total = input.feats.new_zeros(len(output.coords), input.feats.shape[1])
        output.feats = total.index_add(0, places, input.feats) / torch.bincount(places)[:, None]
        return output


class _Convolution(_ToBEV):
    """Base of layers with one weight matrix per coordinate along axis ``dim``, and a bias."""

    in_channels: int
    n_kernels: int

    def _parameters_of(self, bias: bool, *channels: int) -> None:
        self.kernel = nn.Parameter(torch.zeros(self.n_kernels, *channels))
        self.bias: Any = nn.Parameter(torch.zeros(1, channels[1])) if bias else 0
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the kernel uniformly from ``-b`` to ``b``, where b is ``1 / sqrt(in_channels)``."""
        bound = 1 / math.sqrt(self.in_channels)
        with torch.no_grad():
            self.kernel.uniform_(-bound, bound)

    @uncompiled
    def _summed(self, input: SparseTensor, places: torch.Tensor, rows: int) -> torch.Tensor:
        """Return the sum of ``feats @ matrix + bias`` over each output row's voxels.

        The result is ``[rows, C_out]``. ``places`` is the output row of each input voxel. The
        voxel's coordinate along axis ``dim`` selects its matrix.
        """
        along = input._cells()[:, 1 + self.dim].long()
        if len(along) and not 0 <= int(along.min()) <= int(along.max()) < self.n_kernels:
            raise ArgumentError(
                f"coordinates from {int(along.min())} to {int(along.max())} strides along axis "
                f"{self.dim}: expected 0 to {self.n_kernels - 1}, one for each kernel"
            )
        feats = input._features.rows()
        check_features(feats, len(along), self.in_channels)
        reached = torch.full((len(along), self.n_kernels), -1, dtype=torch.int32)
        reached[torch.arange(len(along)), along] = places.int()
        kernel_map = KernelMap.of_pairs(*pairs_of(reached), len(along), rows)
        out = convolve(*of_one_dtype(feats, self.kernel), kernel_map)
        return out + (kernel_map.counts[:, None] * self.bias).to(out.dtype)


class ToBEVConvolution(_Convolution):
    """Layer that sums along axis ``dim``, with one weight matrix per coordinate on this axis.

    The features of each voxel are multiplied by the matrix of its coordinate, then summed. The
    output voxels have coordinate 0 on this axis, and are in lexicographic order.

    Args:
      in_channels, out_channels: numbers of channels.
      n_kernels: number of matrices. There is one for each coordinate along the axis from 0 on,
        counted in steps of the tensor's stride.
      stride: ratio of the output's tensor stride to the input's. TorchSparse's layer raises an
        error for strides other than 1.
      dim: the axis that is summed over, 0 to 2.
      bias: whether to add a bias to the product of each voxel.
    """

    stride: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        n_kernels: int,
        stride: int = 1,
        dim: int = 1,
        bias: bool = False,
    ) -> None:
        channels = {"in_channels": in_channels, "out_channels": out_channels}
        super().__init__(dim, **channels, n_kernels=n_kernels, stride=stride)
        self._parameters_of(bias, *channels.values())

    def forward(self, input: SparseTensor) -> SparseTensor:
        """Return a sparse tensor with the sums; coordinates without a matrix are an error."""
        places, output = self._plane(input, self.stride)
        output.feats = self._summed(input, places, len(output.coords))
        return output


class _Grid(_ToBEV):
    """Base of layers whose output is a dense grid of ``shape`` cells that begins at ``offset``."""

    def _grid_of(self, shape: Any, offset: Any) -> None:
        self.offset: torch.Tensor
        self.shape: torch.Tensor
        begin = torch.tensor([[*make_ntuple(offset, ndim=3), 0]], dtype=torch.int32)
        self.register_buffer("offset", begin)
        self.register_buffer("shape", torch.tensor(per_axis("shape", shape), dtype=torch.int32))
        self.bev_dims = [axis for axis in range(3) if axis != self.dim]
        self.bev_shape = self.shape[self.bev_dims]

    def _places(self, input: SparseTensor) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Return each voxel's cell in a plane, its position along ``dim``, and the planes' sizes.

        A plane is the grid without axis ``dim``. The sizes are ``[B, *plane]``: the number of
        scenes, and the number of cells along the plane's two axes. The cell is a flat index into
        the planes of all scenes, ``int64[N]``. The position, ``int64[N]``, is in cells and may be
        outside the grid.
        """
        check_tensors(type(self).__name__, input)
        steps, cells = torch.tensor(input.stride), input._cells().long()
        at = (cells[:, 1:] * steps - self.offset[0, :3]).div(steps, rounding_mode="floor")
        outside = ((at < 0) | (at >= self.shape))[:, self.bev_dims].any(1)
        if outside.any():
            raise ArgumentError(
                f"coords {input.coords[outside][0].tolist()} outside the grid of shape "
                f"{self.shape.tolist()} from {self.offset[0].tolist()} on: enlarge it, or drop "
                "these rows"
            )
        high, wide = self.bev_shape.tolist()
        sizes = [int(cells[:, 0].max()) + 1 if len(cells) else 0, high, wide]
        row, column = at[:, self.bev_dims].unbind(1)
        return (cells[:, 0] * high + row) * wide + column, at[:, self.dim], sizes


def _dense(feats: torch.Tensor, places: torch.Tensor, sizes: list[int], cells: int) -> torch.Tensor:
    """Return a dense grid ``[B, cells * C, *plane]`` with the sum of the features in each cell.

    ``feats`` is ``[N, C]``. ``sizes`` are the lengths ``[B, *plane]``, and ``cells`` is the number
    of cells above each cell of the plane. ``places int64[N]`` are flat indices into
    ``[*sizes, cells]``.
    """
    channels = feats.shape[1]
    grid = feats.new_zeros(math.prod(sizes) * cells, channels).index_add(0, places, feats)
    return grid.view(*sizes, cells * channels).permute(0, 3, 1, 2).contiguous()


class ToDenseBEVConvolution(_Convolution, _Grid):
    """:class:`ToBEVConvolution` whose output is a dense grid, ``[B, out_channels, *plane]``.

    ``plane`` is the numbers of cells along the two axes other than ``dim``.

    Args:
      in_channels, out_channels, dim, bias: as in :class:`ToBEVConvolution`.
      shape: number of cells along x, y and z. A cell is as large as the tensor's stride. The layer
        has ``shape[dim]`` matrices.
      offset: coordinates x, y and z of the first cell. That of axis ``dim`` is ignored, because the
        matrices begin at coordinate 0.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        shape: Sequence[int] | torch.Tensor,
        offset: Sequence[int] = (0, 0, 0),
        dim: int = 1,
        bias: bool = False,
    ) -> None:
        channels = {"in_channels": in_channels, "out_channels": out_channels}
        super().__init__(dim, **channels, n_kernels=per_axis("shape", shape)[dim])
        self._grid_of(shape, offset)
        self._parameters_of(bias, *channels.values())

    def forward(self, input: SparseTensor) -> torch.Tensor:
        """Return the dense grid, 0 in cells without voxels; voxels outside it are an error."""
        places, _, sizes = self._places(input)
        reached, rows = torch.unique(places, return_inverse=True)
        return _dense(self._summed(input, rows, len(reached)), reached, sizes, 1)


class ToBEVHeightCompression(_Grid):
    """Layer that makes a dense grid with the features of all cells along axis ``dim`` as channels.

    The output is ``[B, shape[dim] * channels, *plane]``, where ``plane`` is the numbers of cells
    along the other two axes. Voxels beyond an end of axis ``dim`` are added to the last cell at
    this end.

    Args:
      channels: number of channels of the input.
      shape, dim: as in :class:`ToDenseBEVConvolution`.
      offset: coordinates x, y and z of the first cell.
    """

    def __init__(
        self, channels: int, shape: Any, offset: Sequence[int] = (0, 0, 0), dim: int = 1
    ) -> None:
        super().__init__(dim, channels=channels)
        self._grid_of(shape, offset)

    def forward(self, input: SparseTensor) -> torch.Tensor:
        """Return the dense grid; voxels outside it along an axis but ``dim`` are an error."""
        places, along, sizes = self._places(input)
        cells = int(self.shape[self.dim])
        places = places * cells + along.clamp(0, cells - 1)
        return _dense(input._features.rows(), places, sizes, cells)
