"""Convert PyTorch tensors to tensors of :mod:`voxax.torch.spconv.tensorview`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from voxax.torch.core.errors import ArgumentError, check_cpu
from voxax.torch.spconv import tensorview as tv
from voxax.torch.spconv.ops import get_current_stream as get_current_stream

_NAMES = ("float32", "float64", "float16", "int32", "int64", "int8", "int16", "uint8")
_TORCH_DTYPE_TO_TV = {getattr(torch, name): getattr(tv, name) for name in _NAMES}


def torch_tensor_to_tv(
    ten: torch.Tensor, dtype: int | None = None, shape: Sequence[int] | None = None
) -> tv.Tensor:
    """Return a ``tensorview`` tensor on the memory of ``ten``, viewed as ``dtype`` and ``shape``.

    ``dtype`` is a number such as ``tensorview.float32``. None keeps the dtype or the shape of
    ``ten``.

    Raises:
      SpconvError: the tensor is on another device, or ``cumm.tensorview`` lacks its dtype.
    """
    check_cpu(ten, "a tensor")
    if ten.dtype not in _TORCH_DTYPE_TO_TV:
        raise ArgumentError(f"a tensor of {ten.dtype}: expected {[*map(str, _TORCH_DTYPE_TO_TV)]}")
    array = ten.detach().numpy()
    if dtype is not None:
        array = array.view(tv.TENSOR_TO_NPDTYPE_MAP[dtype])
    return tv.from_numpy(array if shape is None else array.reshape(shape))


def get_arch() -> tuple[int, int]:
    """Raise :class:`SpconvError`, because a CPU has no CUDA compute capability."""
    raise ArgumentError("get_arch: voxax.torch.spconv runs on the CPU, which has no architecture")
