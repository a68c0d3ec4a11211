"""Python numbers of PyTorch programs that tell when the program comes to depend on them.

PyTorch lets ``torch.SymInt``, ``SymFloat`` and ``SymBool`` stand wherever a number may, and asks
their node for the value where it needs one. The node here knows the value, and of which arguments
it was made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  (an extra; imported by nobody without it)

_TYPES = {bool: torch.SymBool, int: torch.SymInt, float: torch.SymFloat}

# Of the present thread: who is told about questions.
_asked = threading.local()

Asked = Callable[[str, "Node"], Any]


class Node:
    """What is behind a symbolic number: PyTorch's protocol of symbolic nodes.

    Attributes:
      value: a bool, int or float.
      names: of the arguments that it was computed from.
      origins: of the tensors whose sizes it was computed from, where these depend on data.
      other: what it would be if those had other sizes.
    """

    def __init__(
        self, value: Any, names: frozenset[str], origins: tuple[Any, ...] = (), other: Any = None
    ) -> None:
        self.value = value
        self.names = names
        self.origins = origins
        self.other = value if other is None else other

    def is_int(self) -> bool:
        return type(self.value) is int

    def is_float(self) -> bool:
        return type(self.value) is float

    def is_bool(self) -> bool:
        return type(self.value) is bool

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def has_hint(self) -> bool:
        return True

    def require_hint(self, fallback: Any = None) -> Any:
        del fallback
        return self.value

    def _nothing(self, *_: Any) -> None:
        return None

    constant_int = constant_bool = nested_int = _nothing
    maybe_as_int = maybe_as_float = maybe_as_bool = _nothing

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

    def expect_size(self, *_: Any) -> bool:
        return True

    def _ask(self, kind: str) -> Any:
        asked = getattr(_asked, "handler", None)
        return self.value if asked is None else asked(kind, self)

    def __getattr__(self, name: str) -> Any:
        """Arithmetic and comparisons."""
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
    """A number that stands for an argument."""
    return _TYPES[type(value)](Node(value, frozenset({name})))


def size(value: int, other: int, origins: tuple[Any, ...]) -> Any:
    """A size that depends on data, and what else it might be."""
    return torch.SymInt(Node(value, frozenset(), origins, other))


def node_of(value: Any) -> Node | None:
    """What is behind a symbolic number; None for what is none."""
    node = getattr(value, "node", None) if isinstance(value, tuple(_TYPES.values())) else None
    return node if isinstance(node, Node) else None


def names_of(value: Any) -> frozenset[str] | None:
    """The arguments that a number was made of; None for what is no symbolic number."""
    node = node_of(value)
    return node.names if node is not None else None


def plain(value: Any) -> Any:
    """The number itself, without asking."""
    return value.node.value if names_of(value) is not None else value


class asking:
    """Inside, questions for the values of symbolic numbers go to a handler.

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
