"""Random changes of a cloud."""

import importlib.util
import os
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import interpolate, ndimage

from voxax.errors import InputError
from voxax.io.augment import (
    auto_contrast,
    chromatic_jitter,
    chromatic_translation,
    compose,
    crop,
    drop,
    drop_color,
    dropout,
    elastic_distortion,
    flip,
    jitter,
    mix3d,
    polarmix,
    rotate_z,
    scale,
    tilt,
    transform,
)
from voxax.io.point_cloud import PointCloud

COLORS = {
    "auto_contrast": partial(auto_contrast, probability=1.0),
    "chromatic_translation": partial(chromatic_translation, probability=1.0, ratio=0.3),
    "chromatic_jitter": partial(chromatic_jitter, probability=1.0, sigma=0.3),
    "drop_color": partial(drop_color, probability=1.0),
}

EVERY = {
    "rotate_z": rotate_z,
    "flip": flip,
    "scale": scale,
    "jitter": jitter,
    "crop": partial(crop, radius=8.0),
    "drop": partial(drop, probability=0.3),
    "dropout": partial(dropout, probability=1.0, ratio=0.3),
    "tilt": partial(tilt, probability=1.0),
    "elastic_distortion": partial(elastic_distortion, probability=1.0),
    **COLORS,
}


def scene(count=500, seed=1, shift=(0.0, 0.0, 0.0)) -> PointCloud:
    rng = np.random.default_rng(seed)
    normals = rng.normal(size=(count, 3))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    return PointCloud(
        rng.uniform(-10, 10, (count, 3)) + np.array(shift),
        {
            "row": np.arange(count),
            "normals": normals.astype(np.float32),
            "rgb": rng.integers(20, 200, (count, 3)).astype(np.uint8),
        },
        np.arange(count) % 7,
        "made up",
    )


@pytest.mark.parametrize("name", EVERY)
def test_same_seed_same_cloud_and_input_untouched(name):
    cloud = scene()
    before = cloud.positions.copy(), cloud.attributes["normals"].copy()
    colors = cloud.attributes["rgb"].copy()
    first = EVERY[name](cloud, np.random.default_rng(5))
    second = EVERY[name](cloud, np.random.default_rng(5))
    np.testing.assert_array_equal(first.positions, second.positions)
    np.testing.assert_array_equal(cloud.positions, before[0])
    np.testing.assert_array_equal(cloud.attributes["normals"], before[1])
    np.testing.assert_array_equal(cloud.attributes["rgb"], colors)
    np.testing.assert_array_equal(first.attributes["rgb"], second.attributes["rgb"])
    assert first.attributes["rgb"].dtype == np.uint8
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
        (partial(dropout, ratio=-1), r"ratio must be within 0\.\.1, got -1"),
        (partial(dropout, probability=2), r"probability must be within 0\.\.1, got 2"),
        (partial(tilt, max_angle=np.inf), "max_angle must be >= 0, got inf"),
        (partial(elastic_distortion, pairs=(1, 2)), "granularity > 0 .*got 1"),
        (partial(elastic_distortion, pairs=["ab"]), "granularity > 0 .*got ab"),
        (partial(rotate_z, center="abc"), "center must have shape"),
        (partial(elastic_distortion, pairs=[(0, 1)]), r"granularity > 0 .*got \(0, 1\)"),
        (partial(elastic_distortion, pairs=[(1, 1, 1)]), r"got \(1, 1, 1\)"),
        (
            partial(elastic_distortion, pairs=[(1e-4, 1)], probability=1),
            "cells of 0.0001, at most 16,777,216: give a larger granularity",
        ),
        (lambda cloud, _: transform(cloud, np.eye(2)), r"must have shape \[3, 3\], got \(2, 2\)"),
        (partial(auto_contrast, blend=2), r"blend must be within 0\.\.1, got 2"),
        (partial(chromatic_translation, ratio=2), r"ratio must be within 0\.\.1, got 2"),
        (partial(chromatic_jitter, sigma=np.nan), "sigma must be >= 0, got nan"),
        (partial(drop_color, ratio=np.nan), r"ratio must be within 0\.\.1, got nan"),
    ],
)
def test_wrong_options(call, message, rng):
    with pytest.raises(InputError, match=message):
        call(scene(), rng)


