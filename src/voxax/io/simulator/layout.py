"""Where things stand in a street, without standing in each other."""

from __future__ import annotations

import numpy as np

from voxax.io.simulator.buildings import add_building, add_wall
from voxax.io.simulator.living import add_bush, add_hedge, add_person, add_tree
from voxax.io.simulator.solids import Pose, SolidBuilder
from voxax.io.simulator.terrain import Street, Terrain
from voxax.io.simulator.traffic import add_pole, add_vehicle, vehicle_size

# Half length of the built-up part of each street, metres.
REACH = 92.0
# Small objects keep this far from the sensor, and "near" ones come no farther than this.
CLEAR, NEAR = 3.0, 30.0


class Occupied:
    """Rectangles on the ground that are taken."""

    def __init__(self) -> None:
        self._count = 0
        self._rows = np.zeros((256, 6))

    def add(self, x: float, y: float, half_length: float, half_width: float, yaw: float) -> None:
        """Take a rectangle, metres and radians."""
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._rows[self._count] = (x, y, half_length, half_width, np.cos(yaw), np.sin(yaw))
        self._count += 1

    def is_free(self, x: float, y: float, radius: float) -> bool:
        """Whether a disc touches no rectangle."""
        rows = self._rows[: self._count]
        dx, dy = x - rows[:, 0], y - rows[:, 1]
        along = np.abs(rows[:, 4] * dx + rows[:, 5] * dy) - rows[:, 2]
        across = np.abs(rows[:, 4] * dy - rows[:, 5] * dx) - rows[:, 3]
        return not bool(np.any((along < radius) & (across < radius)))


