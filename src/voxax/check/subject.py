"""What a check works on: a function or module in uniform form, and its example inputs as leaves."""

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
import numpy as np

from voxax import _compat_tracing
from voxax.check.inputs import Inputs, position_names

_SCOPE = re.compile(r"module\(([^()]*)\)")


@dataclasses.dataclass
class Subject:
    """The function or module that is checked, in the form of a pure function.

    `target` is the object that the user gave, and `called` is the callable with the user's
    parameters. `function` takes `first`, then the user's arguments; `first` has the state of a
    module, and is empty for a function. `module_names` has the paths of all submodules, and `paths`
    has the path of a submodule by the ``id`` of its object.
    """

    target: Any
    name: str
    function: Callable[..., Any]
    first: tuple[Any, ...] = ()
    called: Any = None
    module_names: tuple[str, ...] = ()
    paths: dict[int, str] = dataclasses.field(default_factory=dict)

    def inputs(self, inputs: Inputs) -> Inputs:
        return Inputs((*self.first, *inputs.positional), inputs.named)

    def module_of(self, frame: Any) -> str:
        """Return the path of the submodule whose method a frame or its callers run, or ``""``."""
        while frame is not None and self.paths:
            path = self.paths.get(id(frame.f_locals.get("self")))
            if path is not None:
                return path
            frame = frame.f_back
        return ""


def module_of_scope(scope: str) -> str:
    """Return the path of the submodule in an operation's name scope `scope`, or an empty string."""
    found = _SCOPE.findall(scope)
    return found[-1] if found else ""


def is_module(target: Any) -> bool:
    """Return True for an nnx module, without importing flax."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(target, nnx.Module)


def subject_of(target: Any) -> Subject:
    """Return the :class:`Subject` of a JAX function or an nnx module."""
    if not is_module(target):
        name = getattr(target, "__qualname__", None) or type(target).__name__
        # Take the inner function of a compiled function: else a Python value that is static here
        # would be traced after all.
        # Unwrap only one level: vmap, grad or a decorator below it is part of the program.
        inner = target.__wrapped__ if _compat_tracing.is_jitted(target) else target
        if inner is not target and inspect.ismethod(target):
            inner = types.MethodType(inner, target.__self__)
        return Subject(target, name.replace("<locals>.", ""), inner, called=inner)
    from flax import nnx

    structure, state = nnx.split(target)
    subject = Subject(target, type(target).__name__, target, (state,), target)

    def function(model: Any, *inputs: Any, **named: Any) -> Any:
        module = nnx.merge(structure, model)  # a copy of our own: the user's is not touched
        parts = _submodules(module)
        subject.paths = {id(part): path for path, part in parts}
        with contextlib.ExitStack() as stack:
            for path, part in parts:
                stack.enter_context(_scoped(part, path))
            result = module(*inputs, **named)
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
    """Return a context in which calls of the submodule `part` run in the scope ``module(path)``."""
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


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf of the pytree of example arguments.

    Attributes:
      name: the leaf as source code, such as ``params['w']``.
      value: the example value.
      kind: ``array``; ``number``, a Python number, which ``jit`` traces unless it is declared
        static; or ``static``, which ``jit`` cannot trace or which is declared static. A leaf of
        PyTorch has ``tensor`` in place of ``array``.
      declared: whether the target's own ``jit`` declares it static.
      argument: the name of the argument that contains the leaf.
    """

    name: str
    value: Any
    kind: str
    declared: bool = False
    argument: str = ""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Example arguments, flattened to leaves and a tree structure; positional arguments are first.

    `named` is whether some arguments are given by name. `declared` has the name and value of each
    whole argument that the target's own ``jit`` declares static.
    """

    leaves: tuple[Leaf, ...]
    structure: Any
    named: bool = False
    declared: tuple[tuple[str, Any], ...] = ()

    def fill(self, values: Sequence[Any]) -> Inputs:
        """Return the arguments of a call, with these values as leaves."""
        filled = self.unflatten(list(values))
        return Inputs(*filled) if self.named else Inputs(filled, {})

    def unflatten(self, values: list[Any]) -> Any:
        """Return the pytree of the arguments, with these values as leaves."""
        return jax.tree.unflatten(self.structure, values)

    def traced(self, held: frozenset[str] = frozenset()) -> list[int]:
        """Return the indices of the leaves that ``jit`` traces if leaves in `held` are static."""
        return [
            i
            for i, leaf in enumerate(self.leaves)
            if leaf.kind != "static" and leaf.name not in held
        ]

    def names(self) -> frozenset[str]:
        """Return the names of the arguments."""
        return frozenset(leaf.argument for leaf in self.leaves)

    def numbers(self) -> frozenset[str]:
        """Return the names of the leaves that are Python numbers and not declared static."""
        return frozenset(leaf.name for leaf in self.leaves if leaf.kind == "number")


def take_apart(subject: Subject, given: Inputs) -> Arguments:
    """Flatten the arguments that a user gives into leaves with names and kinds.

    If the target is made by ``jit``, the arguments that it declares static stay static.
    """
    numbers, names = _compat_tracing.static_arguments(subject.target)
    own = int(inspect.ismethod(subject.target))  # the numbers count `self`
    whole = subject.inputs(given)
    named = ["model"] * len(subject.first)
    named += position_names(subject.called, len(given.positional))
    static = {
        *(p for p, name in enumerate(named) if p + own in numbers or name in names),
        *(name for name in given.named if name in names),
    }
    parts = [*zip(named, range(len(named)), whole.positional, strict=True)]
    parts += [(name, name, value) for name, value in given.named.items()]
    leaves = []
    for argument, key, value in parts:
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            declared = key in static
            name = argument + jax.tree_util.keystr(path)
            kind = "static" if declared else kind_of(leaf)
            leaves.append(Leaf(name, leaf, kind, declared, argument))
    tree = (whole.positional, whole.named) if given.named else whole.positional
    declared = tuple((argument, value) for argument, key, value in parts if key in static)
    return Arguments(tuple(leaves), jax.tree.structure(tree), bool(given.named), declared)


def kind_of(value: Any) -> str:
    """Return the kind of a leaf's value: ``array``, ``number`` or ``static``; see :class:`Leaf`."""
    if isinstance(value, bool | int | float | complex) and not isinstance(value, np.generic):
        return "number"
    if isinstance(value, jax.Array):
        return "array"
    if isinstance(value, np.ndarray | np.generic):
        return "array" if value.dtype.kind not in "OUSMmV" else "static"
    return "array" if hasattr(value, "__jax_array__") else "static"


def staged(
    subject: Subject, arguments: Arguments, held: frozenset[str]
) -> tuple[Callable[..., Any], list[Any]]:
    """Return the subject as a function of its traced leaves, and these leaves' example values.

    All other leaves, and those named in `held`, keep their example values.
    """
    traced = arguments.traced(held)

    def function(*values: Any) -> Any:
        leaves = [leaf.value for leaf in arguments.leaves]
        for position, value in zip(traced, values, strict=True):
            leaves[position] = value
        return arguments.fill(leaves).call(subject.function)

    return function, [arguments.leaves[i].value for i in traced]
