"""Convolution modules by number of axes and by kind: thin subclasses with the field's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from voxax.errors import InputError
from voxax.nn.modules.conv import SpatiallySparseConv


class SparseConv1d(SpatiallySparseConv):
    """:class:`SpatiallySparseConv` on one axis; submanifold at stride 1."""

    NDIM = 1


class SparseConv2d(SpatiallySparseConv):
    """:class:`SpatiallySparseConv` on two axes; submanifold at stride 1."""

    NDIM = 2


class SparseConv3d(SpatiallySparseConv):
    """:class:`SpatiallySparseConv` on three axes; submanifold at stride 1.

    Users of spconv: its ``SparseConv3d`` also creates output voxels around the input at
    stride 1. Here that is ``generative=True``, with ``spatial_shape=`` to clip as it does.
    """

    NDIM = 3


class SparseConv4d(SpatiallySparseConv):
    """:class:`SpatiallySparseConv` on four axes (space and time); submanifold at stride 1."""

    NDIM = 4


class SubMConv(SpatiallySparseConv):
    """Submanifold convolution: the output voxels are the input's (stride 1).

    Source: Graham, Engelcke, van der Maaten, "3D Semantic Segmentation with Submanifold
    Sparse Convolutional Networks", CVPR 2018.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 3,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        *args: Any,
        **options: Any,
    ) -> None:
        clash = [name for name in ("transposed", "generative") if options.get(name)]
        if np.any(np.asarray(stride) != 1):
            clash.insert(0, f"stride {stride}")
        if clash:
            ndim = self.NDIM
            other = "SpatiallySparseConv" if ndim is None else f"SparseConv{ndim}d"
            raise InputError(
                f"{type(self).__name__} keeps the voxels, so it takes no {', '.join(clash)}: use "
                f"{other}"
            )
        super().__init__(in_channels, out_channels, kernel_size, 1, dilation, *args, **options)


class SubMConv1d(SubMConv):
    """:class:`SubMConv` on one axis."""

    NDIM = 1


class SubMConv2d(SubMConv):
    """:class:`SubMConv` on two axes."""

    NDIM = 2


class SubMConv3d(SubMConv):
    """:class:`SubMConv` on three axes."""

    NDIM = 3


class SubMConv4d(SubMConv):
    """:class:`SubMConv` on four axes."""

    NDIM = 4


class SparseConvTranspose(SpatiallySparseConv):
    """Transposed convolution, the adjoint of the strided one.

    Called with ``out_voxels`` it returns to them (spconv's ``SparseInverseConv``); with
    ``generative=True`` it creates every site that a tap reaches (``SparseConvTranspose``).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 2,
        stride: int | Sequence[int] = 2,
        *args: Any,
        **options: Any,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, *args, transposed=True, **options
        )


class SparseConvTranspose1d(SparseConvTranspose):
    """:class:`SparseConvTranspose` on one axis."""

    NDIM = 1


class SparseConvTranspose2d(SparseConvTranspose):
    """:class:`SparseConvTranspose` on two axes."""

    NDIM = 2


class SparseConvTranspose3d(SparseConvTranspose):
    """:class:`SparseConvTranspose` on three axes."""

    NDIM = 3


class SparseConvTranspose4d(SparseConvTranspose):
    """:class:`SparseConvTranspose` on four axes."""

    NDIM = 4