def of_colors(colors) -> PointCloud:
    return PointCloud(np.zeros((len(colors), 3)), {"rgb": colors}, source="made up")


@pytest.mark.parametrize("name", COLORS)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
def test_colors_keep_dtype_and_range(name, dtype, rng):
    full = np.iinfo(dtype).max if dtype in (np.uint8, np.uint16) else 1.0
    colors = (rng.uniform(0.2, 0.7, (300, 3)) * full).astype(dtype)
    changed = COLORS[name](of_colors(colors), rng).attributes["rgb"]
    assert changed.dtype == dtype
    assert changed.shape == colors.shape
    assert changed.min() >= 0
    assert changed.max() <= full
    assert np.abs(changed.astype(float) - colors).max() > 0.01 * full


@pytest.mark.parametrize("name", COLORS)
def test_colors_are_needed_and_of_a_known_range(name, rng):
    change = COLORS[name]
    bare = PointCloud(np.zeros((2, 3)), source="scan.bin")
    with pytest.raises(InputError, match=r"scan.bin has no attribute rgb: .* need rgb \[N, 3\]"):
        change(bare, rng)
    with pytest.raises(InputError, match=r"rgb of shape \[2\]"):
        change(of_colors(np.zeros(2, np.uint8)), rng)
    for wrong in (np.full((2, 3), 255.0), np.full((2, 3), -1, np.int64), np.full((2, 3), np.nan)):
        with pytest.raises(InputError, match="give unsigned integers, or floats from 0 to 1"):
            change(of_colors(wrong), rng)


def test_auto_contrast_spans_the_range_and_leaves_constant_channels(rng):
    colors = rng.integers(50, 100, (200, 3)).astype(np.uint8)
    colors[:, 1] = 77
    full = auto_contrast(of_colors(colors), rng, probability=1.0, blend=1.0).attributes["rgb"]
    assert full.min(axis=0).tolist() == [0, 77, 0]
    assert full.max(axis=0).tolist() == [255, 77, 255]
    none = auto_contrast(of_colors(colors), rng, probability=1.0, blend=0.0).attributes["rgb"]
    np.testing.assert_array_equal(none, colors)


def test_drop_color_and_dropout_take_their_share(rng):
    colors = np.full((1000, 3), 9, np.uint8)
    dark = drop_color(of_colors(colors), rng, ratio=0.25, probability=1.0).attributes["rgb"]
    assert (dark == 0).all(axis=1).sum() == 250
    assert ((dark == 0).all(axis=1) | (dark == 9).all(axis=1)).all()
    left = dropout(scene(1000), rng, ratio=0.2, probability=1.0)
    assert len(left) == 800
    assert np.all(np.diff(left.attributes["row"]) > 0)


RARE = {
    "tilt": tilt,
    "dropout": dropout,
    "elastic_distortion": elastic_distortion,
    "auto_contrast": auto_contrast,
    "chromatic_translation": chromatic_translation,
    "chromatic_jitter": chromatic_jitter,
    "drop_color": drop_color,
}


@pytest.mark.parametrize("name", RARE)
def test_probability_decides(name):
    cloud = scene(50)
    cloud.positions[:] *= 0.01
    changes = [
        RARE[name](cloud, np.random.default_rng(seed), probability=p) is not cloud
        for p in (0.0, 0.4, 1.0)
        for seed in range(200)
    ]
    assert sum(changes[:200]) == 0
    expected = 0.64 if name == "tilt" else 0.4  # around either axis
    assert abs(np.mean(changes[200:400]) - expected) < 0.12
    assert sum(changes[400:]) == 200


def test_tilt_turns_points_and_normals_around_their_middle(rng):
    cloud = scene(shift=(5.0, 3.0, 1.0))
    turned = tilt(cloud, rng, max_angle=0.1, probability=1.0)
    middle = (cloud.positions.min(0) + cloud.positions.max(0)) / 2
    again = np.random.default_rng(8)
    about_x = tilt(cloud, again, max_angle=0.1, probability=1.0, center=middle)
    assert np.abs(turned.positions - cloud.positions).max() > 0.01
    for each in (turned, about_x):
        lengths = [np.linalg.norm(np.diff(c.positions, axis=0), axis=1) for c in (each, cloud)]
        np.testing.assert_allclose(*lengths)
        angles = [
            (np.diff(c.positions, axis=0) * c.attributes["normals"][1:]).sum(1)
            for c in (each, cloud)
        ]
        np.testing.assert_allclose(*angles, atol=1e-5)


