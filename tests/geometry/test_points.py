"""Points: padding, checks, and the layers that see each row alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from voxax.nn.modules import Linear, ReLU, Sequential
from voxax.nn.modules.norm import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm

POINTS = 10


def cloud(rng, points=POINTS):
    """``(positions, features, batch_index)``."""
    features = rng.normal(size=(points, 4)).astype(np.float32)
    return rng.uniform(-1, 1, (points, 3)), features, np.arange(points) % 2


def test_make_pads_to_a_bucket(rng):
    positions, features, scenes = cloud(rng)
    points = vx.Points.make(positions, features, scenes)
    assert (points.capacity, points.ndim, points.num_channels) == (16, 3, 4)
    assert (int(points.count), points.batch_size) == (POINTS, 2)
    assert points.positions.dtype == jnp.float32
    assert points.valid.tolist() == [True] * POINTS + [False] * 6
    np.testing.assert_array_equal(points.features[:POINTS], features)
    assert not np.asarray(points.features[POINTS:]).any()


def test_make_under_jit_takes_all_rows(rng):
    positions, features, scenes = cloud(rng)

    @jax.jit
    def make(positions, features, scenes):
        padded = vx.Points.make(positions, features, scenes, batch_size=3, capacity=12)
        return vx.Points.make(positions, features), padded

    plain, padded = make(positions, features, scenes)
    assert (plain.capacity, plain.batch_size, int(plain.count)) == (POINTS, 1, POINTS)
    assert (padded.capacity, padded.batch_size, int(padded.count)) == (12, 3, POINTS)
    np.testing.assert_array_equal(padded.batch_index[:POINTS], scenes)


def test_make_without_features_or_points(rng):
    points = vx.Points.make(np.zeros((0, 2)))
    assert (points.capacity, int(points.count), points.num_channels) == (16, 0, 1)
    ones = vx.Points.make(cloud(rng)[0])
    np.testing.assert_array_equal(ones.features.sum(0), [POINTS])


NAN = np.full((1, 3), np.nan)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((np.zeros((2, 5)),), {}, vx.InputError, "D from 1 to 4"),
        ((np.zeros((2, 3), int),), {}, vx.InputError, "floating point"),
        ((NAN,), {}, vx.InputError, "1 of 1 positions are NaN"),
        ((jnp.asarray(NAN),), {}, vx.InputError, "1 of 1 positions are NaN"),
        ((np.zeros((2, 3)), np.zeros((3, 1))), {}, vx.InputError, r"expected \[2, C\]"),
        ((np.zeros((2, 3)), None, [0, 1, 2]), {}, vx.InputError, r"int\[2\]"),
        ((np.zeros((2, 3)), None, [0, 2]), {"batch_size": 2}, vx.InputError, "batch_size=3"),
        ((np.zeros((2, 3)), None, [0, -1]), {}, vx.InputError, "span -1 to 0"),
        ((np.zeros((9, 3)),), {"capacity": 8}, vx.CapacityError, "9 points .* capacity=16"),
    ],
)
def test_make_errors(arguments, options, error, message):
    with pytest.raises(error, match=message):
        vx.Points.make(*arguments, **options)


def test_traced_batch_index_needs_a_batch_size():
    with pytest.raises(vx.InputError, match="batch_size= must be given"):
        jax.jit(lambda p, b: vx.Points.make(p, None, b))(np.zeros((2, 3)), np.zeros(2, int))


def test_replace_features_clears_padding(rng):
    points = vx.Points.make(*cloud(rng))
    plus = points.map(lambda x: x + 1)
    assert not np.asarray(plus.features[POINTS:]).any()
    np.testing.assert_array_equal(plus.features[:POINTS], points.features[:POINTS] + 1)
    assert points.replace_features(jnp.ones((16, 2))).num_channels == 2
    with pytest.raises(vx.InputError, match=r"expected \[16, C\]"):
        points.replace_features(jnp.ones((15, 2)))


def test_layers_take_points_as_they_take_voxels(rng):
    """Permute the rows, with any values in the padding."""
    coords = np.full((16, 2), vx.PAD, np.int32)
    coords[:12] = np.stack([np.arange(12) // 6, np.arange(12)], axis=1)
    features = np.zeros((16, 4), np.float32)
    features[:12] = rng.normal(size=(12, 4))
    zero, count = jnp.zeros((), jnp.int32), jnp.asarray(12, jnp.int32)
    geometry = vx.VoxelGeometry(jnp.asarray(coords), count, {(1,): zero}, None, (1,), 2)
    order = rng.permutation(12)
    points = vx.Points.make(np.zeros((12, 1)), features[order], coords[order, 0])
    layers = [Linear(4, 4), BatchNorm(4), ReLU(), LayerNorm(4), RMSNorm(4), GroupNorm(4, 2)]
    graph, state = nnx.split(Sequential(*layers, InstanceNorm(4)))

    @jax.jit
    def run(rows, poison):
        def features(state, x):
            model = nnx.merge(graph, state, copy=True)
            return model(dataclasses.replace(rows, features=x)).features

        given = jnp.where(rows.valid[:, None], rows.features, poison)
        out, vjp = jax.vjp(features, state, given)
        weights, gradient = vjp(jnp.where(rows.valid[:, None], out**2, poison))
        return (out, gradient), weights

    expected, _ = run(vx.Voxels(geometry, jnp.asarray(features)), 0.0)
    clean, weights = run(points, 0.0)
    dirty, same_weights = run(points, jnp.nan)
    for one, other, bad in zip(expected, clean, dirty, strict=True):
        np.testing.assert_allclose(other[:12], one[order], rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(other, bad)
        assert not np.asarray(bad[12:]).any()
    for one, other in zip(*map(jax.tree.leaves, (weights, same_weights)), strict=True):
        np.testing.assert_array_equal(one, other)
