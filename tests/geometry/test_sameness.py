"""Voxels that a transformation hands on are known to be the same, and so are their plans."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube
from flax import nnx

import voxax as vx
from map_builds import builds
from samples import make_voxels, make_weight
from voxax.nn.functional import spatially_sparse_conv as conv

VOXELS = make_voxels(random_cube())
WEIGHT = make_weight(3, 3, 3, 3)


def block(v):
    return conv(v, WEIGHT)


def down(v):
    return conv(v, WEIGHT, 3, 2)


def up(v, to):
    return conv(v, WEIGHT, 3, 2, transposed=True, out_voxels=to)


def custom_vjp(function):
    """An identity behind ``function`` whose gradient is doubled."""

    @jax.custom_vjp
    def identity(v):
        return v

    def backward(_, cotangent):
        return (jax.tree.map(lambda g: g if g.dtype == jax.dtypes.float0 else 2 * g, cotangent),)

    identity.defvjp(lambda v: (v, None), backward)
    return lambda v: identity(function(v))


def custom_jvp(function):
    @jax.custom_jvp
    def identity(features, v):
        return v.replace_features(features)

    @identity.defjvp
    def _(primals, tangents):
        features, v = primals
        out = identity(features, v)
        still = jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), out)
        return out, dataclasses.replace(still, features=tangents[0])

    def run(v):
        out = function(v)
        return identity(out.features, out)

    return run


class Layer(nnx.Module):
    def __call__(self, v, function):
        return function(v)


WAYS = {
    "jit": jax.jit,
    "jit_in_checkpoint": lambda f: jax.checkpoint(jax.jit(f)),
    "checkpoint": jax.checkpoint,
    "policy": lambda f: jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable),
    "nnx_jit": lambda f: lambda v: nnx.jit(lambda m, v: m(v, f))(Layer(), v),
    "nnx_remat": lambda f: lambda v: nnx.remat(lambda m, v: m(v, f))(Layer(), v),
    "custom_vjp": custom_vjp,
    "custom_jvp": custom_jvp,
    "cond": lambda f: lambda v: jax.lax.cond(v.features[0, 0] > -9, jax.jit(f), f, v),
    "loop": lambda f: lambda v: jax.lax.fori_loop(0, 1, lambda _, x: jax.checkpoint(f)(x), v),
    "scan": lambda f: lambda v: jax.lax.scan(lambda x, _: (f(x), None), v, length=1)[0],
    "barrier": lambda f: lambda v: jax.lax.optimization_barrier(f(v)),
}


def levels(v, way):
    """A network with a skip connection at both levels, whose stages are under ``way``."""
    skip = way(block)(v) + v
    low = vx.cat([way(block)(coarse := jax.jit(down)(skip)), coarse])
    low = low.replace_features(low.features[:, :3])
    return way(block)(up(low, skip)) + skip


@pytest.mark.parametrize("way", WAYS)
def test_skip_connections_around(way):
    want = levels(VOXELS, lambda f: f)
    for run in (lambda v: levels(v, WAYS[way]), jax.jit(lambda v: levels(v, WAYS[way]))):
        np.testing.assert_allclose(run(VOXELS).features, want.features, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("loop",)])
def test_gradients_through_skip_connections_around(way):
    def total(x, way):
        return jnp.sum(levels(VOXELS.replace_features(x), way).features ** 2)

    got = jax.grad(total)(VOXELS.features, WAYS[way])
    np.testing.assert_array_equal(np.isfinite(got), np.ones(got.shape, bool))
    if way != "custom_vjp":  # which doubles gradients
        want = jax.grad(total)(VOXELS.features, lambda f: f)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-2)


def test_under_vmap():
    stack = jax.tree.map(lambda *x: jnp.stack(x), VOXELS, VOXELS)
    for way in ("jit", "checkpoint", "custom_jvp"):
        out = jax.jit(jax.vmap(lambda v, way=way: levels(v, WAYS[way])))(stack)
        want = levels(VOXELS, lambda f: f).features
        np.testing.assert_allclose(out.features[1], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("loop", "scan")])
def test_attached_maps_are_found_around(way):
    def network(v):
        return up(WAYS[way](block)(WAYS[way](down)(v)), v)

    planned = vx.plan(lambda v: up(block(down(v)), v), VOXELS)
    with builds(0):
        out = jax.jit(network)(planned)
    np.testing.assert_allclose(
        out.valid_features(), network(VOXELS).valid_features(), rtol=1e-4, atol=1e-4
    )


def test_a_plan_of_other_voxels_is_not_taken_for_this_one():
    """Check two inputs whose tables are equal, since one is the other moved by a cell."""
    moved = make_voxels(random_cube() + np.asarray([0, 1, 0, 0]))
    planned, other = (vx.plan(block, v) for v in (VOXELS, moved))
    want = conv(VOXELS, WEIGHT, out_voxels=moved).valid_features()
    onto = lambda v, w: conv(jax.jit(lambda v: v)(v), WEIGHT, out_voxels=w)  # noqa: E731
    for run in (onto, jax.jit(onto)):
        np.testing.assert_allclose(run(planned, other).valid_features(), want, rtol=1e-5, atol=1e-5)


def reordered(v):
    rows = jnp.arange(v.capacity)[::-1]
    geometry = dataclasses.replace(v.geometry, coords=v.coords[rows])
    return dataclasses.replace(v, geometry=geometry)


def swapped(v):
    return jax.jit(lambda a, b: (b, a))(v, reordered(v))[0]


def exchanged(v):
    return jax.lax.fori_loop(0, 1, lambda _, pair: pair[::-1], (v, reordered(v)))[0]


def chosen(v):
    return jax.lax.cond(v.count > 0, lambda a, b: a, lambda a, b: b, v, reordered(v))


@pytest.mark.parametrize("other", [reordered, swapped, exchanged, chosen])
def test_others_are_refused(other):
    with pytest.raises(vx.GeometryMismatchError, match="union"):
        jax.jit(lambda v: v + other(v))(VOXELS)


def test_two_arguments_are_told_apart_from_one_with_advice():
    with pytest.raises(vx.GeometryMismatchError, match="replace_features"):
        jax.jit(lambda a, b: a + b)(VOXELS, VOXELS)


def test_another_cloud_compiles_nothing():
    runs = []

    @jax.jit
    def run(v):
        runs.append(1)
        return levels(v, jax.jit)

    for seed in range(3):
        run(make_voxels(random_cube(seed=seed)))
        run(levels(make_voxels(random_cube(seed=seed)), lambda f: f))
    assert len(runs) == 1
