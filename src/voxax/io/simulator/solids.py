"""Labelled primitives that a scene is made of, and a builder that collects them."""

from __future__ import annotations

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
      centre: ``float64[n, 3]``, metres.
      half: ``float64[n, 3]``, half extents along the primitive's own axes, metres:
        half sides of a box, the two radii and half height of a cylinder, the semi-axes
        of an ellipsoid.
      yaw: ``float64[n]``, rotation about z, radians.
      label: ``int32[n]``, index into :data:`CLASS_NAMES`.
      reflectivity: ``float64[n]``, 0 to 1.
      penetration: ``float64[n]``, mean depth in metres that a ray enters before it is
        returned; 0 is an opaque surface. A ray that would go deeper than the primitive is
        thick passes through.
    """

    shape: np.ndarray
    centre: np.ndarray
    half: np.ndarray
    yaw: np.ndarray
    label: np.ndarray
    reflectivity: np.ndarray
    penetration: np.ndarray

    def __len__(self) -> int:
        return len(self.label)

    def take(self, rows: np.ndarray) -> Solids:
        """The primitives at ``rows`` (integer indices ``[m]`` or a mask ``bool[n]``)."""
        return Solids(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


class Pose(NamedTuple):
    """Where an object stands: metres, and radians about z."""

    x: float
    y: float
    z: float
    yaw: float


class SolidBuilder:
    """Collects primitives, object by object; :meth:`build` returns them as arrays."""

    def __init__(self) -> None:
        self._rows: list[tuple] = []

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
          offset: centre of the primitive in the object's frame, metres.
          half: half extents, metres.
          label: index into :data:`CLASS_NAMES`.
          reflectivity: 0 to 1.
          penetration: mean depth of a return inside the primitive, metres.
          turn: yaw of the primitive within the object, radians.
        """
        c, s = np.cos(pose.yaw), np.sin(pose.yaw)
        x = pose.x + c * offset[0] - s * offset[1]
        y = pose.y + s * offset[0] + c * offset[1]
        numbers = (x, y, pose.z + offset[2], *half, pose.yaw + turn, reflectivity, penetration)
        self._rows.append((shape, label, *numbers))

    def build(self) -> Solids:
        """All primitives so far, in the order they were added."""
        table = np.array(self._rows, np.float64).reshape(-1, 11)
        return Solids(
            shape=table[:, 0].astype(np.int8),
            centre=table[:, 2:5].copy(),
            half=table[:, 5:8].copy(),
            yaw=table[:, 8].copy(),
            label=table[:, 1].astype(np.int32),
            reflectivity=np.clip(table[:, 9], 0.0, 1.0),
            penetration=table[:, 10].copy(),
        )
