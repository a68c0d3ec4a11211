"""Modules with a kernel size of each voxel's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube
from examples.learned_size import pairs_within
from flax import nnx

from oracle import relative_error
from samples import make_voxels
from voxax.errors import InputError
from voxax.geometry import kernel_map
from voxax.nn.functional import sparse_dynamic_conv
from voxax.nn.modules import SparseDynamicConv2d, SparseDynamicConv3d


def test_learned_sizes_are_whole_and_train_as_they_evaluate():
    voxels = make_voxels(random_cube(40), channels=4, capacity=64)
    conv = SparseDynamicConv3d(4, 3, 4, learn_size=True, rngs=nnx.Rngs(0))
    conv.size_head.kernel[...] = jnp.asarray(np.random.default_rng(0).normal(size=(4, 1)))
    sizes = conv.sizes(voxels)
    assert set(np.unique(sizes)) <= {1.0, 2.0, 3.0, 4.0}
    assert len(np.unique(np.asarray(sizes)[: int(voxels.count)])) > 1
    conv.train()
    soft = jax.jit(lambda m, v: m(v).features)(conv, voxels)
    conv.eval()
    hard = jax.jit(lambda m, v: m(v).features)(conv, voxels)
    assert relative_error(soft, hard) < 1e-6
    own = sparse_dynamic_conv(voxels, conv.weight[...], 4, bias=conv.bias[...], size=sizes)
    assert relative_error(hard, own.features) < 1e-6


def test_the_slope_of_a_size_is_half_the_step_up_plus_half_the_step_down():
    voxels = make_voxels(random_cube(40), channels=4, capacity=64)
    weight = jnp.asarray(np.random.default_rng(1).normal(size=(64, 4, 1)), jnp.float32)
    sizes = jnp.asarray(np.random.default_rng(2).integers(2, 4, 64), jnp.float32)

    @jax.jit
    def total(size):
        return jnp.sum(sparse_dynamic_conv(voxels, weight, 4, size=size, tau=1.0).features)

    slopes = jax.grad(total)(sizes)
    for row in (0, 7, 20):
        up, down = total(sizes.at[row].add(1.0)), total(sizes.at[row].add(-1.0))
        np.testing.assert_allclose(slopes[row], (up - down) / 2, rtol=1e-3, atol=1e-3)


def test_every_parameter_has_a_gradient():
    voxels = make_voxels(random_cube(40, ndim=2), channels=4, capacity=64)
    conv = SparseDynamicConv2d(4, 3, 3, learn_size=True, num_weights=2, rngs=nnx.Rngs(0))
    graph, params = nnx.split(conv)

    def loss(params):
        return jnp.sum(nnx.merge(graph, params)(voxels).features ** 2)

    for path, leaf in jax.tree.leaves_with_path(jax.jit(jax.grad(loss))(params)):
        assert float(jnp.abs(leaf).max()) > 0, path


def test_pairs_are_counted_in_any_dtype_and_without_padding():
    voxels = make_voxels(random_cube(400), channels=4, capacity=512)
    kmap = kernel_map(voxels, 3)
    number = int((kmap.neighbors >= 0).sum())
    for dtype in (jnp.float32, jnp.bfloat16):
        size = jnp.where(voxels.valid, jnp.asarray(3, dtype), jnp.asarray(jnp.nan, dtype))
        assert int(pairs_within(kmap, size)) == number
    assert number > 256, "more than bfloat16 counts"


def test_errors():
    with pytest.raises(InputError, match="stride 1"):
        SparseDynamicConv3d(4, 3, 3, 2, learn_size=True)
    with pytest.raises(InputError, match="integer"):
        SparseDynamicConv3d(4, 3, 2.5)
    with pytest.raises(InputError, match="num_weights=0"):
        SparseDynamicConv3d(4, 3, 3, num_weights=0)
    voxels = make_voxels(random_cube(40), channels=4, capacity=64)
    with pytest.raises(InputError, match="learn_size=True"):
        SparseDynamicConv3d(4, 3, 3).sizes(voxels)
