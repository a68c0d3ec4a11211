"""Points: a batch of point clouds in arrays of a static size."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Bool, Float, Int, Int32, Shaped
from voxax.coords import bucket_capacity
from voxax.errors import CapacityError
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.cells import from_origin
from voxax.geometry.default_capacity import default_capacity
from voxax.geometry.eager import (
    as_host_array,
    as_own_array,
    in_either,
    known_on_host,
    to_device_of,
)
from voxax.geometry.input_checks import (
    batch_indices,
    check_batch_range,
    check_capacity,
    check_feature_rows,
    check_finite,
    check_origin,
    float_positions,
    infer_batch_size,
    padded_features,
)
from voxax.geometry.origin import Origin, as_origin, near_origin, relative, shift


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Points:
    """A batch of point clouds: a position, a scene and a row of features for each point.

    Make one with :meth:`make`, which pads and checks. Layers that do not read coordinates
    (linear layers, activations, normalization, dropout) take Points as well as Voxels.

    Attributes:
      positions: ``float[capacity, D]``, relative to ``origin``.
      batch_index: ``int32[capacity]``, the scene of each point.
      features: ``[capacity, C]``; padding rows are never read.
      count: ``int32[]``, number of points; rows ``>= count`` are padding.
      batch_size: number of scenes; static.
      origin: the point that the positions are relative to, one float64 number per axis; () is zero.
        It is data, so another origin compiles nothing.
    """

    positions: Float[Array, "capacity D"]
    batch_index: Int32[Array, " capacity"]
    features: Shaped[Array, "capacity C"]
    count: Int32[Array, ""]
    batch_size: int = dataclasses.field(default=1, metadata={"static": True})
    origin: Origin | tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "origin", as_origin(self.origin))

    @classmethod
    @checked_operator
    def make(
        cls,
        positions: Float[Array | np.ndarray, "N D"],
        features: Shaped[Array | np.ndarray, "N C"] | None = None,
        batch_index: Int[Array | np.ndarray, " N"] | None = None,
        *,
        batch_size: int | None = None,
        capacity: int | None = None,
        origin: Sequence[float] | None = None,
    ) -> Points:
        """Make points from arrays, padded to ``capacity``.

        Args:
          positions: ``float[N, D]``, D from 1 to 4; half precision becomes float32. The origin is
            subtracted from a NumPy array of float64 before the array becomes float32, or stays
            float64 if JAX has 64 bits enabled.
          features: ``[N, C]``; None takes one channel of ones.
          batch_index: ``int[N]``, the scene of each point; None puts all points in scene 0.
          batch_size: number of scenes, static; None takes ``max(batch_index) + 1`` in eager calls,
            and 1 without a batch index.
          capacity: static number of rows. None takes one of a few standard sizes in eager calls, so
            that clouds of many sizes share few programs, and N under ``jax.jit``.
          origin: the point to subtract from the positions, one number per axis. None is zero, with
            one exception: for a NumPy array of float64 with coordinates beyond 10,000, which
            float32 would round to 1/1024 or worse, it is a point amid the positions.

        Raises:
          InputError: an argument has a wrong rank or dtype, or lengths differ; also, in an eager
            call, if positions are NaN or infinite or batch indices outside ``[0, batch_size)``.
          CapacityError: N is larger than ``capacity``.

        Examples:
          >>> vx.Points.make(positions, np.ones((500, 2), np.float32)).num_channels
          2
        """
        given = positions, features, batch_index
        on_host = known_on_host(*given)
        xp: Any = np if on_host else jnp
        places: Any = float_positions(positions, on_host=on_host)
        exact = places.dtype == np.float64 and not isinstance(given[0], jax.Array)
        rows: int = places.shape[0]
        scenes = batch_indices(batch_index, rows, on_host=on_host)
        if batch_size is None:
            # With batch_index=None there is one scene, under jit too, so nothing is inferred.
            batch_size = 1 if batch_index is None else infer_batch_size(scenes)
        values: Any = xp.ones((rows, 1), np.float32) if features is None else features
        values = as_host_array(values) if on_host else as_own_array(values)
        check_feature_rows(values, rows, f"{rows} positions")
        if origin is not None:
            corner = as_origin(check_origin(origin, places.shape[1]))
        else:
            corner: Any = near_origin(places) if exact else ()
        if not _compat.is_traced(places):
            check_finite(np.asarray(places))
        if corner:
            places = from_origin(*relative(places, corner))
        places = as_host_array(places) if on_host else as_own_array(places)
        if not _compat.is_traced(scenes) and rows:
            check_batch_range(scenes, batch_size)
        if capacity is None:
            traced = _compat.is_traced(places, scenes, values)
            capacity = rows if traced else default_capacity(rows)
        else:
            capacity = check_capacity(capacity)
        if rows > capacity:
            raise CapacityError(
                f"{rows} points do not fit into capacity {capacity}: give "
                f"capacity={bucket_capacity(rows)} (vx.bucket_capacity({rows})) or more"
            )
        parts: Any = [_padded(array, capacity) for array in (places, scenes, values)]
        if on_host:
            parts = to_device_of(given, parts)
        places, scenes, values = parts
        count = jnp.asarray(rows, jnp.int32)
        return cls(places, scenes, values, count, batch_size, corner)

    @property
    def capacity(self) -> int:
        """Static number of rows."""
        return self.positions.shape[0]

    @checked_operator
    def positions_from(self, origin: Origin | tuple[float, ...]) -> Float[Array, "capacity D"]:
        """Return the positions ``float[capacity, D]`` relative to another origin; () is zero."""
        if origin is self.origin or (not origin and not self.origin):
            return self.positions
        return from_origin(self.positions, shift(origin, self.origin, self.ndim))

    @property
    def ndim(self) -> int:
        """Number of spatial axes, D."""
        return self.positions.shape[1]

    @property
    def num_channels(self) -> int:
        """Number of feature channels, C."""
        return self.features.shape[1]

    @property
    def valid(self) -> Bool[Array, " capacity"]:
        """``bool[capacity]``, True for points and False for padding."""
        return _before(self.count, self.capacity)

    @checked_operator
    def replace_features(self, features: Shaped[Array, "capacity C"]) -> Points:
        """Return these points with other features ``[capacity, C']``; padding rows become zero.

        Raises:
          InputError: ``features`` has another number of rows than the capacity.
        """
        features = padded_features(features, self.valid, "points")
        return dataclasses.replace(self, features=features)

    @checked_operator
    def map(self, fn: Callable[[jax.Array], jax.Array]) -> Points:
        """Apply ``fn`` to the features ``[capacity, C]``; padding is zero before and after it."""
        # Padding is cleared before too: NaN times a cotangent of zero would reach the gradient of
        # the weights of fn.
        return self.replace_features(fn(self.replace_features(self.features).features))


@in_either("rows")
def _before(xp: Any, count: Any, rows: int) -> Any:
    return xp.arange(rows, dtype=np.int32) < count


def _padded(array: Any, capacity: int) -> Any:
    """Append rows of zeros to ``array`` up to ``capacity``; a NumPy array is always copied."""
    missing = capacity - array.shape[0]
    if not missing:  # the caller may write to a NumPy array
        return array.copy() if isinstance(array, np.ndarray) else array
    xp: Any = np if isinstance(array, np.ndarray) else jnp
    return xp.concatenate([array, xp.zeros((missing, *array.shape[1:]), array.dtype)])
