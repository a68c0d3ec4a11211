"""Points and coordinates to voxels, dense grids and back, batches and their scenes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube

import voxax as vx
from oracle import merge_rows, relative_error
from samples import slow_unless
from voxax.coords import ladder_capacity
from voxax.geometry import host

REDUCTIONS = ("mean", "sum", "max", "min", "first")


def duplicated(rng, size=200):
    rows = random_cube(size // 2)
    rows = rows[rng.integers(0, len(rows), size)]
    return rows, rng.normal(size=(size, 3)).astype(np.float32)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_duplicates_merge_as_in_numpy(reduction, jit, rng):
    rows, features = duplicated(rng)

    def convert(rows, features):
        return vx.Voxels.from_coords(rows, features, 2, reduction=reduction, return_inverse=True)

    voxels, inverse = (jax.jit(convert) if jit else convert)(rows, features)
    unique, merged, expected_inverse = merge_rows(rows, features, reduction)
    np.testing.assert_array_equal(voxels.valid_coords(), unique)
    np.testing.assert_array_equal(inverse, expected_inverse)
    np.testing.assert_allclose(voxels.valid_features(), merged, rtol=1e-5, atol=1e-6)
    assert (np.asarray(voxels.features[len(unique) :]) == 0).all()
    assert voxels.capacity == (len(rows) if jit else ladder_capacity(len(unique)))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("jit", [False, True])
def test_zero_points_are_fine(reduction, jit):
    def convert(rows, features):
        return vx.Voxels.from_coords(rows, features, reduction=reduction)

    empty = (jax.jit(convert) if jit else convert)(np.zeros((0, 4), np.int32), np.zeros((0, 2)))
    assert int(empty.count) == 0
    assert empty.valid_features().shape == (0, 2)


@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "min"])
def test_order_of_the_input_does_not_matter(reduction, rng):
    rows, features = duplicated(rng)
    features = np.round(features * 64) / 64  # sums of these are exact in any order
    order = rng.permutation(len(rows))
    one = vx.Voxels.from_coords(rows, features, 2, reduction=reduction)
    other = vx.Voxels.from_coords(rows[order], features[order], 2, reduction=reduction)
    np.testing.assert_array_equal(one.coords, other.coords)
    np.testing.assert_array_equal(one.features, other.features)


def test_half_precision_sums_are_wide():
    rows = np.zeros((1000, 4), int)
    voxels = vx.Voxels.from_coords(rows, jnp.ones((1000, 1), jnp.bfloat16), reduction="sum")
    assert float(voxels.features[0, 0]) == 1000


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions_have_gradients(reduction, rng):
    rows, features = duplicated(rng, 30)
    _, _, inverse = merge_rows(rows, features, reduction)

    def loss(x):
        return (vx.Voxels.from_coords(rows, x, 2, reduction=reduction).features ** 2).sum()

    def reference(x):
        groups = [x[np.flatnonzero(inverse == i)] for i in range(inverse.max() + 1)]
        merge = {"mean": jnp.mean, "sum": jnp.sum, "max": jnp.max, "min": jnp.min}
        pick = merge.get(reduction, lambda g, axis: g[0])
        return sum((pick(g, axis=0) ** 2).sum() for g in groups)

    assert relative_error(jax.grad(loss)(features), jax.grad(reference)(features)) < 1e-5


def cloud(rng, points=500, ndim=3):
    return rng.uniform(-3, 5, (points, ndim)).astype(np.float32)


@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
@pytest.mark.parametrize("jit", [False, True])
def test_voxelize_floors_positions(ndim, jit, rng):
    positions, features = cloud(rng, ndim=ndim), rng.normal(size=(500, 2)).astype(np.float32)
    scenes = rng.integers(0, 3, 500)

    def convert(positions, features, scenes):
        return vx.voxelize(
            positions, features, 0.5, scenes, batch_size=3, return_inverse=True, origin=[1] * ndim
        )

    convert = jax.jit(convert) if jit else convert
    voxels, inverse = convert(positions, features, scenes)
    rows = np.column_stack([scenes, np.floor((positions - 1) / 0.5)]).astype(np.int32)
    unique, merged, expected_inverse = merge_rows(rows, features, "mean")
    np.testing.assert_array_equal(voxels.valid_coords(), unique)
    np.testing.assert_array_equal(inverse, expected_inverse)
    np.testing.assert_allclose(voxels.valid_features(), merged, rtol=1e-5, atol=1e-6)
    centers = np.asarray(voxels.positions())[np.asarray(inverse)]
    assert (np.abs(centers - positions) <= 0.25 + 1e-5).all()


def test_host_and_device_voxelize_alike(rng, scans):
    positions = np.load(scans / "lidar_os0_128.npz")["xyz"][::5]
    for points in (positions, cloud(rng).astype(np.float64)):
        features = rng.normal(size=(len(points), 2)).astype(np.float32)
        for size in (0.05, 0.1, (0.2, 0.3, 0.7)):
            here, inverse = vx.voxelize(points, features, size, return_inverse=True)
            # Processes without JAX do not know the platform, whose default this one is.
            there, host_inverse = host.voxelize_on_host(
                points, features, size, capacity=here.capacity
            )
            np.testing.assert_array_equal(here.coords, there.coords)
            np.testing.assert_array_equal(inverse, host_inverse)
            np.testing.assert_allclose(here.features, there.features, rtol=1e-5, atol=1e-6)
            assert (here.voxel_size, here.stride) == (there.voxel_size, there.stride)


def test_jit_puts_points_into_the_same_voxels(scans):
    """A compiler that multiplied with the reciprocal would move points across borders."""
    positions = np.load(scans / "lidar_os0_128.npz")["xyz"][::5]
    for size in (0.05, 0.1, 0.3):
        eager = vx.voxelize(positions, None, size)
        traced = jax.jit(lambda p, s=size: vx.voxelize(p, None, s, batch_size=1))(positions)
        np.testing.assert_array_equal(eager.valid_coords(), traced.valid_coords())


def test_one_scene_needs_no_batch_size_under_jit(rng):
    positions = rng.normal(size=(30, 3)).astype(np.float32)
    voxels = jax.jit(lambda p: vx.voxelize(p, voxel_size=0.5))(positions)
    assert voxels.batch_size == 1


def test_points_bring_their_padding_along(rng):
    positions = cloud(rng, 20)
    poisoned = np.concatenate([positions, np.full((4, 3), np.nan, np.float32)])
    points = vx.Points(
        jnp.asarray(poisoned), jnp.zeros(24, jnp.int32), jnp.ones((24, 1)), jnp.int32(20)
    )
    voxels = vx.voxelize(points, voxel_size=0.5, reduction="sum")
    np.testing.assert_array_equal(voxels.coords, vx.voxelize(positions, None, 0.5).coords)
    assert float(voxels.features.sum()) == 20


def test_traced_bad_points_are_dropped_and_counted(rng):
    positions = cloud(rng, 20)
    bad = np.concatenate([positions, [[np.nan, 0, 0], [np.inf, 0, 0], [1e12, 0, 0]]], dtype="f4")
    convert = jax.jit(lambda p: vx.voxelize(p, None, 0.5, batch_size=1, return_inverse=True))
    voxels, inverse = convert(bad)
    assert int(voxels.num_dropped) == 3
    np.testing.assert_array_equal(inverse[20:], [-1, -1, -1])
    np.testing.assert_array_equal(
        voxels.valid_coords(), vx.voxelize(positions, None, 0.5).valid_coords()
    )


@pytest.mark.parametrize("ndim", [slow_unless(n in (2, 3), n) for n in (1, 2, 3, 4)])
def test_dense_round_trip(ndim, rng):
    shape = (2, 3, 5, 4, 2)[: ndim + 1]
    dense = rng.normal(size=(*shape, 3)).astype(np.float32)
    dense[rng.random(shape) < 0.6] = 0
    voxels = vx.Voxels.from_dense(dense)
    assert int(voxels.count) == (dense != 0).any(-1).sum()
    np.testing.assert_array_equal(voxels.to_dense(shape[1:]), dense)
    traced = jax.jit(lambda x: vx.Voxels.from_dense(x).to_dense(shape[1:]))(dense)
    np.testing.assert_array_equal(traced, dense)


def test_dense_mask_keeps_zero_features():
    mask = np.zeros((1, 4, 4), bool)
    mask[0, 1, 2] = True
    voxels = vx.Voxels.from_dense(jnp.zeros((1, 4, 4, 2)), jnp.asarray(mask))
    np.testing.assert_array_equal(voxels.valid_coords(), [[0, 1, 2]])


def test_dense_bounding_box_and_origin(rng):
    rows = random_cube(50)
    features = rng.normal(size=(len(rows), 2)).astype(np.float32)
    voxels = vx.Voxels.from_coords(rows, features, 2)
    low, high = rows[:, 1:].min(0), rows[:, 1:].max(0)
    box = np.zeros((2, *(high - low + 1), 2), np.float32)
    box[(rows[:, 0], *(rows[:, 1:] - low).T)] = features
    np.testing.assert_array_equal(voxels.to_dense(), box)
    # A window that starts elsewhere leaves out what lies before it.
    window = voxels.to_dense(high - low, low + 1)
    np.testing.assert_array_equal(window, box[:, 1:, 1:, 1:])
    with pytest.raises(vx.InputError, match="shape="):
        jax.jit(lambda v: v.to_dense())(voxels)


def make(rows, rng, batch_size=2):
    return vx.Voxels.from_coords(rows, rng.normal(size=(len(rows), 2)), batch_size)


def test_batch_and_scene_are_inverse(rng):
    empty = vx.Voxels.from_coords(np.zeros((0, 4), int), np.zeros((0, 2), np.float32))
    scenes = [make(random_cube(50, batch_size=1), rng, 1), empty, make(random_cube(30), rng)]
    joined = vx.batch(scenes)
    assert joined.batch_size == 4
    assert int(joined.count) == sum(int(s.count) for s in scenes)
    for index, original in ((0, scenes[0]), (1, empty), (2, scenes[2].scene(0))):
        back = joined.scene(index)
        np.testing.assert_array_equal(back.valid_coords(), original.valid_coords())
        np.testing.assert_array_equal(back.valid_features(), original.valid_features())
    with pytest.raises(vx.InputError, match="scene 4 of a batch of 4"):
        joined.scene(4)


def test_padding_stays_zero_under_map(rng):
    a = make(random_cube(50), rng).map(lambda x: x + 1)
    assert (np.asarray(a.features)[int(a.count) :] == 0).all()


def test_a_repr_never_fails():
    coords = np.array([[0, 1, 2, 3], [0, 1, 2, 4]])
    voxels = vx.Voxels.from_coords(coords, np.ones((2, 5), np.float32), origin=(1, 2, 3))
    rest = "of 16 voxels, 3D, stride (1, 1, 1), batch_size 1"
    assert repr(voxels) == f"Voxels(float32[16, 5], VoxelGeometry(2 {rest}))"
    stack = jax.tree.map(lambda x: jnp.stack([x, x]), voxels)
    assert repr(stack) == f"Voxels(float32[2, 16, 5], VoxelGeometry([2, 2] {rest}, stacked [2]))"
    shapes = jax.eval_shape(lambda v: v, voxels)
    assert repr(shapes) == f"Voxels(float32[16, 5], VoxelGeometry(unknown {rest}))"
    deleted = jax.device_put(jax.tree.map(jnp.array, voxels))
    for leaf in jax.tree.leaves(deleted):
        leaf.delete()
    for other in (stack, shapes, deleted, jax.tree.map(lambda x: None, voxels)):
        for part in (other, other.geometry, other.geometry.drops, other.origin):
            assert repr(part)
