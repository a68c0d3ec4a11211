"""Dtypes that cannot be multiplied: the error names the dtype and a cure."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
import voxax.nn.functional as F
from voxax.nn.dynamic.deform_conv import deform_conv
from voxax.nn.dynamic.dynamic_conv import dynamic_conv

COORDS = np.array([[0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 2, 0]], np.int32)
NARROW = ("int2", "int4", "uint4", "float4_e2m1fn")


def voxels(dtype):
    return vx.Voxels.from_coords(COORDS, jnp.ones((3, 4), dtype), capacity=4, reduction="first")


def weight(dtype):
    return jnp.ones((27, 4, 4), dtype)


@pytest.mark.parametrize("request_", [None, "explicit_gemm", "implicit_gemm"])
@pytest.mark.parametrize("dtype", NARROW)
def test_elements_below_a_byte_are_refused(dtype, request_):
    def run(v, w):
        return F.spatially_sparse_conv(v, w, 3, fwd_algo=request_)

    for call in (run, jax.jit(run)):
        with pytest.raises(vx.AlgorithmError, match=f"8 bits, got {dtype}: convert"):
            call(voxels(dtype), weight(dtype))


def test_a_dtype_without_zero_is_refused():
    with pytest.raises(vx.AlgorithmError, match="zero for missing neighbors, which float8_e8m0fnu"):
        F.spatially_sparse_conv(
            voxels("float8_e8m0fnu"), weight("float8_e8m0fnu"), 3, fwd_algo="explicit_gemm"
        )


@pytest.mark.parametrize("dtype", [*NARROW, "float8_e4m3fn"])
def test_dtypes_without_a_common_one(dtype):
    told = f"{dtype} and float32 have no common dtype"
    grid, kernel = jnp.ones((1, 4, 4, 2), dtype), jnp.ones((3, 3, 2, 2))
    with pytest.raises(vx.AlgorithmError, match=told):
        F.spatially_sparse_conv(voxels(dtype), weight("float32"), 3)
    with pytest.raises(vx.VoxaxError, match=f"{dtype} and .*float32"):
        dynamic_conv(grid, kernel, size=jnp.ones((1, 4, 4), jnp.int32))
    with pytest.raises(vx.VoxaxError, match=f"{dtype}.*float"):
        deform_conv(grid, kernel, jnp.zeros((1, 4, 4, 9, 2)))
