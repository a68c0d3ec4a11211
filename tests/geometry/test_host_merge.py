"""Outside jit rows are merged in NumPy: the same voxels as inside, and nothing is compiled."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx


def cloud(number, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    positions = rng.uniform(0, 3, (number, 3)).astype(np.float32)
    return positions, rng.integers(0, 9, (number, 2)).astype(dtype)


@pytest.mark.parametrize("reduction", ["mean", "sum", "max", "min", "first"])
def test_eager_voxels_equal_those_under_jit(reduction):
    def convert(positions, features):
        options = {"reduction": reduction, "capacity": 256, "return_inverse": True}
        return vx.voxelize(positions, features, 0.5, **options)

    for dtype in ("float32", "bfloat16", "int8", "bool"):
        positions, features = cloud(300, "int8" if dtype == "bfloat16" else dtype)
        features = jnp.asarray(features, dtype)
        (eager, rows), (traced, expected) = (
            run(positions, features) for run in (convert, jax.jit(convert))
        )
        np.testing.assert_array_equal(eager.coords, traced.coords)
        np.testing.assert_array_equal(rows, expected)
        assert eager.features.dtype == traced.features.dtype
        wide = (np.asarray(v.features, np.float32) for v in (eager, traced))
        np.testing.assert_allclose(*wide, rtol=2**-7 if dtype == "bfloat16" else 1e-6)


@pytest.mark.parametrize(
    "convert",
    [
        lambda p, f: vx.voxelize(p, f, 0.25),
        lambda p, f: vx.voxelize(p, None, 0.25, return_inverse=True, reduction="first")[0],
        lambda p, f: vx.voxelize(*map(jax.device_put, (p, f)), 0.25),
        lambda p, f: vx.voxelize(vx.Points.make(p, f), voxel_size=0.25),
        lambda p, f: vx.Voxels.from_coords(np.pad((p * 9).astype(int), ((0, 0), (1, 0))), f),
    ],
)
def test_another_number_of_points_compiles_nothing(convert, caplog):
    convert(*cloud(100))
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for number in range(101, 300, 7):
            made = convert(*cloud(number))
    assert isinstance(made.features, jax.Array)
    assert [record.message for record in caplog.records if "ompil" in record.message] == []


def test_results_lie_where_the_points_do(rng):
    positions, features = cloud(50)
    assert not vx.voxelize(positions, features, 0.5).features.committed
    device = jax.devices()[-1]
    made = vx.voxelize(jax.device_put(positions, device), features, 0.5)
    assert made.features.committed
    assert made.coords.devices() == made.features.devices() == {device}


def test_under_jit_shapes_do_not_follow_from_constants():
    positions, features = cloud(50)
    assert jax.jit(lambda: vx.voxelize(positions, features, 0.5))().capacity == 50


def test_gradients_reach_features_of_constant_positions():
    positions, features = cloud(50)

    def total(features):
        return jnp.sum(vx.voxelize(positions, features, 0.5, reduction="sum").features)

    np.testing.assert_array_equal(jax.grad(total)(features), np.ones((50, 2)))
