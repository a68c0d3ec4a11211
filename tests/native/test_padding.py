"""Padding rows change nothing: not a bit of the rows before them, whatever the capacity."""

import dataclasses
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from problems import needs_native
from voxax._native import operators
from voxax._native.host import empty_array
from voxax.nn.functional import spatially_sparse_depthwise_conv
from voxax.nn.functional.batch_norm import batch_norm
from voxax.nn.modules import BatchNorm, MaxPool, ReLU, Sequential, SparseConv3d, SubMConv3d

pytestmark = needs_native

# Rows of a block of the norms, of a tile of products and of one of wgrad are in between.
VOXELS, CAPACITIES = 2500, (2500, 2501, 4000, 20000)
C = 24


def scene(rng, capacity, padding=0.0):
    coords = np.unique(rng.integers(0, 24, (VOXELS * 2, 3)), axis=0)
    coords = coords[np.sort(rng.permutation(len(coords))[:VOXELS])]
    rows = np.pad(coords, ((0, 0), (1, 0)))
    features = rng.normal(size=(VOXELS, C)).astype(np.float32)
    voxels = vx.Voxels.from_coords(rows, features, capacity=capacity)
    filled = jnp.where(voxels.valid[:, None], voxels.features, padding)
    return dataclasses.replace(voxels, features=filled)


def layers(name):
    rngs = nnx.Rngs(0)
    conv = {
        "submanifold": lambda: SubMConv3d(C, 40, 3, rngs=rngs),
        "strided": lambda: SparseConv3d(C, 40, 3, stride=2, use_bias=False, rngs=rngs),
        "pool": lambda: Sequential(MaxPool(2, 2), SubMConv3d(C, 40, 1, rngs=rngs)),
    }[name]()
    return Sequential(conv, BatchNorm(40), ReLU())


def found(name, voxels):
    """Features, gradients of the features and of the weights, and rows of each that are voxels."""
    graph, params, rest = nnx.split(layers(name), nnx.Param, ...)

    @jax.jit
    def gradients(params, rest, voxels):
        def loss(params, features):
            given = dataclasses.replace(voxels, features=features)
            out = nnx.merge(graph, params, rest, copy=True)(given)
            rows = jnp.where(out.valid[:, None], out.features, 0)
            weights = jnp.cos(jnp.arange(rows.size, dtype=jnp.float32) % 7 + 1).reshape(rows.shape)
            return jnp.sum(rows * rows * weights[:1]), out

        (_, out), (ours, theirs) = jax.value_and_grad(loss, (0, 1), has_aux=True)(
            params, voxels.features
        )
        return out, theirs, ours

    out, theirs, ours = gradients(params, rest, voxels)
    return np.asarray(out.features), int(out.count), np.asarray(theirs), ours


@pytest.mark.parametrize("name", ["submanifold", "strided", "pool"])
@pytest.mark.parametrize("padding", [0.0, np.nan])
def test_the_same_bits_at_every_capacity(name, padding):
    results = []
    for capacity in CAPACITIES:
        features, count, theirs, ours = found(
            name, scene(np.random.default_rng(1), capacity, padding)
        )
        assert not features[count:].any()
        assert not theirs[VOXELS:].any()
        rows = features[:count], theirs[:VOXELS], *jax.tree.leaves(ours)
        results.append([np.asarray(array) for array in rows])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("products", [(0,), (1,), (0, 1)])
def test_depthwise_at_every_capacity(products):
    weight = np.random.default_rng(2).normal(size=(27, C)).astype(np.float32)
    results = []
    for capacity in CAPACITIES:
        voxels = scene(np.random.default_rng(1), capacity, np.nan)
        kernel_map = vx.kernel_map(voxels, 3)

        def loss(x, w, kernel_map=kernel_map, valid=voxels.valid):
            y = spatially_sparse_depthwise_conv(x, w, kernel_map)
            return jnp.sum(jnp.where(valid[:, None], y * y, 0)), y

        found, y = jax.jit(jax.grad(loss, products, has_aux=True))(voxels.features, weight)
        assert not np.asarray(y)[VOXELS:].any()
        cut = [
            np.asarray(g)[:VOXELS] if p == 0 else g for g, p in zip(found, products, strict=True)
        ]
        results.append([np.asarray(y)[:VOXELS], *map(np.asarray, cut)])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_valid_rows_need_not_come_first(rng):
    rows, channels = 5000, 16
    valid = np.zeros(rows, bool)
    valid[rng.permutation(rows)[:20]] = True  # most blocks of rows have none
    x = rng.normal(size=(rows, channels)).astype(np.float32)
    x[~valid] = np.nan
    zero, one = np.zeros(channels, np.float32), np.ones(channels, np.float32)
    y = np.asarray(batch_norm(x, valid, zero, one, one, zero, training=True).features)
    wanted = (x[valid] - x[valid].mean(0)) / np.sqrt(x[valid].var(0) + 1e-5)
    np.testing.assert_allclose(y[valid], wanted, rtol=2e-5, atol=2e-5)
    assert not y[~valid].any()


def present_pages(array):
    page = os.sysconf("SC_PAGE_SIZE")
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(array.ctypes.data // page * 8)
        entries = np.frombuffer(file.read(array.nbytes // page * 8), np.uint64)
    return np.count_nonzero(entries >> np.uint64(63))


@pytest.mark.skipif(not os.access("/proc/self/pagemap", os.R_OK), reason="the system does not tell")
def test_padding_of_a_result_takes_no_memory():
    voxels = scene(np.random.default_rng(1), 400_000)
    conv = SubMConv3d(C, 64, 3, use_bias=False, rngs=nnx.Rngs(0))
    graph, state = nnx.split(conv)
    call = jax.jit(lambda state, voxels: nnx.merge(graph, state)(voxels).features)
    y = jax.block_until_ready(call(state, vx.plan(conv, voxels)))
    memory = np.asarray(y)
    # 640 KB of 102 MB are rows of voxels; a large page may reach further.
    assert present_pages(memory) < 0.1 * memory.nbytes // os.sysconf("SC_PAGE_SIZE")
    assert not memory[VOXELS:].any()


@pytest.mark.skipif(not os.access("/proc/self/pagemap", os.R_OK), reason="the system does not tell")
def test_padding_of_memory_that_was_used_is_given_back(monkeypatch):
    rows, used = 400_000, 2500
    memory = empty_array((rows, C), np.float32)
    memory[...] = 1
    monkeypatch.setattr(operators, "empty_array", lambda shape, dtype: memory)
    x, valid = np.ones((rows, C), np.float32), np.arange(rows) < used
    operators.on_numpy("add_rows", (jax.ShapeDtypeStruct(x.shape, x.dtype),), x, x, valid)
    assert present_pages(memory) < 0.2 * memory.nbytes // os.sysconf("SC_PAGE_SIZE")
    assert (memory[:used] == 2).all()
    assert not memory[used:].any()
