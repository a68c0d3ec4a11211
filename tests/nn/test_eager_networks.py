"""Networks without jit on many sizes: what they compile, and that they compute what jit does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from voxax import _native
from voxax.nn.functional import max_pool
from voxax.nn.modules import BatchNorm, ReLU, Sequential, SparseConv3d, SubMConv3d

pytestmark = pytest.mark.skipif(
    _native.unavailable() is not None, reason=f"no native kernels: {_native.unavailable()}"
)

POINTS = (150, 260, 420, 700, 1100, 1700)


class Residual(nnx.Module):
    def __init__(self, channels, rngs):
        self.conv = SubMConv3d(channels, channels, 3, rngs=rngs)
        self.norm = BatchNorm(channels)

    def __call__(self, voxels):
        return voxels + self.norm(self.conv(voxels))


def network(residual=False):
    """Five convolutions, each with a bias, a norm and ReLU."""
    rngs, layers = nnx.Rngs(0), []
    for c_in, c_out, stride in ((4, 8, 1), (8, 16, 2), (16, 16, 1), (16, 16, 2), (16, 16, 1)):
        kind, kernel = (SubMConv3d, 3) if stride == 1 else (SparseConv3d, 2)
        layers += [kind(c_in, c_out, kernel, stride, rngs=rngs), BatchNorm(c_out), ReLU()]
    return Sequential(*layers, *([Residual(16, rngs)] if residual else []))


def cloud(number):
    rng = np.random.default_rng(number)
    positions = rng.uniform(-4, 4, (number, 3)).astype(np.float32)
    features = rng.normal(size=(number, 4)).astype(np.float32)
    # Not the default, by which some of these numbers would have the same shapes.
    return vx.voxelize(positions, features, 0.5, capacity=vx.bucket_capacity(number))


def check_programs(run, programs, of_each_size):
    """``run`` of voxels compiles for the first size what it likes, then so many for each."""
    jax.block_until_ready(run(cloud(POINTS[0])))
    programs.clear()
    capacities = set()
    for number in POINTS[1:]:
        voxels = cloud(number)
        capacities.add(voxels.capacity)
        jax.block_until_ready(run(voxels))
    assert len(capacities) == len(POINTS) - 1
    assert len(programs) <= of_each_size * len(capacities), programs


@pytest.mark.parametrize("autotune", ["off", "as by default"])
@pytest.mark.parametrize("training", [False, True])
def test_forward_compiles_nothing_for_a_new_size(training, autotune, programs, monkeypatch):
    if autotune != "off":
        monkeypatch.delenv("VOXAX_AUTOTUNE")
    model = network(residual=True)
    model.train() if training else model.eval()
    check_programs(lambda voxels: model(voxels).features, programs, 0)


def test_max_pooling_compiles_nothing_for_a_new_size(programs):
    def run(voxels):
        def pooled(features):
            return max_pool(voxels.replace_features(features), 2).features

        out, pull = jax.vjp(pooled, voxels.features)
        return out, max_pool(voxels, 3, 2).features, pull(out)

    check_programs(run, programs, 0)


@pytest.mark.parametrize("residual", [False, True])
def test_gradients_compile_nothing_for_a_new_size(residual, programs):
    """But one sum of JAX's own, where a residual and its branch both give a cotangent."""
    model = network(residual)
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def run(voxels):
        def forward(params):
            return nnx.merge(graph, params, rest, copy=True)(voxels).features

        out, pull = jax.vjp(forward, params)
        return pull(out)

    check_programs(run, programs, int(residual))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_and_gradients_have_the_bits_of_jit(dtype):
    """Layer by layer: in one program, XLA rounds a chain of bfloat16 once."""
    model, voxels = network(), cloud(500)
    voxels = voxels.replace_features(voxels.features.astype(dtype))
    for layer in list(model.layers)[:6]:
        if hasattr(layer, "weight"):
            layer.weight.set_value(layer.weight[...].astype(dtype))
        graph, params, rest = nnx.split(layer, nnx.Param, ...)

        def both(params, rest, voxels, graph=graph):
            def forward(params, features):
                layer = nnx.merge(graph, params, rest, copy=True)
                return layer(voxels.replace_features(features))

            out, pull = jax.vjp(lambda *given: forward(*given).features, params, voxels.features)
            return forward(params, voxels.features), pull(jnp.sin(out))

        eager, compiled = both(params, rest, voxels), jax.jit(both)(params, rest, voxels)
        for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(compiled), strict=True):
            assert a.dtype == b.dtype
            a, b = np.asarray(a), np.asarray(b)
            bits = f"u{a.dtype.itemsize}"
            np.testing.assert_array_equal(a.view(bits), b.view(bits))
        voxels = eager[0]


def test_derivatives_of_second_order():
    """Eager gradients of gradients, against compiled ones."""
    model, voxels = Sequential(*list(network().layers)[:3]), cloud(60)
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(features):
        layer = nnx.merge(graph, params, rest, copy=True)
        return (layer(voxels.replace_features(features)).features ** 3).sum()

    def twice(features):
        return jax.grad(lambda f: (jax.grad(loss)(f) ** 2).sum())(features)

    eager, compiled = twice(voxels.features), jax.jit(twice)(voxels.features)
    scale = np.abs(compiled).max()
    np.testing.assert_allclose(eager / scale, compiled / scale, atol=1e-4)
