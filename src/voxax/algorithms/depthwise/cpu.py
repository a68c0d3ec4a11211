"""Depthwise products on CPUs: the native kernels, which read features where they are."""

from __future__ import annotations

import jax
import numpy as np

from voxax.algorithms import native
from voxax.algorithms.base import Parameters, Problem
from voxax.algorithms.rows import table_views

_TILE = 256


def space(problem: Problem) -> tuple[Parameters, ...]:
    """Rows of a unit of work: 512 were within what times vary by of 256 (AMD EPYC, Zen 5).

    wgrad has the parameter as all its native bodies do; its units follow from the shapes.
    """
    name = "gemm_block_size" if problem.product == "wgrad" else "fwd_block_size"
    return (native.parameters(**{name: _TILE}),)


def apply(
    problem: Problem,
    parameters: Parameters,
    a: jax.Array,
    b: jax.Array,
    views: dict[str, jax.Array],
) -> jax.Array:
    """Run a product in units of ``fwd_block_size`` or ``gemm_block_size`` rows."""
    (tile,) = (value for name, value in parameters if name.endswith("_block_size"))
    rows = problem.num_offsets if problem.product == "wgrad" else problem.out_rows
    shape = jax.ShapeDtypeStruct((rows, problem.in_channels), a.dtype)
    return jax.ffi.ffi_call("voxax_depthwise", shape)(
        a,
        b,
        views[table_views(problem.product, problem.symmetric)[0]],
        tile=np.int64(tile),
        wgrad=np.bool_(problem.product == "wgrad"),
        reversed=np.bool_(problem.product == "dgrad" and problem.symmetric),
    )
