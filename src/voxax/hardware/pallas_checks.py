"""The switch for bounds checks of copies in the TPU kernels of convolution.

The switch does not affect other TPU kernels, which are always checked.
"""

from __future__ import annotations

import os

from voxax.errors import InputError

VARIABLE = "VOXAX_TPU_BOUNDS_CHECKS"
_VALUES = {"on": True, "off": False, "": False}


def bounds_checks() -> bool:
    """Return whether ``VOXAX_TPU_BOUNDS_CHECKS`` is ``on``; False if it is unset or ``off``.

    With checks, the chip stops a kernel with an error if a copy would leave an array. Without
    checks, such a copy reads or writes beyond the array. The variable is read when a function is
    traced, so a compiled program keeps its value until ``vx.reload_environment()``. Kernels in
    Pallas' interpreter do not depend on it.

    Raises:
      InputError: the variable has another value.
    """
    text = os.environ.get(VARIABLE, "").strip().lower()
    if text not in _VALUES:
        raise InputError(f"{VARIABLE}={text}: expected on or off")
    return _VALUES[text]
