"""Define the part of ``cumm.tensorview`` that data pipelines use: tensors on NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from voxax.torch.core.errors import ArgumentError
from voxax.torch.spconv.algo import Activation as _Activation

unknown, float32, int32, int16, int8, float64, bool_, uint8, float16 = range(-1, 8)
int64, uint16, uint32, uint64, bfloat16, tf32 = range(8, 14)
_CODES = ("f4", "i4", "i2", "i1", "f8", "?", "u1", "f2", "i8", "u2", "u4", "u8")
NPDTYPE_TO_TENSOR_MAP = {np.dtype(code): number for number, code in enumerate(_CODES)}
TENSOR_TO_NPDTYPE_MAP = {number: dtype for dtype, number in NPDTYPE_TO_TENSOR_MAP.items()}
TENSOR_TO_NPDTYPE_MAP[tf32] = np.dtype("f4")


class gemm:
    """Namespace that has :class:`Activation`, as ``cumm.tensorview.gemm`` has."""

    Activation = _Activation


class Tensor:
    """Tensor on the memory of a NumPy array; slices share this memory.

    Args:
      array: array of any shape and dtype, which is not copied.

    Attributes:
      dtype: number of the dtype, such as :data:`float32`; :data:`unknown` for others.
      shape, ndim, size: sizes of the axes (a list), number of axes, and number of elements.
      device: -1, the CPU.
    """

    def __init__(self, array: np.ndarray) -> None:
        self._array, self.device = array, -1
        self.shape, self.ndim, self.size = list(array.shape), array.ndim, array.size
        self.dtype = NPDTYPE_TO_TENSOR_MAP.get(array.dtype, unknown)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Tensor:
        """Return a view of the elements that integers, slices and an ellipsis select."""
        try:
            part = self._array[index]
        except IndexError as error:
            # As in cumm: no iteration ends with an IndexError.
            raise ArgumentError(f"index {index} of a tensor of shape {self.shape}") from error
        # A scalar of NumPy would be a copy.
        return Tensor(part if isinstance(part, np.ndarray) else self._array[index, ...])

    def __iter__(self) -> Any:
        return (self[row] for row in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError for a method of cumm's tensors that is missing here."""
        raise AttributeError(
            f"Tensor.{name}: of cumm's tensors, arrays in and out are here; numpy_view() returns "
            "the array"
        )

    def dim(self, axis: int) -> int:
        """Return the size along an axis."""
        return self.shape[axis]

    def numpy(self) -> np.ndarray:
        """Return a copy of the array."""
        return self._array.copy()

    def numpy_view(self) -> np.ndarray:
        """Return the array itself, not a copy."""
        return self._array

    def cpu(self) -> Tensor:
        """Return a tensor on a copy of the array."""
        return Tensor(self.numpy())

    clone = cpu


def from_numpy(array: np.ndarray) -> Tensor:
    """Return a tensor that shares the memory of a NumPy array."""
    return Tensor(np.asarray(array))


def zeros(
    shape: Sequence[int],
    dtype: Any = float32,
    device: int = -1,
    pinned: bool = False,
    managed: bool = False,
) -> Tensor:
    """Return a tensor of zeros on the CPU, which is ``device`` -1.

    ``dtype`` is a number such as :data:`float32`, or NumPy's dtype. ``pinned`` and ``managed`` have
    no effect.
    """
    del pinned, managed
    if device != -1:
        raise ArgumentError(f"device {device}: voxax.torch.spconv runs on the CPU, which is -1")
    if isinstance(dtype, int) and dtype not in TENSOR_TO_NPDTYPE_MAP:
        raise ArgumentError(f"dtype number {dtype}: NumPy has {sorted(TENSOR_TO_NPDTYPE_MAP)}")
    kind = TENSOR_TO_NPDTYPE_MAP[dtype] if isinstance(dtype, int) else np.dtype(dtype)
    return Tensor(np.zeros(list(shape), kind))


empty = zeros
