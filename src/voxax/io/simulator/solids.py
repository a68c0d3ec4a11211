"""Store and intersect the simulator's labeled primitives: boxes, vertical cylinders, ellipsoids.

Every primitive is a unit shape that is scaled, rotated about z and moved. To intersect rays with a
primitive, the rays are transformed into the frame of the unit shape. Their direction is not
normalized again in this frame, so distances along a ray remain meters. Vectors have their
components on the first axis, ``[3, n]``, so that each component is contiguous. Ray arrays are
float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

CLASS_NAMES = ("ground", "building", "vehicle", "pole", "vegetation", "person")
GROUND, BUILDING, VEHICLE, POLE, VEGETATION, PERSON = range(len(CLASS_NAMES))

SHAPE_NAMES = ("box", "cylinder", "ellipsoid")
BOX, CYLINDER, ELLIPSOID = range(len(SHAPE_NAMES))


@dataclass(frozen=True)
class Solids:
    """``n`` convex primitives of a scene, as parallel arrays; their axes are vertical.

    Attributes:
      shape: the index of the shape in :data:`SHAPE_NAMES`, ``int8[n]``.
      center: the center in meters, ``float64[n, 3]``.
      half: the half extents along the primitive's own axes in meters, ``float64[n, 3]``:
        half sides of a box, the two radii and half height of a cylinder, the semi-axes
        of an ellipsoid.
      yaw: the rotation about z in radians, ``float64[n]``.
      label: the index of the class in :data:`CLASS_NAMES`, ``int32[n]``.
      reflectivity: the reflectivity from 0 to 1, ``float64[n]``.
      penetration: the mean depth in meters at which rays are returned after they enter,
        ``float64[n]``; 0 for an opaque surface. The depth of each ray is random. A ray whose depth
        exceeds its path through the primitive passes through.
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
    """The position of an object in meters, and its rotation about z in radians."""

    x: float
    y: float
    z: float
    yaw: float


Triple = tuple[float, float, float]


class SolidBuilder:
    """A list of primitives: :meth:`add` appends one, :meth:`build` returns all as arrays."""

    def __init__(self) -> None:
        self._rows: list[tuple] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        pose: Pose,
        label: int,
        shape: int,
        offset: Triple,
        half: Triple,
        reflectivity: float,
        penetration: float = 0.0,
        turn: float = 0.0,
    ) -> None:
        """Add one primitive of an object at ``pose``.

        ``offset`` is the primitive's center and ``turn`` is its yaw, both in the object's frame.
        The other arguments are the attributes of :class:`Solids` for this primitive.
        """
        c, s = np.cos(pose.yaw), np.sin(pose.yaw)
        x = pose.x + c * offset[0] - s * offset[1]
        y = pose.y + s * offset[0] + c * offset[1]
        numbers = (x, y, pose.z + offset[2], *half, pose.yaw + turn, reflectivity, penetration)
        self._rows.append((shape, label, *numbers))

    def build(self) -> Solids:
        """Return all primitives in the order in which they were added."""
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


class PlacedObjects:
    """``m`` labeled objects; an object is a range of consecutive rows of a scene's :class:`Solids`.

    The argument `rows` has one tuple ``(label, pose, first, stop)`` for each object. The object
    consists of the primitives in rows ``first`` to ``stop - 1`` of the :class:`Solids`. Objects
    must be in ascending order of rows.
    """

    def __init__(self, rows: Sequence[tuple[int, Pose, int, int]]) -> None:
        self.label = np.array([label for label, *_ in rows], np.int32)
        self.pose = np.array([pose for _, pose, *_ in rows], np.float64).reshape(-1, 4)
        self._ends = [(first, stop) for *_, first, stop in rows]

    def __len__(self) -> int:
        return len(self.label)

    def owner(self, solids: Solids) -> np.ndarray:
        """Return the index of the object that each primitive belongs to, ``int64[n]``, or -1.

        ``solids`` has the ``n`` primitives of the scene. A primitive with -1 is in no object.
        """
        owner = np.full(len(solids), -1, np.int64)
        for index, (first, stop) in enumerate(self._ends):
            owner[first:stop] = index
        return owner

    def boxes(self, solids: Solids) -> np.ndarray:
        """Return the boxes of the objects, ``float64[m, 7]``: center, length, width, height, yaw.

        A box is the smallest one with the yaw of the object's pose that contains the object's
        primitives, except for their parts below the z of this pose.
        """
        if not len(self):
            return np.zeros((0, 7))
        owner = self.owner(solids)
        rows = np.flatnonzero(owner >= 0)
        some, pose = solids.take(rows), self.pose[owner[rows]]
        center = to_local((some.center - pose[:, :3]).T, pose[:, 3])
        turn = some.yaw - pose[:, 3]
        c, s = np.abs(np.cos(turn)), np.abs(np.sin(turn))
        x, y, z = some.half.T
        edged = some.shape == BOX
        along = np.where(edged, c * x + s * y, np.hypot(c * x, s * y))
        across = np.where(edged, s * x + c * y, np.hypot(s * x, c * y))
        reach = np.stack([along, across, z])
        starts = np.searchsorted(rows, [first for first, _ in self._ends])
        low = np.minimum.reduceat(center - reach, starts, axis=1)
        high = np.maximum.reduceat(center + reach, starts, axis=1)
        low[2] = np.maximum(low[2], 0.0)
        middle = 0.5 * (low + high)
        x, y, z, yaw = self.pose.T
        c, s = np.cos(yaw), np.sin(yaw)
        x = x + c * middle[0] - s * middle[1]
        y = y + s * middle[0] + c * middle[1]
        return np.stack([x, y, z + middle[2], *(high - low), yaw], axis=1)


