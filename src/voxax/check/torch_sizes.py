"""Symbolic numbers and sizes that report when a PyTorch program depends on their values.

PyTorch accepts ``torch.SymInt``, ``SymFloat`` and ``SymBool`` in place of numbers, and calls their
``node`` when it needs the value. The node class of this module knows the value, and the arguments
that the value was computed from.

A tensor with a size that depends on data gets a twin: a tensor without values, with a different
number as this size. Each function of PyTorch is applied to the twin too. A size of the result
depends on data if it differs between the result and the result's twin.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  (an extra)
from torch.utils._pytree import tree_leaves, tree_map  # pyright: ignore[reportMissingImports]

_TYPES = {bool: torch.SymBool, int: torch.SymInt, float: torch.SymFloat}

# The handler of questions in the present thread.
_asked = threading.local()

Asked = Callable[[str, "Node"], Any]


def _always(answer: Any) -> Callable[..., Any]:
    return lambda self, *_: answer


class Node:
    """The ``node`` of a symbolic number, with the methods that PyTorch calls.

    Attributes:
      value: the number, a bool, int or float.
      names: names of the arguments from which the number was computed.
      origins: origins of the tensors from whose data-dependent sizes the number was computed.
      other: the number that would result from other data, with other data-dependent sizes.
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

    # Python asks for the value.
    def int_(self) -> int:
        return int(self._ask("index"))

    def bool_(self) -> bool:
        return bool(self._ask("bool"))

    # A function of PyTorch asks for the value.
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
        """Return a function that applies the operation `name`, such as ``add``, to this number.

        The function takes the other operands, and returns the result as a Node.
        """
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
    """Return a symbolic number with this value, computed from the argument ``name``."""
    return _TYPES[type(value)](Node(value, frozenset({name})))


def size_number(value: int, other: int, origins: tuple[Any, ...]) -> Any:
    """Return a symbolic size: ``value`` for the example data, and ``other`` for other data.

    `origins` are the origins of the tensors that have this size.
    """
    return torch.SymInt(Node(value, frozenset(), origins, other))


def node_of(value: Any) -> Node | None:
    """Return the :class:`Node` of a symbolic number; None for any other value."""
    node = getattr(value, "node", None) if isinstance(value, tuple(_TYPES.values())) else None
    return node if isinstance(node, Node) else None


def names_of(value: Any) -> frozenset[str] | None:
    """Return the names of the arguments a symbolic number comes from; None for any other value."""
    node = node_of(value)
    return node.names if node is not None else None


def plain(value: Any) -> Any:
    """Return the value of a symbolic number without reporting it, or any other value unchanged."""
    return value.node.value if names_of(value) is not None else value


def decides_shapes(func: Any, args: Any, kwargs: Any, name: str) -> bool | None:
    """Return True if shapes of a function's results depend on a float argument of the program.

    `func` is the function, and `args` and `kwargs` are its arguments. `name` is the name of the
    float argument of the checked program. The function is applied twice, the second time with the
    symbolic floats that were computed from this argument doubled. The result is None if the
    function fails, for example because it needs values of tensors.
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
    """A context in which a handler answers requests for the values of symbolic numbers.

    Args:
      handler: a function ``(kind, node)`` that returns the value. The kind is ``bool``, ``float``,
        ``index`` (Python needs an integer) or ``parameter`` (PyTorch needs an integer).
    """

    def __init__(self, handler: Asked) -> None:
        self.handler = handler

    def __enter__(self) -> None:
        self.before = getattr(_asked, "handler", None)
        _asked.handler = self.handler

    def __exit__(self, *_: object) -> None:
        _asked.handler = self.before


# The n-th operator that makes twins adds n times this to a size. A model hardly has such sizes.
_STEP = 1009
_SIZES = ("size", "numel", "nelement")


def twin_of(tensor: Any) -> Any:
    """Return a tensor's twin (a tensor without values, of other data-dependent sizes), or None."""
    return getattr(tensor, "_voxax_twin", None) if isinstance(tensor, torch.Tensor) else None


class Twins:
    """Gives each tensor of data-dependent size a twin: a tensor without values, of another size.

    Results computed from such tensors get twins too. A size that differs between a tensor and its
    twin depends on data.
    """

    def __init__(self) -> None:
        self.enabled = True
        self._made: list[tuple[Any, int, Any]] = []  # (result, axis, twin) of the running call
        self._number = 0

    def made(self, func: Any, args: Any, result: Any) -> None:
        """Make twins for the results of `func`, an operator whose result sizes depend on data.

        A twin is a tensor without values that differs in the data-dependent size. :meth:`follow`
        attaches the twins to the tensors.
        """
        if not self.enabled:
            return
        self._number += 1
        axis = _axis_of_index(args[1]) if func.overloadpacket is torch.ops.aten.index else 0
        for position, tensor in enumerate(result if isinstance(result, tuple) else (result,)):
            # The second result of `unique` has the size of the input.
            if isinstance(tensor, torch.Tensor) and not (position == 1 and "unique" in str(func)):
                shape = list(tensor.shape)
                shape[axis] += _STEP * self._number
                twin = torch.empty(shape, dtype=tensor.dtype, device="meta")
                self._made.append((tensor, axis, twin))

    def follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Attach a twin (a tensor without values) to the tensors in `result`.

        `result` is what ``func(*args, **kwargs)`` returned. If `func` ran operators whose result
        sizes depend on data, the twins are those of :meth:`made`. Otherwise `func` is applied to
        the twins of its arguments, and a tensor with the same shape as its twin gets no twin.
        """
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
        """Return `value`, a size that `func` returned, with its data-dependent numbers symbolic.

        `func` was called with `args` and `kwargs`. `origins` are the origins of the symbolic
        numbers.
        """
        twin = twin_of(args[0]) if args else None
        # The shape is the only attribute to compare: `is_meta`, for one, always differs.
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
        """Return True if PyTorch's function `name` iterates over an axis of data-dependent length.

        The axis is the first of ``args[0]``. Only ``__iter__`` and ``unbind`` iterate.
        """
        twin = twin_of(args[0]) if args and name in ("__iter__", "unbind") else None
        return twin is not None and twin.shape[:1] != args[0].shape[:1]


def is_size(name: str) -> bool:
    """Return True for the name of a PyTorch function that may return sizes."""
    return name in _SIZES or name == "__get__"


def _axis_of_index(indices: Any) -> int:
    """Return the axis of the result of ``x[indices]`` whose length the index tensors determine.

    `indices` has a tensor or None (the whole axis) for each of the leading axes of ``x``.
    """
    given = [i for i, index in enumerate(indices) if index is not None]
    together = given == list(range(given[0], given[-1] + 1))
    return given[0] if together else 0


def _match(tensors: list[Any], made: list[tuple[Any, int, Any]]) -> None:
    """Attach twins to `tensors`, the results of a function that ran operators with twins.

    A twin is a tensor without values, in which a data-dependent size is different. `made` has
    ``(result, axis of data-dependent size, twin of the result)`` for each operator. A tensor
    gets the twin of the result with which it shares memory, or else that of the last result.
    """
    # The tensor is an operator's result, or a column of the result of `nonzero`.
    pairs = [
        (tensor, *source)
        for tensor in tensors
        for source in made
        if tensor.untyped_storage().data_ptr() == source[0].untyped_storage().data_ptr()
    ]
    # Otherwise the last result chose its rows, as the indices of `repeat_interleave` do.
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
