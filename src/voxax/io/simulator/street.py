"""A random street: the ground, and everything that stands on it without overlapping.

The ground is a tilted, gently undulating surface with kerbs along the streets.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from voxax.errors import InputError
from voxax.io.simulator import objects
from voxax.io.simulator.solids import (
    BUILDING,
    PERSON,
    POLE,
    VEGETATION,
    VEHICLE,
    PlacedObjects,
    Pose,
    SolidBuilder,
    Solids,
)

# Samples along the part of a ray where it can meet the ground, then halvings of the
# first gap that has a crossing. A ray that skims 40 m out has such a part of about 13 m,
# so the samples are 1 m apart there, and the halvings end at a millimeter.
SAMPLES = 12
HALVINGS = 10
# A kerb is a steep ramp, this wide in meters, so that the surface has no jumps.
KERB_RAMP = 0.06

Coordinate = np.ndarray | float
Place = tuple[float, float, float]  # x and y in meters, and the yaw in radians


@dataclass(frozen=True)
class Street:
    """A parabolic strip: ``v = offset + curvature / 2 * u^2`` in axes turned by ``heading``.

    Attributes:
      heading: direction of the street at ``u = 0``, radians.
      start: ``u`` of the world origin, meters.
      offset: ``v`` of the center line at ``u = 0``, with the world origin at ``v = 0``, meters.
      curvature: 1/m.
      half_width: of the carriageway, meters.
      pavement: width of each pavement, meters.
    """

    heading: float
    start: float
    offset: float
    curvature: float
    half_width: float
    pavement: float

    def locate(self, x: Coordinate, y: Coordinate) -> tuple[np.ndarray, np.ndarray]:
        """Return ``(along, across)`` in meters; across is positive on the left of the street."""
        c, s = np.cos(self.heading), np.sin(self.heading)
        u, v = c * x + s * y + self.start, c * y - s * x
        slope = self.curvature * u
        across = (v - self.offset - 0.5 * slope * u) / np.sqrt(1.0 + slope * slope)
        return u, across

    def place(self, along: float, across: float) -> Place:
        """Return world ``(x, y, heading)`` of a place on the street; inverse of :meth:`locate`.

        Exact on the center line, and within a few percent of ``across`` off it.
        """
        slope = self.curvature * along
        norm = np.sqrt(1.0 + slope * slope)
        u = along - across * slope / norm - self.start
        v = self.offset + 0.5 * slope * along + across / norm
        c, s = np.cos(self.heading), np.sin(self.heading)
        return c * u - s * v, s * u + c * v, self.heading + np.arctan(slope)


@dataclass(frozen=True)
class Terrain:
    """Ground height ``z(x, y)``, zero at the origin if that is on a carriageway.

    Attributes:
      slope: ``float64[2]``, rise per meter along x and y.
      waves: ``float64[k, 4]``, rows of (wave number x, wave number y in rad/m, phase in
        radians, amplitude in meters).
      streets: carriageways, lower than the rest by ``kerb``.
      kerb: meters.
      shade: ``float64[2]``, reflectivity of carriageway and of the rest.
    """

    slope: np.ndarray
    waves: np.ndarray
    streets: tuple[Street, ...]
    kerb: float
    shade: np.ndarray

    def outside(self, x: Coordinate, y: Coordinate) -> np.ndarray:
        """Meters from the nearest carriageway's edge, negative on it; inf without streets."""
        beyond = np.full(np.broadcast(x, y).shape, np.inf)
        for street in self.streets:
            beyond = np.minimum(beyond, np.abs(street.locate(x, y)[1]) - street.half_width)
        return beyond

    def _raised(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return 0 on carriageways, 1 beyond the kerb."""
        return np.clip(self.outside(x, y) / KERB_RAMP, 0.0, 1.0)

    def _relief(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Height above the tilted plane."""
        z = self.kerb * self._raised(x, y)
        for kx, ky, phase, amplitude in self.waves:
            z += amplitude * (np.sin(kx * x + ky * y + phase) - np.sin(phase))
        return z

    def height(self, x: Coordinate, y: Coordinate) -> np.ndarray:
        """Ground height in meters at world positions of any one shape."""
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        return self.slope[0] * x + self.slope[1] * y + self._relief(x, y)

    def reflectivity(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Reflectivity of the ground, patchy, 0 to 1."""
        raised = self._raised(x, y)
        patches = 0.06 * np.sin(0.9 * x + np.sin(0.7 * y)) + 0.05 * np.sin(2.3 * y - 1.7 * x)
        return self.shade[0] + raised * (self.shade[1] - self.shade[0]) + patches

    def intersect(self, origin: np.ndarray, direction: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return the first distance at which rays meet the ground.

        Args:
          origin: ``float64[3]``, meters, higher above the tilted plane than any relief.
          direction: ``float64[3, n]``, unit vectors.
          limit: ``float64[n]``, meters; the search stops there.

        Returns:
          ``float64[n]``, meters, inf where there is none before the limit.
        """
        # The relief lies between two planes: only the part of a ray between them matters.
        swing = np.abs(self.waves[:, 3]).sum()
        rest = -np.sum(self.waves[:, 3] * np.sin(self.waves[:, 2]))
        above = origin[2] - self.slope[0] * origin[0] - self.slope[1] * origin[1]
        fall = self.slope[0] * direction[0] + self.slope[1] * direction[1] - direction[2]
        distance = np.full(direction.shape[1], np.inf)
        margin = 1e-3
        falling = np.flatnonzero(fall > 0.0)
        begin = (above - rest - swing - self.kerb - margin) / fall[falling]
        inside = begin < limit[falling]
        rows, begin = falling[inside], begin[inside]
        end = np.minimum((above - rest + swing + margin) / fall[rows], limit[rows])
        dx, dy, drop = direction[0, rows], direction[1, rows], fall[rows]

        def clearance(t: np.ndarray) -> np.ndarray:
            relief = self._relief(origin[0] + t * dx, origin[1] + t * dy)
            return above - t * drop - relief

        low, high = begin.copy(), np.full(len(rows), np.inf)
        gap = (end - begin) / SAMPLES
        for i in range(1, SAMPLES + 1):
            t = begin + i * gap
            still = np.isinf(high)
            below = clearance(t) <= 0.0
            high = np.where(still & below, t, high)
            low = np.where(still & ~below, t, low)
        found = np.isfinite(high)
        high = np.where(found, high, low)
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            below = clearance(middle) <= 0.0
            low, high = np.where(below, low, middle), np.where(below, middle, high)
        distance[rows[found]] = 0.5 * (low + high)[found]
        return distance

    def facing(self, point: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """Return ``[n]``: absolute cosines between rays and the ground's normal at ``point``."""
        step = 0.02
        x, y = point[0], point[1]
        here = self.height(x, y)
        gx = (self.height(x + step, y) - here) / step
        gy = (self.height(x, y + step) - here) / step
        cosine = np.abs(direction[2] - gx * direction[0] - gy * direction[1])
        return cosine / np.sqrt(1.0 + gx * gx + gy * gy)


# The class of what stands alone; vehicles, poles and persons have boxes.
STANDING = {
    objects.pole: POLE,
    objects.person: PERSON,
    objects.tree: VEGETATION,
    objects.bush: VEGETATION,
}
BOXED = (VEHICLE, POLE, PERSON)
# Half length of the built-up part of each street, meters.
REACH = 92.0
# Small objects keep this far from the sensor, and "near" ones come no farther than this.
CLEAR, NEAR = 3.0, 30.0
SIDES = (-1.0, 1.0)


class Layout:
    """Furnish the streets of a terrain; :attr:`solids` collects the primitives."""

    def __init__(self, rng: np.random.Generator, terrain: Terrain) -> None:
        self.rng = rng
        self.terrain = terrain
        self.solids = SolidBuilder()
        self.boxed: list[tuple[int, Pose, int, int]] = []
        # Rectangles of the ground that are occupied: center, half length and width, cos and sin.
        self._occupied = np.zeros((0, 6))

    def _put(self, label: int, draw: Callable[..., None], place: Place, *told) -> None:
        """Draw an object at a place."""
        x, y, yaw = place
        pose, first = Pose(x, y, float(self.terrain.height(x, y)), yaw), len(self.solids)
        draw(functools.partial(self.solids.add, pose, label), self.rng, *told)
        if label in BOXED:
            self.boxed.append((label, pose, first, len(self.solids)))

    def _occupy(self, place: Place, half_length: float, half_width: float) -> None:
        x, y, yaw = place
        row = (x, y, half_length, half_width, np.cos(yaw), np.sin(yaw))
        self._occupied = np.vstack([self._occupied, row])

    def _is_free(self, x: float, y: float, radius: float) -> bool:
        """Return True if a disc touches no rectangle that is occupied."""
        own_x, own_y, half_length, half_width, c, s = self._occupied.T
        dx, dy = x - own_x, y - own_y
        along = np.abs(c * dx + s * dy) - half_length
        across = np.abs(c * dy - s * dx) - half_width
        return not bool(np.any((along < radius) & (across < radius)))

    def _is_off_road(self, index: int, place: Place, hx: float, hy: float) -> bool:
        """Return True if a rectangle is off all carriageways and the other streets' pavements."""
        x, y, yaw = place
        u, v = np.meshgrid(np.linspace(-hx, hx, 5), np.linspace(-hy, hy, 3))
        c, s = np.cos(yaw), np.sin(yaw)
        px, py = x + c * u - s * v, y + s * u + c * v
        for i, street in enumerate(self.terrain.streets):
            wide = street.half_width + (street.pavement if i != index else 0.5)
            if np.any(np.abs(street.locate(px, py)[1]) < wide):
                return False
        return True

    def build_up(self, index: int) -> None:
        """Place houses with gaps and gardens, or a park, on both sides of street ``index``."""
        rng = self.rng
        for side in SIDES:
            setback = rng.choice([0.0, rng.uniform(1.0, 3.0), rng.uniform(3.0, 7.0)])
            storeys = rng.uniform(1.5, 4.5)
            green = 0.7 if rng.random() < 0.15 else 0.18
            along = -REACH + rng.uniform(0.0, 8.0)
            while along < REACH:
                width = rng.uniform(6.0, 20.0)
                if rng.random() < green:
                    self._garden(index, side, along, width, 12.0)
                else:
                    self._plot(index, side, along, width, setback, storeys)
                along += width + (rng.uniform(0.8, 7.0) if rng.random() < 0.45 else 0.02)

    def _plot(
        self, index: int, side: float, along: float, width: float, setback: float, storeys: float
    ) -> None:
        rng, street = self.rng, self.terrain.streets[index]
        depth = rng.uniform(7.0, 13.0)
        height = 3.0 * max(1.0, storeys + rng.normal(0.0, 0.8)) + rng.uniform(0.3, 1.5)
        room = max(setback + rng.normal(0.0, 0.6), 0.0) if setback > 0.0 else 0.0
        front = street.half_width + street.pavement + room
        x, y, yaw = street.place(along + 0.5 * width, side * (front + 0.5 * depth))
        # The front, at -y, must face the street.
        yaw += (0.0 if side > 0.0 else np.pi) + rng.normal(0.0, 0.02)
        place = (x, y, yaw)
        if not self._is_off_road(index, place, 0.5 * width, 0.5 * depth):
            return
        self._put(BUILDING, objects.building, place, (width, depth, height), room)
        self._occupy(place, 0.5 * width, 0.5 * depth)
        if room > 1.8:
            self._garden(index, side, along, width, room)

    def _garden(self, index: int, side: float, along: float, width: float, room: float) -> None:
        """Place a strip behind the pavement: a border along it, trees and bushes behind."""
        rng, street = self.rng, self.terrain.streets[index]
        edge = street.half_width + street.pavement + 0.5
        border = rng.choice(["hedge", "wall", "open"], p=[0.45, 0.25, 0.30])
        place = street.place(along + 0.5 * width, side * edge)
        length = width * rng.uniform(0.55, 0.9)
        if border != "open" and self._is_off_road(index, place, 0.5 * length, 0.4):
            height = rng.uniform(0.6, 1.9)
            if border == "hedge":
                self._put(VEGETATION, objects.hedge, place, length, height)
            else:
                self._put(BUILDING, objects.wall, place, length, height)
            self._occupy(place, 0.5 * length, 0.5)
        for _ in range(rng.poisson(0.045 * width * min(room, 9.0))):
            across = side * (edge + rng.uniform(0.8, max(room - 0.8, 0.9)))
            x, y, yaw = street.place(along + rng.uniform(0.0, width), across)
            if self._is_off_road(index, (x, y, yaw), 0.5, 0.5):
                plant = objects.tree if rng.random() < 0.5 else objects.bush
                self._stand(plant, (x, y, rng.uniform(-np.pi, np.pi)), 0.5)

    def _stand(self, draw: Callable[..., None], place: Place, radius: float) -> bool:
        """Place an object if its disc is free; return True if it did."""
        x, y, _ = place
        if np.hypot(x, y) < CLEAR or not self._is_free(x, y, radius):
            return False
        self._put(STANDING[draw], draw, place)
        self._occupy(place, radius, radius)
        return True

    def _put_vehicle(self, index: int, along: float, across: float, wobble: float) -> float:
        """Place a vehicle if it fits; return its length."""
        rng, street = self.rng, self.terrain.streets[index]
        size = objects.vehicle_size(rng)
        _, length, width, _ = size
        x, y, yaw = street.place(along, across)
        yaw += rng.normal(0.0, wobble)
        parked = abs(across) > street.half_width - 2.0
        # Traffic keeps to the right; parked vehicles may face either way.
        if (parked and rng.random() < 0.5) or (not parked and across > 0.0):
            yaw += np.pi
        c, s = length * np.cos(yaw), length * np.sin(yaw)
        discs = [(x + t * c, y + t * s) for t in (-0.35, 0.0, 0.35)]
        others = [street for i, street in enumerate(self.terrain.streets) if i != index]
        # The sensor's own vehicle needs space too, and so do crossings.
        if all(self._is_free(*d, 0.5 * width) and np.hypot(*d) > 4.5 for d in discs) and not any(
            abs(other.locate(x, y)[1]) < other.half_width + 0.5 * length for other in others
        ):
            self._put(VEHICLE, objects.vehicle, (x, y, yaw), size)
            self._occupy((x, y, yaw), 0.5 * length, 0.5 * width)
        return length

    def park(self, index: int) -> None:
        """Place parked vehicles along the kerbs of street ``index``."""
        rng, street = self.rng, self.terrain.streets[index]
        for side in SIDES:
            share = rng.choice([0.2, 0.5, 0.8])
            along = -REACH + rng.uniform(0.0, 6.0)
            while along < REACH:
                if rng.random() < share:
                    across = side * (street.half_width - rng.uniform(1.1, 1.35))
                    along += self._put_vehicle(index, along, across, 0.03) + rng.uniform(0.6, 2.0)
                else:
                    along += rng.uniform(4.0, 9.0)

    def drive(self, index: int) -> None:
        """Place moving vehicles in both lanes of street ``index``."""
        rng = self.rng
        for side in SIDES:
            along = -REACH + rng.uniform(0.0, 20.0)
            while along < REACH:
                self._put_vehicle(index, along, side * rng.uniform(1.4, 1.9), 0.05)
                along += rng.uniform(8.0, 32.0)

    def _pavement(self, reach: float, edge: float) -> tuple[Street, float, float]:
        """Draw a street and a place on its pavements, at least ``edge`` meters off the kerb."""
        rng = self.rng
        street = self.terrain.streets[rng.integers(len(self.terrain.streets))]
        along = street.start + rng.uniform(-reach, reach)
        across = street.half_width + rng.uniform(edge, max(street.pavement - edge, edge + 0.1))
        return street, along, across * rng.choice(SIDES)

    def furnish(self) -> None:
        """Place poles near the kerbs, and trees in rows, more of them close to the sensor."""
        rng = self.rng
        near, far = int(rng.integers(24, 41)), int(rng.integers(12, 25))
        for wanted, reach in ((near, NEAR), (far, 70.0)):
            placed = 0
            for _ in range(6 * wanted):
                street, along, across = self._pavement(reach, 0.3)
                side = np.sign(across)
                across = side * (street.half_width + rng.uniform(0.25, 0.8))
                x, y, yaw = street.place(along, across)
                # Arms reach over the carriageway, plates face along it.
                yaw += -0.5 * np.pi * side if rng.random() < 0.5 else 0.0
                if np.hypot(x, y) > reach or self.terrain.outside(x, y) < 0.2:
                    continue
                placed += self._stand(objects.pole, (x, y, yaw + rng.normal(0.0, 0.1)), 0.25)
                if placed == wanted:
                    break
        for _ in range(int(rng.integers(8, 36))):
            street, along, across = self._pavement(60.0, 0.6)
            x, y, yaw = street.place(along, np.sign(across) * (street.half_width + 0.9))
            # A crown must not hang around the sensor.
            if self.terrain.outside(x, y) > 0.6 and np.hypot(x, y) > 2.0 * CLEAR:
                self._stand(objects.tree, (x, y, rng.uniform(-np.pi, np.pi)), 0.6)

    def populate(self) -> None:
        """Place persons, alone and in groups, on pavements and crossing, most of them near."""
        rng = self.rng
        near, far = int(rng.integers(28, 43)), int(rng.integers(4, 14))
        for wanted, reach in ((near, NEAR), (far, 60.0)):
            placed = 0
            for _ in range(8 * wanted):
                street, along, across = self._pavement(reach, 0.3)
                if rng.random() < 0.2:
                    across = rng.uniform(-1.0, 1.0) * street.half_width
                x, y, yaw = street.place(along, across)
                yaw += rng.choice([0.0, np.pi]) + rng.normal(0.0, 0.5)
                size = int(rng.choice([1, 2, 3, 4], p=[0.5, 0.3, 0.13, 0.07]))
                for _ in range(min(size, wanted - placed)):
                    if np.hypot(x, y) < reach:
                        turn = yaw + rng.normal(0.0, 0.3)
                        placed += self._stand(objects.person, (x, y, turn), 0.28)
                    step, way = rng.uniform(0.6, 0.9), rng.uniform(-np.pi, np.pi)
                    x, y = x + step * np.cos(way), y + step * np.sin(way)
                if placed >= wanted:
                    break


@dataclass(frozen=True)
class StreetScene:
    """The surroundings of a sensor at the origin, on a carriageway.

    Attributes:
      solids: labeled primitives.
      terrain: the ground, or None for none.
      placed: which primitives are an object of which detectors find boxes; None for no objects.
    """

    solids: Solids
    terrain: Terrain | None
    placed: PlacedObjects | None = None


def check_seed(seed: int) -> int:
    """Return the seed as a plain int."""
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
    """Draw a street of about 180 m with its objects, the sensor in its middle.

    The same seed gives the same scene. The origin lies on the carriageway below the
    sensor; z points up; all lengths are meters.

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
    return StreetScene(layout.solids.build(), layout.terrain, PlacedObjects(layout.boxed))
