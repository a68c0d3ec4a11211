"""Sizes 3 and 5 on a real LiDAR sweep, chosen by range."""

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.workloads import scan

import voxax as vx
from oracle import relative_error
from voxax.nn.functional import sparse_dynamic_conv, spatially_sparse_conv


def valid_pairs(coords, size):
    """Count the inputs of each output within its size, with a set instead of a map."""
    there = set(map(tuple, coords.tolist()))
    low, high = -((size - 1) // 2), size // 2
    return sum(
        (b, x + i, y + j, z + k) in there
        for (b, x, y, z), lo, hi in zip(coords.tolist(), low.tolist(), high.tolist(), strict=True)
        for i in range(lo, hi + 1)
        for j in range(lo, hi + 1)
        for k in range(lo, hi + 1)
    )


def test_sizes_by_range_on_a_real_sweep(scans):
    rows = scan(scans, 4000)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(len(rows), 8)).astype(np.float32)
    voxels = vx.Voxels.from_coords(rows, features, 1, capacity=4096)
    coords = voxels.valid_coords()
    reach = np.hypot(*coords[:, 1:3].T)
    size = np.where(reach > np.median(reach), 5, 3)
    padded = jnp.zeros(voxels.capacity, jnp.int32).at[: len(size)].set(jnp.asarray(size))

    full = vx.kernel_map(voxels, 5)
    own = full.within(padded)
    number = int(jnp.sum(own.neighbors >= 0))
    assert number == valid_pairs(coords, size) == int(own.view("pair_starts")[-1])
    assert number < 0.9 * int(jnp.sum(full.neighbors >= 0))

    weight = jnp.asarray(rng.normal(size=(125, 8, 8)), jnp.float32)
    inner = weight.reshape(5, 5, 5, 8, 8)[1:4, 1:4, 1:4].reshape(27, 8, 8)
    out = jax.jit(lambda v, s: sparse_dynamic_conv(v, weight, 5, size=s).features)(voxels, padded)
    five = spatially_sparse_conv(voxels, weight, 5).valid_features()
    three = spatially_sparse_conv(voxels, inner, 3).valid_features()
    expected = np.where(size[:, None] == 5, five, three)
    assert relative_error(np.asarray(out)[: len(size)], expected) < 1e-5