def distorted(positions, noises, pairs):
    """The positions after elastic distortion, in float64, with the noise of each pair."""
    box = np.ones((3, 3, 3, 1)) / 27
    for noise, (granularity, magnitude) in zip(noises, pairs, strict=True):
        smooth = noise.astype(np.float64)
        for _ in range(2):
            smooth = ndimage.convolve(smooth, box, mode="constant")
        low = positions.min(0) - granularity
        axes = [a + granularity * np.arange(n) for a, n in zip(low, noise.shape[:3], strict=True)]
        inside = np.minimum(positions, [axis[-1] for axis in axes])
        positions = (
            positions + interpolate.RegularGridInterpolator(axes, smooth)(inside) * magnitude
        )
    return positions


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 60),
    st.tuples(*[st.floats(0.0, 4.0)] * 3),
    st.lists(st.tuples(st.floats(0.3, 3.0), st.floats(0.0, 5.0)), max_size=2),
)
def test_elastic_distortion_equals_an_oracle(seed, count, spread, pairs):
    rng = np.random.default_rng(seed)
    cloud = PointCloud(rng.uniform(-1, 1, (count, 3)) * spread + 100)
    noises, again = [], np.random.default_rng(7)
    again.random()
    place = cloud.positions
    for granularity, magnitude in pairs:
        shape = np.floor(np.ptp(place, axis=0) / granularity).astype(int) + 3
        noises.append(again.standard_normal((*shape, 3), np.float32))
        place = distorted(place, noises[-1:], [(granularity, magnitude)])
    moved = elastic_distortion(cloud, np.random.default_rng(7), pairs=pairs, probability=1.0)
    np.testing.assert_allclose(moved.positions, place, atol=1e-5)


def test_elastic_distortion_is_smooth_and_refuses_what_is_not_finite(rng):
    cloud = PointCloud(np.repeat(rng.uniform(0, 5, (500, 3)), 2, 0))
    cloud.positions[1::2] += 1e-3
    moved = elastic_distortion(cloud, rng, probability=1.0).positions - cloud.positions
    assert np.abs(moved).max() > 0.05
    assert np.abs(moved[::2] - moved[1::2]).max() < 0.01
    cloud.positions[3, 1] = np.nan
    with pytest.raises(InputError, match="positions must be finite"):
        elastic_distortion(cloud, rng, probability=1.0)


def test_mix3d_joins_two_clouds_at_one_place():
    first, second = scene(300), scene(200, seed=2, shift=(100.0, -50.0, 7.0))
    both = mix3d(first, second)
    assert len(both) == 500
    np.testing.assert_array_equal(both.positions[:300], first.positions)
    np.testing.assert_array_equal(both.labels, np.concatenate([first.labels, second.labels]))
    np.testing.assert_array_equal(both.attributes["rgb"][300:], second.attributes["rgb"])
    moved = both.positions[300:]
    np.testing.assert_allclose(np.ptp(moved - second.positions, axis=0), 0, atol=1e-9)
    assert moved[:, 2].min() == pytest.approx(first.positions[:, 2].min())
    for axis in (0, 1):
        middles = [(c[:, axis].min() + c[:, axis].max()) / 2 for c in (moved, first.positions)]
        assert middles[0] == pytest.approx(middles[1])
    plain = mix3d(first, second, centered=False)
    np.testing.assert_array_equal(plain.positions[300:], second.positions)
    assert len(mix3d(scene(0), second)) == len(mix3d(second, scene(0))) == 200
    bare = PointCloud(np.zeros((4, 3)), {"rgb": np.zeros((4, 3), np.uint8)}, np.zeros(4, int))
    assert set(mix3d(first, bare).attributes) == {"rgb"}
    with pytest.raises(InputError, match="one cloud has labels and the other none"):
        mix3d(first, bare.with_labels(None))
    wide = PointCloud(np.zeros((4, 3)), {"rgb": np.zeros((4, 3), np.uint16)}, np.zeros(4, int))
    with pytest.raises(InputError, match=r"'rgb' is uint8\[300, 3\] in one .*uint16\[4, 3\]"):
        mix3d(first, wide)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 80), st.integers(0, 80), st.booleans())
