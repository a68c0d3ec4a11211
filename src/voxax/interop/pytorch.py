"""Weights from and to the modules of :mod:`voxax.torch`, without importing PyTorch.

Their names are the paths of the modules here, their kernels have our shapes and order; linear
layers and batch norm are stored as PyTorch's own.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import nnx

from voxax.interop.peer import Form, LayerWeights, Role, linear_form, reshaped, vector_forms
from voxax.interop.state_dict import Names, dump, load


def from_torch(
    state_dict: Mapping[str, Any] | str | os.PathLike[str],
    model: nnx.Module,
    *,
    names: Names = None,
) -> dict[str, str]:
    """Set all parameters and statistics of ``model`` to those of a model of ``voxax.torch``.

    Args:
      state_dict, model, names: as in :func:`from_spconv`.

    Returns:
      The name there by the path of each layer.

    Raises:
      InputError: a layer without tensors, tensors without a layer, another shape.
    """
    return load(state_dict, model, _Door(), names)


def to_torch(
    model: nnx.Module, *, names: Names = None, like: Mapping[str, Any] | None = None
) -> dict[str, np.ndarray]:
    """The parameters and statistics of ``model`` for a model of ``voxax.torch``, as NumPy arrays.

    ``module.load_state_dict({k: torch.from_numpy(v) for k, v in result.items()}, strict=False)``
    takes it; what is missing is ``num_batches_tracked`` alone.

    Args:
      model, names: as in :func:`from_torch`.
      like: as in :func:`to_spconv`.

    Raises:
      InputError: as :func:`from_torch`.
    """
    return dump(model, _Door(), names, like)


@dataclasses.dataclass(frozen=True)
class _Door:
    name: str = "voxax.torch"
    wrappers: tuple[str, ...] = ()
    grouped: bool = True

    def wrapper_of(self, layer: LayerWeights) -> str:
        del layer
        return ""

    def forms(self, layer: LayerWeights) -> dict[Role, list[Form]]:
        found: dict[Role, list[Form]]
        found = {role: vector_forms(layer, role) for role in layer.arrays}
        if layer.kind != "norm":
            own = layer.shape("weight")
            same = reshaped("weight", own, own)
            found["weight"] = [linear_form(own)] if layer.kind == "linear" else [same]
        return found
