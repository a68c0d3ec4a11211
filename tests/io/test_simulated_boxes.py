"""Boxes of simulated objects against the points that were measured on them."""

import dataclasses

import numpy as np
import pytest

from voxax.detection import points_in_boxes
from voxax.errors import InputError
from voxax.io.simulator import (
    CLASS_NAMES,
    Solids,
    StreetScene,
    simulate_objects,
    simulate_sweep,
    street_scene,
)
from voxax.io.simulator.solids import BOX, BUILDING, VEHICLE, PlacedObjects, Pose

SEEDS = (3, 500)
# Range noise has 2 cm; five deviations, and what a wheel stands in the ground.
SLACK = 0.12


@pytest.fixture(scope="module")
def streets():
    return [simulate_objects(seed) for seed in SEEDS]


def grown(boxes):
    """Boxes with a margin on every side."""
    return np.concatenate([boxes[:, :3], boxes[:, 3:6] + 2 * SLACK, boxes[:, 6:]], axis=1)


def test_the_points_are_those_of_the_sweep(streets):
    for seed, scan in zip(SEEDS, streets, strict=True):
        sweep = simulate_sweep(seed)
        np.testing.assert_array_equal(scan.cloud.positions, sweep.positions)
        np.testing.assert_array_equal(scan.cloud.labels, sweep.labels)
        again = simulate_objects(seed)
        np.testing.assert_array_equal(again.objects.boxes, scan.objects.boxes)
        np.testing.assert_array_equal(again.about, scan.about)


def test_objects_have_their_points_inside(streets):
    for scan in streets:
        assert set(scan.objects.classes) == {"vehicle", "pole", "person"}
        inside = points_in_boxes(scan.cloud.positions, grown(scan.objects.boxes))
        for number, name in enumerate(CLASS_NAMES):
            own = scan.objects.classes == name
            if own.any():
                counts = inside[scan.cloud.labels == number][:, own].sum(axis=0)
                # Boxes with a margin may also have points of a neighbor of their class.
                assert (counts >= scan.about[own]).all(), name
        # All points of these classes are in a box, but for objects of few points.
        every = simulate_objects(int(scan.cloud.source.split()[-1]), min_points=0)
        inside = points_in_boxes(every.cloud.positions, grown(every.objects.boxes)).any(axis=1)
        classes = [CLASS_NAMES.index(name) for name in set(every.objects.classes)]
        boxed = np.isin(every.cloud.labels, classes)
        assert inside[boxed].all()
        assert every.about.sum() == boxed.sum()


def test_boxes_are_no_larger_than_their_objects(streets):
    for scan in streets:
        size = {
            name: scan.objects.boxes[scan.objects.classes == name, 3:6]
            for name in ("vehicle", "person", "pole")
        }
        assert ((size["vehicle"] >= [3.4, 1.5, 1.3]) & (size["vehicle"] <= [10.1, 2.7, 3.9])).all()
        assert ((size["person"] >= [0.1, 0.3, 0.8]) & (size["person"] <= [1.2, 0.9, 2.2])).all()
        assert (size["pole"][:, 2] <= 10.5).all()


def alone(*rows):
    """A vehicle 15 m ahead, and rows of (center, half) before it, without ground."""
    rows = (((15.0, 0, 1), (2.0, 1, 1)), *rows)
    number = len(rows)
    solids = Solids(
        np.full(number, BOX, np.int8),
        np.array([center for center, _ in rows], float),
        np.array([half for _, half in rows], float),
        np.zeros(number),
        np.array([VEHICLE, *[BUILDING] * (number - 1)], np.int32),
        np.full(number, 0.5),
        np.zeros(number),
    )
    return StreetScene(solids, None, PlacedObjects([(VEHICLE, Pose(15.0, 0, 0, 0), 0, 1)]))


def test_hidden_objects_drop_out():
    seen = simulate_objects(0, scene=alone())
    np.testing.assert_allclose(seen.objects.boxes, [[15.0, 0, 1, 4, 2, 2, 0]])
    assert seen.about[0] == len(seen.cloud) > 30
    part = simulate_objects(0, scene=alone(((10.0, 2.0, 1), (0.1, 2.0, 3))))
    assert 5 < part.about[0] < 0.7 * seen.about[0]
    wall = ((10.0, 0, 1), (0.1, 6, 3))
    assert len(simulate_objects(0, scene=alone(wall)).objects) == 0
    assert simulate_objects(0, scene=alone(wall), min_points=0).about == [0]


def test_few_points_are_no_truth():
    scene = street_scene(3)
    seen = simulate_objects(3, scene=scene)
    assert (seen.about >= 5).all()
    every = simulate_objects(3, scene=scene, min_points=0)
    assert len(every.objects) == len(scene.placed) > len(seen.objects)
    few = simulate_objects(3, scene=scene, min_points=20)
    np.testing.assert_array_equal(few.objects.boxes, every.objects.boxes[every.about >= 20])
    bare = simulate_objects(3, scene=dataclasses.replace(scene, placed=None))
    assert len(bare.objects) == 0
    with pytest.raises(InputError, match="min_points=-1 must be at least 0"):
        simulate_objects(3, min_points=-1)
