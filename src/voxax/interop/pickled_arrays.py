"""Safe replacements of NumPy's classes and functions that are needed to load pickled arrays.

PyTorch files may have such arrays beside tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class _Dtype:
    """Replacement of ``numpy.dtype`` while a pickle is loaded; ``dtype`` is the NumPy dtype.

    Of the pickled state only the byte order is used, because the whole state could change a real
    ``numpy.dtype``.
    """

    def __init__(self, kind: str, *_: Any) -> None:
        self.dtype = np.dtype(kind)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in (">", "<"):
            self.dtype = self.dtype.newbyteorder(state[1])


class PickledArray:
    """Replacement of ``numpy.ndarray`` in a pickle.

    ``values`` is the array, or None if its elements are not numbers.
    """

    values: np.ndarray | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, data = state
        if kind.dtype.kind in "biuf":
            flat = np.frombuffer(data, kind.dtype)
            self.values = flat.reshape(shape, order="F" if fortran else "C")


def _reconstruct(*_: Any) -> PickledArray:
    return PickledArray()


def _scalar(kind: _Dtype, data: bytes) -> Any:
    return np.frombuffer(data, kind.dtype)[0]


def numpy_globals() -> list[Any]:
    """Return a list of the replacements, the argument of ``torch.serialization.safe_globals``.

    In this context, ``torch.load`` reads arrays that NumPy 1 or 2 pickled, as
    :class:`PickledArray` objects.
    """
    functions = {"_reconstruct": _reconstruct, "scalar": _scalar}
    return [
        PickledArray,
        _Dtype,
        (PickledArray, "numpy.ndarray"),
        (_Dtype, "numpy.dtype"),
        *(
            (function, f"numpy.{core}.multiarray.{name}")
            for core in ("core", "_core")
            for name, function in functions.items()
        ),
    ]
