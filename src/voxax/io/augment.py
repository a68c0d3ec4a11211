"""Data augmentation of point clouds for training: rotations, noise, crops, changes of color.

Each function takes ``(cloud, rng)`` and keyword options, and returns a new cloud. Attributes and
labels stay with their points. Fix options with :func:`functools.partial`, and chain functions with
:func:`compose`::

    augment = compose([rotate_z, partial(scale, low=0.9, high=1.1), flip])
    cloud = augment(cloud, np.random.default_rng(seed))

N is the number of points. The attribute ``normals`` [N, 3] turns with the points; other vectors do
not. Changes of colors need the attribute ``rgb`` [N, 3]: unsigned integers over the whole range of
their dtype, or floats from 0 to 1. :func:`mix3d` and :func:`polarmix` join two clouds.

A function raises :class:`voxax.InputError` if an option is out of range, or if a cloud lacks data
that the function needs, such as colors or finite positions. Two clouds can be joined only if both
or neither of them have labels.

Sources: the defaults and formulas are those of Pointcept's recipes, whose elastic distortion
and colors come from Choy, Gwak and Savarese, "4D Spatio-Temporal ConvNets", CVPR 2019.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from voxax.errors import InputError
from voxax.io.point_cloud import PointCloud, joined

Transform = Callable[[PointCloud, np.random.Generator], PointCloud]

SENSOR = (0.0, 0.0, 0.0)
RGB = "rgb"
# Limit for a grid of noise: 200 MB of float32, a room of 500 m3 in cells of 3 cm.
_MOST_CELLS = 2**24


def compose(transforms: Sequence[Transform]) -> Transform:
    """Return one transform that applies all `transforms` in order, with the same generator.

    If all `transforms` can be pickled, the result can be pickled and sent to worker processes.

    Raises:
      InputError: one of `transforms` is no function.
    """
    steps = tuple(transforms)
    for step in steps:
        _check(callable(step), "transforms must be functions of (cloud, rng)", step)
    return _Composed(steps)


@dataclass(frozen=True)
class _Composed:
    steps: tuple[Transform, ...]

    def __call__(self, cloud: PointCloud, rng: np.random.Generator) -> PointCloud:
        _check_draw(rng)
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
    """Rotate the cloud around a vertical axis by a random angle in -max_angle..max_angle.

    Args:
      max_angle: greatest angle in radians; pi allows every direction.
      center: [3], a point on the axis; the default is the origin, where a sweep's sensor is.

    Raises:
      InputError: `max_angle` is negative or not finite.
    """
    _check_draw(rng)
    _check(max_angle >= 0 and math.isfinite(max_angle), "max_angle must be >= 0", max_angle)
    return transform(cloud, rotation_about_z(rng.uniform(-max_angle, max_angle)), center)


def flip(
    cloud: PointCloud,
    rng: np.random.Generator,
    *,
    axes: Sequence[int] = (0, 1),
    probability: float = 0.5,
    center: ArrayLike = SENSOR,
) -> PointCloud:
    """Mirror the cloud at random along each of `axes`, independently.

    Args:
      axes: coordinates whose sign may change: 0 for x, 1 for y, 2 for z.
      probability: probability of the mirroring along each axis, 0 to 1.
      center: [3], the fixed point of the mirroring.

    Raises:
      InputError: an axis or the probability is out of range.
    """
    _check_draw(rng, probability)
    _check(all(axis in (0, 1, 2) for axis in axes), "axes must be among 0, 1, 2", tuple(axes))
    signs = np.ones(3)
    for axis in axes:
        if rng.random() < probability:
            signs[axis] = -1.0
    return transform(cloud, np.diag(signs), center)


def scale(
    cloud: PointCloud,
    rng: np.random.Generator,
    *,
    low: float = 0.95,
    high: float = 1.05,
    center: ArrayLike = SENSOR,
) -> PointCloud:
    """Scale the cloud by one random factor from `low` to `high`, the same for all axes.

    Args:
      low: smallest factor, above 0.
      high: largest factor.
      center: [3], the fixed point of the scaling.

    Raises:
      InputError: ``0 < low <= high`` is false, or `high` is infinite.
    """
    _check_draw(rng)
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
      limit: the noise in each coordinate is clipped to -limit..limit.

    Raises:
      InputError: `sigma` or `limit` is negative or NaN, or `sigma` is infinite.
    """
    _check_draw(rng)
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
    """Keep only the points in a box or a ball around a random point of the cloud.

    Args:
      cloud: the points. An empty cloud is returned unchanged.
      rng: the generator that draws the middle point, which is always kept.
      size: edge lengths of the box, one number or [3]; ``inf`` means no limit along an axis.
      radius: radius of the ball; give it instead of `size`.

    Raises:
      InputError: `size` and `radius` are both None or both given, or the given one is not positive.
    """
    _check_draw(rng)
    if (size is None) == (radius is None):
        raise InputError(f"crop needs either size or radius, got size={size}, radius={radius}")
    edges = _as_floats(np.inf if size is None else size)
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
    """Remove each point independently with `probability`; the other points keep their order.

    Args:
      probability: probability that a point is removed, 0 to 1.

    Raises:
      InputError: `probability` is out of range.
    """
    _check_draw(rng, probability)
    return cloud.select(rng.random(len(cloud)) >= probability)


