"""Positional stride: a voxel is an output if its own stride divides its coordinates."""

import jax
import jax.numpy as jnp
import numpy as np

import voxax as vx
from voxax.nn import functional as F


def positional_stride_conv(voxels, weight, stride, kernel_size=3, *, capacity=None, **options):
    """Voxels on the input's lattice; stride int[capacity], below 1 a voxel is no output."""
    step = jnp.maximum(stride.astype(jnp.int32), 1)[:, None]
    keep = (stride > 0) & jnp.all(voxels.coords[:, 1:] % step == 0, axis=1)
    out = vx.prune(voxels, keep, capacity=capacity)
    return F.spatially_sparse_conv(voxels, weight, kernel_size, out_voxels=out, **options)


if __name__ == "__main__":
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    x, weight = normal(2, 16, 16, 8), normal(3, 3, 8, 16)

    @jax.jit
    def detailed(x):
        grid = vx.Voxels.from_dense(x, jnp.ones(x.shape[:-1], bool))
        stride = jnp.where(grid.features[:, 0] > 1, 1, 4)
        return positional_stride_conv(grid, weight.reshape(9, 8, 16), stride, capacity=256)

    y = detailed(x)
    assert int(y.count) < 2 * 16 * 16
    assert int(y.num_dropped) == 0
