"""Voxels that a transformation hands on are known to be the same, and so are their plans."""

import dataclasses
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube
from flax import nnx

import voxax as vx
from map_builds import builds
from samples import make_voxels, make_weight
from voxax import _compat
from voxax.nn.functional import spatially_sparse_conv as conv
from voxax.nn.modules import Remat, SubMConv3d

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
def test_rows_on_other_coordinates_are_lost_and_counted(other):
    rows = np.asarray(reordered(VOXELS).coords)
    alike = (rows == np.asarray(VOXELS.coords)).all(axis=1)
    if other is chosen:  # at run time these are the same voxels
        alike[:] = True

    @jax.jit
    def run(v):
        w = other(v).replace_features(v.features + 1)
        return v + w, v * w, vx.cat([v, w])

    total, product, both = run(VOXELS)
    x = np.asarray(VOXELS.features)
    y = np.where(alike[:, None] & np.asarray(VOXELS.valid)[:, None], x + 1, 0)
    np.testing.assert_allclose(total.features, x + y, rtol=1e-6)
    np.testing.assert_allclose(product.features, x * y, rtol=1e-6)
    np.testing.assert_allclose(both.features, np.concatenate([x, y], 1), rtol=1e-6)
    for out in (total, product, both):
        assert int(out.num_dropped) == (~alike).sum()
        if not alike.all():
            with pytest.raises(vx.CapacityError, match=r"vx\.union"):
                out.raise_if_overflowed()


def test_two_arguments_that_are_equal_are_added():
    other = VOXELS.replace_features(2 * VOXELS.features)
    out = jax.jit(lambda a, b: a + b)(VOXELS, other).raise_if_overflowed()
    np.testing.assert_allclose(out.features, 3 * VOXELS.features, rtol=1e-6)


def test_rows_are_compared_once_for_two_geometries():
    def network(a, b):
        for _ in range(3):
            a = a + conv(b, WEIGHT) + b
        return a

    def compared(function):
        return str(jax.make_jaxpr(function)(VOXELS, VOXELS)).count("name=differing_rows")

    assert compared(network) == 1
    assert compared(lambda a, b: network(a, a.replace_features(b.features))) == 0


def test_sizes_that_differ_are_refused_in_a_trace_too():
    larger = make_voxels(random_cube(), capacity=512)
    with pytest.raises(vx.GeometryMismatchError, match="union"):
        jax.jit(lambda a, b: a + b)(VOXELS, larger)


# Every attribute that `_compat` reads and JAX does not promise.
PRIVATE = sorted(set(re.findall(r'_private\([^"]*?"(\w+)"', inspect.getsource(_compat))))


def test_private_attributes_are_read_in_one_place():
    assert {"_trace", "parent", "val", "primal", "in_tracers", "outvars", "batch_dim"} <= {*PRIVATE}
    source = inspect.getsource(_compat)
    for name in ("_trace", "parent", "in_tracers", "full_lower", "batch_dim", "primal"):
        assert not re.search(rf"\w\.{name}\b|attr\([^)]*\"{name}\"", source), name


LAYER = SubMConv3d(3, 3, rngs=nnx.Rngs(0))  # in a trace, other weights would be drawn


def around(v):
    """A network with a skip connection around several transformations, and its derivative."""
    down_, block_ = jax.jit(down), jax.checkpoint(custom_jvp(block))
    skip = block_(v) + v
    low = vx.cat([Remat(LAYER)(coarse := down_(skip)), coarse])
    low = low.replace_features(low.features[:, :3])
    return nnx.jit(lambda v: v)(up(low, skip)) * skip


def hidden(monkeypatch, name):
    """Hide an attribute from voxax, as a version of JAX does in which it has another name."""
    real = _compat._private
    monkeypatch.setattr(
        _compat,
        "_private",
        lambda x, key, other=None: other if key == name else real(x, key, other),
    )
    return _compat.fresh_trace()


@pytest.mark.parametrize("name", [None, *PRIVATE])
def test_networks_run_where_jax_hides(name, monkeypatch):
    """Without the attribute nothing is known to be one array; results and gradients are equal."""

    def total(x, voxels):
        out = around(voxels.replace_features(x))
        return jnp.sum(out.features**2), out

    step = jax.value_and_grad(total, has_aux=True)
    (_, want), slope = step(VOXELS.features, VOXELS)
    planned = vx.plan(around, VOXELS)
    with hidden(monkeypatch, name):
        (_, out), got = jax.jit(step)(VOXELS.features, planned)
    n = int(VOXELS.count)
    np.testing.assert_allclose(out.valid_features(), want.valid_features(), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(got[:n], slope[:n], rtol=1e-3, atol=1e-1)
    assert not int(out.num_dropped)


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, *PRIVATE])
def test_maps_over_scenes_run_where_jax_hides(name, monkeypatch):
    want = around(VOXELS)
    stack = jax.tree.map(lambda *x: jnp.stack(x), VOXELS, VOXELS)
    with hidden(monkeypatch, name):
        for run in (jax.vmap(around), jax.jit(jax.vmap(around))):
            np.testing.assert_allclose(run(stack).features[1], want.features, rtol=1e-3, atol=1e-3)


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
