"""Join the sparse tensors of several scenes into one batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from voxax.torch.core.errors import ArgumentError
from voxax.torch.torchsparse.tensor import SparseTensor, check_channels


def sparse_collate(inputs: list[SparseTensor]) -> SparseTensor:
    """Join scenes to one sparse tensor, whose coordinates have a column for the batch index.

    Each tensor of ``inputs`` is one scene. All must have the same stride and number of channels,
    and coordinates ``[N, 3]`` without a batch index. Features are ``[N, C]``, or ``[N]`` such as
    labels. NumPy arrays in ``inputs`` are converted to PyTorch tensors in place.
    """
    if not inputs or not all(isinstance(tensor, SparseTensor) for tensor in inputs):
        kinds = sorted({type(tensor).__name__ for tensor in inputs})
        raise ArgumentError(f"a batch of {len(inputs)} {kinds}: expected one or more SparseTensor")
    coords, feats, kind = [], [], inputs[0]._kind
    column = (0, 1) if kind._batch else (1, 0)
    for scene, tensor in enumerate(inputs):
        tensor.coords, tensor.feats = map(torch.as_tensor, (tensor.coords, tensor.feats))
        if tensor.stride != inputs[0].stride:
            strides = f"{inputs[0].stride} and {tensor.stride}"
            raise ArgumentError(f"strides {strides}: expected one stride")
        if tensor.coords.ndim != 2 or tensor.coords.shape[1] != 3:
            raise ArgumentError(
                f"coords of shape {list(tensor.coords.shape)}: expected [N, 3] of one scene, "
                "without a batch index"
            )
        coords.append(torch.nn.functional.pad(tensor.coords, column, value=scene))
        feats.append(tensor.feats)
    check_channels("sparse_collate", *inputs)
    return kind(torch.cat(feats), torch.cat(coords), inputs[0].stride)


def sparse_collate_fn(inputs: list[Any]) -> Any:
    """Join a list of dictionaries to one dictionary, as the ``collate_fn`` of a ``DataLoader``.

    Tensors and arrays are stacked, sparse tensors and inner dictionaries are joined, and other
    values become lists. A list of other objects is returned unchanged.
    """
    if not inputs or not isinstance(inputs[0], dict):
        return inputs
    return {name: _collated([item[name] for item in inputs]) for name in inputs[0]}


def _collated(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return sparse_collate_fn(values)
    if isinstance(values[0], np.ndarray | torch.Tensor):
        return torch.stack([torch.as_tensor(value) for value in values])
    return sparse_collate(values) if isinstance(values[0], SparseTensor) else values
