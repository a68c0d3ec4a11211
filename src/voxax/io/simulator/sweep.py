"""Simulate one revolution of a spinning LiDAR in a scene: rays, nearest hits, measurement errors.

Testing every ray against every primitive would be thirty thousand times a thousand tests. All rays
start at one point, in a regular grid of angles (columns and rings). So only the rays in a window of
this grid can hit a primitive, and the corners of the primitive determine the window. The windows
are expanded to (primitive, ray) pairs, and only these pairs are tested: about two per ray.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from voxax._limits import Limit
from voxax.detection.objects import Objects
from voxax.errors import InputError, check_whole
from voxax.io.annotated import AnnotatedScan
from voxax.io.point_cloud import PointCloud
from voxax.io.simulator.solids import (
    CLASS_NAMES,
    GROUND,
    UNIT_SHAPES,
    PlacedObjects,
    Solids,
    entry,
    facing,
    to_local,
)
from voxax.io.simulator.street import StreetScene, check_seed, street_scene

Rng = np.random.Generator
RAYS = Limit(2**24, "each ray takes about 300 bytes of memory")
METERS = Limit(1e9, "no LiDAR reaches farther")
PROBABILITY = Limit(1.0, "it is a probability")


class RayGrid(NamedTuple):
    """The rays of one revolution of a LiDAR sensor.

    A step is a firing of all beams, and a ring is all rays of one beam. The index of a ray is
    ``ring * steps + step``.

    Attributes:
      direction: unit vectors, ``float64[3, rings * steps]``.
      elevation: the elevation angle of each ring in radians, ascending, ``float64[rings]``.
      steps: the number of rays in a ring.
      phase: the azimuth of step 0 in radians, from which each ring's first ray deviates by up to
        half a step.
    """

    direction: np.ndarray
    elevation: np.ndarray
    steps: int
    phase: float


@dataclass(frozen=True)
class Sensor:
    """The properties of a spinning LiDAR sensor to simulate.

    Attributes:
      name: the name of the sensor, which is a part of a sweep's ``source``.
      elevations: the elevation angles of the beams in degrees, ascending; ring 0 is the lowest.
      azimuth_steps: the number of firings of all beams per revolution; a revolution has at most
        2**24 rays.
      height: the height of the sensor above the ground in meters.
      max_range: the largest distance that is measured, in meters.
      range_noise: the standard deviation of the measured distance in meters.
      dropout: the probability that a ray returns nothing from a surface that is close and
        perpendicular to the ray.
      min_range: the smallest distance that is measured, in meters.

    Raises:
      InputError: a field is outside its range.
    """

    name: str
    elevations: tuple[float, ...]
    azimuth_steps: int
    height: float
    max_range: float
    range_noise: float
    dropout: float
    min_range: float = 0.8

    def __post_init__(self) -> None:
        check_whole("sensor azimuth_steps", self.azimuth_steps)
        for name in ("height", "min_range", "max_range", "range_noise"):
            METERS.check(f"sensor {name}", getattr(self, name), 0)
        PROBABILITY.check("sensor dropout", self.dropout, 0)
        try:
            angles = np.asarray(self.elevations, np.float64)
        except (TypeError, ValueError):
            angles = np.zeros(0)
        reach = self.min_range, self.max_range
        ascending = angles.ndim == 1 and len(angles) > 0 and (np.diff(angles) > 0).all()
        for is_fine, rule, given in (
            (ascending, "elevations must be ascending angles", self.elevations),
            ((np.abs(angles) < 90.0).all(), "elevations must lie within -90..90", self.elevations),
            (self.height > 0.0, "height must be positive", self.height),
            (reach[0] < reach[1], "needs min_range < max_range", reach),
            (self.range_noise < reach[1], "needs range_noise < max_range", self.range_noise),
        ):
            if not is_fine:
                raise InputError(f"sensor {rule}, got {given}")
        RAYS.check("sensor elevations times azimuth_steps", len(angles) * self.azimuth_steps)

    @property
    def rings(self) -> int:
        """The number of beams, one for each ring of points."""
        return len(self.elevations)

    def rays(self, rng: Rng) -> RayGrid:
        """Return the rays of one revolution; the start azimuth and each ring's offset are random.

        The offset rotates all rays of a ring by up to half a step, because the beams of real
        sensors also fire at slightly different azimuths. Without offsets, a thin pole could lie
        between two neighboring rays in every ring.
        """
        step = 2.0 * np.pi / self.azimuth_steps
        phase = float(rng.uniform(-np.pi, np.pi))
        shift = rng.uniform(-0.5, 0.5, (self.rings, 1))
        azimuth = phase + step * (np.arange(self.azimuth_steps) + shift)
        elevation = np.deg2rad(np.asarray(self.elevations, np.float64))
        level = np.cos(elevation)[:, None]
        rise = np.broadcast_to(np.sin(elevation)[:, None], azimuth.shape)
        direction = np.stack([level * np.cos(azimuth), level * np.sin(azimuth), rise])
        return RayGrid(direction.reshape(3, -1), elevation, self.azimuth_steps, phase)

    def dropout_probability(self, distance: np.ndarray, cosine: np.ndarray) -> np.ndarray:
        """Return the probability that a return is lost, for ``n`` returns, ``float64[n]``.

        It is higher for distant surfaces and for grazing rays. ``distance`` is in meters, and
        ``cosine`` is the cosine between ray and surface normal, both ``float64[n]``.
        """
        far = 0.3 * np.square(distance / self.max_range)
        grazed = 0.6 * np.exp(-cosine / 0.04)
        return 1.0 - (1.0 - self.dropout) * (1.0 - np.minimum(far, 1.0)) * (1.0 - grazed)


def _fan(low: float, high: float, beams: int) -> tuple[float, ...]:
    return tuple(float(angle) for angle in np.linspace(low, high, beams).round(4))


# Two blocks of 32 beams as in sensors on the roofs of cars; the upper block is denser.
_BLOCKS = _fan(-24.8, -8.8, 32) + _fan(-8.4, 2.0, 32)
SENSORS: dict[str, Sensor] = {
    "lidar32": Sensor("lidar32", _fan(-30.67, 10.67, 32), 900, 1.9, 80.0, 0.02, 0.04),
    "lidar64": Sensor("lidar64", _BLOCKS, 1024, 1.73, 100.0, 0.02, 0.04),
    "lidar128": Sensor("lidar128", _fan(-45.0, 45.0, 128), 1024, 1.8, 60.0, 0.015, 0.04),
}


# Default limit for annotated objects. Fewer points do not show the extent of an object.
MIN_POINTS = 5
# Number of pairs to test in one batch. Temporary arrays of this length stay in the cache.
PAIRS = 1 << 15
CORNERS = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]], np.float64)


def _windows(
    solids: Solids, origin: np.ndarray, grid: RayGrid, max_range: float
) -> tuple[np.ndarray, ...]:
    """Return, for each primitive that rays can hit, the window of rays that may hit it.

    A window is a range of rings (beams of the sensor) and a range of steps (firings of all beams)
    of `grid`. ``origin`` is the start of all rays, ``float64[3]``.

    Returns:
      ``(solid, ring, rings, step, steps)``, all ``int64[n]``: the row of the primitive, the first
      ring, the number of rings, the first step, and the number of steps. The first step may be
      negative, because a revolution is a circle.
    """
    center, half = solids.center - origin, solids.half
    start = -to_local(center.T, solids.yaw)
    beyond = np.maximum(np.abs(start[:2]) - half.T[:2], 0.0)
    nearest = np.hypot(beyond[0], beyond[1])
    farthest = np.hypot(center[:, 0], center[:, 1]) + np.hypot(half[:, 0], half[:, 1])

    # Columns: a convex outline that does not contain the origin spans less than a half turn.
    c, s = np.cos(solids.yaw)[:, None], np.sin(solids.yaw)[:, None]
    dx, dy = half[:, :1] * CORNERS[:, 0], half[:, 1:2] * CORNERS[:, 1]
    corner_x, corner_y = center[:, :1] + c * dx - s * dy, center[:, 1:2] + s * dx + c * dy
    middle = np.arctan2(center[:, 1], center[:, 0])
    turn = np.arctan2(corner_y, corner_x) - middle[:, None]
    turn = (turn + np.pi) % (2.0 * np.pi) - np.pi
    pitch = 2.0 * np.pi / grid.steps
    first = np.floor((middle + turn.min(axis=1) - grid.phase) / pitch - 0.5)
    last = np.ceil((middle + turn.max(axis=1) - grid.phase) / pitch + 0.5)
    around = nearest <= 0.0
    step = np.where(around, 0, first).astype(np.int64)
    steps = np.where(around, grid.steps, np.minimum(last - first + 1, grid.steps))

    # Rings: if the top is above the sensor, its largest elevation angle is at the nearest point,
    # otherwise at the farthest point. The opposite is true for the smallest angle of the bottom.
    bottom, top = center[:, 2] - half[:, 2], center[:, 2] + half[:, 2]
    highest = np.arctan2(top, np.where(top > 0.0, nearest, farthest))
    lowest = np.arctan2(bottom, np.where(bottom < 0.0, nearest, farthest))
    ring = np.searchsorted(grid.elevation, lowest - 1e-9, side="left")
    rings = np.searchsorted(grid.elevation, highest + 1e-9, side="right") - ring
    kept = np.flatnonzero((nearest < max_range) & (rings > 0))
    return kept, ring[kept], rings[kept], step[kept], steps[kept].astype(np.int64)


def _pairs(view: tuple[np.ndarray, ...], grid: RayGrid) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Expand `view`, the windows from :func:`_windows`, into pairs of a primitive and a ray.

    Yield batches ``(solid, ray)``: rows of primitives and indices of rays, both ``int64[m]``, with
    ``m <= PAIRS``.
    """
    solid, first_ring, rings, first_step, steps = view
    counts = rings * steps
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    for begin in range(0, total, PAIRS):
        pair = np.arange(begin, min(begin + PAIRS, total))
        window = np.searchsorted(ends, pair, side="right")
        ring, step = np.divmod(pair - (ends - counts)[window], steps[window])
        column = (first_step[window] + step) % grid.steps
        yield solid[window], (first_ring[window] + ring) * grid.steps + column


