"""masked: the kernel of the largest size everywhere, without the taps that a position lacks.

The reference of every other strategy, and their portable fallback.
"""

from __future__ import annotations

import jax

from voxax.algorithms.base import Algorithm, Parameters, Problem
from voxax.algorithms.dynamic import blocks, reverse, slices
from voxax.algorithms.dynamic.grid import grid_of, supports
from voxax.algorithms.rows import EVERY_PRODUCT
from voxax.hardware import HardwareInfo

MASKED_FORMS: tuple[Parameters, ...] = (
    (("block", 512), ("fetch", "gather")),
    (("block", 512), ("fetch", "slices")),
    (("block", 2048), ("fetch", "slices")),
)
# One slice for each tap makes long programs.
_MOST_SLICES = 64


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """See :func:`forms_for`."""
    return forms_for(problem)


def forms_for(problem: Problem) -> tuple[Parameters, ...]:
    """Both ways to fetch patches, where slices are few enough."""
    return MASKED_FORMS if problem.num_offsets <= _MOST_SLICES else MASKED_FORMS[:1]


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: dict
) -> jax.Array:
    """See :class:`voxax.algorithms.base.Apply`; the view is ``sizes int32[M]``."""
    options = dict(parameters)
    block, sizes = int(options["block"]), views["sizes"]
    if options["fetch"] == "slices":
        return slices.run(problem, a, b, sizes, block)
    if problem.product == "dgrad":
        return reverse.dgrad(problem, a, b, sizes, block, skip=False)
    largest = grid_of(problem).largest
    return blocks.run(problem, a, b, sizes, None, block, lambda count: ((0, count, largest),))


MASKED = Algorithm(
    name="masked",
    kinds=frozenset({"dynamic"}),
    products=EVERY_PRODUCT,
    platforms=frozenset({"any"}),
    revision=1,
    supports=supports,
    space=space,
    heuristic=lambda problem, hardware: space(problem, hardware)[0],
    views=lambda parameters, product, symmetric: ("sizes",),
    forms=MASKED_FORMS,
    apply=apply,
)
