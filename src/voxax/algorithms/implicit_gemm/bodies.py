"""Which body of implicit_gemm runs: a native one where the platform has it, else plain XLA."""

from __future__ import annotations

import jax

from voxax.algorithms import native
from voxax.algorithms.base import Parameters, Problem, Product
from voxax.algorithms.implicit_gemm import cpu, xla
from voxax.hardware import HardwareInfo


def preferred(problem: Problem, hardware: HardwareInfo) -> bool:
    """Where the native kernels run they are taken unmeasured.

    On 2 cores of an AMD EPYC (AVX2) they took 0.2 to 0.9 times the pair lists of explicit_gemm in
    all products of a LiDAR sweep, 16 to 256 channels.
    """
    del hardware
    return native.refusal(problem) is None


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """The native kernels' parameters where they run: tiles in XLA are slower there."""
    return xla.space(problem, hardware) if native.refusal(problem) else cpu.space(problem)


def heuristic(problem: Problem, hardware: HardwareInfo) -> Parameters:
    """The first of the space."""
    return space(problem, hardware)[0]


def views(parameters: Parameters, product: Product, symmetric: bool) -> tuple[str, ...]:
    """All bodies read the neighbour table of the side that is written."""
    return xla.views(parameters, product, symmetric)


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
