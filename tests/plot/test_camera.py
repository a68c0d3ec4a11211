"""Axes, extent and projection."""

import numpy as np
import pytest

from voxax.errors import InputError
from voxax.plot.camera import UPRIGHT, compose, drawn_box, from_above, in_perspective


@pytest.mark.parametrize("up", list(UPRIGHT))
def test_axes_are_rotations_with_up_on_top(up):
    axes = UPRIGHT[up]
    np.testing.assert_allclose(axes @ axes.T, np.eye(3))
    assert np.linalg.det(axes) == pytest.approx(1)
    top = np.zeros(3)
    top["xyz".index(up[-1])] = -1 if up.startswith("-") else 1
    np.testing.assert_array_equal(axes @ top, [0, 0, 1])


def test_long_scenes_lie_on_their_side(rng):
    scene = compose(rng.uniform(0, [10, 40, 5], (500, 3)))
    assert (scene.right, scene.away) == ("+y", "-x")
    assert scene.size[0] > scene.size[1]
    assert np.linalg.det(scene.to_cloud) == pytest.approx(1)


def test_even_clouds_are_not_clipped(rng):
    points = rng.uniform(0, [300, 200, 30], (5000, 3))
    low, high = drawn_box(points)
    np.testing.assert_array_equal(low, points.min(axis=0))
    np.testing.assert_array_equal(high, points.max(axis=0))


def test_long_tails_are_clipped_and_counted(rng):
    points = np.concatenate([rng.uniform(-20, 20, (5000, 3)), rng.uniform(80, 90, (20, 3))])
    scene = compose(points)
    assert scene.clipped == 20
    assert scene.size.max() < 45


def test_a_few_high_points_are_kept(rng):
    ground = rng.uniform([0, 0, 0], [50, 50, 1], (10_000, 3))
    tower = rng.uniform([20, 20, 0], [22, 22, 12], (200, 3))
    assert compose(np.concatenate([ground, tower])).clipped == 0


def test_perspective_is_true_to_scale_at_the_center():
    scene = compose(
        np.array([[-1.0, 0, 0], [1, 0, 0], [0, 0, 0.5], [0, 0, -0.5]]), origin_view=(-90, 0)
    )
    plane, depth = in_perspective(scene)
    np.testing.assert_allclose(plane, [[-1, 0], [1, 0], [0, 0.5], [0, -0.5]], atol=1e-6)
    np.testing.assert_allclose(depth, depth[0])


def test_near_is_larger_than_far():
    points = np.array([[-1.0, -1, 0], [1, -1, 0], [-1, 1, 0], [1, 1, 0]])
    plane, depth = in_perspective(compose(points, origin_view=(-90, 10)))
    assert depth[0] < depth[2]
    assert plane[1, 0] - plane[0, 0] > plane[3, 0] - plane[2, 0]


def test_higher_points_are_nearer_from_above():
    _, depth = from_above(compose(np.array([[0.0, 0, 0], [1, 0, 2]])))
    assert depth.tolist() == [2, 0]


def test_far_coordinates_keep_millimeters():
    base = np.array([85_000.0, 447_000.0, 3.0])
    scene = compose(base + np.array([[0, 0, 0], [0.002, 0, 0], [5, 4, 1]]))
    assert scene.points[1, 0] - scene.points[0, 0] == pytest.approx(0.002, abs=1e-6)


def test_unknown_axis_or_view():
    with pytest.raises(InputError, match="up must be"):
        compose(np.zeros((1, 3)), "x")
    with pytest.raises(InputError, match="origin_view"):
        compose(np.zeros((1, 3)), origin_view="left")
    with pytest.raises(InputError, match="origin_view"):
        compose(np.zeros((1, 3)), origin_view=(np.nan, 3))
    with pytest.raises(InputError, match="elevation"):
        compose(np.zeros((1, 3)), origin_view=(0, 90))
