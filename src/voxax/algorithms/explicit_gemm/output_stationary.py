"""Output-stationary sum: tap by tap, all output rows at once.

Each tap gathers one ``[M, C_in]`` matrix and adds its product to the output, which stays
where it is. The largest products of the three formulations, and ``K`` passes over the output.
"""

from __future__ import annotations

import jax

from voxax.algorithms.base import Problem
from voxax.algorithms.rows import (
    clear_missing,
    clear_unreached,
    oriented,
    outer,
    times,
    with_zero_row,
    zeros,
)
from voxax.geometry.dtypes import accumulator, product_dtype


def output_stationary(
    problem: Problem, a: jax.Array, b: jax.Array, views: dict[str, jax.Array]
) -> jax.Array:
    """Any product, one tap after the other; arguments as :class:`voxax.algorithms.base.Apply`."""
    source = with_zero_row(a)
    if problem.product == "wgrad":
        neighbors = views["neighbors"]
        dy, index = clear_unreached(b, neighbors), clear_missing(neighbors, a).T
        one = jax.lax.map(lambda rows: outer(problem, source[rows], dy), index)
        return one.reshape(problem.weight_shape).astype(product_dtype(a.dtype))
    w, neighbors = oriented(problem, b, views)
    channels = problem.out_channels if problem.product == "forward" else problem.in_channels

    def tap(total: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        rows, weight = step
        return total + times(problem, source[rows], weight), None

    total = zeros((len(neighbors), channels), accumulator(a.dtype), a)
    out, _ = jax.lax.scan(tap, total, (clear_missing(neighbors, a).T, w))
    return out.astype(product_dtype(a.dtype))
