"""What is checked: a function, or an nnx module with its parameters as inputs."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from voxax import _compat

_SCOPE = re.compile(r"module\(([^()]*)\)")


@dataclasses.dataclass
class Subject:
    """A function of arrays.

    Attributes:
      target: what the user gave.
      name: its name.
      function: takes what :meth:`inputs` returns.
      first: arguments before the user's: the state of a module.
      module_names: paths of the submodules.
    """

    target: Any
    name: str
    function: Callable[..., Any]
    first: tuple[Any, ...] = ()
    module_names: tuple[str, ...] = ()
    paths: dict[int, str] = dataclasses.field(default_factory=dict)

    def inputs(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return (*self.first, *inputs)

    def module_of(self, frame: Any) -> str:
        """The submodule whose method a frame or one of its callers is in."""
        while frame is not None and self.paths:
            path = self.paths.get(id(frame.f_locals.get("self")))
            if path is not None:
                return path
            frame = frame.f_back
        return ""


def module_of_scope(scope: str) -> str:
    """The submodule in whose call an operation was traced, from its name scope."""
    found = _SCOPE.findall(scope)
    return found[-1] if found else ""


def is_module(target: Any) -> bool:
    """Whether ``target`` is an nnx module; flax is imported if it is already."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(target, nnx.Module)


def subject_of(target: Any) -> Subject:
    """Prepare what the user gave."""
    if not is_module(target):
        name = getattr(target, "__qualname__", None) or type(target).__name__
        # The inner function of one that is compiled: else a Python value that is held static here
        # would be traced after all.
        # One level: below it may be vmap, grad or a decorator, which are part of the program.
        inner = target.__wrapped__ if _compat.is_jitted(target) else target
        if inner is not target and inspect.ismethod(target):
            inner = types.MethodType(inner, target.__self__)
        return Subject(target, name.replace("<locals>.", ""), inner)
    from flax import nnx

    structure, state = nnx.split(target)
    subject = Subject(target, type(target).__name__, target, (state,))

    def function(model: Any, *inputs: Any) -> Any:
        module = nnx.merge(structure, model)  # a copy of our own: the user's is not touched
        named = _submodules(module)
        subject.paths = {id(part): path for path, part in named}
        with contextlib.ExitStack() as stack:
            for path, part in named:
                stack.enter_context(_scoped(part, path))
            result = module(*inputs)
        return result, nnx.state(module)

    subject.function = function
    subject.module_names = tuple(path for path, _ in _submodules(target) if path)
    return subject


def _submodules(module: Any) -> list[tuple[str, Any]]:
    from flax import nnx

    found = [
        (".".join(map(str, path)), part)
        for path, part in nnx.iter_graph(module)
        if isinstance(part, nnx.Module)
    ]
    return sorted(found, key=lambda pair: pair[0])


@contextlib.contextmanager
def _scoped(part: Any, path: str) -> Iterator[None]:
    """Calls of ``part`` are traced under a name scope that tells its path."""
    plain = type(part)
    if not callable(part):
        yield
        return

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with jax.named_scope(f"module({path})"):
            return plain.__call__(self, *args, **kwargs)

    named = type(plain.__name__, (plain,), {"__call__": call, "__module__": plain.__module__})
    object.__setattr__(part, "__class__", named)
    try:
        yield
    finally:
        object.__setattr__(part, "__class__", plain)
