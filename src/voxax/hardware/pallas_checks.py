"""Whether the kernels of convolution by maps on TPUs check that each copy stays within its arrays.

The others always do: theirs copy in blocks of the grid alone.
"""

from __future__ import annotations

import os

from voxax.errors import InputError

VARIABLE = "VOXAX_TPU_BOUNDS_CHECKS"
_VALUES = {"on": True, "off": False, "": False}


def bounds_checks() -> bool:
    """Return True where ``VOXAX_TPU_BOUNDS_CHECKS=on``; unset or ``off``: False.

    With checks the chip stops a kernel whose copy would leave an array, with an error; without them
    the copy reads or writes beyond the array. The environment is read when a function is traced, so
    a compiled program keeps its value until ``vx.reload_environment()``. Interpreted kernels do not
    change.

    Raises:
      InputError: another value.
    """
    text = os.environ.get(VARIABLE, "").strip().lower()
    if text not in _VALUES:
        raise InputError(f"{VARIABLE}={text}: expected on or off")
    return _VALUES[text]
