"""Voxels, the sparse tensor of this library, and the functions that make and convert voxels."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Bool, Float, Int, Int32, Shaped
from voxax.coords import (
    PAD,
    CompactRows,
    UniqueRows,
    compact_rows,
    in_range,
    is_valid,
    unique_rows,
)
from voxax.errors import (
    GeometryMismatchError,
    InputError,
    UnknownNameError,
    check_known,
    check_whole,
)
from voxax.geometry.call_checks import axes_hint, checked_operator
from voxax.geometry.cells import Lattice, cells, from_origin, lattice, unresolved
from voxax.geometry.default_capacity import default_capacity
from voxax.geometry.dtypes import product_dtype
from voxax.geometry.eager import (
    as_host_array,
    eagerly,
    in_either,
    known_on_cpu,
    known_on_host,
    text_of,
    to_device_of,
)
from voxax.geometry.halo import refuse_shard
from voxax.geometry.host_merge import REDUCTIONS, Reduction, merge_rows, reduce_on_host
from voxax.geometry.input_checks import (
    batch_indices,
    check_coords,
    check_finite,
    check_mean_digits,
    check_origin,
    check_sum_range,
    check_voxel_size,
    float_positions,
    infer_batch_size,
    padded_features,
    raise_unresolved,
)
from voxax.geometry.kernel_spec import per_axis
from voxax.geometry.lost_rows import Level, LostRows
from voxax.geometry.origin import Origin, as_origin, relative
from voxax.geometry.points import Points
from voxax.geometry.regroup import (
    choose_capacity,
    gather_rows,
    joint_capacities,
    kept_on_host,
    new_geometry,
    reduce_rows,
    stacked,
)
from voxax.geometry.row_operations import (
    add_rows,
    as_dtype,
    multiply_rows,
    negative_rows,
    read_rows,
    repeat_row,
)
from voxax.geometry.voxel_geometry import Held, VoxelGeometry, check_overflow
from voxax.hardware.cpu import check_host_memory

# Attributes of tensors or of other libraries' sparse tensors, and what to use instead.
_ROWS = "voxels.features is [capacity, C], voxels.valid_features() is without padding"
_PLACES = "voxels.coords is int32[capacity, 1 + D], voxels.valid_coords() is without padding"
_ELSEWHERE = {
    **dict.fromkeys(("F", "feats", "feature", "shape", "dtype", "numpy"), _ROWS),
    **dict.fromkeys(("C", "coordinates", "indices"), _PLACES),
    **dict.fromkeys(("cuda", "cpu", "to"), "jax.device_put(voxels, device) moves them"),
    "dense": "voxels.to_dense() makes a grid",
    "detach": "jax.lax.stop_gradient takes voxels",
    "replace_feature": "voxels.replace_features(features) does it",
    "spatial_shape": "coordinates have no bounds; to_dense(shape) and layers take a shape",
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Voxels:
    """A sparse tensor: a batch of scenes with one row of features for each voxel.

    Make one with :func:`voxax.voxelize`, :meth:`from_coords` or :meth:`from_dense`.

    Attributes:
      geometry: the coordinates of the voxels and their number.
      features: ``[capacity, C]``, the features with C channels; rows ``>= count`` are padding
        (zero, and never read).
      voxel_size: edge lengths at stride 1 in the unit of the positions, one per axis; () if there
        is no unit; static.
      origin: position of the lattice origin in the same unit, one float64 number per axis; () is
        zero. It is stored as data, so another origin does not trigger recompilation.
    """

    geometry: VoxelGeometry
    features: Shaped[Array, "capacity C"]
    voxel_size: tuple[float, ...] = dataclasses.field(default=(), metadata={"static": True})
    origin: Origin | tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "origin", as_origin(self.origin))

    @classmethod
    def from_coords(
        cls,
        coords: Int[Array | np.ndarray, "N coord"],
        features: Shaped[Array | np.ndarray, "N C"],
        batch_size: int = 1,
        *,
        capacity: int | None = None,
        reduction: Reduction = "mean",
        return_inverse: bool = False,
        stride: int | Sequence[int] = 1,
        voxel_size: float | Sequence[float] = (),
        origin: Sequence[float] = (),
    ) -> Any:
        """Make voxels from integer coordinates in any order; duplicates are merged.

        Arguments as in :func:`voxax.geometry.from_coords`.

        Examples:
          >>> coords = np.array([[0, 1, 2, 3], [0, 1, 2, 4]])  # scene, x, y, z
          >>> vx.Voxels.from_coords(coords, np.ones((2, 8), np.float32)).valid_coords()
          array([[0, 1, 2, 3],
                 [0, 1, 2, 4]], dtype=int32)
        """
        return from_coords(
            coords,
            features,
            batch_size,
            capacity=capacity,
            reduction=reduction,
            return_inverse=return_inverse,
            stride=stride,
            voxel_size=voxel_size,
            origin=origin,
        )

    @classmethod
    def from_dense(
        cls,
        dense: Shaped[Array | np.ndarray, "B *spatial C"],
        mask: Bool[Array | np.ndarray, " B *spatial"] | None = None,
        *,
        capacity: int | None = None,
    ) -> Voxels:
        """Make voxels at non-zero sites of a dense grid; see :func:`voxax.geometry.from_dense`.

        Examples:
          >>> grid = np.zeros((1, 4, 4, 4, 2), np.float32)
          >>> grid[0, 1, 2, 3] = 5
          >>> vx.Voxels.from_dense(grid).valid_features()
          array([[5., 5.]], dtype=float32)
        """
        return from_dense(dense, mask, capacity=capacity)

    @property
    def coords(self) -> Int32[Array, "capacity coord"]:
        """``int32[capacity, 1 + D]``: batch index, then lattice coordinates in units of stride."""
        return self.geometry.coords

    @property
    def count(self) -> Int32[Array, ""]:
        """``int32[]``: number of valid rows."""
        return self.geometry.count

    @property
    def capacity(self) -> int:
        """Static number of rows."""
        return self.geometry.capacity

    @property
    def stride(self) -> Level:
        """Total stride relative to the input voxels, one integer per axis."""
        return self.geometry.stride

    @property
    def batch_size(self) -> int:
        """Static number of scenes."""
        return self.geometry.batch_size

    @property
    def num_dropped(self) -> Int32[Array, ""]:
        """``int32[]``: number of voxels that did not fit a capacity, here and in earlier layers."""
        return self.geometry.num_dropped

    @property
    def num_channels(self) -> int:
        """Number of feature channels, C; static."""
        return self.features.shape[1]

    @property
    def valid(self) -> Bool[Array, " capacity"]:
        """``bool[capacity]``: whether each row is a voxel, not padding."""
        return self.geometry.valid

    @property
    def is_on_explicit_mesh(self) -> bool:
        """Whether an array of these voxels is on a mesh with explicit axes."""
        of_rows = self.features, self.origin
        return self.geometry.is_on_explicit_mesh or _compat.is_on_explicit_mesh(*of_rows)

    if not TYPE_CHECKING:  # type checkers know which names exist

        def __getattr__(self, name: str) -> Any:
            if name in _ELSEWHERE:
                raise UnknownNameError(f"Voxels have no {name}: {_ELSEWHERE[name]}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @checked_operator
    def replace_features(self, features: Shaped[Array, "capacity C"]) -> Voxels:
        """Return these voxels with other features ``[capacity, C']``; padding rows become zero.

        Raises:
          InputError: ``features`` has another number of rows than the capacity.
        """
        features = padded_features(features, self.valid, "voxels")
        return dataclasses.replace(self, features=features)

    @checked_operator
    def map(self, fn: Callable[[jax.Array], jax.Array]) -> Voxels:
        """Apply ``fn`` to the feature array ``[capacity, C]``; padding stays zero.

        Examples:
          >>> float(voxels.map(lambda features: 2 * features).features.max())
          2.0
        """
        # Clear the padding before fn too: its zero cotangent times NaN would reach weights in fn.
        return self.replace_features(fn(self.replace_features(self.features).features))

    def __add__(self, other: Any) -> Voxels:
        return self._elementwise(other, operator.add, "a + b")

    def __sub__(self, other: Any) -> Voxels:
        return self._elementwise(other, operator.sub, "a - b")

    def __mul__(self, other: Any) -> Voxels:
        return self._elementwise(other, operator.mul, "a * b")

    def __neg__(self) -> Voxels:
        return self.map(lambda f: negative_rows(_summable(f)))

    def __rsub__(self, other: Any) -> Voxels:
        return -self + other

    __radd__ = __add__
    __rmul__ = __mul__
    # NumPy arrays leave ``array * voxels`` to the methods above.
    __array_ufunc__ = None

    @checked_operator
    def _elementwise(self, other: Any, function: Callable[..., Any], operation: str) -> Voxels:
        """Return the voxels with features ``function(features, other)``.

        ``other`` is Voxels on the same coordinates, a number, an array ``[C]`` or a scalar array.
        Integers of 8 and 16 bits are converted to int32, so that the results fit. ``operation``
        names the operation in error messages.
        """
        if isinstance(other, Voxels):
            other, geometry = on_geometry_of(self, other, operation)
            out = dataclasses.replace(self, geometry=geometry)
            a, b = self.features, other.features
            if function is operator.mul:  # padding of one operand scales the gradient of the other
                a, b = (v.replace_features(v.features).features for v in (self, other))
            return out.replace_features(_combined(function, _summable(a), _summable(b)))
        if isinstance(other, int | float):
            return self.map(lambda f: _with_number(function, _summable(f), other))
        if isinstance(other, jax.Array | np.ndarray | np.generic) and other.ndim <= 1:
            row = jnp.broadcast_to(jnp.asarray(other), (1, self.num_channels))
            return self.map(lambda f: function(_summable(f), row))
        if isinstance(other, jax.Array | np.ndarray):
            raise InputError(
                f"{operation} with an array {list(other.shape)}: give one number, one for each of "
                f"{self.num_channels} channels, or voxels.map(lambda f: ...) on rows "
                f"[{self.capacity}, {self.num_channels}]"
            )
        return NotImplemented

    def scene(self, index: int) -> Voxels:
        """Return scene ``index`` as Voxels with one scene and the same capacity."""
        return scene(self, index)

    def to_dense(
        self, shape: Sequence[int] | None = None, origin: Sequence[int] | None = None
    ) -> Shaped[Array, "B *spatial C"]:
        """Return a dense grid ``[batch_size, *shape, C]``; see :func:`voxax.geometry.to_dense`.

        Examples:
          >>> voxels.to_dense((8, 8, 8)).shape
          (1, 8, 8, 8, 4)
        """
        return to_dense(self, shape, origin)

    def raise_if_overflowed(self) -> Voxels:
        """Return these voxels; raise :class:`voxax.CapacityError` if ``num_dropped`` is not 0."""
        self.geometry.raise_if_overflowed()
        return self

    def valid_coords(self) -> Int32[np.ndarray, "count coord"]:
        """Return the coordinates ``int32[count, 1 + D]`` on the host, without padding."""
        count = self._host_count()
        return np.asarray(self.coords)[:count]

    def valid_features(self) -> Shaped[np.ndarray, "count C"]:
        """Return the features ``[count, C]`` on the host, without padding."""
        count = self._host_count()
        return np.asarray(self.features)[:count]

    @checked_operator
    def positions(self) -> Float[Array, "capacity D"]:
        """Return voxel centers ``float32[capacity, D]`` in the unit of ``voxel_size``.

        If voxels are so far from zero that float32 does not resolve a quarter of a voxel, the
        result is a NumPy array of float64. Inside ``jax.jit`` it is always float32, and rounded;
        use :meth:`local_positions` there, which do not include the origin.
        """
        local = self.local_positions()
        if not isinstance(self.origin, Origin):
            shifted = local
        else:
            shifted = _add_parts(local, self.origin.parts())
        if not _compat.is_traced(shifted, self.coords) and bool(
            _is_vague(shifted, self.geometry.valid, self._steps())
        ):
            return self._host_positions()  # type: ignore[return-value]
        return shifted

    @checked_operator
    def local_positions(self) -> Float[Array, "capacity D"]:
        """Return voxel centers ``float32[capacity, D]`` relative to ``origin``."""
        return _centers(self.coords, np.asarray(self._steps(), np.float32))

    def valid_positions(self) -> Float[np.ndarray, "count D"]:
        """Return voxel centers ``float64[count, D]`` on the host, without padding."""
        return self._host_positions()[: self._host_count()]

    def _steps(self) -> tuple[float, ...]:
        size = self.voxel_size or (1.0,) * self.geometry.ndim
        return tuple(s * v for s, v in zip(self.stride, size, strict=True))

    def _host_positions(self) -> np.ndarray:
        self._host_count()  # which needs concrete values too
        corner = np.asarray(self.origin) if isinstance(self.origin, Origin) else 0.0
        return corner + (np.asarray(self.coords)[:, 1:] + 0.5) * np.asarray(self._steps())

    def _host_count(self) -> int:
        if _compat.is_traced(self.count):
            raise TypeError(
                "valid_coords(), valid_features() and valid_positions() need concrete values: "
                "their length is data. Inside jax.jit use coords, features, positions() and "
                "valid, whose shapes are static"
            )
        return int(self.count)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        """Return the Treescope rendering for notebooks: counts, sizes, features, coordinates."""
        from treescope import repr_lib

        def number(value: Any) -> Any:
            text = text_of(value)
            return int(text) if text.isdigit() else value

        shown = {
            "count": number(self.count),
            **{n: getattr(self, n) for n in ("capacity", "batch_size", "stride", "voxel_size")},
            "num_dropped": number(self.num_dropped),
            "features": self.features,
            "coords": self.coords,
        }
        return repr_lib.render_object_constructor(
            object_type=type(self),
            attributes=shown,
            path=path,
            subtree_renderer=subtree_renderer,
            roundtrippable=False,
        )

    def __repr__(self) -> str:
        return (
            f"Voxels({getattr(self.features, 'dtype', type(self.features).__name__)}"
            f"{list(getattr(self.features, 'shape', ()))}, {self.geometry!r})"
        )


def _summable(features: jax.Array) -> jax.Array:
    return as_dtype(features, product_dtype(features.dtype))


def _combined(function: Callable[..., Any], a: jax.Array, b: jax.Array) -> jax.Array:
    """Return ``function(a, b)`` for features ``[N, C]``.

    ``function`` is ``operator.add``, ``operator.sub`` or ``operator.mul``.
    """
    if function is operator.sub and a.dtype == b.dtype:
        return add_rows(a, negative_rows(b)) if _compat.is_evaluated(a, b) else a - b
    return {operator.add: add_rows, operator.mul: multiply_rows}.get(function, function)(a, b)


def _with_number(function: Callable[..., Any], features: jax.Array, number: float) -> jax.Array:
    """Return ``function(features, number)``, in the dtype of floating-point features.

    For integer features the dtype is the one that JAX promotes to.
    """
    floating = jnp.issubdtype(features.dtype, jnp.floating)
    if not floating or not _compat.is_evaluated(features):
        return function(features, number)
    row = np.full(features.shape[1:], number, features.dtype)
    return _combined(function, features, repeat_row(row, features.shape[0]))


@in_either()
def _centers(xp: Any, coords: Any, steps: Any) -> Any:
    del xp
    return (coords[:, 1:].astype(np.float32) + np.float32(0.5)) * steps[None]


@in_either()
def _add_parts(xp: Any, local: Any, origin: Any) -> Any:
    del xp
    # Add the largest part last, so that the smaller parts are not rounded away.
    return origin[0][None] + (local + (origin[1] + origin[2])[None])


@in_either("steps")
def _is_vague(xp: Any, positions: Any, valid: Any, steps: tuple[float, ...]) -> Any:
    """Return ``bool[]``: whether float32 fails to resolve a quarter voxel at any valid position.

    ``steps`` has the edge lengths of a voxel, one per axis.
    """
    reach = xp.asarray([2.0**22 * 2.0 ** math.floor(math.log2(step)) for step in steps])
    return xp.any(valid[:, None] & (xp.abs(positions) >= reach.astype(positions.dtype)[None]))


@checked_operator
def from_coords(
    coords: Int[Array | np.ndarray, "N coord"],
    features: Shaped[Array | np.ndarray, "N C"],
    batch_size: int = 1,
    *,
    capacity: int | None = None,
    reduction: Reduction = "mean",
    return_inverse: bool = False,
    stride: int | Sequence[int] = 1,
    voxel_size: float | Sequence[float] = (),
    origin: Sequence[float] = (),
) -> Any:
    """Make voxels from integer coordinates in any order; duplicates are merged.

    Eager calls run in NumPy, so that a new N compiles nothing; see :func:`voxelize`.

    Args:
      coords: ``int[N, 1 + D]``, the batch index, then D coordinates (negative allowed), D 1 to 4.
        Rows whose entries equal ``PAD`` are padding.
      features: ``[N, C]``, the features of each row.
      batch_size: number of scenes; batch indices must lie in ``[0, batch_size)``.
      capacity: static number of rows of the result. None takes one of a few standard sizes in
        eager calls, and N under ``jax.jit``.
      reduction: ``mean``, ``sum``, ``max``, ``min`` or ``first`` of the duplicates. Means of
        integers are float32 (of 64-bit integers, float64), and sums of 8- and 16-bit integers are
        int32. Other results keep the dtype.
      return_inverse: whether to return ``int32[N]`` too, the voxel row of each input row, -1 if the
        row is padding or was dropped.
      stride: total stride of the lattice of ``coords``, an integer or one per axis. It is 1 except
        for voxels of a coarse level, such as the target of a strided convolution.
      voxel_size: edge length at stride 1, a number or one per axis; () if there is no unit.
      origin: position of the lattice origin in the same unit; () is zero.

    Returns:
      ``Voxels``, or ``(Voxels, inverse)`` with ``return_inverse``.

    Raises:
      InputError: an argument has a wrong rank or dtype, or lengths differ. Also, in an eager call,
        if coordinates are outside ``[-2**30, 2**30)``, a batch index is out of range, a mean needs
        integers beyond 24 bits, or a sum exceeds its dtype.
      CapacityError: in an eager call, the voxels do not fit ``capacity``. Under ``jax.jit``, voxels
        that do not fit or are out of range are dropped and counted in ``num_dropped``.
    """
    given, on_host = (coords, features), known_on_host(coords, features)
    if on_host:
        coords, features = np.asarray(coords), as_host_array(features)
    coords, features = check_coords(coords, features, batch_size, on_host=on_host)
    ndim = coords.shape[1] - 1
    rows = max(coords.shape[0], 1)
    if capacity is not None:
        rows = choose_capacity(capacity, rows, coords)
    check_known("reduction", reduction, REDUCTIONS)
    # The mean of integers of 64 bits is float64.
    if reduction == "mean" and features.dtype.itemsize < 8:
        check_mean_digits(features)
    level = per_axis(stride, ndim, "stride")
    if on_host:
        unique = merge_rows(np.asarray(coords), capacity)
        check_overflow(unique.count, unique.num_dropped, level)
        rows = unique.coords.shape[0]

        def reduce(features: Any) -> Any:
            return reduce_on_host(features, np.asarray(unique.inverse), rows, reduction)

        if reduction == "sum":
            check_sum_range(features, reduce)
        lost = LostRows.of({level: 0}).table
        unique, reduced, lost = to_device_of(given, (unique, reduce(features), lost))
    else:
        merge = functools.partial(_merge, coords, batch_size=batch_size, capacity=rows, level=level)
        if reduction == "sum":
            check_sum_range(features, lambda wide: merge(wide, reduction="sum")[1])
        unique, reduced, lost = merge(features, reduction=reduction)
        if capacity is None and not _compat.is_traced(unique.count):
            rows = default_capacity(int(unique.count))
            unique = unique._replace(coords=_resize(unique.coords, rows, int(PAD)))
            reduced = _resize(reduced, rows, 0)
        check_overflow(unique.count, unique.num_dropped, level)
    drops = LostRows(lost, none=not _compat.is_traced(lost))
    geometry = VoxelGeometry(unique.coords, unique.count, drops, None, level, batch_size)
    size = () if np.size(voxel_size) == 0 else check_voxel_size(voxel_size, ndim)
    corner = () if np.size(origin) == 0 else check_origin(origin, ndim)
    voxels = Voxels(geometry, reduced, size, corner)
    return (voxels, unique.inverse) if return_inverse else voxels


# Jitted so that an eager call is one program instead of twenty small ones.
@functools.partial(jax.jit, static_argnames=("batch_size", "capacity", "reduction", "level"))
def _merge(
    coords: jax.Array,
    features: jax.Array,
    batch_size: int,
    capacity: int,
    reduction: Reduction,
    level: Level,
) -> tuple[UniqueRows, jax.Array, jax.Array]:
    """Merge duplicate rows: return the distinct rows, their features and the table of lost rows.

    Rows outside the coordinate range or the batch count as lost. The table is that of
    :class:`LostRows`, and ``level`` is the stride of the rows.
    """
    good = is_valid(coords) & (coords[:, 0] >= 0) & (coords[:, 0] < batch_size)
    good &= in_range(coords[:, 1:])
    lost = jnp.sum(is_valid(coords) & ~good, dtype=jnp.int32)
    unique = unique_rows(jnp.where(good[:, None], coords, PAD), capacity)
    reduced = reduce_rows(features, unique.inverse, capacity, reduction)
    unique = unique._replace(num_dropped=unique.num_dropped + lost)
    return unique, reduced, LostRows.of({level: unique.num_dropped}).table


def _resize(array: jax.Array, rows: int, fill: int) -> jax.Array:
    """Return the array cut to ``rows`` rows, or padded with ``fill`` up to ``rows`` rows."""
    missing = rows - array.shape[0]
    if missing <= 0:
        return array[:rows]
    return jnp.pad(array, ((0, missing), (0, 0)), constant_values=fill)


@checked_operator
def voxelize(
    positions: Float[Array | np.ndarray, "N D"] | Points,
    features: Shaped[Array | np.ndarray, "N C"] | None = None,
    voxel_size: float | Sequence[float] | None = None,
    batch_index: Int[Array | np.ndarray, " N"] | None = None,
    reduction: Reduction = "mean",
    capacity: int | None = None,
    return_inverse: bool = False,
    *,
    batch_size: int | None = None,
    origin: Sequence[float] | None = None,
) -> Any:
    """Group points into voxels, and merge the features of the points of each voxel.

    The voxel of a point has the coordinates ``floor((position - origin) / voxel_size)``. The result
    for positions of one dtype is the same inside and outside ``jax.jit``, on every device and in
    worker processes. ``position - origin`` is rounded to float32, and a point within this rounding
    of a voxel's lower face lies on the face. So a decimal coordinate ``k * voxel_size`` is in voxel
    ``k``. Float32 resolves a quarter of a voxel up to ``2**21`` voxels from zero. Give larger
    coordinates as a NumPy array of float64: beyond about ``2**16`` voxels it is not rounded to
    float32.

    Outside ``jax.jit``, points are grouped in NumPy, so that a new N compiles nothing. Points on an
    accelerator are copied to the host for this, and the voxels are copied to the device.
    :func:`voxelize_on_host` leaves the voxels on the host.

    Args:
      positions: ``float[N, D]``, D 1 to 4, in any unit, or a :class:`voxax.Points`, whose features
        and batch index are used. A NumPy array of float64 (UTM coordinates, time stamps) is read in
        float64, also inside ``jax.jit``. An argument of ``jax.jit`` is float32.
      features: ``[N, C]``, the features of each point; None gives one channel of ones.
      voxel_size: edge length in the unit of the positions, a number or one per axis; required.
      batch_index: ``int[N]``, the scene of each point; None puts all points in scene 0.
      reduction: ``mean``, ``sum``, ``max``, ``min`` or ``first`` of the features of a voxel's
        points; see :func:`voxax.geometry.from_coords`.
      capacity: static number of rows of the result. None takes one of a few standard sizes in
        eager calls, and N under ``jax.jit``.
      return_inverse: whether to return ``int32[N]`` too, the voxel row of each point, -1 if the
        point was dropped.
      batch_size: static number of scenes. None takes that of the Points, or 1 without a batch
        index, or ``max(batch_index) + 1``, which works only in eager calls.
      origin: position of the lattice origin, in float64; None is the origin of the Points, or zero.

    Returns:
      ``Voxels``, or ``(Voxels, inverse)`` with ``return_inverse``.

    Raises:
      InputError: an argument has a wrong rank or dtype, lengths differ, or the voxel size is not
        positive. Also, in an eager call, for positions that are NaN or infinite, whose voxel has
        coordinates outside ``[-2**30, 2**30)``, or that are in float32 where it does not resolve a
        quarter of a voxel. Under ``jax.jit``, such points are dropped and counted in
        ``num_dropped``.
      CapacityError: in an eager call, the voxels do not fit ``capacity``.

    Examples:
      >>> voxels = vx.voxelize(positions, np.ones((500, 4), np.float32), voxel_size=0.5)
      >>> int(voxels.count), voxels.num_channels
      (466, 4)
    """
    if voxel_size is None:
        raise InputError(
            "voxel_size is required: give the edge length of a voxel in the unit of the positions, "
            "such as voxel_size=0.1 for 10 cm where positions are meters"
        )
    number, own = None, ()
    if isinstance(positions, Points):
        points = positions
        positions, number, own = points.positions, points.count, points.origin
        origin = (own or None) if origin is None else origin
        features = points.features if features is None else features
        batch_index = points.batch_index if batch_index is None else batch_index
        batch_size = points.batch_size if batch_size is None else batch_size
    given = positions, features, batch_index
    on_host = known_on_host(*given, number)
    # The values in padding rows of Points do not matter.
    places: Any = float_positions(positions, finite=number is None, on_host=on_host)
    rows, ndim = places.shape
    size = check_voxel_size(voxel_size, ndim)
    corner = (0.0,) * ndim if origin is None else origin
    corner = corner if isinstance(corner, Origin) else Origin(check_origin(corner, ndim))
    if batch_index is None and batch_size is None:
        batch_size = 1
    batch_index = batch_indices(batch_index, rows, on_host=on_host)
    if batch_size is None:
        batch_size = infer_batch_size(batch_index)
    xp: Any = np if on_host else jnp
    values: Any = xp.ones((rows, 1), np.float32) if features is None else features

    places, cell, inside, vague = place_points(places, corner, own, size, on_host=on_host)
    number = int(number) if on_host and number is not None else number
    wanted = xp.arange(rows, dtype=np.int32) < (rows if number is None else number)
    raise_on_bad_points(places, wanted & ~inside, wanted & vague, size)
    lost = xp.sum(wanted & ~inside, dtype=np.int32)
    coords = xp.concatenate([batch_index[:, None], cell], axis=1)
    coords = xp.where((inside & wanted)[:, None], coords, PAD)
    voxels, inverse = from_coords(
        coords,
        values,
        batch_size,
        capacity=capacity,
        reduction=reduction,
        return_inverse=True,
        voxel_size=size,
        origin=corner,
    )
    if on_host:
        voxels, inverse = to_device_of(given, (voxels, inverse))
    if _compat.is_traced(lost):
        drops = voxels.geometry.drops.add(voxels.stride, lost)
        geometry = dataclasses.replace(voxels.geometry, drops=drops)
        voxels = dataclasses.replace(voxels, geometry=geometry)
    return (voxels, inverse) if return_inverse else voxels


def place_points(
    positions: Any, origin: Any, own: Any, size: tuple[float, ...], *, on_host: bool
) -> tuple[Any, Any, Any, Any]:
    """Find the lattice cell of each position.

    Args:
      positions: ``float[N, D]`` relative to ``own``.
      origin: position of the lattice origin; () is zero.
      own: the origin that ``positions`` are relative to; () is zero.
      size: edge length of a voxel along each axis.
      on_host: whether the positions are NumPy arrays; the results then are NumPy arrays too.

    Returns:
      Four arrays. ``float[N, D]``: the first result of :func:`voxax.geometry.origin.relative`,
      which are the positions, or for float64 positions minus an origin. ``int32[N, D]``: the cell
      of each position. ``bool[N]``: whether this cell is known. ``bool[N]``: whether it is unknown
      because float32 is too coarse.
    """
    positions, parts = relative(positions, origin, own)
    to = lattice(parts, size, (1,) * len(size), positions.dtype)
    # Float64 NumPy arrays stay on the host: JAX may have 32 bits only.
    place = _place if on_host or positions.dtype != np.float32 else _place_on_device
    return positions, *place(positions, to)


def _place(positions: Any, to: Lattice) -> tuple[Any, Any, Any]:
    local = from_origin(positions, to.origin)
    cell, known = cells(local, to)
    vague = unresolved(positions, local, to)
    return cell, known & ~vague, vague


_place_on_device = jax.jit(_place)


def raise_on_bad_points(positions: Any, bad: Any, vague: Any, size: tuple[float, ...]) -> None:
    """Raise :class:`InputError` for the first position without a cell, unless values are traced.

    ``bad`` is ``bool[N]``, True for positions without a cell. ``vague`` is True for those of them
    where float32 is too coarse. ``size`` is the voxel size.
    """
    if _compat.is_traced(bad) or not bool(bad.any()):
        return
    bad, positions = np.asarray(bad), np.asarray(positions)
    check_finite(np.where(bad[:, None], positions, 0))
    first = int(bad.argmax())
    if np.asarray(vague)[first]:
        raise_unresolved(positions[first].tolist(), first, size)
    raise InputError(
        f"position {positions[first].tolist()} at row {first} has lattice coordinates outside "
        f"[-2**30, 2**30) for voxel_size {size}: shift the scene with origin= or enlarge voxel_size"
    )


@checked_operator
def to_dense(
    voxels: Voxels, shape: Sequence[int] | None = None, origin: Sequence[int] | None = None
) -> Shaped[Array, "B *spatial C"]:
    """Return a dense grid with the features of the voxels; empty sites are zero.

    Args:
      voxels: the input with ``C`` channels. Voxels outside the grid are left out.
      shape: D grid sizes; None takes the bounding box, in eager calls only.
      origin: lattice coordinates of the grid's first cell, D integers. None takes the corner of the
        bounding box if ``shape`` is None too, else zero.

    Returns:
      ``[batch_size, *shape, C]``.

    Raises:
      InputError: ``shape`` is None under ``jax.jit`` or has another number of axes, the grid has
        more than 2**32 cells or, in an eager call on a CPU, more bytes than are free, or the voxels
        are one shard of a scene.
    """
    refuse_shard(voxels, "to_dense()")
    if shape is None:
        if _compat.is_traced(voxels.coords):
            raise InputError("to_dense() under jax.jit needs shape=: the bounding box is data")
        rows = voxels.valid_coords()[:, 1:]
        low = rows.min(0) if len(rows) else np.zeros(voxels.geometry.ndim, np.int64)
        high = rows.max(0) + 1 if len(rows) else np.ones(voxels.geometry.ndim, np.int64)
        origin = [int(v) for v in (low if origin is None else origin)]
        shape = [max(int(h) - o, 1) for h, o in zip(high, origin, strict=True)]
    shape = tuple(check_whole("shape", s, 0) for s in shape)
    if len(shape) != voxels.geometry.ndim or len(shape) != len(shape if origin is None else origin):
        raise InputError(
            f"shape={shape} and origin={origin} for {voxels.geometry.ndim}-D voxels: give one "
            f"number for each axis{axes_hint(len(shape), voxels.geometry.ndim)}"
        )
    corner = (0,) * len(shape) if origin is None else tuple(int(o) for o in origin)
    features, what = voxels.features, f"to_dense() of a grid {shape}"
    fix = "give shape= and origin= of the part that is wanted"
    if math.prod(shape) > 2**32:
        raise InputError(f"{what} of more than 2**32 cells: {fix}")
    shape = (voxels.batch_size, *shape)
    if known_on_cpu(voxels.coords):
        size = math.prod(shape) * features.shape[1] * features.dtype.itemsize
        check_host_memory(what, size, fix)
    if (
        _compat.is_traced(features)
        and _compat.is_evaluated(features)
        and known_on_cpu(voxels.coords)
    ):
        return read_rows(features, _rows_of_cells(np.asarray(voxels.coords), corner, shape))
    return _scattered(features, voxels.coords, corner, shape)


def _rows_of_cells(
    coords: np.ndarray, corner: tuple[int, ...], shape: tuple[int, ...]
) -> np.ndarray:
    """Return a dense grid ``int32[*shape]``: the row of the voxel in each cell, or -1.

    ``shape`` is the number of scenes, then the D sizes of the grid. ``corner`` has the lattice
    coordinates of the grid's first cell, which are the same in each scene.
    """
    index = coords - np.asarray((0, *corner), np.int32)[None]
    inside = ((index >= 0) & (index < np.asarray(shape, np.int32)[None])).all(axis=1)
    (rows,) = np.nonzero(inside & (coords[:, 0] != PAD))
    found = np.full(shape, -1, np.int32)
    found[tuple(index[rows].T)] = rows
    return found


@in_either("corner", "shape")
def _scattered(xp: Any, features: Any, coords: Any, corner: Any, shape: tuple[int, ...]) -> Any:
    """Return a dense grid ``[*shape, C]``: the features of the voxel in each cell, or zeros.

    ``shape`` is the number of scenes, then the D sizes of the grid. ``corner`` has the lattice
    coordinates of the grid's first cell, which are the same in each scene.
    """
    index = coords - np.asarray((0, *corner), np.int32)[None]
    inside = xp.all((index >= 0) & (index < np.asarray(shape, np.int32)[None]), axis=1)
    inside &= coords[:, 0] != PAD
    grid = xp.zeros((*shape, features.shape[1]), features.dtype)
    if xp is np:
        grid[tuple(index[inside].T)] = features[inside]
        return grid
    scene = xp.where(inside, index[:, 0], shape[0])
    return grid.at[scene, *index[:, 1:].T].set(features, mode="drop")


@checked_operator
def from_dense(
    dense: Shaped[Array | np.ndarray, "B *spatial C"],
    mask: Bool[Array | np.ndarray, " B *spatial"] | None = None,
    *,
    capacity: int | None = None,
) -> Voxels:
    """Make voxels at the active sites of a dense grid.

    Args:
      dense: ``[B, *shape, C]``, the grid of B scenes.
      mask: ``bool[B, *shape]``, the active sites; None takes sites with any non-zero channel.
      capacity: static number of rows of the result. None takes one of a few standard sizes in
        eager calls, and the number of all sites under ``jax.jit``.
    """
    if dense.ndim < 3:
        raise InputError(f"from_dense needs [B, *shape, C], got shape {dense.shape}")
    coords, features = _sites(dense, mask)
    # No two sites share a voxel, and the mean would turn integers into floats.
    return from_coords(coords, features, dense.shape[0], capacity=capacity, reduction="first")


@in_either()
def _sites(xp: Any, dense: Any, mask: Any) -> tuple[Any, Any]:
    """Return coords ``int32[N, 1 + D]`` and features ``[N, C]`` of all N sites of a grid.

    Where ``mask`` is False, the coords are padding.
    """
    mask = xp.any(dense != 0, axis=-1) if mask is None else mask
    index = xp.indices(mask.shape, dtype=np.int32).reshape(mask.ndim, -1).T
    return xp.where(mask.reshape(-1)[:, None], index, PAD), dense.reshape(-1, dense.shape[-1])


@checked_operator
def batch(scenes: Sequence[Voxels], *, capacity: int | None = None) -> Voxels:
    """Join several Voxels into one batch of scenes, in the order of the list.

    Args:
      scenes: voxels of the same stride and number of channels. Each may have one or more scenes,
        which may be empty. Voxel size and origin of the first are used.
      capacity: static number of rows of the result. None takes one of a few standard sizes in
        eager calls, and the sum of all capacities under ``jax.jit``.

    Raises:
      InputError: the list is empty, or strides or numbers of channels differ.
      CapacityError: in an eager call, the voxels do not fit ``capacity``. Under ``jax.jit``, voxels
        that do not fit are counted in ``num_dropped``.

    Examples:
      >>> vx.batch([voxels, voxels]).batch_size
      2
    """
    if not scenes:
        raise InputError("batch needs at least one Voxels, got an empty list")
    first = scenes[0]
    for v in scenes:
        if v.stride != first.stride or v.num_channels != first.num_channels:
            raise InputError(
                f"batch of stride {first.stride}, {first.num_channels} channels with stride "
                f"{v.stride}, {v.num_channels} channels: all must agree"
            )
    sizes = tuple(v.batch_size for v in scenes)
    coords = tuple(v.coords for v in scenes)
    sources = [v.geometry for v in scenes]
    number = functools.reduce(jnp.add, [v.count for v in scenes])
    capacity = choose_capacity(capacity, sum(v.capacity for v in scenes), number)
    found = _stacked(coords, sizes, capacity)
    geometry = new_geometry(
        found, sources, batch_size=sum(sizes), level_capacities=joint_capacities(sources)
    )
    features = gather_rows(stacked([v.features for v in scenes]), found.source)
    return dataclasses.replace(first, geometry=geometry, features=features)


@checked_operator
def unbatch(voxels: Voxels, *, capacity: int | None = None) -> list[Voxels]:
    """Split a batch into a list with one Voxels for each scene.

    Args:
      voxels: a batch of ``batch_size`` scenes.
      capacity: static number of rows of each scene. None takes, in eager calls, a standard size
        that fits the largest scene, so that all scenes run the same programs. Under ``jax.jit``
        it takes the batch's capacity.

    Raises:
      CapacityError: in an eager call, a scene does not fit ``capacity``. Under ``jax.jit``, voxels
        that do not fit are counted in the ``num_dropped`` of their scene.

    Examples:
      >>> len(vx.unbatch(vx.batch([voxels, voxels])))
      2
    """
    largest = _largest_scene(voxels.coords, voxels.batch_size)
    capacity = choose_capacity(capacity, voxels.capacity, largest)
    return [_scene(voxels, index, capacity) for index in range(voxels.batch_size)]


@checked_operator
def scene(voxels: Voxels, index: int) -> Voxels:
    """Return scene ``index`` of a batch as Voxels with one scene and the batch's capacity.

    Raises:
      InputError: the scene does not exist, or ``index`` is not a static integer.
    """
    try:
        number = operator.index(index)
    except TypeError as error:  # a float, text, or a traced integer
        raise InputError(
            f"scene {index!r}: give an integer from 0 to {voxels.batch_size - 1}, not traced"
        ) from error
    if not 0 <= number < voxels.batch_size:
        raise InputError(
            f"scene {number} of a batch of {voxels.batch_size}: give 0 to {voxels.batch_size - 1}"
        )
    return _scene(voxels, number, voxels.capacity)


def _scene(voxels: Voxels, index: int, capacity: int) -> Voxels:
    source = voxels.geometry
    found = _scene_rows(voxels.coords, jnp.asarray(index, jnp.int32), capacity)
    geometry = new_geometry(found, [source], batch_size=1, level_capacities=source.level_capacities)
    features = gather_rows(voxels.features, found.source)
    return dataclasses.replace(voxels, geometry=geometry, features=features)


def _stacked_on_host(
    coords: Sequence[np.ndarray], sizes: tuple[int, ...], capacity: int
) -> CompactRows:
    starts = np.cumsum((0, *sizes[:-1]), dtype=np.int32)
    moved = np.concatenate(coords)
    moved[:, 0] += np.repeat(starts, [len(rows) for rows in coords])
    kept = np.concatenate([rows[:, 0] != PAD for rows in coords])
    return kept_on_host(moved, kept, capacity)


@eagerly(_stacked_on_host)
@functools.partial(jax.jit, static_argnames=("sizes", "capacity"))
def _stacked(coords: tuple[jax.Array, ...], sizes: tuple[int, ...], capacity: int) -> CompactRows:
    """Concatenate the coordinate rows of several batches into one batch of ``capacity`` rows.

    ``coords`` has an array for each batch, and batch i has ``sizes[i]`` scenes. The scenes of a
    batch are numbered after those of the previous batches.
    """
    moved, start = [], 0
    for rows, size in zip(coords, sizes, strict=True):
        moved.append(jnp.where(rows[:, :1] == PAD, PAD, rows.at[:, 0].add(start)))
        start += size
    stacked = jnp.concatenate(moved)
    return compact_rows(stacked, jnp.ones((stacked.shape[0],), bool), capacity)


@in_either("capacity")
def _scene_rows(xp: Any, coords: Any, index: Any, capacity: int) -> CompactRows:
    keep = kept_on_host if xp is np else compact_rows
    found = keep(coords, coords[:, 0] == index, capacity)
    valid = found.coords[:, :1] != PAD
    own = xp.concatenate([xp.zeros_like(valid, np.int32), found.coords[:, 1:]], axis=1)
    return found._replace(coords=xp.where(valid, own, PAD))


@in_either("batch_size")
def _largest_scene(xp: Any, coords: Any, batch_size: int) -> Any:
    """Return ``int32[]``, the number of voxels of the largest scene; ``coords`` are sorted."""
    ends = xp.searchsorted(coords[:, 0], xp.arange(batch_size + 1, dtype=np.int32))
    return xp.max(ends[1:] - ends[:-1]).astype(np.int32)


def on_geometry_of(a: Voxels, b: Voxels, operation: str) -> tuple[Voxels, VoxelGeometry]:
    """Return ``b`` for a row-by-row operation with ``a``, and the geometry of the result.

    If the coordinates are known to be equal, ``b`` is returned as it is. Under ``jax.jit`` this may
    be unknown, for example if ``a`` and ``b`` are two arguments. Then the compiled program compares
    the rows, once for each pair of geometries. A row of ``b`` with other coordinates is lost: its
    features become zero, and it counts in ``num_dropped``. The geometry is that of ``a``, with the
    lost rows of both. ``operation`` names the operation in the error message.

    Raises:
      GeometryMismatchError: the coordinates are known to differ; the message names the fix.
    """
    ours, theirs = a.geometry, b.geometry
    if ours.same_as(theirs):
        return b, ours.with_drops_of(theirs)
    facts = [(g.coords.shape, g.stride, g.batch_size) for g in (ours, theirs)]
    if facts[0] != facts[1] or not _compat.is_traced(ours.coords, theirs.coords):
        raise GeometryMismatchError(
            f"{operation} needs voxels on the same coordinates, got {ours!r} and {theirs!r}"
            f"{ours.difference(theirs)}; use vx.union(a, b) to add over different coordinate sets"
        )
    differs, lost = ours.memo.get_or_build(
        ("differing rows", Held(theirs.coords)),
        (ours.coords, theirs.coords),
        lambda: differing_rows(ours.coords, theirs.coords),
    )
    features = jnp.where(differs[:, None], jnp.zeros((), b.features.dtype), b.features)
    found = dataclasses.replace(theirs, attached=None, drops=theirs.drops.add(ours.stride, lost))
    return dataclasses.replace(b, features=features), ours.with_drops_of(found)


@jax.jit
def differing_rows(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return ``(bool[N], int32[])``: which rows of two arrays differ, and how many."""
    differs = jnp.any(a != b, axis=tuple(range(1, a.ndim)))
    return differs, jnp.sum(differs, dtype=jnp.int32)
