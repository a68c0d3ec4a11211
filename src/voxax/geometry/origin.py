"""The origin of a lattice in float64 precision, stored as array data instead of a static value."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax.geometry.eager import text_of


@jax.tree_util.register_pytree_node_class
class Origin(Sequence[float]):
    """A position of D float64 numbers that compares and prints like a tuple, and is a pytree.

    Its one leaf is ``int32[3, D]``: for each axis, the bit patterns of three float32 numbers whose
    sum is the coordinate. Since the leaf is data, another origin compiles nothing. Since it is an
    integer array, a cast of all floats in a tree leaves it unchanged, and it has no derivative.

    A traced origin has a length and :meth:`parts`, but its values cannot be read.
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
        """Return ``float32[3, D]``: for each axis, three numbers whose sum is the coordinate."""
        if isinstance(self.words, np.ndarray):
            return self.words.view(np.float32)
        return jax.lax.bitcast_convert_type(self.words, jnp.float32)

    def axes(self, kept: Sequence[int]) -> Origin:
        """Return the origin with only the axes whose indices are in ``kept``."""
        return Origin.tree_unflatten(None, (self.words[:, np.asarray(kept, np.int64)],))

    @property
    def is_known(self) -> bool:
        """Whether the values can be read, which is not so inside ``jax.jit``."""
        array = isinstance(self.words, np.ndarray | jax.Array)
        return array and not _compat.is_traced(self.words)

    def differs_from(self, other: Origin) -> bool:
        """Return whether both origins can be read and are different positions."""
        return self.is_known and other.is_known and tuple(self) != tuple(other)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return ``float64[D]``, or ``dtype``; raise TypeError inside ``jax.jit``."""
        if not self.is_known:
            raise TypeError(
                "an origin inside jax.jit has no values: it is data, so that another one compiles "
                "nothing; use voxels.positions(), or read it outside"
            )
        parts = np.ascontiguousarray(self.words).view(np.float32).astype(np.float64)
        # Add the smallest parts first: the sum is then exact.
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
        text = text_of(self.words)  # a word if it has no values
        if text.isalpha() or self.words.ndim > 2:
            return f"origin({text if text.isalpha() else 'stacked'})"
        return repr(tuple(self))

    def __getstate__(self) -> Any:
        return self.words

    def __setstate__(self, words: Any) -> None:
        self.words = words


def as_origin(values: Any) -> Any:
    """Convert a sequence of numbers to an :class:`Origin`; an empty sequence becomes ().

    Other values, such as placeholders that JAX puts into trees, are returned as they are.
    """
    if isinstance(values, np.ndarray) or (
        isinstance(values, tuple | list)
        and values
        and all(isinstance(v, numbers.Real) for v in values)
    ):
        return Origin(values) if len(values) else ()
    return values


_Place = Origin | tuple[float, ...]


def shift(origin: _Place, own: _Place, ndim: int) -> Any:
    """Return the difference ``origin - own`` of two positions of D coordinates.

    The result is ``float32[3, D]``: for each axis, three numbers whose sum is the difference. An
    argument of () is zero. ``ndim`` is D.
    """
    zero = np.zeros((3, ndim), np.float32)
    to, of = (o.parts() if isinstance(o, Origin) else zero for o in (origin, own))
    return to if of is zero else to - of


def relative(positions: Any, origin: _Place, own: _Place = ()) -> tuple[Any, Any]:
    """Subtract an origin from float64 positions, and return what is still to be subtracted.

    Only a NumPy array of float64 is changed. The origin is subtracted from it in float64, and zero
    is left to subtract. If the origin is traced, its value is unknown, so the array's
    :func:`near_origin` is subtracted instead, and the result is float32. Other arrays are returned
    as they are.

    Args:
      positions: ``float[N, D]``, relative to ``own``.
      origin: the origin to subtract; may be traced.
      own: the origin that ``positions`` are relative to; () is zero.

    Returns:
      The positions, and ``float32[3, D]``, whose sum over axis 0 the caller must subtract from them
      to make them relative to ``origin``.
    """
    ndim = positions.shape[1]
    if not isinstance(positions, np.ndarray) or positions.dtype == np.float32:
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
"""Float32 numbers beyond this are spaced by about 1/1024: a millimeter if the unit is a meter."""


def near_origin(positions: np.ndarray) -> _Place:
    """Return an origin near ``positions float64[N, D]`` if a coordinate exceeds 10,000, else ().

    It is a multiple of 1024 along each axis, and zero along axes without such a coordinate.
    """
    rows = positions[np.isfinite(positions).all(axis=1)]
    if not len(rows) or np.abs(rows).max() <= FAR:
        return ()
    low, high = rows.min(0), rows.max(0)
    middle = np.where(np.maximum(-low, high) > FAR, (low + high) / 2, 0)
    whole = np.rint(middle / 1024) * 1024
    return Origin(whole) if whole.any() else ()
