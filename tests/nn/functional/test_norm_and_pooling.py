"""Statistics and pooling see voxels only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import flat_box, gap_in_batch, random_cube

import voxax as vx
from oracle import relative_error
from samples import make_voxels
from voxax.nn import functional as F
from voxax.nn.functional import global_pool, masked_moments, normalize

POOLINGS = ("mean", "sum", "max")


def poisoned(voxels, poison=jnp.nan):
    features = jnp.where(voxels.valid[:, None], voxels.features, poison)
    return vx.Voxels(voxels.geometry, features)


def test_moments_are_those_of_the_valid_rows():
    voxels = make_voxels(random_cube())
    mean, variance, number = masked_moments(voxels.features, voxels.valid)
    x = voxels.valid_features()
    np.testing.assert_allclose(mean, x.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance, x.var(0), rtol=1e-5)
    assert float(number) == len(x)


def test_moments_far_from_zero_keep_their_digits():
    features = jnp.asarray([[1e4 + 1], [1e4 - 1]], jnp.float32)
    _, variance, _ = masked_moments(features, jnp.ones(2, bool))
    np.testing.assert_allclose(variance, [1.0])


def test_moments_of_nothing_are_zero():
    for value in masked_moments(jnp.full((4, 2), jnp.nan), jnp.zeros(4, bool)):
        assert (np.asarray(value) == 0).all()


def test_moments_over_a_mapped_axis_are_those_of_all():
    voxels = make_voxels(random_cube())
    half = jax.tree.map(lambda a: a.reshape(2, -1, *a.shape[1:]), (voxels.features, voxels.valid))
    mapped = jax.vmap(lambda x, v: masked_moments(x, v, "devices"), axis_name="devices")(*half)
    for one, other in zip(mapped, masked_moments(voxels.features, voxels.valid), strict=True):
        np.testing.assert_allclose(one[0], other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_normalize_is_the_formula(dtype):
    voxels = make_voxels(random_cube(), dtype=dtype)
    mean, variance, _ = masked_moments(voxels.features, voxels.valid)
    scale, bias = jnp.asarray([1.0, 2, 3]), jnp.asarray([0.0, 1, -1])
    out = normalize(voxels, mean, variance, scale, bias)
    x = voxels.valid_features().astype(np.float32)
    expected = (x - np.asarray(mean)) / np.sqrt(np.asarray(variance) + 1e-5) * [1, 2, 3] + [
        0,
        1,
        -1,
    ]
    assert out.features.dtype == jnp.dtype(dtype)
    assert relative_error(out.valid_features(), expected) < (1e-5 if dtype == "float32" else 2e-2)


@pytest.mark.parametrize("reduction", POOLINGS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pooling_by_scene_with_an_empty_one(reduction, dtype):
    voxels = make_voxels(gap_in_batch(), dtype=dtype)
    pooled = global_pool(voxels, reduction)
    x, scene = voxels.valid_features().astype(np.float32), voxels.valid_coords()[:, 0]
    merge = {"mean": np.mean, "sum": np.sum, "max": np.max}[reduction]
    expected = [merge(x[scene == i], axis=0) if (scene == i).any() else x[0] * 0 for i in range(3)]
    assert pooled.dtype == jnp.dtype(dtype)
    assert relative_error(pooled, expected) < (1e-5 if dtype == "float32" else 1e-2)


def test_unknown_pooling():
    with pytest.raises(vx.InputError, match="'median'"):
        global_pool(make_voxels(random_cube()), "median")


def statistics(features, geometry):
    voxels = vx.Voxels(geometry, features)
    mean, variance, _ = masked_moments(features, voxels.valid)
    normal = normalize(voxels, mean, variance, jnp.ones(3), jnp.ones(3))
    pools = [global_pool(voxels, reduction) for reduction in POOLINGS]
    return mean, variance, normal.features, *pools


def test_padding_is_inert():
    """NaN in the padding of features and cotangents: same values, same gradients."""
    voxels = make_voxels(gap_in_batch())

    def run(poison):
        x = poisoned(voxels, poison).features
        values, vjp = jax.vjp(lambda x: statistics(x, voxels.geometry), x)
        cotangents = [jnp.ones_like(v) for v in values]
        cotangents[2] = jnp.where(voxels.valid[:, None], cotangents[2], poison)
        return *values, *vjp(tuple(cotangents))

    for clean, dirty in zip(run(0.0), run(jnp.nan), strict=True):
        assert np.isfinite(clean).all()
        np.testing.assert_array_equal(clean, dirty)


def test_padding_is_inert_in_dense_grids_and_unions():
    voxels = make_voxels(random_cube())
    dirty = poisoned(voxels)
    np.testing.assert_array_equal(dirty.to_dense(), voxels.to_dense())
    np.testing.assert_array_equal(
        vx.union(dirty, dirty).features, vx.union(voxels, voxels).features
    )
    np.testing.assert_array_equal(vx.batch([dirty]).features, vx.batch([voxels]).features)
    gradient = jax.grad(lambda x: (vx.Voxels(voxels.geometry, x).to_dense() ** 2).sum())
    np.testing.assert_array_equal(gradient(dirty.features), gradient(voxels.features))


@pytest.mark.parametrize("reduction", POOLINGS)
def test_pooling_gradients(reduction):
    voxels = make_voxels(random_cube(20), capacity=32)
    gradient = jax.grad(lambda x: (global_pool(voxels.replace_features(x), reduction) ** 2).sum())
    scene = voxels.valid_coords()[:, 0]

    def reference(x):
        merge = {"mean": jnp.mean, "sum": jnp.sum, "max": jnp.max}[reduction]
        return sum((merge(x[np.flatnonzero(scene == i)], axis=0) ** 2).sum() for i in range(2))

    expected = jax.grad(reference)(jnp.asarray(voxels.valid_features()))
    assert relative_error(gradient(voxels.features)[: len(scene)], expected) < 1e-5


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_the_winner_keeps_its_gradient_however_xla_rounds(reduction):
    """Fused twice and rounded otherwise, a row would not be equal to the best, itself."""
    voxels = make_voxels(flat_box())

    def total(x):
        inputs = voxels.replace_features(x)
        fixed = jax.lax.stop_gradient(F.instance_norm(inputs).features)
        summed = inputs.replace_features(fixed + F.min_pool(inputs, 2, 1).features)
        return jnp.sum(global_pool(summed, reduction))

    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    gradient = jax.jit(jax.grad(total), compiler_options=options)(voxels.features)
    np.testing.assert_array_equal(gradient.sum(0), [1, 1, 1])
