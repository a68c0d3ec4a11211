"""Integer arguments, of whatever type callers have them."""

from __future__ import annotations

import operator
from typing import Any

from voxax.torch.core.errors import ArgumentError


def whole(name: str, value: Any) -> int:
    """Return an argument as Python's integer.

    It is an integer of Python or NumPy, or a tensor or an array that holds one; anything else
    raises :class:`ArgumentError`, which says the name.
    """
    try:
        return operator.index(value)
    except TypeError as failed:
        raise ArgumentError(f"{name}={value!r}: expected an integer") from failed


def is_single(value: Any) -> bool:
    """Return whether this is one number, not one for each axis."""
    return getattr(value, "ndim", None) == 0 or isinstance(value, int | float)


def wholes(name: str, value: Any, ndim: int) -> list[int]:
    """Return one integer for each axis, of one or as many, or raise :class:`ArgumentError`."""
    values = [value] * ndim if is_single(value) else list(value)
    if len(values) != ndim:
        found = f"{name}={values} for {ndim} axes"
        raise ArgumentError(f"{found}: expected one integer, or one per axis")
    return [whole(name, item) for item in values]
