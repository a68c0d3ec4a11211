"""Normalization by voxel and by scene. That they are their formula is shown in `conformance`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from voxax.nn import functional as F

ROWS, CHANNELS, CAPACITY = 30, 4, 48

NORMS = {
    "layer": F.layer_norm,
    "rms": F.rms_norm,
    "instance": F.instance_norm,
    "group": lambda voxels, *affine: F.group_norm(voxels, 2, *affine),
}


def make_voxels(rng, scenes=(0, 2), batch_size=3):
    """Voxels of these scenes; others are empty."""
    rows = np.stack([np.resize(scenes, ROWS), np.arange(ROWS)], axis=1)
    rows = rows[np.lexsort(rows.T[::-1])]
    coords = np.full((CAPACITY, 2), vx.PAD, np.int32)
    coords[:ROWS] = rows
    features = np.zeros((CAPACITY, CHANNELS), np.float32)
    features[:ROWS] = rng.normal(size=(ROWS, CHANNELS))
    zero, count = jnp.zeros((), jnp.int32), jnp.asarray(ROWS, jnp.int32)
    geometry = vx.VoxelGeometry(jnp.asarray(coords), count, {(1,): zero}, None, (1,), batch_size)
    return vx.Voxels(geometry, jnp.asarray(features))


@pytest.mark.parametrize("name", list(NORMS))
def test_padding_is_inert(name, rng):
    """NaN in the padding of features and cotangents: same values, same gradients."""
    voxels = make_voxels(rng)
    affine = [jnp.asarray(rng.normal(size=CHANNELS), jnp.float32) for _ in range(2)]
    affine = affine[:1] if name == "rms" else affine

    @jax.jit
    def run(poison):
        def dirty(x):
            return jnp.where(voxels.valid[:, None], x, poison)

        def norm(x, *affine):
            return NORMS[name](vx.Voxels(voxels.geometry, x), *affine).features

        value, vjp = jax.vjp(norm, dirty(voxels.features), *affine)
        return value, *vjp(dirty(value**2))

    for clean, bad in zip(run(0.0), run(jnp.nan), strict=True):
        assert np.asarray(clean).any()
        assert np.isfinite(clean).all()
        np.testing.assert_array_equal(clean, bad)


@pytest.mark.parametrize("name", ["layer", "instance", "group"])
def test_statistics_far_from_zero_keep_their_digits(name, rng):
    """Two passes: the variance is that of the deviations, not a difference of large squares."""
    near = make_voxels(rng)
    exact = near.replace_features(jnp.round(near.features * 256) / 256)
    moved = exact.map(lambda x: x + 4096)
    np.testing.assert_allclose(
        NORMS[name](moved).features, NORMS[name](exact).features, rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("name", list(NORMS))
def test_equal_features_have_finite_derivatives(name, rng):
    """Variance zero, in first and second derivatives."""
    voxels = make_voxels(rng)

    def loss(x):
        return (NORMS[name](voxels.replace_features(x)).features ** 3).sum()

    same = jnp.zeros_like(voxels.features)
    first, second = jax.jit(lambda x: jax.jvp(jax.grad(loss), (x,), (x + 1,)))(same)
    assert np.isfinite(first).all()
    assert np.isfinite(second).all()


@pytest.mark.parametrize("name", ["instance", "group"])
def test_scenes_do_not_see_each_other(name, rng):
    voxels = make_voxels(rng)
    first = voxels.valid & (voxels.coords[:, 0] == 0)
    other = voxels.replace_features(
        jnp.where(first[:, None], voxels.features, 100 * voxels.features + 7)
    )
    one, two = (np.asarray(NORMS[name](v).features)[np.asarray(first)] for v in (voxels, other))
    np.testing.assert_array_equal(one, two)


def test_scenes_of_points_in_any_order(rng):
    voxels = make_voxels(rng)
    order = rng.permutation(ROWS)
    points = vx.Points.make(
        np.zeros((ROWS, 1)),
        np.asarray(voxels.features)[order],
        np.asarray(voxels.coords)[order, 0],
        batch_size=3,
        capacity=CAPACITY,
    )
    expected = F.group_norm(voxels, 2).features[order]
    np.testing.assert_allclose(F.group_norm(points, 2).features[:ROWS], expected, atol=1e-5)


def test_one_group_for_each_channel_is_instance_norm(rng):
    voxels = make_voxels(rng)
    one, other = F.group_norm(voxels, CHANNELS).features, F.instance_norm(voxels).features
    np.testing.assert_array_equal(one, other)


def test_errors(rng):
    voxels = make_voxels(rng)
    for groups in (3, 0):
        with pytest.raises(vx.InputError, match=f"num_groups={groups} must divide the 4"):
            F.group_norm(voxels, groups)
    for norm in NORMS.values():
        with pytest.raises(vx.InputError, match=r"scale of shape \(3,\) .* expected \[4\]"):
            norm(voxels, jnp.ones(3))
    with pytest.raises(vx.InputError, match="bias of shape"):
        F.layer_norm(voxels, None, jnp.ones(5))


@pytest.mark.parametrize("norm", [F.instance_norm, lambda v: F.group_norm(v, 1)])
def test_nan_stays_in_its_scene(norm):
    rows = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.int32)
    features = np.array([[1.0], [np.nan], [3.0], [5.0]], np.float32)
    out = norm(vx.Voxels.from_coords(rows, features, 2, capacity=4)).valid_features()
    assert np.isnan(out[:2]).all()
    np.testing.assert_allclose(out[2:], [[-1], [1]], rtol=1e-4)
