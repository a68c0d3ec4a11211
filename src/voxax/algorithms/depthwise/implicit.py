"""implicit: one filter per channel, rows read where they are; natively on CPUs, else in XLA.

In XLA these are the tiles of implicit_gemm, which take any kind of weight.
"""

from __future__ import annotations

import jax

from voxax.algorithms import native
from voxax.algorithms.base import Algorithm, Parameters, Problem
from voxax.algorithms.depthwise import cpu
from voxax.algorithms.implicit_gemm import xla
from voxax.algorithms.rows import EVERY_PRODUCT
from voxax.hardware import HardwareInfo


def preferred(problem: Problem, hardware: HardwareInfo) -> bool:
    """Where the native kernels run they are taken unmeasured."""
    del hardware
    return native.refusal(problem) is None


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """The native kernels' parameters where they run, else the tiles of XLA."""
    return xla.space(problem, hardware) if native.refusal(problem) else cpu.space(problem)


def heuristic(problem: Problem, hardware: HardwareInfo) -> Parameters:
    """The first of the space."""
    return space(problem, hardware)[0]


def apply(
    problem: Problem,
    parameters: Parameters,
    a: jax.Array,
    b: jax.Array,
    views: dict[str, jax.Array],
) -> jax.Array:
    """Run the body that ``parameters`` name."""
    body = cpu if native.is_native(parameters) else xla
    return body.apply(problem, parameters, a, b, views)


ALGORITHM = Algorithm(
    name="implicit",
    kinds=frozenset({"depthwise"}),
    products=EVERY_PRODUCT,
    platforms=frozenset({"any"}),
    revision=1,
    supports=xla.supports,
    space=space,
    heuristic=heuristic,
    views=xla.views,
    forms=((),),
    apply=apply,
    preferred=preferred,
)
