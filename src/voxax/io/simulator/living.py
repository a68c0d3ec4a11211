"""Persons and vegetation."""

from __future__ import annotations

import numpy as np

from voxax.io.simulator.solids import (
    BOX,
    CYLINDER,
    ELLIPSOID,
    PERSON,
    VEGETATION,
    Pose,
    SolidBuilder,
)
from voxax.io.simulator.traffic import ROOT, paint


def add_person(out: SolidBuilder, rng: np.random.Generator, pose: Pose) -> None:
    """A standing or walking adult or child, who faces along the pose's x axis."""
    tall = rng.uniform(1.05, 1.45) if rng.random() < 0.18 else rng.normal(1.72, 0.1)
    build = rng.uniform(0.85, 1.2) * tall / 1.72
    cloth, trousers = paint(rng, 0.38), paint(rng, 0.33)

    def column(x: float, y: float, low: float, high: float, rx: float, ry: float, shade: float):
        middle = (x, y, 0.5 * (low + high) * tall)
        half = (rx * build, ry * build, 0.5 * (high - low) * tall)
        out.add(CYLINDER, pose, middle, half, PERSON, shade)

    stride = rng.uniform(0.0, 0.26) * tall / 1.72
    if rng.random() < 0.3:
        # A long coat or skirt hides the legs and makes a person much like a bollard.
        column(0.0, 0.0, 0.05, 0.62, 0.16, 0.2, trousers)
    else:
        column(stride, 0.09 * build, 0.0, 0.5, 0.085, 0.08, trousers)
        column(-stride, -0.09 * build, 0.0, 0.5, 0.085, 0.08, trousers)
    torso = (0.15 * build, 0.235 * build, 0.21 * tall)
    out.add(ELLIPSOID, pose, (0.0, 0.0, 0.64 * tall), torso, PERSON, cloth)
    swing = 0.6 * stride
    column(-swing, 0.235 * build, 0.42, 0.80, 0.055, 0.055, cloth)
    column(swing, -0.235 * build, 0.42, 0.80, 0.055, 0.055, cloth)
    head = (0.1, 0.085, 0.075 * tall)
    out.add(ELLIPSOID, pose, (0.0, 0.0, 0.925 * tall), head, PERSON, paint(rng, 0.4))
    if rng.random() < 0.25:
        pack = (0.12, 0.16, 0.24)
        out.add(ELLIPSOID, pose, (-0.2 * build, 0.0, 0.68 * tall), pack, PERSON, cloth)


def _clump(
    out: SolidBuilder,
    rng: np.random.Generator,
    pose: Pose,
    place: tuple[float, float, float],
    radii: tuple[float, float, float],
    shade: float,
    depth: float,
) -> None:
    half = tuple(np.asarray(radii) * rng.uniform(0.8, 1.2, 3))
    turn = rng.uniform(0.0, np.pi)
    out.add(ELLIPSOID, pose, place, half, VEGETATION, shade, penetration=depth, turn=turn)


def add_tree(out: SolidBuilder, rng: np.random.Generator, pose: Pose) -> None:
    """A broad-leaved tree, a young one, or a conifer: a trunk and clumps of leaves."""
    kind = rng.choice(["broad", "young", "conifer"], p=[0.6, 0.22, 0.18])
    leaf, bark = paint(rng, 0.38), paint(rng, 0.32)
    if kind == "young":
        radius, clear, size = rng.uniform(0.03, 0.08), rng.uniform(1.5, 2.3), 0.6
    elif kind == "broad":
        radius, clear, size = rng.uniform(0.1, 0.32), rng.uniform(1.7, 3.4), 1.8
    else:
        radius, clear, size = rng.uniform(0.1, 0.22), rng.uniform(0.3, 1.2), 1.6
    size *= rng.uniform(0.75, 1.35)
    top = clear + (0.5 if kind != "conifer" else 2.0) * size
    half = 0.5 * (top + ROOT)
    trunk = (radius, radius, half)
    out.add(CYLINDER, pose, (0.0, 0.0, half - ROOT), trunk, VEGETATION, bark)
    if kind == "conifer":
        for level in range(4):
            width = size * (0.95 - 0.22 * level)
            place = (0.0, 0.0, clear + size * (0.5 + 0.75 * level))
            _clump(out, rng, pose, place, (width, width, 0.7 * size), leaf, rng.uniform(0.15, 0.4))
        return
    for _ in range(int(rng.integers(3, 7))):
        x, y = rng.normal(0.0, 0.45 * size, 2)
        place = (float(x), float(y), clear + size * rng.uniform(0.55, 1.5))
        radii = (0.75 * size, 0.75 * size, 0.62 * size)
        _clump(out, rng, pose, place, radii, leaf, rng.uniform(0.25, 0.9))


def add_bush(out: SolidBuilder, rng: np.random.Generator, pose: Pose) -> None:
    """One to three low clumps."""
    leaf, size = paint(rng, 0.36), rng.uniform(0.35, 0.95)
    for _ in range(int(rng.integers(1, 4))):
        x, y = rng.normal(0.0, 0.5 * size, 2)
        place = (float(x), float(y), 0.7 * size)
        _clump(out, rng, pose, place, (size, size, 0.9 * size), leaf, rng.uniform(0.08, 0.3))


def add_hedge(
    out: SolidBuilder, rng: np.random.Generator, pose: Pose, length: float, height: float
) -> None:
    """A clipped hedge along the pose's x axis, in blocks of slightly different size."""
    leaf, thick, depth = paint(rng, 0.36), rng.uniform(0.25, 0.6), rng.uniform(0.04, 0.15)
    blocks = max(1, round(length / 1.6))
    run = length / blocks
    for i in range(blocks):
        tall = 0.5 * (height * rng.uniform(0.92, 1.08) + ROOT)
        place = ((i + 0.5) * run - 0.5 * length, 0.0, tall - ROOT)
        half = (0.52 * run, thick * rng.uniform(0.9, 1.1), tall)
        out.add(BOX, pose, place, half, VEGETATION, leaf, penetration=depth)
