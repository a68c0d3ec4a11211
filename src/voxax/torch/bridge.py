"""Convert PyTorch tensors to JAX arrays and back through DLPack.

Measured on CPU (torch 2.13, JAX 0.10.2): PyTorch allocates at multiples of 64 bytes, as JAX
requires, so a whole tensor is shared, not copied. JAX silently copies a slice that begins at
another address, and memory that came from NumPy. JAX arrays are always shared with PyTorch.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import jax
import torch

from voxax.errors import InputError


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """Return a JAX array with the values of a PyTorch tensor; gradients do not pass between them.

    The array shares the memory of a contiguous tensor that begins at a multiple of 64 bytes.
    Otherwise the array is a copy.

    Args:
      tensor: ``[...]``, of any shape, on the CPU.

    Raises:
      InputError: the tensor is float64 and JAX's 64-bit mode is off, so that JAX would round it.
    """
    # Detached: PyTorch exports no tensor that requires a gradient. JAX takes dense rows only.
    array = jax.dlpack.from_dlpack(tensor.detach().contiguous())
    if tensor.dtype is torch.float64 and array.dtype.itemsize != 8:
        raise InputError(
            "a float64 tensor, which JAX would round to float32: set "
            'jax.config.update("jax_enable_x64", True), or convert with .float()'
        )
    return array


def to_torch(array: jax.Array) -> torch.Tensor:
    """Return a tensor that shares the memory of a JAX array; wait until the array is computed.

    JAX arrays must never change, so write into a ``.clone()`` of the tensor only. The tensor can be
    used in training, even if this function is called under ``torch.inference_mode``.

    Args:
      array: ``[...]``, of any shape, and of a dtype that PyTorch has.

    Raises:
      RuntimeError: the computation of ``array`` failed.
    """
    with torch.inference_mode(False):
        return torch.from_dlpack(jax.block_until_ready(array))
