"""Every usual layer without jit: a new number of rows compiles nothing, forward and backward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from voxax import _native
from voxax.models.training import masked_cross_entropy
from voxax.nn import functional
from voxax.nn import modules as layers

pytestmark = pytest.mark.skipif(
    _native.unavailable() is not None, reason=f"no native kernels: {_native.unavailable()}"
)

CHANNELS = 16


def labels_of(voxels):
    rows = np.arange(voxels.capacity)
    return np.where(rows % 5 < 3, rows % CHANNELS, -1).astype(np.int32)


def unpooled_by_index(voxels):
    pooled, indices = functional.max_pool(voxels, 2, return_indices=True)
    return functional.unpool(pooled, voxels, indices)


# Makes each layer, which takes voxels.
LAYERS = {
    "SubMConv3d": lambda: layers.SubMConv3d(CHANNELS, 8, 3),
    "SparseConv3d": lambda: layers.SparseConv3d(CHANNELS, 8, 2, 2),
    "depthwise": lambda: layers.SpatiallySparseDepthwiseConv(CHANNELS, 3),
    "BatchNorm": lambda: layers.BatchNorm(CHANNELS),
    "LayerNorm": lambda: layers.LayerNorm(CHANNELS),
    "RMSNorm": lambda: layers.RMSNorm(CHANNELS),
    "GroupNorm": lambda: layers.GroupNorm(CHANNELS, 4),
    "InstanceNorm": lambda: layers.InstanceNorm(CHANNELS),
    "Linear": lambda: layers.Linear(CHANNELS, 8, dtype=jnp.float32),
    "Linear in bfloat16": lambda: layers.Linear(CHANNELS, 8, use_bias=False, dtype=jnp.bfloat16),
    "ReLU": layers.ReLU,
    "GELU": layers.GELU,
    "GELU erf": lambda: layers.GELU(approximate=False),
    "SiLU": layers.SiLU,
    "LeakyReLU": layers.LeakyReLU,
    "sigmoid": lambda: layers.Activation(jax.nn.sigmoid),
    "tanh": lambda: layers.Activation(jax.nn.tanh),
    "elu": lambda: layers.Activation(jax.nn.elu),
    "softplus": lambda: layers.Activation(jax.nn.softplus),
    "Dropout": lambda: layers.Dropout(0.3, rngs=nnx.Rngs(1)),
    "DropPath": lambda: layers.DropPath(0.3, rngs=nnx.Rngs(1)),
    "SumPool": lambda: layers.SumPool(2),
    "MeanPool": lambda: layers.MeanPool(2),
    "MaxPool": lambda: layers.MaxPool(2),
    "MinPool": lambda: layers.MinPool(2),
    "Unpool": lambda: lambda v: functional.unpool(functional.max_pool(v, 2), v),
    "Unpool by index": lambda: unpooled_by_index,
    "mean of scenes": lambda: layers.GlobalPool("mean"),
    "sum of scenes": lambda: layers.GlobalPool("sum"),
    "max of scenes": lambda: layers.GlobalPool("max"),
    "min of scenes": lambda: layers.GlobalPool("min"),
    "a + b": lambda: lambda v: v + v.replace_features(v.features),
    "a * 2": lambda: lambda v: v * 2.0,
    "a - 1": lambda: lambda v: v - 1.0,
    "cat": lambda: lambda v: vx.cat([v, v.replace_features(v.features)]),
    "prune": lambda: lambda v: vx.prune(v, np.arange(v.capacity) % 2 == 0),
    "top_k": lambda: lambda v: vx.top_k(v, np.arange(v.capacity, dtype=np.float32), 8),
    "to_dense": lambda: lambda v: v.to_dense((12, 12, 12)),
    "loss": lambda: lambda v: masked_cross_entropy(v.features, labels_of(v)),
}
# JAX itself adds the cotangents of an array that is read twice.
SUMS = {"a + b", "cat"}


def voxels_of(number, capacity, dtype):
    rng = np.random.default_rng(number)
    coords = np.unique(rng.integers(0, (2, 12, 12, 12), (number, 4), np.int32), axis=0)
    features = rng.normal(size=(len(coords), CHANNELS)).astype(np.float32)
    features = jnp.asarray(features.astype(jnp.dtype(dtype)))
    return vx.Voxels.from_coords(coords, features, batch_size=2, capacity=capacity)


_next = iter(range(10**6))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_new_size_compiles_nothing(name, dtype, programs):
    layer = LAYERS[name]()
    graph = params = rest = None
    if isinstance(layer, nnx.Module):
        graph, params, rest = nnx.split(layer, nnx.Param, ...)
    if "Conv" in name or name == "depthwise":
        params = jax.tree.map(lambda value: value.astype(dtype), params)

    def run(voxels):
        def forward(features, params):
            own = layer if graph is None else nnx.merge(graph, params, rest, copy=True)
            out = own(voxels.replace_features(features))
            return out.features if isinstance(out, vx.Voxels) else out

        forward(voxels.features, params)
        out, pull = jax.vjp(forward, voxels.features, params)
        return pull(jax.device_put(np.ones(out.shape, out.dtype)))

    # Sizes that no other test has seen.
    jax.block_until_ready(run(voxels_of(300, 512 + next(_next), dtype)))
    for number in (350, 410):
        voxels = voxels_of(number, 700 + next(_next), dtype)
        jax.block_until_ready(voxels)
        programs.clear()
        jax.block_until_ready(run(voxels))
        assert len(programs) <= (name in SUMS), programs


@pytest.mark.parametrize("name", LAYERS)
def test_bits_are_those_of_jit(name):
    layer, voxels = LAYERS[name](), voxels_of(300, 400, "float32")
    graph = params = rest = None
    if isinstance(layer, nnx.Module):
        graph, params, rest = nnx.split(layer, nnx.Param, ...)

    def both(features, params):
        def forward(features, params):
            own = layer if graph is None else nnx.merge(graph, params, rest, copy=True)
            out = own(voxels.replace_features(features))
            return out.features if isinstance(out, vx.Voxels) else out

        out, pull = jax.vjp(forward, features, params)
        return out, pull(jnp.cos(out))

    if name in ("prune", "top_k"):  # whose capacity follows from the data
        return
    eager, compiled = both(voxels.features, params), jax.jit(both)(voxels.features, params)
    for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(compiled), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
