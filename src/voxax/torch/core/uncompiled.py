"""Functions that ``torch.compile`` or ``torch.func`` leave alone."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


def uncompiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the function as ``torch.compiler.disable`` does, without the import of the compiler.

    That import takes longer than that of PyTorch, and no call is compiled before it.
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
    """Return the function on plain tensors inside ``torch.func``'s transformations too.

    These wrap whatever PyTorch computes, and wrapped tensors have no memory. For functions of
    coordinates and maps, which have no derivatives.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with torch._C._DisableFuncTorch():
            return function(*args, **kwargs)

    return call
