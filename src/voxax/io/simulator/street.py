"""Generate a random street: the ground, and objects on it that do not overlap.

The ground is a tilted, gently undulating surface with curbs along the streets.
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

# A hit of the ground is searched at SAMPLES points along the part of a ray that can hit the ground;
# then the first interval with a hit is halved HALVINGS times. For a grazing ray that hits at 40 m,
# this part is about 13 m long, so the samples are 1 m apart and the halvings end at a millimeter.
SAMPLES = 12
HALVINGS = 10
# A curb is a steep ramp of this width in meters, so that the surface has no jumps.
KERB_RAMP = 0.06

Coordinate = np.ndarray | float
Place = tuple[float, float, float]  # x and y in meters, and the yaw in radians


@dataclass(frozen=True)
class Street:
    """A street along the parabola ``v = offset + curvature / 2 * u^2``.

    The axes of u and v are those of x and y, rotated by `heading`.

    Attributes:
      heading: the direction of the street at ``u = 0`` in radians.
      start: the coordinate ``u`` of the world origin in meters.
      offset: the coordinate ``v`` of the center line at ``u = 0`` in meters. The world origin has
        ``v = 0``.
      curvature: the curvature of the center line in 1/m.
      half_width: half the width of the roadway in meters.
      pavement: the width of the sidewalk on each side in meters.
    """

    heading: float
    start: float
    offset: float
    curvature: float
    half_width: float
    pavement: float

    def locate(self, x: Coordinate, y: Coordinate) -> tuple[np.ndarray, np.ndarray]:
        """Convert world x, y in meters to street coordinates, both in meters.

        The first is the coordinate ``u`` along the street. The second is the distance to the left
        of the center line, negative to the right.
        """
        c, s = np.cos(self.heading), np.sin(self.heading)
        u, v = c * x + s * y + self.start, c * y - s * x
        slope = self.curvature * u
        across = (v - self.offset - 0.5 * slope * u) / np.sqrt(1.0 + slope * slope)
        return u, across

    def place(self, along: float, across: float) -> Place:
        """Return the world's ``(x, y, heading)`` of a point given in street coordinates.

        ``along`` is the coordinate ``u``, and ``across`` is meters left of the center line, as
        :meth:`locate` returns them. The heading is the direction of the street there, in radians.
        Positions are exact on the center line; elsewhere the error is a few percent of ``across``.
        """
        slope = self.curvature * along
        norm = np.sqrt(1.0 + slope * slope)
        u = along - across * slope / norm - self.start
        v = self.offset + 0.5 * slope * along + across / norm
        c, s = np.cos(self.heading), np.sin(self.heading)
        return c * u - s * v, s * u + c * v, self.heading + np.arctan(slope)


@dataclass(frozen=True)
class Terrain:
    """The height and the reflectivity of the ground; the height of a roadway at the origin is 0.

    Attributes:
      slope: the rise per meter along x and y, ``float64[2]``.
      waves: one row for each of ``k`` waves, ``float64[k, 4]``: wave numbers along x and y in
        rad/m, phase in radians, amplitude in meters.
      streets: the streets, whose roadways are lower than the other ground by ``kerb``.
      kerb: the height of a curb in meters.
      shade: the reflectivity of roadways and of the other ground, ``float64[2]``.
    """

    slope: np.ndarray
    waves: np.ndarray
    streets: tuple[Street, ...]
    kerb: float
    shade: np.ndarray

    def outside(self, x: Coordinate, y: Coordinate) -> np.ndarray:
        """Return the distance of world positions from the edge of the nearest roadway in meters.

        The distance is negative on a roadway, and inf if there are no streets. ``x`` and ``y`` have
        the same shape, which is that of the result.
        """
        beyond = np.full(np.broadcast(x, y).shape, np.inf)
        for street in self.streets:
            beyond = np.minimum(beyond, np.abs(street.locate(x, y)[1]) - street.half_width)
        return beyond

    def _raised(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return 0 at points on roadways, 1 outside the curbs, and 0 to 1 on the ramp of a curb."""
        return np.clip(self.outside(x, y) / KERB_RAMP, 0.0, 1.0)

    def _relief(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the ground's height above the tilted plane in meters: curbs and waves."""
        z = self.kerb * self._raised(x, y)
        for kx, ky, phase, amplitude in self.waves:
            z += amplitude * (np.sin(kx * x + ky * y + phase) - np.sin(phase))
        return z

    def height(self, x: Coordinate, y: Coordinate) -> np.ndarray:
        """Return the ground height in meters at world positions; x and y have the same shape."""
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        return self.slope[0] * x + self.slope[1] * y + self._relief(x, y)

    def reflectivity(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the ground's reflectivity (0 to 1) at world positions; it varies in patches."""
        raised = self._raised(x, y)
        patches = 0.06 * np.sin(0.9 * x + np.sin(0.7 * y)) + 0.05 * np.sin(2.3 * y - 1.7 * x)
        return self.shade[0] + raised * (self.shade[1] - self.shade[0]) + patches

    def intersect(self, origin: np.ndarray, direction: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Intersect rays with the ground: return the distance to the first hit of each ray.

        Args:
          origin: the start of all rays in meters, ``float64[3]``, above all ground.
          direction: the unit vectors of ``n`` rays, ``float64[3, n]``.
          limit: the distance in meters up to which each ray is searched, ``float64[n]``.

        Returns:
          The distances in meters, ``float64[n]``; inf if a ray does not hit the ground before its
          limit.
        """
        # The surface is between two planes, so only the part of a ray between them matters.
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
        """Return the absolute cosines between rays and the ground's normals, ``float64[n]``.

        ``point`` has the points where rays hit the ground, and ``direction`` the rays' unit
        vectors, both ``[3, n]``.
        """
        step = 0.02
        x, y = point[0], point[1]
        here = self.height(x, y)
        gx = (self.height(x + step, y) - here) / step
        gy = (self.height(x, y + step) - here) / step
        cosine = np.abs(direction[2] - gx * direction[0] - gy * direction[1])
        return cosine / np.sqrt(1.0 + gx * gx + gy * gy)


# The class of each kind of small object, and the classes whose objects have boxes.
STANDING = {
    objects.pole: POLE,
    objects.person: PERSON,
    objects.tree: VEGETATION,
    objects.bush: VEGETATION,
}
BOXED = (VEHICLE, POLE, PERSON)
# Half length of the part of a street with houses and vehicles, in meters.
REACH = 92.0
# Distances from the sensor in meters: the smallest of small objects, and the limit of "near".
CLEAR, NEAR = 3.0, 30.0
SIDES = (-1.0, 1.0)


class Layout:
    """Builder that adds random objects to a terrain so that they do not overlap.

    The generator `rng` draws the objects. :attr:`solids` collects the primitives of all objects.
    :attr:`boxed` has the rows for :class:`voxax.io.simulator.solids.PlacedObjects`: one for each
    vehicle, pole and person.
    """

    def __init__(self, rng: np.random.Generator, terrain: Terrain) -> None:
        self.rng = rng
        self.terrain = terrain
        self.solids = SolidBuilder()
        self.boxed: list[tuple[int, Pose, int, int]] = []
        # Occupied rectangles: center x and y, half length, half width, cosine and sine of the yaw.
        self._occupied = np.zeros((0, 6))

    def _put(self, label: int, draw: Callable[..., None], place: Place, *told) -> None:
        """Add an object of class `label` at `place`, which is its x, y and yaw.

        ``draw(put, rng, *told)`` must add the object's primitives by calls of ``put``. `told` are
        further arguments of `draw`, such as the object's length and height.
        """
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
        """Return whether (x, y) is at least `radius` away from every occupied rectangle.

        The distance from a rectangle is the larger one of the distances along its two axes.
        """
        own_x, own_y, half_length, half_width, c, s = self._occupied.T
        dx, dy = x - own_x, y - own_y
        along = np.abs(c * dx + s * dy) - half_length
        across = np.abs(c * dy - s * dx) - half_width
        return not bool(np.any((along < radius) & (across < radius)))

    def _is_off_road(self, index: int, place: Place, hx: float, hy: float) -> bool:
        """Return whether a rectangle at `place` is off all roadways and off the sidewalks.

        `hx` and `hy` are half the sides of the rectangle in meters. The sidewalk of street `index`
        is an exception: the rectangle may be there, at least 0.5 m from the curb.
        """
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
        """Place houses and gardens along both sides of street ``index`` of ``terrain.streets``.

        Most sides have mainly houses with gaps, and some sides have mainly gardens.
        """
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
        """Place a garden along the sidewalk: a hedge, a wall or nothing, then trees and bushes.

        The garden is on one `side` (-1 or 1) of street `index`. It begins at `along`, the
        coordinate along the street. It is `width` meters wide along the street and `room` deep.
        """
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
        """Place a small object if `place` is free and not near the sensor; return True if placed.

        ``draw(put, rng)`` adds the object's primitives. The object occupies a square with sides of
        ``2 * radius`` meters.
        """
        x, y, _ = place
        if np.hypot(x, y) < CLEAR or not self._is_free(x, y, radius):
            return False
        self._put(STANDING[draw], draw, place)
        self._occupy(place, radius, radius)
        return True

    def _put_vehicle(self, index: int, along: float, across: float, wobble: float) -> float:
        """Place a random vehicle if there is room; return its length in meters in any case.

        `along` and `across` are coordinates on street `index`. `wobble` is the standard deviation
        of the vehicle's direction from that of the street, in radians.
        """
        rng, street = self.rng, self.terrain.streets[index]
        size = objects.vehicle_size(rng)
        _, length, width, _ = size
        x, y, yaw = street.place(along, across)
        yaw += rng.normal(0.0, wobble)
        parked = abs(across) > street.half_width - 2.0
        # Moving vehicles keep to the right; parked vehicles may face either direction.
        if (parked and rng.random() < 0.5) or (not parked and across > 0.0):
            yaw += np.pi
        c, s = length * np.cos(yaw), length * np.sin(yaw)
        discs = [(x + t * c, y + t * s) for t in (-0.35, 0.0, 0.35)]
        others = [street for i, street in enumerate(self.terrain.streets) if i != index]
        # The sensor's vehicle needs space too, and crossings stay free.
        if all(self._is_free(*d, 0.5 * width) and np.hypot(*d) > 4.5 for d in discs) and not any(
            abs(other.locate(x, y)[1]) < other.half_width + 0.5 * length for other in others
        ):
            self._put(VEHICLE, objects.vehicle, (x, y, yaw), size)
            self._occupy((x, y, yaw), 0.5 * length, 0.5 * width)
        return length

    def park(self, index: int) -> None:
        """Place parked vehicles along both curbs of street ``index`` of ``terrain.streets``."""
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
        """Place moving vehicles in both lanes of street ``index`` of ``terrain.streets``."""
        rng = self.rng
        for side in SIDES:
            along = -REACH + rng.uniform(0.0, 20.0)
            while along < REACH:
                self._put_vehicle(index, along, side * rng.uniform(1.4, 1.9), 0.05)
                along += rng.uniform(8.0, 32.0)

    def _pavement(self, reach: float, edge: float) -> tuple[Street, float, float]:
        """Return a random point on a sidewalk: the street, and the coordinates along and across it.

        The point is at least ``edge`` meters from the curb, and at most ``reach`` meters along the
        street from the sensor.
        """
        rng = self.rng
        street = self.terrain.streets[rng.integers(len(self.terrain.streets))]
        along = street.start + rng.uniform(-reach, reach)
        across = street.half_width + rng.uniform(edge, max(street.pavement - edge, edge + 0.1))
        return street, along, across * rng.choice(SIDES)

    def furnish(self) -> None:
        """Place poles near the curbs, mostly close to the sensor, and rows of trees."""
        rng = self.rng
        near, far = int(rng.integers(24, 41)), int(rng.integers(12, 25))
        for wanted, reach in ((near, NEAR), (far, 70.0)):
            placed = 0
            for _ in range(6 * wanted):
                street, along, across = self._pavement(reach, 0.3)
                side = np.sign(across)
                across = side * (street.half_width + rng.uniform(0.25, 0.8))
                x, y, yaw = street.place(along, across)
                # Arms reach over the roadway. Plates of signs face along it.
                yaw += -0.5 * np.pi * side if rng.random() < 0.5 else 0.0
                if np.hypot(x, y) > reach or self.terrain.outside(x, y) < 0.2:
                    continue
                placed += self._stand(objects.pole, (x, y, yaw + rng.normal(0.0, 0.1)), 0.25)
                if placed == wanted:
                    break
        for _ in range(int(rng.integers(8, 36))):
            street, along, across = self._pavement(60.0, 0.6)
            x, y, yaw = street.place(along, np.sign(across) * (street.half_width + 0.9))
            # The crown of a tree must not contain the sensor.
            if self.terrain.outside(x, y) > 0.6 and np.hypot(x, y) > 2.0 * CLEAR:
                self._stand(objects.tree, (x, y, rng.uniform(-np.pi, np.pi)), 0.6)

    def populate(self) -> None:
        """Place single persons and groups on sidewalks and roadways, mostly close to the sensor."""
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
    """The surroundings of a sensor, which is above the origin on a roadway.

    Attributes:
      solids: the labeled primitives of all objects.
      terrain: the ground; None for a scene without ground.
      placed: the objects with boxes, as ranges of rows of `solids`; None for no objects.
    """

    solids: Solids
    terrain: Terrain | None
    placed: PlacedObjects | None = None


def check_seed(seed: int) -> int:
    """Convert the seed to int; raise InputError if it is not an integer of at least 0."""
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
    """Generate a random street of about 180 m with objects, and with the sensor in the middle.

    The same seed gives the same scene. The origin is on the roadway below the
    sensor, z points up, and all lengths are in meters.

    Raises:
      InputError: the seed is not an integer of at least 0.
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
