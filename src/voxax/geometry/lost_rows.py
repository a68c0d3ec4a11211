"""Count the rows that did not fit a capacity, for each level of a network, in one array."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax.geometry.eager import text_of

Level = tuple[int, ...]

# Rows of the table. Levels whose strides differ by powers of two, the common case, have different
# rows (2 generates all residues of 37). Other levels may share a row, and are then reported as one.
_ROWS = 37
_FACTORS = 1, 5, 11, 16
_WIDTH = 1 + len(_FACTORS)
_COUNTS = np.zeros((1, _WIDTH), np.int32)
_COUNTS[0, 0] = 1


@jax.tree_util.register_pytree_with_keys_class
class LostRows:
    """The number of voxels that each level of a network lost because they did not fit a capacity.

    It is a pytree with one leaf of a fixed shape. Voxels that came through different levels
    therefore have the same tree structure, so loops can carry them and branches can return them.

    Attributes:
      table: ``int32[37, 5]``, one row for each level: the number of rows lost, then the level's
        total stride, padded with zeros. Unused rows are zero.
    """

    __slots__ = ("_grown_from", "_none", "table")

    def __init__(
        self, table: Any, *, none: bool = False, grown_from: LostRows | None = None
    ) -> None:
        self.table = table
        self._none = none  # known on the host, so that eager code has nothing to merge
        # The history is only needed to avoid counting a loss twice.
        self._grown_from = None if none else grown_from

    @classmethod
    def of(cls, numbers: Mapping[Level, Any]) -> LostRows:
        """Make LostRows from a mapping of the stride of a level to the number of rows it lost."""
        on_host = all(isinstance(n, int | np.ndarray | np.generic) for n in numbers.values())
        table = np.zeros((_ROWS, _WIDTH), np.int32)
        if on_host:
            for level, number in numbers.items():
                table = np.maximum(table, _name(level)) + number * _one(level)
            return cls(table, none=not table[:, 0].any())
        made = cls(table)
        for level, number in numbers.items():
            made = made.add(level, number)
        return made

    def __reduce__(self) -> Any:
        return LostRows, (self.table,)

    def tree_flatten_with_keys(self) -> tuple[Any, None]:
        return ((jax.tree_util.GetAttrKey("table"), self.table),), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Any) -> LostRows:
        return cls(_compat.without_tangent(children[0]))

    def add(self, level: Level, number: Any) -> LostRows:
        """Return new LostRows with ``number int32[]`` more rows lost at total stride ``level``."""
        none = self._none and not _compat.is_traced(number) and not int(number)
        return LostRows(_added(self.table, number, level), none=none, grown_from=self)

    def joined(self, other: LostRows) -> LostRows:
        """Return LostRows with the larger of the two numbers of rows at each level.

        Two branches of a network share the losses of earlier layers; a sum would count them twice.
        """
        if other._none or self.same_as(other):
            return self
        merge = np.maximum if self._is_host and other._is_host else _larger
        return LostRows(merge(self.table, other.table), none=self._none, grown_from=self)

    @staticmethod
    def total_of(sources: Sequence[LostRows]) -> LostRows:
        """Return LostRows with the sum over all ``sources`` of the rows lost at each level.

        If two sources were made from the same LostRows by :meth:`add` or :meth:`joined`, the rows
        of these common LostRows are added only once.
        """
        total, *others = sources
        counted = list(total._history())
        for other in others:
            past = other._history()
            common = next((p for p in past if any(p.same_as(known) for known in counted)), None)
            counted += other._history()
            if not other._none and common is not other:
                before = np.zeros_like(_COUNTS) if common is None else common.table
                table = _summed(total.table, other.table, before)
                total = LostRows(table, none=False)
        return total

    def summed_over(self, axis_name: str | tuple[str, ...]) -> LostRows:
        """Return LostRows summed over a mapped axis, as ``jax.lax.psum`` does, level by level."""
        numbers = jax.lax.psum(self.table * _COUNTS, axis_name)
        return LostRows(numbers + jax.lax.pmax(self.table * (1 - _COUNTS), axis_name))

    def same_as(self, other: LostRows) -> bool:
        """Return whether both tables are the same array."""
        return _compat.origin(self.table) is _compat.origin(other.table)

    @property
    def number(self) -> jax.Array:
        """``int32[]``, the total number of rows lost at all levels."""
        if self._is_host:
            return self.table[..., 0].sum(-1, dtype=np.int32)
        return _number(self.table)

    def items(self) -> list[tuple[Level, int]]:
        """Return a sorted list of ``(total stride, rows lost)``, one pair for each level.

        Raises:
          TypeError: the table is traced.
        """
        if _compat.is_traced(self.table):
            raise TypeError(
                "the rows that each level lost are data inside jax.jit: return the voxels from the "
                "jitted function and read them outside"
            )
        # The table has leading axes if voxels were stacked.
        table = np.asarray(self.table).reshape(-1, _ROWS, _WIDTH)
        strides, numbers = table[..., 1:].max(0), table[..., 0].sum(0)
        found = [
            (tuple(int(s) for s in stride if s), int(number))
            for stride, number in zip(strides, numbers, strict=True)
            if stride.any()
        ]
        return sorted(found)

    def copy_on_host(self) -> LostRows:
        """Return a copy whose table is a NumPy array."""
        return LostRows(np.array(self.table), none=self._none)

    @property
    def _is_host(self) -> bool:
        return isinstance(self.table, np.ndarray)

    def _history(self) -> Iterator[LostRows]:
        one: LostRows | None = self
        while one is not None:
            yield one
            one = one._grown_from

    def __repr__(self) -> str:
        text = text_of(self.table)  # a word if it has no values
        return f"LostRows({text if text.isalpha() else dict(self.items())})"


@functools.lru_cache(maxsize=1024)
def _name(level: Level) -> np.ndarray:
    """Return a ``table`` of :class:`LostRows` that is zero except for the stride ``level``."""
    table = np.zeros((_ROWS, _WIDTH), np.int32)
    table[_row(level), 1 : 1 + len(level)] = level
    return table


@functools.lru_cache(maxsize=1024)
def _one(level: Level) -> np.ndarray:
    """Return a ``table`` of :class:`LostRows`, zero but for 1 row lost at the stride ``level``."""
    table = np.zeros((_ROWS, _WIDTH), np.int32)
    table[_row(level), 0] = 1
    return table


def _row(level: Level) -> int:
    return sum(f * s for f, s in zip(_FACTORS, level, strict=False)) % _ROWS


# Jitted so that an eager call is one program.
@functools.partial(jax.jit, static_argnames="level")
def _added(table: jax.Array, number: jax.Array, level: Level) -> jax.Array:
    return jnp.maximum(table, _name(level)) + jnp.asarray(number, jnp.int32) * _one(level)


@jax.jit
def _summed(a: jax.Array, b: jax.Array, common: jax.Array) -> jax.Array:
    return jnp.where(_COUNTS > 0, a + b - common, jnp.maximum(a, b))


_larger = jax.jit(jnp.maximum)


@jax.jit
def _number(table: jax.Array) -> jax.Array:
    return jnp.sum(table[..., 0], axis=-1, dtype=jnp.int32)
