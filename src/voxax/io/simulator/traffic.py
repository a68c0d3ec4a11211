"""Objects of the carriageway and the kerb: vehicles, poles and signs."""

from __future__ import annotations

import numpy as np

from voxax.io.simulator.solids import BOX, CYLINDER, ELLIPSOID, POLE, VEHICLE, Pose, SolidBuilder

# How far upright objects reach into the ground, so that slopes leave no gap below them.
ROOT = 0.3


def paint(rng: np.random.Generator, mean: float) -> float:
    """A reflectivity around ``mean``, spread so widely that classes overlap."""
    return float(np.clip(mean + rng.normal(0.0, 0.15), 0.04, 0.95))


def vehicle_size(rng: np.random.Generator) -> tuple[str, float, float, float]:
    """A kind (``car``, ``van`` or ``truck``) and its length, width and height, metres."""
    kind = str(rng.choice(["car", "van", "truck"], p=[0.72, 0.18, 0.10]))
    low, high = {
        "car": ([3.5, 1.60, 1.38], [4.9, 1.92, 1.72]),
        "van": ([4.6, 1.85, 1.85], [6.0, 2.10, 2.60]),
        "truck": ([6.0, 2.20, 2.70], [10.0, 2.50, 3.80]),
    }[kind]
    length, width, height = rng.uniform(low, high)
    return kind, float(length), float(width), float(height)


def add_vehicle(
    out: SolidBuilder,
    rng: np.random.Generator,
    pose: Pose,
    size: tuple[str, float, float, float],
) -> None:
    """A vehicle that heads along the pose's x axis; ``size`` as from :func:`vehicle_size`."""
    kind, length, width, height = size
    body, glass = paint(rng, 0.4), paint(rng, 0.25)

    def box(x0: float, x1: float, z0: float, z1: float, share: float, shade: float) -> None:
        middle = (0.5 * (x0 + x1) * length, 0.0, 0.5 * (z0 + z1))
        half = (0.5 * (x1 - x0) * length, 0.5 * share * width, 0.5 * (z1 - z0))
        out.add(BOX, pose, middle, half, VEHICLE, shade)

    clear = rng.uniform(0.18, 0.3)
    if kind == "car":
        waist = height * rng.uniform(0.54, 0.62)
        rear = rng.choice([-0.49, -0.36])
        front = rng.uniform(0.14, 0.24)
        middle = 0.5 * (waist + height)
        box(-0.5, 0.47, clear, waist, 1.0, body)
        box(0.47, 0.5, clear + 0.1, waist - 0.12, 0.9, body)
        # Two storeys, the upper one shorter, stand for sloping screens.
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
            out.add(ELLIPSOID, pose, place, (wheel, 0.13, wheel), VEHICLE, rubber)


def _post(out: SolidBuilder, pose: Pose, radius: float, height: float, shade: float) -> None:
    half = 0.5 * (height + ROOT)
    out.add(CYLINDER, pose, (0.0, 0.0, half - ROOT), (radius, radius, half), POLE, shade)


def add_pole(out: SolidBuilder, rng: np.random.Generator, pose: Pose) -> None:
    """A lamp, sign, traffic light, utility pole or bollard; arms point along the x axis."""
    kind = rng.choice(
        ["lamp", "sign", "light", "utility", "bollard"], p=[0.26, 0.30, 0.12, 0.10, 0.22]
    )
    shade = paint(rng, 0.38)
    if kind == "lamp":
        height = rng.uniform(4.0, 9.0)
        _post(out, pose, rng.uniform(0.06, 0.12), height, shade)
        arm = rng.uniform(0.3, 1.1)
        out.add(BOX, pose, (arm, 0.0, height - 0.1), (arm, 0.05, 0.05), POLE, shade)
        out.add(BOX, pose, (2 * arm, 0.0, height - 0.1), (0.35, 0.14, 0.08), POLE, shade)
    elif kind == "sign":
        height = rng.uniform(1.9, 3.2)
        _post(out, pose, rng.uniform(0.03, 0.06), height, shade)
        plate, turn, coat = rng.uniform(0.2, 0.4), rng.normal(0.0, 0.3), paint(rng, 0.5)
        up, front = height - plate, (0.06, 0.0, height - plate)
        if rng.random() < 0.4:
            # A disc, flattened along the direction it faces.
            half = (0.02, plate, plate)
            out.add(ELLIPSOID, pose, front, half, POLE, coat, turn=turn)
        else:
            half = (0.02, plate, plate * rng.uniform(0.5, 1.4))
            out.add(BOX, pose, (0.06, 0.0, up), half, POLE, coat, turn=turn)
    elif kind == "light":
        height = rng.uniform(2.8, 4.2)
        _post(out, pose, rng.uniform(0.06, 0.1), height, shade)
        out.add(BOX, pose, (0.18, 0.0, height - 0.45), (0.12, 0.15, 0.45), POLE, shade)
    elif kind == "utility":
        height = rng.uniform(6.0, 10.0)
        _post(out, pose, rng.uniform(0.11, 0.18), height, shade)
        out.add(BOX, pose, (0.0, 0.0, height - 0.6), (0.06, 0.9, 0.06), POLE, shade)
    else:
        _post(out, pose, rng.uniform(0.06, 0.13), rng.uniform(0.8, 1.2), shade)
