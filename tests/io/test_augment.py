"""Random changes of a cloud."""

from functools import partial

import numpy as np
import pytest

from voxax.errors import InputError
from voxax.io.augment import compose, crop, drop, flip, jitter, rotate_z, scale
from voxax.io.point_cloud import PointCloud

EVERY = {
    "rotate_z": rotate_z,
    "flip": flip,
    "scale": scale,
    "jitter": jitter,
    "crop": partial(crop, radius=8.0),
    "drop": partial(drop, probability=0.3),
}


def scene(count=500, seed=1, shift=(0.0, 0.0, 0.0)) -> PointCloud:
    rng = np.random.default_rng(seed)
    normals = rng.normal(size=(count, 3))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    return PointCloud(
        rng.uniform(-10, 10, (count, 3)) + np.array(shift),
        {"row": np.arange(count), "normals": normals.astype(np.float32)},
        np.arange(count) % 7,
        "made up",
    )


@pytest.mark.parametrize("name", EVERY)
def test_same_seed_same_cloud_and_input_untouched(name):
    cloud = scene()
    before = cloud.positions.copy(), cloud.attributes["normals"].copy()
    first = EVERY[name](cloud, np.random.default_rng(5))
    second = EVERY[name](cloud, np.random.default_rng(5))
    np.testing.assert_array_equal(first.positions, second.positions)
    np.testing.assert_array_equal(cloud.positions, before[0])
    np.testing.assert_array_equal(cloud.attributes["normals"], before[1])
    assert first.positions.dtype == np.float64
    assert first.source == "made up"


@pytest.mark.parametrize("name", EVERY)
def test_labels_and_attributes_stay_with_their_points(name, rng):
    changed = EVERY[name](scene(), rng)
    np.testing.assert_array_equal(changed.labels, changed.attributes["row"] % 7)
    assert changed.attributes["normals"].shape == (len(changed), 3)
    assert changed.attributes["normals"].dtype == np.float32


@pytest.mark.parametrize("name", EVERY)
def test_empty_cloud_stays_empty(name, rng):
    assert len(EVERY[name](scene(0), rng)) == 0


@pytest.mark.parametrize("name", EVERY)
def test_generator_is_required(name):
    with pytest.raises(InputError, match=r"got int: make one with numpy\.random\.default_rng"):
        EVERY[name](scene(), 0)


def test_rotation_keeps_heights_distances_and_angles_to_normals(rng):
    cloud = scene()
    turned = rotate_z(cloud, rng, center=(1.0, 2.0, 3.0))
    np.testing.assert_allclose(turned.positions[:, 2], cloud.positions[:, 2])
    distances = [np.linalg.norm(each.positions - [1, 2, 3], axis=1) for each in (cloud, turned)]
    np.testing.assert_allclose(*distances)
    between = [
        ((each.positions - [1, 2, 3]) * each.attributes["normals"]).sum(axis=1)
        for each in (cloud, turned)
    ]
    np.testing.assert_allclose(*between, atol=1e-5)
    assert np.abs(turned.positions - cloud.positions).max() > 0.1


def test_rotation_stays_within_its_angle(rng):
    cloud = PointCloud([[1.0, 0.0, 0.0]])
    angles = []
    for _ in range(200):
        x, y, _z = rotate_z(cloud, rng, max_angle=0.25).positions[0]
        angles.append(np.arctan2(y, x))
    assert max(np.abs(angles)) <= 0.25
    assert min(angles) < -0.2 < 0.2 < max(angles)


def test_flip_mirrors_points_and_normals_around_the_center(rng):
    cloud = scene()
    flipped = flip(cloud, rng, axes=(1,), probability=1.0, center=(0.0, 4.0, 0.0))
    np.testing.assert_allclose(flipped.positions[:, 1], 8.0 - cloud.positions[:, 1])
    np.testing.assert_array_equal(flipped.positions[:, [0, 2]], cloud.positions[:, [0, 2]])
    np.testing.assert_array_equal(
        flipped.attributes["normals"], cloud.attributes["normals"] * np.float32([1, -1, 1])
    )
    assert flip(cloud, rng, probability=0.0).positions.tolist() == cloud.positions.tolist()


def test_scale_is_one_factor(rng):
    cloud = scene()
    ratio = scale(cloud, rng, low=2.0, high=3.0).positions / cloud.positions
    assert ratio.max() - ratio.min() < 1e-12
    assert 2.0 <= ratio[0, 0] <= 3.0


def test_jitter_is_limited(rng):
    cloud = scene()
    moved = jitter(cloud, rng, sigma=1.0, limit=0.5).positions - cloud.positions
    assert np.abs(moved).max() == pytest.approx(0.5)
    assert moved.std() > 0.3


def test_crop_box_and_ball(rng):
    cloud = scene(2000)
    box = crop(cloud, rng, size=(4.0, 6.0, np.inf))
    assert 0 < len(box) < len(cloud)
    assert np.all(np.ptp(box.positions, axis=0)[:2] <= [4.0, 6.0])
    assert np.ptp(box.positions[:, 2]) > 10
    ball = crop(cloud, rng, radius=3.0)
    gaps = np.linalg.norm(ball.positions[:, None] - ball.positions, axis=2)
    assert 0 < len(ball) < len(cloud)
    assert gaps.max(axis=1).min() <= 3.0
    assert len(crop(cloud, rng, size=1000)) == len(cloud)


def test_drop_leaves_about_its_share(rng):
    left = drop(scene(10_000), rng, probability=0.25)
    assert 7300 < len(left) < 7700
    assert np.all(np.diff(left.attributes["row"]) > 0)
    assert len(drop(scene(), rng, probability=0.0)) == 500


def test_compose_applies_in_order():
    steps = [partial(scale, low=2.0, high=2.0), partial(jitter, sigma=0.1)]
    cloud = scene()
    rng = np.random.default_rng(3)
    by_hand = cloud
    for step in steps:
        by_hand = step(by_hand, rng)
    composed = compose(steps)(cloud, np.random.default_rng(3))
    np.testing.assert_array_equal(composed.positions, by_hand.positions)
    assert compose([])(cloud, rng) is cloud
    with pytest.raises(InputError, match="got NoneType"):
        compose([])(cloud, None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(rotate_z, max_angle=-1.0), "max_angle must be >= 0, got -1.0"),
        (partial(rotate_z, center=(0, 0)), r"center must have shape \[3\], got \(0, 0\)"),
        (partial(flip, axes=(3,)), r"axes must be among 0, 1, 2, got \(3,\)"),
        (partial(flip, probability=2), r"probability must be within 0\.\.1, got 2"),
        (partial(scale, low=0.0), r"0 < low <= high, got \(0.0, 1.05\)"),
        (partial(scale, low=2.0), r"0 < low <= high, got \(2.0, 1.05\)"),
        (partial(jitter, sigma=-1), r"must be >= 0, got \(-1, 0.05\)"),
        (partial(jitter, sigma=float("nan")), r"must be >= 0, got \(nan"),
        (crop, "either size or radius, got size=None, radius=None"),
        (partial(crop, size=1, radius=1), "either size or radius, got size=1, radius=1"),
        (partial(crop, size=(1, 2)), r"one number or \[3\], got \(1, 2\)"),
        (partial(crop, size=(1, 2, 0)), r"size must be positive, got \(1, 2, 0\)"),
        (partial(crop, radius=0), "radius must be positive, got 0"),
        (partial(drop, probability=1.5), r"probability must be within 0\.\.1, got 1.5"),
    ],
)
def test_wrong_options(call, message, rng):
    with pytest.raises(InputError, match=message):
        call(scene(), rng)
