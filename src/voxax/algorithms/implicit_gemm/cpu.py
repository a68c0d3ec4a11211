"""Implicit GEMM on CPUs: the native kernels, called through XLA's foreign function interface.

A tile of output rows stays in cache while tap after tap is added; rows that have a tap are taken
a few at a time, their features read in place. ``native/src/product.h`` has the idea in full.
The same bits for any number of threads.
"""

from __future__ import annotations

import jax
import numpy as np

from voxax import _native
from voxax.algorithms.base import Parameters, Problem
from voxax.algorithms.rows import table_views
from voxax.hardware import HardwareInfo

_DTYPES = ("float32", "float64", "bfloat16")
# Rows of a tile. The first are taken unmeasured.
_FORWARD_TILES = (256, 64)
_WGRAD_TILES = (512, 2048)


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Real floating-point numbers on a CPU, where the native library is there."""
    del hardware
    if problem.platform != "cpu":
        return f"the native kernels do not run on {problem.platform}"
    if problem.kind == "depthwise":
        return "the native kernels multiply matrices, not one filter per channel"
    if problem.dtype not in _DTYPES:
        return f"the native kernels multiply {', '.join(_DTYPES)}, got {problem.dtype}"
    return _native.unavailable()


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """One tile size for each trade of cached sums against cached weights."""
    del hardware
    if problem.product == "wgrad":
        return tuple(_parameters(gemm_block_size=size) for size in _WGRAD_TILES)
    return tuple(_parameters(fwd_block_size=size) for size in _FORWARD_TILES)


def _parameters(**sizes: int) -> Parameters:
    return (("body", "native"), *sizes.items())


def apply(
    problem: Problem,
    parameters: Parameters,
    a: jax.Array,
    b: jax.Array,
    views: dict[str, jax.Array],
) -> jax.Array:
    """Run a product with tiles of ``fwd_block_size`` or ``gemm_block_size`` rows."""
    values = dict(parameters)
    groups, c_in, c_out = (
        problem.groups,
        problem.in_channels // problem.groups,
        problem.out_channels // problem.groups,
    )
    if problem.product == "wgrad":
        shape = (problem.num_offsets, groups, c_in, c_out)
        call = jax.ffi.ffi_call("voxax_weight_product", jax.ShapeDtypeStruct(shape, a.dtype))
        dw = call(a, b, views["neighbors"], tile=np.int64(values["gemm_block_size"]))
        return dw.reshape(problem.weight_shape)
    backward = problem.product == "dgrad"
    rows, channels = (
        (problem.in_capacity, problem.in_channels)
        if backward
        else (problem.out_capacity, problem.out_channels)
    )
    name = table_views(problem.product, problem.symmetric)[0]
    call = jax.ffi.ffi_call("voxax_product", jax.ShapeDtypeStruct((rows, channels), a.dtype))
    return call(
        a,
        b.reshape(problem.num_offsets, groups, c_in, c_out),
        views[name],
        groups=np.int64(groups),
        tile=np.int64(values["fwd_block_size"]),
        transposed=np.bool_(backward),
        reversed=np.bool_(backward and problem.symmetric),
    )
