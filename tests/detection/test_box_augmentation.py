"""Boxes move with their points, and objects are put where there is room."""

import numpy as np
import pytest
from box_samples import random_boxes

from voxax.detection import (
    ObjectBank,
    augment,
    bev_corners,
    bev_overlap,
    corners,
    flip,
    points_in_boxes,
    rotate,
    scale,
    translate,
)
from voxax.errors import InputError


@pytest.fixture
def scene(rng):
    boxes = np.concatenate([random_boxes(rng, 12, 6.0), rng.normal(size=(12, 2))], axis=1)
    points = np.concatenate([rng.uniform(-8, 8, (4000, 3)), rng.random((4000, 1))], axis=1)
    return points, boxes


CHANGES = {
    "flip x": lambda p, b: flip(p, b, 0),
    "flip y": lambda p, b: flip(p, b, 1),
    "rotate": lambda p, b: rotate(p, b, 2.5),
    "scale": lambda p, b: scale(p, b, 1.3),
    "translate": lambda p, b: translate(p, b, (1.0, -2.0, 0.5)),
    "all": lambda p, b: augment(p, b, np.random.default_rng(4), offset_sigma=0.3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_points_stay_in_their_boxes(scene, name):
    points, boxes = scene
    before = points.copy(), boxes.copy()
    new_points, new_boxes = CHANGES[name](points, boxes)
    np.testing.assert_array_equal(points_in_boxes(new_points, new_boxes), points_in_boxes(*scene))
    assert points_in_boxes(*scene).sum() > 100
    np.testing.assert_array_equal(points, before[0])
    np.testing.assert_array_equal(boxes, before[1])
    np.testing.assert_array_equal(new_points[:, 3], points[:, 3])
    if name not in ("scale", "translate"):
        assert (np.abs(new_boxes[:, 6]) <= np.pi).all()


@pytest.mark.parametrize("name", CHANGES)
def test_heading_and_velocity_move_as_points_do(scene, name):
    """The middle of the front side, and the center a second later."""
    _, boxes = scene
    front = bev_corners(boxes)[:, [0, 3]].mean(axis=1)
    later = boxes[:, :2] + boxes[:, 7:]
    points = np.concatenate([front, later])
    points = np.concatenate([points, np.zeros((24, 1))], axis=1)
    moved, new = CHANGES[name](points, boxes)
    np.testing.assert_allclose(bev_corners(new)[:, [0, 3]].mean(axis=1), moved[:12, :2], atol=1e-9)
    np.testing.assert_allclose(new[:, :2] + new[:, 7:], moved[12:, :2], atol=1e-9)


def test_dtypes_and_no_boxes(scene):
    points, boxes = scene
    moved = augment(
        points.astype(np.float32), boxes[:0, :7].astype(np.float32), np.random.default_rng(0)
    )
    assert [part.dtype for part in moved] == [np.float32, np.float32]
    assert moved[1].shape == (0, 7)


def test_corners_and_points(rng):
    boxes = random_boxes(rng, 10)
    ends = corners(boxes)
    np.testing.assert_allclose(ends[:, :4, :2], bev_corners(boxes))
    np.testing.assert_allclose(ends.mean(axis=1), boxes[:, :3], atol=1e-12)
    shrunk = boxes[:, None, :3] + 0.999 * (ends - boxes[:, None, :3])
    for i in range(10):
        assert points_in_boxes(shrunk[i], boxes)[:, i].all()
        grown = boxes[i, :3] + 1.001 * (ends[i] - boxes[i, :3])
        assert not points_in_boxes(grown, boxes)[:, i].any()


@pytest.fixture
def bank(rng):
    made = ObjectBank(min_points=5)
    for _ in range(20):
        boxes = random_boxes(rng, 6, 20.0)
        boxes[:, 3:6] += 1.0
        points = rng.uniform(-22, 22, (20_000, 4))
        points[:, 2] = rng.uniform(-3, 3, 20_000)
        made.add(points, boxes, ["car", "car", "car", "person", "person", "person"])
    return made


def test_objects_fill_the_free_room(rng, bank):
    assert min(len(stock) for stock in bank.objects.values()) > 5
    boxes = random_boxes(rng, 5, 20.0)
    points = rng.uniform(-22, 22, (3000, 4))
    classes = np.array(["car"] * 4 + ["person"])
    counts = {"car": 8, "person": 30}
    new_points, new_boxes, new_classes = bank.fill(points, boxes, classes, rng, counts)
    added = new_boxes[5:]
    np.testing.assert_array_equal(new_boxes[:5], boxes)
    np.testing.assert_array_equal(new_classes[:5], classes)
    assert 4 <= len(added) <= 33
    assert np.sum(new_classes == "car") <= 8
    assert np.sum(new_classes == "person") <= 30
    shared = bev_overlap(new_boxes[:, None], added[None])
    own = np.arange(len(new_boxes))[:, None] == np.arange(5, len(new_boxes))[None]
    assert (shared[~own] == 0).all()
    # In each added box there are its own points and no others.
    stock = [one for objects in bank.objects.values() for one in objects]
    inside = points_in_boxes(new_points, added)
    for box, mine in zip(added, inside.T, strict=True):
        (source,) = [one for one in stock if np.array_equal(one.box, box)]
        assert len(source.points) >= 5
        np.testing.assert_array_equal(new_points[mine], source.points)
    was_inside = points_in_boxes(points, added).any(axis=1)
    kept = len(points) - was_inside.sum()
    np.testing.assert_array_equal(new_points[:kept], points[~was_inside])


def test_a_full_scene_and_an_empty_one(rng, bank):
    points, boxes = np.zeros((0, 4)), np.zeros((0, 7))
    same = bank.fill(points, boxes, np.zeros(0, "U3"), rng, {"car": 0})
    assert [len(part) for part in same] == [0, 0, 0]
    new_points, new_boxes, classes = bank.fill(points, boxes, [], rng, {"person": 3})
    assert 1 <= len(new_boxes) <= 3
    assert set(classes.tolist()) == {"person"}
    assert points_in_boxes(new_points, new_boxes).any(axis=1).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p, b: flip(p, b, 2), "axis=2: give 0"),
        (lambda p, b: rotate(p, b, np.nan), "angle="),
        (lambda p, b: scale(p, b, 0.0), "factor=0.0 must be positive"),
        (lambda p, b: scale(p, b * [1, 1, 1, -1, 1, 1, 1, 1, 1], 1.0), r"boxes\[0\] has length=-"),
        (lambda p, b: scale(p[:, :2], b, 1.0), r"points of shape \[4000, 2\]"),
        (lambda p, b: translate(p, b, (1, 2)), "offset=.*give 3 finite numbers"),
        (lambda p, b: augment(p, b, np.random.default_rng(), scales=(1.1, 0.9)), "scales="),
        (lambda p, b: augment(p, b, np.random.default_rng(0), flips=(2,)), "axis=2: give 0"),
        (lambda p, b: augment(p, b, np.random.default_rng(1), flips=(2,)), "axis=2: give 0"),
        (lambda p, b: augment(p, b, np.random.default_rng(), max_angle=-1), "max_angle=-1"),
        (lambda p, b: augment(p, b, np.random.default_rng(), offset_sigma=-1), "offset_sigma=-1"),
        (
            lambda p, b: ObjectBank().fill(p, b, [0] * 12, np.random.default_rng(), {"bus": 1}),
            "no objects of class 'bus'",
        ),
        (lambda p, b: augment(p, b, 3), "rng=3 must be a numpy.random.Generator"),
        (lambda p, b: ObjectBank().fill(p, b, [0] * 12, rng=3, counts={}), "rng=3 must be"),
        (lambda p, b: rotate(p, b, "left"), "angle=.*give 1 finite numbers"),
        (lambda p, b: ObjectBank().add(p, b, [0]), r"classes of shape \[1\] for 12 boxes"),
    ],
)
def test_bad_input(scene, make, message):
    with pytest.raises(InputError, match=message):
        make(*scene)


def test_scenes_with_other_columns(scene, bank, rng):
    points, boxes = scene
    with pytest.raises(InputError, match="boxes with 9 columns, and objects in the bank with 7"):
        bank.fill(points, boxes, [0] * 12, rng, {"car": 1})
    with pytest.raises(InputError, match="points with 3 columns"):
        bank.add(points[:, :3], boxes[:, :7], [0] * 12)
