"""The example inputs: which leaves are traced, which are Python values, and their names."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from voxax import _compat


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf of the arguments.

    Attributes:
      name: as a person would write it, such as ``params['w']``.
      value: the example.
      kind: ``array``; ``number``, which ``jit`` traces too unless told otherwise; ``static``, which
        it cannot trace, or was told not to.
      declared: static because the target's own ``jit`` says so.
    """

    name: str
    value: Any
    kind: str
    declared: bool = False


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Positional example arguments, taken apart."""

    leaves: tuple[Leaf, ...]
    structure: Any

    def fill(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments with other leaves."""
        return jax.tree.unflatten(self.structure, list(values))

    def traced(self, held: frozenset[str] = frozenset()) -> list[int]:
        """Positions of the leaves that ``jit`` would trace, without those that are held static."""
        return [
            i
            for i, leaf in enumerate(self.leaves)
            if leaf.kind != "static" and leaf.name not in held
        ]

    def numbers(self) -> frozenset[str]:
        """Names of the Python numbers."""
        return frozenset(leaf.name for leaf in self.leaves if leaf.kind == "number")


def take_apart(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    target: Any = None,
    kind: Callable[[Any], str] | None = None,
) -> Arguments:
    """Name and sort the leaves of ``inputs``, the arguments of ``function``.

    Args:
      function: what is called.
      inputs: its positional arguments.
      target: what the user gave; one made by ``jit`` may have static arguments.
      kind: sorts a leaf; :func:`kind_of` by default.
    """
    sort = kind or kind_of
    parameters = _parameters(function)
    numbers, names = _compat.static_arguments(target)
    own = int(inspect.ismethod(target))  # the numbers count `self`
    paths, structure = jax.tree_util.tree_flatten_with_path(tuple(inputs))
    leaves = []
    for path, value in paths:
        position = path[0].idx
        name = parameters[position] if position < len(parameters) else f"args[{position}]"
        declared = position + own in numbers or name in names
        leaf_kind = "static" if declared else sort(value)
        leaves.append(Leaf(name + jax.tree_util.keystr(path[1:]), value, leaf_kind, declared))
    return Arguments(tuple(leaves), structure)


def kind_of(value: Any) -> str:
    """``array``, ``number`` or ``static``; see :class:`Leaf`."""
    if isinstance(value, bool | int | float | complex) and not isinstance(value, np.generic):
        return "number"
    if isinstance(value, jax.Array):
        return "array"
    if isinstance(value, np.ndarray | np.generic):
        return "array" if value.dtype.kind not in "OUSMmV" else "static"
    return "array" if hasattr(value, "__jax_array__") else "static"


def _parameters(target: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in positional]
