"""Layers that normalize features over all rows or over the rows of each scene."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from voxax.torch.core import pooling
from voxax.torch.minkowski.broadcast import spread
from voxax.torch.minkowski.manager import CoordinateManager, Key
from voxax.torch.minkowski.module import MinkowskiModuleBase
from voxax.torch.minkowski.reduction import grouped
from voxax.torch.minkowski.sparse_tensor import SparseTensor, check_sparse
from voxax.torch.minkowski.tensor import check_tensor


class MinkowskiBatchNorm(nn.Module):
    """Batch normalization of a tensor's features by ``bn``, a :class:`torch.nn.BatchNorm1d`."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__()
        self.bn: Any = nn.BatchNorm1d(num_features, eps, momentum, affine, track_running_stats)

    def forward(self, input: Any) -> Any:
        """Return a sparse tensor or a field with normalized features."""
        check_tensor(input, self.bn.num_features)
        return input.normalized(self.bn)

    def __repr__(self) -> str:
        bn, name = self.bn, type(self).__name__
        options = f"affine={bn.affine}, track_running_stats={bn.track_running_stats}"
        return f"{name}({bn.num_features}, eps={bn.eps}, momentum={bn.momentum}, {options})"


class MinkowskiSyncBatchNorm(MinkowskiBatchNorm):
    """Batch normalization synchronized over processes, which PyTorch has on GPUs only.

    Arguments are as in :class:`torch.nn.SyncBatchNorm`, which is the attribute ``bn``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        nn.Module.__init__(self)
        self.bn = nn.SyncBatchNorm(*args, **kwargs)

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_group: Any = None) -> Any:
        """Replace each :class:`MinkowskiBatchNorm` inside ``module`` by this class, in place.

        The new layers have the same parameters. Returns ``module``; if it is a batch norm itself,
        returns the layer that replaces it.
        """
        made = module
        if isinstance(module, MinkowskiBatchNorm):
            old = module.bn
            options = old.eps, old.momentum, old.affine, old.track_running_stats
            made = cls(old.num_features, *options, process_group)
            for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
                setattr(made.bn, name, getattr(old, name))
            made.train(module.training)
        for name, child in module.named_children():
            if child is not getattr(module, "bn", None):
                made.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return made


def _normalized(features: Tensor, key: Key, manager: CoordinateManager, eps: float) -> Tensor:
    """Return features ``[N, C]``, scaled to mean 0 and variance 1 in each scene and channel.

    ``key`` and ``manager`` tell which rows belong to which scene.
    """
    scenes = grouped(manager.scene_rows(key), manager.number_of_unique_batch_indices())
    centered = features - spread(pooling.mean(features, scenes), key, manager)
    variance = pooling.mean(centered**2, scenes)
    return centered * spread(torch.rsqrt(variance + eps), key, manager)


class MinkowskiInstanceNormFunction:
    """Instance normalization with the interface of an autograd function."""

    @staticmethod
    def apply(
        rows: Tensor, key: Key, scenes_key: Any, manager: CoordinateManager, mode: Any = None
    ) -> Tensor:
        """Return ``rows [N, C]`` scaled to mean 0 and variance 1 over the rows of each scene.

        ``key`` is the key of the rows' sites. ``scenes_key`` and ``mode`` are ignored.
        """
        return _normalized(rows, key, manager, 1e-8)


class MinkowskiInstanceNorm(MinkowskiModuleBase):
    """Normalization of each channel over a scene's rows, then a weight and bias per channel."""

    eps = 1e-8

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features
        self.weight = nn.Parameter(torch.ones(1, num_features))
        self.bias = nn.Parameter(torch.zeros(1, num_features))

    def reset_parameters(self) -> None:
        """Set the weight to 1 and the bias to 0."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, input: SparseTensor) -> SparseTensor:
        """Return a sparse tensor with normalized features."""
        check_sparse(input)
        check_tensor(input, self.num_features)
        keys = input.coordinate_map_key, input.coordinate_manager
        return input.replaced(_normalized(input.F, *keys, self.eps) * self.weight + self.bias)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(nchannels={self.num_features})"


class MinkowskiStableInstanceNorm(MinkowskiInstanceNorm):
    """A :class:`MinkowskiInstanceNorm` that adds a larger ``eps`` to the variance."""

    eps = 1e-6
