"""Generate random objects of a street: vehicles, poles, persons, vegetation, houses and walls.

Each function adds one object. Its argument ``put(shape, offset, half, reflectivity)`` adds one
primitive in the object's frame, see :meth:`voxax.io.simulator.solids.SolidBuilder.add`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from voxax.io.simulator.solids import BOX, CYLINDER, ELLIPSOID, Triple

Put = Callable[..., None]
Rng = np.random.Generator
# Depth of upright objects and of houses below the ground, in meters, so that slopes leave no gap
# below them. Houses are wide, so the ground at their corners can be much lower.
ROOT, CELLAR = 0.3, 1.5


def paint(rng: Rng, mean: float) -> float:
    """Return a normally distributed reflectivity around ``mean``, clipped to 0.04..0.95."""
    return float(np.clip(mean + rng.normal(0.0, 0.15), 0.04, 0.95))


def vehicle_size(rng: Rng) -> tuple[str, float, float, float]:
    """Return a random vehicle's kind and size: ``(kind, length, width, height)``, in meters.

    The kind is ``car``, ``van`` or ``truck``.
    """
    kind = str(rng.choice(["car", "van", "truck"], p=[0.72, 0.18, 0.10]))
    low, high = {
        "car": ([3.5, 1.60, 1.38], [4.9, 1.92, 1.72]),
        "van": ([4.6, 1.85, 1.85], [6.0, 2.10, 2.60]),
        "truck": ([6.0, 2.20, 2.70], [10.0, 2.50, 3.80]),
    }[kind]
    length, width, height = rng.uniform(low, high).tolist()
    return kind, length, width, height


def vehicle(put: Put, rng: Rng, size: tuple[str, float, float, float]) -> None:
    """Call ``put`` for each primitive of a vehicle that heads along x.

    ``size`` is the kind and size that :func:`vehicle_size` returns.
    """
    kind, length, width, height = size
    body, glass = paint(rng, 0.4), paint(rng, 0.25)

    def box(x0: float, x1: float, z0: float, z1: float, share: float, shade: float) -> None:
        middle = (0.5 * (x0 + x1) * length, 0.0, 0.5 * (z0 + z1))
        put(BOX, middle, (0.5 * (x1 - x0) * length, 0.5 * share * width, 0.5 * (z1 - z0)), shade)

    clear = rng.uniform(0.18, 0.3)
    if kind == "car":
        waist = height * rng.uniform(0.54, 0.62)
        rear, front = rng.choice([-0.49, -0.36]), rng.uniform(0.14, 0.24)
        middle = 0.5 * (waist + height)
        box(-0.5, 0.47, clear, waist, 1.0, body)
        box(0.47, 0.5, clear + 0.1, waist - 0.12, 0.9, body)
        # Two boxes, the upper one shorter, approximate sloping windshields.
        box(rear, front, waist, middle, 0.9, glass)
        box(rear + 0.06, front - 0.09, middle, height, 0.82, body)
        wheel, axles = rng.uniform(0.29, 0.35), (-0.31, 0.31)
    elif kind == "van":
        nose = rng.uniform(0.24, 0.32)
        box(-0.5, nose, clear, height, 1.0, body)
        box(nose, 0.5, clear, 0.55 * height, 0.96, body)
        box(nose, nose + 0.08, 0.55 * height, 0.85 * height, 0.9, glass)
        wheel, axles = rng.uniform(0.32, 0.38), (-0.32, 0.33)
    else:
        cab = 0.5 - 2.0 / length
        load = rng.uniform(0.9, 1.15)
        box(cab, 0.5, 0.45, min(height, 2.9), 0.98, body)
        box(-0.5, cab - 0.04, load, height, 1.0, paint(rng, 0.45))
        box(-0.5, cab, 0.6, load, 0.4, glass)
        wheel, axles = rng.uniform(0.45, 0.52), (-0.36, -0.22, 0.38)
    rubber = paint(rng, 0.2)
    for axle in axles:
        for side in (-1.0, 1.0):
            place = (axle * length, side * (0.5 * width - 0.1), wheel)
            put(ELLIPSOID, place, (wheel, 0.13, wheel), rubber)


# For each kind of pole: its share of all poles, and the ranges of height and radius in meters.
POLES = {
    "lamp": (0.26, (4.0, 9.0), (0.06, 0.12)),
    "sign": (0.30, (1.9, 3.2), (0.03, 0.06)),
    "light": (0.12, (2.8, 4.2), (0.06, 0.1)),
    "utility": (0.10, (6.0, 10.0), (0.11, 0.18)),
    "bollard": (0.22, (0.8, 1.2), (0.06, 0.13)),
}


def pole(put: Put, rng: Rng) -> None:
    """Call ``put`` for each primitive of a random lamp, sign, traffic light or other pole.

    The arm of a pole, if any, points along x.
    """
    kind = rng.choice(list(POLES), p=[share for share, *_ in POLES.values()])
    shade, (_, heights, radii) = paint(rng, 0.38), POLES[kind]
    if kind == "bollard":
        radius, height = rng.uniform(*radii), rng.uniform(*heights)
    else:
        height, radius = rng.uniform(*heights), rng.uniform(*radii)
    _post(put, radius, height, shade)
    if kind == "lamp":
        arm = rng.uniform(0.3, 1.1)
        put(BOX, (arm, 0.0, height - 0.1), (arm, 0.05, 0.05), shade)
        put(BOX, (2 * arm, 0.0, height - 0.1), (0.35, 0.14, 0.08), shade)
    elif kind == "sign":
        plate, turn, coat = rng.uniform(0.2, 0.4), rng.normal(0.0, 0.3), paint(rng, 0.5)
        # The sign is a disc (a flat ellipsoid) or a rectangular plate.
        shape, tall = ELLIPSOID, plate
        if rng.random() >= 0.4:
            shape, tall = BOX, plate * rng.uniform(0.5, 1.4)
        put(shape, (0.06, 0.0, height - plate), (0.02, plate, tall), coat, turn=turn)
    elif kind == "light":
        put(BOX, (0.18, 0.0, height - 0.45), (0.12, 0.15, 0.45), shade)
    elif kind == "utility":
        put(BOX, (0.0, 0.0, height - 0.6), (0.06, 0.9, 0.06), shade)


def _post(put: Put, radius: float, height: float, shade: float) -> None:
    half = 0.5 * (height + ROOT)
    put(CYLINDER, (0.0, 0.0, half - ROOT), (radius, radius, half), shade)


def person(put: Put, rng: Rng) -> None:
    """Call ``put`` for each primitive of a random adult or child that faces along x."""
    tall = rng.uniform(1.05, 1.45) if rng.random() < 0.18 else rng.normal(1.72, 0.1)
    build = rng.uniform(0.85, 1.2) * tall / 1.72
    cloth, trousers = paint(rng, 0.38), paint(rng, 0.33)

    def column(x: float, y: float, low: float, high: float, rx: float, ry: float, shade: float):
        middle = (x, y, 0.5 * (low + high) * tall)
        put(CYLINDER, middle, (rx * build, ry * build, 0.5 * (high - low) * tall), shade)

    stride = rng.uniform(0.0, 0.26) * tall / 1.72
    if rng.random() < 0.3:
        # A long coat or skirt hides the legs and makes a person similar to a bollard.
        column(0.0, 0.0, 0.05, 0.62, 0.16, 0.2, trousers)
    else:
        column(stride, 0.09 * build, 0.0, 0.5, 0.085, 0.08, trousers)
        column(-stride, -0.09 * build, 0.0, 0.5, 0.085, 0.08, trousers)
    put(ELLIPSOID, (0.0, 0.0, 0.64 * tall), (0.15 * build, 0.235 * build, 0.21 * tall), cloth)
    swing = 0.6 * stride
    column(-swing, 0.235 * build, 0.42, 0.80, 0.055, 0.055, cloth)
    column(swing, -0.235 * build, 0.42, 0.80, 0.055, 0.055, cloth)
    put(ELLIPSOID, (0.0, 0.0, 0.925 * tall), (0.1, 0.085, 0.075 * tall), paint(rng, 0.4))
    if rng.random() < 0.25:
        put(ELLIPSOID, (-0.2 * build, 0.0, 0.68 * tall), (0.12, 0.16, 0.24), cloth)


def _clump(put: Put, rng: Rng, place: Triple, radii: Triple, shade: float, depth: float) -> None:
    half = tuple(np.asarray(radii) * rng.uniform(0.8, 1.2, 3))
    put(ELLIPSOID, place, half, shade, penetration=depth, turn=rng.uniform(0.0, np.pi))


# For each kind of tree, in meters: the ranges of the trunk's radius and of its height below the
# leaves, and the size of the crown.
TREES = {
    "broad": ((0.1, 0.32), (1.7, 3.4), 1.8),
    "young": ((0.03, 0.08), (1.5, 2.3), 0.6),
    "conifer": ((0.1, 0.22), (0.3, 1.2), 1.6),
}


def tree(put: Put, rng: Rng) -> None:
    """Call ``put`` for each primitive of a random broad-leaved tree, young tree or conifer."""
    kind = rng.choice(list(TREES), p=[0.6, 0.22, 0.18])
    leaf, bark = paint(rng, 0.38), paint(rng, 0.32)
    radii, clears, size = TREES[kind]
    radius, clear = rng.uniform(*radii), rng.uniform(*clears)
    size *= rng.uniform(0.75, 1.35)
    _post(put, radius, clear + (0.5 if kind != "conifer" else 2.0) * size, bark)
    if kind == "conifer":
        for level in range(4):
            width = size * (0.95 - 0.22 * level)
            place = (0.0, 0.0, clear + size * (0.5 + 0.75 * level))
            _clump(put, rng, place, (width, width, 0.7 * size), leaf, rng.uniform(0.15, 0.4))
        return
    for _ in range(int(rng.integers(3, 7))):
        x, y = rng.normal(0.0, 0.45 * size, 2).tolist()
        place = (x, y, clear + size * rng.uniform(0.55, 1.5))
        radii = (0.75 * size, 0.75 * size, 0.62 * size)
        _clump(put, rng, place, radii, leaf, rng.uniform(0.25, 0.9))


def bush(put: Put, rng: Rng) -> None:
    """Call ``put`` for each primitive of a random bush: one to three low clumps of leaves."""
    leaf, size = paint(rng, 0.36), rng.uniform(0.35, 0.95)
    for _ in range(int(rng.integers(1, 4))):
        x, y = rng.normal(0.0, 0.5 * size, 2).tolist()
        radii, depth = (size, size, 0.9 * size), rng.uniform(0.08, 0.3)
        _clump(put, rng, (x, y, 0.7 * size), radii, leaf, depth)


def hedge(put: Put, rng: Rng, length: float, height: float) -> None:
    """Call ``put`` for each block of a clipped hedge along the x axis; sizes are in meters."""
    leaf, thick, depth = paint(rng, 0.36), rng.uniform(0.25, 0.6), rng.uniform(0.04, 0.15)
    blocks = max(1, round(length / 1.6))
    run = length / blocks
    for i in range(blocks):
        tall = 0.5 * (height * rng.uniform(0.92, 1.08) + ROOT)
        place = ((i + 0.5) * run - 0.5 * length, 0.0, tall - ROOT)
        half = (0.52 * run, thick * rng.uniform(0.9, 1.1), tall)
        put(BOX, place, half, leaf, penetration=depth)


def wall(put: Put, rng: Rng, length: float, height: float) -> None:
    """Call ``put`` for each primitive of a garden wall along the x axis; sizes are in meters."""
    half = (0.5 * length, rng.uniform(0.08, 0.2), 0.5 * (height + ROOT))
    put(BOX, (0.0, 0.0, half[2] - ROOT), half, paint(rng, 0.36))


def building(put: Put, rng: Rng, size: Triple, room: float) -> None:
    """Call ``put`` for each primitive of a random house whose front faces along -y.

    Args:
      put: function that adds a primitive to the scene.
      rng: generator of random numbers.
      size: width, depth and height in meters.
      room: free depth in front of the house in meters, for bays, balconies, steps and porches.
    """
    width, depth, height = size
    shade = paint(rng, 0.36)

    def box(x: float, y: float, low: float, high: float, hx: float, hy: float, shade: float):
        put(BOX, (x, y, 0.5 * (low + high)), (hx, hy, 0.5 * (high - low)), shade)

    box(0.0, 0.0, -CELLAR, height, 0.5 * width, 0.5 * depth, shade)
    if rng.random() < 0.4:
        # A set-back attic.
        box(0.0, 0.0, height, height + rng.uniform(1.0, 2.5), 0.42 * width, 0.35 * depth, shade)
    front, reach = -0.5 * depth, min(room, 1.6)
    for _ in range(int(rng.integers(0, 4))):
        hx = rng.uniform(0.5, 1.6)
        x = rng.uniform(-0.5, 0.5) * max(width - 2 * hx, 0.0)
        out_by = rng.uniform(0.25, 1.0) * max(reach, 0.3)
        kind = rng.choice(["bay", "balcony", "steps"])
        if kind == "balcony":
            floor = rng.uniform(2.7, max(height - 1.2, 2.8))
            box(x, front, floor, floor + rng.uniform(0.15, 1.1), hx, out_by, shade)
        else:
            top = (2.5, 0.9 * height) if kind == "bay" else (0.2, 0.8)
            box(x, front, -CELLAR, rng.uniform(*top), hx, out_by, paint(rng, 0.36))
    if reach > 0.8 and rng.random() < 0.15:
        # A porch: its columns are shaped like poles and trunks.
        box(0.0, front - 0.5 * reach, 2.7, 3.0, 1.6, 0.5 * reach, shade)
        for x in (-1.4, 1.4):
            half = (0.13, 0.13, 0.5 * (2.7 + CELLAR))
            put(CYLINDER, (x, front - reach + 0.2, half[2] - CELLAR), half, shade)
