"""Checkpointed blocks: the same numbers, less memory, and no map built twice."""

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from oracle import relative_error
from voxax.geometry import MAP_BUILT_EVENT
from voxax.models.minkunet import ResidualBlock
from voxax.nn.modules.norm import BatchNorm
from voxax.nn.modules.pointwise import Dropout, ReLU
from voxax.nn.modules.remat import Remat
from voxax.nn.modules.sequential import Sequential
from voxax.nn.modules.sparse_convs import SpatiallySparseConv

CAPACITY, CHANNELS = 64, 4


@pytest.fixture
def voxels(rng):
    axes = np.argwhere(np.ones((2, 6, 6)))
    rows = axes[np.sort(rng.permutation(72)[:50])]
    coords = np.full((CAPACITY, 3), vx.PAD, np.int32)
    coords[:50] = rows
    features = np.full((CAPACITY, CHANNELS), np.nan, np.float32)
    features[:50] = rng.normal(size=(50, CHANNELS))
    zero, count = jnp.zeros((), jnp.int32), jnp.asarray(50, jnp.int32)
    geometry = vx.VoxelGeometry(jnp.asarray(coords), count, {(1, 1): zero}, None, (1, 1), 2)
    return vx.Voxels(geometry, jnp.asarray(features))


@pytest.fixture
def built():
    """Return the number of maps built since the test began, as a list of one."""
    number = [0]

    def listen(event, **_):
        number[0] += event == MAP_BUILT_EVENT

    jax.monitoring.register_event_listener(listen)
    yield number
    jax.monitoring.unregister_event_listener(listen)


def residual_block():
    return ResidualBlock(CHANNELS, CHANNELS, rngs=nnx.Rngs(0), ndim=2)


def random_block():
    """Build a block with running averages and a random stream."""
    rngs = nnx.Rngs(0)
    conv = SpatiallySparseConv(CHANNELS, CHANNELS, (1, 3), ndim=2, use_bias=False, rngs=rngs)
    return Sequential(conv, BatchNorm(CHANNELS), ReLU(), Dropout(0.5, rngs=rngs), ReLU())


def functional(model):
    """``(loss(params, features, voxels) -> (value, new state), params)``."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params, features, voxels):
        copy = nnx.merge(graph, params, rest, copy=True)
        given = vx.Voxels(voxels.geometry, features)
        out = copy(given)
        return ((out + given).features ** 2).sum(), nnx.state(copy, nnx.Not(nnx.Param))

    return loss, params


def test_values_gradients_and_state_are_the_same(voxels, built):
    """The sum with the input also shows that the result is on the input's geometry."""
    results = []
    for model in (random_block(), Remat(random_block())):
        loss, params = functional(model)
        fresh = vx.Voxels(voxels.geometry.bare(), voxels.features)
        step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
        results.append(jax.tree.leaves(step(params, voxels.features, fresh)))
    plain, remat = results
    assert len(plain) == len(remat)
    assert built == [2], "one map for each model"
    for one, other in zip(plain, remat, strict=True):
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        assert np.isfinite(one).all()
        assert relative_error(other, one) < 1e-5


def test_fewer_residuals_are_kept(voxels):
    kept, programs = [], []
    for model in (random_block(), Remat(random_block())):
        loss, params = functional(model)

        def residuals(params, features, f=loss):
            return jax.vjp(lambda *args: f(*args, voxels), params, features, has_aux=True)[1]

        arrays = jax.tree.leaves(jax.eval_shape(residuals, params, voxels.features))
        kept.append(sum(x.size for x in arrays if jnp.issubdtype(x.dtype, jnp.floating)))
        programs.append(str(jax.make_jaxpr(loss)(params, voxels.features, voxels)))
    assert kept[1] < kept[0] / 2
    assert ["checkpoint" in p or "remat" in p for p in programs] == [False, True]


def test_eager_maps_that_exist_are_used(voxels, built):
    known = vx.kernel_map(voxels, 3)
    assert built == [1]
    out = Remat(residual_block())(voxels)
    assert built == [1]
    assert out.geometry is voxels.geometry
    assert vx.kernel_map(out, 3) is known


def test_maps_that_the_block_built_are_known_afterwards(voxels, built):
    """Down inside, up outside: the transposed map is read off the one that led down."""
    down = Remat(SpatiallySparseConv(CHANNELS, CHANNELS, 2, 2, ndim=2, rngs=nnx.Rngs(0)))
    up = SpatiallySparseConv(CHANNELS, CHANNELS, 2, 2, ndim=2, transposed=True)

    @jax.jit
    def run(voxels):
        coarse = down(voxels)
        return coarse, down.block(voxels), up(coarse, voxels) + voxels

    coarse, expected, out = run(voxels)
    assert built == [1]
    assert coarse.stride == (2, 2)
    np.testing.assert_array_equal(coarse.coords, expected.coords)
    np.testing.assert_allclose(coarse.features, expected.features, rtol=1e-6)
    assert np.isfinite(out.features).all()


def test_plans_see_through(voxels):
    plain, remat = (vx.Plan.record(m, voxels) for m in (residual_block(), Remat(residual_block())))
    assert remat.records == plain.records


class KeepPositive(nnx.Module):
    """Voxels that depend on the features: their coordinates are computed inside."""

    def __init__(self):
        self.factor = nnx.Param(jnp.asarray(2.0))

    def __call__(self, voxels, threshold):
        keep = voxels.features[:, :1] > threshold
        coords = jnp.where(keep, voxels.coords, vx.PAD)
        features = voxels.features * self.factor[...]
        kept = vx.Voxels.from_coords(coords, features, voxels.batch_size, capacity=CAPACITY)
        return {"kept": kept, "input": voxels, "threshold": threshold, "count": kept.count}


def test_coordinates_that_are_made_inside_come_out(voxels):
    block = KeepPositive()

    @jax.jit
    def run(voxels):
        return block(voxels, 0.25), Remat(block)(voxels, threshold=0.25)

    expected, out = run(voxels)
    assert (int(out["count"]), out["threshold"]) == (int(expected["kept"].count), 0.25)
    np.testing.assert_array_equal(out["kept"].coords, expected["kept"].coords)
    np.testing.assert_array_equal(out["kept"].features, expected["kept"].features)
    np.testing.assert_array_equal(out["input"].coords, voxels.coords)


def test_train_and_eval_reach_the_block(voxels):
    model = Remat(random_block())
    model.eval()
    first, second = model(voxels).features, model(voxels).features
    np.testing.assert_array_equal(first, second)
