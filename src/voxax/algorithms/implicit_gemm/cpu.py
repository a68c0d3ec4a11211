"""Implicit GEMM on CPUs: the native kernels, called through XLA's foreign function interface.

A tile of output rows stays in cache while tap after tap is added; rows that have a tap are taken
a few at a time, their features read in place. ``native/src/product.h`` has the idea in full.
The same bits for any number of threads.
"""

from __future__ import annotations

import jax
import numpy as np

from voxax.algorithms import native
from voxax.algorithms.base import Parameters, Problem
from voxax.algorithms.rows import table_views

# Rows of a tile. For 16 to 64 channels of a LiDAR sweep, forward and dgrad in tiles of 256 rows
# took 2 to 9 % less than in tiles of 128; with few rows, small tiles are work for more threads.
# wgrad in tiles of 2048 was within 4 % of the better of 512 and 2048 in 9 workloads of
# benchmarks/tuning.py (2 cores of an AMD EPYC, Zen 3). So there is nothing to measure.
_FORWARD_TILE, _FORWARD_TILE_OF_FEW, _WGRAD_TILE = 256, 128, 2048
_FEW_ROWS = 8192


def space(problem: Problem) -> tuple[Parameters, ...]:
    """One size of tiles."""
    if problem.product == "wgrad":
        return (native.parameters(gemm_block_size=_WGRAD_TILE),)
    few = problem.out_rows < _FEW_ROWS
    return (native.parameters(fwd_block_size=_FORWARD_TILE_OF_FEW if few else _FORWARD_TILE),)


def apply(
    problem: Problem,
    parameters: Parameters,
    a: jax.Array,
    b: jax.Array,
    views: dict[str, jax.Array],
) -> jax.Array:
    """Run a product with tiles of ``fwd_block_size`` or ``gemm_block_size`` rows."""
    values = dict(parameters)
    groups = problem.groups
    c_in, c_out = problem.in_channels // groups, problem.out_channels // groups
    if problem.product == "wgrad":
        shape = (problem.num_offsets, groups, c_in, c_out)
        call = jax.ffi.ffi_call("voxax_weight_product", jax.ShapeDtypeStruct(shape, a.dtype))
        dw = call(a, b, views["neighbors"], tile=np.int64(values["gemm_block_size"]))
        return dw.reshape(problem.weight_shape)
    backward = problem.product == "dgrad"
    channels = problem.in_channels if backward else problem.out_channels
    name = table_views(problem.product, problem.symmetric)[0]
    shape = (problem.out_rows, channels)
    call = jax.ffi.ffi_call("voxax_product", jax.ShapeDtypeStruct(shape, a.dtype))
    return call(
        a,
        b.reshape(problem.num_offsets, groups, c_in, c_out),
        views[name],
        groups=np.int64(groups),
        tile=np.int64(values["fwd_block_size"]),
        transposed=np.bool_(backward),
        reversed=np.bool_(backward and problem.symmetric),
    )
