"""Check which point a pixel shows."""

import numpy as np

from voxax.plot.raster import FINE, rasterize

WHITE = np.full(3, 255, np.uint8)


def draw(plane, depth, **options):
    options = {"perspective": False, **options}
    return rasterize(
        np.asarray(plane, np.float32), np.asarray(depth, np.float32), 40, 30, np.zeros(2), 10.0,
        **options,
    )  # fmt: skip


def test_nearest_point_wins_in_any_order():
    for depth in ([1, 2], [2, 1]):
        raster = draw([[0, 0], [0, 0]], depth)
        assert set(np.unique(raster.owner)) == {-1, int(np.argmin(depth))}


def test_right_and_up():
    raster = draw([[1.0, 0.8]], [1.0])
    y, x = np.nonzero(raster.owner == 0)
    assert abs(x.mean() - (20 + 10) * FINE) < 1.5
    assert abs(y.mean() - (15 - 8) * FINE) < 1.5


def test_points_outside_are_left_out():
    assert (draw([[9.0, 0], [0, -9]], [1, 1]).owner == -1).all()


def test_near_points_are_larger():
    plane = [[x / 10, y] for y in (-1, 1) for x in range(-15, 16, 6)]
    owner = draw(plane, [1.0] * 6 + [4.0] * 6, perspective=True).owner
    assert ((owner >= 0) & (owner < 6)).sum() > 2 * (owner >= 6).sum()


def test_colors_reach_the_picture():
    raster = draw([[0, 0]], [1.0])
    picture = raster.paint(np.array([[200, 10, 10]], np.uint8), WHITE)
    assert picture.shape == (30, 40, 3)
    np.testing.assert_allclose(picture[15, 20], [200, 10, 10], atol=3)
    np.testing.assert_array_equal(picture[0, 0], WHITE)


def test_no_points():
    raster = draw(np.zeros((0, 2)), np.zeros(0))
    assert (raster.paint(np.zeros((0, 3), np.uint8), WHITE) == 255).all()
