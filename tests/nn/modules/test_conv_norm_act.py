"""Convolution, normalization, residual sum and ReLU as one product: where, and with whose numbers.

Kernels that apply the rest are tested in ``tests/kernels/test_gpu_epilogue.py``.
"""

import contextlib
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.gpu.sheets import gpu_sheet
from flax import nnx

import voxax as vx
from samples import make_voxels
from voxax import _compat
from voxax.explanation.inspect import find_products
from voxax.hardware import targeting
from voxax.models import ConvNormAct, MinkUNet14, ResidualBlock
from voxax.nn.modules import GELU, BatchNorm, ReLU, Sequential, SparseConv3d, sequential

ONE = "voxax_forward_epilogue"


@contextlib.contextmanager
def on_a_gpu(in_one=True):
    """Inside, programs are traced as for an H100; ``in_one=False``: layer by layer."""
    apart = mock.patch.object(sequential, "_is_one_product", return_value=False)
    info = gpu_sheet("sm_90").info
    with targeting(info), _compat.fresh_trace(), contextlib.nullcontext() if in_one else apart:
        yield


def block(c_in=6, **options):
    """A convolution with a bias, a block with a shortcut and one without, with drawn statistics."""
    options |= {"use_bias": True, "rngs": nnx.Rngs(0)}
    model = Sequential(
        ConvNormAct(c_in, 6, **options),
        ResidualBlock(6, 8, **options),
        ResidualBlock(8, 8, **options),
    )
    rng = np.random.default_rng(0)
    for _, layer in nnx.iter_modules(model):
        if isinstance(layer, BatchNorm):
            for value in (layer.mean, layer.var, layer.scale, layer.bias):
                value.set_value(jnp.asarray(rng.uniform(0.5, 2, value.shape), value.dtype))
    model.eval()
    return model


@pytest.fixture
def voxels(rng):
    rows = np.unique(rng.integers(0, 6, (120, 3)), axis=0)
    found = make_voxels(np.pad(rows, ((0, 0), (1, 0))), 6)
    # Garbage in padding, which replace_features would clear.
    features = jnp.where(found.valid[:, None], found.features, jnp.nan)
    return vx.Voxels(found.geometry, features)


def called(model):
    graph, state = nnx.split(model)
    return lambda state, voxels: nnx.merge(graph, state)(voxels).features, state


def names(function, *arguments):
    return str(jax.make_jaxpr(function)(*arguments)).count(ONE)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_without_a_kernel_for_it_the_layers_are_computed(voxels, dtype):
    """Bit by bit: a program that was traced for a GPU and is lowered for a CPU."""
    function, state = called(block(dtype=jnp.dtype(dtype)))
    found = []
    for in_one in (True, False):
        with on_a_gpu(in_one):
            assert names(function, state, voxels) == 5 * in_one
            found.append(np.asarray(jax.jit(function)(state, voxels), np.float32))
    assert np.isfinite(found[0]).all()
    assert found[0].any()
    np.testing.assert_array_equal(*found)


def test_derivatives_are_those_of_the_layers(voxels):
    function, state = called(block())
    flat, tree = jax.tree.flatten(state)
    places = [i for i, x in enumerate(flat) if jnp.issubdtype(x.dtype, jnp.floating)]

    def loss(floats, features):
        values = dict(enumerate(flat)) | dict(zip(places, floats, strict=True))
        state = jax.tree.unflatten(tree, list(values.values()))
        y = function(state, voxels.replace_features(features))
        return jnp.sum(jnp.sin(y))

    at = [flat[i] for i in places], voxels.features
    along = jax.tree.map(lambda x: jnp.ones_like(x) * 0.5, at)
    found = []
    for in_one in (True, False):
        with on_a_gpu(in_one):
            gradients = jax.jit(jax.grad(loss, (0, 1)))(*at)
            pushed = jax.jit(lambda *a: jax.jvp(jax.grad(loss, 1), *a))(at, along)
            scenes = jnp.stack([voxels.features, 2 * voxels.features])
            mapped = jax.jit(jax.vmap(lambda x: loss(at[0], x)))(scenes)
            found.append(jax.tree.leaves((gradients, pushed, mapped)))
    for one, apart in zip(*found, strict=True):
        np.testing.assert_allclose(one, apart, rtol=2e-5, atol=2e-5)


def test_only_inference_on_gpus_with_own_layers_is_one_product(voxels):
    function, state = called(block())
    assert names(function, state, voxels) == 0, "not on a CPU"
    training = block()
    training.train()

    class Own(BatchNorm):
        pass

    conv = SparseConv3d(6, 6)
    others = (
        Sequential(conv, BatchNorm(6, use_running_average=True), GELU()),
        Sequential(conv, Own(6, use_running_average=True), ReLU()),
        Sequential(lambda v: conv(v), BatchNorm(6, use_running_average=True), ReLU()),
    )
    with on_a_gpu():
        for model in (training, *others):
            function, state = called(model)
            assert names(function, state, voxels) == 0
        function, state = called(Sequential(conv, BatchNorm(6, use_running_average=True), ReLU()))
        assert names(function, state, voxels) == 1


@pytest.mark.lax_promotion
def test_a_residual_that_needs_a_conversion_is_added_apart(voxels):
    conv, norm = SparseConv3d(6, 6), BatchNorm(6, use_running_average=True)

    def layers(v):
        half = v.map(lambda f: f.astype("bfloat16"))
        return sequential.conv_norm_act(conv, norm, ReLU(), v, shortcut=lambda: half).features

    with on_a_gpu():
        assert names(layers, voxels) == 0


def test_an_exported_program_has_the_layers(voxels):
    """JAX does not promise to keep the call of a Triton kernel."""
    function, state = called(block(dtype=jnp.float16))
    with on_a_gpu(), vx.algorithms(forward="implicit_gemm"):
        exported = jax.export.export(jax.jit(function), platforms=["cuda"])(state, voxels)
    assert "custom_call @triton" not in exported.mlir_module()
    assert "dot_general" in exported.mlir_module()


def test_products_are_found_for_explaining():
    voxels = make_voxels(np.array([[0, 1, 2, 3], [0, 1, 2, 4]]), 4)
    model = MinkUNet14(4, 3)
    model.eval()
    found = []
    for in_one in (True, False):
        with on_a_gpu(in_one):
            found.append([(c.scope, c.problem) for c in find_products(model, (voxels,), "gpu")])
    assert found[0] == found[1]
    assert len(found[0]) == 26
