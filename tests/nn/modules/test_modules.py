"""Modules: shapes, dtypes, padding, statistics, and what they refuse."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from voxax.nn.functional import spatially_sparse_conv
from voxax.nn.modules import (
    BatchNorm,
    GlobalPool,
    Linear,
    ReLU,
    Sequential,
    SparseConv2d,
    SparseConv3d,
    SpatiallySparseConv,
    SubMConv3d,
)


def make_voxels(rng, rows=40, channels=4, ndim=3, batch_size=2, capacity=64):
    coords = np.concatenate(
        [rng.integers(0, batch_size, (rows, 1)), rng.integers(-4, 4, (rows, ndim))], axis=1
    ).astype(np.int32)
    features = rng.standard_normal((rows, channels)).astype(np.float32)
    return vx.Voxels.from_coords(coords, features, batch_size, capacity=capacity)


def poison(voxels):
    garbage = jnp.where(voxels.valid[:, None], voxels.features, jnp.nan)
    return vx.Voxels(voxels.geometry, garbage)


def test_conv_module_is_the_functional_layer(rng):
    voxels = make_voxels(rng)
    conv = SparseConv3d(4, 6, 3, stride=2, rngs=nnx.Rngs(1))
    expected = spatially_sparse_conv(voxels, conv.weight[...], 3, 2, bias=conv.bias[...])
    np.testing.assert_array_equal(conv(voxels).features, expected.features)


def test_dtype_and_param_dtype(rng):
    conv = SubMConv3d(4, 6, dtype=jnp.bfloat16)
    out = conv(make_voxels(rng))
    assert out.features.dtype == jnp.bfloat16
    assert conv.weight[...].dtype == jnp.float32


def test_groups_and_two_dimensions(rng):
    conv = SparseConv2d(4, 8, 3, groups=2)
    assert conv.weight[...].shape == (9, 2, 2, 4)
    assert conv(make_voxels(rng, ndim=2)).features.shape == (64, 8)


def test_transposed_returns_to_the_skip(rng):
    voxels = make_voxels(rng)
    down = SpatiallySparseConv(4, 8, 2, 2)(voxels)
    up = SpatiallySparseConv(8, 4, 2, 2, transposed=True)(down, voxels)
    assert (up + voxels).features.shape == (64, 4)
    assert up.stride == (1, 1, 1)


def test_same_seed_same_weights():
    first, second = (SubMConv3d(3, 5, rngs=nnx.Rngs(0)) for _ in range(2))
    np.testing.assert_array_equal(first.weight[...], second.weight[...])


def test_initial_scale_is_that_of_he(rng):
    weight = np.asarray(SubMConv3d(32, 64).weight[...])
    assert weight.std() == pytest.approx(np.sqrt(2 / (27 * 32)), rel=0.03)
    assert abs(weight.mean()) < 1e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SubMConv3d(4, 4, stride=2), "takes no stride"),
        (lambda: SpatiallySparseConv(4, 6, groups=4), "groups=4 must divide"),
        (lambda: SpatiallySparseConv(4, 4, (3, 3)), "2 entries for 3"),
        (lambda: SpatiallySparseConv(4, 4, 0), "at least 1"),
    ],
)
def test_constructor_errors(make, message):
    with pytest.raises(vx.InputError, match=message):
        make()


def test_call_errors(rng):
    voxels = make_voxels(rng)
    with pytest.raises(vx.InputError, match="expects 3 channels, the voxels have 4"):
        SubMConv3d(3, 4)(voxels)
    with pytest.raises(vx.InputError, match=r"ndim=2, the voxels are 3-D"):
        SparseConv2d(4, 4)(voxels)
    with pytest.raises(vx.InputError, match="needs out_voxels="):
        SpatiallySparseConv(4, 4, 2, 2, transposed=True)(voxels)


def test_batch_norm_uses_valid_rows_only(rng):
    voxels = make_voxels(rng)
    norm = BatchNorm(4)
    out = norm(poison(voxels))
    rows = out.valid_features()
    np.testing.assert_allclose(rows.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(rows.std(0), 1, atol=1e-3)
    expected = 0.1 * voxels.valid_features().mean(0)
    np.testing.assert_allclose(norm.mean[...], expected, rtol=1e-4, atol=1e-6)


def test_batch_norm_without_voxels_keeps_its_averages():
    empty = vx.Voxels.from_coords(np.zeros((0, 4), np.int32), np.zeros((0, 4), np.float32))
    norm = BatchNorm(4)
    norm(empty)
    np.testing.assert_array_equal(norm.mean[...], 0)
    np.testing.assert_array_equal(norm.var[...], 1)


def test_batch_norm_evaluation_uses_the_averages(rng):
    voxels = make_voxels(rng)
    norm = BatchNorm(4)
    norm.eval()
    scale = 1 / np.sqrt(1 + norm.epsilon)
    np.testing.assert_allclose(norm(voxels).features, voxels.features * scale, rtol=1e-6)


@functools.wraps(jax.nn.relu)
def relu_of_voxels(voxels):
    return voxels.map(jax.nn.relu)


@pytest.mark.parametrize("layer", [relu_of_voxels, jax.jit(relu_of_voxels), nnx.Sequential(ReLU())])
def test_sequential_calls_what_takes_voxels(layer, rng):
    """Whatever name it bears: only functions of JAX and layers of flax themselves are refused."""
    voxels = make_voxels(rng)
    found = Sequential(layer)(voxels).features
    np.testing.assert_array_equal(found, jax.nn.relu(voxels.features))


def test_gradients_do_not_see_padding(rng):
    voxels = make_voxels(rng)
    model = Sequential(SubMConv3d(4, 8), BatchNorm(8), ReLU(), Linear(8, 2))
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params, voxels):
        out = nnx.merge(graph, params, rest, copy=True)(voxels)
        return jnp.sum(jnp.where(out.valid[:, None], out.features, 0) ** 2)

    clean = jax.grad(loss)(params, voxels)
    dirty = jax.grad(loss)(params, poison(voxels))
    jax.tree.map(np.testing.assert_array_equal, clean, dirty)


def test_global_pool_per_scene(rng):
    voxels = make_voxels(rng)
    pooled = GlobalPool("mean")(poison(voxels))
    coords, features = voxels.valid_coords(), voxels.valid_features()
    for scene in range(2):
        expected = features[coords[:, 0] == scene].mean(0)
        np.testing.assert_allclose(pooled[scene], expected, rtol=1e-5, atol=1e-6)
