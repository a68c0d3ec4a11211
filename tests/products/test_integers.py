"""Convolution of 8- and 16-bit integers: exact sums in int32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube

import voxax as vx
from samples import make_voxels, make_weight
from voxax.nn.functional import spatially_sparse_conv


def integers(shape, dtype, seed):
    info = jnp.iinfo(dtype)
    draws = np.random.default_rng(seed).integers(info.min, info.max, shape, endpoint=True)
    return jnp.asarray(draws, dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("groups", [1, 2])
def test_integer_convolution_is_exact(dtype, groups):
    voxels = make_voxels(random_cube(60), 4, capacity=64)
    shape = make_weight(3, 3, 4, 6, groups=None if groups == 1 else groups).shape
    x, w = integers(voxels.features.shape, dtype, 0), integers(shape, dtype, 1)
    if dtype == "int16":
        x, w = x // 256, w // 256  # 27 * 4 products of 16 bits would not fit into 32
    out = spatially_sparse_conv(voxels.replace_features(x), w, groups=groups)
    assert out.features.dtype == jnp.int32
    with jax.enable_x64(True):
        wide = voxels.replace_features(x.astype(jnp.float64))
        exact = spatially_sparse_conv(wide, w.astype(jnp.float64), groups=groups)
    np.testing.assert_array_equal(out.features, np.asarray(exact.features).astype(np.int64))


def test_gradients_pass_by_an_integer_convolution():
    """Quantized features inside a differentiable network: the scale behind them has a gradient."""
    voxels = make_voxels(random_cube(60), 4, capacity=64)
    x, w = integers(voxels.features.shape, "int8", 0), integers((27, 4, 6), "int8", 1)

    def loss(scale):
        out = spatially_sparse_conv(voxels.replace_features(x), w)
        return jnp.sum(out.features.astype(jnp.float32) * scale)

    expected = float(jnp.sum(spatially_sparse_conv(voxels.replace_features(x), w).features))
    assert float(jax.jit(jax.grad(loss))(1e-3)) == pytest.approx(expected, rel=1e-5)


def test_a_float_bias_is_not_cut_to_an_integer():
    voxels = make_voxels(random_cube(60), 4, capacity=64)
    x, w = integers(voxels.features.shape, "int8", 0), integers((27, 4, 6), "int8", 1)
    with pytest.raises(vx.InputError, match="integer bias"):
        spatially_sparse_conv(voxels.replace_features(x), w, bias=jnp.ones(6))
