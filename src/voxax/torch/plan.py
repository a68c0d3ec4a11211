"""Kernel maps built ahead of a model's call."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, and not there where types are checked.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from voxax.torch.geometry import VoxelGeometry
from voxax.torch.planning import recording
from voxax.torch.voxels import Voxels


def plan(model: Callable[[Voxels], Any], voxels: Voxels) -> Voxels:
    """The same voxels with every kernel map that ``model(voxels)`` will ask for attached.

    Strided levels get capacities of their own, bucketed from the number of their voxels. The model
    runs once, without its products; neither its statistics nor the random state change.

    Args:
      model: a module, or any callable on Voxels.
      voxels: of the cloud to plan for.

    Raises:
      InputError, CapacityError: as the layers of the model.
    """
    fresh = VoxelGeometry(voxels.coords, voxels.stride, voxels.batch_size)
    planned = voxels.on(fresh, voxels.features)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), recording():
        if isinstance(model, torch.nn.Module):
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            torch.func.functional_call(model, buffers, (planned,))
        else:
            model(planned)
    return planned
