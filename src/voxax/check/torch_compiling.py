"""Run a PyTorch program eagerly in Python, but along the paths that ``torch.export`` takes.

``torch.compiler.is_compiling()`` and ``is_exporting()`` return True, but nothing is compiled.
Operators that take functions (``torch.cond``, ``while_loop``, ``scan``) call these in Python.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  (an extra)

# Imported here, because else the check imports them within its time limit.
import torch._dynamo  # pyright: ignore[reportMissingImports]
import torch.export  # pyright: ignore[reportMissingImports]
from torch._ops import HigherOrderOperator  # pyright: ignore[reportMissingImports]
from torch._subclasses.fake_tensor import (  # pyright: ignore[reportMissingImports]
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import (  # pyright: ignore[reportMissingImports]
    ShapeEnv,
)
from torch.utils._python_dispatch import (  # pyright: ignore[reportMissingImports]
    _disable_current_modes,
)
from torch.utils._pytree import tree_leaves, tree_map  # pyright: ignore[reportMissingImports]

_FLAGS = ("_is_compiling_flag", "_is_exporting_flag")


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Return a context in which a program runs as if it were being exported."""
    flags = {
        name: getattr(torch.compiler, name) for name in _FLAGS if hasattr(torch.compiler, name)
    }
    with _builtins_of_export(), torch.compiler.set_stance("force_eager"), _unscripted():
        try:
            for name in flags:
                setattr(torch.compiler, name, True)
            yield
        finally:
            for name, value in flags.items():
                setattr(torch.compiler, name, value)


def _builtins_of_export() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which Python's ``max`` and ``min`` of tensors run PyTorch operators.

    ``torch.export`` replaces them in the same way, so that they read no values.
    """
    try:
        from torch._export.non_strict_utils import (  # pyright: ignore[reportMissingImports]
            _override_builtin_ops,
        )
    except ImportError:  # another version of PyTorch, where max and min compare
        return contextlib.nullcontext()
    return _override_builtin_ops()


@contextlib.contextmanager
def _unscripted() -> Iterator[None]:
    """Return a context in which scripted functions run as Python code, which has line numbers."""
    scripted = torch.jit.ScriptFunction
    call = scripted.__call__

    def plain(self: Any, *args: Any, **kwargs: Any) -> Any:
        # PyTorch keeps it so that its compiler can inline it.
        function = getattr(self, "_torchdynamo_inline", None)
        return call(self, *args, **kwargs) if function is None else function(*args, **kwargs)

    scripted.__call__ = plain
    try:
        yield
    finally:
        scripted.__call__ = call


def takes_functions(operator: Any) -> bool:
    """Return True for an operator that takes functions, such as ``torch.cond``."""
    return isinstance(operator, HigherOrderOperator)


def apply(operator: Any, args: Sequence[Any], kwargs: dict[str, Any], modes: Sequence[Any]) -> Any:
    """Apply an operator that takes functions, such as ``torch.cond``, and return its result.

    Each function is recorded once. Both branches of ``cond`` and the body of a ``while_loop`` are
    recorded even if the examples do not reach them, because they are part of the program. Reads of
    values by the operator itself, such as its condition, are not recorded.

    Args:
      operator: the operator.
      args: positional arguments of the operator.
      kwargs: named arguments of the operator.
      modes: the recording modes of PyTorch in which the functions run.
    """
    seen: set[int] = set()

    def watched(function: Any) -> Any:
        if not callable(function) or isinstance(function, torch.Tensor):
            return function

        def call(*given: Any, **named: Any) -> Any:
            with contextlib.ExitStack() as stack:
                if id(function) not in seen:
                    seen.add(id(function))
                    for mode in modes:
                        stack.enter_context(mode)
                return function(*given, **named)

        return call

    # Take the kernel for tensors with values: the others trace or differentiate the functions.
    kernel = operator.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd, operator)
    operands = [leaf for arg in args if isinstance(arg, tuple | list) for leaf in arg]
    with _disable_current_modes(), torch._C._EnableTorchFunction():
        result = kernel(*map(watched, args), **kwargs)
        if operator.name() in ("cond", "while_loop"):
            for function in args[:3]:
                if callable(function) and id(function) not in seen:
                    watched(function)(*(tree_map(_copied, operands)))
    return result


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def has_unknown_size(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return True if the size of an operator's result depends on values of its arguments.

    The operator is applied to tensors without values. It then returns a size that depends on values
    as an unbacked symbol.
    """
    try:
        return _is_sized(_without_values(operator, args, kwargs))
    except DynamicOutputShapeException:
        return True
    except Exception:  # there is no such kernel; export reports it
        return False


def needs_values(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return True if a function of PyTorch needs values of tensors, also in compiled programs.

    The function is applied to tensors without values. It needs values if this raises an error, or
    if a result or its size depends on values. A function that reads values only to check its
    arguments does not need them.
    """
    try:
        return _is_sized(_without_values(function, args, kwargs))
    except Exception:
        return True


def _is_sized(result: Any) -> bool:
    """Return True if the result has a symbolic number, or a tensor with a symbolic size."""
    leaves = tree_leaves(result)
    made = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    sizes = [size for tensor in made for size in tensor.shape]
    unknown = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return any(isinstance(value, unknown) for value in (*leaves, *sizes))


def _without_values(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return a function's result for fake copies of its tensors, with shapes but no values."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return mode.from_tensor(value.detach(), static_shapes=True)

    with _disable_current_modes():
        given, named = tree_map(fake, (tuple(args), dict(kwargs)))
        with mode, torch.no_grad():
            return function(*given, **named)
