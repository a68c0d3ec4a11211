"""The class `Pose`, a rigid transform of points and boxes from one frame to another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from voxax.errors import InputError


@dataclass(frozen=True, eq=False)
class Pose:
    """A rigid transform from one frame to another: ``rotation @ point + translation``.

    Attributes:
      rotation: a rotation matrix, float64 [3, 3].
      translation: the translation in meters, float64 [3].

    Raises:
      InputError: a shape is wrong, a number is not finite, or the matrix is no rotation.
    """

    rotation: np.ndarray
    translation: np.ndarray

    def __post_init__(self) -> None:
        for name, shape in (("rotation", (3, 3)), ("translation", (3,))):
            values = np.asarray(getattr(self, name), np.float64)
            if values.shape != shape or not np.isfinite(values).all():
                raise InputError(f"{name} must be finite numbers of shape {list(shape)}")
            object.__setattr__(self, name, values)
        error = np.abs(self.rotation @ self.rotation.T - np.eye(3)).max()
        # Numbers in calibration files have only 7 to 9 digits.
        if error > 1e-3 or np.linalg.det(self.rotation) < 0:
            raise InputError(
                f"{self.rotation.tolist()} is no rotation: its rows are not perpendicular vectors "
                "of length 1 in a right-handed order"
            )

    @classmethod
    def from_quaternion(cls, rotation: ArrayLike, translation: ArrayLike) -> Pose:
        """Create a pose from a quaternion [4] (w, x, y, z) of any norm, and a translation [3]."""
        quaternion = np.asarray(rotation, np.float64)
        length = np.linalg.norm(quaternion) if quaternion.shape == (4,) else 0.0
        if not 0 < length < np.inf:
            raise InputError(f"a rotation is a quaternion of four numbers w, x, y, z: {rotation}")
        w, x, y, z = quaternion / length
        matrix = [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
        return cls(np.asarray(matrix), np.asarray(translation, np.float64))

    def inverse(self) -> Pose:
        """Return the inverse transform, from the target frame back to the source frame."""
        back = np.linalg.inv(self.rotation)
        return Pose(back, -back @ self.translation)

    def then(self, other: Pose) -> Pose:
        """Return the transform that applies this pose first, then `other`."""
        return Pose(
            other.rotation @ self.rotation, other.rotation @ self.translation + other.translation
        )

    def points(self, points: np.ndarray) -> np.ndarray:
        """Transform points [..., 3] to the target frame: rotate, then translate."""
        return self.vectors(points) + self.translation

    def vectors(self, vectors: np.ndarray) -> np.ndarray:
        """Rotate directions or velocities [..., 3] to the target frame, without translation."""
        return np.asarray(vectors, np.float64) @ self.rotation.T

    def boxes(self, boxes: np.ndarray) -> np.ndarray:
        """Transform M boxes, [M, 7] or [M, 9], to the target frame; return the same shape.

        A box has its center, three sizes, yaw in radians, and optionally a velocity in x and y. The
        boxes are upright in both frames: any roll and pitch of the rotated boxes is dropped.
        """
        boxes = np.array(boxes, np.float64)
        yaw = boxes[:, 6]
        heading = self.vectors(np.stack([np.cos(yaw), np.sin(yaw), 0 * yaw], axis=1))
        boxes[:, :3] = self.points(boxes[:, :3])
        boxes[:, 6] = np.arctan2(heading[:, 1], heading[:, 0])
        if boxes.shape[1] == 9:
            flat = np.column_stack([boxes[:, 7:], 0 * yaw])
            boxes[:, 7:] = self.vectors(flat)[:, :2]
        return boxes
