"""Weights from and to the modules of :mod:`voxax.torch`, without importing PyTorch.

Their names are the paths of the modules here, their kernels have our shapes and order; linear
layers and batch norm are stored as PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import nnx

from voxax.interop.peer import Form, LayerWeights, Peer, linear_form, reshaped
from voxax.interop.state_dict import Names, StateDict, dump, load


def from_torch(state_dict: StateDict, model: nnx.Module, *, names: Names = None) -> dict[str, str]:
    """Set all parameters and statistics of ``model`` to those of a model of ``voxax.torch``.

    Arguments, result and errors are those of :func:`from_spconv`.
    """
    return load(state_dict, model, _VoxaxTorch(), names)


def to_torch(
    model: nnx.Module, *, names: Names = None, like: Mapping[str, Any] | None = None
) -> dict[str, np.ndarray]:
    """Return a state dict for a model of ``voxax.torch`` with the arrays of ``model``, in NumPy.

    ``module.load_state_dict({k: torch.from_numpy(v) for k, v in result.items()}, strict=False)``
    takes it; what is missing is ``num_batches_tracked`` alone.

    Arguments and errors are those of :func:`to_spconv`.
    """
    return dump(model, _VoxaxTorch(), names, like)


class _VoxaxTorch(Peer):
    name = "voxax.torch"
    grouped = True

    def weight_forms(self, layer: LayerWeights) -> list[Form]:
        own = layer.shape("weight")
        return [linear_form(own) if layer.kind == "linear" else reshaped("weight", own, own)]
