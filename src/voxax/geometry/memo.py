"""A private memo: build each map once, and never leak it across a trace.

What is remembered is computed from the owner's own arrays, and at the trace level where
those live (``_compat.home_of``). So it may be used wherever the owner may, inside ``scan``
bodies and gradients too, and it dies with the owner: no tracer outlives its trace.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from voxax import _compat


class Memo:
    """Values by key. Not a pytree child: flattening the owner leaves it behind."""

    __slots__ = ("_table",)

    def __init__(self) -> None:
        self._table: dict[Hashable, Any] = {}

    def get(self, key: Hashable) -> Any:
        """The value under ``key``, or None."""
        return self._table.get(key)

    def get_or_build(self, key: Hashable, arrays: Any, build: Callable[[], Any]) -> Any:
        """The value under ``key``, built at the trace level of ``arrays`` if it is new.

        Args:
          key: what is asked for.
          arrays: every array that ``build`` reads (a pytree). Where they live at different
            trace levels the result belongs to the innermost one and is not remembered.
          build: makes the value.
        """
        home = _compat.home_of(arrays)
        if home is None:
            return build()
        value = self.get(key)
        if value is None:
            with home:
                value = build()
            self._table[key] = value
        return value

    def names(self) -> tuple[Hashable, ...]:
        return tuple(self._table)

    def values(self) -> tuple[Any, ...]:
        return tuple(self._table.values())