def tilt(
    cloud: PointCloud,
    rng: np.random.Generator,
    *,
    max_angle: float = math.pi / 64,
    probability: float = 0.5,
    center: ArrayLike | None = None,
) -> PointCloud:
    """Rotate the cloud around the x axis, then the y axis, by random angles.

    Args:
      max_angle: greatest angle in radians; angles are in -max_angle..max_angle.
      probability: probability of the rotation around each axis, 0 to 1.
      center: [3], the fixed point of both rotations; None is the middle of the cloud's extent.

    Raises:
      InputError: an argument is out of range.
    """
    _check_draw(rng, probability)
    _check(max_angle >= 0 and math.isfinite(max_angle), "max_angle must be >= 0", max_angle)
    for axis in (0, 1):
        if rng.random() < probability:
            angle = rng.uniform(-max_angle, max_angle)
            first, second = (axis + 1) % 3, (axis + 2) % 3
            matrix = np.eye(3)
            matrix[first, first] = matrix[second, second] = math.cos(angle)
            matrix[first, second], matrix[second, first] = -math.sin(angle), math.sin(angle)
            cloud = transform(cloud, matrix, _middle(cloud) if center is None else center)
    return cloud


def elastic_distortion(
    cloud: PointCloud,
    rng: np.random.Generator,
    *,
    pairs: Sequence[tuple[float, float]] = ((0.2, 0.4), (0.8, 1.6)),
    probability: float = 0.95,
) -> PointCloud:
    """Move points by smooth random noise, as if the scene were elastic; normals do not change.

    Normally distributed noise is drawn on a grid, averaged twice over 3 x 3 x 3 cells, and
    interpolated linearly between the cells.

    Args:
      pairs: one ``(granularity, magnitude)`` for each distortion, in order. The granularity is the
          edge length of a grid cell. The magnitude multiplies the averaged noise. Both have the
          unit of the positions.
      probability: probability that all distortions happen, 0 to 1; otherwise none happens.

    Raises:
      InputError: an argument is out of range, a position is not finite, or the grid over the cloud
          has too many cells.
    """
    _check_draw(rng, probability)
    for pair in pairs:
        sizes = _as_floats(pair)
        fine = sizes.shape == (2,) and 0 < sizes[0] < math.inf and 0 <= sizes[1] < math.inf
        _check(bool(fine), "pairs must be of a granularity > 0 and a magnitude >= 0", pair)
    if rng.random() >= probability or not len(cloud):
        return cloud
    positions = cloud.positions
    for granularity, magnitude in pairs:
        positions = positions + magnitude * _smooth_noise(positions, rng, granularity)
    return replace(cloud, positions=positions)


def auto_contrast(
    cloud: PointCloud,
    rng: np.random.Generator,
    *,
    probability: float = 0.2,
    blend: float | None = None,
) -> PointCloud:
    """Stretch each color channel linearly so that it spans the full range of colors.

    A channel with the same value at all points does not change.

    Args:
      probability: the probability of the change, 0 to 1.
      blend: weight of the stretched colors in the result, 0 to 1; None draws a random weight.

    Raises:
      InputError: the cloud has no colors, or an argument is out of range.
    """
    _check(blend is None or 0 <= blend <= 1, "blend must be within 0..1", blend)
    colors = _colors_to_change(cloud, rng, probability)
    if colors is None or not len(cloud):
        return cloud
    share = rng.random() if blend is None else blend
    low, extent = colors.min(axis=0), np.ptp(colors, axis=0)
    stretched = np.where(extent > 0, (colors - low) / np.where(extent > 0, extent, 1), colors)
    return _recolored(cloud, (1 - share) * colors + share * stretched)


