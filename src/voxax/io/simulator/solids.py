"""Labeled convex primitives: boxes, vertical cylinders and ellipsoids, and where rays meet them.

Every primitive is a unit shape, stretched, turned about z and moved. Rays are taken
into the primitive's own frame instead, where three small functions do the geometry.
The direction is not normalized again there, so ray parameters stay meters of the
original ray. Vectors have their components on the first axis, ``[3, n]``, so that each
component is contiguous; all arrays are float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

CLASS_NAMES = ("ground", "building", "vehicle", "pole", "vegetation", "person")
GROUND, BUILDING, VEHICLE, POLE, VEGETATION, PERSON = range(len(CLASS_NAMES))

SHAPE_NAMES = ("box", "cylinder", "ellipsoid")
BOX, CYLINDER, ELLIPSOID = range(len(SHAPE_NAMES))


@dataclass(frozen=True)
class Solids:
    """Convex primitives with a vertical axis, ``n`` of them, as parallel arrays.

    Attributes:
      shape: ``int8[n]``, index into :data:`SHAPE_NAMES`.
      center: ``float64[n, 3]``, meters.
      half: ``float64[n, 3]``, half extents along the primitive's own axes, meters:
        half sides of a box, the two radii and half height of a cylinder, the semi-axes
        of an ellipsoid.
      yaw: ``float64[n]``, rotation about z, radians.
      label: ``int32[n]``, index into :data:`CLASS_NAMES`.
      reflectivity: ``float64[n]``, 0 to 1.
      penetration: ``float64[n]``, mean depth in meters that a ray enters before it is
        returned; 0 is an opaque surface. A ray that would go deeper than the primitive is
        thick passes through.
    """

    shape: np.ndarray
    center: np.ndarray
    half: np.ndarray
    yaw: np.ndarray
    label: np.ndarray
    reflectivity: np.ndarray
    penetration: np.ndarray

    def __len__(self) -> int:
        return len(self.label)

    def take(self, rows: np.ndarray) -> Solids:
        """Return the primitives at ``rows`` (integer indices ``[m]`` or a mask ``bool[n]``)."""
        return Solids(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


class Pose(NamedTuple):
    """Place of an object: meters, and radians about z."""

    x: float
    y: float
    z: float
    yaw: float


class SolidBuilder:
    """Collect primitives, object by object; :meth:`build` returns them as arrays."""

    def __init__(self) -> None:
        self._rows: list[tuple] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        shape: int,
        pose: Pose,
        offset: tuple[float, float, float],
        half: tuple[float, float, float],
        label: int,
        reflectivity: float,
        *,
        penetration: float = 0.0,
        turn: float = 0.0,
    ) -> None:
        """Add one primitive of an object that stands at ``pose``.

        Args:
          shape: index into :data:`SHAPE_NAMES`.
          pose: of the object.
          offset: center of the primitive in the object's frame, meters.
          half: half extents, meters.
          label: index into :data:`CLASS_NAMES`.
          reflectivity: 0 to 1.
          penetration: mean depth of a return inside the primitive, meters.
          turn: yaw of the primitive within the object, radians.
        """
        c, s = np.cos(pose.yaw), np.sin(pose.yaw)
        x = pose.x + c * offset[0] - s * offset[1]
        y = pose.y + s * offset[0] + c * offset[1]
        numbers = (x, y, pose.z + offset[2], *half, pose.yaw + turn, reflectivity, penetration)
        self._rows.append((shape, label, *numbers))

    def build(self) -> Solids:
        """Return all primitives so far, in the order they were added."""
        table = np.array(self._rows, np.float64).reshape(-1, 11)
        return Solids(
            shape=table[:, 0].astype(np.int8),
            center=table[:, 2:5].copy(),
            half=table[:, 5:8].copy(),
            yaw=table[:, 8].copy(),
            label=table[:, 1].astype(np.int32),
            reflectivity=np.clip(table[:, 9], 0.0, 1.0),
            penetration=table[:, 10].copy(),
        )


Interval = tuple[np.ndarray, np.ndarray]
# Stands for a zero direction component: the slab is then reached absurdly far away,
# which has the right sign, while 0 would give 0 * inf = nan on the slab's surface.
TINY = 1e-12


def unit_box(origin: np.ndarray, direction: np.ndarray) -> Interval:
    """Return the entry and exit of rays ``[3, n]`` through the cube ``[-1, 1]^3``.

    Returns ``(near, far)``, each ``[n]``; a ray misses where ``near > far``.
    """
    inverse = 1.0 / np.where(np.abs(direction) < TINY, TINY, direction)
    to_center = -origin * inverse
    reach = np.abs(inverse)
    near, far = to_center - reach, to_center + reach
    return (
        np.maximum(np.maximum(near[0], near[1]), near[2]),
        np.minimum(np.minimum(far[0], far[1]), far[2]),
    )


def _round_interval(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Interval:
    """Return the interval where ``a t^2 + 2 b t + c <= 0``, for ``a >= 0``."""
    flat = a < TINY * TINY
    a = np.where(flat, 1.0, a)
    disc = b * b - a * c
    root = np.sqrt(np.maximum(disc, 0.0))
    miss = (disc < 0.0) & ~flat | flat & (c > 0.0)
    near = np.where(flat, -np.inf, (-b - root) / a)
    far = np.where(flat, np.inf, (-b + root) / a)
    return np.where(miss, np.inf, near), np.where(miss, -np.inf, far)


def unit_cylinder(origin: np.ndarray, direction: np.ndarray) -> Interval:
    """Do as :func:`unit_box` for ``x^2 + y^2 <= 1, |z| <= 1`` with its caps."""
    near, far = _round_interval(
        direction[0] ** 2 + direction[1] ** 2,
        origin[0] * direction[0] + origin[1] * direction[1],
        origin[0] ** 2 + origin[1] ** 2 - 1.0,
    )
    inverse = 1.0 / np.where(np.abs(direction[2]) < TINY, TINY, direction[2])
    to_center, reach = -origin[2] * inverse, np.abs(inverse)
    return np.maximum(near, to_center - reach), np.minimum(far, to_center + reach)


def unit_sphere(origin: np.ndarray, direction: np.ndarray) -> Interval:
    """Do as :func:`unit_box` for the unit ball."""
    return _round_interval(
        np.einsum("ij,ij->j", direction, direction),
        np.einsum("ij,ij->j", origin, direction),
        np.einsum("ij,ij->j", origin, origin) - 1.0,
    )


UNIT_SHAPES: dict[int, Callable[[np.ndarray, np.ndarray], Interval]] = {
    BOX: unit_box,
    CYLINDER: unit_cylinder,
    ELLIPSOID: unit_sphere,
}


def to_local(vector: np.ndarray, yaw: np.ndarray) -> np.ndarray:
    """Turn vectors ``[3, n]`` by ``-yaw`` (``[n]``, radians) about z."""
    c, s = np.cos(yaw), np.sin(yaw)
    x, y = vector[0], vector[1]
    return np.stack([c * x + s * y, c * y - s * x, np.broadcast_to(vector[2], np.shape(c * x))])


def entry(interval: Interval) -> np.ndarray:
    """Return the distance ``[n]`` at which a ray enters, from its ``(near, far)``; inf for none.

    A ray that starts inside a primitive does not see it: sensors stand outside.
    """
    near, far = interval
    return np.where((near <= far) & (near > 0.0), near, np.inf)


def facing(solids: Solids, point: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Return ``[n]``: absolute cosines between ray ``i`` and the normal of primitive ``i``.

    ``point``, ``direction``: ``[3, n]``, a point on the surface and the ray's unit direction.
    """
    half = solids.half.T
    local = to_local(point - solids.center.T, solids.yaw) / half
    size = np.abs(local)
    side = np.arange(3)[:, None]
    is_box = solids.shape == BOX
    normal = np.where(is_box & (side != np.argmax(size, axis=0)), 0.0, local)
    is_cylinder = solids.shape == CYLINDER
    on_cap = size[2] >= np.hypot(local[0], local[1])
    normal = np.where(is_cylinder & ((side == 2) != on_cap), 0.0, normal)
    normal /= half
    heading = to_local(direction, solids.yaw)
    length = np.sqrt(np.einsum("ij,ij->j", normal, normal))
    cosine = np.abs(np.einsum("ij,ij->j", normal, heading))
    return np.divide(cosine, length, out=np.ones_like(cosine), where=length > 0.0)
