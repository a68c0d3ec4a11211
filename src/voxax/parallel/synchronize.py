"""Batch statistics over all shards."""

from __future__ import annotations

from typing import TypeVar

from flax import nnx

from voxax.errors import InputError
from voxax.nn.modules import BatchNorm

Module = TypeVar("Module", bound=nnx.Module)


def synchronize(model: Module, axis: str | tuple[str, ...] = "data") -> Module:
    """Let every :class:`voxax.nn.modules.BatchNorm` of a model share its statistics over an axis.

    The model is changed in place, and returned. From then on it runs inside ``jax.shard_map`` or
    ``jax.vmap`` with that axis only, in training; evaluation uses running averages anywhere.

    Args:
      model: any ``flax.nnx`` module.
      axis: name of the mapped axis, or several.

    Raises:
      InputError: a ``flax.nnx.BatchNorm`` is among its modules, which would count padding.
    """
    for path, module in nnx.iter_modules(model):
        if isinstance(module, BatchNorm):
            module.axis_name = axis
        elif isinstance(module, nnx.BatchNorm):
            raise InputError(
                f"{'.'.join(map(str, path))} is a flax.nnx.BatchNorm, whose statistics would "
                "contain padding rows: use voxax.nn.modules.BatchNorm"
            )
    return model
