"""all_taps: one batched product over all taps, from all their rows at once.

The oldest way to run a convolution as a matrix product (Chellapilla, Puri and Simard, "High
performance convolutional neural networks for document processing", 2006). K times the features are
in memory, so it is for small problems.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from voxax.geometry.dtypes import product_dtype
from voxax.hardware import HardwareInfo
from voxax.kernels.kernel import EVERY_PRODUCT, Kernel, Parameters, Problem
from voxax.kernels.rows import (
    clear_missing,
    clear_unreached,
    multiplies,
    oriented,
    outer,
    table_read,
    times,
    with_zero_row,
)

NOTHING: Parameters = ()  # there is nothing to choose


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """None, or the reason why this problem is not for it."""
    channels = problem.in_channels + problem.out_channels
    needed = problem.out_rows * problem.layer.num_offsets * channels * np.dtype(np.float32).itemsize
    free = hardware.memory_free
    if free is not None and needed > free // 4:
        return (
            f"gathers {needed:,} bytes at once, more than a quarter of the {free:,} that are free"
        )
    return multiplies(problem, hardware)


def apply(
    problem: Problem,
    parameters: Parameters,
    a: jax.Array,
    b: jax.Array,
    views: dict[str, jax.Array],
) -> jax.Array:
    """Any product; arguments as :class:`voxax.kernels.kernel.Apply`."""
    del parameters
    if problem.product == "wgrad":
        table = views["neighbors"]
        rows = with_zero_row(a)[clear_missing(table, a)]  # [M, K, C_in]
        dy = clear_unreached(b, table)
        out = jax.vmap(partial(outer, problem), in_axes=(1, None))(rows, dy)
        return out.reshape(problem.weight_shape).astype(product_dtype(a.dtype))
    # dgrad is the same sum over the transposed table, with transposed weights.
    weight, table = oriented(problem, b, views)
    rows = with_zero_row(a)[clear_missing(table, a)]
    parts = jax.vmap(partial(times, problem), in_axes=(1, 0))(rows, weight)  # [K, M, C_out]
    return jnp.sum(parts, axis=0).astype(product_dtype(a.dtype))


ALL_TAPS = Kernel(
    name="all_taps",
    kind="dense",
    products=EVERY_PRODUCT,
    platform="any",
    supports=supports,
    space=lambda problem, hardware: (NOTHING,),
    heuristic=lambda problem, hardware: NOTHING,
    reads=table_read,
    apply=apply,
)
ALL_TAPS_DEPTHWISE = dataclasses.replace(ALL_TAPS, kind="depthwise")
