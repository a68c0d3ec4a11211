"""Arguments of a PyTorch module, leaf by leaf, as ``torch.export`` sees them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  (an extra)
from torch.utils import _pytree  # pyright: ignore[reportMissingImports]

from voxax.check.inputs import Inputs, position_names
from voxax.check.subject import Arguments, Leaf


@dataclasses.dataclass(frozen=True)
class TorchArguments(Arguments):
    """Arguments of which PyTorch knows the structure; ``None`` is no leaf.

    `present` says of each leaf of `spec` whether it is a value; else it is ``None``.
    """

    spec: Any = None
    present: tuple[bool, ...] = ()

    def unflatten(self, values: list[Any]) -> Any:
        """Return a tree of this structure."""
        given = iter(values)
        leaves = [next(given) if there else None for there in self.present]
        return _pytree.tree_unflatten(leaves, self.spec)


def take_apart(function: Callable[..., Any], given: Inputs) -> TorchArguments:
    """Name and sort the leaves of the arguments of ``function``."""
    names = [*position_names(function, len(given.positional)), *given.named]
    parts = [*given.positional, *given.named.values()]
    values, spec = _pytree.tree_flatten(
        (given.positional, given.named) if given.named else given.positional
    )
    paths = [(name + p, name) for name, v in zip(names, parts, strict=True) for p in _paths(v)]
    leaves = tuple(
        Leaf(path, value, kind_of(value), argument=argument)
        for (path, argument), value in zip(paths, values, strict=True)
        if value is not None
    )
    present = tuple(value is not None for value in values)
    return TorchArguments(leaves, f"{spec}{present}", bool(given.named), spec=spec, present=present)


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