def nearest_hits(
    solids: Solids,
    origin: np.ndarray,
    grid: RayGrid,
    max_range: float,
    rng: Rng,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest primitive that each ray of ``grid`` hits within ``max_range`` meters.

    All rays start at ``origin``, ``float64[3]``. ``rng`` draws how deep rays enter primitives with
    a penetration, such as leaves.

    Returns:
      ``(distance, solid)``: the distance in meters, ``float64[rays]``, inf for no hit; and the row
      of the primitive in ``solids``, ``int64[rays]``, -1 for no hit.
    """
    distance = np.full(grid.direction.shape[1], np.inf)
    hit = np.full(len(distance), -1, np.int64)
    for shape, unit_shape in UNIT_SHAPES.items():
        rows = np.flatnonzero(solids.shape == shape)
        if not len(rows):
            continue
        some = solids.take(rows)
        # All rays have the same origin, so it is transformed only once for each primitive.
        # Rotating and scaling a direction takes six numbers per primitive.
        start = to_local((origin - some.center).T, some.yaw) / some.half.T
        c, s = np.cos(some.yaw), np.sin(some.yaw)
        scale = 1.0 / some.half.T
        xx, xy, yx, yy = c * scale[0], s * scale[0], -s * scale[1], c * scale[1]
        porous = some.penetration > 0.0
        for solid, ray in _pairs(_windows(some, origin, grid, max_range), grid):
            x, y, z = grid.direction[:, ray]
            along, across = xx[solid] * x + xy[solid] * y, yx[solid] * x + yy[solid] * y
            heading = np.stack([along, across, scale[2, solid] * z])
            near, far = unit_shape(start[:, solid], heading)
            reached = entry((near, far))
            deep = np.flatnonzero(porous[solid] & np.isfinite(reached))
            depth = rng.exponential(some.penetration[solid[deep]])
            inside = reached[deep] + depth
            reached[deep] = np.where(inside <= far[deep], inside, np.inf)
            reached[reached > max_range] = np.inf
            np.minimum.at(distance, ray, reached)
            won = np.flatnonzero(np.isfinite(reached) & (reached == distance[ray]))
            hit[ray[won]] = rows[solid[won]]
    return distance, hit


def _reflect(
    scene: StreetScene, direction: np.ndarray, point: np.ndarray, solid: np.ndarray, rng: Rng
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return labels ``int32[n]``, reflectivities and cosines ``float64[n]`` of ``n`` hits.

    The cosine is that of the angle between ray and surface normal; leaves have random cosines.
    ``direction`` has the unit vectors of the rays, and ``point`` the positions of the hits, both
    ``[3, n]``. ``solid`` (``int64[n]``) is the row of the primitive that a ray hits, or -1 for the
    ground.
    """
    label = np.full(len(solid), GROUND, np.int32)
    shade, cosine = np.zeros(len(solid)), np.ones(len(solid))
    on = np.flatnonzero(solid >= 0)
    some = scene.solids.take(solid[on])
    label[on], shade[on] = some.label, some.reflectivity
    # Leaves have random orientations, independent of the surface of the primitive.
    leaves = rng.uniform(0.2, 1.0, len(on))
    surface = facing(some, point[:, on], direction[:, on])
    cosine[on] = np.where(some.penetration > 0.0, leaves, surface)
    ground = np.flatnonzero(solid < 0)
    if scene.terrain is not None and len(ground):
        spot = point[:, ground]
        shade[ground] = scene.terrain.reflectivity(spot[0], spot[1])
        cosine[ground] = scene.terrain.facing(spot, direction[:, ground])
    return label, shade, cosine


def simulate_sweep(
    seed: int, *, sensor: str | Sensor = "lidar32", scene: StreetScene | None = None
) -> PointCloud:
    """Simulate a labeled LiDAR sweep of a random street.

    Args:
      seed: the random seed for the scene and the sensor's noise; the same seed gives the same
        points.
      sensor: a :class:`Sensor`, or a known name: ``"lidar32"``, ``"lidar64"``, ``"lidar128"``.
      scene: the surroundings of the sensor; by default ``street_scene(seed)``.

    Returns:
      A point cloud ordered by ring, then azimuth. Positions are ``float64[N, 3]`` in meters,
      with the origin on the ground below the sensor and z up. Labels are ``int32[N]``, indices
      into ``CLASS_NAMES``. Attributes: ``intensity`` ``float32[N]``, 0 to 1, calibrated for
      range, and ``ring`` ``int32[N]``, 0 for the lowest beam.

    Raises:
      InputError: the sensor's name is unknown, or the seed is not an integer of at least 0.
    """
    return _measure(seed, sensor, scene)[0]


def _measure(
    seed: int, sensor: str | Sensor, scene: StreetScene | None
) -> tuple[PointCloud, np.ndarray, StreetScene]:
    """Return the simulated sweep of N points, the primitive that each point is on, and the scene.

    A primitive is given as its row in the scene's ``solids``, ``int64[N]``; -1 is the ground. The
    arguments are those of :func:`simulate_sweep`. If `scene` is None, one is made from `seed`.
    """
    seed = check_seed(seed)
    if not isinstance(sensor, Sensor):
        if sensor not in SENSORS:
            known = ", ".join(SENSORS)
            raise InputError(f"unknown sensor {sensor!r}; known sensors: {known}; or pass a Sensor")
        sensor = SENSORS[sensor]
    scene = street_scene(seed) if scene is None else scene
    rng = np.random.default_rng([seed, 1])
    grid = sensor.rays(rng)
    origin = np.array([0.0, 0.0, sensor.height])
    distance, solid = nearest_hits(scene.solids, origin, grid, sensor.max_range, rng)
    if scene.terrain is not None:
        limit = np.minimum(distance, sensor.max_range)
        ground = scene.terrain.intersect(origin, grid.direction, limit)
        solid = np.where(ground < distance, -1, solid)
        distance = np.minimum(distance, ground)

    rays = np.flatnonzero((distance >= sensor.min_range) & (distance <= sensor.max_range))
    distance, direction = distance[rays], grid.direction[:, rays]
    point = origin[:, None] + distance * direction
    label, shade, cosine = _reflect(scene, direction, point, solid[rays], rng)

    lost = rng.random(len(rays)) < sensor.dropout_probability(distance, cosine)
    measured = distance + sensor.range_noise * rng.standard_normal(len(rays))
    # The calibration of real sensors removes most of the effect of the angle, but not all.
    intensity = shade * (0.75 + 0.25 * cosine) + rng.normal(0.0, 0.05, len(rays))
    kept = np.flatnonzero(~lost & (measured > 0.0) & (measured <= sensor.max_range))
    cloud = PointCloud(
        positions=(origin[:, None] + measured[kept] * direction[:, kept]).T.copy(),
        attributes={
            "intensity": np.clip(intensity[kept], 0.0, 1.0).astype(np.float32),
            "ring": (rays[kept] // grid.steps).astype(np.int32),
        },
        labels=label[kept],
        source=f"simulated {sensor.name}, seed {seed}",
    )
    return cloud, solid[rays][kept], scene


def simulate_objects(
    seed: int,
    *,
    sensor: str | Sensor = "lidar32",
    scene: StreetScene | None = None,
    min_points: int = MIN_POINTS,
) -> AnnotatedScan:
    """Simulate a LiDAR sweep with the boxes of its vehicles, poles and persons.

    The points are those of :func:`simulate_sweep`. Objects with fewer than ``min_points`` points
    are left out: other objects hide them, or they are too far away or between two beams.

    Args:
      seed, sensor, scene: see :func:`simulate_sweep`.
      min_points: the smallest number of points of an object to return.

    Returns:
      The scan with M objects, which have float64 boxes ``[M, 7]`` and classes from ``CLASS_NAMES``.
      A box is the smallest one in the object's direction that contains the object. ``z`` is 0 at
      the ground below the sensor. ``about`` is the number of points on each object,
      ``int64[M]``.

    Raises:
      InputError: as for :func:`simulate_sweep`, or ``min_points`` is negative.
    """
    if min_points < 0:
        raise InputError(f"min_points={min_points} must be at least 0")
    cloud, solid, scene = _measure(seed, sensor, scene)
    placed = scene.placed or PlacedObjects([])
    owner = placed.owner(scene.solids)[solid[solid >= 0]]
    counts = np.bincount(owner[owner >= 0], minlength=len(placed))
    seen = np.flatnonzero(counts >= min_points)
    names = np.asarray(CLASS_NAMES)[placed.label[seen]]
    return AnnotatedScan(cloud, Objects(placed.boxes(scene.solids)[seen], names), counts[seen])
