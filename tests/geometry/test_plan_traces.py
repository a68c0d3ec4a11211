"""Plans see through ``jit`` and its like, and leave no traces behind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube
from flax import nnx

import voxax as vx
from samples import make_voxels
from voxax.geometry import MAP_BUILT_EVENT
from voxax.nn.modules import SparseConv3d, SpatiallySparseConv, SubMConv3d


@pytest.fixture(scope="module")
def voxels():
    return make_voxels(random_cube(), channels=3)


@pytest.fixture(scope="module")
def layers():
    rngs = nnx.Rngs(0)
    return (
        SubMConv3d(3, 4, 3, rngs=rngs),
        SparseConv3d(4, 4, 2, 2, rngs=rngs),
        SubMConv3d(4, 4, 3, rngs=rngs),
        SpatiallySparseConv(4, 4, 2, 2, transposed=True, rngs=rngs),
    )


def wrapped(layers, wrap):
    """A network whose two blocks are wrapped; the coarse voxels pass from one to the other."""
    stem, down, middle, up = layers
    encode, decode = wrap(lambda v: (stem(v), down(stem(v)))), wrap(middle)

    def network(v):
        fine, coarse = encode(v)
        return up(decode(coarse), fine)

    return network


WRAPS = {
    "jit": jax.jit,
    "nnx.jit": nnx.jit,
    "checkpoint": jax.checkpoint,
    "checkpoint in jit": lambda f: jax.jit(jax.checkpoint(f)),
}


def asked(plan):
    """What a plan builds; the arrays of each map depend on which trace reads it."""
    return {(r.in_level, r.spec, r.out_level) for r in plan.records}, plan.parents


@pytest.mark.parametrize("name", WRAPS)
@pytest.mark.parametrize("whole", [False, True], ids=["blocks", "whole"])
def test_a_wrapped_network_has_the_plan_of_a_plain_one(layers, voxels, name, whole):
    plain = wrapped(layers, lambda f: f)
    network = WRAPS[name](plain) if whole else wrapped(layers, WRAPS[name])
    expected = network(voxels)  # traced before: its traces would be found again
    plan = vx.Plan.record(network, voxels)
    assert asked(plan) == asked(vx.Plan.record(plain, voxels))
    assert len(plan.records) == 3
    assert vx.Plan.record(network, voxels) == plan
    planned = plan.attach(voxels)
    built = []

    def listen(event, **_):
        if event == MAP_BUILT_EVENT:
            built.append(event)

    jax.monitoring.register_event_listener(listen)
    try:
        out = jax.jit(network)(planned)
    finally:
        jax.monitoring.unregister_event_listener(listen)
    assert not built
    np.testing.assert_allclose(
        out.valid_features(), expected.valid_features(), rtol=1e-5, atol=1e-6
    )


def test_two_calls_that_ask_for_one_level_share_it(layers, voxels):
    stem, down, *_ = layers
    half = jax.jit(lambda v: down(stem(v)))
    plan = vx.Plan.record(lambda v: (half(v).features, half(v).features, down(stem(v))), voxels)
    assert (len(plan.parents), len(plan.records)) == (1, 2)


def test_voxels_of_its_own_are_nothing_to_plan_for(layers, voxels):
    stem, down, *_ = layers

    def network(v):
        own = vx.Voxels.from_coords(
            np.array([[0, 1, 2, 3], [0, 2, 2, 2]], np.int32), jnp.ones((2, 3))
        )
        return down(stem(own)), stem(v)

    plan = vx.Plan.record(network, voxels)
    assert (len(plan.parents), len(plan.records)) == (0, 1)


@pytest.mark.parametrize("use", [vx.plan, vx.explain], ids=["plan", "explain"])
def test_functions_on_arrays_are_traced_once(layers, voxels, use):
    """JAX keeps a trace as long as the function: made with each call, they would add up."""
    traced = []

    @jax.jit
    def scale(x):
        traced.append(x.shape)
        return 2 * x

    def network(v):
        return layers[0](v).map(scale)

    for _ in range(3):
        use(network, voxels)
    assert len(traced) == 1
