"""The part of ``cumm.tensorview`` that networks name: activations, and arrays for voxelization."""

from __future__ import annotations

import numpy as np

from voxax.torch.spconv.algo import Activation as _Activation


class gemm:
    """Namespace of :class:`Activation`."""

    Activation = _Activation


class Tensor:
    """An array that is read with ``numpy()``.

    Args:
      array: of any shape and dtype; shared.
    """

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    @property
    def shape(self) -> list[int]:
        return list(self._array.shape)

    @property
    def ndim(self) -> int:
        return self._array.ndim

    def numpy(self) -> np.ndarray:
        """Return a copy."""
        return self._array.copy()

    def numpy_view(self) -> np.ndarray:
        """Return the array itself."""
        return self._array

    def __len__(self) -> int:
        return len(self._array)


def from_numpy(array: np.ndarray) -> Tensor:
    """Return a tensor on the array's memory."""
    return Tensor(np.asarray(array))
