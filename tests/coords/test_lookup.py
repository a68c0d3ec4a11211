"""Sorting, unique and neighbor search, on the device and on the host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import WORKLOADS, lidar_like, random_cube

from oracle import PAD, box_offsets, coarse_rows, neighbor_dictionary, sorted_rows
from voxax import coords as device
from voxax._native import host as native_host
from voxax.coords import host, lookup


def far_apart(seed=0, ndim=3, clusters=20):
    """Small clusters distributed over the whole coordinate range: no 32- or 64-bit key holds it."""
    rng = np.random.default_rng(seed)
    limit = device.COORD_LIMIT
    centers = rng.integers(-limit + 4, limit - 4, (clusters, 1, ndim))
    near = centers + rng.integers(-2, 3, (clusters, 15, ndim))
    corners = np.full((1, ndim), -limit), np.full((1, ndim), limit - 1)
    rows = np.concatenate([near.reshape(-1, ndim), *corners])
    return sorted_rows({(int(b), *map(int, r)) for b, r in enumerate_scenes(rows)}, ndim + 1)


def enumerate_scenes(rows):
    return ((i % 2, row) for i, row in enumerate(rows))


def lidar_batch():
    """5 cm LiDAR extents, batch 16: about 2**39 cells."""
    rows = lidar_like(100) * [1, 40, 40, 10]
    return sorted_rows({(b, *r[1:]) for b in range(16) for r in rows.tolist()}, 4)


GRIDS = {
    "random": lambda: sorted_rows(map(tuple, random_cube().tolist()), 4),
    "lidar batch 16": lidar_batch,
    "far apart": far_apart,
    "far apart 4D": lambda: far_apart(ndim=4),
    "one": WORKLOADS["one_voxel"],
    "empty": WORKLOADS["no_voxel"],
}


@pytest.fixture(params=["library", "numpy"])
def on_host(request, monkeypatch):
    """Return the host's search: the native library if it is present, or NumPy."""
    if request.param == "numpy":
        monkeypatch.setattr(native_host, "available", lambda: False)
    elif not native_host.available():
        pytest.skip("the native library was not built")


def padded(rows, extra=3):
    return host.pad_rows(rows, len(rows) + extra)


@pytest.mark.usefixtures("on_host")
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("offsets", ["box", "sparse taps"])
def test_neighbors_on_device_and_host_equal_a_dictionary(grid, offsets):
    rows = GRIDS[grid]()
    ndim = rows.shape[1] - 1
    if offsets == "box":
        taps = np.asarray(box_offsets((3,) * ndim, (1,) * ndim))
    else:  # with gaps along the last axis, short and long ones
        last = [-40, -3, 0, 1, 5, 30]
        taps = np.asarray([(*(0,) * (ndim - 1), z) for z in last])
    expected = neighbor_dictionary(rows, rows, taps.tolist())
    table = padded(rows)
    found = device.find_neighbors(table, table, table[:, 0] != PAD, taps)
    np.testing.assert_array_equal(found[: len(rows)], expected)
    assert (np.asarray(found[len(rows) :]) == -1).all()
    np.testing.assert_array_equal(host.find_neighbors(rows, rows, taps), expected)


@pytest.mark.parametrize("grid", [name for name in GRIDS if name != "empty"])
@pytest.mark.parametrize("steps", [(0,), (0, 1, 2), (0, 2, 3), (0, 3, 7, 8, 15, 16)])
def test_columns_searched_at_once_are_those_that_are_walked(grid, steps):
    """GPUs search all columns at once, without a loop; here both run on the CPU."""
    rows = GRIDS[grid]()
    table, ndim = padded(rows), rows.shape[1] - 1
    starts = np.asarray([(0, *offset) for offset in box_offsets((3,) * ndim, (1,) * ndim)])[::3]
    starts = jnp.asarray(starts, jnp.int32)
    arguments = (*map(jnp.asarray, (table, table, table[:, 0] != PAD)), starts)
    with jax.disable_jit():  # XLA compiles each size for seconds
        found = lookup._search_columns(*arguments, steps=steps)
    np.testing.assert_array_equal(found, lookup._walk_columns(*arguments, steps=steps))


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("number", [1, 2, 15, 16, 100])
def test_rows_that_are_searched(number, width, x64, rng):
    """Of any number of rows: the turns of a search differ in length."""
    rows = np.unique(rng.integers(-9, 9, (number, width)).astype(np.int32), axis=0)
    queries = np.concatenate([rows, rows + 1, [[10] * width, [-10] * width]]).astype(np.int32)
    valid, here = np.ones(len(queries), bool), jnp.zeros((1, width), jnp.int32)
    columns = [jnp.asarray(queries[None, :, axis]) for axis in range(width)]
    with jax.disable_jit(), jax.enable_x64(x64):
        before, there = lookup.search_runs(jnp.asarray(rows), columns, here, jnp.asarray(valid), 1)
    assert before.dtype == there.dtype == jnp.int32
    expected = [sum(tuple(row) < tuple(query) for row in rows) for query in queries]
    np.testing.assert_array_equal(before[0], expected)
    np.testing.assert_array_equal(there[0], [(rows == query).all(1).any() for query in queries])