def chromatic_translation(
    cloud: PointCloud,
    rng: np.random.Generator,
    *,
    ratio: float = 0.05,
    probability: float = 0.95,
) -> PointCloud:
    """Add one random offset [3] to the colors of all points, and clip the colors to their range.

    Args:
      ratio: greatest absolute value of the offset, as a fraction of the range of the colors.
      probability: the probability of the change, 0 to 1.

    Raises:
      InputError: the cloud has no colors, or an argument is out of range.
    """
    _check(0 <= ratio <= 1, "ratio must be within 0..1", ratio)
    colors = _colors_to_change(cloud, rng, probability)
    if colors is None:
        return cloud
    return _recolored(cloud, colors + rng.uniform(-ratio, ratio, 3))


def chromatic_jitter(
    cloud: PointCloud,
    rng: np.random.Generator,
    *,
    sigma: float = 0.005,
    probability: float = 0.95,
) -> PointCloud:
    """Add Gaussian noise to the colors, independently per point and channel; clip the sums.

    Args:
      sigma: standard deviation, as a fraction of the range of the colors.
      probability: the probability of the change, 0 to 1.

    Raises:
      InputError: the cloud has no colors, or an argument is out of range.
    """
    _check(0 <= sigma < math.inf, "sigma must be >= 0", sigma)
    colors = _colors_to_change(cloud, rng, probability)
    if colors is None:
        return cloud
    return _recolored(cloud, colors + rng.normal(0.0, sigma, colors.shape))


def drop_color(
    cloud: PointCloud,
    rng: np.random.Generator,
    *,
    ratio: float = 0.2,
    probability: float = 0.5,
) -> PointCloud:
    """Set the colors of randomly chosen points to 0.

    Args:
      ratio: fraction of the points whose colors become 0, 0 to 1.
      probability: the probability of the change, 0 to 1.

    Raises:
      InputError: the cloud has no colors, or an argument is out of range.
    """
    _check(0 <= ratio <= 1, "ratio must be within 0..1", ratio)
    colors = _colors_to_change(cloud, rng, probability)
    if colors is None:
        return cloud
    chosen = rng.choice(len(cloud), int(len(cloud) * ratio), replace=False)
    colors[chosen] = 0
    return _recolored(cloud, colors)


def dropout(
    cloud: PointCloud,
    rng: np.random.Generator,
    *,
    ratio: float = 0.2,
    probability: float = 0.5,
) -> PointCloud:
    """Remove a fixed fraction of the points, chosen at random; the others keep their order.

    Args:
      ratio: fraction of the points that are removed, 0 to 1.
      probability: the probability of the change, 0 to 1.

    Raises:
      InputError: an argument is out of range.
    """
    _check_draw(rng, probability)
    _check(0 <= ratio <= 1, "ratio must be within 0..1", ratio)
    if rng.random() >= probability:
        return cloud
    kept = rng.choice(len(cloud), int(len(cloud) * (1 - ratio)), replace=False)
    return cloud.select(np.sort(kept))


def mix3d(cloud: PointCloud, other: PointCloud, *, centered: bool = True) -> PointCloud:
    """Join two scenes into one: the points of `cloud`, then the points of `other`.

    The result has the attributes that both clouds have. Augment each cloud before this call.
    Source: Nekrasov et al., "Mix3D: Out-of-Context Data Augmentation for 3D Scenes", 3DV 2021.

    Args:
      cloud, other: the clouds to join.
      centered: whether to move `other` so that both clouds have the same middle of their extent in
          x and y, and the same height of the lowest point. Use True for rooms, and False for
          sweeps, whose sensors are already in the same place.

    Raises:
      InputError: only one cloud has labels, or an attribute has different dtypes or numbers of
          columns in the two clouds.
    """
    if centered and len(cloud) and len(other):
        offset = _middle(cloud) - _middle(other)
        offset[2] = cloud.positions[:, 2].min() - other.positions[:, 2].min()
        other = replace(other, positions=other.positions + offset)
    return joined([cloud, other])


