"""A normalization with its activation is one operator only where nobody changed either."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from voxax.models.minkunet import ConvNormAct, ResidualBlock
from voxax.nn.modules import BatchNorm, ReLU, Sequential
from voxax.nn.modules.fusing import norm_act
from voxax.nn.modules.pointwise import GELU


@pytest.fixture
def voxels(rng):
    return vx.voxelize(rng.uniform(0, 4, (200, 3)), rng.normal(size=(200, 4)), 1.0)


class Tenfold(BatchNorm):
    def __call__(self, voxels, **options):
        return super().__call__(voxels, **options) * 10


class Shifted(ReLU):
    def __call__(self, voxels):
        return super().__call__(voxels) + 1


def changed_function():
    act = ReLU()
    act.fn = jnp.tanh
    return act


@pytest.mark.parametrize("norm", [BatchNorm, Tenfold])
@pytest.mark.parametrize("act", [ReLU, Shifted, GELU, changed_function])
@pytest.mark.parametrize("with_shortcut", [False, True])
def test_what_is_called_is_what_stands_there(voxels, norm, act, with_shortcut):
    one, other = norm(4), norm(4)
    shortcut = voxels * 0.5 if with_shortcut else None
    found = norm_act(one, act(), voxels, shortcut)
    normed = other(voxels)
    wanted = act()(normed if shortcut is None else normed + shortcut)
    np.testing.assert_allclose(found.features, wanted.features, 1e-5, 1e-6)
    np.testing.assert_array_equal(one.mean[...], other.mean[...])


def test_a_method_put_in_place_is_called(voxels, monkeypatch):
    call = ReLU.__call__
    monkeypatch.setattr(ReLU, "__call__", lambda self, v: call(self, v) * 10)
    found = Sequential(BatchNorm(4), ReLU())(voxels)
    np.testing.assert_allclose(found.features, 10 * jnp.maximum(BatchNorm(4)(voxels).features, 0))


def test_networks_run_what_a_user_puts_there(voxels):
    block, plain = (ConvNormAct(4, 4, rngs=nnx.Rngs(0)) for _ in range(2))
    block.act = Shifted()
    wanted = plain(voxels).features + 1
    np.testing.assert_allclose(block(voxels).features, jnp.where(voxels.valid[:, None], wanted, 0))
    residual, plain = (ResidualBlock(4, 4, rngs=nnx.Rngs(0)) for _ in range(2))
    residual.act = Shifted()
    wanted = plain(voxels).features + 1
    found = residual(voxels).features
    np.testing.assert_allclose(found, jnp.where(voxels.valid[:, None], wanted, 0), 1e-5, 1e-6)


def test_a_sequence_is_its_layers(voxels):
    layers = [BatchNorm(4), ReLU(), BatchNorm(4), BatchNorm(4), ReLU(), ReLU()]
    wanted = voxels
    for layer in layers:
        wanted = layer(wanted)
    found = Sequential(*(BatchNorm(4) if isinstance(x, BatchNorm) else ReLU() for x in layers))
    np.testing.assert_allclose(found(voxels).features, wanted.features, 1e-5, 1e-6)


def test_other_coordinates_are_refused(voxels):
    other = vx.Voxels.from_coords(voxels.coords[:8] + 1, voxels.features[:8])
    with pytest.raises(vx.GeometryMismatchError):
        norm_act(BatchNorm(4), ReLU(), voxels, other)
