"""One revolution of a sensor in a scene."""

from __future__ import annotations

import numpy as np

from voxax.io.point_cloud import PointCloud
from voxax.io.simulator.raycast import nearest_hits
from voxax.io.simulator.scene import StreetScene, check_seed, street_scene
from voxax.io.simulator.sensor import Sensor, get_sensor
from voxax.io.simulator.shapes import facing
from voxax.io.simulator.solids import GROUND


def _reflect(
    scene: StreetScene,
    direction: np.ndarray,
    point: np.ndarray,
    solid: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Label ``int32[n]``, reflectivity and cosine (``float64[n]``) of hits ``[3, n]``.

    ``solid``: ``int64[n]``, the primitive that was hit, -1 for the ground.
    """
    label = np.full(len(solid), GROUND, np.int32)
    shade, cosine = np.zeros(len(solid)), np.ones(len(solid))
    on = np.flatnonzero(solid >= 0)
    some = scene.solids.take(solid[on])
    label[on], shade[on] = some.label, some.reflectivity
    # Leaves face anywhere; the hull of a crown says nothing about them.
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
    """A labelled LiDAR sweep of a random street.

    Args:
      seed: of the scene and of the sensor's noise; the same seed gives the same points.
      sensor: ``"lidar32"``, ``"lidar64"``, ``"lidar128"``, or a :class:`Sensor`.
      scene: what to look at; by default ``street_scene(seed)``.

    Returns:
      A point cloud ordered by ring, then azimuth. Positions are ``float64[N, 3]`` in metres,
      with the origin on the ground below the sensor and z up. Labels are ``int32[N]``, indices
      into ``CLASS_NAMES``. Attributes: ``intensity`` ``float32[N]``, 0 to 1, calibrated for
      range, and ``ring`` ``int32[N]``, 0 for the lowest beam.

    Raises:
      InputError: for an unknown sensor name, or a seed that is not an integer of at least 0.
    """
    sensor = get_sensor(sensor)
    seed = check_seed(seed)
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
    # Calibrated sensors undo most, not all, of the effect of the angle.
    intensity = shade * (0.75 + 0.25 * cosine) + rng.normal(0.0, 0.05, len(rays))
    kept = np.flatnonzero(~lost & (measured > 0.0) & (measured <= sensor.max_range))
    return PointCloud(
        positions=(origin[:, None] + measured[kept] * direction[:, kept]).T.copy(),
        attributes={
            "intensity": np.clip(intensity[kept], 0.0, 1.0).astype(np.float32),
            "ring": (rays[kept] // grid.steps).astype(np.int32),
        },
        labels=label[kept],
        source=f"simulated {sensor.name}, seed {seed}",
    )
