"""Overlap of rotated boxes: exact areas and volumes, without lists of vertices.

In its own frame, the first box is the rectangle ``|x| <= a, |y| <= b``. The area that it shares
with the second box is a sum over the four edges of the second box (Green's theorem):

    area = sum over edges of the integral of clip(x, -a, a) dy over the part with |y| <= b

Each integrand is piecewise linear. The sum needs no sorting, no vertices and no comparison of
edges. Equal, touching and nested boxes are therefore not special cases. The sum is a continuous
function of the boxes, and its rounding error is about the machine epsilon times their sizes and
distance.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Float, Num
from voxax.detection.boxes import array_module, as_boxes, as_floats, sizes
from voxax.errors import InputError

NmsOverlap = Literal["bev", "3d"]


def bev_overlap(
    a: Num[Array | np.ndarray, "... box"], b: Num[Array | np.ndarray, "... box"]
) -> Float[Any, "..."]:
    """Return the area that pairs of boxes share seen from above, ``[...]`` in square meters.

    The result is a NumPy array if both arguments are NumPy arrays.

    Args:
      a: boxes ``[..., 7]`` or ``[..., 9]``.
      b: boxes of the same form. Leading axes broadcast: ``bev_overlap(a[:, None], b[None])``
        compares all pairs. On a CPU each pair takes about 130 bytes during the call; for very many
        pairs, map over the rows of ``a`` with ``jax.lax.map``.

    Raises:
      InputError: an array has a wrong shape, or invalid values (checked unless they are traced).

    Derivatives are exact where the area is differentiable, and finite everywhere. Where sides of
    the boxes lie on each other, the area has a kink; the first derivative there is the mean of
    the derivatives on both sides of the kink.
    """
    return _evaluate(_area, a, b)


def bev_iou(
    a: Num[Array | np.ndarray, "... box"], b: Num[Array | np.ndarray, "... box"]
) -> Float[Any, "..."]:
    """Return the IoU of pairs of boxes seen from above, ``[...]`` in 0..1; 0 for two empty boxes.

    Arguments, derivatives and errors as in :func:`bev_overlap`.
    """
    return _evaluate(_bev_iou, a, b)


def iou_3d(
    a: Num[Array | np.ndarray, "... box"], b: Num[Array | np.ndarray, "... box"]
) -> Float[Any, "..."]:
    """Return the IoU of the volumes of pairs of boxes, ``[...]`` in 0..1; 0 for two empty boxes.

    Arguments, derivatives and errors as in :func:`bev_overlap`. A yaw of 0 gives the IoU of
    axis-aligned boxes.
    """
    return _evaluate(_iou_3d, a, b)


def _evaluate(function: Any, a: Any, b: Any) -> Any:
    a, b = as_floats(as_boxes(a, "a"), as_boxes(b, "b"))
    a, b = a[..., :7], b[..., :7]
    xp = array_module(a)
    try:
        xp.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    except ValueError as error:
        raise InputError(
            f"a of shape {list(a.shape)} and b of shape {list(b.shape)} do not broadcast: give "
            "a[:, None] and b[None] to compare all pairs"
        ) from error
    ndim = max(a.ndim, b.ndim)
    a, b = (x.reshape((1,) * (ndim - x.ndim) + x.shape) for x in (a, b))
    if xp is jnp and not _compat.is_traced(a, b):
        return _compiled[function](a, b)  # many single operations would each cost a dispatch
    return function(a, b)


# The corners of a box in units of its half sides, counterclockwise. A side leads from each corner
# to the next one: to the left, to the back, to the right and to the front of the box.
_ALONG = np.array([1.0, -1.0, -1.0, 1.0])
_ACROSS = np.array([1.0, 1.0, -1.0, -1.0])


class _Sides(NamedTuple):
    """The four edges of a box in the frame of another box, and half the sizes of the other box.

    The boxes are seen from above. The points of an edge are ``x + t * dx, y + t * dy`` with t in
    0..1; each of the four arrays is ``[..., 4]``. ``half_x`` and ``half_y`` are half the length and
    half the width of the other box, ``[..., 1]``.
    """

    x: Any
    y: Any
    dx: Any
    dy: Any
    half_x: Any
    half_y: Any


def _seen_from(a: Any, b: Any) -> tuple[Any, Any, Any, Any]:
    """Return x, y, cos(yaw) and sin(yaw) of the boxes ``b`` in the frames of the boxes ``a``."""
    xp = array_module(a)
    (cos_a, sin_a), (cos_b, sin_b) = ((xp.cos(t[..., 6]), xp.sin(t[..., 6])) for t in (a, b))
    x, y = b[..., 0] - a[..., 0], b[..., 1] - a[..., 1]
    # The difference of the angles would be rounded, because they may be many turns.
    cos, sin = cos_a * cos_b + sin_a * sin_b, cos_a * sin_b - sin_a * cos_b
    return x * cos_a + y * sin_a, y * cos_a - x * sin_a, cos, sin


def _sides(a: Any, b: Any) -> _Sides:
    """Return the four edges of each box in ``b`` from above, in the frame of the box in ``a``."""
    xp = array_module(a)
    x, y, cos, sin = (t[..., None] for t in _seen_from(a, b))
    (la, wa, _), (lb, wb, _) = ([t[..., None] for t in sizes(boxes)] for boxes in (a, b))

    def corners(turn: int) -> tuple[Any, Any]:
        shape = (1,) * (a.ndim - 1) + (4,)
        s, t = (xp.asarray(np.roll(v, turn), a.dtype).reshape(shape) for v in (_ALONG, _ACROSS))
        along, across = 0.5 * lb * s, 0.5 * wb * t
        return x + along * cos - across * sin, y + along * sin + across * cos

    (x0, y0), (x1, y1) = corners(0), corners(-1)
    return _Sides(x0, y0, x1 - x0, y1 - y0, 0.5 * la, 0.5 * wa)


def _area_of(a: Any, b: Any) -> Any:
    xp = array_module(a)
    x, y, dx, dy, half_x, half_y = _sides(a, b)
    first, last = _inside(xp, y, dy, half_y)
    low, high = (_clip(xp, t, first, last) for t in _inside(xp, x, dx, half_x))

    def value(t: Any) -> Any:
        return _clip(xp, x + t * dx, -half_x, half_x)

    # The integrand is constant before low and after high, and linear between them.
    ends = (low - first) * value(first) + (last - high) * value(last)
    parts = dy * (ends + 0.5 * (high - low) * (value(low) + value(high)))
    # Rounded terms may add up to an epsilon outside 0..area.
    (la, wa, _), (lb, wb, _) = sizes(a), sizes(b)
    area = _clip(xp, xp.sum(parts, axis=-1), xp.zeros((), a.dtype), xp.minimum(la * wa, lb * wb))
    return xp.where(_apart(a, b), xp.zeros((), a.dtype), area)


def _apart(a: Any, b: Any) -> Any:
    """Return for each pair of boxes whether the line of an edge separates them, ``bool[...]``."""
    xp = array_module(a)
    (la, wa, _), (lb, wb, _) = sizes(a), sizes(b)
    x, y, cos, sin = _seen_from(a, b)
    c, s = xp.abs(cos), xp.abs(sin)
    apart = 2 * xp.abs(x) >= la + lb * c + wb * s
    apart |= 2 * xp.abs(y) >= wa + lb * s + wb * c
    apart |= 2 * xp.abs(x * cos + y * sin) >= lb + la * c + wa * s
    return apart | (2 * xp.abs(y * cos - x * sin) >= wb + la * s + wa * c)


def _inside(xp: ModuleType, start: Any, step: Any, half: Any) -> tuple[Any, Any]:
    """Return both ends of the range of t in 0..1 with ``|start + t * step| <= half``.

    The ends are equal if there is no such t. A step below the rounding error counts as 0: the range
    is then all of 0..1, or empty. `xp` is NumPy or ``jax.numpy``.
    """
    zero, one = xp.zeros((), start.dtype), xp.ones((), start.dtype)
    flat = xp.abs(step) <= xp.finfo(start.dtype).eps * (half + xp.abs(start))
    slope = one / xp.where(flat, one, step)
    middle, reach = -start * slope, half * xp.abs(slope)
    low, high = _clip(xp, middle - reach, zero, one), _clip(xp, middle + reach, zero, one)
    is_in = xp.where(xp.abs(start) <= half, one, zero)
    return xp.where(flat, zero, low), xp.where(flat, is_in, high)


def _portion(sides: _Sides) -> tuple[jax.Array, jax.Array]:
    """Return the fraction of each edge inside the other box, and ``t`` in the middle of that part.

    Both results are ``[..., 4]``; for ``t`` see :class:`_Sides`. A part that lies on an edge of the
    other box counts half: there the area has a kink, and half gives the mean of the derivatives on
    both sides.
    """
    x, y, dx, dy, half_x, half_y = sides
    zero = jnp.zeros((), x.dtype)
    # Rotating and moving the corners rounds them. Sides closer than this count as on each other.
    size = half_x + half_y + sum(map(jnp.abs, (x, y, dx, dy)))
    close = 4 * jnp.finfo(x.dtype).eps * size
    low, high, on = zero, jnp.ones((), x.dtype), False
    for start, step, half in ((x, dx, half_x), (y, dy, half_y)):
        flat = jnp.abs(step) <= close
        here = flat & (jnp.abs(jnp.abs(start) - half) <= close)
        ends = jnp.where(here, zero, start), jnp.where(flat, zero, step)
        first, last = _inside(jnp, *ends, half)
        low, high, on = jnp.maximum(low, first), jnp.minimum(high, last), on | here
    part = jnp.maximum(high - low, zero)
    return jnp.where(on, 0.5 * part, part), 0.5 * (low + high)


_area_with_derivative = jax.custom_jvp(_area_of)


@_area_with_derivative.defjvp
def _area_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Return the area that two boxes share, seen from above, and its tangent.

    The tangent comes from the motion of the boxes' edges. Each edge adds the length of its part in
    the other box times its speed. Automatic differentiation of the sum over edges gives the same
    numbers, but XLA takes minutes to compile that program for a CPU.
    """
    a, b = primals
    sides = _sides(a, b)
    x, y, _, _ = _seen_from(a, b)
    part, t = _portion(sides)
    normal_x, normal_y = part * sides.dy, -part * sides.dx  # times the length of the part
    arm_x, arm_y = (sides.x + t * sides.dx) - x[..., None], (sides.y + t * sides.dy) - y[..., None]
    to_x, to_y = jnp.sum(normal_x, axis=-1), jnp.sum(normal_y, axis=-1)
    turn_b = jnp.sum(arm_x * normal_y - arm_y * normal_x, axis=-1)
    # Rotating a around its center equals rotating b around that center the other way.
    turn_a = -(turn_b + x * to_y - y * to_x)
    cos_a, sin_a = jnp.cos(a[..., 6]), jnp.sin(a[..., 6])
    move_x, move_y = to_x * cos_a - to_y * sin_a, to_x * sin_a + to_y * cos_a

    def rows(move_x: Any, move_y: Any, part: Any, boxes: Any, turn: Any) -> jax.Array:
        length, width, _ = sizes(boxes)
        grow_x = 0.5 * width * (part[..., 1] + part[..., 3])
        grow_y = 0.5 * length * (part[..., 0] + part[..., 2])
        zero = jnp.zeros(turn.shape, turn.dtype)
        return jnp.stack([move_x, move_y, zero, grow_x, grow_y, zero, turn], axis=-1)

    zero = jnp.zeros((), a.dtype)
    slope_a = rows(-move_x, -move_y, _portion(_sides(b, a))[0], a, turn_a)
    slope_b = rows(move_x, move_y, part, b, turn_b)
    tangent = jnp.sum(slope_a * tangents[0] + slope_b * tangents[1], axis=-1)
    return _area_of(a, b), jnp.where(_apart(a, b), zero, tangent)