def test_polarmix_takes_half_a_turn_and_three_times_the_objects(seed, count, more, swapped):
    first, second = scene(count), scene(more, seed=2)
    second.attributes["row"][:] += 1000
    mixed = polarmix(
        first, second, np.random.default_rng(seed), pasted=[2, 5], probability=float(swapped)
    )
    objects = second.select(np.isin(second.labels, [2, 5]))
    number = len(objects)
    rest = mixed.select(slice(0, len(mixed) - 3 * number))
    rows = rest.attributes["row"]
    if swapped:
        assert len(np.unique(rows)) == len(rows)
    else:
        np.testing.assert_array_equal(rest.positions, first.positions)
    taken = rows >= 1000
    for kept, source in ((rows[~taken], first), (rows[taken] - 1000, second)):
        np.testing.assert_array_equal(
            rest.positions[taken == (source is second)], source.positions[kept]
        )
    angle = np.arctan2(*rest.positions[:, 1::-1].T)
    if swapped and taken.any() and (~taken).any():
        # A line through the sensor divides the two.
        begins = np.linspace(-np.pi, 0, 2000)
        inside = (angle > begins[:, None]) & (angle < begins[:, None] + np.pi)
        assert (inside == taken).all(axis=1).any()
    angles = []
    for turn in range(3):
        pasted = mixed.select(slice(len(rest) + turn * number, len(rest) + (turn + 1) * number))
        np.testing.assert_array_equal(pasted.labels, objects.labels)
        np.testing.assert_allclose(pasted.positions[:, 2], objects.positions[:, 2])
        if number:
            own, turned = (c.positions[0, 0] + 1j * c.positions[0, 1] for c in (objects, pasted))
            angles.append(np.angle(turned / own) % (2 * np.pi))
            back = (pasted.positions[:, 0] + 1j * pasted.positions[:, 1]) * own / turned
            np.testing.assert_allclose(back.real, objects.positions[:, 0], atol=1e-9)
    if angles:
        assert min(angles[0], 2 * np.pi - angles[0]) < 1e-9
        assert angles[1] <= 2 * np.pi / 3 <= angles[2] <= 4 * np.pi / 3


