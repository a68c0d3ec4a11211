"""Numbers and sizes of PyTorch programs that report when the program comes to depend on them.

PyTorch lets ``torch.SymInt``, ``SymFloat`` and ``SymBool`` stand wherever a number may, and asks
their node for the value where it needs one. The node here knows the value, and from which arguments
it was computed.

A tensor with a size that depends on data has a twin: a tensor without values whose size there
differs. Each function of PyTorch is applied to the twin too. A size depends on data where the
tensor and its twin differ.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  (an extra)
from torch.utils._pytree import tree_leaves, tree_map  # pyright: ignore[reportMissingImports]

_TYPES = {bool: torch.SymBool, int: torch.SymInt, float: torch.SymFloat}

# Of the present thread: who is told about questions.
_asked = threading.local()

Asked = Callable[[str, "Node"], Any]


def _always(answer: Any) -> Callable[..., Any]:
    return lambda self, *_: answer


class Node:
    """The node of a symbolic number, by PyTorch's protocol.

    Attributes:
      value: a bool, int or float.
      names: names of the arguments that it was computed from.
      origins: origins of the tensors from whose data-dependent sizes it was computed.
      other: what it would be if those had other sizes.
    """

    def __init__(
        self, value: Any, names: frozenset[str], origins: tuple[Any, ...] = (), other: Any = None
    ) -> None:
        self.value = value
        self.names = names
        self.origins = origins
        self.other = value if other is None else other

    is_symbolic = has_hint = expect_size = _always(True)
    is_constant = is_nested_int = _always(False)
    constant_int = constant_bool = nested_int = _always(None)
    maybe_as_int = maybe_as_float = maybe_as_bool = _always(None)

    def is_int(self) -> bool:
        return type(self.value) is int

    def is_float(self) -> bool:
        return type(self.value) is float

    def is_bool(self) -> bool:
        return type(self.value) is bool

    def require_hint(self, *_: Any) -> Any:
        return self.value

    def _constant(self, value: Any) -> Node:
        return Node(value, frozenset())

    wrap_int = wrap_float = wrap_bool = _constant

    def clone(self) -> Node:
        return self

    def __str__(self) -> str:
        return repr(self.value)

    str = _graph_repr = __str__

    # Python asks.
    def int_(self) -> int:
        return int(self._ask("index"))

    def bool_(self) -> bool:
        return bool(self._ask("bool"))

    # A function of PyTorch asks.
    def guard_int(self, *_: Any) -> int:
        return int(self._ask("parameter"))

    def guard_bool(self, *_: Any) -> bool:
        return bool(self._ask("bool"))

    guard_size_oblivious = expect_true = guard_or_false = guard_or_true = guard_bool

    def guard_float(self, *_: Any) -> float:
        return float(self._ask("float"))

    def _ask(self, kind: str) -> Any:
        asked = getattr(_asked, "handler", None)
        return self.value if asked is None else asked(kind, self)

    def __getattr__(self, name: str) -> Any:
        """Return an operation of arithmetic or comparison."""
        from torch.fx.experimental import sym_node  # pyright: ignore[reportMissingImports]

        if name.startswith("_"):
            raise AttributeError(name)
        operation = sym_node.method_to_operator(name)

        def apply(*others: Any) -> Any:
            nodes = [o for o in others if isinstance(o, Node)]
            values = [o.value if isinstance(o, Node) else o for o in others if o is not None]
            names = self.names.union(*(o.names for o in nodes))
            origins = sum((o.origins for o in nodes), self.origins)
            result = operation(self.value, *values)
            if not origins:
                return Node(result, names)
            given = [o.other if isinstance(o, Node) else o for o in others if o is not None]
            return Node(result, names, origins, operation(self.other, *given))

        return apply


def symbolic(value: Any, name: str) -> Any:
    """Return a symbolic number that stands for an argument."""
    return _TYPES[type(value)](Node(value, frozenset({name})))


def size_number(value: int, other: int, origins: tuple[Any, ...]) -> Any:
    """Return a symbolic size that depends on data and might also be ``other``."""
    return torch.SymInt(Node(value, frozenset(), origins, other))


def node_of(value: Any) -> Node | None:
    """Return the node of a symbolic number; None for another value."""
    node = getattr(value, "node", None) if isinstance(value, tuple(_TYPES.values())) else None
    return node if isinstance(node, Node) else None


def names_of(value: Any) -> frozenset[str] | None:
    """Return the arguments that a symbolic number was made from; None for another value."""
    node = node_of(value)
    return node.names if node is not None else None


def plain(value: Any) -> Any:
    """Return the number itself, without asking."""
    return value.node.value if names_of(value) is not None else value


def decides_shapes(func: Any, args: Any, kwargs: Any, name: str) -> bool | None:
    """Return True if another value of a number gives a function's results other shapes.

    None where the function needs values of tensors, so that the answer is unknown.
    """

    def shapes(factor: int) -> list[Any]:
        def other(value: Any) -> Any:
            node = node_of(value)
            if node is not None and name in node.names and node.is_float():
                return node.value * factor
            return _other(value)

        with torch.no_grad():
            result = func(*tree_map(other, args), **tree_map(other, kwargs))
        return [leaf.shape for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    try:
        return shapes(1) != shapes(2)
    except Exception:
        return None


class asking:
    """Context in which questions for the values of symbolic numbers go to a handler.

    Args:
      handler: takes the kind (``bool``; ``index``, where Python asks; ``parameter``, where PyTorch
        does; ``float``) and the node; returns the answer.
    """

    def __init__(self, handler: Asked) -> None:
        self.handler = handler

    def __enter__(self) -> None:
        self.before = getattr(_asked, "handler", None)
        _asked.handler = self.handler

    def __exit__(self, *_: object) -> None:
        _asked.handler = self.before


# Added to the size of a twin, once for each operator that makes one; no likely size of a model.
_STEP = 1009
_SIZES = ("size", "numel", "nelement")


def twin_of(tensor: Any) -> Any:
    """Return the twin of a tensor; None where no size of it depends on data."""
    return getattr(tensor, "_voxax_twin", None) if isinstance(tensor, torch.Tensor) else None


class Twins:
    """Twins of tensors, made and carried along by operators."""

    def __init__(self) -> None:
        self.enabled = True
        self._made: list[tuple[Any, int, Any]] = []  # in the call that runs: result, axis, twin
        self._number = 0

    def made(self, func: Any, args: Any, result: Any) -> None:
        """Make twins for the results of an operator whose sizes depend on data."""
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
        """Give twins to the results of a function of PyTorch whose arguments have some."""
        made, self._made = self._made, []
        tensors: list[Any] = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
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
        """Return ``x.shape``, ``x.size()`` and the like with symbolic numbers."""
        twin = twin_of(args[0]) if args else None
        # Of the attributes, the shape; others differ in other ways (`is_meta`).
        counted = type(value) is int and getattr(func, "__name__", "") in _SIZES
        if twin is None or not (counted or isinstance(value, torch.Size)):
            return value
        other = func(twin, *args[1:], **kwargs)
        if isinstance(value, int):
            return value if value == other else size_number(value, other, origins)
        return torch.Size(
            a if a == b else size_number(a, b, origins) for a, b in zip(value, other, strict=True)
        )

    def counts(self, name: str, args: Any) -> bool:
        """Return True for a function that visits a number of entries that depends on data."""
        twin = twin_of(args[0]) if args and name in ("__iter__", "unbind") else None
        return twin is not None and twin.shape[:1] != args[0].shape[:1]


def is_size(name: str) -> bool:
    """Return True for a function of PyTorch that returns sizes."""
    return name in _SIZES or name == "__get__"


def _axis_of_index(indices: Any) -> int:
    """Return the axis of the rows that a mask among the indices chooses."""
    given = [i for i, index in enumerate(indices) if index is not None]
    together = given == list(range(given[0], given[-1] + 1))
    return given[0] if together else 0


def _match(tensors: list[Any], made: list[tuple[Any, int, Any]]) -> None:
    """Give twins to the results of a function from those that its operators made."""
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
    node = node_of(value)
    return twin_of(value) is not None or (node is not None and node.other != node.value)


def _other(value: Any) -> Any:
    if isinstance(value, torch.Size):
        return torch.Size(map(_other, value))
    node = node_of(value)
    if node is not None:
        return node.other
    if not isinstance(value, torch.Tensor):
        return value
    twin = twin_of(value)
    if twin is not None:
        return twin
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
