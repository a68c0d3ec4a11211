"""Pooling modules."""

from __future__ import annotations

from typing import Literal

import jax
from flax import nnx

from voxax.geometry import Voxels
from voxax.nn.functional import global_pool


class GlobalPool(nnx.Module):
    """One row per scene: ``[batch_size, C]``. See :func:`voxax.nn.functional.global_pool`."""

    def __init__(self, reduction: Literal["mean", "sum", "max"] = "mean") -> None:
        self.reduction: Literal["mean", "sum", "max"] = reduction

    def __call__(self, voxels: Voxels) -> jax.Array:
        return global_pool(voxels, self.reduction)
