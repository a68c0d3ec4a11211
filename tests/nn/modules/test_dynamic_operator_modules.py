"""Modules of the named dynamic operators: the functions, with what they predict themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from oracle import dynamic_operators as oracle
from samples import make_voxels
from voxax.errors import InputError
from voxax.nn import functional
from voxax.nn.modules import (
    ContinuousConv,
    DeformConv,
    FocalConv,
    GaussianBlur,
    Involution,
    KernelPointConv,
    MixtureConv,
    PixelAdaptiveConv,
    PointConv,
    SelectiveConv,
    SpectralStride,
)


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
@pytest.mark.parametrize("options", [{"gates": ("tap", "in", "out")}, {"routing": "sigmoid"}])
def test_mixture(options, rng):
    conv = MixtureConv(4, 6, bank=3, groups=2, **options)
    x = image(rng)
    learns(shaken(conv, rng), lambda conv: conv(x))
    with pytest.raises(InputError, match="gates among tap, in, out"):
        MixtureConv(4, 6, gates=("kernel",))


@pytest.mark.slow
def test_selective_and_involution(rng):
    x = image(rng)
    selective = SelectiveConv(4, 6, (3, 5), stride=2, minimum=4)
    learns(shaken(selective, rng), lambda conv: conv(x))
    involution = Involution(4, 3, stride=2, groups=2, reduction=1)
    y = nnx.jit(lambda conv, x: conv(x))(involution, x)
    inner = np.maximum(np.asarray(x)[:, ::2, ::2] @ np.asarray(involution.reduce[...]), 0)
    kernels = (inner @ np.asarray(involution.span[...])).reshape(2, 3, 3, 9, 2)
    want = oracle.local_conv(np.asarray(x, np.float64), kernels, (3, 3), (2, 2), (1, 1))
    np.testing.assert_allclose(y, want, atol=1e-4)
    learns(shaken(involution, rng), lambda conv: conv(x))


@pytest.mark.slow
def test_pixel_adaptive(rng):
    x, guide = image(rng), image(rng, 3)
    conv = PixelAdaptiveConv(4, 6, (3, 2), guide_channels=3, normalize=True, rngs=nnx.Rngs(1))
    want = oracle.pixel_adaptive_conv(
        *(np.asarray(a, np.float64) for a in (x, guide, conv.weight[...])), 0, (1, 1), (1, 1), True
    )  # fmt: skip
    np.testing.assert_allclose(nnx.jit(lambda conv: conv(x, guide))(conv), want, atol=1e-5)
    learns(shaken(conv, rng), lambda conv: conv(x, guide))
    # Its own guide, seen through two channels.
    narrow = PixelAdaptiveConv(4, 6, embedding=2, stride=2, use_bias=False, dtype=jnp.bfloat16)
    y = nnx.jit(lambda conv: conv(x))(narrow)
    assert narrow.metric[...].shape == (4, 2)
    assert (y.shape, y.dtype) == ((2, 3, 3, 6), jnp.bfloat16)
    embedded = np.asarray(x @ narrow.metric[...], np.float64)
    weight = np.asarray(narrow.weight[...], np.float64)
    want = oracle.pixel_adaptive_conv(
        np.asarray(x, np.float64), embedded, weight, 0, (2, 2), (1, 1), False
    )
    np.testing.assert_allclose(np.asarray(y, np.float64), want, atol=0.05 * np.abs(want).max())


@pytest.mark.slow
@pytest.mark.parametrize("isotropic", [True, False])
def test_blur(isotropic, rng):
    x = image(rng)
    blur = GaussianBlur(4, 0.7, isotropic=isotropic)
    assert blur.radius == 3
    np.testing.assert_allclose(blur.sigma(x), 0.35, rtol=1e-6)
    shaken(blur, rng)
    run = nnx.jit(lambda blur, x: (blur(x), blur.sigma(x)))
    y, sigma = run(blur, x)
    assert sigma.shape == (2, 6, 5, 1 if isotropic else 2)
    assert sigma.min() > 0
    assert sigma.max() < 0.7
    wide = np.broadcast_to(np.asarray(sigma, np.float64), (2, 6, 5, 2))
    want = oracle.gaussian_blur(np.asarray(x, np.float64), wide, (3, 3))
    np.testing.assert_allclose(y, want, atol=1e-5)
    learns(blur, lambda blur: blur(x))
    given = functional.gaussian_blur(x, 0.5, radius=3)
    np.testing.assert_array_equal(blur(x, 0.5), given)
    with pytest.raises(InputError, match="largest=0: the largest width must be above 0"):
        GaussianBlur(4, 0)


@pytest.mark.slow
def test_point_convolutions(rng):
    positions = rng.uniform(-1, 1, (40, 3)).astype(np.float32)
    features = rng.standard_normal((40, 4)).astype(np.float32)
    points = vx.Points.make(positions, features, capacity=48)
    found = vx.radius_search(points, radius=0.8, capacity=40)
    density = functional.point_density(points, found, bandwidth=0.3)
    rigid = KernelPointConv(4, 5, 7, extent=0.32)
    moving = KernelPointConv(4, 5, 7, extent=0.32, deformable=True, modulated=True)
    continuous, net = ContinuousConv(4, 5, radius=0.8), PointConv(4, 5)
    run = nnx.jit(lambda *modules: [module(points, found).features for module in modules])
    first, second, third = run(rigid, moving, continuous)
    # Zero offsets and factors of one.
    np.testing.assert_allclose(first, second, atol=1e-5)
    assert third.shape == (48, 5)

    def both(modules):
        scaled = modules["net"](points, found, density=density)
        return modules["moving"](points, found).features + scaled.features

    learns(shaken(nnx.Dict(moving=moving, net=net), rng), both)


@pytest.mark.slow
def test_focal_and_spectral(rng):
    rows = np.unique(np.c_[np.zeros(20), rng.integers(0, 6, (20, 2))].astype(int), axis=0)
    voxels = make_voxels(rows, capacity=32)
    conv = shaken(FocalConv(3, 4, ndim=2, capacity=64), rng)
    assert int(nnx.jit(lambda conv, voxels: conv(voxels))(conv, voxels).count) > len(rows)
    learns(conv, lambda conv: conv(voxels).features)
    x = jnp.asarray(rng.standard_normal((1, 12, 12, 2)), jnp.float32)
    stride = SpectralStride((2.0, 3.0), smoothness=2.0)
    y, extent = stride(x)
    assert y.shape == x.shape
    assert all(n < 12 for n in extent)
    learns(stride, lambda stride: stride(x)[0])
