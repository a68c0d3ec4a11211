"""Voxels: features on a VoxelGeometry."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax.errors import GeometryMismatchError, InputError
from voxax.geometry.voxel_geometry import Level, VoxelGeometry


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class Voxels:
    """A sparse tensor: one feature row per voxel.

    Make one with :func:`voxax.voxelize`, :meth:`from_coords` or :meth:`from_dense`.

    Attributes:
      geometry: which voxels exist.
      features: ``[capacity, C]``; rows ``>= count`` are padding (zero, and never read).
      voxel_size: edge lengths at stride 1 in the positions' unit, one per axis; static.
      origin: position of the lattice origin in the same unit, one per axis; static.
    """

    geometry: VoxelGeometry
    features: jax.Array
    voxel_size: tuple[float, ...] = ()
    origin: tuple[float, ...] = ()

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        key = jax.tree_util.GetAttrKey
        children = ((key("geometry"), self.geometry), (key("features"), self.features))
        return children, (self.voxel_size, self.origin)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Voxels:
        return cls(*children, *aux)

    @classmethod
    def from_coords(cls, coords: Any, features: Any, batch_size: int = 1, **options: Any) -> Any:
        """Voxels from integer coordinates; see :func:`voxax.geometry.from_coords`."""
        from voxax.geometry.convert import from_coords

        return from_coords(coords, features, batch_size, **options)

    @classmethod
    def from_dense(cls, dense: jax.Array, mask: jax.Array | None = None, **options: Any) -> Voxels:
        """Voxels of a dense grid; see :func:`voxax.geometry.from_dense`."""
        from voxax.geometry.dense import from_dense

        return from_dense(dense, mask, **options)

    @property
    def coords(self) -> jax.Array:
        """``int32[capacity, 1 + D]``: batch index, then lattice coordinates at this stride."""
        return self.geometry.coords

    @property
    def count(self) -> jax.Array:
        """``int32[]``: number of valid rows."""
        return self.geometry.count

    @property
    def capacity(self) -> int:
        """Static number of rows."""
        return self.geometry.capacity

    @property
    def stride(self) -> Level:
        """Total stride relative to the original voxels."""
        return self.geometry.stride

    @property
    def batch_size(self) -> int:
        """Static number of scenes."""
        return self.geometry.batch_size

    @property
    def num_dropped(self) -> jax.Array:
        """``int32[]``: rows lost to capacity on the whole way here."""
        return self.geometry.num_dropped

    @property
    def num_channels(self) -> int:
        """Number of features of a voxel, C."""
        return self.features.shape[1]

    @property
    def valid(self) -> jax.Array:
        """``bool[capacity]``: which rows are voxels."""
        return self.geometry.valid

    def replace_features(self, features: jax.Array) -> Voxels:
        """The same voxels with other features ``[capacity, C']``; padding rows are zeroed.

        Raises:
          InputError: ``features`` has another number of rows than the capacity.
        """
        if features.ndim != 2 or features.shape[0] != self.capacity:
            raise InputError(
                f"features of shape {features.shape} for voxels of capacity {self.capacity}: "
                f"expected [{self.capacity}, C]"
            )
        features = jnp.where(self.valid[:, None], features, jnp.zeros((), features.dtype))
        return dataclasses.replace(self, features=features)

    def map(self, fn: Callable[[jax.Array], jax.Array]) -> Voxels:
        """Apply ``fn`` to the feature array ``[capacity, C]``; padding stays zero."""
        # Cleared before as well: a zero cotangent times garbage would reach the weights in fn.
        return self.replace_features(fn(self.replace_features(self.features).features))

    def __add__(self, other: Any) -> Voxels:
        return self._elementwise(other, operator.add, "a + b")

    def __sub__(self, other: Any) -> Voxels:
        return self._elementwise(other, operator.sub, "a - b")

    def __mul__(self, other: Any) -> Voxels:
        return self._elementwise(other, operator.mul, "a * b")

    def __neg__(self) -> Voxels:
        return self.map(operator.neg)

    def __rsub__(self, other: Any) -> Voxels:
        return -self + other

    __radd__ = __add__
    __rmul__ = __mul__
    # NumPy arrays leave ``array * voxels`` to the methods above.
    __array_ufunc__ = None

    def _elementwise(self, other: Any, function: Callable[..., Any], operation: str) -> Voxels:
        """With Voxels on the same coordinates, a number, or an array ``[C]`` or scalar."""
        if isinstance(other, Voxels):
            require_same_geometry(self, other, operation)
            geometry = self.geometry.with_drops_of(other.geometry)
            out = dataclasses.replace(self, geometry=geometry)
            a, b = self.features, other.features
            if function is operator.mul:  # each operand scales the other's cotangent
                a, b = (v.replace_features(v.features).features for v in (self, other))
            return out.replace_features(function(a, b))
        if isinstance(other, int | float):
            return self.map(lambda f: function(f, other))
        if isinstance(other, jax.Array | np.ndarray | np.generic) and other.ndim <= 1:
            row = jnp.broadcast_to(jnp.asarray(other), (1, self.num_channels))
            return self.map(lambda f: function(f, row))
        return NotImplemented

    def scene(self, index: int) -> Voxels:
        """Scene ``index`` alone, as a batch of one, with the same capacity."""
        from voxax.geometry.scenes import scene

        return scene(self, index)

    def to_dense(
        self, shape: Sequence[int] | None = None, origin: Sequence[int] | None = None
    ) -> jax.Array:
        """A dense grid ``[batch_size, *shape, C]``; see :func:`voxax.geometry.to_dense`."""
        from voxax.geometry.dense import to_dense

        return to_dense(self, shape, origin)

    def raise_if_overflowed(self) -> Voxels:
        """Raise :class:`voxax.CapacityError` on the host if any level lost rows; else self."""
        self.geometry.raise_if_overflowed()
        return self

    def valid_coords(self) -> np.ndarray:
        """``int32[count, 1 + D]`` on the host, padding removed."""
        count = self._host_count()
        return np.asarray(self.coords)[:count]

    def valid_features(self) -> np.ndarray:
        """``[count, C]`` on the host, padding removed."""
        count = self._host_count()
        return np.asarray(self.features)[:count]

    def positions(self) -> jax.Array:
        """``float32[capacity, D]``: voxel centres in the unit of ``voxel_size``."""
        size = self.voxel_size or (1.0,) * self.geometry.ndim
        origin = self.origin or (0.0,) * self.geometry.ndim
        step = jnp.asarray([s * v for s, v in zip(self.stride, size, strict=True)], jnp.float32)
        corner = jnp.asarray(origin, jnp.float32)
        return corner[None, :] + (self.coords[:, 1:].astype(jnp.float32) + 0.5) * step[None, :]

    def _host_count(self) -> int:
        if _compat.is_traced(self.count):
            raise TypeError(
                "valid_coords() and valid_features() need concrete values: their length is data. "
                "Inside jax.jit use coords, features and valid, whose shapes are static"
            )
        return int(self.count)

    def __repr__(self) -> str:
        return (
            f"Voxels({self.features.dtype}[{self.capacity}, {self.features.shape[-1]}], "
            f"{self.geometry!r})"
        )


def require_same_geometry(a: Voxels, b: Voxels, operation: str) -> None:
    """Raise unless both operands hold the same voxels.

    Raises:
      GeometryMismatchError: names both geometries and the way out.
    """
    if not a.geometry.same_as(b.geometry):
        raise GeometryMismatchError(
            f"{operation} needs voxels on the same coordinates, got {a.geometry!r} and "
            f"{b.geometry!r}; use vx.union(a, b) to add over different coordinate sets"
        )
