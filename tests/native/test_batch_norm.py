"""Batch normalization in the library, through XLA and ctypes, against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from problems import needs_native
from voxax._native import host_norm
from voxax.nn.functional.batch_norm import batch_norm

pytestmark = needs_native
MOMENTUM, EPSILON = 0.8, 1e-3
SIZES = [(0, 3, 0), (1, 1, 1), (9, 5, 0), (700, 19, 655), (3000, 64, 2048), (20, 700, 17)]


def problem(rng, rows, channels, count, dtype=np.float32):
    """Arrays of a normalization, NaN in rows that are not valid."""
    valid = np.zeros(rows, bool)
    valid[rng.permutation(rows)[:count]] = True
    x, residual, dy = rng.normal(2, 3, (3, rows, channels)).astype(dtype)
    for array in (x, residual, dy):
        array[~valid] = np.nan
    scale, bias, mean = rng.normal(size=(3, channels)).astype(dtype)
    variance = rng.uniform(0.5, 2, channels).astype(dtype)
    return valid, x, residual, dy, scale, bias, mean, variance


def expected(valid, x, residual, dy, scale, bias, mean, variance, training, relu):
    """Return ``(y, averages, gradients)`` by formulas in float64."""
    rows = [np.float64(a[valid]) for a in (x, residual, dy)]
    x, residual, dy = rows
    scale, bias, old_mean, old_variance = map(np.float64, (scale, bias, mean, variance))
    mean, variance, averages = old_mean, old_variance, (old_mean, old_variance)
    if training and len(x):
        mean, variance = x.mean(0), x.var(0)
        averages = tuple(
            MOMENTUM * old + (1 - MOMENTUM) * new
            for old, new in ((old_mean, mean), (old_variance, variance))
        )
    inverse = 1 / np.sqrt(variance + EPSILON)
    normed = (x - mean) * inverse
    y = normed * scale + bias + residual
    dz = np.where(y > 0, dy, 0) if relu else dy
    dx = dz * scale * inverse
    if training and len(x):
        dx = scale * inverse * (dz - dz.mean(0) - normed * (dz * normed).mean(0))
    y = np.maximum(y, 0) if relu else y
    return y, averages, (dx, dz, (dz * normed).sum(0), dz.sum(0))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_and_gradients(rng, size, relu, training, dtype):
    arrays = problem(rng, *size, dtype)
    valid, x, residual, dy, scale, bias, mean, variance = arrays
    y, averages, wanted = expected(*arrays, training, relu)
    tolerance = (
        {"rtol": 1e-10, "atol": 1e-10} if dtype == np.float64 else {"rtol": 1e-3, "atol": 2e-4}
    )

    found, dx, dresidual = (np.full_like(x, 7) for _ in range(3))
    options = {"training": training, "relu": relu, "threads": 3}
    used_mean, inverse, *new = host_norm.batch_norm(
        x, valid, scale, bias, residual, mean, variance, found,
        momentum=MOMENTUM, epsilon=EPSILON, **options,
    )  # fmt: skip
    alone = host_norm.batch_norm(
        x, valid, scale, bias, None, mean, variance, None,
        momentum=MOMENTUM, epsilon=EPSILON, **options,
    )  # fmt: skip
    assert all(map(np.array_equal, alone, (used_mean, inverse, *new)))
    dscale, dbias = host_norm.batch_norm_gradients(
        dy, x, found, valid, used_mean, inverse, scale, dx, dresidual, **options
    )
    np.testing.assert_allclose(found[valid], y, **tolerance)
    for got, want in zip(new, averages, strict=True):
        np.testing.assert_allclose(got, want, **tolerance)
    for got, want in zip((dx[valid], dresidual[valid], dscale, dbias), wanted, strict=True):
        np.testing.assert_allclose(got, want, **tolerance)
    for rows in (found, dx, dresidual):
        assert not rows[~valid].any()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64, jnp.bfloat16])
def test_xla_and_ctypes_have_the_same_bits(rng, dtype):
    """Whatever the number of threads and the instruction set is; NaN reaches no valid row."""
    with jax.enable_x64(dtype == jnp.float64):
        valid, x, residual, dy, *rest = problem(rng, 3000, 35, 2700, np.float64)
        rows = [jnp.asarray(a, dtype) for a in (x, residual, dy)]
        wide = jnp.float64 if dtype == jnp.float64 else jnp.float32
        scale, bias, mean, variance = (jnp.asarray(a, wide) for a in rest)
        options = {"training": True, "momentum": MOMENTUM, "epsilon": EPSILON, "relu": True}

        def forward(x, residual, scale, bias):
            made = batch_norm(x, valid, mean, variance, scale, bias, residual=residual, **options)
            return made.features, (made.mean, made.variance)

        arguments = rows[0], rows[1], scale, bias
        (y, averages), back = jax.jit(
            lambda *a: (forward(*a), jax.vjp(forward, *a, has_aux=True)[1](rows[2]))
        )(*arguments)
        bits = [
            np.asarray(a).view(np.uint16) if dtype == jnp.bfloat16 else np.asarray(a) for a in rows
        ]
        found, dx, dresidual = (np.empty_like(bits[0]) for _ in range(3))
        channels = [np.asarray(a) for a in (scale, bias, mean, variance)]
        for threads in (1, 5):
            used_mean, inverse, *new = host_norm.batch_norm(
                bits[0], valid, *channels[:2], bits[1], *channels[2:], found,
                threads=threads, **options,
            )  # fmt: skip
            more = host_norm.batch_norm_gradients(
                bits[2], bits[0], found, valid, used_mean, inverse, channels[0], dx, dresidual,
                training=True, relu=True, threads=threads,
            )  # fmt: skip
            for got, want in zip((found, *new), (y, *averages), strict=True):
                np.testing.assert_array_equal(got, np.asarray(want).view(got.dtype))
            for got, want in zip((dx, dresidual, *more), back, strict=True):
                np.testing.assert_array_equal(got, np.asarray(want).view(got.dtype))


def test_nan_in_a_valid_row_stays_visible(rng):
    valid, x, _, _, scale, bias, mean, variance = problem(rng, 30, 4, 20)
    x[np.flatnonzero(valid)[3], 2] = np.nan
    made = batch_norm(x, valid, mean, variance, scale, bias, training=False, relu=True)
    assert np.isnan(made.features[np.flatnonzero(valid)[3], 2])
    assert np.isnan(made.features).sum() == 1


def test_shapes_that_do_not_fit(rng):
    valid, x, _, _, scale, bias, mean, variance = problem(rng, 30, 4, 20)
    options = {"momentum": 0.9, "epsilon": 1e-5, "training": True, "relu": False}
    for wrong in (x[:29], x.astype(np.float64), np.asfortranarray(x)):
        with pytest.raises(ValueError, match="they do not fit"):
            host_norm.batch_norm(
                x, valid, scale, bias, wrong, mean, variance, np.empty_like(x), **options
            )


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("axis", [None, "i"])
def test_in_training_the_old_averages_have_no_derivative(rng, jit, axis):
    """Nor have the new ones, in reverse and in forward mode, and under ``vmap``."""
    valid, x, _, _, scale, bias, *averages = problem(rng, 30, 4, 20)
    x[~valid] = 0

    def loss(x, mean, variance):
        made = batch_norm(x, valid, mean, variance, scale, bias, training=True, axis_name=axis)
        return (made.features**3).sum() + made.mean.sum() + made.variance.sum(), made.features

    def squeezed(x, mean, variance):
        if axis is None:
            return loss(x, mean, variance)[0]
        return jax.vmap(loss, (0, None, None), axis_name=axis)(x[None], mean, variance)[0][0]

    gradient = jax.grad(squeezed, (0, 1, 2))
    of_x, *of_averages = (jax.jit(gradient) if jit else gradient)(x, *averages)
    assert np.abs(of_x).max() > 0
    assert not any(np.any(g) for g in of_averages)
    ones = jax.tree.map(np.ones_like, averages)
    _, tangent = jax.jvp(lambda *a: squeezed(x, *a), tuple(map(jnp.asarray, averages)), tuple(ones))
    assert tangent == 0

    def features(x):
        return (batch_norm(x, valid, *averages, scale, bias, training=True).features ** 3).sum()

    np.testing.assert_allclose(of_x, jax.grad(features)(x), rtol=1e-4, atol=1e-4)
