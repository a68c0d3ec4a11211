"""Poses: how points and boxes go from one frame of reference to another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from voxax.errors import InputError


@dataclass(frozen=True, eq=False)
class Pose:
    """A rotation [3, 3], then a translation [3] in meters, from a frame to another; in float64.

    Other shapes, numbers that are not finite and a matrix that is no rotation are errors.
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
        # Calibrations are written with 7 to 9 digits.
        if error > 1e-3 or np.linalg.det(self.rotation) < 0:
            raise InputError(
                f"{self.rotation.tolist()} is no rotation: its rows are not perpendicular vectors "
                "of length 1 in a right-handed order"
            )

    @classmethod
    def from_quaternion(cls, rotation: ArrayLike, translation: ArrayLike) -> Pose:
        """Make a pose of a quaternion [4], w first; it need not have length 1."""
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
        """Return the pose that leads back."""
        back = np.linalg.inv(self.rotation)
        return Pose(back, -back @ self.translation)

    def then(self, other: Pose) -> Pose:
        """Return this pose followed by another."""
        return Pose(
            other.rotation @ self.rotation, other.rotation @ self.translation + other.translation
        )

    def points(self, points: np.ndarray) -> np.ndarray:
        """Return points [..., 3] in the other frame."""
        return self.vectors(points) + self.translation

    def vectors(self, vectors: np.ndarray) -> np.ndarray:
        """Return directions [..., 3], or velocities, in the other frame."""
        return np.asarray(vectors, np.float64) @ self.rotation.T

    def boxes(self, boxes: np.ndarray) -> np.ndarray:
        """Return boxes [M, 7] or [M, 9] in the other frame.

        Boxes stand upright in both: of the turned axes only the direction seen from above counts.
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
