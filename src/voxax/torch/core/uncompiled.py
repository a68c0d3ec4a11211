"""Keep PyTorch's compiler, ``torch.func`` and tracers out of functions."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from voxax.torch.core.errors import ArgumentError

_P = ParamSpec("_P")
_R = TypeVar("_R")
# PyTorch 2.6 lacks is_exporting.
_is_exporting = getattr(torch.compiler, "is_exporting", bool)


def is_traced() -> bool:
    """Return True under ``torch.jit.trace`` and ``torch.export``."""
    return torch._C._is_tracing() or _is_exporting()


def refuse_tracing() -> None:
    """Raise :class:`ArgumentError` if :func:`is_traced`.

    PyTorch would record memory that native kernels have not filled, and kernel maps as constants.
    """
    if is_traced():
        raise ArgumentError(
            "a sparse layer under torch.jit.trace, torch.export or torch.onnx, which cannot record "
            "it: call the PyTorch module itself. For deployment, load its weights into a JAX model "
            "and take voxax.export"
        )


def uncompiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a function so that ``torch.compile`` never compiles it.

    The decorator applies ``torch.compiler.disable`` once other code has imported the compiler.
    It does not import the compiler, because this takes longer than importing PyTorch itself.
    """
    disabled: Any = None

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        nonlocal disabled
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if disabled is None:
            disabled = torch.compiler.disable(function)
        return disabled(*args, **kwargs)

    return call


def untransformed(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a function so that it computes with plain tensors, also inside ``torch.func``.

    The transformations of ``torch.func`` wrap all results, and wrapped tensors have no memory. Use
    this for functions of coordinates and kernel maps, which have no derivatives. The function
    raises the error of :func:`refuse_tracing`.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        refuse_tracing()
        with torch._C._DisableFuncTorch():
            return function(*args, **kwargs)

    return call
