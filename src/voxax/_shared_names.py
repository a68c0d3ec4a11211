"""Functions that have the name of a module of their package.

``vx.plan(...)`` is a function and ``voxax.geometry.plan`` a module. Python has one place for
both, where ``import voxax.geometry.plan`` looks too.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any


class FunctionAndModule:
    """A function that also has the attributes of the module of its name."""

    def __init__(self, function: Callable[..., Any], module: types.ModuleType):
        functools.update_wrapper(self, function)
        self._module = module

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.__wrapped__(*args, **options)  # pyright: ignore[reportAttributeAccessIssue]

    def __getattr__(self, name: str) -> Any:
        # Copies ask before there is a module.
        module = self.__dict__.get("_module")
        if module is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(module, name)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __reduce__(self) -> tuple[Any, ...]:
        return _found, tuple(self._module.__name__.rsplit(".", 1))


def _found(package: str, name: str) -> Any:
    return getattr(importlib.import_module(package), name)


def share_names(package: str) -> None:
    """Let each function of a package reach the module of its name; at the end of ``__init__``."""
    names = vars(sys.modules[package])
    for name, value in list(names.items()):
        module = sys.modules.get(f"{package}.{name}")
        if isinstance(value, types.FunctionType) and module is not None:
            names[name] = FunctionAndModule(value, module)
