"""Votes of tiles and views are the sums that they are defined as."""

import numpy as np
import pytest

from voxax.cli.voting import Vote
from voxax.errors import InputError
from voxax.io import PointCloud


def softmax(values):
    shares = np.exp(values - values.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def test_every_point_is_in_four_tiles(rng):
    """Logits that depend on the tile are summed point by point over the tiles that hold it."""
    positions = rng.uniform((-5, 20, 0), (25, 38, 2), (400, 3))
    positions = positions[(positions[:, 0] < 5) | (positions[:, 0] > 14)]  # a gap of whole tiles
    cloud = PointCloud(positions, {"number": np.arange(len(positions))})
    seen = []

    def logits(part):
        seen.append(part)
        middle = part.positions.mean(axis=0)
        return np.stack([np.sin(part.positions @ middle * k) for k in (1, 2, 3)], 1).astype("f4")

    labels = Vote(tile=4.0)(cloud, logits)
    expected, counts = np.zeros((len(cloud), 3)), np.zeros(len(cloud), int)
    low = positions[:, :2].min(axis=0)
    for i in range(-1, 16):
        for j in range(-1, 10):
            begin = low + 2.0 * np.array([i, j])
            offset = np.floor((positions[:, :2] - low) / 2.0) - [i, j]
            inside = np.flatnonzero(((offset == 0) | (offset == 1)).all(axis=1))
            assert (np.abs(positions[inside, :2] - begin - 2) <= 2 + 1e-9).all()
            if len(inside):
                part = cloud.select(inside)
                expected[inside] += softmax(logits(part).astype(float))
                counts[inside] += 1
    assert (counts == 4).all()
    np.testing.assert_array_equal(labels, expected.argmax(1))
    assert max(len(part) for part in seen) < 40


def test_views_are_turned(rng):
    cloud = PointCloud(rng.normal(size=(50, 3)), {"normals": rng.normal(size=(50, 3)).astype("f4")})
    weights = rng.normal(size=(3, 4))

    def logits(part):
        return (3 * part.positions @ weights + part.attributes["normals"] @ weights).astype("f4")

    labels = Vote(views=4)(cloud, logits)
    expected = np.zeros((50, 4))
    for turns in range(4):
        moved, normals = cloud.positions, cloud.attributes["normals"].astype(float)
        for _ in range(turns):  # a quarter to the left: x to y, y to -x
            moved, normals = (np.stack([-v[:, 1], v[:, 0], v[:, 2]], 1) for v in (moved, normals))
        expected += softmax(3 * moved @ weights + normals @ weights)
    np.testing.assert_array_equal(labels, expected.argmax(1))
    np.testing.assert_array_equal(Vote()(cloud, logits), logits(cloud).argmax(1))


def test_limits():
    for wrong in ({"tile": -1}, {"tile": float("nan")}, {"views": 0}, {"views": 65}):
        with pytest.raises(InputError, match=f"--{next(iter(wrong))} "):
            Vote(**wrong)
    with pytest.raises(InputError, match=r"--tile 1 must be at least 16 voxels of 0\.1 m: 1\.6"):
        Vote(tile=1).check(0.1)
    Vote(tile=2).check(0.1)
