"""A random street, furnished."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from voxax.errors import InputError
from voxax.io.simulator.layout import Layout
from voxax.io.simulator.solids import Solids
from voxax.io.simulator.terrain import Street, Terrain


@dataclass(frozen=True)
class StreetScene:
    """What a sensor at the origin, on a carriageway, looks at.

    Attributes:
      solids: labelled primitives.
      terrain: the ground, or None for none.
    """

    solids: Solids
    terrain: Terrain | None


def check_seed(seed: int) -> int:
    """The seed as a plain int.

    Raises:
      InputError: if it is not an integer of at least 0.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed must be an integer of at least 0, got {seed!r}")
    return int(seed)


def _streets(rng: np.random.Generator) -> tuple[Street, ...]:
    heading = rng.uniform(-np.pi, np.pi)
    half_width = rng.uniform(4.2, 6.8)
    # The sensor drives on the right, in the lane next to the middle.
    main = Street(
        heading=heading,
        start=0.0,
        offset=rng.uniform(1.3, 2.2),
        curvature=rng.normal(0.0, 1.0 / 200.0),
        half_width=half_width,
        pavement=rng.uniform(2.4, 5.0),
    )
    if rng.random() > 0.5:
        return (main,)
    away = rng.uniform(8.0, 40.0) * rng.choice([-1.0, 1.0])
    x, y, tangent = main.place(away, 0.0)
    turned = tangent + 0.5 * np.pi + rng.normal(0.0, 0.2)
    c, s = np.cos(turned), np.sin(turned)
    crossing = Street(
        heading=turned,
        start=-(c * x + s * y),
        offset=c * y - s * x,
        curvature=rng.normal(0.0, 1.0 / 300.0),
        half_width=rng.uniform(3.5, 6.0),
        pavement=rng.uniform(2.0, 4.0),
    )
    return (main, crossing)


def _terrain(rng: np.random.Generator, streets: tuple[Street, ...]) -> Terrain:
    waves = []
    for _ in range(3):
        number, way = 2.0 * np.pi / rng.uniform(28.0, 80.0), rng.uniform(-np.pi, np.pi)
        phase, amplitude = rng.uniform(-np.pi, np.pi), rng.uniform(0.02, 0.12)
        waves.append((number * np.cos(way), number * np.sin(way), phase, amplitude))
    return Terrain(
        slope=rng.normal(0.0, 0.015, 2),
        waves=np.array(waves),
        streets=streets,
        kerb=rng.uniform(0.08, 0.18),
        shade=np.clip(rng.normal([0.27, 0.36], 0.06), 0.1, 0.6),
    )


def street_scene(seed: int) -> StreetScene:
    """A street of about 180 m with what stands and moves on it, the sensor in its middle.

    The same seed gives the same scene. The origin lies on the carriageway below the
    sensor; z points up; all lengths are metres.

    Raises:
      InputError: for a seed that is not an integer of at least 0.
    """
    rng = np.random.default_rng([check_seed(seed), 0])
    streets = _streets(rng)
    layout = Layout(rng, _terrain(rng, streets))
    for i in range(len(streets)):
        layout.build_up(i)
    for i in range(len(streets)):
        layout.park(i)
        layout.drive(i)
    layout.furnish()
    layout.populate()
    return StreetScene(layout.solids.build(), layout.terrain)
