"""Positional arguments of a PyTorch module, leaf by leaf, as ``torch.export`` sees them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  (an extra)
from torch.utils import _pytree  # pyright: ignore[reportMissingImports]

from voxax.check.subject import Arguments, Leaf, parameters


@dataclasses.dataclass(frozen=True)
class TorchArguments(Arguments):
    """Arguments of which PyTorch knows the structure; ``None`` is no leaf.

    Attributes:
      spec: the structure.
      present: for each of its leaves, whether it is a value; else it is ``None``.
    """

    spec: Any = None
    present: tuple[bool, ...] = ()

    def fill(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments with other leaves."""
        given = iter(values)
        leaves = [next(given) if there else None for there in self.present]
        return tuple(_pytree.tree_unflatten(leaves, self.spec))


def take_apart(function: Callable[..., Any], inputs: Sequence[Any]) -> TorchArguments:
    """Name and sort the leaves of ``inputs``, the positional arguments of ``function``."""
    names = parameters(function)
    values, spec = _pytree.tree_flatten(tuple(inputs))
    paths = []
    for position, value in enumerate(inputs):
        name = names[position] if position < len(names) else f"args[{position}]"
        paths += [name + path for path in _paths(value)]
    leaves = tuple(
        Leaf(path, value, kind_of(value))
        for path, value in zip(paths, values, strict=True)
        if value is not None
    )
    present = tuple(value is not None for value in values)
    return TorchArguments(leaves, f"{spec}{present}", spec=spec, present=present)


def _paths(value: Any) -> list[str]:
    """Return the paths of the leaves of one argument, such as ``['rows'][0]``."""
    try:
        leaves, _ = _pytree.tree_flatten_with_path(value)
    except ValueError:  # a class that tells PyTorch its leaves and not their names
        return [f"[{i}]" for i in range(len(_pytree.tree_leaves(value)))]
    return [_pytree.keystr(path) for path, _ in leaves]


def kind_of(value: Any) -> str:
    """Return ``tensor``; ``number``, which a tensor could replace; or ``static``."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    return "number" if type(value) in (bool, int, float) else "static"
