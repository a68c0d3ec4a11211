"""Neighbor search against all distances, sorted in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from oracle import point_operators as oracle
from samples import slow_unless
from voxax.errors import CapacityError, InputError
from voxax.geometry import knn_search, radius_search


def clouds(ndim, rng, number=90, queries=40):
    """Two scenes that overlap, negative coordinates, points that coincide, padding rows."""
    p = rng.uniform(-3, 2, (number, ndim)).astype(np.float32)
    p[10:20] = p[:10]
    q = np.concatenate([p[: queries // 2], rng.uniform(-4, 3, (queries // 2, ndim))])
    sides = [rng.integers(0, 2, len(a)) for a in (p, q)]
    points = vx.Points.make(p, None, sides[0], batch_size=2, capacity=96)
    around = vx.Points.make(q.astype(np.float32), None, sides[1], batch_size=2, capacity=48)
    return points, around


def expected(points, around, k, radius=np.inf):
    valid = [np.asarray(c.valid) for c in (points, around)]
    lists = oracle.neighbors(
        np.asarray(points.positions)[valid[0]],
        np.asarray(points.batch_index)[valid[0]],
        np.asarray(around.positions)[valid[1]],
        np.asarray(around.batch_index)[valid[1]],
        np.float32(radius),
    )
    rows = np.full((around.capacity, k), -1)
    for m, found in enumerate(lists):
        rows[m, : min(k, len(found))] = found[:k]
    return rows, [len(found) for found in lists]


@pytest.mark.parametrize(
    ("ndim", "algorithm"),
    [
        slow_unless(m == "auto" or (d, m) == (3, "cells"), d, m)
        for d in (1, 2, 3, 4)
        for m in ("all", "cells", "auto")
    ],
)
def test_radius_search(ndim, algorithm, rng):
    points, around = clouds(ndim, rng)
    radius = 0.5 * ndim
    found = radius_search(points, around, radius=radius, capacity=64, algorithm=algorithm)
    rows, counts = expected(points, around, 64, radius)
    np.testing.assert_array_equal(found.rows, rows)
    np.testing.assert_array_equal(found.found[:40], counts)
    np.testing.assert_array_equal(found.found[40:], 0)
    assert int(found.num_dropped) == 0


@pytest.mark.parametrize("k", [1, 4, 200])
def test_nearest(k, rng):
    points, around = clouds(3, rng)
    rows, _ = expected(points, around, k)
    np.testing.assert_array_equal(knn_search(points, around, k=k).rows, rows)
    rows, _ = expected(points, around, k, 0.9)
    np.testing.assert_array_equal(knn_search(points, around, k=k, radius=0.9).rows, rows)


@pytest.mark.parametrize("algorithm", ["all", "auto", slow_unless(False, "cells")])
def test_overflow_is_reported(algorithm, rng):
    points, around = clouds(3, rng)
    rows, counts = expected(points, around, 5, 1.5)
    with pytest.raises(CapacityError, match=f"{max(counts)} neighbors, the capacity is 5"):
        radius_search(points, around, radius=1.5, capacity=5, algorithm=algorithm)
    traced = jax.jit(
        lambda r: radius_search(points, around, radius=r, capacity=5, algorithm=algorithm)
    )
    found = traced(1.5)
    np.testing.assert_array_equal(found.rows, rows)
    assert int(found.num_dropped) == sum(max(c - 5, 0) for c in counts)
    with pytest.raises(CapacityError):
        found.raise_if_overflowed()
    assert int(traced(1e-9).num_dropped) == 0
    assert traced._cache_size() == 1


@pytest.mark.slow
def test_many_points_in_cells(rng):
    """More rows than a block, and scenes far from the origin and from each other."""
    p = rng.uniform(0, 12, (4200, 3)).astype(np.float32) + np.float32([1000, -500, 0])
    side = rng.integers(0, 2, 4200)
    p[side == 1] += np.float32(3000)
    points = vx.Points.make(p, None, side, batch_size=2)
    around = vx.Points.make(p[:1100], None, side[:1100], batch_size=2)
    both = [
        radius_search(points, around, radius=2.0, capacity=128, algorithm=algorithm)
        for algorithm in ("all", "cells")
    ]
    np.testing.assert_array_equal(both[0].rows, both[1].rows)
    np.testing.assert_array_equal(both[0].found, both[1].found)
    assert int(both[0].found.max()) > 40


@pytest.mark.parametrize("algorithm", ["auto", *(slow_unless(False, m) for m in ("all", "cells"))])
def test_what_is_not_there_is_no_neighbor(algorithm):
    """Padding that holds garbage, points that are not finite, empty clouds."""
    p = jnp.asarray([[0.0, 0], [1, 0], [jnp.nan, 0], [0, 0], [jnp.inf, 0]])
    points = vx.Points(p, jnp.zeros(5, jnp.int32), jnp.ones((5, 1)), jnp.int32(3))
    found = radius_search(points, radius=5.0, capacity=4, algorithm=algorithm)
    np.testing.assert_array_equal(found.rows[:3, :2], [[0, 1], [1, 0], [-1, -1]])
    np.testing.assert_array_equal(found.found, [2, 2, 0, 0, 0])
    empty = vx.Points.make(np.zeros((0, 2), np.float32), capacity=1)
    assert (
        radius_search(empty, points, radius=1.0, capacity=2, algorithm=algorithm).rows == -1
    ).all()


@pytest.mark.parametrize("algorithm", ["all", "auto", slow_unless(False, "cells")])
def test_search_lowers_and_has_no_gradient(algorithm, rng):
    points, _ = clouds(3, rng)

    def f(positions):
        moved = vx.Points(positions, points.batch_index, points.features, points.count, 2)
        found = radius_search(moved, radius=1.0, capacity=8, algorithm=algorithm)
        near = positions.at[jnp.maximum(found.rows, 0)].get(mode="clip")
        return jnp.sum(jnp.where(found.rows[..., None] >= 0, near, 0) ** 2)

    step = jax.jit(jax.grad(f))
    jax.export.export(step, platforms=["tpu", "cuda"])(points.positions)
    assert np.isfinite(step(points.positions)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nearest_among_many(dtype, rng):
    """Clusters, a line, and many points in one place, by all distances in NumPy."""
    with jax.enable_x64(dtype == "float64"):
        p = rng.normal(size=(3000, 3)) * np.repeat([1e-3, 1, 100], 1000)[:, None]
        p[500:900, 1:] = 0.25
        p[900:1500] = p[0]
        p = p.astype(dtype)
        points = vx.Points.make(p, capacity=3000)
        around = vx.Points.make(p[::17], capacity=len(p[::17]))
        found = knn_search(points, around, k=9)
        apart = np.sum((p[::17, None] - p[None]) ** 2, axis=-1)
        np.testing.assert_array_equal(found.rows, np.argsort(apart, axis=1, kind="stable")[:, :9])
        np.testing.assert_array_equal(found.found, 3000)


def test_vmap_is_the_same_one_by_one(rng):
    clouds = rng.normal(size=(3, 50, 2)).astype(np.float32)

    def search(positions):
        return knn_search(vx.Points.make(positions, capacity=50), k=3).rows

    each = [search(cloud) for cloud in clouds]
    np.testing.assert_array_equal(jax.jit(jax.vmap(search))(clouds), each)


FAR = np.array([412345.0, 5402345.0, 300.0])  # float32 numbers lie 0.5 apart there


@pytest.mark.parametrize("algorithm", ["auto", "all", slow_unless(False, "cells")])
@pytest.mark.parametrize("far", [FAR, -FAR, FAR * [0, 1, 0], FAR * 64])
def test_positions_too_coarse_for_the_radius(far, algorithm, rng):
    exact = far + rng.uniform(0, 3, (200, 3))
    rounded = vx.Points.make(exact.astype(np.float32))
    with pytest.raises(InputError, match=r"radius=0.25.*float64"):
        radius_search(rounded, radius=0.25, capacity=200, algorithm=algorithm)
    with pytest.raises(InputError, match=r"radius=0.25.*float64"):
        knn_search(rounded, k=3, radius=0.25)
    found = radius_search(vx.Points.make(exact), radius=0.25, capacity=64, algorithm=algorithm)
    apart = np.sqrt(np.sum((exact[:, None] - exact[None]) ** 2, axis=-1))
    near = np.abs(apart - 0.25).min(axis=1) > 1e-6 * np.abs(far).max() / 64
    np.testing.assert_array_equal(found.found[:200][near], np.sum(apart <= 0.25, axis=1)[near])


@pytest.mark.parametrize("algorithm", ["auto", "all", slow_unless(False, "cells")])
def test_coarse_positions_that_stay_alone(algorithm, rng):
    """What rounding can't change is no error: a radius above it, and points far from all others."""
    rounded = vx.Points.make((FAR + rng.uniform(0, 3, (90, 3))).astype(np.float32))
    assert int(radius_search(rounded, radius=2.5, capacity=90, algorithm=algorithm).found.max()) > 9
    near = rng.uniform(0, 3, (90, 3))
    p = np.concatenate([near, [[1e9, 0, 0], [5e6, 3e6, 1]]]).astype(np.float32)
    found = radius_search(vx.Points.make(p), radius=0.5, capacity=90, algorithm=algorithm).found
    np.testing.assert_array_equal(found[90:92], 1)


def test_refused(rng):
    points, around = clouds(2, rng)
    with pytest.raises(InputError, match=r"radius=0.0 must be above 0"):
        radius_search(points, radius=0.0, capacity=4)
    with pytest.raises(InputError, match="known: auto, all, cells"):
        radius_search(points, radius=1.0, capacity=4, algorithm="tree")
    with pytest.raises(InputError, match="k=0 must be at least 1"):
        knn_search(points, around, k=0)
    with pytest.raises(InputError, match="both must agree"):
        knn_search(points, clouds(3, rng)[1], k=1)
