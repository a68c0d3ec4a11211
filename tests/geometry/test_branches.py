"""Features with two readers: values and derivatives are those of reading them twice."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from problems import needs_native
from voxax.geometry.branches import branch
from voxax.models.minkunet import ResidualBlock


def scene(rng, dtype=np.float32, capacity=80, channels=4):
    coords = np.unique(rng.integers(0, 8, (60, 3)), axis=0)
    rows = np.pad(coords, ((0, 0), (1, 0)))
    features = rng.normal(size=(len(rows), channels)).astype(dtype)
    return vx.Voxels.from_coords(rows, features, capacity=capacity)


def loss_of(voxels, readers):
    def loss(features):
        first, second = readers(dataclasses.replace(voxels, features=features))
        valid = voxels.valid[:, None]
        a, b = (jnp.where(valid, v.features.astype(jnp.float32), 0) for v in (first, second))
        return jnp.sum(jnp.sin(a) * b + a)

    return loss


def plain(voxels):
    return voxels, voxels


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("call", [jax.jit, lambda f: f])
def test_gradients_are_those_of_reading_twice(rng, dtype, call):
    voxels = scene(rng, jnp.dtype(dtype))
    found, wanted = (
        call(jax.grad(loss_of(voxels, readers)))(voxels.features) for readers in (branch, plain)
    )
    np.testing.assert_array_equal(found, wanted)


def test_other_derivatives(rng):
    voxels = scene(rng)
    x, t = voxels.features, jnp.cos(voxels.features)

    def all_of(readers):
        loss = loss_of(voxels, readers)
        push = jax.jvp(loss, (x,), (t,))[1]
        reverse_twice = jax.grad(lambda x: jnp.vdot(jax.grad(loss)(x), t))(x)
        forward = jax.jvp(jax.grad(loss), (x,), (t,))[1]
        mapped = jax.vmap(jax.grad(loss))(jnp.stack([x, t]))
        along_rows = jax.vmap(jax.grad(loss), in_axes=2, out_axes=2)(jnp.stack([x, t], 2))
        return push, reverse_twice, forward, mapped, along_rows

    for found, wanted in zip(jax.jit(lambda: all_of(branch))(), all_of(plain), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_one_reader_and_integers(rng):
    voxels = scene(rng)
    found = jax.grad(lambda x: branch(voxels.replace_features(x))[1].features.sum())
    np.testing.assert_array_equal(found(voxels.features)[: int(voxels.count)], 1)
    numbers = voxels.replace_features(voxels.features.astype(jnp.int32))
    assert branch(numbers)[0].features.dtype == jnp.int32


def test_padding_of_gradients_is_not_read(rng):
    voxels = scene(rng)

    def twice(features):
        return [v.features for v in branch(dataclasses.replace(voxels, features=features))]

    poison = jnp.where(voxels.valid[:, None], jnp.ones((1, 4)), jnp.nan)
    (found,) = jax.jit(lambda x, ct: jax.vjp(twice, x)[1]([ct, ct]))(voxels.features, poison)
    count = int(voxels.count)
    np.testing.assert_array_equal(found[:count], 2)
    assert not np.asarray(found[count:]).any()


@needs_native
def test_the_compiler_adds_no_features_of_a_residual_block(rng):
    voxels = scene(rng, channels=16, capacity=1024)
    block = ResidualBlock(16, 16, rngs=nnx.Rngs(0))
    graph, params, rest = nnx.split(block, nnx.Param, ...)
    voxels = vx.plan(block, voxels)

    @jax.jit
    def gradients(params, features):
        def loss(params, features):
            given = dataclasses.replace(voxels, features=features)
            # Its own gradient is native as well.
            return nnx.merge(graph, params, rest, copy=True)(given).features

        return jax.vjp(loss, params, features)[1](features)

    program = gradients.lower(params, voxels.features).compile().as_text()
    assert "voxax_add_rows" in program
    assert not re.findall(r"= f32\[1024,16\]\S* (?:fusion|add|copy)\(", program)