Interval = tuple[np.ndarray, np.ndarray]
# Replaces a zero component of a direction. The distance to the slab is then huge, with the
# right sign. Without this, 0 * inf would give nan on the slab's surface.
TINY = 1e-12


def _slab(origin: np.ndarray, direction: np.ndarray) -> Interval:
    """Return the distances at which rays enter and leave the slab -1..1 of a coordinate axis.

    `origin` and `direction` are the rays' coordinates on this axis, [n], or on several axes,
    [axes, n]. The distances have the same shape.
    """
    inverse = 1.0 / np.where(np.abs(direction) < TINY, TINY, direction)
    to_center, reach = -origin * inverse, np.abs(inverse)
    return to_center - reach, to_center + reach


def _round(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Interval:
    """Return the least and the largest t with ``a t^2 + 2 b t + c <= 0``, where ``a >= 0``.

    These are the distances at which a ray enters and leaves a sphere or a cylinder. They are
    (inf, -inf) if there is no such t, and (-inf, inf) if ``a`` is 0 and ``c <= 0``.
    """
    flat = a < TINY * TINY
    a = np.where(flat, 1.0, a)
    disc = b * b - a * c
    root = np.sqrt(np.maximum(disc, 0.0))
    miss = (disc < 0.0) & ~flat | flat & (c > 0.0)
    near = np.where(flat, -np.inf, (-b - root) / a)
    far = np.where(flat, np.inf, (-b + root) / a)
    return np.where(miss, np.inf, near), np.where(miss, -np.inf, far)


def _box(origin: np.ndarray, direction: np.ndarray) -> Interval:
    near, far = _slab(origin, direction)
    return near.max(axis=0), far.min(axis=0)


def _cylinder(origin: np.ndarray, direction: np.ndarray) -> Interval:
    (x, y, z), (dx, dy, dz) = origin, direction
    near, far = _round(dx**2 + dy**2, x * dx + y * dy, x**2 + y**2 - 1.0)
    low, high = _slab(z, dz)
    return np.maximum(near, low), np.minimum(far, high)


def _ball(origin: np.ndarray, direction: np.ndarray) -> Interval:
    return _round(_dot(direction, direction), _dot(origin, direction), _dot(origin, origin) - 1.0)


UNIT_SHAPES: dict[int, Callable[[np.ndarray, np.ndarray], Interval]] = {
    BOX: _box,
    CYLINDER: _cylinder,
    ELLIPSOID: _ball,
}
"""Functions that intersect rays with a unit shape, by the index of the shape. A function takes
origins and directions ``[3, n]`` of rays, and returns ``(near, far)``, each ``[n]``: the distances
of entry and exit. A ray misses if ``near > far``. Unit shapes fill the cube ``[-1, 1]^3``."""


def _dot(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->j", first, second)


def to_local(vector: np.ndarray, yaw: np.ndarray) -> np.ndarray:
    """Convert vectors ``[3, n]`` from the world's axes to the axes of primitives, ``[3, n]``.

    ``yaw`` [n] has the primitives' rotations about z in radians. Vector ``i`` is rotated by
    ``-yaw[i]``.
    """
    c, s = np.cos(yaw), np.sin(yaw)
    x, y = vector[0], vector[1]
    return np.stack([c * x + s * y, c * y - s * x, np.broadcast_to(vector[2], np.shape(c * x))])


def entry(interval: Interval) -> np.ndarray:
    """Return the distance ``[n]`` at which each of ``n`` rays enters its primitive.

    `interval` is ``(near, far)``, each ``[n]``: the distances at which the line of a ray enters and
    leaves the primitive, with ``near > far`` if the line misses. The result is inf for a ray that
    misses, and for a ray that starts inside the primitive, because sensors are outside.
    """
    near, far = interval
    return np.where((near <= far) & (near > 0.0), near, np.inf)


def facing(solids: Solids, point: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Return the absolute cosines ``[n]`` between ``n`` rays and the surface normals at their hits.

    Ray ``i`` hits primitive ``i`` of ``solids``. ``point`` has the positions of the hits, and
    ``direction`` the rays' unit vectors, both ``[3, n]``.
    """
    half = solids.half.T
    local = to_local(point - solids.center.T, solids.yaw) / half
    size, side = np.abs(local), np.arange(3)[:, None]
    is_box, is_cylinder = solids.shape == BOX, solids.shape == CYLINDER
    on_cap = size[2] >= np.hypot(local[0], local[1])
    normal = np.where(is_box & (side != np.argmax(size, axis=0)), 0.0, local)
    normal = np.where(is_cylinder & ((side == 2) != on_cap), 0.0, normal) / half
    heading = to_local(direction, solids.yaw)
    length = np.sqrt(_dot(normal, normal))
    cosine = np.abs(_dot(normal, heading))
    return np.divide(cosine, length, out=np.ones_like(cosine), where=length > 0.0)