def polarmix(
    cloud: PointCloud,
    other: PointCloud,
    rng: np.random.Generator,
    *,
    pasted: Sequence[int],
    probability: float = 0.5,
) -> PointCloud:
    """Mix two LiDAR sweeps: replace half of `cloud` by `other`, and add objects of `other`.

    With `probability`, a random vertical plane through the sensor is drawn. All points of `cloud`
    on one side of the plane are then replaced by the points of `other` on this side. In any case,
    the points of `other` whose labels are in `pasted` are added three times: rotated around z by 0,
    by a random angle up to 120 degrees, and by a random angle from 120 to 240 degrees. Source: Xiao
    et al., "PolarMix: A General Data Augmentation Technique for LiDAR Point Clouds", NeurIPS 2022.

    Args:
      cloud, other: labeled sweeps, with their sensors at the origin.
      pasted: labels of the objects to add, such as cars and persons.
      probability: the probability that one half of `cloud` is replaced, 0 to 1.

    Raises:
      InputError: a sweep has no labels, an attribute has different dtypes or numbers of columns in
          the two sweeps, or an argument is out of range.
    """
    _check_draw(rng, probability)
    for each in (cloud, other):
        if each.labels is None:
            raise InputError(f"{each.source or 'a cloud'} has no labels, which polarmix needs")
    assert other.labels is not None
    chosen = np.asarray(pasted)
    fine = chosen.ndim == 1 and (not chosen.size or chosen.dtype.kind in "iu")
    _check(fine, "pasted must be integers, labels of objects", pasted)
    objects = other.select(np.isin(other.labels, chosen))
    third = 2 * math.pi / 3
    turns = 0.0, rng.uniform(0, third), rng.uniform(third, 2 * third)
    if rng.random() < probability:
        begin = rng.uniform(-math.pi, 0)
        first, second = (_in_half(each.positions, begin) for each in (cloud, other))
        cloud = joined([cloud.select(~first), other.select(second)])
    return joined(
        [cloud, *(transform(objects, rotation_about_z(angle), SENSOR) for angle in turns)]
    )


def _in_half(positions: np.ndarray, begin: float) -> np.ndarray:
    """Return bool [N]: whether each position's azimuth is from `begin` to ``begin + pi`` radians.

    `begin` must be in -pi..0.
    """
    angle = np.arctan2(positions[:, 1], positions[:, 0])
    return (angle > begin) & (angle < begin + math.pi)


def rotation_about_z(angle: float) -> np.ndarray:
    """Return the matrix [3, 3] that rotates around z by `angle` radians, from x towards y."""
    cos, sin = math.cos(angle), math.sin(angle)
    return np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])


def _smooth_noise(
    positions: np.ndarray, rng: np.random.Generator, granularity: float
) -> np.ndarray:
    """Return a smooth random vector for each of N `positions` [N, 3], as an array [N, 3].

    The vectors are interpolated from random vectors on a grid, whose cells have edges of
    length `granularity`.
    """
    low = positions.min(axis=0)
    extent = positions.max(axis=0) - low
    _check(bool(np.isfinite(extent).all()), "positions must be finite, their extent is", extent)
    # Add one cell on each side, and one for the upper end.
    shape = np.floor(extent / granularity) + 3
    if shape.prod() > _MOST_CELLS:
        raise InputError(
            f"a cloud of extent {extent.round(2).tolist()} has {shape.prod():.3g} cells of "
            f"{granularity}, at most {_MOST_CELLS:,}: give a larger granularity, or crop it first"
        )
    nx, ny, nz = shape.astype(int).tolist()
    noise = rng.standard_normal((nx, ny, nz, 3), np.float32)
    for axis in (0, 1, 2) * 2:
        noise = _averaged(noise, axis)
    place = (positions - low) / granularity + 1
    first = np.minimum(place.astype(np.int64), [nx - 2, ny - 2, nz - 2])
    part = (place - first).T
    strides = ny * nz, nz, 1
    rows, base = noise.reshape(-1, 3), first @ np.array(strides)
    result = np.zeros_like(positions)
    for corner in np.ndindex(2, 2, 2):
        x, y, z = (p if end else 1 - p for p, end in zip(part, corner, strict=True))
        row = base + sum(end * stride for end, stride in zip(corner, strides, strict=True))
        result += (x * y * z)[:, None] * rows[row]
    return result


def _averaged(noise: np.ndarray, axis: int) -> np.ndarray:
    """Average each value with its two neighbors along `axis`; outside the array, values are 0."""
    total = noise.copy()
    ahead, behind = np.moveaxis(noise, axis, 0), np.moveaxis(total, axis, 0)
    behind[1:] += ahead[:-1]
    behind[:-1] += ahead[1:]
    return total / np.float32(3)


