"""Activations and normalizations at the largest features of a dtype, against float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
import voxax.nn.modules as vnn

COORDS = np.array([[0, i, 2 * i, 1] for i in range(6)], np.int32)
DIGITS = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5}
ACTIVATIONS = {
    "relu": (vnn.ReLU, jax.nn.relu),
    "leaky_relu": (vnn.LeakyReLU, jax.nn.leaky_relu),
    "silu": (vnn.SiLU, jax.nn.silu),
    "gelu": (vnn.GELU, jax.nn.gelu),
    "exact gelu": (
        lambda: vnn.GELU(approximate=False),
        lambda x: jax.nn.gelu(x, approximate=False),
    ),
    "own": (lambda: vnn.Activation(lambda x: jnp.tanh(x**3)), lambda x: jnp.tanh(x**3)),
    "mish": (lambda: vnn.Activation(jax.nn.mish), jax.nn.mish),
}
# The other functions of jax.nn from a feature to a feature, but squareplus, which subtracts two
# large numbers in every dtype.
OTHERS = {
    name: (lambda name=name: vnn.Activation(getattr(jax.nn, name)), getattr(jax.nn, name))
    for name in (
        *("celu", "elu", "hard_sigmoid", "hard_silu", "hard_tanh", "identity", "log_sigmoid"),
        *("relu6", "selu", "sigmoid", "soft_sign", "softplus", "sparse_plus", "sparse_sigmoid"),
        "tanh",
    )
}
CASES = [*((name, dtype) for name in ACTIVATIONS for dtype in DIGITS)]
CASES += [(name, "float16") for name in OTHERS]
NORMS = {
    "BatchNorm": lambda: vnn.BatchNorm(4),
    "LayerNorm": lambda: vnn.LayerNorm(4),
    "RMSNorm": lambda: vnn.RMSNorm(4),
    "InstanceNorm": lambda: vnn.InstanceNorm(4),
    "GroupNorm": lambda: vnn.GroupNorm(4, 2),
}


def voxels(features):
    return vx.Voxels.from_coords(COORDS, features, batch_size=1, capacity=8)


def result_and_gradient(module, v, cotangent):
    """Both in the dtype of the features."""

    def of(features):
        return module(dataclasses.replace(v, features=features)).features

    y, back = jax.vjp(of, v.features)
    return y, back(jnp.asarray(cotangent, y.dtype))[0]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_activations(name, dtype):
    make, function = (ACTIVATIONS | OTHERS)[name]
    limit = float(jnp.finfo(jnp.float16).max)
    values = [0.0, 0.5, 1.0, 3.0, 40.0, 300.0, 5e3, limit]
    x = jnp.asarray([*values, *(-a for a in values), *values[:8]], dtype).reshape(6, 4)
    v = voxels(x)
    y, dx = result_and_gradient(make(), v, np.ones((8, 4)))
    assert y.dtype == dx.dtype == x.dtype
    with jax.enable_x64(True):
        exact = jnp.asarray(np.asarray(v.features).astype(np.float64))
        expected, back = jax.vjp(function, exact)
        gradient = np.array(back(jnp.ones_like(exact))[0])
        # Beyond the dtype, as selu at its end, the result is infinite.
        expected = np.array(expected.astype(dtype).astype(np.float64))
    real = np.arange(8) < 6
    digits = DIGITS[dtype]
    np.testing.assert_allclose(
        np.asarray(y).astype(np.float64)[real], expected[real], rtol=digits, atol=digits
    )
    np.testing.assert_allclose(
        np.asarray(dx).astype(np.float64)[real], gradient[real], rtol=digits, atol=digits
    )


@pytest.mark.parametrize("dtype", DIGITS)
@pytest.mark.parametrize("name", NORMS)
def test_norms(name, dtype):
    """The result does not depend on the scale of features, and derivatives fall with it."""
    rng = np.random.default_rng(0)
    features, cotangent = rng.uniform(-1, 1, (6, 4)), rng.standard_normal((8, 4))
    large = 2.0**15  # exact in every dtype
    module = NORMS[name]()
    if name == "BatchNorm":
        # The state would keep a traced value.
        module = nnx_pure(module)
    small = voxels(jnp.asarray(features, dtype))
    y, dx = result_and_gradient(module, small, cotangent)
    big = dataclasses.replace(small, features=small.features * jnp.asarray(large, dtype))
    y_large, dx_large = result_and_gradient(module, big, cotangent)
    # epsilon counts for small features
    np.testing.assert_allclose(
        np.asarray(y_large, np.float32), np.asarray(y, np.float32), rtol=0.02, atol=0.02
    )
    assert np.isfinite(np.asarray(dx_large, np.float32)).all()
    np.testing.assert_allclose(
        np.asarray(dx_large, np.float32) * large, np.asarray(dx, np.float32), rtol=0.1, atol=0.1
    )


def exact_norm(name, x, cotangent):
    """Normalized features and their gradient in float64; scale 1, offset 0, epsilon 1e-5."""
    groups = {"LayerNorm": (1, 4), "RMSNorm": (1, 4), "GroupNorm": (6, 2)}.get(name, (6, 1))

    def of(x):
        parts = x.reshape(6 // groups[0], groups[0], 4 // groups[1], groups[1])
        mean = 0 if name == "RMSNorm" else parts.mean((1, 3), keepdims=True)
        centered = parts - mean
        scale = jnp.sqrt((centered**2).mean((1, 3), keepdims=True) + 1e-5)
        return (centered / scale).reshape(6, 4)

    with jax.enable_x64(True):
        y, back = jax.vjp(of, jnp.asarray(x, jnp.float64))
        return np.array(y), np.array(back(jnp.asarray(cotangent, jnp.float64))[0])


@pytest.mark.parametrize("spread", [6e4, 1e-2])
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_float16_near_its_end(name, spread):
    """Features of +-6e4, and features around 6e4 that differ by their last digits."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-6e4, 6e4, (6, 4)) if spread == 6e4 else rng.uniform(5.9e4, 6.1e4, (6, 4))
    v = voxels(jnp.asarray(x, jnp.float16))
    cotangent = rng.standard_normal((8, 4)).astype(np.float16)
    module = nnx_pure(NORMS[name]()) if name == "BatchNorm" else NORMS[name]()
    y, dx = result_and_gradient(module, v, cotangent)
    assert y.dtype == dx.dtype == jnp.float16
    expected, gradient = exact_norm(name, np.asarray(v.features, np.float64)[:6], cotangent[:6])
    np.testing.assert_allclose(np.asarray(y, np.float64)[:6], expected, rtol=4e-3, atol=4e-3)
    # The smallest numbers of float16 are 6e-8 apart.
    np.testing.assert_allclose(np.asarray(dx, np.float64)[:6], gradient, rtol=2e-2, atol=2e-7)


def nnx_pure(module):
    """The module as a function that changes no state."""
    graph, state = nnx.split(module)
    return lambda v: nnx.merge(graph, state, copy=True)(v)