class Layout:
    """Furnishes the streets of a terrain; :attr:`solids` collects the primitives."""

    def __init__(self, rng: np.random.Generator, terrain: Terrain) -> None:
        self.rng = rng
        self.terrain = terrain
        self.solids = SolidBuilder()
        self.taken = Occupied()

    def _pose(self, x: float, y: float, yaw: float) -> Pose:
        return Pose(x, y, float(self.terrain.height(x, y)), yaw)

    def _is_off_road(
        self, index: int, x: float, y: float, yaw: float, hx: float, hy: float
    ) -> bool:
        """Whether a rectangle keeps off all carriageways, and the other streets' pavements."""
        u, v = np.meshgrid(np.linspace(-hx, hx, 5), np.linspace(-hy, hy, 3))
        c, s = np.cos(yaw), np.sin(yaw)
        px, py = x + c * u - s * v, y + s * u + c * v
        for i, street in enumerate(self.terrain.streets):
            wide = street.half_width + (street.pavement if i != index else 0.5)
            if np.any(np.abs(street.locate(px, py)[1]) < wide):
                return False
        return True

    def build_up(self, index: int) -> None:
        """Rows of houses with gaps and gardens, or a park, on both sides of street ``index``."""
        rng = self.rng
        for side in (-1.0, 1.0):
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
        if not self._is_off_road(index, x, y, yaw, 0.5 * width, 0.5 * depth):
            return
        add_building(self.solids, rng, self._pose(x, y, yaw), (width, depth, height), room)
        self.taken.add(x, y, 0.5 * width, 0.5 * depth, yaw)
        if room > 1.8:
            self._garden(index, side, along, width, room)

    def _garden(self, index: int, side: float, along: float, width: float, room: float) -> None:
        """A strip behind the pavement: a border along it, trees and bushes behind."""
        rng, street = self.rng, self.terrain.streets[index]
        edge = street.half_width + street.pavement + 0.5
        border = rng.choice(["hedge", "wall", "open"], p=[0.45, 0.25, 0.30])
        x, y, yaw = street.place(along + 0.5 * width, side * edge)
        length = width * rng.uniform(0.55, 0.9)
        if border != "open" and self._is_off_road(index, x, y, yaw, 0.5 * length, 0.4):
            pose, height = self._pose(x, y, yaw), rng.uniform(0.6, 1.9)
            (add_hedge if border == "hedge" else add_wall)(self.solids, rng, pose, length, height)
            self.taken.add(x, y, 0.5 * length, 0.5, yaw)
        for _ in range(rng.poisson(0.045 * width * min(room, 9.0))):
            across = side * (edge + rng.uniform(0.8, max(room - 0.8, 0.9)))
            x, y, yaw = street.place(along + rng.uniform(0.0, width), across)
            if self._is_off_road(index, x, y, yaw, 0.5, 0.5):
                plant = add_tree if rng.random() < 0.5 else add_bush
                self._stand(plant, x, y, rng.uniform(-np.pi, np.pi), 0.5)

    def _stand(self, add, x: float, y: float, yaw: float, radius: float) -> bool:
        """Place an object if its disc is free; says whether it did."""
        if np.hypot(x, y) < CLEAR or not self.taken.is_free(x, y, radius):
            return False
        add(self.solids, self.rng, self._pose(x, y, yaw))
        self.taken.add(x, y, radius, radius, yaw)
        return True

    def _put_vehicle(self, index: int, along: float, across: float, wobble: float) -> float:
        """Place a vehicle if there is room for it; returns its length."""
        rng, street = self.rng, self.terrain.streets[index]
        size = vehicle_size(rng)
        _, length, width, _ = size
        x, y, yaw = street.place(along, across)
        yaw += rng.normal(0.0, wobble)
        parked = abs(across) > street.half_width - 2.0
        # Traffic keeps to the right; who parks may face either way.
        if (parked and rng.random() < 0.5) or (not parked and across > 0.0):
            yaw += np.pi
        c, s = length * np.cos(yaw), length * np.sin(yaw)
        discs = [(x + t * c, y + t * s) for t in (-0.35, 0.0, 0.35)]
        # The sensor's own vehicle needs room too.
        free = all(self.taken.is_free(*d, 0.5 * width) and np.hypot(*d) > 4.5 for d in discs)
        if free and not self._in_crossing(index, x, y, 0.5 * length):
            add_vehicle(self.solids, rng, self._pose(x, y, yaw), size)
            self.taken.add(x, y, 0.5 * length, 0.5 * width, yaw)
        return length

    def _in_crossing(self, index: int, x: float, y: float, margin: float) -> bool:
        others = (s for i, s in enumerate(self.terrain.streets) if i != index)
        return any(abs(s.locate(x, y)[1]) < s.half_width + margin for s in others)

    def park(self, index: int) -> None:
        """Parked vehicles along the kerbs of street ``index``."""
        rng, street = self.rng, self.terrain.streets[index]
        for side in (-1.0, 1.0):
            share = rng.choice([0.2, 0.5, 0.8])
            along = -REACH + rng.uniform(0.0, 6.0)
            while along < REACH:
                if rng.random() < share:
                    across = side * (street.half_width - rng.uniform(1.1, 1.35))
                    along += self._put_vehicle(index, along, across, 0.03) + rng.uniform(0.6, 2.0)
                else:
                    along += rng.uniform(4.0, 9.0)

    def drive(self, index: int) -> None:
        """Moving vehicles in both lanes of street ``index``."""
        rng = self.rng
        for side in (-1.0, 1.0):
            along = -REACH + rng.uniform(0.0, 20.0)
            while along < REACH:
                self._put_vehicle(index, along, side * rng.uniform(1.4, 1.9), 0.05)
                along += rng.uniform(8.0, 32.0)

    def _pavement(self, reach: float, edge: float) -> tuple[Street, float, float]:
        """A street and a place on one of its pavements, ``edge`` metres off the kerb at least."""
        rng = self.rng
        street = self.terrain.streets[rng.integers(len(self.terrain.streets))]
        along = street.start + rng.uniform(-reach, reach)
        across = street.half_width + rng.uniform(edge, max(street.pavement - edge, edge + 0.1))
        return street, along, across * rng.choice([-1.0, 1.0])

    def furnish(self) -> None:
        """Poles near the kerbs, and trees in rows, more of them close to the sensor."""
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
                placed += self._stand(add_pole, x, y, yaw + rng.normal(0.0, 0.1), 0.25)
                if placed == wanted:
                    break
        for _ in range(int(rng.integers(8, 36))):
            street, along, across = self._pavement(60.0, 0.6)
            x, y, yaw = street.place(along, np.sign(across) * (street.half_width + 0.9))
            # A crown must not hang around the sensor.
            if self.terrain.outside(x, y) > 0.6 and np.hypot(x, y) > 2.0 * CLEAR:
                self._stand(add_tree, x, y, rng.uniform(-np.pi, np.pi), 0.6)

    def populate(self) -> None:
        """Persons, alone and in groups, on pavements and crossing, most of them near."""
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
                        placed += self._stand(add_person, x, y, yaw + rng.normal(0.0, 0.3), 0.28)
                    step, way = rng.uniform(0.6, 0.9), rng.uniform(-np.pi, np.pi)
                    x, y = x + step * np.cos(way), y + step * np.sin(way)
                if placed >= wanted:
                    break