@pytest.mark.usefixtures("on_host")
def test_neighbors_of_other_centers_far_outside_the_box(rng):
    rows = GRIDS["random"]()
    centers = np.concatenate(
        [rows[:20] + np.array([0, 1, 0, 0]), [[0, 2**30, 0, 0], [1, -(2**30), 1, 1]]]
    )
    centers = centers[rng.permutation(len(centers))].astype(np.int32)
    taps = box_offsets((3, 3, 3), (1, 1, 1))
    expected = neighbor_dictionary(rows, centers, taps)
    found = device.find_neighbors(rows, centers, np.ones(len(centers), bool), np.asarray(taps))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(host.find_neighbors(rows, centers, np.asarray(taps)), expected)


@pytest.mark.usefixtures("on_host")
@pytest.mark.parametrize("grid", GRIDS)
def test_unique_on_device_and_host(grid, rng):
    rows = GRIDS[grid]()
    repeated = rows[rng.integers(0, len(rows), 2 * len(rows))] if len(rows) else rows
    expected, inverse = np.unique(repeated, axis=0, return_inverse=True)
    unique, host_inverse = host.unique_rows(repeated)
    np.testing.assert_array_equal(unique, expected)
    np.testing.assert_array_equal(host_inverse, inverse.reshape(-1))
    with_padding = padded(repeated)
    found = device.unique_rows(with_padding, len(with_padding))
    assert int(found.count) == len(expected)
    assert int(found.num_dropped) == 0
    np.testing.assert_array_equal(found.coords, host.pad_rows(expected, len(with_padding)))
    np.testing.assert_array_equal(found.inverse, [*inverse.reshape(-1), -1, -1, -1])


def test_unique_keeps_the_first_rows_and_counts_the_rest():
    rows = GRIDS["random"]()
    found = jax.jit(device.unique_rows, static_argnums=1)(rows[::-1], 50)
    assert int(found.count) == 50
    assert int(found.num_dropped) == len(rows) - 50
    np.testing.assert_array_equal(found.coords, rows[:50])
    np.testing.assert_array_equal(found.inverse[::-1][:50], np.arange(50))
    assert (np.asarray(found.inverse[::-1][50:]) == -1).all()


@pytest.mark.parametrize("stride", [(1, 2, 3), (2, 2, 2)])
def test_coarsen_floors_negative_coordinates(stride):
    rows = GRIDS["random"]()
    fine = padded(rows)
    coarse = device.coarsen(fine, stride)
    np.testing.assert_array_equal(coarse[: len(rows)], host.coarsen(rows, stride))
    assert (np.asarray(coarse[len(rows) :]) == PAD).all()
    np.testing.assert_array_equal(
        host.unique_rows(host.coarsen(rows, stride))[0], coarse_rows(rows, stride)
    )


@pytest.mark.parametrize("grid", GRIDS)
def test_rows_are_found_and_missing_ones_are_not(grid):
    rows = GRIDS[grid]()
    table = padded(rows)
    np.testing.assert_array_equal(device.find_rows(table, rows), np.arange(len(rows)))
    elsewhere = rows + np.array([100, *(0,) * (rows.shape[1] - 1)], np.int32)
    assert (np.asarray(device.find_rows(table, elsewhere)) == -1).all()


def test_box_offsets_follow_the_contract():
    for size in (1, 2, 3, 5):
        for stride in (1, 2, 3):
            given = device.box_offsets((size, size), (stride, stride))
            assert list(given) == box_offsets((size, size), (stride, stride))


def test_only_centered_boxes_are_symmetric():
    symmetric = [device.is_point_symmetric(device.box_offsets((k,), (1,))) for k in range(1, 6)]
    assert symmetric == [True, False, True, False, True]
