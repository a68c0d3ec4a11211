"""Integer arguments, of whatever type callers have them."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import operator
from typing import Any

from voxax.errors import InputError


def whole(name: str, value: Any, error: type[InputError] = InputError) -> int:
    """Return an argument as Python's integer.

    Args:
      name: of the argument, for messages.
      value: an integer of Python or NumPy, or a tensor or an array that holds one.
      error: raised for others.
    """
    try:
        return operator.index(value)
    except TypeError as failed:
        raise error(f"{name}={value!r}: expected an integer") from failed


def is_single(value: Any) -> bool:
    """Return whether this is one number, not one for each axis."""
    return getattr(value, "ndim", None) == 0 or isinstance(value, int | float)


def wholes(name: str, value: Any, error: type[InputError] = InputError) -> int | tuple[int, ...]:
    """Return :func:`whole` of an argument that is one number, or one for each axis."""
    if is_single(value):
        return whole(name, value, error)
    return tuple(whole(name, item, error) for item in value)
