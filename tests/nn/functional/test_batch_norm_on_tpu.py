"""Gradients of batch normalization as TPUs compute them, run on the CPU."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from voxax import _native
from voxax.nn.functional import batch_norm as batch_norm_module

ROWS, CHANNELS = 300, 8
MOVES = (0, 2, 3, 4)  # features, scale, bias and residual
OPTIONS = {"momentum": 0.9, "epsilon": 1e-5}
CASES = list(itertools.product((True, False), repeat=3))


def operands(rng, dtype, residual):
    valid = jnp.asarray(rng.random(ROWS) < 0.8)

    def features(rows=ROWS):
        values = jnp.asarray(3 + 2 * rng.normal(size=(rows, CHANNELS)), dtype)
        return jnp.where(valid[:rows, None], values, jnp.asarray(jnp.nan, dtype))

    channels = [jnp.asarray(rng.random(CHANNELS) + 0.5, jnp.float32) for _ in range(4)]
    rest = features(ROWS if residual else 0)
    return features(), features(), valid, *channels[:2], rest, *channels[2:]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("training", "relu", "residual"), CASES)
def test_they_are_the_derivatives(training, relu, residual, dtype, rng):
    """Rows that are no voxels hold NaN, and so do their cotangents."""
    dy, *arrays = operands(rng, dtype, residual)
    options = {**OPTIONS, "training": training, "relu": relu}

    def value(*moved):
        given = list(arrays)
        for place, array in zip(MOVES, moved, strict=True):
            given[place] = array
        return batch_norm_module._portable(*given, **options)

    moved = [arrays[place] for place in MOVES]
    expected = jax.vjp(lambda *moved: value(*moved)[0], *moved)[1](dy)
    results = value(*moved)
    found = batch_norm_module._gradients_on_tpu(dy, *arrays, *results, moves=MOVES, **options)
    for got, right in zip(found, expected, strict=True):
        assert (got.dtype, got.shape) == (right.dtype, right.shape)
        got, right = np.asarray(got, np.float32), np.asarray(right, np.float32)
        digits = 1e-2 if dtype == "bfloat16" else 1e-5
        np.testing.assert_allclose(got, right, atol=digits * np.abs(right).max(initial=0))


# Without it the rule of differentiation is that of the portable form on every platform.
@pytest.mark.skipif(_native.unavailable() is not None, reason=f"{_native.unavailable()}")
def test_programs_for_tpus_have_fewer_sums(rng):
    """Others take the derivative, whose sums need each other."""
    dy, *arrays = operands(rng, "bfloat16", False)

    def gradients(dy, x, valid, scale, bias, residual, mean, variance):
        def value(x, scale, bias):
            averages = mean, variance
            options = {**OPTIONS, "training": True, "relu": True}
            return batch_norm_module.batch_norm(x, valid, *averages, scale, bias, **options)[0]

        return jax.vjp(value, x, scale, bias)[1](dy)

    def sums(platform):
        traced = jax.jit(gradients).trace(dy, *arrays)
        return traced.lower(lowering_platforms=(platform,)).as_text().count("stablehlo.reduce(")

    assert sums("tpu") < sums("cuda")
