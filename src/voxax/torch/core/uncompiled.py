"""Decorate functions that ``torch.compile`` or ``torch.func`` must not transform."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


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
    this for functions of coordinates and kernel maps, which have no derivatives.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with torch._C._DisableFuncTorch():
            return function(*args, **kwargs)

    return call
