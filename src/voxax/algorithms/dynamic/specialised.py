"""specialised: grouped, compiled for how many positions have at least each size.

The counts, rounded up, are part of the program: no branch is left in it, and one program is kept
for each bucketed histogram. A caller that has sizes in hand gives them (``Problem.prefix``).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from voxax.algorithms.base import Parameters, Problem
from voxax.algorithms.dynamic import blocks, masked
from voxax.algorithms.dynamic.grid import grid_of
from voxax.hardware import HardwareInfo

BLOCK = 512


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Sizes that are known when the program is compiled."""
    if not problem.prefix:
        return "compiles for one histogram of sizes: they are traced here, or it was not asked for"
    return masked.supports(problem, hardware)


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: dict
) -> jax.Array:
    """See :class:`voxax.algorithms.base.Apply`; the view is ``sizes int32[M]``."""
    grid = grid_of(problem)
    sizes = jnp.clip(views["sizes"], 0, grid.largest)
    order = jnp.argsort(-sizes, stable=True).astype(jnp.int32)
    block = max(1, min(int(dict(parameters)["block"]), grid.positions))

    def segments(count: int) -> list[tuple[int, int, int | None]]:
        found, begin = [], 0
        for size in range(grid.largest, -1, -1):
            end = count if not size else min(count, -(-problem.prefix[size] // block))
            found.append((begin, max(begin, end), size))
            begin = max(begin, end)
        return found

    return blocks.run(problem, a, b, sizes, order, block, segments)


def prefix_of(counts: list[int], positions: int) -> tuple[int, ...]:
    """Positions of at least each size, rounded up to one of some 16 steps, so programs are few."""
    step = max(BLOCK, -(-positions // 16))
    return tuple(min(positions, -(-count // step) * step) for count in counts)


ALGORITHM = dataclasses.replace(
    masked.MASKED,
    name="specialised",
    supports=supports,
    space=lambda problem, hardware: ((("block", BLOCK),),),
    heuristic=lambda problem, hardware: (("block", BLOCK),),
    forms=((("block", BLOCK),),),
    apply=apply,
)
