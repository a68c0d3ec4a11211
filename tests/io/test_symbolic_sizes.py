"""Programs of ``jax.export`` for any number of points; capacities are numbers."""

import jax
import numpy as np
import pytest
from jax import export

import voxax as vx
import voxax.nn.functional as F

(POINTS,) = export.symbolic_shape("points")
WEIGHT = np.random.default_rng(0).normal(size=(27, 4, 8)).astype(np.float32)


def shape(*sizes, dtype=np.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def network(positions, features, batch_index):
    voxels = vx.voxelize(positions, features, 0.5, batch_index, capacity=256, batch_size=2)
    voxels = F.spatially_sparse_conv(voxels, WEIGHT, fwd_algo="explicit_gemm")
    pooled = F.max_pool(voxels, 2)
    return vx.devoxelize(voxels, positions, batch_index), F.global_pool(pooled)


def given(rng, number):
    positions = rng.uniform(-2, 2, (number, 3)).astype(np.float32)
    features = rng.normal(size=(number, 4)).astype(np.float32)
    return positions, features, rng.integers(0, 2, number).astype(np.int32)


def test_one_exported_program_takes_any_number_of_points(rng):
    shapes = shape(POINTS, 3), shape(POINTS, 4), shape(POINTS, dtype=np.int32)
    program = export.export(jax.jit(network), platforms=["cpu"])(*shapes)
    program = export.deserialize(program.serialize())
    for number in (1, 90, 300):
        arrays = given(rng, number)
        for found, want in zip(program.call(*arrays), jax.jit(network)(*arrays), strict=True):
            np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def rows(coords, features, count):
    geometry = vx.VoxelGeometry(coords, count, {(1, 1, 1): 0}, None, (1, 1, 1), 1)
    return vx.Voxels(geometry, features)


def test_a_convolution_of_symbolic_rows_is_refused():
    (number,) = export.symbolic_shape("rows")
    shapes = shape(number, 4, dtype=np.int32), shape(number, 4), shape(dtype=np.int32)

    def layer(*arrays):
        return F.spatially_sparse_conv(rows(*arrays), WEIGHT).features

    with pytest.raises(vx.InputError, match=r"rows to rows rows.*capacity=65536"):
        export.export(jax.jit(layer), platforms=["cpu"])(*shapes)
    pool = export.export(jax.jit(lambda *a: F.max_pool(rows(*a), 2).features), platforms=["cpu"])
    assert pool(*shapes).out_avals[0].shape[0] == number
