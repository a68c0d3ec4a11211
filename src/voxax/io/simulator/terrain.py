"""The ground: streets with kerbs on a tilted, gently undulating surface."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Samples along the part of a ray where it can meet the ground, then halvings of the
# first gap that has a crossing. A ray that skims 40 m out has such a part of about 13 m,
# so the samples are 1 m apart there, and the halvings end at a millimetre.
SAMPLES = 12
HALVINGS = 10
# A kerb is a steep ramp, this wide in metres, so that the surface has no jumps.
KERB_RAMP = 0.06

Coordinate = np.ndarray | float


@dataclass(frozen=True)
class Street:
    """A parabolic strip: ``v = offset + curvature / 2 * u^2`` in axes turned by ``heading``.

    Attributes:
      heading: direction of the street at ``u = 0``, radians.
      start: ``u`` of the world origin, metres.
      offset: ``v`` of the centre line at ``u = 0``, with the world origin at ``v = 0``, metres.
      curvature: 1/m.
      half_width: of the carriageway, metres.
      pavement: width of each pavement, metres.
    """

    heading: float
    start: float
    offset: float
    curvature: float
    half_width: float
    pavement: float

    def locate(self, x: Coordinate, y: Coordinate) -> tuple[np.ndarray, np.ndarray]:
        """``(along, across)`` in metres of world positions; across is positive on the left."""
        c, s = np.cos(self.heading), np.sin(self.heading)
        u, v = c * x + s * y + self.start, c * y - s * x
        slope = self.curvature * u
        across = (v - self.offset - 0.5 * slope * u) / np.sqrt(1.0 + slope * slope)
        return u, across

    def place(self, along: float, across: float) -> tuple[float, float, float]:
        """World ``(x, y, heading)`` of a place on the street; inverse of :meth:`locate`.

        Exact on the centre line, and within a few per cent of ``across`` off it.
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
      slope: ``float64[2]``, rise per metre along x and y.
      waves: ``float64[k, 4]``, rows of (wave number x, wave number y in rad/m, phase in
        radians, amplitude in metres).
      streets: carriageways, lower than the rest by ``kerb``.
      kerb: metres.
      shade: ``float64[2]``, reflectivity of carriageway and of the rest.
    """

    slope: np.ndarray
    waves: np.ndarray
    streets: tuple[Street, ...]
    kerb: float
    shade: np.ndarray

    def outside(self, x: Coordinate, y: Coordinate) -> np.ndarray:
        """Metres from the nearest carriageway's edge, negative on it; inf without streets."""
        beyond = np.full(np.broadcast(x, y).shape, np.inf)
        for street in self.streets:
            beyond = np.minimum(beyond, np.abs(street.locate(x, y)[1]) - street.half_width)
        return beyond

    def _raised(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """0 on carriageways, 1 beyond the kerb."""
        return np.clip(self.outside(x, y) / KERB_RAMP, 0.0, 1.0)

    def _relief(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Height above the tilted plane."""
        z = self.kerb * self._raised(x, y)
        for kx, ky, phase, amplitude in self.waves:
            z += amplitude * (np.sin(kx * x + ky * y + phase) - np.sin(phase))
        return z

    def height(self, x: Coordinate, y: Coordinate) -> np.ndarray:
        """Ground height in metres at world positions of any one shape."""
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        return self.slope[0] * x + self.slope[1] * y + self._relief(x, y)

    def reflectivity(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Reflectivity of the ground, patchy, 0 to 1."""
        raised = self._raised(x, y)
        patches = 0.06 * np.sin(0.9 * x + np.sin(0.7 * y)) + 0.05 * np.sin(2.3 * y - 1.7 * x)
        return self.shade[0] + raised * (self.shade[1] - self.shade[0]) + patches

    def intersect(self, origin: np.ndarray, direction: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """First distance at which rays meet the ground.

        Args:
          origin: ``float64[3]``, metres, higher above the tilted plane than any relief.
          direction: ``float64[3, n]``, unit vectors.
          limit: ``float64[n]``, metres; the search stops there.

        Returns:
          ``float64[n]``, metres, inf where there is none before the limit.
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
        """Absolute cosine ``[n]`` between rays and the ground's normal at ``point`` ``[3, n]``."""
        step = 0.02
        x, y = point[0], point[1]
        here = self.height(x, y)
        gx = (self.height(x + step, y) - here) / step
        gy = (self.height(x, y + step) - here) / step
        cosine = np.abs(direction[2] - gx * direction[0] - gy * direction[1])
        return cosine / np.sqrt(1.0 + gx * gx + gy * gy)