def _colors_to_change(
    cloud: PointCloud, rng: np.random.Generator, probability: float
) -> np.ndarray | None:
    """Return the cloud's colors, float64 [N, 3] from 0 to 1, or None if they do not change.

    A random draw decides: the colors are returned with `probability`.
    """
    _check_draw(rng, probability)
    colors = _colors(cloud)
    return colors if rng.random() < probability else None


def _colors(cloud: PointCloud) -> np.ndarray:
    """Return the cloud's colors as a new array, float64 [N, 3] from 0 to 1."""
    colors = cloud.attributes.get(RGB)
    if colors is None or colors.shape != (len(cloud), 3):
        found = "no attribute rgb" if colors is None else f"rgb of shape {list(colors.shape)}"
        raise InputError(
            f"{cloud.source or 'the cloud'} has {found}: changes of colors need rgb [N, 3]; leave "
            "them out for points without colors"
        )
    if colors.dtype.kind == "u":
        return colors / _full(colors)
    fine = colors.dtype.kind == "f" and ((colors >= 0) & (colors <= 1)).all()
    if not fine:
        raise InputError(
            f"{cloud.source or 'the cloud'} has rgb of {colors.dtype} from {colors.min(initial=0)} "
            f"to {colors.max(initial=0)}: give unsigned integers, or floats from 0 to 1"
        )
    return colors.astype(np.float64)


def _full(colors: np.ndarray) -> int:
    """Return the value of full intensity in `colors`: the dtype's maximum, or 1 for floats."""
    return int(np.iinfo(colors.dtype).max) if colors.dtype.kind == "u" else 1


def _recolored(cloud: PointCloud, colors: np.ndarray) -> PointCloud:
    """Return the cloud with other colors: `colors` [N, 3], clipped to 0..1.

    `colors` are scaled and converted to the dtype of the cloud's present colors.
    """
    before = cloud.attributes[RGB]
    values = np.clip(colors, 0, 1) * _full(before)
    values = np.rint(values) if before.dtype.kind == "u" else values
    return replace(cloud, attributes=cloud.attributes | {RGB: values.astype(before.dtype)})


def _middle(cloud: PointCloud) -> np.ndarray:
    """Return the middle [3] of the cloud's bounding box; the origin for an empty cloud."""
    positions = cloud.positions
    return (positions.min(axis=0) + positions.max(axis=0)) / 2 if len(cloud) else np.zeros(3)


def transform(cloud: PointCloud, matrix: ArrayLike, center: ArrayLike = SENSOR) -> PointCloud:
    """Return the cloud after multiplying its points and normals by an orthogonal matrix.

    Args:
      cloud: the cloud; its other attributes stay the same.
      matrix: [3, 3], for example of :func:`rotation_about_z`.
      center: [3], the point that does not move.

    Raises:
      InputError: `matrix` or `center` has another shape.
    """
    turn, middle = np.asarray(matrix, np.float64), _center(center)
    _check(turn.shape == (3, 3), "matrix must have shape [3, 3]", turn.shape)
    attributes = dict(cloud.attributes)
    normals = attributes.get("normals")
    if normals is not None and normals.ndim == 2 and normals.shape[1] == 3:
        attributes["normals"] = (normals @ turn.T).astype(normals.dtype)
    positions = (cloud.positions - middle) @ turn.T + middle
    return replace(cloud, positions=positions, attributes=attributes)


def _as_floats(values: ArrayLike) -> np.ndarray:
    """Return `values` as float64; an array without an axis of NaN if they are no numbers."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        return np.array(np.nan)


def _center(center: ArrayLike) -> np.ndarray:
    middle = _as_floats(center)
    _check(middle.shape == (3,), "center must have shape [3]", center)
    return middle


def _check(fine: bool, rule: str, value: object) -> None:
    if not fine:
        raise InputError(f"{rule}, got {value}")


def _check_draw(rng: object, probability: float = 0.0) -> None:
    if not isinstance(rng, np.random.Generator):
        raise InputError(
            f"rng must be a numpy.random.Generator, got {type(rng).__name__}: "
            "make one with numpy.random.default_rng(seed)"
        )
    _check(0 <= probability <= 1, "probability must be within 0..1", probability)
