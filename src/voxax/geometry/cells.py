"""Find the lattice cell of each position, with the same result in NumPy and on every device.

First the origin is subtracted from the position, in float64 if the position is float64. Otherwise
it is subtracted in float32, as three float32 numbers whose sum is the origin. The difference is
then rounded to float32. Its cell is the largest ``n`` for which ``n * voxel_size`` exceeds the
difference by at most 9/16 of the spacing of float32 numbers there. Rounding to float32 moves a
number by up to half a spacing, so a decimal coordinate ``k * voxel_size`` is in cell ``k``, for
every ``k`` and voxel size. If the product ``n * voxel_size`` is a float32 number, as for sizes 1
and 0.5, the cell is ``floor(difference / voxel_size)``.

The cell is estimated by floats, which may be wrong by one cell, and corrected by comparing
integers. So the result does not depend on how a compiler divides, or on whether it fuses a product
with a sum.

Up to ``2**21`` cells from the origin, float32 resolves a quarter of a cell; farther out, a float32
position has no cell. From about ``2**16`` cells on, where float32 would move a position by a
hundredth of a cell, the cell of a float64 position is computed in float64. It is then the largest
``n`` for which ``n * voxel_size`` exceeds the difference by at most two spacings of float64.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from voxax._native import host as native
from voxax.coords import COORD_LIMIT

# Edges and distances to a face are integers in units of 2**-28. An edge is then exact to 2**-29,
# which is less than the 1/16 by which 9/16 exceeds 1/2.
_UNIT = 28
_REACH = np.float32(2**22)
# From here on float64 positions are not rounded to float32.
_WIDE_REACH = np.float32(2**17)
_TINY = np.finfo(np.float32).tiny
# Rows that NumPy handles at a time: its many passes then stay in a core's cache.
_ROWS = 1 << 13


class Lattice(NamedTuple):
    """A lattice of cells, described by arrays so that all lattices share one compiled program.

    Attributes:
      origin: ``float32[3, D]``, for each axis three numbers whose sum is the origin.
      size: ``float[D]``, edge lengths of a cell at stride 1, in the dtype of the positions.
      stride: ``int32[D]``, edge lengths of the voxels to find, in cells.
      scale: ``float32[D]``, for each axis the power of two that scales ``size`` to ``[1, 2)``.
      inverse: ``float32[D]``, an estimate of ``1 / (size * scale)``.
      edge: ``int32[D]``, ``size * scale`` in units of ``2**-28``.
    """

    origin: Any
    size: Any
    stride: Any
    scale: Any
    inverse: Any
    edge: Any


def lattice(origin: Any, size: Sequence[float], stride: Sequence[int], dtype: Any) -> Lattice:
    """Make the :class:`Lattice` for positions of a given dtype.

    Args:
      origin: ``float32[3, D]``, three numbers for each axis whose sum is the origin.
      size: edge lengths of a cell, one per axis.
      stride: edge lengths of the voxels to find, in cells.
      dtype: dtype of the positions.
    """
    edges, *numbers = _numbers(tuple(size), np.dtype(dtype))
    return Lattice(origin, edges, np.asarray(stride, np.int32), *numbers)


@functools.lru_cache(maxsize=256)
def _numbers(size: tuple[float, ...], dtype: np.dtype) -> tuple[np.ndarray, ...]:
    """Return read-only arrays ``size``, ``scale``, ``inverse`` and ``edge`` of a :class:`Lattice`.

    The argument ``size`` has the edge lengths of a cell; ``dtype`` is the dtype of positions.
    """
    edges = np.asarray(size, np.float64)
    fraction, exponent = np.frexp(edges)  # in [0.5, 1)
    numbers = (
        edges.astype(dtype),
        np.ldexp(np.float32(1), 1 - exponent),
        (0.5 / fraction).astype(np.float32),
        np.rint(np.ldexp(fraction, _UNIT + 1)).astype(np.int32),
    )
    for array in numbers:
        array.flags.writeable = False
    return numbers


def from_origin(positions: Any, origin: Any) -> Any:
    """Return ``positions [N, D]`` minus an origin of D coordinates.

    The origin is the sum of the three rows of ``origin [3, D]``.
    """
    if isinstance(positions, np.ndarray) and isinstance(origin, np.ndarray) and not origin.any():
        return positions
    if positions.dtype == np.float64:
        wide = origin.astype(np.float64)
        return positions - ((wide[2] + wide[1]) + wide[0])[None]
    # `where` depends on the positions: XLA would add up two constants that are subtracted in turn.
    xp: Any = np if isinstance(positions, np.ndarray) else jnp
    rest = xp.where(xp.isfinite(positions), (origin[1] + origin[2])[None], np.float32(0))
    return positions - origin[0][None] - rest


def cells(local: Any, to: Lattice) -> tuple[Any, Any]:
    """Return the lattice cell that contains each position, and whether there is such a cell.

    Cells are those of stride 1; ``to.stride`` is not used.

    Args:
      local: ``float[N, D]``, positions relative to the lattice's origin, in NumPy or JAX.
      to: the lattice.

    Returns:
      ``(int32[N, D], bool[N])``. The mask is False where a position is not finite, is outside the
      coordinate range, or is a float32 number too far from the origin.
    """
    numpy = isinstance(local, np.ndarray)
    if numpy and native.takes_positions(local):
        return native.find_cells(local, to.scale, to.inverse, to.edge, to.size)
    if numpy and len(local) > _ROWS:
        blocks = range(0, len(local), _ROWS)
        parts = [cells(local[begin : begin + _ROWS], to) for begin in blocks]
        found, known = zip(*parts, strict=True)
        return np.concatenate(found), np.concatenate(known)
    xp: Any = np if numpy else jnp
    if not numpy:
        local = jax.lax.stop_gradient(local)
    with np.errstate(over="ignore"):  # a position that overflows is far
        x = local.astype(np.float32) * to.scale[None]
    near = xp.abs(x) < (_WIDE_REACH if local.dtype == np.float64 else _REACH)
    # Subnormal numbers become zero, as some devices read them so.
    x = _where(near & (xp.abs(x) >= _TINY), x, np.float32(0))
    estimate = xp.rint(x * to.inverse[None])
    whole = xp.floor(x)
    fixed = (whole.astype(np.int32) << _UNIT) + _int((x - whole) * np.float32(2**_UNIT))
    # The power of two below the next number above x, which is nearer to zero where x is negative.
    bits = _bits(x, np.int32)
    power = _bits((bits + (bits >> 31)) & np.int32(0x7F800000), np.float32)
    room = _int(power * np.float32(9 * 2.0 ** (_UNIT - 27)))
    # The products wrap around; their difference is small, and right.
    number = _int(estimate)
    above = fixed - number * to.edge[None] + room
    cell = number - (above < 0).astype(np.int32) + (above >= to.edge[None]).astype(np.int32)
    cell = _where(number == 0, -(x < 0).astype(np.int32), cell)
    if local.dtype == np.float64:
        number = xp.rint(local / to.size[None])
        # Added to the position, not subtracted from the product, which compilers would fuse.
        power = _bits(_bits(local, np.int64) & np.int64(0x7FF << 52), np.float64)
        room = power * 2.0**-51
        far = number - (number * to.size[None] > local + room).astype(number.dtype)
        inside = (far >= -COORD_LIMIT) & (far < COORD_LIMIT)
        cell = _where(near, cell, _where(inside, far, 0).astype(np.int32))
        near = near | inside
    # NumPy is slow along a short axis.
    return cell, np.ones(len(near), bool) if numpy and near.all() else near.all(axis=1)


def unresolved(positions: Any, local: Any, to: Lattice) -> Any:
    """Return ``bool[N]``: True where float32 is too coarse to tell which cell a position is in.

    At such a position, neighboring float32 numbers are more than a quarter of a cell apart. The
    result is False for positions outside the coordinate range and for float64 positions.

    Args:
      positions: ``float[N, D]``, the positions as given.
      local: ``float[N, D]``, the same positions minus the lattice's origin.
      to: the lattice.
    """
    xp: Any = np if isinstance(local, np.ndarray) else jnp
    if local.dtype == np.float64:
        return xp.zeros(local.shape[:1], bool)
    if isinstance(local, np.ndarray):
        # Where nothing is far by the largest scale, no pass along a short axis is needed.
        arrays = (local,) if positions is local else (local, positions)
        most = [float(end) for a in arrays for end in (a.max(initial=0), -a.min(initial=0))]
        if all(end * float(np.max(to.scale)) < _REACH for end in most):  # False if one is NaN
            return np.zeros(len(local), bool)
    far = xp.abs(positions * to.scale[None]) >= _REACH
    far |= xp.abs(local * to.scale[None]) >= _REACH
    cell = local / to.size[None]
    inside = ((cell >= -COORD_LIMIT) & (cell < COORD_LIMIT)).all(axis=1)
    return far.any(axis=1) & inside


def _where(condition: Any, a: Any, b: Any) -> Any:
    return (np if isinstance(condition, np.ndarray) else jnp).where(condition, a, b)


def _int(values: Any) -> Any:
    return values.astype(np.int32)


def _bits(array: Any, dtype: Any) -> Any:
    if isinstance(array, np.ndarray):
        return array.view(dtype)
    return jax.lax.bitcast_convert_type(array, dtype)
