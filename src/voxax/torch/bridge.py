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

from voxax._compat import is_traced
from voxax.errors import InputError


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """Return a JAX array with the values of a PyTorch tensor; gradients do not pass between them.

    The array shares the memory of a contiguous tensor that begins at a multiple of 64 bytes.
    Otherwise the array is a copy.

    Args:
      tensor: ``[...]``, of any shape, on the CPU. With JAX's 64-bit mode off, int64 becomes int32,
        and uint64 becomes uint32.

    Raises:
      InputError: ``tensor`` is no PyTorch tensor; or JAX's 64-bit mode is off, and the tensor is
        float64 or complex128, which JAX would round, or has integers that do not fit 32 bits.
    """
    if not isinstance(tensor, torch.Tensor):
        raise InputError(
            f"to_jax of {type(tensor).__name__}: expected a torch.Tensor; for arrays and lists, "
            "take jax.numpy.asarray"
        )
    # Detached: PyTorch exports no tensor that requires a gradient. JAX takes dense rows only.
    array = jax.dlpack.from_dlpack(tensor.detach().contiguous())
    if array.dtype.itemsize < tensor.dtype.itemsize:
        name = str(tensor.dtype).removeprefix("torch.")
        advice = 'set jax.config.update("jax_enable_x64", True), or convert the tensor first'
        if tensor.is_floating_point() or tensor.is_complex():
            raise InputError(
                f"a tensor of {name}, which JAX would round to {array.dtype}: {advice}"
            )
        values = tensor.detach().cpu().numpy()
        wide = values[values != values.astype(array.dtype)]
        if wide.size:
            raise InputError(
                f"a tensor of {name} with {wide[0]}, which does not fit {array.dtype}: {advice}"
            )
    return array


def to_torch(array: jax.Array) -> torch.Tensor:
    """Return a tensor that shares the memory of a JAX array; wait until the array is computed.

    JAX arrays must never change, so write into a ``.clone()`` of the tensor only. The tensor can be
    used in training, even if this function is called under ``torch.inference_mode``.

    Args:
      array: ``[...]``, of any shape, and of a dtype that PyTorch has.

    Raises:
      InputError: ``array`` is traced by ``jax.jit`` or a similar transformation.
      RuntimeError: the computation of ``array`` failed.
    """
    if is_traced(array):
        raise InputError(
            "to_torch of a traced array, which has no values yet: call it on the results of the "
            "function that jax.jit, jax.grad or jax.vmap transforms"
        )
    with torch.inference_mode(False):
        return torch.from_dlpack(jax.block_until_ready(array))
