"""Where a lattice lies: an origin with all digits of float64, as data rather than static."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat


@jax.tree_util.register_pytree_node_class
class Origin(Sequence[float]):
    """A position in float64: D numbers that compare and print as their tuple does.

    Its one leaf is ``int32[3, D]``, so that another origin compiles nothing: the bit patterns of
    three float32 numbers whose sum it is. As integers they survive a cast of every float in a
    tree, and no derivative is taken of them.

    Traced it has a length and :meth:`parts`, no values.
    """

    __slots__ = ("words",)

    def __init__(self, values: Sequence[float] | np.ndarray) -> None:
        rest = np.asarray(values, np.float64)
        parts = np.empty((3, *rest.shape), np.float32)
        for i in range(3):
            parts[i] = rest
            rest = rest - parts[i]
        self.words: Any = parts.view(np.int32)

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.words,), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Any) -> Origin:
        made = object.__new__(cls)
        (made.words,) = children
        return made

    def parts(self) -> Any:
        """``float32[3, D]``: three numbers for each axis, the largest first."""
        if isinstance(self.words, np.ndarray):
            return self.words.view(np.float32)
        return jax.lax.bitcast_convert_type(self.words, jnp.float32)

    def axes(self, kept: Sequence[int]) -> Origin:
        """The same position on some of the axes."""
        return Origin.tree_unflatten(None, (self.words[:, np.asarray(kept, np.int64)],))

    @property
    def is_known(self) -> bool:
        """Whether this has values: it has none inside ``jax.jit``."""
        array = isinstance(self.words, np.ndarray | jax.Array)
        return array and not _compat.is_traced(self.words)

    def differs_from(self, other: Origin) -> bool:
        """True where both are known, and are not the same position."""
        return self.is_known and other.is_known and tuple(self) != tuple(other)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """``float64[D]``; TypeError inside ``jax.jit``."""
        if not self.is_known:
            raise TypeError(
                "an origin inside jax.jit has no values: it is data, so that another one compiles "
                "nothing; use voxels.positions(), or read it outside"
            )
        parts = np.ascontiguousarray(self.words).view(np.float32).astype(np.float64)
        # The smallest first: the sum of the parts is then exact.
        return ((parts[2] + parts[1]) + parts[0]).astype(np.float64 if dtype is None else dtype)

    def __len__(self) -> int:
        return self.words.shape[-1]

    def __iter__(self) -> Iterator[float]:
        return iter(np.asarray(self).tolist())

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Origin) and not (self.is_known and other.is_known):
            return self.words is other.words
        if not isinstance(other, Origin | tuple | list):
            return False
        return self.is_known and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self)) if self.is_known else "origin(traced)"

    def __getstate__(self) -> Any:
        return self.words

    def __setstate__(self, words: Any) -> None:
        self.words = words


def as_origin(values: Any) -> Any:
    """An :class:`Origin` of numbers; empty, and what JAX puts in its place in trees, stay."""
    if isinstance(values, np.ndarray) or (
        isinstance(values, tuple | list)
        and values
        and all(isinstance(v, numbers.Real) for v in values)
    ):
        return Origin(values) if len(values) else ()
    return values


_Place = Origin | tuple[float, ...]


def shift(origin: _Place, own: _Place, ndim: int) -> Any:
    """``float32[3, D]``: the parts of ``origin - own``; an empty one is zero."""
    zero = np.zeros((3, ndim), np.float32)
    to, of = (o.parts() if isinstance(o, Origin) else zero for o in (origin, own))
    return to if of is zero else to - of


def relative(positions: Any, origin: _Place, own: _Place = ()) -> tuple[Any, Any]:
    """Positions, and the parts of what is still to be subtracted from them.

    Args:
      positions: ``float[N, D]`` relative to ``own``; those of NumPy in float64 are subtracted from.
      origin: of the result; it may be traced.
    """
    ndim = positions.shape[1]
    if not isinstance(positions, np.ndarray):
        return positions, shift(origin, own, ndim)
    known, other = (
        np.asarray(o) if isinstance(o, Origin) and o.is_known else np.zeros(ndim)
        for o in (origin, own)
    )
    if isinstance(origin, Origin) and not origin.is_known:
        positions = positions + other
        near = near_origin(positions)
        left = positions - np.asarray(near) if near else positions
        return left.astype(np.float32), shift(origin, near, ndim)
    return positions - (known - other), np.zeros((3, ndim), np.float32)


FAR = 10_000.0
"""Float32 numbers beyond this lie 1/1024 apart: a millimeter, where the unit is a meter."""


def near_origin(positions: np.ndarray) -> _Place:
    """An origin amid positions ``float64[N, D]`` that lie beyond :data:`FAR`, else ()."""
    rows = positions[np.isfinite(positions).all(axis=1)]
    if not len(rows) or np.abs(rows).max() <= FAR:
        return ()
    low, high = rows.min(0), rows.max(0)
    middle = np.where(np.maximum(-low, high) > FAR, (low + high) / 2, 0)
    whole = np.rint(middle / 1024) * 1024
    return Origin(whole) if whole.any() else ()
