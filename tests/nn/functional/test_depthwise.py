"""The depthwise function: what `num_out_coords` may be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube

import voxax as vx
from samples import make_voxels
from voxax.nn.functional import spatially_sparse_depthwise_conv

VOXELS = make_voxels(random_cube())
WEIGHT = jnp.ones((27, 3))
COUNT = int(VOXELS.count)


def depthwise(number, kernel_map=None, voxels=VOXELS):
    kernel_map = vx.kernel_map(voxels, 3) if kernel_map is None else kernel_map
    return spatially_sparse_depthwise_conv(
        voxels.features, WEIGHT, kernel_map, num_out_coords=number
    )


@pytest.mark.parametrize(
    "number",
    [COUNT, np.int64(COUNT), VOXELS.count, VOXELS.capacity, np.asarray(VOXELS.capacity)],
    ids=["count", "of NumPy", "of JAX", "capacity", "of a NumPy array"],
)
def test_the_number_of_outputs_or_the_capacity(number):
    assert VOXELS.capacity != COUNT
    np.testing.assert_array_equal(depthwise(number), depthwise(None))


def test_of_strided_maps_it_is_that_of_the_outputs():
    kernel_map = vx.kernel_map(VOXELS, 3, 2)
    coarse = int(kernel_map.out_geometry.count)
    assert depthwise(coarse, kernel_map).shape == (kernel_map.out_capacity, 3)
    with pytest.raises(vx.InputError, match=f"num_out_coords={COUNT}: .*voxels {coarse}"):
        depthwise(COUNT, kernel_map)


def test_under_jit_the_capacity_is_all_that_is_known():
    run = jax.jit(lambda v, number: depthwise(number, voxels=v), static_argnums=1)
    np.testing.assert_array_equal(run(VOXELS, VOXELS.capacity), depthwise(None))
    with pytest.raises(vx.InputError, match=r"unknown here, under jax\.jit"):
        run(VOXELS, COUNT)
    with pytest.raises(vx.InputError, match="static"):
        jax.jit(lambda v, number: depthwise(number, voxels=v))(VOXELS, COUNT)
    known = vx.kernel_map(VOXELS, 3)  # closed over, not traced
    jax.jit(lambda x: spatially_sparse_depthwise_conv(x, WEIGHT, known, COUNT))(VOXELS.features)


@pytest.mark.parametrize("number", [0, COUNT - 1, VOXELS.capacity + 1, 2.0, "many"])
def test_other_numbers_are_refused(number):
    with pytest.raises(vx.InputError, match="num_out_coords="):
        depthwise(number)
