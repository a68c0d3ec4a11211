"""Tensors of other libraries as NumPy arrays, without importing those libraries."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from voxax.errors import InputError


def as_numpy(name: str, value: Any) -> np.ndarray:
    """A NumPy array of the same dtype from an array, or from a PyTorch tensor on any device.

    Raises:
      InputError: not numbers; names the tensor.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # PyTorch gives NumPy none; float32 holds each
            return value.float().numpy().astype(ml_dtypes.bfloat16)
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype == object or array.dtype.kind in "US":
        raise InputError(f"{name!r} of the state dict is {type(value).__name__}, not a tensor")
    return array
