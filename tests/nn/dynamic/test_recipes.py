"""Recipes of `examples/operators` run, and inside networks every parameter learns.

Against their definitions, with derivatives and in one program: test_dynamic_cases.
"""

import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from oracle import dynamic_operators as oracle
from recipes import FILES, recipe


def drawn(rng, *shape):
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


def learns(call, parameters):
    """Every parameter has a gradient that is finite and not zero."""
    slopes = jax.jit(jax.grad(lambda p: jnp.sum(call(p) ** 2)))(parameters)
    for leaf in jax.tree.leaves(slopes):
        assert np.isfinite(leaf).all()
        assert np.abs(leaf).max() > 0


@pytest.mark.lax_promotion
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_its_usage_runs(file):
    runpy.run_path(str(file), run_name="__main__")


@pytest.mark.slow
def test_involution(rng):
    x, reduce, span = drawn(rng, 2, 6, 5, 4), drawn(rng, 4, 4), drawn(rng, 4, 18)
    run = jax.jit(lambda x, p: recipe("involution")(x, *p, kernel_size=3, groups=2, stride=2))
    y = run(x, (reduce, span))
    inner = np.maximum(np.asarray(x)[:, ::2, ::2] @ np.asarray(reduce), 0)
    kernels = (inner @ np.asarray(span)).reshape(2, 3, 3, 9, 2)
    want = oracle.local_conv(np.asarray(x, np.float64), kernels, (3, 3), (2, 2), (1, 1))
    np.testing.assert_allclose(y, want, atol=1e-4)
    learns(lambda p: run(x, p), (reduce, span))


@pytest.mark.slow
@pytest.mark.parametrize("gates", [("tap", "in", "out"), ()], ids=["gates", "shares"])
def test_mixture_of_pooled_channels(gates, rng):
    """ODConv's gates, or CondConv's shares, from the mean over positions."""
    x, weight = drawn(rng, 2, 6, 5, 4), drawn(rng, 3, 3, 3, 2, 6)
    extents = {"tap": 9, "in": 4, "out": 6}
    heads = {name: drawn(rng, 4, extents[name]) for name in gates}

    def run(p):
        pooled = jnp.mean(x, axis=(1, 2))
        opened = {f"{name}_gate": jax.nn.sigmoid(pooled @ p[name]) for name in gates}
        shares = jax.nn.softmax(pooled @ p["mixture"])
        return recipe("mixture_conv")(x, p["weight"], shares, groups=2, **opened)

    learns(run, {"weight": weight, "mixture": drawn(rng, 4, 3), **heads})


@pytest.mark.slow
def test_selection_of_pooled_channels(rng):
    x = drawn(rng, 2, 6, 5, 4)
    weights = [drawn(rng, 3, 3, 4, 6), drawn(rng, 5, 5, 4, 6)]

    def run(p):
        def select(pooled):
            inner = jax.nn.relu(pooled @ p["squeeze"])
            return (inner @ p["excite"]).reshape(-1, 2, 6)

        return recipe("selective_conv")(x, p["weights"], select, stride=2)

    heads = {"squeeze": drawn(rng, 6, 4), "excite": drawn(rng, 4, 12)}
    learns(run, {"weights": weights, **heads})


@pytest.mark.slow
def test_pixel_adaptive_with_a_metric(rng):
    """The input as its own guide, seen through two channels."""
    x, weight, metric = drawn(rng, 2, 6, 5, 4), drawn(rng, 3, 3, 4, 6), drawn(rng, 4, 2)
    run = jax.jit(lambda p: recipe("pixel_adaptive_conv")(x, x @ p[1], p[0], stride=2))
    embedded, wide = np.asarray(x @ metric, np.float64), np.asarray(x, np.float64)
    want = oracle.pixel_adaptive_conv(
        wide, embedded, np.asarray(weight, np.float64), 0, (2, 2), (1, 1), False
    )
    np.testing.assert_allclose(run((weight, metric)), want, atol=1e-5)
    learns(run, (weight, metric))


@pytest.mark.slow
@pytest.mark.parametrize("axes", [1, 2])
def test_blur_of_predicted_width(axes, rng):
    x, predict = drawn(rng, 2, 6, 5, 4), drawn(rng, 4, axes)

    def sigma(predict):
        return 0.7 * jax.nn.sigmoid(x @ predict)

    run = jax.jit(lambda predict: recipe("gaussian_blur")(x, sigma(predict), radius=3))
    wide = np.broadcast_to(np.asarray(sigma(predict), np.float64), (2, 6, 5, 2))
    want = oracle.gaussian_blur(np.asarray(x, np.float64), wide, (3, 3))
    np.testing.assert_allclose(run(predict), want, atol=1e-5)
    learns(run, predict)


@pytest.mark.slow
def test_spectral_stride_is_a_parameter(rng):
    x = drawn(rng, 1, 12, 12, 2)
    run = recipe("spectral_stride")
    y, extent = run(x, jnp.asarray((2.0, 3.0)), smoothness=2.0)
    assert y.shape == x.shape
    assert all(n < 12 for n in extent)
    learns(lambda stride: run(x, stride, smoothness=2.0)[0], jnp.asarray((2.0, 3.0)))


@pytest.mark.slow
def test_point_conv_with_networks(rng):
    positions = rng.uniform(-1, 1, (40, 3)).astype(np.float32)
    points = vx.Points.make(positions, np.asarray(drawn(rng, 40, 4)), capacity=48)
    found = vx.radius_search(points, radius=0.8, capacity=40)
    density = recipe("point_density")(points, found, 0.3)

    def run(p):
        def net(places):
            return jax.nn.relu(jax.nn.relu(places @ p["first"]) @ p["second"])

        def scale(sparse):
            return jax.nn.sigmoid(jnp.tanh(sparse @ p["wide"]) @ p["narrow"])

        given = {"density": density, "scale": scale}
        return recipe("point_conv")(points, p["weight"], found, net, **given).features

    shapes = {"weight": (16, 4, 5), "first": (3, 16), "second": (16, 16)}
    shapes |= {"wide": (1, 16), "narrow": (16, 1)}
    learns(run, {name: drawn(rng, *shape) for name, shape in shapes.items()})
