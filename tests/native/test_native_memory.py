"""The native path takes no memory that grows with pairs times channels."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.own_process import in_own_process
from benchmarks.workloads import solid_block

import voxax as vx
from problems import needs_native
from voxax.nn.functional import spatially_sparse_conv

CHANNELS = 16


@needs_native
@pytest.mark.parametrize("size", [300, 2400])
def test_the_compiler_plans_no_array_of_pairs(size):
    """Forward and both gradients in one program."""
    coords = solid_block(size)
    rows = len(coords)
    features = np.ones((rows, CHANNELS), np.float32)
    voxels = vx.Voxels.from_coords(coords, features, batch_size=1, capacity=rows)
    weight = jnp.ones((27, CHANNELS, CHANNELS))

    def step(weight, voxels, kernel_map, dy):
        def forward(weight, features):
            given = voxels.replace_features(features)
            return spatially_sparse_conv(given, weight, 3, kernel_map=kernel_map).features

        y, pull = jax.vjp(forward, weight, voxels.features)
        return y, pull(dy)

    kernel_map = vx.kernel_map(voxels, 3)
    program = jax.jit(step).lower(weight, voxels, kernel_map, voxels.features).compile()
    # One array of features on JAX 0.10, where rows of padding are cleared. Features of all pairs
    # would be 27 of them.
    assert program.memory_analysis().temp_size_in_bytes <= 3 * rows * CHANNELS * 4 + 4096


@needs_native
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads and resets Linux's high-water mark")
@pytest.mark.parametrize("voxels", [30_000, 120_000])
@pytest.mark.parametrize("occupancy", ["lidar", "block"])
def test_a_process_grows_by_the_results_alone(voxels, occupancy):
    """Up to a constant: packed weights and partial sums, and a tile for each thread."""
    row = in_own_process("memory", "one", voxels, occupancy, "native")
    constant = 32 << 20
    assert row["measured_temporary_bytes"] < constant
    if (voxels, occupancy) == (120_000, "block"):
        assert row["pair_rows_bytes"] > 10 * constant
