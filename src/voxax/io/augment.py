"""Random changes of a scene for training: pure functions of a cloud and a generator.

Each takes ``(cloud, rng)`` and options by name, and returns a new cloud whose attributes
and labels still belong to their points. Fix the options with :func:`functools.partial`
and chain the results with :func:`compose`::

    augment = compose([rotate_z, partial(scale, low=0.9, high=1.1), flip])
    cloud = augment(cloud, np.random.default_rng(seed))

The attribute ``normals`` [N, 3] turns with the points; other vectors do not.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from voxax.errors import InputError
from voxax.io.point_cloud import PointCloud

Transform = Callable[[PointCloud, np.random.Generator], PointCloud]

SENSOR = (0.0, 0.0, 0.0)


def compose(transforms: Sequence[Transform]) -> Transform:
    """Return one transform that applies `transforms` in order, with one generator.

    It can be pickled where they can, so worker processes can have it.
    """
    return _Composed(tuple(transforms))


@dataclass(frozen=True)
class _Composed:
    steps: tuple[Transform, ...]

    def __call__(self, cloud: PointCloud, rng: np.random.Generator) -> PointCloud:
        _check_generator(rng)
        for step in self.steps:
            cloud = step(cloud, rng)
        return cloud


def rotate_z(
    cloud: PointCloud,
    rng: np.random.Generator,
    *,
    max_angle: float = math.pi,
    center: ArrayLike = SENSOR,
) -> PointCloud:
    """Turn around a vertical axis by an angle from -max_angle to max_angle.

    Args:
        max_angle: radians; pi allows every direction.
        center: [3], a point on the axis; the sensor's place in a sweep.

    Raises:
        InputError: `max_angle` is negative or not finite.
    """
    _check_generator(rng)
    _check(max_angle >= 0 and math.isfinite(max_angle), "max_angle must be >= 0", max_angle)
    angle = rng.uniform(-max_angle, max_angle)
    cos, sin = math.cos(angle), math.sin(angle)
    matrix = np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])
    return _turned(cloud, matrix, center)


def flip(
    cloud: PointCloud,
    rng: np.random.Generator,
    *,
    axes: Sequence[int] = (0, 1),
    probability: float = 0.5,
    center: ArrayLike = SENSOR,
) -> PointCloud:
    """Mirror along each of `axes`, each with `probability`.

    Args:
        axes: 0 for x, 1 for y, 2 for z.
        probability: of each axis, 0 to 1.
        center: [3], a point that stays where it is.

    Raises:
        InputError: an axis or the probability is out of range.
    """
    _check_generator(rng)
    _check(all(axis in (0, 1, 2) for axis in axes), "axes must be among 0, 1, 2", tuple(axes))
    _check(0 <= probability <= 1, "probability must be within 0..1", probability)
    signs = np.ones(3)
    for axis in axes:
        if rng.random() < probability:
            signs[axis] = -1.0
    return _turned(cloud, np.diag(signs), center)


def scale(
    cloud: PointCloud,
    rng: np.random.Generator,
    *,
    low: float = 0.95,
    high: float = 1.05,
    center: ArrayLike = SENSOR,
) -> PointCloud:
    """Grow or shrink by one factor from `low` to `high`, the same for all axes.

    Args:
        low: smallest factor, above 0.
        high: largest factor.
        center: [3], a point that stays where it is.

    Raises:
        InputError: not 0 < low <= high.
    """
    _check_generator(rng)
    _check(0 < low <= high < math.inf, "low and high must satisfy 0 < low <= high", (low, high))
    middle = _center(center)
    factor = rng.uniform(low, high)
    return replace(cloud, positions=(cloud.positions - middle) * factor + middle)


def jitter(
    cloud: PointCloud, rng: np.random.Generator, *, sigma: float = 0.01, limit: float = 0.05
) -> PointCloud:
    """Move every point by Gaussian noise, independently in x, y and z.

    Args:
        sigma: standard deviation, in the units of the positions.
        limit: noise is clipped to -limit..limit.

    Raises:
        InputError: `sigma` or `limit` is negative or NaN.
    """
    _check_generator(rng)
    _check(0 <= sigma < math.inf and limit >= 0, "sigma and limit must be >= 0", (sigma, limit))
    noise = np.clip(rng.normal(0.0, sigma, cloud.positions.shape), -limit, limit)
    return replace(cloud, positions=cloud.positions + noise)


def crop(
    cloud: PointCloud,
    rng: np.random.Generator,
    *,
    size: ArrayLike | None = None,
    radius: float | None = None,
) -> PointCloud:
    """Keep the points in a box or a ball around a random point of the cloud.

    Args:
        cloud: the points. An empty cloud is returned as it is.
        rng: draws the middle point, which is always kept.
        size: edge lengths of the box, one number or [3]; ``inf`` leaves an axis whole.
        radius: of the ball, instead of `size`.

    Raises:
        InputError: not exactly one of `size` and `radius` is given, or it is not positive.
    """
    _check_generator(rng)
    if (size is None) == (radius is None):
        raise InputError(f"crop needs either size or radius, got size={size}, radius={radius}")
    edges = np.asarray(np.inf if size is None else size, np.float64)
    _check(edges.shape in ((), (3,)), "size must be one number or [3]", size)
    _check(bool((edges > 0).all()), "size must be positive", size)
    reach = math.inf if radius is None else radius
    _check(reach > 0, "radius must be positive", radius)
    if len(cloud) == 0:
        return cloud
    offset = cloud.positions - cloud.positions[rng.integers(len(cloud))]
    inside = (np.abs(offset) <= edges / 2).all(axis=1)
    return cloud.select(inside & (np.linalg.norm(offset, axis=1) <= reach))


def drop(cloud: PointCloud, rng: np.random.Generator, *, probability: float = 0.1) -> PointCloud:
    """Leave out each point with `probability`, independently; the order stays.

    Args:
        probability: 0 to 1.

    Raises:
        InputError: `probability` is out of range.
    """
    _check_generator(rng)
    _check(0 <= probability <= 1, "probability must be within 0..1", probability)
    return cloud.select(rng.random(len(cloud)) >= probability)


def _turned(cloud: PointCloud, matrix: np.ndarray, center: ArrayLike) -> PointCloud:
    """Return the cloud after an orthogonal matrix around `center`; normals turn with it."""
    middle = _center(center)
    attributes = dict(cloud.attributes)
    normals = attributes.get("normals")
    if normals is not None and normals.ndim == 2 and normals.shape[1] == 3:
        attributes["normals"] = (normals @ matrix.T).astype(normals.dtype)
    positions = (cloud.positions - middle) @ matrix.T + middle
    return replace(cloud, positions=positions, attributes=attributes)


def _center(center: ArrayLike) -> np.ndarray:
    middle = np.asarray(center, np.float64)
    _check(middle.shape == (3,), "center must have shape [3]", center)
    return middle


def _check(fine: bool, rule: str, value: object) -> None:
    if not fine:
        raise InputError(f"{rule}, got {value}")


def _check_generator(rng: object) -> None:
    if not isinstance(rng, np.random.Generator):
        raise InputError(
            f"rng must be a numpy.random.Generator, got {type(rng).__name__}: "
            "make one with numpy.random.default_rng(seed)"
        )
