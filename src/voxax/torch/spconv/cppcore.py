"""Tensors of PyTorch as those of ``cumm.tensorview``, and memory by name."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from voxax.torch.spconv import tensorview as tv
from voxax.torch.spconv.errors import SpconvError, check_cpu
from voxax.torch.spconv.ops import get_current_stream as get_current_stream

_TORCH_DTYPE_TO_TV = {
    torch.float32: tv.float32,
    torch.float64: tv.float64,
    torch.float16: tv.float16,
    torch.int32: tv.int32,
    torch.int64: tv.int64,
    torch.int8: tv.int8,
    torch.int16: tv.int16,
    torch.uint8: tv.uint8,
}
_TV_DTYPE_TO_TORCH = {number: dtype for dtype, number in _TORCH_DTYPE_TO_TV.items()}
# Older PyTorch has no unsigned integers: their bits are those of signed ones.
_TV_DTYPE_TO_TORCH |= {tv.uint32: torch.int32, tv.uint16: torch.int16, tv.uint64: torch.int64}


def torch_tensor_to_tv(
    ten: torch.Tensor,
    dtype: int | None = None,
    shape: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
) -> tv.Tensor:
    """Return a tensor on the same memory.

    Args:
      ten: on the CPU.
      dtype: as which the bytes are read; its own if not given.
      shape, stride: in elements; its own if not given.

    Raises:
      SpconvError: a tensor on another device, or of a dtype that ``cumm.tensorview`` has not.
    """
    check_cpu(ten, "a tensor")
    if ten.dtype not in _TORCH_DTYPE_TO_TV:
        raise SpconvError(f"a tensor of {ten.dtype}: expected {[*map(str, _TORCH_DTYPE_TO_TV)]}")
    array = ten.detach().numpy()
    if dtype is not None:
        array = array.view(tv.get_npdtype_from_tvdtype(dtype))
    if stride is not None:
        steps = [step * array.itemsize for step in stride]
        array = np.lib.stride_tricks.as_strided(array, shape or array.shape, steps)
    elif shape is not None:
        array = array.reshape(shape)
    return tv.from_numpy(array)


def torch_tensors_to_tv(*tens: torch.Tensor) -> Iterator[tv.Tensor]:
    """Return each by :func:`torch_tensor_to_tv`."""
    return (torch_tensor_to_tv(ten) for ten in tens)


def get_arch() -> tuple[int, int]:
    """Raise :class:`SpconvError`: a CPU has no compute capability."""
    raise SpconvError("get_arch: voxax.torch.spconv runs on the CPU, which has no architecture")


class TorchAllocator:
    """Tensors of PyTorch, by name and by address, that are handed out as ``cumm.tensorview``'s.

    Args:
      gpudevice: the CPU.
      is_quantized: False.

    Attributes:
      allocated: the tensors.

    Raises:
      SpconvError: another device, or quantized tensors.
    """

    def __init__(self, gpudevice: torch.device, is_quantized: bool = False) -> None:
        if torch.device(gpudevice).type != "cpu" or is_quantized:
            raise SpconvError(
                f"an allocator on {gpudevice}, is_quantized={is_quantized}: voxax.torch.spconv "
                "runs on the CPU, where nothing is quantized"
            )
        self.gpudevice = self.cpudevice = torch.device("cpu")
        self.is_quantized = is_quantized
        self.allocated: dict[str | int, torch.Tensor] = {}

    def zeros(
        self,
        name: str,
        shape: Sequence[int],
        dtype: int,
        device: int,
        stream: int = 0,
        is_temp_memory: bool = False,
        scale: float = 1.0,
    ) -> tv.Tensor:
        """Return zeros of a number of dtype. With a name they are kept under it too."""
        del scale
        return self.full_float(name, shape, 0, dtype, device, stream, is_temp_memory)

    empty = zeros

    def full_float(
        self,
        name: str,
        shape: Sequence[int],
        value: float,
        dtype: int,
        device: int,
        stream: int = 0,
        is_temp_memory: bool = False,
    ) -> tv.Tensor:
        """Return a tensor of one value, as :meth:`zeros`."""
        del device, stream
        if dtype not in _TV_DTYPE_TO_TORCH:
            raise SpconvError(f"dtype number {dtype}: expected {sorted(_TV_DTYPE_TO_TORCH)}")
        tensor = torch.full(list(shape), value, dtype=_TV_DTYPE_TO_TORCH[dtype])
        made = torch_tensor_to_tv(tensor, dtype)
        self.allocated[made.byte_pointer()] = tensor
        if name and not is_temp_memory:
            self.allocated[name] = tensor
        return made

    full_int = full_float

    def get_tensor_by_name(self, name: str) -> tv.Tensor:
        """Return what was made under a name."""
        return torch_tensor_to_tv(self.allocated[name])

    def free(self, ten: tv.Tensor) -> None:
        """Forget a tensor's address.

        Raises:
          SpconvError: it was not made here.
        """
        if self.allocated.pop(ten.byte_pointer(), None) is None:
            raise SpconvError("a tensor that this allocator has not made, or has freed")

    def free_noexcept(self, ten: tv.Tensor) -> None:
        """Forget a tensor's address, if it is known."""
        self.allocated.pop(ten.byte_pointer(), None)
