"""Spinning sensors: where their beams point, and what they get wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from voxax.errors import InputError


class RayGrid(NamedTuple):
    """The rays of one revolution, ring by ring: ray ``ring * steps + step``.

    Attributes:
      direction: ``float64[3, rings * steps]``, unit vectors.
      elevation: ``float64[rings]``, radians, ascending.
      steps: rays per ring.
      phase: azimuth of step 0, radians.
      slack: steps by which a ray may lie off its place in the regular grid.
    """

    direction: np.ndarray
    elevation: np.ndarray
    steps: int
    phase: float
    slack: float


@dataclass(frozen=True)
class Sensor:
    """A spinning LiDAR.

    Attributes:
      name: goes into the ``source`` of a sweep.
      elevations: beam elevation angles in degrees, ascending; ring 0 is the lowest.
      azimuth_steps: firings per revolution.
      height: above the ground, metres.
      max_range: metres; nothing is returned from beyond.
      range_noise: standard deviation of the range, metres.
      dropout: probability that a ray returns nothing, for a close and frontal surface.
      min_range: metres; nothing is returned from before.

    Raises:
      InputError: for a field outside its range.
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
        angles = np.asarray(self.elevations, np.float64)
        if angles.ndim != 1 or not len(angles) or not (np.diff(angles) > 0).all():
            raise InputError(f"sensor elevations must be ascending angles, got {self.elevations}")
        if not (np.abs(angles) < 90.0).all():
            raise InputError(f"sensor elevations must lie within -90..90, got {self.elevations}")
        if self.azimuth_steps < 1:
            raise InputError(f"sensor azimuth_steps must be at least 1, got {self.azimuth_steps}")
        if not 0.0 <= self.dropout <= 1.0:
            raise InputError(f"sensor dropout must lie in 0..1, got {self.dropout}")
        if self.range_noise < 0.0:
            raise InputError(f"sensor range_noise must not be negative, got {self.range_noise}")
        if not 0.0 <= self.min_range < self.max_range:
            raise InputError(
                f"sensor needs 0 <= min_range < max_range, got {self.min_range}, {self.max_range}"
            )

    @property
    def rings(self) -> int:
        """Number of beams."""
        return len(self.elevations)

    def rays(self, rng: np.random.Generator) -> RayGrid:
        """Rays of one revolution; the start azimuth and each ring's offset are random.

        Rings that fire at slightly different azimuths, as real ones do, keep a thin pole
        from falling between the same two columns of every ring.
        """
        step = 2.0 * np.pi / self.azimuth_steps
        phase = float(rng.uniform(-np.pi, np.pi))
        shift = rng.uniform(-0.5, 0.5, (self.rings, 1))
        azimuth = phase + step * (np.arange(self.azimuth_steps) + shift)
        elevation = np.deg2rad(np.asarray(self.elevations, np.float64))
        level = np.cos(elevation)[:, None]
        rise = np.broadcast_to(np.sin(elevation)[:, None], azimuth.shape)
        direction = np.stack([level * np.cos(azimuth), level * np.sin(azimuth), rise])
        return RayGrid(direction.reshape(3, -1), elevation, self.azimuth_steps, phase, 0.5)

    def dropout_probability(self, distance: np.ndarray, cosine: np.ndarray) -> np.ndarray:
        """Chance ``[n]`` that a return is lost: more for far and for grazed surfaces.

        ``distance``: ``float64[n]``, metres. ``cosine``: ``float64[n]`` between ray and normal.
        """
        far = 0.3 * np.square(distance / self.max_range)
        grazed = 0.6 * np.exp(-cosine / 0.04)
        return 1.0 - (1.0 - self.dropout) * (1.0 - np.minimum(far, 1.0)) * (1.0 - grazed)


def _fan(low: float, high: float, beams: int) -> tuple[float, ...]:
    return tuple(float(angle) for angle in np.linspace(low, high, beams).round(4))


_LIDAR32 = Sensor("lidar32", _fan(-30.67, 10.67, 32), 900, 1.9, 80.0, 0.02, 0.04)
SENSORS: dict[str, Sensor] = {
    "lidar32": _LIDAR32,
    # Two blocks of 32, the upper one denser, as on roof sensors made for the road ahead.
    "lidar64": replace(
        _LIDAR32,
        name="lidar64",
        elevations=_fan(-24.8, -8.8, 32) + _fan(-8.4, 2.0, 32),
        azimuth_steps=1024,
        height=1.73,
        max_range=100.0,
    ),
    "lidar128": replace(
        _LIDAR32,
        name="lidar128",
        elevations=_fan(-45.0, 45.0, 128),
        azimuth_steps=1024,
        height=1.8,
        max_range=60.0,
        range_noise=0.015,
    ),
}


def get_sensor(sensor: str | Sensor) -> Sensor:
    """The sensor of that name, or the sensor itself.

    Raises:
      InputError: for an unknown name; the message lists the known ones.
    """
    if isinstance(sensor, Sensor):
        return sensor
    if sensor not in SENSORS:
        known = ", ".join(SENSORS)
        raise InputError(f"unknown sensor {sensor!r}; known sensors: {known}; or pass a Sensor")
    return SENSORS[sensor]
