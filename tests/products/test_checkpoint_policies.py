"""Policies of jax.checkpoint decide about products as about matrix products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from voxax.nn import functional as F

POLICIES = jax.checkpoint_policies
ROWS = np.unique(np.random.default_rng(0).integers(0, (1, 4, 4), (20, 3)), axis=0).astype(np.int32)
VOXELS = vx.Voxels.from_coords(ROWS, np.ones((len(ROWS), 4), np.float32), capacity=16)


def dense(voxels, w):
    return F.spatially_sparse_conv(voxels, w, 3)


def grouped(voxels, w):
    return F.spatially_sparse_conv(voxels, w[:, :, :2].reshape(9, 2, 2, 2), 3, groups=2)


def depthwise(voxels, w):
    return F.depthwise_conv(voxels, w[:, 0], 3)


def strided(voxels, w):
    return F.spatially_sparse_conv(voxels, w, 3, generative=True, capacity=256)


def network(layer):
    def run(w):
        x = VOXELS
        for _ in range(3):
            x = layer(x, w).map(jnp.tanh)
        return jnp.sum(x.features**2)

    return run


def gradient(layer, policy):
    return jax.grad(jax.checkpoint(network(layer), policy=policy))


def products(function, w):
    return str(jax.make_jaxpr(function)(w)).count("voxax_forward")


@pytest.fixture
def weight():
    return jnp.asarray(np.random.default_rng(1).normal(size=(9, 4, 4)) * 0.2, jnp.float32)


@pytest.mark.parametrize("layer", [dense, grouped, depthwise, strided])
def test_products_are_kept_or_computed_again_as_the_policy_says(layer, weight):
    names = ("everything_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable")
    kept = [products(gradient(layer, getattr(POLICIES, name)), weight) for name in names]
    again = products(gradient(layer, POLICIES.nothing_saveable), weight)
    by_name = products(gradient(layer, POLICIES.save_only_these_names("x")), weight)
    assert kept == [3, 3, 3]
    assert again == by_name > 3


@pytest.mark.parametrize("layer", [dense, depthwise])
@pytest.mark.parametrize("name", ["nothing_saveable", "dots_saveable", "everything_saveable"])
def test_gradients_do_not_depend_on_the_policy(layer, name, weight):
    want = jax.grad(network(layer))(weight)
    got = gradient(layer, getattr(POLICIES, name))(weight)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_policy_may_name_the_product_itself(weight):
    def policy(primitive, *_, **__):
        return primitive.name == "voxax_forward"

    assert products(gradient(dense, policy), weight) == 3


def test_second_derivatives_go_through_a_policy(weight):
    def curvature(f):
        return jax.jvp(jax.grad(f), (weight,), (weight,))[1]

    with_policy = jax.checkpoint(network(dense), policy=POLICIES.dots_saveable)
    np.testing.assert_allclose(
        curvature(with_policy), curvature(network(dense)), rtol=1e-4, atol=1e-5
    )
