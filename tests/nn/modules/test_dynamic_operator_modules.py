"""Modules of the named dynamic operators: the functions, with the choices that they predict."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from oracle import dynamic_operators as oracle
from samples import make_voxels
from voxax.errors import InputError
from voxax.nn.modules import ContinuousConv, DeformConv, FocalConv, KernelPointConv


def image(rng, channels=4):
    return jnp.asarray(rng.standard_normal((2, 6, 5, channels)), jnp.float32)


def shaken(module, rng):
    """Parameters that start at zero would leave gradients behind them at zero."""
    state = nnx.state(module, nnx.Param)
    nnx.update(
        module,
        jax.tree.map(lambda p: p + 0.1 * rng.standard_normal(p.shape).astype(np.float32), state),
    )
    return module


def learns(module, call):
    """Every parameter has a gradient that is finite and not zero."""
    graph, state = nnx.split(module)

    @jax.jit
    def slope(state):
        return jax.grad(lambda state: jnp.sum(call(nnx.merge(graph, state)) ** 2))(state)

    for leaf in jax.tree.leaves(slope(state)):
        assert np.isfinite(leaf).all()
        assert np.abs(leaf).max() > 0


@pytest.mark.slow
@pytest.mark.parametrize(("modulation", "share"), [("sigmoid", 0.5), (None, 1.0)])
def test_deform_starts_as_a_convolution(modulation, share, rng):
    conv = DeformConv(4, 6, modulation=modulation, offset_groups=2, stride=2, rngs=nnx.Rngs(1))
    x = image(rng)
    weight = np.asarray(conv.weight[...], np.float64)
    want = share * oracle.conv(np.asarray(x, np.float64), weight, (2, 2), (1, 1))
    np.testing.assert_allclose(nnx.jit(lambda conv, x: conv(x))(conv, x), want, atol=1e-5)


@pytest.mark.slow
def test_deform_learns(rng):
    options = {"use_weight": False, "modulation": "softmax", "offset_groups": 2}
    conv = shaken(DeformConv(4, 4, **options), rng)
    learns(conv, lambda conv: conv(image(np.random.default_rng(1))))
    with pytest.raises(InputError, match="without a weight both are the same"):
        DeformConv(4, 6, use_weight=False)


@pytest.mark.slow
def test_point_convolutions(rng):
    positions = rng.uniform(-1, 1, (40, 3)).astype(np.float32)
    features = rng.standard_normal((40, 4)).astype(np.float32)
    points = vx.Points.make(positions, features, capacity=48)
    found = vx.radius_search(points, radius=0.8, capacity=40)
    rigid = KernelPointConv(4, 5, 7, extent=0.32, rngs=nnx.Rngs(0))
    moving = KernelPointConv(
        4, 5, 7, extent=0.32, deformable=True, modulated=True, rngs=nnx.Rngs(0)
    )
    continuous = ContinuousConv(4, 5, radius=0.8)
    run = nnx.jit(lambda *modules: [module(points, found).features for module in modules])
    first, second, third = run(rigid, moving, continuous)
    # Zero offsets and factors of one.
    np.testing.assert_allclose(first, second, atol=1e-5)
    assert third.shape == (48, 5)
    learns(shaken(moving, rng), lambda moving: moving(points, found).features)
    learns(shaken(continuous, rng), lambda continuous: continuous(points, found).features)


@pytest.mark.slow
def test_focal(rng):
    rows = np.unique(np.c_[np.zeros(20), rng.integers(0, 6, (20, 2))].astype(int), axis=0)
    voxels = make_voxels(rows, capacity=32)
    conv = shaken(FocalConv(3, 4, ndim=2, capacity=64), rng)
    assert int(nnx.jit(lambda conv, voxels: conv(voxels))(conv, voxels).count) > len(rows)
    learns(conv, lambda conv: conv(voxels).features)
