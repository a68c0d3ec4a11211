"""Boxes: their format, checks, corners, and the points inside.

A box is a row ``[x, y, z, length, width, height, yaw]``: the center of the box (not of its bottom)
and the sizes in meters, and the angle in radians. ``length`` is along the heading, and ``yaw``
turns from the x axis to the y axis around z. Two more columns can be the velocity ``[vx, vy]`` in
meters per second. Arrays are float32 or float64.

"NumPy in, NumPy out" in a docstring means: NumPy computes results for NumPy arrays, on the host and
in their dtype, and JAX computes results for JAX arrays, eagerly or under ``jax.jit``. Traced values
cannot be checked. Inside ``jit`` a negative size counts as zero, and a NaN stays a NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Bool, Float, Num
from voxax.errors import InputError
from voxax.geometry.call_checks import checked_operator

COLUMNS = ("x", "y", "z", "length", "width", "height", "yaw")


def array_module(*arrays: Any) -> ModuleType:
    """Return the module ``jax.numpy`` if one of the arrays is a JAX array, else ``numpy``."""
    return jnp if any(isinstance(array, jax.Array) for array in arrays) else np


def as_floats(*arrays: Any) -> list[Any]:
    """Return the arrays in a common dtype, float32 or float64, all as NumPy or all as JAX arrays.

    Args:
      arrays: numbers of any shape.

    Raises:
      InputError: an array does not have real numbers.
    """
    xp = array_module(*arrays)
    tables = [xp.asarray(array) for array in arrays]
    for table in tables:
        if table.dtype.kind in "cOSU":
            raise InputError(f"boxes and points are real numbers, got an array of {table.dtype}")
    # NumPy integers have 64 bits and become float64; JAX integers become float32.
    wide = any(t.dtype == np.float64 or (xp is np and t.dtype.kind in "iub") for t in tables)
    return [table.astype(np.float64 if wide else np.float32) for table in tables]


def as_boxes(boxes: Any, name: str = "boxes", valid: Any = None) -> Any:
    """Check boxes, and return them as floats; NumPy in, NumPy out.

    Args:
      boxes: ``[..., 7]``, or ``[..., 9]`` with the velocity.
      name: name of the boxes in messages.
      valid: ``bool[...]``, the boxes whose values are checked; None for all.

    Raises:
      InputError: a wrong shape or dtype; outside of ``jit`` also a value that is not finite, or a
        negative size. An unknown velocity may be NaN.
    """
    (table,) = as_floats(boxes)
    if table.ndim < 1 or table.shape[-1] not in (7, 9):
        raise InputError(
            f"{name} of shape {list(table.shape)}: give [..., 7] rows {list(COLUMNS)}, or [..., 9] "
            "that go on with [vx, vy]"
        )
    if not _compat.is_traced(table, valid):
        counts = np.broadcast_to(True if valid is None else np.asarray(valid), table.shape[:-1])
        _check_values(np.asarray(table), counts, name)
    return table


def _check_values(boxes: np.ndarray, counts: np.ndarray, name: str) -> None:
    core = boxes[..., :7]
    bad = ~np.isfinite(core)
    bad[..., 3:6] |= core[..., 3:6] < 0
    bad &= counts[..., None]
    if not bad.any():
        return
    *row, column = np.argwhere(bad)[0].tolist()
    value = core[(*row, column)]
    fix = (
        "leave such boxes out, or mark them in valid= where a function has it"
        if not np.isfinite(value)
        else "sizes are at least 0: exchange the ends of a box that is given by two corners"
    )
    raise InputError(
        f"{name}{row if row else ''} has {COLUMNS[column]}={value}, columns are "
        f"{list(COLUMNS)}; {fix}"
    )


def check_rows(name: str, array: Any, number: int, what: str) -> None:
    """Raise :class:`voxax.InputError` unless ``array`` has the shape ``[number]``.

    In the message ``name`` names the array, and ``what`` its rows, such as ``"boxes"``.
    """
    if tuple(np.shape(array)) != (number,):
        raise InputError(
            f"{name} of shape {list(np.shape(array))} for {number} {what}: give [{number}]"
        )


def as_classes(classes: Any) -> jax.Array:
    """Return integer classes ``int[N]`` as a JAX array.

    Raises:
      InputError: the classes are not integers.
    """
    array = classes if isinstance(classes, jax.Array) else np.asarray(classes)
    if not array.size:
        return jnp.zeros(array.shape, jnp.int32)
    if array.dtype.kind not in "iu":
        raise InputError(f"classes of {array.dtype}: give integers, negative for no box")
    return jnp.asarray(array)


def as_mask(name: str, array: Any, number: int, what: str) -> jax.Array:
    """Return ``array`` as a checked mask ``bool[number]``; None gives a mask that is all true.

    In the message ``name`` names the mask, and ``what`` its rows, such as ``"boxes"``.

    Raises:
      InputError: a wrong shape or dtype.
    """
    if array is None:
        return jnp.ones(number, bool)
    check_rows(name, array, number, what)
    mask = jnp.asarray(array)
    if mask.dtype != bool and mask.size:
        raise InputError(f"{name} of {mask.dtype}: give bool[{number}], true for {what} that count")
    return mask.astype(bool)


def check_table(boxes: Any, name: str = "boxes") -> None:
    """Raise :class:`voxax.InputError` unless ``boxes`` is ``[N, 7]`` or ``[N, 9]``.

    The message calls the boxes ``name``.
    """
    if boxes.ndim != 2:
        raise InputError(
            f"{name} of shape {list(boxes.shape)}: give one scene's [N, 7] or [N, 9]; map batches "
            "with jax.vmap"
        )


def sizes(boxes: Any) -> tuple[Any, Any, Any]:
    """Return length, width and height of boxes, each ``[...]``; negative sizes become 0."""
    xp = array_module(boxes)
    zero = xp.zeros((), boxes.dtype)
    length, width, height = (xp.maximum(boxes[..., column], zero) for column in (3, 4, 5))
    return length, width, height


def bev_corners(
    boxes: Num[Array | np.ndarray, "*shape box"],
) -> Float[Any, "*shape 4 2"]:
    """Return box corners seen from above, ``[..., 4, 2]``, counterclockwise from the front left.

    Args:
      boxes: ``[..., 7]`` or ``[..., 9]``; NumPy in, NumPy out.

    Raises:
      InputError: a wrong shape, or (unless traced) invalid boxes.
    """
    boxes = as_boxes(boxes)
    xp = array_module(boxes)
    length, width, _ = sizes(boxes)
    cos, sin = xp.cos(boxes[..., 6]), xp.sin(boxes[..., 6])
    corners = []
    for along, across in ((0.5, 0.5), (-0.5, 0.5), (-0.5, -0.5), (0.5, -0.5)):
        x = boxes[..., 0] + along * length * cos - across * width * sin
        y = boxes[..., 1] + along * length * sin + across * width * cos
        corners.append(xp.stack([x, y], axis=-1))
    return xp.stack(corners, axis=-2)


def corners(
    boxes: Num[Array | np.ndarray, "*shape box"],
) -> Float[Any, "*shape 8 3"]:
    """Return the corners of boxes, ``[..., 8, 3]``: four at the bottom, then four at the top.

    The order of four corners, the arguments and the errors are as in :func:`bev_corners`.
    """
    boxes = as_boxes(boxes)
    xp = array_module(boxes)
    flat = bev_corners(boxes)
    height = sizes(boxes)[2]
    levels = []
    for end in (-0.5, 0.5):
        z = (boxes[..., 2] + end * height)[..., None, None]
        levels.append(xp.concatenate([flat, xp.broadcast_to(z, (*flat.shape[:-1], 1))], axis=-1))
    return xp.concatenate(levels, axis=-2)


@checked_operator
def points_in_boxes(
    points: Num[Array | np.ndarray, "N columns"], boxes: Num[Array | np.ndarray, "M box"]
) -> Bool[Any, "N M"]:
    """Return for each point and box whether the point is inside or on a face, ``bool[N, M]``.

    Args:
      points: ``[N, 3]`` or more columns, of which the first three are x, y and z.
      boxes: ``[M, 7]`` or ``[M, 9]``. The result is NumPy if points and boxes are.

    Raises:
      InputError: a wrong shape, or (unless traced) invalid boxes.
    """
    boxes = as_boxes(boxes)
    check_table(boxes)
    points, boxes = as_floats(points, boxes)
    if points.ndim != 2 or points.shape[1] < 3:
        raise InputError(f"points of shape {list(points.shape)}: give [N, 3], or more columns")
    xp = array_module(points)
    cos, sin = xp.cos(boxes[:, 6])[None], xp.sin(boxes[:, 6])[None]
    x, y, z = (points[:, axis, None] - boxes[None, :, axis] for axis in range(3))
    half = [0.5 * size[None] for size in sizes(boxes)]
    inside = xp.abs(x * cos + y * sin) <= half[0]
    inside &= xp.abs(y * cos - x * sin) <= half[1]
    return inside & (xp.abs(z) <= half[2])


def wrap_angle(angle: Any) -> Any:
    """Return angles moved into ``[-pi, pi)`` by whole turns.

    Args:
      angle: ``[...]`` in radians; NumPy in, NumPy out.

    Raises:
      InputError: the angles are not real numbers.
    """
    (angle,) = as_floats(angle)
    turn = 2 * np.pi
    return (angle + np.pi) % turn - np.pi


def check_integers(name: str, values: Sequence[int], number: int) -> tuple[int, ...]:
    """Check that ``values`` are ``number`` integers, and return them as a tuple.

    Raises:
      InputError: there are fewer or more values, or one is not an integer. The message has `name`.
    """
    found = tuple(values)
    if len(found) != number or not all(isinstance(value, Integral) for value in found):
        raise InputError(f"{name}={values}: give {number} integers")
    return tuple(map(int, found))


def check_numbers(name: str, values: Sequence[float], number: int) -> tuple[float, ...]:
    """Check that ``values`` are ``number`` finite numbers, and return them as a tuple of floats.

    Raises:
      InputError: there are fewer or more values, or one is not finite. The message has `name`.
    """
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):  # text, or rows of different lengths
        array = np.full(0, np.nan)
    if array.shape != (number,) or not np.isfinite(array).all():
        raise InputError(f"{name}={values}: give {number} finite numbers")
    return tuple(array.tolist())
