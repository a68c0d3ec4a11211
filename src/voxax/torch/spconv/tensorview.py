"""The part of ``cumm.tensorview`` that runs on CPUs: arrays by number of dtype, and activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from voxax.torch.spconv.algo import Activation as _Activation
from voxax.torch.spconv.errors import SpconvError

unknown, float32, int32, int16, int8, float64, bool_, uint8, float16 = range(-1, 8)
int64, uint16, uint32, uint64, bfloat16, tf32 = range(8, 14)
_NUMPY = "f4 i4 i2 i1 f8 ? u1 f2 i8 u2 u4 u8"
TENSOR_TO_NPDTYPE_MAP = {
    number: np.dtype(name) for number, name in enumerate(_NUMPY.split(" "))
} | {tf32: np.dtype("f4")}
NPDTYPE_TO_TENSOR_MAP = {
    dtype: number for number, dtype in TENSOR_TO_NPDTYPE_MAP.items() if number != tf32
}
ALL_TV_TENSOR_DTYPES = set(TENSOR_TO_NPDTYPE_MAP)


class gemm:
    """Namespace of :class:`Activation`."""

    Activation = _Activation


class Tensor:
    """An array whose slices and views share its memory.

    Args:
      array: of any shape and dtype; shared.
    """

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Tensor:
        """Return the part that integers, slices and an ellipsis choose.

        Raises:
          SpconvError: an integer outside.
        """
        try:
            part = self._array[index]
        except IndexError as error:
            # As in cumm: no iteration ends with an IndexError.
            raise SpconvError(f"index {index} of a tensor of shape {self.shape}") from error
        # A scalar of NumPy would be a copy.
        return Tensor(part if isinstance(part, np.ndarray) else self._array[index, ...])

    def __iter__(self) -> Any:
        return (self[row] for row in range(len(self)))

    @property
    def dtype(self) -> int:
        """Number of the dtype, as :data:`float32` and its like."""
        return NPDTYPE_TO_TENSOR_MAP.get(self._array.dtype, unknown)

    @property
    def shape(self) -> list[int]:
        """Sizes."""
        return list(self._array.shape)

    @property
    def stride(self) -> list[int]:
        """Elements between neighbors along each axis."""
        return [step // self._array.itemsize for step in self._array.strides]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._array.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._array.size

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self._array.itemsize

    @property
    def device(self) -> int:
        """-1, the CPU."""
        return -1

    @property
    def T(self) -> Tensor:
        """The transpose."""
        return Tensor(self._array.T)

    def dim(self, axis: int) -> int:
        """Return the size along an axis."""
        return self._array.shape[axis]

    def bytesize(self) -> int:
        """Return the bytes of all elements."""
        return self._array.nbytes

    def byte_pointer(self) -> int:
        """Return the address of the first element."""
        return self._array.ctypes.data

    def empty(self) -> bool:
        """Return whether there is no element."""
        return not self._array.size

    def is_contiguous(self) -> bool:
        """Return whether the elements follow each other in memory."""
        return self._array.flags.c_contiguous

    def is_readonly(self) -> bool:
        """Return whether writing is refused."""
        return not self._array.flags.writeable

    def numpy(self) -> np.ndarray:
        """Return a copy."""
        return self._array.copy()

    def numpy_view(self) -> np.ndarray:
        """Return the array itself."""
        return self._array

    def cpu(self) -> Tensor:
        """Return a copy."""
        return Tensor(self.numpy())

    clone = cpu

    def view(self, shape: Sequence[int]) -> Tensor:
        """Return the same elements in another shape.

        Raises:
          SpconvError: they do not follow each other in memory.
        """
        if not self.is_contiguous():
            raise SpconvError("view of a tensor that is not contiguous: clone() it")
        return Tensor(self._array.reshape(shape))

    def type_view(self, dtype: int) -> Tensor:
        """Return the same bytes as another dtype."""
        return Tensor(self._array.view(get_npdtype_from_tvdtype(dtype)))

    def select(self, axis: int, index: int) -> Tensor:
        """Return one place along an axis."""
        return Tensor(np.moveaxis(self._array, axis, 0))[index]

    def slice_first_axis(self, start: int, end: int) -> Tensor:
        """Return rows from ``start`` to before ``end``."""
        return self[start:end]

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """Return it with two axes swapped."""
        return Tensor(self._array.swapaxes(dim0, dim1))

    def unsqueeze(self, axis: int) -> Tensor:
        """Return it with one more axis of size 1."""
        return Tensor(np.expand_dims(self._array, axis))

    def squeeze(self, axis: int | None = None) -> Tensor:
        """Return it without axes of size 1, or without this one."""
        return Tensor(np.squeeze(self._array, axis))

    def copy_(self, other: Tensor) -> None:
        """Take the elements of another tensor of this shape."""
        self._array[...] = other.numpy_view()

    def zero_(self) -> Tensor:
        """Set all elements to 0."""
        return self.fill_int_(0)

    def fill_int_(self, value: float) -> Tensor:
        """Set all elements."""
        self._array[...] = value
        return self

    fill_float_ = fill_int_


def get_npdtype_from_tvdtype(tv_dtype: int) -> np.dtype:
    """Return NumPy's dtype of a number.

    Raises:
      SpconvError: NumPy has none.
    """
    found = TENSOR_TO_NPDTYPE_MAP.get(tv_dtype)
    if found is None:
        raise SpconvError(f"dtype number {tv_dtype}: NumPy has {sorted(TENSOR_TO_NPDTYPE_MAP)}")
    return found


def tvdtype_itemsize(dtype: int) -> int:
    """Return the bytes of an element."""
    return get_npdtype_from_tvdtype(dtype).itemsize


def tvdtype_bitsize(dtype: int) -> int:
    """Return the bits of an element."""
    return 8 * tvdtype_itemsize(dtype)


def from_numpy(array: np.ndarray) -> Tensor:
    """Return a tensor on the array's memory."""
    return Tensor(np.asarray(array))


def zeros(
    shape: Sequence[int],
    dtype: int | np.dtype = float32,
    device: int = -1,
    pinned: bool = False,
    managed: bool = False,
) -> Tensor:
    """Return a tensor of zeros.

    Raises:
      SpconvError: a device other than -1, the CPU.
    """
    del pinned, managed
    if device != -1:
        raise SpconvError(f"device {device}: voxax.torch.spconv runs on the CPU, which is -1")
    kind = get_npdtype_from_tvdtype(dtype) if isinstance(dtype, int) else np.dtype(dtype)
    return Tensor(np.zeros(list(shape), kind))


empty = zeros


def full(
    shape: Sequence[int],
    val: float,
    dtype: int | np.dtype = float32,
    device: int = -1,
    pinned: bool = False,
    managed: bool = False,
) -> Tensor:
    """Return a tensor of one value; arguments and errors as :func:`zeros`."""
    return zeros(shape, dtype, device, pinned, managed).fill_float_(val)


def cat_first_axis(tens: Sequence[Tensor]) -> Tensor:
    """Return the rows of all."""
    return Tensor(np.concatenate([part.numpy_view() for part in tens]))


def get_numpy_view(ten: Tensor) -> np.ndarray:
    """Return the tensor's array."""
    return ten.numpy_view()


numpy_view = get_numpy_view


def is_cpu_only() -> bool:
    """Return True."""
    return True


def div_up(a: int, b: int) -> int:
    """Return ``a / b`` rounded up."""
    return -(-a // b)
