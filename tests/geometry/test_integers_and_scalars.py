"""Narrow integers, NumPy operands, numbers that no float holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from voxax.geometry import host
from voxax.nn import functional as F

ROWS = np.array([[0, 0, 0], [0, 0, 1], [0, 5, 5]], np.int32)


def make(features, **options):
    return vx.Voxels.from_coords(ROWS, jnp.asarray(features), capacity=4, **options)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int32"])
def test_corners_of_a_crop_may_be_narrow(dtype):
    low, high = jnp.asarray([0, 0], dtype), jnp.asarray([2, 2], dtype)
    assert int(vx.crop(make(np.ones((3, 1), np.float32)), low, high).count) == 2


@pytest.mark.parametrize("reduction", ["first", "max", "min", "sum"])
def test_merged_labels_keep_all_digits(reduction):
    labels = np.array([[2**24 + 1], [2**29 + 7], [-5]], np.int32)
    voxels = make(labels, reduction=reduction)
    np.testing.assert_array_equal(voxels.valid_features(), labels)


MEANS = {
    "from_coords": lambda labels: make(labels),
    "voxelize": lambda labels: vx.voxelize(np.eye(3, dtype=np.float32), labels, 0.5),
    "host": lambda labels: host.voxelize_on_host(np.eye(3, dtype=np.float32), labels, 0.5),
    "mean_pool": lambda labels: F.mean_pool(make(labels, reduction="first"), 1),
    "global_pool": lambda labels: F.global_pool(make(labels, reduction="first")),
    "coarsen": lambda labels: vx.coarsen(make(labels, reduction="first")),
    "to_bev": lambda labels: vx.to_bev(make(labels, reduction="first"), reduction="mean"),
    "union": lambda labels: vx.union(
        make(labels, reduction="first"), make(labels, reduction="first"), reduction="mean"
    ),
}


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_of_labels_that_float32_would_round_is_refused(name):
    with pytest.raises(vx.InputError, match=r"16777217.*reduction='first'"):
        MEANS[name](np.array([[2**24 + 1], [7], [5]], np.int32))
    MEANS[name](np.array([[2**24], [7], [5]], np.int32))


def many(dtype, value, number=40_000):
    rows = np.stack([np.zeros(number, int), np.arange(number), np.zeros(number, int)], axis=1)
    return rows.astype(np.int32), np.full((number, 1), value, dtype)


SUMS = {
    "voxelize": lambda rows, f, how: vx.voxelize(
        np.zeros((len(f), 2), np.float32), f, 1.0, reduction=how
    ).features[0],
    "coarsen": lambda rows, f, how: vx.coarsen(
        vx.Voxels.from_coords(rows, f, reduction="first"), (len(f), 1), reduction=how
    ).features[0],
    "to_bev": lambda rows, f, how: vx.to_bev(
        vx.Voxels.from_coords(rows, f, reduction="first"), 0, reduction=how
    ).features[0],
    "global_pool": lambda rows, f, how: F.global_pool(
        vx.Voxels.from_coords(rows, f, reduction="first"), how
    )[0],
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize(("dtype", "value"), [("uint16", 65_535), ("int32", -(2**23))])
def test_sums_beyond_32_bits_are_refused_and_their_means_right(name, dtype, value):
    rows, features = many(dtype, value)
    np.testing.assert_allclose(SUMS[name](rows, features, "mean"), value, rtol=1e-4)
    with pytest.raises(vx.InputError, match=r"sums of .* features reach .*2147483647: give floats"):
        SUMS[name](rows, features, "sum")
    assert int(SUMS[name](*many(dtype, value, 100), "sum")[0]) == 100 * value


def test_sums_of_narrow_integers_do_not_wrap():
    voxels = make(np.full((3, 1), 100, np.int8), reduction="first")
    assert F.sum_pool(voxels, 2).valid_features().tolist() == [[200], [100]]
    assert F.global_pool(voxels, "sum").tolist() == [[300]]
    assert vx.union(voxels, voxels).valid_features().max() == 200


def test_numpy_operands_may_stand_on_the_left():
    voxels = make(np.ones((3, 2), np.float32))
    for scaled in (np.array([2, 3], np.float32) * voxels, np.float32(2) * voxels):
        assert isinstance(scaled, vx.Voxels)
    np.testing.assert_array_equal((3.0 - voxels).valid_features(), np.full((3, 2), 2.0))


def test_traced_wide_coordinates_do_not_wrap_into_the_range():
    with jax.enable_x64(True):
        coords = jnp.asarray([[0, 2**32 + 5, 0], [0, 1, 1]], jnp.int64)
        features = jnp.ones((2, 1), jnp.float32)
        out = jax.jit(lambda c: vx.Voxels.from_coords(c, features, capacity=4))(coords)
    assert out.valid_coords().tolist() == [[0, 1, 1]]
    assert int(out.num_dropped) == 1


def test_top_k_larger_than_any_scene_keeps_all():
    voxels = make(np.ones((3, 1), np.float32))
    assert int(vx.top_k(voxels, voxels.features[:, 0], 2**31).count) == 3


@pytest.mark.parametrize("origin", [(1.0,), (1.0, float("nan")), (0.0, 0.0, 0.0)])
def test_an_origin_has_one_number_for_each_axis(origin):
    with pytest.raises(vx.InputError, match="origin="):
        vx.voxelize(np.zeros((3, 2), np.float32), None, 0.1, origin=origin)


def test_coarsened_voxels_and_strided_ones_can_be_added():
    voxels = make(np.ones((3, 1), np.float32))
    total = vx.coarsen(voxels, 2) + F.mean_pool(voxels, 2)
    assert total.valid_features().tolist() == [[2], [2]]


def test_a_loss_counts_once_however_often_scenes_are_joined():
    short = jax.jit(lambda c: vx.Voxels.from_coords(c, jnp.ones((3, 1)), 2, capacity=2))(ROWS)
    again = vx.batch(vx.unbatch(short))
    assert int(short.num_dropped) == int(again.num_dropped) == 1
