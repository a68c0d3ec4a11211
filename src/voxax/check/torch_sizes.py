"""Which sizes of PyTorch's tensors depend on data.

A tensor with such a size has a twin: one without values, whose size there is another. What is
computed from the tensor is computed from the twin too, and a size is one that depends on data where
the two differ. So every operator says itself which sizes it hands on.
"""

from __future__ import annotations

from typing import Any

import torch  # pyright: ignore[reportMissingImports]  (an extra; imported by nobody without it)
from torch.utils._pytree import tree_leaves, tree_map  # pyright: ignore[reportMissingImports]

from voxax.check import torch_numbers

# Added to the size of a twin, once for each operator that makes one; no likely size of a model.
_STEP = 1009
_SIZES = ("size", "numel", "nelement")


def twin_of(tensor: Any) -> Any:
    """The twin of a tensor; None where none of its sizes depends on data."""
    return getattr(tensor, "_voxax_twin", None) if isinstance(tensor, torch.Tensor) else None


class Twins:
    """Makes twins, and hands them on."""

    def __init__(self) -> None:
        self.enabled = True
        self._made: list[tuple[Any, int, Any]] = []  # in the call that runs: result, axis, twin
        self._number = 0

    def made(self, func: Any, args: Any, result: Any) -> None:
        """An operator ran, the size of whose results depends on data."""
        if not self.enabled:
            return
        self._number += 1
        axis = _axis_of_index(args[1]) if func.overloadpacket is torch.ops.aten.index else 0
        for position, tensor in enumerate(result if isinstance(result, tuple) else (result,)):
            # The second of `unique` says where each entry of the input went.
            if isinstance(tensor, torch.Tensor) and not (position == 1 and "unique" in str(func)):
                shape = list(tensor.shape)
                shape[axis] += _STEP * self._number
                twin = torch.empty(shape, dtype=tensor.dtype, device="meta")
                self._made.append((tensor, axis, twin))

    def follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """A function of PyTorch has returned: its results have twins where its arguments have."""
        made, self._made = self._made, []
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if not self.enabled or not tensors:
            return
        if made:
            _match(tensors, made)
            return
        if not any(_differs(leaf) for leaf in tree_leaves((args, kwargs))):
            return
        try:
            with torch.no_grad():
                other = func(*tree_map(_other, args), **tree_map(_other, kwargs))
        except Exception:  # an operator that needs values: nothing is known
            return
        twins = [leaf for leaf in tree_leaves(other) if isinstance(leaf, torch.Tensor)]
        for tensor, twin in zip(tensors, twins, strict=False):
            if tensor.shape != twin.shape:
                tensor._voxax_twin = twin

    def sizes(self, func: Any, args: Any, kwargs: Any, value: Any, origins: tuple[Any, ...]) -> Any:
        """What ``x.shape``, ``x.size()`` and the like are, with numbers that can be asked."""
        twin = twin_of(args[0]) if args else None
        # Of the attributes, the shape; others differ in other ways (`is_meta`).
        counted = type(value) is int and getattr(func, "__name__", "") in _SIZES
        if twin is None or not (counted or isinstance(value, torch.Size)):
            return value
        other = func(twin, *args[1:], **kwargs)
        if isinstance(value, int):
            return value if value == other else torch_numbers.size(value, other, origins)
        return torch.Size(
            a if a == b else torch_numbers.size(a, b, origins)
            for a, b in zip(value, other, strict=True)
        )

    def counts(self, name: str, args: Any) -> bool:
        """Whether a function goes through as many entries as data say."""
        twin = twin_of(args[0]) if args and name in ("__iter__", "unbind") else None
        return twin is not None and twin.shape[:1] != args[0].shape[:1]


def is_size(name: str) -> bool:
    """Whether a function of PyTorch returns sizes."""
    return name in _SIZES or name == "__get__"


def _axis_of_index(indices: Any) -> int:
    """The axis of the rows that a mask among the indices chooses."""
    given = [i for i, index in enumerate(indices) if index is not None]
    together = given == list(range(given[0], given[-1] + 1))
    return given[0] if together else 0


def _match(tensors: list[Any], made: list[tuple[Any, int, Any]]) -> None:
    """Twins for the results of a function, from what operators in it made."""
    # The result itself, or a column of that of `nonzero`.
    pairs = [
        (tensor, *source)
        for tensor in tensors
        for source in made
        if tensor.untyped_storage().data_ptr() == source[0].untyped_storage().data_ptr()
    ]
    # Or else rows that are chosen by the indices, as by those that `repeat_interleave` makes.
    for tensor, source, axis, twin in pairs or [(t, *made[-1]) for t in tensors]:
        same = [i for i, size in enumerate(tensor.shape) if size == source.shape[axis]]
        if tensor.shape == source.shape:
            tensor._voxax_twin = twin
        elif len(same) == 1:
            shape = list(tensor.shape)
            shape[same[0]] = twin.shape[axis]
            tensor._voxax_twin = torch.empty(shape, dtype=tensor.dtype, device="meta")


def _differs(value: Any) -> bool:
    if isinstance(value, torch.Size):  # no container for PyTorch's own pytrees
        return any(map(_differs, value))
    node = torch_numbers.node_of(value)
    return twin_of(value) is not None or (node is not None and node.other != node.value)


def _other(value: Any) -> Any:
    if isinstance(value, torch.Size):
        return torch.Size(map(_other, value))
    node = torch_numbers.node_of(value)
    if node is not None:
        return node.other
    if not isinstance(value, torch.Tensor):
        return value
    twin = twin_of(value)
    if twin is not None:
        return twin
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
