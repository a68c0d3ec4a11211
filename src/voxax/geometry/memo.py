"""A private, per-trace memo: build each map once, never leak it across a trace."""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable
from typing import Any

from voxax import _compat

_MAX_TRACES = 4  # enough for eager + jit + grad + scan; bounds what a closed-over object keeps


class TraceMemo:
    """Values keyed by (trace, key). Not a pytree child: it never crosses a trace boundary."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: collections.deque[tuple[Any, dict[Hashable, Any]]] = collections.deque(
            maxlen=_MAX_TRACES
        )

    def _table(self) -> dict[Hashable, Any]:
        state = _compat.trace_state()
        for known, table in self._entries:
            if known == state:
                return table
        table: dict[Hashable, Any] = {}
        self._entries.append((state, table))
        return table

    def get(self, key: Hashable) -> Any:
        """The value under ``key`` in the current trace, or None."""
        return self._table().get(key)

    def put(self, key: Hashable, value: Any) -> Any:
        self._table()[key] = value
        return value

    def get_or_build(self, key: Hashable, build: Callable[[], Any]) -> Any:
        value = self.get(key)
        return self.put(key, build()) if value is None else value

    def keys(self) -> set[Hashable]:
        """Every key of every trace still remembered."""
        return {key for _, table in self._entries for key in table}
