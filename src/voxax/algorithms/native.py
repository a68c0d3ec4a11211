"""What the bodies in the native library have in common."""

from __future__ import annotations

from voxax import _native
from voxax.algorithms.base import Parameters, Problem

_DTYPES = ("float32", "float64", "bfloat16")


def refusal(problem: Problem) -> str | None:
    """Why the native kernels cannot run this problem, or None."""
    if problem.platform != "cpu":
        return f"the native kernels do not run on {problem.platform}"
    if problem.dtype not in _DTYPES:
        return f"the native kernels multiply {', '.join(_DTYPES)}, got {problem.dtype}"
    return _native.unavailable()


def parameters(**sizes: int) -> Parameters:
    """Those of a native body, which its name tells from the others of an algorithm."""
    return (("body", "native"), *sizes.items())


def is_native(parameters: Parameters) -> bool:
    """Whether these are a native body's."""
    return dict(parameters).get("body") == "native"