@pytest.mark.parametrize("seed", range(6))
def test_polarmix_equals_its_authors(monkeypatch, seed):
    root = os.environ.get("VOXAX_TEST_POLARMIX")
    if not root:
        pytest.skip("set VOXAX_TEST_POLARMIX to a clone of PolarMix")
    path = Path(root) / "core" / "datasets" / "utils.py"
    spec = importlib.util.spec_from_file_location("polarmix_utils", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    first, second = scene(400, seed), scene(300, seed + 50)
    rng, third = np.random.default_rng(seed), 2 * np.pi / 3
    turns = rng.uniform(0, third), rng.uniform(third, 2 * third)
    swaps = rng.random()
    begin = rng.uniform(-np.pi, 0) if swaps < 0.5 else 0.0
    monkeypatch.setattr(module.np.random, "random", lambda: swaps)
    rows = [np.column_stack([c.positions, c.attributes["row"]]) for c in (first, second)]
    # Their angle turns the other way.
    theirs, labels = module.polarmix(
        rows[0], first.labels, rows[1], second.labels, -begin - np.pi, -begin, [2, 5], turns
    )
    own = polarmix(first, second, np.random.default_rng(seed), pasted=[2, 5])
    mine = np.column_stack([own.positions, own.attributes["row"], own.labels])
    theirs = np.column_stack([theirs, labels])
    assert mine.shape == theirs.shape
    mine, theirs = (table[np.lexsort(table.round(6).T)] for table in (mine, theirs))
    np.testing.assert_allclose(mine, theirs, atol=1e-9)


def test_polarmix_needs_labels_and_a_generator(rng):
    cloud = scene(20)
    with pytest.raises(InputError, match="made up has no labels, which polarmix needs"):
        polarmix(cloud, cloud.with_labels(None), rng, pasted=[1])
    with pytest.raises(InputError, match="got int"):
        polarmix(cloud, cloud, 3, pasted=[1])
    with pytest.raises(InputError, match="pasted must be integers, labels of objects, got ab"):
        polarmix(cloud, cloud, rng, pasted="ab")
    with pytest.raises(InputError, match=r"transforms must be functions .*got 3"):
        compose([3])
    with pytest.raises(InputError, match=r"probability must be within 0\.\.1, got 2"):
        polarmix(cloud, cloud, rng, pasted=[1], probability=2)


@pytest.fixture(scope="module")
def pointcept():
    """The transforms of Pointcept, from the clone that ``VOXAX_TEST_POINTCEPT`` names."""
    root = os.environ.get("VOXAX_TEST_POINTCEPT")
    if not root:
        pytest.skip("set VOXAX_TEST_POINTCEPT to a clone of Pointcept")
    pytest.importorskip("torch")

    def registry(name):
        return SimpleNamespace(register_module=lambda *_, **__: lambda own: own)

    stubs = {
        "torchvision": {"transforms": SimpleNamespace()},
        "pointcept": {},
        "pointcept.utils": {},
        "pointcept.utils.registry": {"Registry": registry},
    }
    before = {name: sys.modules.get(name) for name in stubs}
    for name, contents in stubs.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(contents)
    try:
        path = Path(root) / "pointcept" / "datasets" / "transform.py"
        spec = importlib.util.spec_from_file_location("pointcept_transform", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        for name, module_before in before.items():
            if module_before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module_before
    return module


class Same:
    """``random`` and ``numpy.random`` for Pointcept, with the numbers of a generator of ours."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def random(self):
        return self.rng.random()

    def uniform(self, low, high, size=None):
        return self.rng.uniform(low, high, size)

    def rand(self, *shape):
        return self.rng.random(shape) if shape else self.rng.random()

    def randn(self, *shape):
        kind = np.float32 if len(shape) == 4 else np.float64
        return self.rng.standard_normal(shape, kind)

    def choice(self, number, size, replace):
        return self.rng.choice(number, size, replace=replace)


CASES = {
    "elastic": ("ElasticDistortion", {}, elastic_distortion),
    "contrast": ("ChromaticAutoContrast", {"p": 1.0}, partial(auto_contrast, probability=1.0)),
    "translation": ("ChromaticTranslation", {}, chromatic_translation),
    "jitter": ("ChromaticJitter", {}, chromatic_jitter),
    "drop color": ("RandomDropColor", {}, drop_color),
    "dropout": ("RandomDropout", {}, dropout),
    "tilt": ("RandomRotate", {"angle": [-1 / 64, 1 / 64], "axis": "x"}, tilt),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(5))
def test_equal_to_pointcept(pointcept, monkeypatch, name, seed):
    kind, options, own = CASES[name]
    cloud = scene(400, seed=seed)
    cloud.positions[:] *= 0.2
    theirs = {
        "coord": cloud.positions.copy(),
        "color": cloud.attributes["rgb"].astype(np.float64),
        "normal": cloud.attributes["normals"].astype(np.float64),
        "segment": cloud.labels.copy(),
    }
    same = Same(seed)
    numpy = SimpleNamespace(**{n: getattr(np, n) for n in dir(np) if not n.startswith("_")})
    numpy.random = same
    # SciPy 2 has no `ndimage.filters`.
    scipy = SimpleNamespace(ndimage=SimpleNamespace(filters=ndimage), interpolate=interpolate)
    for module, stub in (("np", numpy), ("random", same), ("scipy", scipy)):
        monkeypatch.setattr(pointcept, module, stub)
    made = getattr(pointcept, kind)(**options)(theirs)
    if name == "tilt":
        made = pointcept.RandomRotate(angle=[-1 / 64, 1 / 64], axis="y")(made)
    changed = own(cloud, np.random.default_rng(seed))
    order = slice(None)
    if name == "dropout":  # Pointcept shuffles
        order = np.argsort(made["coord"][:, 0])
        changed = changed.select(np.argsort(changed.positions[:, 0]))
    np.testing.assert_allclose(changed.positions, made["coord"][order], atol=1e-5)
    np.testing.assert_array_equal(changed.labels, made["segment"][order])
    np.testing.assert_allclose(changed.attributes["normals"], made["normal"][order], atol=1e-6)
    # Pointcept does not round.
    off = np.abs(changed.attributes["rgb"] - made["color"][order])
    assert off.max(initial=0) <= 0.5 + 1e-9
