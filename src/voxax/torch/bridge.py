"""Tensors to JAX arrays and back through DLPack, and calls of compiled programs on them.

Measured on CPU (torch 2.13, JAX 0.10.2): PyTorch allocates at multiples of 64 bytes, as
JAX wants, so a whole tensor is shared, not copied. A slice that begins elsewhere, and memory that
came from NumPy, are copied by JAX silently; results are shared always.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import torch

from voxax.errors import InputError

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def check_tensor(tensor: torch.Tensor, what: str) -> None:
    """Raise :class:`InputError` unless this is a tensor of floats and on the CPU."""
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"{what} of type {type(tensor).__name__}: give a torch.Tensor")
    if tensor.device.type not in ("cpu", "meta"):
        raise InputError(
            f"{what} on {tensor.device}: voxax.torch runs on the CPU. Move the model and its "
            "voxels with .cpu(), or use voxax from JAX on that device"
        )
    if tensor.dtype not in FLOATS:
        raise InputError(
            f"{what} of {tensor.dtype}: expected float32, float64, bfloat16 or float16; convert "
            "with .float()"
        )


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """Return a JAX array on the same memory if it begins at a multiple of 64 bytes, else a copy.

    float64 stays float64 only with ``jax_enable_x64``; the operators here switch it on for the
    time of their call.

    Args:
      tensor: ``[...]``, of any shape.

    Raises:
      InputError: float64 that JAX would round to float32.
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
    """Return a tensor on the same memory; waits until it has been computed.

    Under ``torch.inference_mode`` too it is an ordinary tensor: maps that were built there are kept
    with the voxels, and training may need them later.

    Args:
      array: ``[...]``, of any shape and dtype that PyTorch has.

    Raises:
      RuntimeError: the computation of ``array`` failed.
    """
    with torch.inference_mode(False):
        return torch.from_dlpack(jax.block_until_ready(array))


def call(program: Callable[..., Any], *tensors: torch.Tensor, **static: Any) -> torch.Tensor:
    """Return ``program(*arrays, **static)``, one array, as a tensor.

    Waits for the result. PyTorch may write into the operands as soon as this returns, as an
    optimizer does, and JAX computes in the background.
    """
    wide = any(tensor.dtype is torch.float64 for tensor in tensors)
    with jax.enable_x64(True) if wide else contextlib.nullcontext():
        return to_torch(program(*map(to_jax, tensors), **static))