def _area(a: Any, b: Any) -> Any:
    if array_module(a) is np:
        return _area_of(a, b)
    shape = jnp.broadcast_shapes(a.shape, b.shape)
    return _area_with_derivative(jnp.broadcast_to(a, shape), jnp.broadcast_to(b, shape))


def _clip(xp: ModuleType, value: Any, low: Any, high: Any) -> Any:
    return xp.minimum(xp.maximum(value, low), high)


def _ratio(xp: ModuleType, shared: Any, together: Any) -> Any:
    zero, one = xp.zeros((), shared.dtype), xp.ones((), shared.dtype)
    union = together - shared
    empty = union <= 0
    return xp.where(empty, zero, shared / xp.where(empty, one, union))


def _bev_iou(a: Any, b: Any) -> Any:
    (la, wa, _), (lb, wb, _) = sizes(a), sizes(b)
    return _ratio(array_module(a), _area(a, b), la * wa + lb * wb)


def _iou_3d(a: Any, b: Any) -> Any:
    xp = array_module(a)
    (la, wa, ha), (lb, wb, hb) = sizes(a), sizes(b)
    # Computed from the distance of the centers, because ends far from 0 would be rounded first.
    up = a[..., 2] - b[..., 2]
    tall = 0.5 * (ha + hb) - xp.maximum(up, -up)  # the maximum has derivative 0 at up = 0
    tall = _clip(xp, tall, xp.zeros((), a.dtype), xp.minimum(ha, hb))
    return _ratio(xp, _area(a, b) * tall, la * wa * ha + lb * wb * hb)


_compiled = {function: jax.jit(function) for function in (_area, _bev_iou, _iou_3d)}
